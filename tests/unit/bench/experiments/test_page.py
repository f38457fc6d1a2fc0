"""What experiments write into their pages."""

import math

import pytest

from bench.experiments.page import figure_of, fill, markdown_table, save, spread_text


def test_what_the_bench_writes_replaces_what_it_wrote_before(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: written by the bench -->\nold\n<!-- end of a -->\nafter\n")
    for text in ("new \\1\n", "newer\n"):
        fill(page, "a", text)
    assert page.read_text() == "before\n<!-- a: written by the bench -->\n\nnewer\n\n<!-- end of a -->\nafter\n"
    with pytest.raises(SystemExit, match="has no lines <!-- b: written"):
        fill(page, "b", "text")


def test_tables_are_flush_right_but_for_names():
    assert markdown_table(["name", "x"], [["a", "1"]]) == "| name | x |\n|---|---:|\n| a | 1 |\n"


def test_a_median_may_be_never():
    assert spread_text([1.0, 2.0, math.inf, math.inf, math.inf], "{:.0f}") == "never (2 to never)"
    assert spread_text([]) == "-"


def test_the_same_figure_has_the_same_bytes(tmp_path):
    for name in ("one.svg", "two.svg"):
        figure, (axes,) = figure_of()
        axes.plot([1, 2], [3, 4], label="a")
        axes.legend()
        save(figure, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_figure_too_large_for_a_page_is_refused(tmp_path):
    figure, (axes,) = figure_of()
    axes.plot(range(40_000), [n * n % 97 for n in range(40_000)])
    with pytest.raises(SystemExit, match="draw less"):
        save(figure, tmp_path / "large.svg")
