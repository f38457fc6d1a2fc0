"""Figures of rows: bars or intervals with their names above them, where also a narrow page has room for long ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anatune.plots.theme import label, new_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["BAR_WIDTH", "row_figure"]

BAR_WIDTH = 0.38
"""Of a bar, in rows."""
_ROW_HEIGHT, _FRAME_HEIGHT = 50, 130
"""Pixels of a row with its name; of title, legend and axis around the rows."""


def row_figure(title: str, x: str, names: Sequence[str]) -> go.Figure:
    """Return an empty figure of rows, the i-th at y = i, the first on top.

    Parameters
    ----------
    title, x : str
        Of the figure and its axis, with its unit.
    names : sequence of str
        Of the rows; plain text.
    """
    count = max(1, len(names))
    figure = new_figure(title, x, "", height=_FRAME_HEIGHT + _ROW_HEIGHT * count)
    for place, name in enumerate(names):
        figure.add_annotation(
            xref="paper", x=0.0, xanchor="left", y=place, yshift=_ROW_HEIGHT * 0.36, text=label(name), showarrow=False,
            font={"size": 12.5}, align="left",
        )  # fmt: skip
    figure.update_yaxes(range=[count - 0.5, -0.75], showticklabels=False, ticks="", showgrid=False, zeroline=False)
    figure.update_layout(bargap=0.0)
    return figure
