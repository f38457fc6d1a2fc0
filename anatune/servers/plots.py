"""Figures of files for servers: times and blocks by the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anatune.core.show import duration_unit
from anatune.plots.theme import BEST, COLOURS, GREY, LOGARITHMIC, new_figure
from anatune.report import units
from anatune.servers.files import Choice
from anatune.servers.report import tile_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["plot_blocks", "plot_rows"]

_ROWS = "rows (tokens of a step)"
_ROW_AXIS = {"type": "log", "tickvals": [4**power for power in range(11)]}


def plot_rows(choices: Sequence[Choice]) -> go.Figure:
    """Return times by the number of rows: the chosen tile's, the server's default's, the bound; measured ones as marks.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    scale_s, unit = duration_unit(max(one.time_s for one in choices))
    figure = new_figure("Time by the number of rows", _ROWS, f"time ({unit})")
    lines = (
        ("bound", GREY, "dot", "lines", [one.bound_s for one in choices], [one.bound_by for one in choices]),
        ("server's default, predicted", COLOURS[1], "dash", "lines+markers", [one.default_s for one in choices],
         [tile_text(one.default) for one in choices]),
        ("chosen, predicted", COLOURS[0], "solid", "lines+markers", [one.time_s for one in choices],
         [tile_text(one.tile) for one in choices]),
        ("server's default, measured", COLOURS[3], "", "markers", [one.default_measured_s for one in choices],
         [tile_text(one.default) for one in choices]),
        ("chosen, measured", BEST, "", "markers", [one.measured_s for one in choices],
         [tile_text(one.tile) for one in choices]),
    )  # fmt: skip
    for name, colour, dash, mode, times, told in lines:
        shown = [(one.rows, time_s, text) for one, time_s, text in zip(choices, times, told, strict=True) if time_s]
        if not shown:
            continue
        figure.add_scatter(
            x=[rows for rows, _, _ in shown], y=[time_s / scale_s for _, time_s, _ in shown], name=name, mode=mode,
            line={"color": colour, "width": 2.5, **({"dash": dash} if dash else {})},
            marker={"size": 7 if dash else 11, "color": colour, "symbol": "circle" if dash else "diamond"},
            text=[f"{rows} rows: {units.duration(time_s)}, {text}" for rows, time_s, text in shown],
            hovertemplate=f"{name}<br>%{{text}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(**_ROW_AXIS)
    figure.update_yaxes(**LOGARITHMIC | {"dtick": "D2"})
    return figure


def plot_blocks(choices: Sequence[Choice]) -> go.Figure:
    """Return the blocks of the chosen tiles by the number of rows."""
    figure = new_figure("Blocks by the number of rows", _ROWS, "elements", height=320)
    for place, (name, symbol) in enumerate((("block_m", "circle"), ("block_n", "square"), ("block_k", "diamond"))):
        figure.add_scatter(
            x=[one.rows for one in choices], y=[one.tile[place] for one in choices], name=name, mode="lines+markers",
            line={"color": COLOURS[place], "width": 2.5, "shape": "hvh"}, marker={"size": 9, "symbol": symbol},
            text=[f"{one.rows} rows: {tile_text(one.tile)}" for one in choices],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    sizes = sorted({size for one in choices for size in one.tile[:3]})
    figure.update_xaxes(**_ROW_AXIS)
    figure.update_yaxes(type="log", tickvals=sizes, ticktext=[str(size) for size in sizes])
    return figure
