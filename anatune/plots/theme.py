"""Common parts of all figures: colours, fonts, axes, rows, and the import of plotly.

A figure is readable on a light and on a dark page: its background is transparent, its text is a grey with enough
contrast to both (pages replace that colour), and its colours also differ in lightness.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from anatune.named import import_optional

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS = (
    "#0072b2", "#c98500", "#009e73", "#d55e00", "#c86fa0", "#3a9bd6", "#8f8100", "#8f63c7", "#b04a5a", "#5f8a8b",
)  # fmt: skip
"""Colours for people with a colour vision deficiency: those of Okabe and Ito without black, with a contrast of 3 to
white and to the dark page, and three more for figures with many parts."""
GREY = "#8a8a8a"
"""Colour of data for comparison."""
REST = "#8c6d4f"
"""Colour of the rest of a time beyond its parts."""
BEST = "#d6246e"
"""Colour of the best, or of measured data."""
PARTS = {
    "fma": COLOURS[0], "mma": COLOURS[0], "product": COLOURS[0], "issue": COLOURS[5], "load": COLOURS[9],
    "shared": COLOURS[4], "l1": COLOURS[4], "l2": COLOURS[1], "l3": COLOURS[2], "dram": COLOURS[3],
    "latency": COLOURS[7], "tail": COLOURS[6], "overhead": COLOURS[8], "launch": GREY, "start": GREY,
    "input": COLOURS[5], "output": COLOURS[7], "packing": COLOURS[4], "combine": COLOURS[9], "meet": COLOURS[9],
    "second": COLOURS[8], "spill": COLOURS[8],
}  # fmt: skip
"""Colours of the parts of a predicted time, and of levels of memory; they differ within each template."""
_CLEAR = "rgba(0,0,0,0)"
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_INK = "#808080"
LOGARITHMIC = {"type": "log", "dtick": 1, "tickformat": ",.7~g"}
"""Settings of an axis of powers of ten."""
COUNTING = LOGARITHMIC | {"tickformat": "~s"}
"""Settings of such an axis for numbers from 1: 10k, 1M."""
BAR_WIDTH = 0.38
"""Width of a bar in rows."""
_ROW_HEIGHT, _LINE_HEIGHT, _FRAME_HEIGHT = 50, 16, 150
"""Pixels of a row with a name of one line, of each further line, and of title, legend and axis."""
_LETTERS, _MOST_LINES = 44, 3
"""Characters of a line of a name on a narrow page; largest number of lines."""
_GRID = "rgba(128,128,128,0.25)"


def graph_objects() -> ModuleType:
    """Return the module ``plotly.graph_objects``.

    Raises
    ------
    MissingDependencyError
        plotly is not installed; the message has the pip command.
    """
    return import_optional("plotly.graph_objects", "report", "a figure")


def label(text: object) -> str:
    """Return a text with HTML escaped, which plotly would interpret in names from users and files."""
    return html.escape(str(text), quote=False)


def colours_of(names: Iterable[str], fixed: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a colour for each name: the fixed ones, and unused ones of `COLOURS` for the others."""
    wanted = dict.fromkeys(names)
    taken = {name: colour for name, colour in (fixed or {}).items() if name in wanted}
    free = iter([colour for colour in COLOURS if colour not in taken.values()] + list(COLOURS))
    return {name: taken.get(name) or next(free, GREY) for name in wanted}


def new_figure(title: str, x: str = "", y: str = "", *, height: int = 420) -> go.Figure:
    """Return an empty figure.

    Parameters
    ----------
    title, x, y : str
        Titles of the figure and its axes, with units; plain text.
    height : int
        Height in pixels; the width is that of the page.
    """
    axis = {
        "gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": _GRID, "automargin": True, "ticks": "outside",
        "tickcolor": _GRID, "title": {"standoff": 10},
    }  # fmt: skip
    figure: go.Figure = graph_objects().Figure()
    figure.update_layout(
        template={"layout": {"xaxis": axis, "yaxis": axis, "colorway": list(COLOURS)}},
        title={"text": label(title), "font": {"size": 16}, "x": 0.0, "xref": "container", "xanchor": "left"},
        title_pad={"l": 12},
        font={"family": _FONTS, "size": 13, "color": _INK},
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        height=height,
        margin={"l": 12, "r": 12, "t": 56, "b": 12},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0.0, "xanchor": "left", "bgcolor": _CLEAR},
        hoverlabel={"align": "left"},
        hovermode="closest",
    )  # fmt: skip
    figure.update_xaxes(title_text=label(x))
    figure.update_yaxes(title_text=label(y))
    return figure


def row_figure(title: str, x: str, names: Sequence[str]) -> go.Figure:
    """Return an empty figure of rows, the i-th at y = i, the first on top.

    Parameters
    ----------
    title, x : str
        Titles of the figure and its axis, with its unit.
    names : sequence of str
        Names of the rows; plain text.
    """
    wrapped = [textwrap.wrap(name, _LETTERS, max_lines=_MOST_LINES, placeholder=" …") or [""] for name in names]
    lines = max(map(len, wrapped), default=1)
    count, row = max(1, len(names)), _ROW_HEIGHT + _LINE_HEIGHT * (lines - 1)
    figure = new_figure(title, x, "", height=_FRAME_HEIGHT + row * count)
    for y, texts in enumerate(wrapped):
        figure.add_annotation(
            xref="paper", x=0.0, xanchor="left", y=y, yanchor="bottom", yshift=row * BAR_WIDTH / 2, align="left",
            text="<br>".join(map(label, texts)), showarrow=False, font={"size": 12.5},
        )  # fmt: skip
    figure.update_yaxes(range=[count - 0.5, -0.75], showticklabels=False, ticks="", showgrid=False, zeroline=False)
    figure.update_layout(bargap=0.0)
    return figure
