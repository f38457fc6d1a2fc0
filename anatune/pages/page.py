"""A page: sections of words, figures, tables and sliders, written as one HTML file that needs no network.

plotly's JavaScript and DataTables (the bundle that itables brings) stand in the file. A content security policy admits
these scripts alone, by their digests, and no address at all: whatever a device's name or a record's message holds, the
browser neither runs nor fetches it. Text is escaped by jinja2.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from anatune.core.show import digits
from anatune.files import replace_file
from anatune.named import import_optional

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_BYTES = 8_000_000
"""Largest page that tests let through."""
_FOLDER = Path(__file__).parent
_PURPOSE = "a page"
_HEIGHT = 450
"""Pixels of a figure that says nothing of its height: plotly's own."""
_MOST_US = 1e4
"""Microseconds from which on columns of times are told in ms."""
_TITLE_HEIGHT = 44
"""Pixels of a figure's title, which a page leaves out: its caption says the same."""

Cell = str | float | int | None
"""A cell of a table: None is shown as a dash and sorted as if it were larger than any number."""


@dataclass(frozen=True)
class Figure:
    """A figure with a caption in words (its title, where none is given), which is also read to who cannot see it."""

    figure: go.Figure
    caption: str = ""

    @property
    def words(self) -> str:
        """The caption, else the figure's title."""
        return self.caption or html.unescape(self.figure.layout.title.text or "")

    @property
    def height(self) -> int:
        """Pixels that the figure takes on the page."""
        return int(self.figure.layout.height or _HEIGHT) - _TITLE_HEIGHT


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    name : str
        Heading, with the unit of its numbers.
    is_text : bool
        Whether cells are words: aligned left, filtered by text; else numbers.
    help : str
        What it means, shown where the pointer rests on the heading.
    is_detail : bool
        Whether it is shown only when a person asks for all columns.
    """

    name: str
    is_text: bool = False
    help: str = ""
    is_detail: bool = False


@dataclass(frozen=True)
class Table:
    """A table that can be sorted and filtered by each of its columns.

    Attributes
    ----------
    columns : sequence of Column
    rows : sequence of sequences of Cell
        As many cells each as there are columns.
    caption : str
    rows_shown : int
        Rows of one leaf.
    marked : sequence of int
        Rows that stand out: doubtful ones, say.

    Columns of times in "(us)" are told in ms where the longest has more than four digits before the point.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    rows_shown: int = 10
    marked: Sequence[int] = ()

    def __post_init__(self) -> None:
        timed = [column.name.endswith("(us)") for column in self.columns]
        times = [cell for row in self.rows for cell in itertools.compress(row, timed) if isinstance(cell, (int, float))]
        if max(filter(math.isfinite, times), default=0) >= _MOST_US:
            columns = [replace(one, name=one.name.replace("(us)", "(ms)")) for one in self.columns]
            kept = [
                tuple(
                    c / 1e3 if is_us and isinstance(c, (int, float)) else c for c, is_us in zip(row, timed, strict=True)
                )
                for row in self.rows
            ]
            for name, value in (("columns", columns), ("rows", kept)):
                object.__setattr__(self, name, value)

    @classmethod
    def of(
        cls,
        columns: Sequence[Column | None],
        rows: Sequence[Sequence[Cell]],
        caption: str = "",
        rows_shown: int = 10,
        marked: Sequence[int] = (),
    ) -> Table:
        """Return a table without the columns that are None, and without their cells."""
        shown = [column is not None for column in columns]
        kept = [column for column in columns if column is not None]
        return cls(kept, [tuple(itertools.compress(row, shown)) for row in rows], caption, rows_shown, marked)


@dataclass(frozen=True)
class Facts:
    """A few numbers that a person wants first: (what, value, a remark or "")."""

    items: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Slider:
    """A number that a person can move, and the answer at each of its stops, computed beforehand.

    Attributes
    ----------
    name : str
        What is moved.
    stops : sequence of str
        Its values as people read them, ascending.
    start : int
        The stop that it begins at.
    answers : sequence of Facts
        One a stop.
    """

    name: str
    stops: Sequence[str]
    start: int
    answers: Sequence[Facts]


@dataclass(frozen=True)
class Sliders:
    """Sliders of which one is away from its start at a time: moving one takes the others back."""

    sliders: Sequence[Slider]


Content = Figure | Table | Facts | Sliders


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes
    ----------
    heading : str
    words : sequence of str
        Paragraphs before the content, plain text.
    content : sequence of Content
    points : sequence of str
        Sentences of a list, after the paragraphs.
    """

    heading: str
    words: Sequence[str] = ()
    content: Sequence[Content] = ()
    points: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A page of sections.

    Attributes
    ----------
    title : str
    sections : sequence of Section
    lead : sequence of str
        What the page is about, in a few sentences under the title.
    footer : str
        What made it.
    """

    title: str
    sections: Sequence[Section]
    lead: Sequence[str] = ()
    footer: str = ""

    def html(self) -> str:
        """Return the file's text.

        Raises
        ------
        MissingDependencyError
            A package of the extra ``report`` is not installed.
        """
        jinja = import_optional("jinja2", "report", _PURPOSE)
        environment = jinja.Environment(
            loader=jinja.FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True,
            undefined=jinja.StrictUndefined,
        )  # fmt: skip
        environment.filters |= {"cell": _cell_text, "order": _cell_order, "figure_json": _figure_json, "kind": _kind}
        tables_script, tables_style = _tables()
        scripts = {"plotly": _plotly(), "page": (_FOLDER / "page.js").read_text(encoding="utf-8")}
        policy = " ".join(f"'sha256-{_digest(text)}'" for text in scripts.values())
        text: str = environment.get_template("page.html").render(
            page=self,
            style=(_FOLDER / "page.css").read_text(encoding="utf-8"),
            scripts=scripts,
            policy=policy,
            tables_script=tables_script,
            tables_style=tables_style,
        )
        return text.encode(errors="replace").decode()  # a file's name may hold bytes that are no text

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, which appears as a whole or not at all.

        Raises
        ------
        OSError
            The folder is missing or cannot be written to, the disk is full.
        MissingDependencyError
            A package of the extra ``report`` is not installed.
        """
        replace_file(path, self.html().encode())


def check_packages() -> None:
    """Raise an error where a package that pages need is missing.

    Raises
    ------
    MissingDependencyError
        With the pip command.
    """
    for package in ("jinja2", "itables", "plotly"):
        import_optional(package, "report", _PURPOSE)


@cache
def _plotly() -> str:
    """Return plotly's JavaScript."""
    text: str = import_optional("plotly.offline", "report", _PURPOSE).get_plotlyjs()
    return _closed(text, "script")


@cache
def _tables() -> tuple[str, str]:
    """Return DataTables as one JavaScript module, a JSON string, and its style sheet."""
    folder = Path(import_optional("itables", "report", _PURPOSE).__file__ or "").parent / "html"
    script, style = ((folder / f"dt_bundle.{kind}").read_text(encoding="utf-8") for kind in ("js", "css"))
    return _json(script), _closed(style, "style")


def _closed(text: str, element: str) -> str:
    """Return the content of an element as it is: it must not end the element itself."""
    assert f"</{element}" not in text.lower()
    assert "<!--" not in text or "<script" not in text
    return text


def _json(value: object) -> str:
    """Return JSON that can stand in an element: nothing in it ends or opens one."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _digest(script: str) -> str:
    """Return what the content security policy calls a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _kind(content: Content) -> str:
    return type(content).__name__.lower()


def _cell_text(cell: Cell) -> str:
    """Return a cell as people read it: numbers with three digits at least, all of those before the point."""
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "–"
    if isinstance(cell, str):
        return cell
    return str(cell) if isinstance(cell, int) else digits(cell)


def _cell_order(cell: Cell) -> str:
    """Return what a cell is sorted by."""
    if isinstance(cell, str):
        return cell
    return f"{cell:.9g}" if cell is not None and math.isfinite(cell) else "1e300"


def _figure_json(figure: go.Figure) -> str:
    """Return a figure's data and layout as JSON for an element; without its title, which is the caption."""
    from markupsafe import Markup

    tree = json.loads(figure.to_json(validate=False))
    layout = tree["layout"]
    layout.pop("title", None)
    layout["height"] = layout.get("height", _HEIGHT) - _TITLE_HEIGHT
    margin = layout.setdefault("margin", {})
    margin["t"] = max(0, margin.get("t", _TITLE_HEIGHT) - _TITLE_HEIGHT)
    return Markup(_json({"data": tree["data"], "layout": layout}))
