"""What goes to the terminal: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anatune.files import replace_file

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, GpuSpec
    from anatune.core.workload.nest import Workload
    from anatune.report.text import Line

__all__ = [
    "UsageError",
    "line_width",
    "note",
    "note_first_compilation",
    "note_once",
    "print_json",
    "print_lines",
    "print_text",
    "refuse_given",
    "write_bytes",
    "write_text",
]

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
    """Write one line to stderr: progress, or what else is worth knowing; a stderr that is full costs no answer."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def note_once() -> Callable[[str], None]:
    """Return a function that writes a note, each text once."""
    said: set[str] = set()

    def tell(text: str) -> None:
        if text not in said:
            said.add(text)
            note(f"note: {text}")

    return tell


def write_text(target: Path, text: str | Iterable[str]) -> None:
    """Write a text, or its pieces, to a file that appears whole or not at all; to a pipe or a device as it is."""
    if target.exists() and not target.is_file():  # nothing to replace, and /dev/null should stay what it is
        with target.open("w", encoding="utf-8", newline="") as stream:
            stream.writelines([text] if isinstance(text, str) else text)
        return
    replace_file(target, text.encode() if isinstance(text, str) else (piece.encode() for piece in text))


def write_bytes(target: Path, content: bytes) -> None:
    """Write bytes to a file that appears whole or not at all; to a pipe or a device as they are."""
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            stream.write(content)
        return
    replace_file(target, content)


def note_first_compilation(
    hardware: GpuSpec | CpuSpec, template: str | None = None, workload: Workload | None = None
) -> None:
    """Say on stderr that the model is compiled now, if no earlier run left its code.

    With a workload, for all templates that are ranked together where none is named.
    """
    from anatune.core.accuracy import RELAXED
    from anatune.core.templates import joined_templates, template_of
    from anatune.numerics import _jit

    one = template is not None or workload is None
    asked = (template_of(template, hardware),) if one else joined_templates(workload, hardware, RELAXED)
    if all(_jit.has_cached_code(code) for code in {found.code for found in asked}):
        return
    folder = _jit.cache_folder()
    if folder is None:
        note("note: compiling the model (10 to 30 s) in every run: there is no home folder; set NUMBA_CACHE_DIR")
        return
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    if os.access(existing, os.W_OK):
        note(f"note: compiling the model once (10 to 30 s), kept in {folder}; later runs start in about a second")
    else:
        note(f"note: compiling the model (10 to 30 s) in every run: {folder} is read-only; set NUMBA_CACHE_DIR")
