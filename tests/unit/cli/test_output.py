"""What others wrote reaches no terminal as a command."""

import contextlib
import io
import json

import pytest

from anatune.cli import main, output
from anatune.errors import RecordError
from anatune.report.text import Line, join_lines

HOSTILE = "a\x1b[31mb\x9b2Jc\u202eü"
SHOWN = r"a\x1b[31mb\x9b2Jc\u202eü"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(params=[io.StringIO, Terminal], ids=["file", "terminal"])
def told(request, monkeypatch):
    """Return a function that runs something and returns what it wrote to stdout and stderr, terminals or not."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def run(program, *given):
        out, err = request.param(), request.param()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            program(*given)
        return out.getvalue(), err.getvalue()

    run.on_terminal = request.param is Terminal
    return run


def test_text_and_notes(told):
    def program():
        output.print_text(f"{HOSTILE}\nnext")
        output.print_lines([Line(HOSTILE, "bold")])
        output.note(HOSTILE)

    out, err = told(program)
    assert out.startswith(f"{SHOWN}\nnext\n")
    assert out.count(SHOWN) == 2
    assert err == f"{SHOWN}\n"
    assert not set("\x9b\u202e") & set(out)
    assert join_lines([Line(HOSTILE)]) == f"{SHOWN}\n"


def test_json_is_the_same_value(told):
    (line,) = told(output.print_json, {HOSTILE: [HOSTILE, "\U000e0001"]})[0].splitlines()
    assert line.isprintable()
    assert json.loads(line) == {HOSTILE: [HOSTILE, "\U000e0001"]}


def test_data_are_changed_on_terminals_only(told):
    out, _ = told(output.print_data, "a\x9b2Jb\r\n")
    assert out == ("a\\x9b2Jb\n" if told.on_terminal else "a\x9b2Jb\r\n")


@pytest.mark.parametrize(
    ("error", "said"), [(RecordError(HOSTILE), SHOWN), (OSError(2, "no", HOSTILE), SHOWN), (RecursionError(), "deeply")]
)
def test_errors(told, monkeypatch, error, said):
    def fail(_):
        raise error

    monkeypatch.setattr(main, "complete", fail)
    _, text = told(main.main, ["plan"])
    assert text.startswith("error: ")
    assert said in text
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
