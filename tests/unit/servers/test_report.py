"""What is said of files."""

from pathlib import Path

from anatune.report.text import join_lines
from anatune.servers.judging import JudgedEntry
from anatune.servers.report import gain_text, judged_lines, sure_text, written_lines
from anatune.servers.written import RowChoice, WrittenFile
from tests.unit.servers.written import REQUEST, SHAPE, TILE, USUAL, choices, written


def test_what_was_written_is_beside_the_default():
    text = join_lines(written_lines(REQUEST, Path("out"), written(), 80))
    for part in (
        "out/E=64,N=1024", "64 x 128 x 64", "16 x 64 x 128", "50 %", "does not run", "hidden size 2048", "top-k 8",
        "bound",
    ):  # fmt: skip
        assert part in text
    assert "measured" not in text.split("Times are predicted")[0]
    assert max(map(len, text.splitlines())) <= 90


def test_what_was_measured_is_said():
    text = join_lines(written_lines(REQUEST, Path("out"), written(measured=True), 80))
    assert "Measured gain over the server's default in 1 of 3 rows: 100 % in the median" in text
    assert "8 rows: build_error: ptxas says no" in text
    assert "anatune's own kernels" in text
    assert max(map(len, text.splitlines())) <= 100


def test_gains():
    def told(*rows, **fields):
        return gain_text(
            WrittenFile("E=64,N=1024,device_name=NVIDIA_H200.json", SHAPE, [choices()[row] for row in rows], **fields)
        )

    assert told(0, 1, 2) == "Predicted gain over the server's default: 25 % in the median, 50 % at most."
    assert told(1) == ""
    nothing = "A gain below 5 % is not significant: keep the server's default, or measure."
    assert told(2) == f"Predicted gain over the server's default: 0 % in the median, 0 % at most. {nothing}"
    assert told(2, shipped="vLLM 0.33.0", not_written="why").endswith(
        "file of vLLM 0.33.0: 0 % in the median, 0 % at most. Not written: why."
    )


def test_a_tuned_file_that_is_not_here_is_compared_with_nothing():
    unknown = [RowChoice(1, TILE, 2e-5, None, None, 1e-5, "launch")]
    file = WrittenFile("E=64,N=1024,device_name=NVIDIA_H200.json", SHAPE, unknown, "vLLM 0.33.0", "it has a tuned one")
    text = join_lines(written_lines(REQUEST, Path("out"), [file], 80))
    assert "NVIDIA_H200.json: not written" in text
    assert "Not written: it has a tuned one." in text
    assert "gain" not in text
    assert "default" not in text


def test_what_was_judged():
    judged = [JudgedEntry(1, TILE, 2.2e-5, USUAL, 2e-5), JudgedEntry(8, TILE, None, USUAL, 2e-5)]
    text = join_lines(judged_lines(judged, 80, SHAPE))
    assert "10 %" in text
    assert "does not run" in text


def test_how_sure_it_is_depends_on_the_layer():
    assert "Compared with published measurements" in sure_text(REQUEST.shapes)
    assert "experts" not in sure_text(REQUEST.shapes[1:])
