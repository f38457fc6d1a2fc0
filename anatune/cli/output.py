"""What goes to the terminal: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from anatune.report.text import Line

__all__ = ["UsageError", "line_width", "note", "print_json", "print_lines", "print_text"]

UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""Typer's class of usage errors: newer versions of typer bring click inside, older ones import it."""
_NARROWEST, _WIDEST = 80, 120


def line_width() -> int:
    """Return the characters a line may have: the terminal's between 80 and 120, and 80 without a terminal."""
    if not sys.stdout.isatty():
        return _NARROWEST
    return min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size().columns))


def print_text(text: str) -> None:
    """Write text to stdout as it is, with a line end."""
    typer.echo(text)


def print_json(value: Any) -> None:
    """Write one JSON value to stdout, on one line."""
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


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
        console.print(Text(line.text, style=line.style))


def note(text: str) -> None:
    """Write one line to stderr: progress, or what else is worth knowing."""
    typer.echo(text, err=True)
