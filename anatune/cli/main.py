"""The entry point ``anatune COMMAND``, which turns errors into one line and an exit status.

Exit status: 0 success, 1 an AnatuneError (bad input, no legal schedule), a file error or too little memory, 2 wrong
usage, 130 interrupted, 141 the reader of a pipe went away. Commands import slow modules themselves, when they run.
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

from anatune.arguments import quote
from anatune.cli.completion import complete, completion
from anatune.cli.hardware.app import app as hardware_app
from anatune.cli.interrupts import INTERRUPTED, current_watcher, watch_interrupts
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
        bool, typer.Option("--quick", help="Check versions only, without importing the optional packages.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Report what is installed, which commands miss a package, and how to install it.

    The exit status is 1 if `anatune plan` cannot work.
    """
    from anatune.doctor.examination import examine
    from anatune.doctor.findings import can_plan, lines, tree

    findings = examine(imports=not quick)
    if as_json:
        print_text(json.dumps(tree(findings)))  # msgspec may be the broken package
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
    """Choose schedules for tensor kernels on GPUs and CPUs from an analytical model, without the device."""


def load_all_commands() -> Commands:
    """Return the command line with the commands of all packages, for documents and tests."""
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
        The arguments after ``anatune``; by default those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # file names may hold bytes that are not valid text
    try:
        command = typer.main.get_command(app)
        if (completion_status := complete(command)) is not None:
            return completion_status
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
        return _fail(f"a package that this command needs cannot be imported ({error}); run `anatune doctor`", 1)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) closed the pipe; keep the interpreter from flushing into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{reason(error)}", 1)
    except RecursionError:
        return _fail("the input is nested too deeply to be read; expected a file that anatune or a tuner wrote", 1)
    except MemoryError as error:
        return _fail(f"out of memory ({error or 'no details'}); use a smaller workload or a larger machine", 1)


def run(*, interruptible: bool) -> None:
    """Run the command line and exit, for the ``anatune`` script.

    Parameters
    ----------
    interruptible : bool
        Whether Ctrl-C ends the command; False if the parent process ignores SIGINT.
    """
    if _open_closed_streams():
        sys.exit(_fail("standard output is closed, the answer cannot be printed; use >/dev/null to discard it", 1))
    with watch_interrupts() if interruptible else contextlib.nullcontext():
        status = main()
    remove_scratch()  # again: killed processes may have written while the folders were removed
    sys.exit(status)


def _open_closed_streams() -> bool:
    """Open the standard streams that the caller closed on the null device; return whether stdout is one of them.

    Otherwise the next file that is opened (a record file) would receive the printed text.
    """
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:  # open() takes the lowest free file descriptor: that of the stream
        setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    return "stdout" in closed


class _Notes(logging.Handler):
    """A log handler that writes each message of the library as one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, above the progress bar if there is one."""
        say(f"note: {record.getMessage()}")


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Show the log messages of the library while a command runs."""
    log, handler = logging.getLogger("anatune"), _Notes()
    compiling = logging.getLogger("anatune.numerics")
    before = compiling.level
    log.addHandler(handler)
    compiling.setLevel(logging.INFO)  # the note about compiling the analytical model once
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
"""Phrases in typer's usage errors -> our phrases; longer phrases come first."""


def _usage_text(error: Exception) -> str:
    """Return a usage error as one line, with the refused value and the command that prints the help."""
    format_message = getattr(error, "format_message", None)
    text = " ".join(str(format_message() if format_message else error).split()).rstrip(".")
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    return f"{text}{_got(error, text)}; see `{context.command_path if context else 'anatune'} --help`"


def _got(error: Exception, text: str) -> str:
    """Return the refused value if the text does not name it: some versions of typer leave it out."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return ""
    value = quote(str(details()[0]["input"]))
    return "" if value in text else f", got {value}"


def _fail(message: str, status: int) -> int:
    """Write one line to stderr and return the exit status; end the process here after Ctrl-C."""
    line, interrupts = printable(" ".join(message.split())), current_watcher()
    if interrupts is not None and (status == INTERRUPTED or interrupts.has_come()):
        interrupts.flush_and_end(line if status == INTERRUPTED else "interrupted")
    note(f"error: {line}")
    return status
