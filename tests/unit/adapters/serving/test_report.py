"""What is said of files."""

from pathlib import Path

from anatune.adapters.serving.judging import Judged
from anatune.adapters.serving.report import gain_text, judged_lines, sure_text, written_lines
from anatune.report.text import plain
from tests.unit.adapters.serving.written import REQUEST, SHAPE, TILE, USUAL, choices, written


def test_what_was_written_is_beside_the_default():
    text = plain(written_lines(REQUEST, Path("out"), written(), 80))
    for part in (
        "out/E=64,N=1024", "64 x 128 x 64", "16 x 64 x 128", "1.50", "does not run", "hidden size 2048", "top-k 8",
        "bound",
    ):  # fmt: skip
        assert part in text
    assert "measured" not in text.split("Times are predicted")[0]
    assert max(map(len, text.splitlines())) <= 90


def test_what_was_measured_is_said():
    text = plain(written_lines(REQUEST, Path("out"), written(measured=True), 80))
    assert "Measured gain over the server's default in 1 of 3 rows: 2.00" in text
    assert "8 rows: build_error: ptxas says no" in text
    assert "anatune's own kernels" in text
    assert max(map(len, text.splitlines())) <= 100


def test_gains():
    assert gain_text(choices()) == "Predicted gain over the server's default: 1.25 (median), 1.50 at most."
    assert gain_text([choices()[1]]) == ""


def test_what_was_judged():
    judged = [Judged(1, TILE, 2.2e-5, USUAL, 2e-5), Judged(8, TILE, None, USUAL, 2e-5)]
    text = plain(judged_lines(judged, 80, SHAPE))
    assert "10 %" in text
    assert "does not run" in text


def test_how_sure_it_is_depends_on_the_layer():
    assert "layers of experts are off" in sure_text(REQUEST.shapes)
    assert "experts" not in sure_text(REQUEST.shapes[1:])
