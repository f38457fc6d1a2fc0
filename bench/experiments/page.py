"""What experiments write for people: Markdown tables inside their page, and pictures beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.replay.metrics import quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "figure_of", "fill", "markdown_table", "save", "spread_text"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of Okabe and Ito: told apart by people who see fewer colours, too."""
_MOST_BYTES = 200_000
_MARKED = r"(<!-- {name}: written by the bench -->\n).*?(<!-- end of {name} -->)"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is flush left, the others flush right."""
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(['---', *['---:'] * (len(columns) - 1)])}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def fill(page: Path, name: str, text: str) -> None:
    """Put `text` between the marks of `name` in a page, in the place of what is there.

    Raises
    ------
    SystemExit
        The page has no such marks.
    """
    old = page.read_text(encoding="utf-8")
    pattern = re.compile(_MARKED.format(name=re.escape(name)), re.DOTALL)
    if not pattern.search(old):
        raise SystemExit(f"{page}: has no lines <!-- {name}: written by the bench --> and <!-- end of {name} -->")
    page.write_text(pattern.sub(lambda found: f"{found[1]}\n{text.strip()}\n\n{found[2]}", old), encoding="utf-8")


def spread_text(values: Sequence[float], form: str = "{:.3f}") -> str:
    """Return "median (quartiles)" of values, "never" for inf; "-" of none."""
    if not values:
        return "-"
    low, middle, high = (quantile(values, q) for q in (0.25, 0.5, 0.75))
    texts = ["never" if math.isinf(value) else form.format(value) for value in (low, middle, high)]
    return f"{texts[1]} ({texts[0]} to {texts[2]})"


def figure_of(columns: int = 1, rows: int = 1, *, width: float = 9.0, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Return a figure that is drawn without a display, and its axes row by row.

    Raises
    ------
    SystemExit
        matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise SystemExit("pictures need matplotlib: pip install matplotlib, or leave --page out") from None
    pyplot.rcParams.update({"svg.hashsalt": "anatune", "svg.fonttype": "none", "font.size": 9})
    figure, axes = pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(True, color="#dddddd", linewidth=0.6)
        one.set_axisbelow(True)
    return figure, list(axes.flat)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, the same bytes for the same figure, and close it.

    Raises
    ------
    SystemExit
        It is too large for a page.
    """
    from matplotlib import pyplot

    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)
    if path.stat().st_size > _MOST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes, expected at most {_MOST_BYTES:,}: draw less")
