"""The page of a server's files with its figures: times and blocks by number of rows, and the limits of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from anatune.core.show import duration_unit
from anatune.pages.device import device_section
from anatune.pages.page import Cell, Column, Content, Facts, Figure, Page, Section, Table
from anatune.plots.theme import BEST, COLOURS, GREY, LOGARITHMIC, new_figure
from anatune.report import units
from anatune.servers.files import ConfigRequest
from anatune.servers.names import TITLES
from anatune.servers.report import MEASURED, gain_percent, gain_text, layer_text, sure_text, tile_text
from anatune.servers.shapes import Experts
from anatune.servers.written import RowChoice, WrittenFile
from anatune.version import __version__

if TYPE_CHECKING:
    import plotly.graph_objects as go

_BOUND = {
    "dram": "bytes that have to be read from DRAM",
    "mma": "arithmetic at the peak of the matrix units",
    "launch": "launches",
}
_COLUMNS = (
    Column("rows", help="tokens of a step; the server uses the entry with the nearest number"),
    Column("m×n×k", True, help="blocks of the chosen tile"),
    Column("predicted (us)", help="time of both products of a layer of experts"),
    Column("measured (us)", help="time of anatune's kernels with this tile"),
    Column("bound (us)", help="lower bound for any tile: bytes over bandwidth, arithmetic over the peak, launches"),
    Column("default", True, help="tile that the server uses without the file: from its own tuned file, or by its rule"),
    Column("default (us)", help="predicted time of the default"),
    Column("default measured (us)"),
    Column("gain (%)", help="time of the default over that of the tile, minus one; measured times if both are"),
    Column("group_m", help="blocks of rows that share weights in L2", is_detail=True),
    Column("warps", is_detail=True),
    Column("stages", is_detail=True),
    Column("bound by", True, help="largest part of the bound", is_detail=True),
)


def configs_page(request: ConfigRequest, written: Sequence[WrittenFile]) -> Page:
    """Return the page about the files that were written for a server.

    Parameters
    ----------
    written : sequence of WrittenFile
        The result of `write_configs` for the request.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    server, spec = TITLES[request.server], request.spec
    is_measured = any(one.measured_s is not None for file in written for one in file.choices)
    if is_measured:
        how = f"Times were predicted from the spec of {spec.model}, and the best predicted tiles were measured on it."
    else:
        how = f"Times are predicted from the spec of {spec.model}; nothing was measured."
    lead = [f"The best tile for {server} by number of rows, and its gain over the default of {server}. {how}"]
    sections = [_file_section(file) for file in written]
    sure = [sure_text(request.shapes), *([MEASURED] * is_measured)]
    points = [
        f"{_routing_text(request)} Another routing may need other tiles: choose it with --power-law.",
        "The bound holds for any tile: DRAM at full bandwidth, matrix units at peak, and a launch for each product. "
        "The prediction also contains the latencies that a kernel cannot hide.",
    ]
    sections.append(Section("How reliable these numbers are", sure, points=points))
    sections.append(Section("Where to put the files, and which kernels do not read them", points=request.notes()))
    sections.append(device_section(spec))
    title = f"{server}'s configurations on {spec.name}"
    return Page(title, sections, lead, f"anatune {__version__}")


def _routing_text(request: ConfigRequest) -> str:
    if request.exponent is None:
        return "Experts are chosen at random, as in the servers' own tuners."
    return f"The popularity of experts is a power law with the exponent {request.exponent:g}."


def _file_section(file: WrittenFile) -> Section:
    """Return the section of one file."""
    choices, shape = file.choices, file.shape
    name = file.path.rpartition("/")[2]
    gains = [one.gain for one in choices if one.gain is not None]
    shares = [one.bound_s / (one.measured_s or one.time_s) for one in choices]
    share = f"median; {units.percent(min(shares))} at least, {units.percent(max(shares))} at most"
    facts = [
        ("rows", f"{choices[0].rows} to {choices[-1].rows}", f"{len(choices)} of them"),
        ("bound over time", units.percent(float(np.median(shares))), share),
    ]
    if gains:
        at_most = f"median; {gain_percent(max(gains))} at most"
        facts.append(("gain over the default", gain_percent(float(np.median(gains))), at_most))
    layer = layer_text(file)
    words = [f"{name}: {layer}.", *filter(None, [gain_text(file)])]
    by = "; ".join(f"{_BOUND[kind]} ({_rows_of(choices, kind)})" for kind in dict.fromkeys(c.bound_by for c in choices))
    content: list[Content] = [
        Facts(facts),
        Figure(plot_rows(choices), f"Time by number of rows. The largest part of the bound: {by}"),
        Figure(plot_blocks(choices), "Blocks of the chosen tiles by number of rows"),
        _table(choices),
    ]
    if isinstance(shape, Experts):
        down = ", down product" if name.endswith("_down.json") else ""
        heading = f"{shape.experts} experts of {shape.intermediate}{down}"
    else:
        heading = f"Product with weights {shape.n} x {shape.k}"
    return Section(
        heading, words, content, [f"{one.rows} rows, not all tiles measured: {one.why}" for one in choices if one.why]
    )


def _rows_of(choices: Sequence[RowChoice], kind: str) -> str:
    rows = [one.rows for one in choices if one.bound_by == kind]
    return units.many(rows[0], "row") if len(rows) == 1 else f"{rows[0]} to {rows[-1]} rows"


def _table(choices: Sequence[RowChoice]) -> Table:
    """Return the table of all entries, with marks for those with failed tiles."""

    def to_us(seconds: float | None) -> Cell:
        return None if seconds is None else 1e6 * seconds

    rows = [
        (
            one.rows, tile_text(one.tile, "×"), to_us(one.time_s), to_us(one.measured_s), to_us(one.bound_s),
            tile_text(one.default, "×"),
            to_us(one.default_s), to_us(one.default_measured_s),
            None if one.gain is None else 100.0 * (one.gain - 1.0), one.tile[6], one.tile[3], one.tile[4],
            _BOUND[one.bound_by],
        )
        for one in choices
    ]  # fmt: skip
    measured = any(one.measured_s is not None for one in choices)
    left_out = "default (us)" if measured else "measured"
    unknown = () if any(one.default for one in choices) else ("default", "gain")
    columns = [None if any(word in column.name for word in (left_out, *unknown)) else column for column in _COLUMNS]
    marked = [at for at, one in enumerate(choices) if one.why]
    return Table.of(columns, rows, "Entries of the file", 20, marked)


_ROWS = "rows (tokens of a step)"
_ROW_AXIS = {"type": "log", "tickvals": [4**power for power in range(11)]}


def plot_rows(choices: Sequence[RowChoice]) -> go.Figure:
    """Return the figure of times by number of rows: chosen tile, server's default, bound; measured times as points.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    scale_s, unit = duration_unit(max(one.time_s for one in choices))
    figure = new_figure("Time by number of rows", _ROWS, f"time ({unit})")
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
    for name, colour, dash, mode, times, labels in lines:
        shown = [(one.rows, time_s, text) for one, time_s, text in zip(choices, times, labels, strict=True) if time_s]
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


def plot_blocks(choices: Sequence[RowChoice]) -> go.Figure:
    """Return the figure of the chosen tiles' blocks by number of rows."""
    figure = new_figure("Blocks by number of rows", _ROWS, "elements", height=320)
    for index, (name, symbol) in enumerate((("block_m", "circle"), ("block_n", "square"), ("block_k", "diamond"))):
        figure.add_scatter(
            x=[one.rows for one in choices], y=[one.tile[index] for one in choices], name=name, mode="lines+markers",
            line={"color": COLOURS[index], "width": 2.5, "shape": "hvh"}, marker={"size": 9, "symbol": symbol},
            text=[f"{one.rows} rows: {tile_text(one.tile)}" for one in choices],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    sizes = sorted({size for one in choices for size in one.tile[:3]})
    figure.update_xaxes(**_ROW_AXIS)
    figure.update_yaxes(type="log", tickvals=sizes, ticktext=[str(size) for size in sizes])
    return figure
