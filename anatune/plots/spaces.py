"""Figures of a space: the distribution of times, illegal points, and distances between good points.

They follow [NoSE] Sec. V-C, with predicted times, and with measured times if there are records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.show import duration_unit
from anatune.model.plan import Plan
from anatune.plots.candidates import Candidates, candidates_of, models_of
from anatune.plots.theme import BEST, COLOURS, COUNTING, GREY, LOGARITHMIC, label, new_figure
from anatune.report import units

if TYPE_CHECKING:
    import plotly.graph_objects as go

Measured = tuple[Schedule, float]
"""A schedule and its measured seconds."""
_BINS = 40
_PAIRED = 300
"""Number of points whose pairwise distances are computed."""


def plot_distribution(
    plan: Plan, candidates: Candidates | None = None, measured: Sequence[Measured] = (), cut_s: float | None = None
) -> go.Figure:
    """Return a figure of the distribution of the predicted times of legal schedules, and of measured times.

    Source: [NoSE] Sec. V-C, Fig. 4, which has speeds; times on a logarithmic axis keep the slow ones apart.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        Whose samples are shown; left out, `candidates_of` the plan.
    measured : sequence of (Schedule, float)
        Schedules and their measured seconds.
    cut_s : float, optional
        Predicted seconds of the last schedule that is kept, which is marked.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown = candidates or candidates_of(plan)
    best_s = plan.predictions[0].time_s
    scale, unit = duration_unit(best_s)
    times = [(space.template, space.time_s / scale) for space in shown.spaces if len(space.time_s)]
    measured_times = np.array([time_s for _, time_s in measured]) / scale
    every = np.concatenate(
        [values for _, values in times] + [measured_times, [best_s / scale], [] if cut_s is None else [cut_s / scale]]
    )
    every = every[np.isfinite(every)]
    edges = np.geomspace(every.min() * 0.999, every.max() * 1.001, _BINS + 1)
    figure = new_figure("Distribution of the times of legal schedules", f"time ({unit})", "share of schedules (%)")
    named = [(f"predicted, {template}" if len(times) > 1 else "predicted", values) for template, values in times]
    for number, (name, values) in enumerate(named + ([("measured", measured_times)] if len(measured_times) else [])):
        counts, _ = np.histogram(values, edges)
        share = 100.0 * counts / max(1, len(values))
        figure.add_bar(
            x=np.sqrt(edges[1:] * edges[:-1]), y=share, width=np.diff(edges), name=label(name),
            marker={"color": BEST if name == "measured" else COLOURS[number], "opacity": 0.75},
            customdata=np.column_stack([edges[:-1], edges[1:]]),
            hovertemplate="%{customdata[0]:.3g} to %{customdata[1]:.3g} " + unit + ": %{y:.3g} %<extra></extra>",
        )  # fmt: skip
    top = 1.05 * max(float(trace.y.max()) for trace in figure.data)
    marks = [("best predicted", best_s, BEST)] + ([("last one kept", cut_s, COLOURS[1])] if cut_s is not None else [])
    for name, time_s, colour in marks:
        figure.add_scatter(
            x=[time_s / scale] * 2, y=[0.0, top], mode="lines", name=name,
            line={"color": colour, "width": 2, "dash": "dot"},
            hovertemplate=f"{name}: {units.duration(time_s)}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0.0, showlegend=True)
    figure.update_xaxes(COUNTING if edges[0] >= 1.0 else LOGARITHMIC)
    return figure


def plot_rejections(plan: Plan) -> go.Figure | None:
    """Return a figure of the points that each rule rejects, and of the legal points; None if they were not counted.

    Of several templates: of those whose spaces were searched. A point counts for the first rule that it breaks. Source:
    [NoSE] Sec. V-C, Fig. 3, whose kinds of failures come from compiling and running; these are known before.

    Raises
    ------
    MissingDependencyError
        plotly is not installed.
    """
    spaces = [(one.template, one.size, one.num_legal, one.rejected) for one in plan.searched] or [
        (plan.template, plan.space_size, plan.num_legal, plan.rejected)
    ]
    if any(legal is None or rejected is None for _, _, legal, rejected in spaces):
        return None
    rows: list[tuple[str, float, int]] = []
    for template, size, legal, rejected in spaces:
        whose = f"<br>({template})" if plan.joined else ""
        counted = [("legal", legal or 0), *((rejected or {}).items())]
        rows += [
            (f"{label(name.replace('_', ' '))}{whose}", 100.0 * count / size, count) for name, count in counted if count
        ]
    figure = new_figure(
        "Legal points, and points that each rule rejects", "share of points (%)", height=150 + 34 * len(rows)
    )
    figure.add_bar(
        x=[share for _, share, _ in rows], y=[name for name, _, _ in rows], orientation="h",
        marker={"color": [COLOURS[2] if name.startswith("legal") else COLOURS[3] for name, _, _ in rows]},
        text=[units.percent(share / 100) for _, share, _ in rows],
        customdata=[units.count(count) for _, _, count in rows],
        textposition="outside", cliponaxis=False,
        hovertemplate="%{y}: %{customdata} points, %{text}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(range=[0, 128], tickvals=[0, 50, 100], tickangle=0)
    figure.update_yaxes(autorange="reversed", ticks="", ticksuffix=" ")
    figure.update_layout(showlegend=False)
    return figure


def canberra(points: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean Canberra distance of each pair of points, (num_pairs,) in [0, 1].

    ``|x - z| / (|x| + |z|)``, averaged over the entries (0 where both are 0). Source: [NoSE] Sec. III-B, Eq. (4).
    Deviates: the mean in place of the sum, so that spaces of different sizes compare.

    Parameters
    ----------
    points : (num_points, num_columns) int64
    """
    from scipy.spatial.distance import pdist

    return np.asarray(pdist(points.astype(np.float64), "canberra") / points.shape[1], dtype=np.float64)


def distances(plan: Plan, candidates: Candidates) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the pairwise distances of good points, and of random points.

    Good points are the plan's schedules of the best one's template.
    """
    model = models_of(plan)[plan.best.template]
    good = [model.space.point_of(schedule) for schedule in plan.schedules if schedule.template == plan.best.template]
    drawn = next(space.points for space in candidates.spaces if space.template == plan.best.template)
    return canberra(np.array(good[:_PAIRED])), canberra(drawn[:_PAIRED])


def plot_distances(plan: Plan, candidates: Candidates | None = None) -> go.Figure | None:
    """Return a figure of the distances between the plan's schedules, and between random points; None below three.

    A local search is worthwhile if good points are closer together than random ones.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    candidates : Candidates, optional
        Whose samples are shown; left out, `candidates_of` the plan.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown = candidates or candidates_of(plan)
    good, others = distances(plan, shown)
    if len(good) < 3 or len(others) < 3:
        return None
    figure = new_figure(
        "Distance between good points", "Canberra distance of a pair",
        "share of pairs (%)",
    )  # fmt: skip
    edges = np.linspace(0.0, max(good.max(), others.max()) * 1.001, _BINS + 1)
    for name, values, colour in (("drawn at random", others, GREY), ("the best ones", good, BEST)):
        counts, _ = np.histogram(values, edges)
        figure.add_bar(
            x=(edges[1:] + edges[:-1]) / 2, y=100.0 * counts / len(values), width=np.diff(edges), name=name,
            marker={"color": colour, "opacity": 0.7}, hovertemplate="%{x:.2f}: %{y:.3g} %<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0.0)
    return figure
