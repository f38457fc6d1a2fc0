"""What goes to the terminal: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from anatune.printable import printable

if TYPE_CHECKING:
    from anatune.report.text import Line

UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""Typer's class of usage errors: newer versions of typer bring click inside, older ones import it."""
_NARROWEST, _WIDEST = 80, 120


def refuse_given(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Raise UsageError for the first of some options that was given: here it would be ignored.

    Parameters
    ----------
    context
        Of the command.
    names : iterable of str
        Of the command's parameters.
    why : str
        Follows the option: "is for GPUs, and host is none".
    """
    wanted = set(names)
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in wanted and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{max(parameter.opts, key=len)} {why}; leave it out")


def line_width() -> int:
    """Return the characters a line may have: the terminal's between 80 and 120, and 80 without a terminal."""
    if not sys.stdout.isatty():
        return _NARROWEST
    return min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size().columns))


def print_text(text: str) -> None:
    """Write text to stdout with a line end, `printable`."""
    typer.echo(printable(text))


def print_data(text: str) -> None:
    """Write data to stdout as they are; where only a person reads them, on a terminal, `printable`."""
    typer.echo(printable(text.replace("\r\n", "\n")) if sys.stdout.isatty() else text, nl=False)


def print_json(value: object) -> None:
    """Write one JSON value to stdout, on one line; all that is no sign as JSON's escapes, not only what has to be."""
    import json

    import msgspec

    text = msgspec.json.encode(value).decode()
    typer.echo(
        text if text.isprintable() else "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)
    )


def print_lines(lines: Sequence[Line]) -> None:
    """Write lines to stdout; with styles only on a terminal, and not where NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        from anatune.report.text import plain

        typer.echo(plain(lines), nl=False)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text(printable(line.text), style=line.style))


def note(text: str) -> None:
    """Write one line to stderr: progress, or what else is worth knowing; a stderr that is full costs no answer."""
    with contextlib.suppress(OSError):
        typer.echo(printable(text), err=True)


def note_once() -> Callable[[str], None]:
    """Return a function that writes a note, each text once."""
    said: set[str] = set()

    def tell(text: str) -> None:
        if text not in said:
            said.add(text)
            note(f"note: {text}")

    return tell
