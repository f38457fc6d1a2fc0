import itertools

import pytest

from anatune.plots.theme import COLOURS, GREY, PARTS, REST, colours_of, label, new_figure
from anatune.templates.cpu.model import scoring as cpu
from anatune.templates.cuda.model import scoring
from anatune.templates.gpu.model import SPLIT_PARTS
from anatune.templates.scaled import model as scaled
from anatune.templates.thin import model as thin
from anatune.templates.triton import model as triton
from anatune.templates.triton.attention import times as attention
from anatune.templates.triton.rows import times as rows
from anatune.templates.winograd import model as winograd

PAPERS = ("#ffffff", "#14171c")


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colour", "paper"), list(itertools.product((*COLOURS, GREY, REST), PAPERS)))
def test_colours_are_seen_on_both_papers(colour, paper):
    bright, dark = sorted([luminance(colour), luminance(paper)], reverse=True)
    assert (bright + 0.05) / (dark + 0.05) >= 3.0


def test_names_have_colours_of_their_own():
    found = colours_of(["a", "b", "a", "c"], {"b": COLOURS[0]})
    assert found == {"a": COLOURS[1], "b": COLOURS[0], "c": COLOURS[2]}


@pytest.mark.parametrize(
    "parts",
    [(*scoring.PARTS, *SPLIT_PARTS), cpu.PARTS, winograd.PARTS, thin.PARTS,
     triton.PARTS, attention.PARTS, rows.PARTS,
     scaled.PARTS],
)  # fmt: skip
def test_no_two_parts_of_a_template_have_one_colour(parts):
    names = {part.removesuffix("_s") for part in parts}
    colours = [*colours_of(sorted(names), PARTS).values(), REST]
    assert len(set(colours)) == len(names) + 1


def test_text_of_others_is_no_markup():
    assert label("<b>x</b> & y") == "&lt;b&gt;x&lt;/b&gt; &amp; y"
    assert new_figure("<b>", x="<i>").layout.xaxis.title.text == "&lt;i&gt;"
