"""Lines of text with a style: aligned columns, and wrapping that never cuts a word."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from anatune.printable import printable

_NO_BREAK = "\N{NO-BREAK SPACE}"

Cells = Sequence[tuple[str, Sequence[str]]]
"""The columns of a table: heading and cells of each."""
Style = Literal["", "bold", "dim", "green", "yellow"]


class Line(NamedTuple):
    """A line of a report, with a style for terminals."""

    text: str
    style: Style = ""


def join_lines(lines: Sequence[Line]) -> str:
    """Return the lines as text without styles, made `printable`."""
    return "".join(f"{printable(line.text).rstrip()}\n" for line in lines)


def wrap_text(text: str, width: int, *, indent: str = "", hanging: str | None = None) -> list[str]:
    """Break `text` at blanks into lines of at most `width` characters; longer words keep their own line.

    A number and the unit or noun after it stay together.

    Parameters
    ----------
    text : str
        The text to wrap.
    width : int
        Characters, >= 1.
    indent, hanging : str
        The text before the first line and before the following ones; `hanging` is `indent` by default.
    """
    lines = textwrap.wrap(
        re.sub(r"(?<=\d) (?=[%A-Za-z])", _NO_BREAK, text),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def wrap_items(items: Sequence[str], width: int, *, indent: str = "", hanging: str | None = None) -> list[str]:
    """Join items with commas and break lines between them only, never inside one that fits on a line."""
    text = ", ".join(item.replace(" ", _NO_BREAK) for item in items)
    return wrap_text(text, width, indent=indent, hanging=hanging)


def columns(rows: Sequence[Sequence[str]], left: Sequence[int] = (), *, width: int = 80) -> list[str]:
    """Align cells in columns: right-aligned save those of `left`; no cell is cut.

    Parameters
    ----------
    rows : sequence of sequences of str
        All of the same length; the first is the heading.
    left : sequence of int
        Columns that are left-aligned.
    width : int
        Columns are two blanks apart if that fits into `width` characters, else one.
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= width else " "
    return [
        gap.join(
            cell.ljust(widths[at]) if at in left else cell.rjust(widths[at]) for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def paragraph(text: str, width: int, style: Style = "", *, indent: str = "", hanging: str = "  ") -> list[Line]:
    """Return a text as lines of one style; an empty text has none. Parameters as `wrap_text`."""
    return [Line(line, style) for line in wrap_text(text, width, indent=indent, hanging=hanging)]


def item_lines(words: Sequence[str], width: int) -> list[Line]:
    """Return the dim lines under a row of a table: items separated by commas."""
    return [Line(line, "dim") for line in wrap_items(words, width, indent="    ", hanging="      ")]


def table(cells: Cells, left: Collection[str] = (), *, width: int = 80) -> list[Line]:
    """Return a table: its heading, then its rows.

    Parameters
    ----------
    cells : sequence of (str, sequence of str)
        Heading and cells of each column, all of the same length.
    left : collection of str
        Headings of the columns that are left-aligned.
    width : int
        Characters a line, as for `columns`.
    """
    rows = [[name for name, _ in cells], *(list(row) for row in zip(*(values for _, values in cells), strict=True))]
    heading, *others = columns(rows, [at for at, (name, _) in enumerate(cells) if name in left], width=width)
    return [Line(heading, "bold"), *map(Line, others)]
