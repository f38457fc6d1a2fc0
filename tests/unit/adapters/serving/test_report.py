"""What is said of files."""

from pathlib import Path

from anatune.adapters.serving.files import Choice, Judged, Request, Written
from anatune.adapters.serving.report import judged_lines, written_lines
from anatune.adapters.serving.shapes import Experts
from anatune.core.hardware.files import hardware
from anatune.report.text import plain

TILE, USUAL = (64, 128, 64, 4, 3, 1, 1), (16, 64, 128, 4, 4, 1, 1)


def test_what_was_written_is_beside_the_default():
    shape = Experts(64, 1024, 2048, 8)
    choices = [Choice(1, TILE, 2e-5, USUAL, 3e-5), Choice(8, TILE, 4e-5, USUAL, None)]
    request = Request("vllm", hardware("h200"), (shape,))
    text = plain(written_lines(request, Path("out"), [Written("a.json", shape, choices)], 80))
    for part in ("out/a.json", "64 x 128 x 64", "16 x 64 x 128", "1.50", "does not run", "hidden size 2048", "top-k 8"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 90


def test_what_was_judged():
    judged = [Judged(1, TILE, 2.2e-5, USUAL, 2e-5), Judged(8, TILE, None, USUAL, 2e-5)]
    text = plain(judged_lines(judged, 80))
    assert "10 %" in text
    assert "does not run" in text
