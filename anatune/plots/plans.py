"""Figures of a plan: the roofline, the parts of the time, how schedules fill the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anatune.core.hardware.spec import CpuSpec
from anatune.core.show import duration_unit
from anatune.model.plan import Plan
from anatune.plots.candidates import Candidate, Candidates, candidates_of
from anatune.plots.theme import (
    BEST,
    COLOURS,
    COUNTING,
    GREY,
    LOGARITHMIC,
    PARTS,
    colours_of,
    graph_objects,
    label,
    new_figure,
)
from anatune.report import units
from anatune.report.roofline import boundaries, dram_bandwidth, peak_flop_per_s, reachable_share

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["NEAR", "plot_footprints", "plot_occupancy", "plot_roofline", "plot_times"]

NEAR = 1.1
"""Times the best time up to which a schedule counts as nearly as good."""
_FAR = 2.0
_BARS = 12
"""Schedules whose parts are shown."""
_MEMORIES = {"DRAM": "dram", "L3": "l3", "L2": "l2", "shared memory": "shared"}
"""Name of a boundary -> the part of the time that is about it."""


def plot_roofline(plan: Plan, candidates: Candidates | None = None) -> go.Figure:
    """Return the roofline with every candidate at each memory level.

    A candidate is a point at each level: operations for each byte that crosses the level (x), and operations a second
    (y). Slanted lines are the levels' bandwidths, the level line the peak (dashed: what compiled code reaches); dotted
    vertical lines are the most operations a byte that the I/O lower bound admits.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        What to show; left out, `candidates_of` the plan.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown = candidates or candidates_of(plan)
    go, work = graph_objects(), float(plan.workload.flop or plan.workload.num_points)
    unit = "FLOP" if plan.workload.flop else "element"
    figure = new_figure(
        f"Roofline of {plan.hardware.model}", f"intensity ({unit}/byte)", f"speed (G{unit}/s)", height=520
    )
    known = boundaries(plan.hardware)
    intensities = [work / moved for one in shown for moved in one.moved_bytes.values() if moved > 0.0]
    limits = [work / bound for bound in shown.io_bounds.values() if bound > 0.0]
    low, high = min(intensities) / 2, max([*intensities, *limits]) * 2
    peak = peak_flop_per_s(plan.hardware, plan.workload.dtype, plan.template) if plan.workload.flop else np.inf
    for level in shown.levels:
        where = known[level]
        colour = PARTS[_MEMORIES[where.name]]
        line = np.geomspace(low, high, 60)
        roof = np.minimum(peak, where.bytes_per_s * line)
        name = f"{where.name}, {units.rate(where.bytes_per_s)}"
        figure.add_trace(
            go.Scatter(
                x=line, y=roof / 1e9, mode="lines", name=label(name), legendgroup=level, hoverinfo="skip",
                line={"color": colour, "width": 2},
            )
        )  # fmt: skip
        if level in shown.io_bounds and (bound := shown.io_bounds[level]) > 0.0:
            top = min(peak, where.bytes_per_s * work / bound)
            figure.add_trace(
                go.Scatter(
                    x=[work / bound] * 2, y=[_floor(shown, work) / 1e9, top / 1e9], mode="lines", legendgroup=level,
                    showlegend=False, line={"color": colour, "width": 1.5, "dash": "dot"},
                    hovertemplate=f"I/O lower bound: at most %{{x:.3g}} {unit}/byte<extra>{label(where.name)}</extra>",
                )
            )  # fmt: skip
        for members, style in ((shown.drawn, _DRAWN), (shown.best, _BEST)):
            figure.add_trace(_points(members, level, work, unit, colour, label(where.name), style))
    if plan.workload.flop:
        reached = peak * reachable_share(plan.hardware, plan.template)
        for name, value, dash in ((f"peak {units.flop_rate(peak)}", peak, "solid"), ("reached", reached, "dash")):
            figure.add_trace(
                go.Scatter(
                    x=[low, high], y=[value / 1e9] * 2, mode="lines", name=label(name), showlegend=dash == "solid",
                    line={"color": GREY, "width": 2 if dash == "solid" else 1.5, "dash": dash},
                    hovertemplate=f"{label(name)}: %{{y:,.0f}} GFLOP/s<extra></extra>",
                )
            )  # fmt: skip
    paper, reachable = dram_bandwidth(plan.hardware)
    if reachable < paper and "dram" in shown.levels:
        ends = np.array([low, min(high, peak / reachable)])
        figure.add_trace(
            go.Scatter(
                x=ends, y=ends * reachable / 1e9, mode="lines", legendgroup="dram", showlegend=False,
                line={"color": PARTS["dram"], "width": 1.5, "dash": "dash"}, hoverinfo="skip",
            )
        )  # fmt: skip
    top = min(peak, max(known[level].bytes_per_s for level in shown.levels) * high)
    figure.update_xaxes(LOGARITHMIC | {"range": [np.log10(low), np.log10(high)]})
    figure.update_yaxes(LOGARITHMIC | {"range": [np.log10(_floor(shown, work) / 1e9), np.log10(2 * top / 1e9)]})
    return figure


_DRAWN: dict[str, Any] = {"size": 5, "opacity": 0.4}
_BEST: dict[str, Any] = {"size": 9, "opacity": 0.95, "symbol": "diamond", "line": {"width": 1, "color": "#ffffff"}}


def _floor(shown: Candidates, work: float) -> float:
    """Return the least speed that the roofline shows, operations a second: that of nearly all candidates."""
    speeds = np.sort([work / one.prediction.time_s for one in shown])
    return float(speeds[len(speeds) // 50]) / 2


def _points(
    members: Sequence[Candidate], level: str, work: float, unit: str, colour: str, name: str, style: dict[str, Any]
) -> Any:
    """Return candidates at one level."""
    there = [one for one in members if one.moved_bytes.get(level, 0.0) > 0.0]
    return graph_objects().Scatter(
        x=np.array([work / one.moved_bytes[level] for one in there], dtype=np.float32),
        y=np.array([work / one.prediction.time_s / 1e9 for one in there], dtype=np.float32),
        mode="markers", legendgroup=level, showlegend=False, marker={"color": colour} | style,
        customdata=_places(there),
        hovertemplate=f"%{{customdata}}: %{{y:,.4g}} G{unit}/s at %{{x:.3g}} {unit}/byte<extra>{name}</extra>",
    )  # fmt: skip


def _places(members: Sequence[Candidate]) -> list[str]:
    """Return what candidates are called."""
    return [f"#{one.rank}" if one.rank else "drawn" for one in members]


def plot_times(plan: Plan, count: int = _BARS) -> go.Figure:
    """Return the parts of the times of a plan's first schedules, stacked, with the predicted time beside them.

    Parts are seconds that each resource would need alone: they overlap, so that their sum is more than the time.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    count : int
        Schedules that are shown, at most.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    _ = plan.best  # raises
    go, shown = graph_objects(), plan.predictions[:count]
    scale, unit = duration_unit(shown[0].time_s)
    figure = new_figure(
        "Parts of the time of the best schedules", f"time ({unit})", "place", height=150 + 30 * len(shown)
    )
    places = [f"#{place}" for place in range(1, len(shown) + 1)]
    totals = {name: sum(one.parts.get(name, 0.0) for one in shown) for one in shown for name in one.parts}
    names = sorted((name for name, total in totals.items() if total > 0.0), key=lambda name: -totals[name])
    colours = colours_of((name.removesuffix("_s") for name in names), PARTS)
    for name in names:
        part = name.removesuffix("_s")
        figure.add_trace(
            go.Bar(
                x=[one.parts.get(name, 0.0) / scale for one in shown], y=places, orientation="h", name=label(part),
                marker={"color": colours[part], "line": {"width": 0.5, "color": "rgba(255,255,255,0.6)"}},
                hovertemplate=f"%{{y}}: {label(part)} %{{x:.4g}} {unit}<extra></extra>",
            )
        )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=[one.time_s / scale for one in shown], y=places, mode="markers", name="predicted",
            marker={"symbol": "line-ns", "size": 22, "line": {"width": 4, "color": BEST}},
            hovertemplate=f"%{{y}}: predicted %{{x:.4g}} {unit}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.25, legend_traceorder="normal", legend_entrywidth=66)
    figure.update_yaxes(autorange="reversed", title_text="", ticks="", ticksuffix=" ", dtick=1)
    return figure


def plot_occupancy(plan: Plan, candidates: Candidates | None = None) -> go.Figure:
    """Return how candidates fill the device, against the size of what runs at once.

    GPUs: occupancy and waves against the results of a block. CPUs: busy cores and pieces a core against the results of
    a piece of the parallel loop. Colours tell how far from the best time each is.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        What to show; left out, `candidates_of` the plan.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown, go = candidates or candidates_of(plan), graph_objects()
    on_cpu = isinstance(plan.hardware, CpuSpec)
    size = "results of a piece of work" if on_cpu else "results of a block"
    full, rounds = ("busy cores (%)", "pieces a core") if on_cpu else ("occupancy (%)", "waves")
    title = "Busy cores, and pieces of the work a core" if on_cpu else "Occupancy and waves"
    figure = new_figure(f"{title} against tile sizes", height=560)
    for name, colour, members in _by_distance(shown):
        x = np.array([one.results_at_once for one in members], dtype=np.float32)
        places = _places(members)
        for row, what, values in (
            ("", full, [100 * one.prediction.occupancy for one in members]),
            ("2", rounds, [one.prediction.waves for one in members]),
        ):
            figure.add_trace(
                go.Scatter(
                    x=x, y=np.array(values, dtype=np.float32), mode="markers", name=label(name), legendgroup=name,
                    showlegend=not row, xaxis="x", yaxis=f"y{row}", customdata=places,
                    marker={"color": colour, "size": 6, "opacity": 0.7},
                    hovertemplate=f"%{{customdata}}: %{{y:.4g}} {label(what)}, %{{x:.4g}} {size}<extra></extra>",
                )
            )  # fmt: skip
    figure.update_layout(
        xaxis=COUNTING | {"title_text": size, "anchor": "y2"},
        yaxis={"domain": [0.55, 1.0], "title_text": full, "rangemode": "tozero"},
        yaxis2=figure.layout.template.layout.yaxis.to_plotly_json()
        | LOGARITHMIC
        | {"domain": [0.0, 0.45], "anchor": "x", "title": {"text": rounds}},
    )
    return figure


def _by_distance(shown: Candidates) -> list[tuple[str, str, list[Candidate]]]:
    """Return candidates by how far from the best time they are, the furthest first: (words, colour, candidates)."""
    best_s = shown.best[0].prediction.time_s
    groups: dict[str, list[Candidate]] = {"far": [], "near": [], "best": []}
    for one in shown:
        times = one.prediction.time_s / best_s
        groups["best" if times <= NEAR else "near" if times <= _FAR else "far"].append(one)
    return [
        (f"more than {_FAR:g} times the best time", GREY, groups["far"]),
        (f"up to {_FAR:g} times", COLOURS[0], groups["near"]),
        (f"within {100 * (NEAR - 1):.0f} % of the best", BEST, groups["best"]),
    ]


def plot_footprints(plan: Plan, candidates: Candidates | None = None) -> go.Figure | None:
    """Return the tiles' bytes in each cache against the predicted time; None where tiles are for no caches (GPUs).

    A footprint of 1 fills the cache.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        What to show; left out, `candidates_of` the plan.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown, go = candidates or candidates_of(plan), graph_objects()
    best_s = shown.best[0].prediction.time_s
    figure = new_figure("Footprints of tiles in caches", "tile over the cache's size", "time over the best", height=440)
    for level in ("l1", "l2", "l3"):
        cache, key = getattr(plan.hardware, level, None), f"{level}_tile_bytes"
        there = [one for one in shown if key in one.prediction.resources]
        if isinstance(plan.hardware, CpuSpec) and cache is not None and there:
            name = f"{level.upper()}, {units.size(cache.size_bytes)}"
            figure.add_trace(
                go.Scatter(
                    x=np.array([one.prediction.resources[key] / cache.size_bytes for one in there], dtype=np.float32),
                    y=np.array([one.prediction.time_s / best_s for one in there], dtype=np.float32),
                    mode="markers", name=label(name), customdata=_places(there),
                    marker={"color": PARTS[level], "size": 6, "opacity": 0.6},
                    hovertemplate=f"%{{customdata}}: %{{x:.3g}} of {label(name)}, %{{y:.3g}} times<extra></extra>",
                )
            )  # fmt: skip
    if not figure.data:
        return None
    figure.add_vline(x=1.0, line={"color": GREY, "width": 1.5, "dash": "dash"})
    figure.update_xaxes(LOGARITHMIC)
    figure.update_yaxes(LOGARITHMIC)
    return figure
