"""Output of commands: the answer on stdout, everything else on stderr."""

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
"""Typer's class of usage errors, which newer versions of typer contain and older ones import from click."""
_NARROWEST, _WIDEST = 80, 120


def refuse_given(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Raise UsageError for the first of some options that was given although it has no effect here.

    Parameters
    ----------
    context
        The context of the command.
    names : iterable of str
        Names of the command's parameters that have no effect.
    why : str
        The reason, which follows the option: "is for GPUs, but host is a CPU".
    """
    wanted = set(names)
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in wanted and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{max(parameter.opts, key=len)} {why}; leave it out")


def line_width() -> int:
    """Return the width of lines: that of the terminal, between 80 and 120 characters; 80 without a terminal."""
    if not sys.stdout.isatty():
        return _NARROWEST
    return min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size().columns))


def print_text(text: str) -> None:
    """Write text and a line end to stdout, made `printable`."""
    typer.echo(printable(text))


def print_data(text: str) -> None:
    """Write data to stdout unchanged; on a terminal made `printable`."""
    typer.echo(printable(text.replace("\r\n", "\n")) if sys.stdout.isatty() else text, nl=False)


def print_json(value: object) -> None:
    """Write one JSON value to stdout on one line; escape all characters that are not printable."""
    import json

    import msgspec

    text = msgspec.json.encode(value).decode()
    typer.echo(
        text if text.isprintable() else "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)
    )


def print_lines(lines: Sequence[Line]) -> None:
    """Write lines to stdout; with styles only on a terminal and if NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        from anatune.report.text import join_lines

        typer.echo(join_lines(lines), nl=False)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text(printable(line.text), style=line.style))


def note(text: str) -> None:
    """Write one line to stderr; ignore errors, so that a full disk there does not lose the answer."""
    with contextlib.suppress(OSError):
        typer.echo(printable(text), err=True)


def note_once() -> Callable[[str], None]:
    """Return a function that writes a note; it writes each text only once."""
    said: set[str] = set()

    def tell(text: str) -> None:
        if text not in said:
            said.add(text)
            note(f"note: {text}")

    return tell
