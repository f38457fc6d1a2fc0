"""The page of a prediction of servers: throughput by speed for a user, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anatune.pages.page import Column, Figure, Page, Section, Table
from anatune.plots.theme import COLOURS, LOGARITHMIC, label, new_figure
from anatune.report import units
from anatune.servers.serving.config import Decoder
from anatune.servers.serving.engines import Engine
from anatune.servers.serving.judged import describe_errors, error_text
from anatune.servers.serving.predict import ServingRow
from anatune.servers.serving.report import explain
from anatune.version import __version__

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLUMNS = (
    Column("device", True),
    Column("tp", help="devices that divide each layer"),
    Column("in flight", help="requests at once"),
    Column("computed", help="those of them that the memory holds"),
    Column("per token (us)", help="time per output token of a request"),
    Column("first token (us)", help="time to the first token without other prompts"),
    Column("in a burst (us)", help="mean time to the first token if all that are computed at once begin together"),
    Column("tokens/s/GPU", help="output tokens a second for each device"),
    Column("fits", help="requests that the memory holds"),
    Column("a million tokens cost", help="in the currency of the given prices"),
    Column("weights (GB)", help="on each device", is_detail=True),
    Column("error", True, help="median error against measured servers", is_detail=True),
)


def serving_page(rows: Sequence[ServingRow], decoder: Decoder, engine: Engine) -> Page:
    """Return the page about predictions of servers.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    computed = [row for row in rows if not row.refused]
    cells = [
        (
            row.hardware, row.tp, row.concurrency, row.running, 1e6 * row.tpot_s, 1e6 * row.ttft_s,
            1e6 * row.burst_ttft_s, row.tokens_per_s, row.fits, row.cost, row.weight_bytes / 1e9,
            error_text(decoder, row.hardware),
        )
        for row in computed
    ]  # fmt: skip
    first = rows[0]
    lead = [
        f"{decoder.name} with weights in {first.precision}, {first.isl} tokens in and {first.osl} out, predicted from "
        "the specs of the devices: nothing has run."
    ]
    sections = []
    if computed:
        content: list[Figure | Table] = [
            Figure(plot_throughput(computed), "Throughput of a device by the speed that a user sees"),
            Table.of(_COLUMNS, cells, "Predictions", 20),
        ]
        sections.append(Section("Throughput and latency", content=content))
        sections.append(Section("Where the time goes", content=[Figure(plot_parts(computed))]))
    refused = list(dict.fromkeys(row.refused for row in rows if row.refused))
    if refused:
        sections.append(Section("What is not possible", points=refused))
    sections.append(Section("What the numbers mean", points=[*explain(computed, engine), describe_errors()]))
    return Page(f"Servers of {decoder.name}", sections, lead, f"anatune {__version__}")


def plot_throughput(rows: Sequence[ServingRow]) -> go.Figure:
    """Return the usual figure of tokens a second for a device by tokens a second for a user, a line for each division.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    figure = new_figure("Throughput by speed", "tokens a second for a user", "tokens a second for a GPU")
    devices = list(dict.fromkeys(row.hardware for row in rows))
    for name, tp in dict.fromkeys((row.hardware, row.tp) for row in rows):
        line = [row for row in rows if (row.hardware, row.tp) == (name, tp)]
        figure.add_scatter(
            x=[1.0 / row.tpot_s for row in line], y=[row.tokens_per_s for row in line], name=f"{label(name)} x {tp}",
            mode="lines+markers", marker={"size": 5 + 2 * min(tp, 8)},
            line={"color": COLOURS[devices.index(name) % len(COLOURS)], "width": 2},
            text=[f"{row.running} in flight, {units.duration(row.tpot_s)} a token" for row in line],
            hovertemplate="%{fullData.name}: %{text}, %{y:.4g} tokens/s<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(**LOGARITHMIC | {"dtick": "D2"})
    figure.update_yaxes(**LOGARITHMIC | {"dtick": "D2"})
    return figure


def plot_parts(rows: Sequence[ServingRow]) -> go.Figure:
    """Return bars of the time per output token by kind of kernel.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    figure = new_figure("Time per output token by kind of kernel", "time (ms)", "", height=160 + 28 * len(rows))
    names = [f"{label(row.hardware)} x {row.tp}, {row.running} in flight" for row in rows]
    for index, kind in enumerate(dict.fromkeys(kind for row in rows for kind in row.parts)):
        times = [row.parts.get(kind, 0.0) for row in rows]
        figure.add_bar(
            y=names, x=[1e3 * time_s for time_s in times], name=kind, orientation="h",
            marker={"color": COLOURS[index % len(COLOURS)]}, text=[units.duration(time_s) for time_s in times],
            hovertemplate="%{y}: %{text}<extra></extra>", textposition="none",
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    return figure
