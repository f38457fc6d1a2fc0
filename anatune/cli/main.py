"""The entry point: ``anatune COMMAND``; errors become one line and an exit status.

Exit status: 0 ok, 1 an AnatuneError (bad input, nothing legal), a file or too little memory, 2 wrong usage,
130 interrupted, 141 the reader of a pipe went away. Modules that take time to import are imported by the commands that
need them.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from anatune.arguments import shown
from anatune.cli.completion import complete, completion
from anatune.cli.hardware.app import app as hardware_app
from anatune.cli.interrupts import INTERRUPTED, present, watched
from anatune.cli.options import AsJson
from anatune.cli.output import UsageError, note, print_lines, print_text
from anatune.cli.panels import Commands, Grouped
from anatune.cli.plan import plan
from anatune.cli.progress import say
from anatune.cli.prune import prune
from anatune.cli.records.app import app as records_app
from anatune.cli.tune.command import tune
from anatune.errors import AnatuneError
from anatune.files import reason, remove_scratch
from anatune.printable import printable


def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Look at versions only: import no package of the extras.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is installed, what is missing for which command, and how to mend it, one line each.

    Exit status 1 where anatune cannot plan.
    """
    from anatune.doctor.examination import examine
    from anatune.doctor.findings import can_plan, lines, tree

    findings = examine(imports=not quick)
    if as_json:
        print_text(json.dumps(tree(findings)))  # Python's own: msgspec may be what is broken
    else:
        print_lines(lines(findings))
    if not can_plan(findings):
        raise typer.Exit(1)


app = typer.Typer(
    name="anatune",
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("plan", cls=Grouped, no_args_is_help=False)(plan)
app.command("prune", cls=Grouped, no_args_is_help=False)(prune)
app.command("tune", cls=Grouped, no_args_is_help=False)(tune)
app.command("doctor", no_args_is_help=False)(doctor)
app.command("completion", no_args_is_help=False)(completion)
app.add_typer(hardware_app, name="hw")
app.add_typer(records_app, name="records")


def _print_version(wanted: bool) -> None:
    if wanted:
        from anatune.doctor.packages import version_lines

        typer.echo("\n".join(version_lines()))
        raise typer.Exit


@app.callback()
def anatune(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the versions and stop.")
    ] = False,
) -> None:
    """Choose schedules for tensor kernels on GPUs and CPUs from an analytical model: no device is needed."""


def load_all_commands() -> Commands:
    """Return the command line with the commands of all packages: documents and tests walk through it."""
    command = typer.main.get_group(app)
    assert isinstance(command, Commands)
    context = typer.Context(command)
    for name in command.list_commands(context):
        command.get_command(context, name)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows ``anatune``; by default the process's own.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no text
    try:
        command = typer.main.get_command(app)
        if (asked := complete(command)) is not None:
            return asked
        with (
            _notes(),
            command.make_context("anatune", list(sys.argv[1:] if arguments is None else arguments)) as context,
        ):
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as stop:
        return int(stop.exit_code)
    except AnatuneError as error:
        return _fail(str(error), 1)
    except UsageError as error:
        return _fail(_usage_text(error), 2)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "anatune":
            raise
        return _fail(f"a package that this needs cannot be imported ({error}); run `anatune doctor`", 1)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; keep the interpreter from flushing into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{reason(error)}", 1)
    except RecursionError:
        return _fail("what was given is nested too deeply to be read; expected what anatune or a tuner wrote", 1)
    except MemoryError as error:
        return _fail(f"out of memory ({error or 'no details'}); choose a smaller workload, or a machine with more", 1)


def run(*, interruptible: bool) -> None:
    """Run the command line and exit; the ``anatune`` script calls this.

    Parameters
    ----------
    interruptible : bool
        Ctrl-C ends it; not where whoever started it has SIGINT ignored.
    """
    if _open_closed_streams():
        sys.exit(_fail("standard output is closed, expected a place for the answer; use >/dev/null for none", 1))
    with watched() if interruptible else contextlib.nullcontext():
        status = main()
    remove_scratch()  # what killed processes wrote into folders while these were removed
    sys.exit(status)


def _open_closed_streams() -> bool:
    """Open standard streams that the caller closed on the null device; return whether stdout is among them.

    Else the next file that is opened (a record file) would be what is printed to.
    """
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:  # the lowest free number is taken: that of the stream
        setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    return "stdout" in closed


class _Notes(logging.Handler):
    """Writes what the library logs as one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, above a bar that is drawn just now."""
        say(f"note: {record.getMessage()}")


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Show what the library logs while a command runs."""
    log, handler = logging.getLogger("anatune"), _Notes()
    compiling = logging.getLogger("anatune.numerics")
    before = compiling.level
    log.addHandler(handler)
    compiling.setLevel(logging.INFO)  # what is compiled, and that it will not be again
    try:
        yield
    finally:
        log.removeHandler(handler)
        compiling.setLevel(before)


_WORDS = {
    ": Value error,": ":",
    " is not one of ": ", expected one of ",
    ": Input should be greater than or equal to ": ": expected a number >= ",
    ": Input should be less than or equal to ": ": expected a number <= ",
    ": Input should be ": ": expected ",
}
"""What typer says of values that it refuses, and what anatune says; the longer ones first."""


def _usage_text(error: Exception) -> str:
    """Return a usage error in one line, with what was got and the help to look at."""
    format_message = getattr(error, "format_message", None)
    text = " ".join(str(format_message() if format_message else error).split()).rstrip(".")
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    return f"{text}{_got(error, text)}; see `{context.command_path if context else 'anatune'} --help`"


def _got(error: Exception, text: str) -> str:
    """Return the value that an option refuses, where the text does not say it: some versions of typer leave it out."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return ""
    value = shown(str(details()[0]["input"]))
    return "" if value in text else f", got {value}"


def _fail(message: str, status: int) -> int:
    """Write one line to stderr and return the exit status; after Ctrl-C the process ends here."""
    line, interrupts = printable(" ".join(message.split())), present()
    if interrupts is not None and (status == INTERRUPTED or interrupts.came()):
        interrupts.end_here(line if status == INTERRUPTED else "interrupted")
    note(f"error: {line}")
    return status
