"""The command line with a plan built by hand: no model is needed."""

import json
import sys

import pytest
import typer

from anatune.cli import main, output
from anatune.report.text import Line
from tests.unit.report.plans import empty_plan, gpu_plan

WORDS = ["plan", "--hw", "rtx3090", "matmul", "512x4096x1024"]


@pytest.fixture
def planned(monkeypatch):
    """Answer every plan with one built by hand; return what the library was asked."""
    asked = []

    def use(answer):
        def plan(workload, hardware, top_k, *, time_limit_s, **others):
            asked.append((workload.operator, hardware.name, top_k, time_limit_s))
            return answer

        monkeypatch.setattr("anatune.api.plan", plan)
        return asked

    return use


def test_library_is_called_once(planned, capsys):
    asked = planned(gpu_plan())
    assert main.main([*WORDS, "--top-k", "2", "--time-limit", "1.5"]) == 0
    assert asked == [("matmul", "rtx3090", 2, 1.5)]
    captured = capsys.readouterr()
    assert "188.2 us" in captured.out
    assert captured.err == ""


def test_top_k_limits_what_is_shown_but_not_what_is_explained(planned, capsys):
    asked = planned(gpu_plan())
    assert main.main([*WORDS, "--top-k", "1", "--explain", "--json"]) == 0
    assert asked[0][2] >= 3
    tree = json.loads(capsys.readouterr().out)
    assert len(tree["schedules"]) == 1
    assert any("number 3" in sentence for sentence in tree["explanation"])


@pytest.mark.parametrize("options", [[], ["--explain"]])
def test_nothing_legal_is_an_error_with_reasons(planned, capsys, options):
    planned(empty_plan())
    assert main.main([*WORDS, *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "threads_per_block (threads of a block; limit 1,024) rejected 9,000,000 points (90 %)" in captured.err


def test_nothing_legal_in_json_still_counts_the_rules(planned, capsys):
    planned(empty_plan())
    assert main.main([*WORDS, "--json"]) == 1
    captured = capsys.readouterr()
    tree = json.loads(captured.out)
    assert tree["schedules"] == []
    assert tree["space"]["rejected"]["threads_per_block"] == 9_000_000
    assert captured.err.startswith("error: matmul")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (PermissionError(13, "Permission denied", "/x/y"), 1, "error: /x/y: permission denied\n"),
        (
            MemoryError("Unable to allocate 3 TiB"),
            1,
            "error: out of memory (Unable to allocate 3 TiB); use a smaller workload or a larger machine\n",
        ),
    ],
)
def test_other_ends(monkeypatch, capsys, error, status, text):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("anatune.api.hardware", fail)
    assert main.main(WORDS) == status
    assert capsys.readouterr().err == text


def test_errors_never_span_lines(capsys):
    assert main.main(["plan", "--hw", "a\nb", "matmul", "8x8x8"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


class _Terminal:
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_styles_only_where_they_are_wanted(monkeypatch, variables, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    output.print_lines([Line("best", "bold"), Line("[not markup] 1 2")])
    assert ("\x1b" in terminal.text) is coloured
    assert "[not markup] 1 2\n" in terminal.text


def test_width_of_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", _Terminal())
    for columns, width in (("40", 80), ("100", 100), ("300", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert output.line_width() == width


def test_usage_error_class_is_typers():
    assert issubclass(typer.BadParameter, output.UsageError)
    assert output.UsageError.__name__ == "UsageError"
