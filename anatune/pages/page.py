"""A page with sections of text, figures, tables and sliders, written as one HTML file that needs no network.

The file contains plotly's JavaScript and DataTables (the bundle in itables). A content security policy allows only
these scripts, by their digests, and no network address. The browser therefore neither runs nor fetches anything that a
device's name or a record's message contains. jinja2 escapes text.
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
"""The largest page that tests accept."""
_FOLDER = Path(__file__).parent
_PURPOSE = "a page"
_HEIGHT = 450
"""The height in pixels of a figure that does not set one: plotly's default."""
_MOST_US = 1e4
"""The time in us from which on columns of times are shown in ms."""
_TITLE_HEIGHT = 44
"""The height in pixels of a figure's title, which a page omits, because it has a caption."""

Cell = str | float | int | None
"""A cell of a table. None is shown as a dash and sorted after all numbers."""


@dataclass(frozen=True)
class Figure:
    """A figure with a caption (by default its title), which screen readers read as well."""

    figure: go.Figure
    caption: str = ""

    @property
    def words(self) -> str:
        """The caption, or the figure's title if there is none."""
        return self.caption or html.unescape(self.figure.layout.title.text or "")

    @property
    def height(self) -> int:
        """The height of the figure on the page in pixels."""
        return int(self.figure.layout.height or _HEIGHT) - _TITLE_HEIGHT


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    name : str
        The heading, with the unit of numbers.
    is_text : bool
        Whether cells are text (aligned left, filtered by text) instead of numbers.
    help : str
        The meaning, shown when the pointer is on the heading.
    is_detail : bool
        Whether the column is only shown with "All columns".
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
        The columns.
    rows : sequence of sequences of Cell
        The rows, with a cell for each column.
    caption : str
        The caption.
    rows_shown : int
        The number of rows that are shown at once.
    marked : sequence of int
        The highlighted rows.

    Columns of times in "(us)" are shown in ms if the longest has more than four digits before the point.
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
        """Make a table without the columns that are None and their cells."""
        shown = [column is not None for column in columns]
        kept = [column for column in columns if column is not None]
        return cls(kept, [tuple(itertools.compress(row, shown)) for row in rows], caption, rows_shown, marked)


@dataclass(frozen=True)
class Facts:
    """The most important numbers: (name, value, a remark or "")."""

    items: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Slider:
    """A slider for a number, with the precomputed answer at each of its stops.

    Attributes
    ----------
    name : str
        The name of the number.
    stops : sequence of str
        The values as text, ascending.
    start : int
        The index of the first stop that is shown.
    answers : sequence of Facts
        The answer at each stop.
    """

    name: str
    stops: Sequence[str]
    start: int
    answers: Sequence[Facts]


@dataclass(frozen=True)
class Sliders:
    """A group of sliders; moving one resets the others."""

    sliders: Sequence[Slider]


Content = Figure | Table | Facts | Sliders


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes
    ----------
    heading : str
        The heading.
    words : sequence of str
        The paragraphs before the content, as plain text.
    content : sequence of Content
        Figures, tables, facts and sliders.
    points : sequence of str
        The items of a list after the paragraphs.
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
        The title.
    sections : sequence of Section
        The sections.
    lead : sequence of str
        The paragraphs under the title that describe the page.
    footer : str
        The text at the end, with the version of anatune.
    """

    title: str
    sections: Sequence[Section]
    lead: Sequence[str] = ()
    footer: str = ""

    def html(self) -> str:
        """Return the text of the HTML file.

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
        return text.encode(errors="replace").decode()  # a file's name may contain bytes that are not text

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file in one step, so that no partial file can remain.

        Raises
        ------
        OSError
            The folder is missing or cannot be written to, or the disk is full.
        MissingDependencyError
            A package of the extra ``report`` is not installed.
        """
        replace_file(path, self.html().encode())


def check_packages() -> None:
    """Check that the packages for pages are installed.

    Raises
    ------
    MissingDependencyError
        A package is missing. The message contains the pip command.
    """
    for package in ("jinja2", "itables", "plotly"):
        import_optional(package, "report", _PURPOSE)


@cache
def _plotly() -> str:
    """Return plotly's JavaScript."""
    text: str = import_optional("plotly.offline", "report", _PURPOSE).get_plotlyjs()
    return _check_content(text, "script")


@cache
def _tables() -> tuple[str, str]:
    """Return DataTables as a JavaScript module (a JSON string), and its style sheet."""
    folder = Path(import_optional("itables", "report", _PURPOSE).__file__ or "").parent / "html"
    script, style = ((folder / f"dt_bundle.{kind}").read_text(encoding="utf-8") for kind in ("js", "css"))
    return _json(script), _check_content(style, "style")


def _check_content(text: str, element: str) -> str:
    """Return the content of an element after checking that it cannot end the element."""
    assert f"</{element}" not in text.lower()
    assert "<!--" not in text or "<script" not in text
    return text


def _json(value: object) -> str:
    """Return JSON that is safe inside an element: it cannot end or open one."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _digest(script: str) -> str:
    """Return the digest of a script for the content security policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _kind(content: Content) -> str:
    return type(content).__name__.lower()


def _cell_text(cell: Cell) -> str:
    """Return a cell as text; numbers have at least three digits, and all those before the point."""
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "–"
    if isinstance(cell, str):
        return cell
    return str(cell) if isinstance(cell, int) else digits(cell)


def _cell_order(cell: Cell) -> str:
    """Return the sort key of a cell."""
    if isinstance(cell, str):
        return cell
    return f"{cell:.9g}" if cell is not None and math.isfinite(cell) else "1e300"


def _figure_json(figure: go.Figure) -> str:
    """Return a figure's data and layout as JSON for an element, without the title, which is the caption."""
    from markupsafe import Markup

    tree = json.loads(figure.to_json(validate=False))
    layout = tree["layout"]
    layout.pop("title", None)
    layout["height"] = layout.get("height", _HEIGHT) - _TITLE_HEIGHT
    margin = layout.setdefault("margin", {})
    margin["t"] = max(0, margin.get("t", _TITLE_HEIGHT) - _TITLE_HEIGHT)
    return Markup(_json({"data": tree["data"], "layout": layout}))
