"""Figures of rows: bars or intervals with their names above them, where also a narrow page has room for long ones."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anatune.plots.theme import label, new_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["BAR_WIDTH", "row_figure"]

BAR_WIDTH = 0.38
"""Of a bar, in rows."""
_ROW_HEIGHT, _LINE_HEIGHT, _FRAME_HEIGHT = 50, 16, 150
"""Pixels of a row with a name of one line; of each more; of title, legend and axis around the rows."""
_LETTERS, _MOST_LINES = 44, 3
"""Of a line of a name, as many as a narrow page has room for; lines of it."""


def row_figure(title: str, x: str, names: Sequence[str]) -> go.Figure:
    """Return an empty figure of rows, the i-th at y = i, the first on top.

    Parameters
    ----------
    title, x : str
        Of the figure and its axis, with its unit.
    names : sequence of str
        Of the rows; plain text.
    """
    wrapped = [textwrap.wrap(name, _LETTERS, max_lines=_MOST_LINES, placeholder=" …") or [""] for name in names]
    lines = max(map(len, wrapped), default=1)
    count, row = max(1, len(names)), _ROW_HEIGHT + _LINE_HEIGHT * (lines - 1)
    figure = new_figure(title, x, "", height=_FRAME_HEIGHT + row * count)
    for place, texts in enumerate(wrapped):
        figure.add_annotation(
            xref="paper", x=0.0, xanchor="left", y=place, yanchor="bottom", yshift=row * BAR_WIDTH / 2, align="left",
            text="<br>".join(map(label, texts)), showarrow=False, font={"size": 12.5},
        )  # fmt: skip
    figure.update_yaxes(range=[count - 0.5, -0.75], showticklabels=False, ticks="", showgrid=False, zeroline=False)
    figure.update_layout(bargap=0.0)
    return figure
