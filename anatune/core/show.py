"""Text and tables of objects: times with units, short HTML tables for notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def digits(value: float) -> str:
    """Return `value`, which is below about 10^5, with four significant digits and without exponent."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3e}")
    return f"{rounded:.{max(0, min(6, 3 - math.floor(math.log10(abs(rounded)))))}f}"


def duration(seconds: float) -> str:
    """Return a time in seconds as text with a fitting unit.

    Examples
    --------
    >>> duration(0.00018818), duration(2.5e-6), duration(1.5), duration(0.0)
    ('188.2 us', '2.500 us', '1.500 s', '0 s')
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds == 0:
        return "0 s"
    scale, unit = duration_unit(seconds)
    number = digits(seconds / scale) if abs(seconds) >= 0.99995 * scale else f"{seconds / scale:.3g}"
    return f"{number} {unit}"


def duration_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which a time is shown, as seconds and name, for columns of times.

    Examples
    --------
    >>> duration_unit(0.00018818), duration_unit(0.0)
    ((1e-06, 'us'), (1.0, 's'))
    """
    units = (unit for unit in _SECONDS if abs(seconds) >= 0.99995 * unit[0])
    return next(units, _SECONDS[-1] if seconds else _SECONDS[0])


def html_table(caption: str, heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; every text is escaped.

    Examples
    --------
    >>> html_table("a < b", ["x"], [[1]])
    '<table><caption>a &lt; b</caption><tr><th>x</th></tr><tr><td>1</td></tr></table>'
    """

    def row(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f"<table><caption>{html.escape(caption)}</caption>{row(heading, 'th')}{body}</table>"
