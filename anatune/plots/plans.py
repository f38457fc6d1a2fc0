"""Figures of a plan: the roofline, the parts of predicted times, and how schedules fill the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anatune.core.hardware.spec import Boundary
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.show import duration_unit
from anatune.model.plan import Plan
from anatune.plots.candidates import Candidate, Candidates, candidates_of, models_of, saved_work
from anatune.plots.theme import BEST, COLOURS, COUNTING, GREY, LOGARITHMIC, PARTS, REST, colours_of, label, new_figure
from anatune.report import units
from anatune.report.plans import FILLING
from anatune.report.roofline import dram_bandwidth, reachable_share, workload_peak
from anatune.templates import get_template
from anatune.templates.base.composition import NOT_HIDDEN
from anatune.templates.base.model import Model

if TYPE_CHECKING:
    import plotly.graph_objects as go

NEAR = 1.1
"""Ratio to the best time up to which a schedule counts as nearly as good."""
_FAR = 2.0
_BARS = 5
"""Number of schedules whose parts are shown."""
_THICK, _THIN, _GAP = 18, 7, 16
"""Pixels of a bar of a whole time, of a bar of a part, and between two schedules."""
_MEMORIES = {"DRAM": "dram", "L3": "l3", "L2": "l2", "shared memory": "shared"}
"""Name of a boundary between levels of memory -> its part of the predicted time."""


def plot_roofline(plan: Plan, candidates: Candidates | None = None) -> go.Figure:
    """Return the roofline with every candidate at each memory level.

    A candidate is a point at each level: operations for each byte that crosses the level (x), and operations a second
    (y). Slanted lines are the levels' bandwidths, the level line the peak (dashed: what compiled code reaches); dotted
    vertical lines are the most operations a byte that the I/O lower bound admits. Operations are those that the
    workload counts: a template that makes do with fewer (Winograd) has its own effective peak above the peak, and
    open markers.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        The candidates to show; the default is `candidates_of` the plan.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown, hardware = candidates or candidates_of(plan), plan.hardware
    work, unit = float(plan.workload.flop or plan.workload.num_points), "FLOP" if plan.workload.flop else "element"
    saved, boundaries = saved_work(plan), hardware.boundaries
    speed = "effective speed" if saved else "speed"
    figure = new_figure(f"Roofline of {hardware.model}", f"intensity ({unit}/byte)", f"{speed} (G{unit}/s)", height=520)
    intensities = [work / moved for one in shown for moved in one.moved_bytes.values() if moved > 0.0]
    limits = [work / bound for bound in shown.io_bounds.values() if bound > 0.0]
    low, high = min(intensities) / 2, max([*intensities, *limits]) * 2
    peak = workload_peak(plan.workload, hardware, plan.template) if plan.workload.flop else np.inf
    speeds = np.sort([work / one.prediction.time_s for one in shown])
    floor = float(speeds[len(speeds) // 50]) / 2  # nearly all candidates are faster than twice that
    roof = _Roof(work, unit, low, high, floor, peak * max([1.0, *saved.values()]))
    for level in shown.levels:
        _draw_level(figure, roof, level, boundaries[level], shown.io_bounds.get(level, 0.0))
        for members, style in ((shown.drawn, _DRAWN), (shown.best, _BEST)):
            for opened in (False, True) if saved else (False,):
                level_members = [member for member in members if (member.schedule.template in saved) is opened]
                if level_members:
                    symbol = {"symbol": f"{style['symbol']}-open"} if opened else {}
                    _draw_points(figure, roof, level, boundaries[level].name, level_members, style | symbol)
    if plan.workload.flop:
        _draw_peaks(figure, roof, peak, peak * reachable_share(hardware, plan.template), saved)
    paper, reachable = dram_bandwidth(hardware)
    if reachable < paper and "dram" in shown.levels:
        ends = np.array([low, min(high, roof.highest / reachable)])
        figure.add_scatter(
            x=ends, y=ends * reachable / 1e9, mode="lines", legendgroup="dram", showlegend=False,
            line={"color": PARTS["dram"], "width": 1.5, "dash": "dash"}, hoverinfo="skip",
        )  # fmt: skip
    top = min(roof.highest, max(boundaries[level].bytes_per_s for level in shown.levels) * high)
    figure.update_xaxes(LOGARITHMIC | {"range": [np.log10(low), np.log10(high)]})
    figure.update_yaxes(LOGARITHMIC | {"range": [np.log10(floor / 1e9), np.log10(2 * top / 1e9)]})
    return figure


_DRAWN: dict[str, object] = {"size": 5, "opacity": 0.4, "symbol": "circle"}
_BEST: dict[str, object] = {"size": 9, "opacity": 0.95, "symbol": "diamond", "line": {"width": 1, "color": "#ffffff"}}


class _Roof(NamedTuple):
    """The data that all lines of a roofline share.

    Attributes
    ----------
    work : float
        Operations of the workload (elements if there are none), in `unit`.
    low, high : float
        Ends of the axis of intensities.
    floor, highest : float
        Lowest speed that is shown; the highest (effective) peak. In work per second.
    """

    work: float
    unit: str
    low: float
    high: float
    floor: float
    highest: float


def _draw_level(figure: go.Figure, roof: _Roof, level: str, where: Boundary, io_bound: float) -> None:
    """Draw the bandwidth of a level of memory, and the most work per byte by the I/O lower bound (bytes)."""
    colour = PARTS[_MEMORIES[where.name]]
    line = np.geomspace(roof.low, roof.high, 60)
    figure.add_scatter(
        x=line, y=np.minimum(roof.highest, where.bytes_per_s * line) / 1e9, mode="lines",
        name=label(f"{where.name}, {units.rate(where.bytes_per_s)}"), legendgroup=level, hoverinfo="skip",
        line={"color": colour, "width": 2},
    )  # fmt: skip
    if io_bound > 0.0:
        most = roof.work / io_bound
        top = min(roof.highest, where.bytes_per_s * roof.work / io_bound)
        figure.add_scatter(
            x=[most] * 2, y=[roof.floor / 1e9, top / 1e9], mode="lines", legendgroup=level,
            showlegend=False, line={"color": colour, "width": 1.5, "dash": "dot"},
            hovertemplate=f"I/O lower bound: at most %{{x:.3g}} {roof.unit}/byte<extra>{label(where.name)}</extra>",
        )  # fmt: skip


def _draw_points(
    figure: go.Figure, roof: _Roof, level: str, name: str, members: Sequence[Candidate], style: dict[str, object]
) -> None:
    """Draw candidates at one level of memory with the label `name`."""
    there = [member for member in members if member.moved_bytes.get(level, 0.0) > 0.0]
    colour, where = PARTS[_MEMORIES[name]], f"at %{{x:.3g}} {roof.unit}/byte<extra>{label(name)}</extra>"
    figure.add_scatter(
        x=np.array([roof.work / one.moved_bytes[level] for one in there], dtype=np.float32),
        y=np.array([roof.work / one.prediction.time_s / 1e9 for one in there], dtype=np.float32),
        mode="markers", legendgroup=level, showlegend=False, marker={"color": colour} | style,
        customdata=_places(there),
        hovertemplate=f"%{{customdata}}: %{{y:,.4g}} G{roof.unit}/s {where}",
    )  # fmt: skip


def _draw_peaks(figure: go.Figure, roof: _Roof, peak: float, reached: float, saved: Mapping[str, float]) -> None:
    """Draw the peak, the reachable peak, and the effective peaks of templates that save operations."""
    effective = [(name, times * peak) for name, times in saved.items()]
    for name, value, dash in (
        (f"peak {units.flop_rate(peak)}", peak, "solid"), ("reached", reached, "dash"),
        *((f"effective peak of {name}, {units.flop_rate(value)}", value, "longdashdot") for name, value in effective),
    ):  # fmt: skip
        figure.add_scatter(
            x=[roof.low, roof.high], y=[value / 1e9] * 2, mode="lines", name=label(name), showlegend=dash != "dash",
            line={"color": GREY, "width": 2 if dash == "solid" else 1.5, "dash": dash},
            hovertemplate=f"{label(name)}: %{{y:,.0f}} GFLOP/s<extra></extra>",
        )  # fmt: skip


def _places(members: Sequence[Candidate]) -> list[str]:
    """Return the names of candidates."""
    return [f"#{member.rank}" if member.rank else "drawn" for member in members]


def plot_times(plan: Plan, count: int = _BARS) -> go.Figure:
    """Return a figure of the parts of the predicted times of a plan's first schedules.

    Each schedule has a thick bar, whose pieces add up to the predicted time, and below it a thin one for each part that
    overlaps others: the seconds that it would need alone (`anatune.templates.base.composition`).

    Parameters
    ----------
    plan : Plan
        With at least one schedule. Where a learned correction made its times, they are marked beside the bars, which
        are those of the analytical model.
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
    shown = list(zip(plan.schedules, plan.predictions, strict=True))[:count]
    models = models_of(plan) if plan.corrections else {}
    scale, unit = duration_unit(shown[0][1].time_s)
    rows = [_time_bars(schedule, prediction, models) for schedule, prediction in shown]
    most = max(len(thin) for _, thin in rows)
    row_height = _THICK + _THIN * most + _GAP
    figure = new_figure("What the best times consist of", f"time ({unit})", "", height=150 + row_height * len(shown))
    pieces: dict[str, list[tuple[float, float, float, float, str]]] = {}
    for row, (thick, thin) in enumerate(rows):
        middle = row + 0.5 * _THICK / row_height
        for bar_number, (bar, width) in enumerate([(thick, _THICK), *((bar, _THIN - 1) for bar in thin)]):
            start = 0.0
            where = middle if bar_number == 0 else row + (_THICK + _THIN * (bar_number - 0.5)) / row_height
            for name, seconds in bar:
                meaning = "of the time" if bar_number == 0 else "alone, at the same time as others"
                pieces.setdefault(name.removesuffix("_s"), []).append(
                    (start / scale, seconds / scale, where, width / row_height, f"#{row + 1}: {meaning}")
                )
                start += seconds
    colours = colours_of((name for name in pieces if name != NOT_HIDDEN), PARTS) | {NOT_HIDDEN: REST}
    for name, bars in pieces.items():
        bases, lengths, places, widths, words = (list(column) for column in zip(*bars, strict=True))
        pattern = {"shape": "/", "size": 5, "solidity": 0.3} if name == NOT_HIDDEN else None
        figure.add_bar(
            base=bases, x=lengths, y=places, width=widths, orientation="h", name=label(name),
            marker={"color": colours[name], "pattern": pattern, "line": {"width": 0}}, customdata=words,
            hovertemplate=f"{label(name)} %{{x:.4g}} {unit}<br>%{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.add_scatter(
        x=[prediction.time_s / scale for _, prediction in shown],
        y=[place + 0.5 * _THICK / row_height for place in range(len(shown))],
        mode="markers", name="predicted", customdata=[f"#{place}" for place in range(1, len(shown) + 1)],
        marker={"symbol": "line-ns", "size": _THICK, "line": {"width": 3, "color": BEST}},
        hovertemplate=f"%{{customdata}}: predicted %{{x:.4g}} {unit}<extra></extra>",
    )  # fmt: skip
    figure.update_layout(barmode="overlay", legend_traceorder="normal", legend_entrywidth=82)
    figure.update_yaxes(
        range=[len(shown), -0.1], title_text="", ticks="", ticksuffix=" ", showgrid=False, zeroline=False,
        tickvals=[place + 0.5 * _THICK / row_height for place in range(len(shown))],
        ticktext=[f"#{place} " for place in range(1, len(shown) + 1)],
    )  # fmt: skip
    figure.update_xaxes(rangemode="tozero")
    return figure


_Bar = list[tuple[str, float]]
"""Parts and their seconds, one after another."""


def _time_bars(schedule: Schedule, prediction: Prediction, models: Mapping[str, Model]) -> tuple[_Bar, list[_Bar]]:
    """Return the pieces whose sum is the predicted time, and bars of the parts that overlap with others.

    `models` are those of corrected plans, because the parts explain the times without the correction.
    """
    composition = get_template(schedule.template).model_class(schedule.workload).composition
    time_s, parts = prediction.time_s, prediction.parts
    if schedule.template in models:
        plain = models[schedule.template].plain
        time_s = float(plain.times(plain.space.point_of(schedule)[None, :])[0][0])
    first, *others = composition.lanes_of(parts)
    thin = [[(name, parts[name])] for name in first.at_once if parts.get(name, 0.0) > 0.0]
    for lane in others:
        thin += [[(name, parts[name])] for name in lane.at_once if parts.get(name, 0.0) > 0.0]
        thin.append([(name, parts[name]) for name in lane.in_turn if parts.get(name, 0.0) > 0.0])
    return composition.pieces(parts, time_s), [bar for bar in thin if bar]


def plot_occupancy(plan: Plan, candidates: Candidates | None = None) -> go.Figure:
    """Return a figure of how candidates fill the device.

    GPUs: occupancy and waves against the results of a block. CPUs: busy cores and pieces per core against the results
    of a piece of the parallel loop. Colours show the ratio to the best time.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        The candidates to show; the default is `candidates_of` the plan.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown, words = candidates or candidates_of(plan), FILLING[plan.hardware.kind]
    size, full, rounds = f"results of a {words.piece}", f"{words.share} (%)", words.rounds
    figure = new_figure(f"{words.title} against tile sizes", height=560)
    for name, colour, members in _by_distance(shown):
        x = np.array([member.results_at_once for member in members], dtype=np.float32)
        places = _places(members)
        for row, what, values in (
            ("", full, [100 * member.prediction.occupancy for member in members]),
            ("2", rounds, [member.prediction.waves for member in members]),
        ):
            figure.add_scatter(
                x=x, y=np.array(values, dtype=np.float32), mode="markers", name=label(name), legendgroup=name,
                showlegend=not row, xaxis="x", yaxis=f"y{row}", customdata=places,
                marker={"color": colour, "size": 6, "opacity": 0.7},
                hovertemplate=f"%{{customdata}}: %{{y:.4g}} {label(what)}, %{{x:.4g}} {size}<extra></extra>",
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
    """Return candidates grouped by their ratio to the best time, the slowest first: (label, colour, candidates)."""
    best_s = shown.best[0].prediction.time_s
    groups: dict[str, list[Candidate]] = {"far": [], "near": [], "best": []}
    for candidate in shown:
        times = candidate.prediction.time_s / best_s
        groups["best" if times <= NEAR else "near" if times <= _FAR else "far"].append(candidate)
    return [
        (f"more than {_FAR:g} times the best time", GREY, groups["far"]),
        (f"up to {_FAR:g} times", COLOURS[0], groups["near"]),
        (f"within {100 * (NEAR - 1):.0f} % of the best", BEST, groups["best"]),
    ]


def plot_footprints(plan: Plan, candidates: Candidates | None = None) -> go.Figure | None:
    """Return a figure of the bytes of tiles over cache sizes against predicted times; None for GPUs.

    A footprint of 1 fills the cache.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        The candidates to show; the default is `candidates_of` the plan.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown = candidates or candidates_of(plan)
    best_s = shown.best[0].prediction.time_s
    figure = new_figure("Footprints of tiles in caches", "tile over the cache's size", "time over the best", height=440)
    for level in ("l1", "l2", "l3"):
        cache, key = getattr(plan.hardware, level, None), f"{level}_tile_bytes"
        there = [one for one in shown if key in one.prediction.resources]
        if cache is not None and there:
            name = f"{level.upper()}, {units.size(cache.size_bytes)}"
            figure.add_scatter(
                x=np.array([one.prediction.resources[key] / cache.size_bytes for one in there], dtype=np.float32),
                y=np.array([one.prediction.time_s / best_s for one in there], dtype=np.float32),
                mode="markers", name=label(name), customdata=_places(there),
                marker={"color": PARTS[level], "size": 6, "opacity": 0.6},
                hovertemplate=f"%{{customdata}}: %{{x:.3g}} of {label(name)}, %{{y:.3g}} times<extra></extra>",
            )  # fmt: skip
    if not figure.data:
        return None
    figure.add_vline(x=1.0, line={"color": GREY, "width": 1.5, "dash": "dash"})
    figure.update_xaxes(LOGARITHMIC)
    figure.update_yaxes(LOGARITHMIC)
    return figure
