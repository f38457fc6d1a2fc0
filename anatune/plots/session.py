"""Figures of sessions: convergence, predictions against measurements, failures, drift, the final comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from anatune.arguments import check_choice
from anatune.core.trial import Trial
from anatune.plots.theme import BAR_WIDTH, BEST, COLOURS, GREY, colours_of, label, new_figure, row_figure
from anatune.report import units
from anatune.report.findings import Contest, contests, failure_kinds, pair_times, reference_speeds
from anatune.report.sessions import SessionView, Viewed, best_so_far, session_views
from anatune.report.units import TimeUnit

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LOG_FROM = 4.0
"""Largest over smallest value above which an axis is logarithmic."""
_HEIGHT = 380
"""Pixels of a figure of trials."""
_MOST_COUNTED = 10
"""Length of a bar up to which each number has its tick, because plotly would show some numbers twice."""
_EDGE = "rgba(128,128,128,0.6)"
"""Colour of the edges of the pieces of a bar."""
_FEWEST_TICKS, _MOST_TICKS = 3, 6
"""Fewest and most ticks of a logarithmic axis."""
_MOST_LETTERS, _MOST_NAMED = 70, 20
"""Largest number of characters of a message in a hover text, and of the name of a machine in a legend."""


def plot_convergence(given: Viewed, *, against: Literal["trials", "seconds"] = "trials") -> go.Figure:
    """Return a figure of the time of each trial, the best so far, the prediction and the lower bound.

    Parameters
    ----------
    given : TuningResult, or sequence of Trial, Record or TuningResult
        The session; several sessions of one workload and device are drawn over each other.
    against : {"trials", "seconds"}
        The x axis. Seconds are those of the records without pauses; for a result alone, those of building and running.

    Raises
    ------
    SpaceError
        `against` has another value.
    MissingDependencyError
        plotly is not installed.
    """
    views = session_views(given)
    counts = check_choice("against", against, ("trials", "seconds")) == "trials"
    x_title = "trial" if counts else "time of the session (s)"
    if not counts:
        views = [view for view in views if view.ended_s is not None]
    lines = _lines_of(views)
    times = [time_s for view in views for trial in view.trials if (time_s := trial.measurement.time_s) is not None]
    unit = _unit_of(times or [value for _, value, _ in lines])
    figure = new_figure(f"Best so far against {against}", x_title, f"time of a run ({unit.name})", height=_HEIGHT)
    colours = colours_of(view.name for view in views)
    low, high = _pad_range([*times, *(value for _, value, _ in lines)])
    last = 1.0
    for view in views:
        x_values = [float(place) for place in range(1, len(view.trials) + 1)] if counts else list(view.ended_s or ())
        last = max([last, *x_values])
        colour, is_alone = colours[view.name], len(views) == 1
        ran = [place for place, trial in enumerate(view.trials) if trial.measurement.time_s is not None]
        figure.add_scatter(
            x=[x_values[place] for place in ran], y=[unit.of(view.trials[place].measurement.time_s) for place in ran],
            mode="markers", name="trials", legendgroup=view.name, showlegend=is_alone,
            marker={"size": 7, "color": colour, "opacity": 0.65},
            text=[_hover_text(view.trials[place]) for place in ran], hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
        best = best_so_far(view.trials)
        steps = [place for place, one in enumerate(best) if place in (0, len(best) - 1) or one is not best[place - 1]]
        best_points = [(x_values[place], best_trial) for place in steps if (best_trial := best[place]) is not None]
        figure.add_scatter(
            x=[x for x, _ in best_points], y=[unit.of(one.measurement.time_s) for _, one in best_points], mode="lines",
            name="best so far" if is_alone else label(view.name), legendgroup=view.name,
            line={"shape": "hv", "width": 3, "color": BEST if is_alone else colour},
            text=[f"best so far: {_hover_text(one)}" for _, one in best_points], hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
        lost = [place for place, trial in enumerate(view.trials) if trial.measurement.time_s is None]
        if lost:
            figure.add_scatter(
                x=[x_values[place] for place in lost], y=[unit.of(high)] * len(lost), mode="markers",
                name="failed", legendgroup=view.name, showlegend=is_alone, cliponaxis=False,
                marker={"symbol": "x", "size": 8, "color": GREY if is_alone else colour},
                text=[_hover_text(view.trials[place]) for place in lost], hovertemplate="%{text}<extra></extra>",
            )  # fmt: skip
    for name, value, dash in lines:
        figure.add_scatter(
            x=[0.0, last], y=[unit.of(value)] * 2, mode="lines", name=name,
            line={"dash": dash, "width": 2, "color": GREY},
            hovertemplate=f"{name}: {units.duration(value)}<extra></extra>",
        )  # fmt: skip
    _time_axis(figure, low, high, unit)
    figure.update_xaxes(rangemode="tozero")
    return figure


def _lines_of(views: Sequence[SessionView]) -> list[tuple[str, float, str]]:
    """Return (name, s, dash) of the lines for the prediction and the lower bound."""
    if not views:
        return []
    lines = []
    predicted = next((v.plan_first.predicted_s for v in views if v.plan_first and v.plan_first.predicted_s), None)
    if predicted is not None:
        lines.append(("predicted for the plan's first choice", predicted, "dash"))
    lines.append(("lower bound", min(view.bound.time_s for view in views), "dot"))
    return lines


def plot_predictions(given: Viewed) -> go.Figure:
    """Return a figure of measured against predicted times, both logarithmic; on the diagonal they are equal.

    Parameters
    ----------
    given
        As for `plot_convergence`. Trials without a prediction or a time are left out.
    """
    views = session_views(given)
    pairs_by_view = {view.name: pair_times(view.trials) for view in views}
    pairs = [one for some in pairs_by_view.values() for one in some]
    unit = _unit_of([measured for _, measured, _ in pairs])
    figure = new_figure(
        "Measured against predicted", f"predicted time ({unit.name})", f"measured time ({unit.name})", height=460
    )
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    if not pairs:
        return figure
    colours = colours_of(pairs_by_view)
    for view in views:
        view_pairs = pairs_by_view[view.name]
        groups = dict.fromkeys(trial.source for _, _, trial in view_pairs) if len(views) == 1 else {"": None}
        shades = colours_of(groups)
        for source in groups:
            members = [one for one in view_pairs if not source or one[2].source == source]
            figure.add_scatter(
                x=[unit.of(predicted) for predicted, _, _ in members],
                y=[unit.of(measured) for _, measured, _ in members],
                mode="markers", name=label(f"proposed by {source}" if source else view.name),
                marker={"size": 8, "opacity": 0.75, "color": shades[source] if source else colours[view.name]},
                text=[_hover_text(trial) for _, _, trial in members], hovertemplate="%{text}<extra></extra>",
            )  # fmt: skip
        if len(views) == 1 and view.best is not None and view.best.predicted_s:
            figure.add_scatter(
                x=[unit.of(view.best.predicted_s)], y=[unit.of(view.best.measurement.time_s)], mode="markers",
                name="the best", text=[_hover_text(view.best)], hovertemplate="%{text}<extra></extra>",
                marker={"size": 15, "symbol": "circle-open", "color": BEST, "line": {"width": 3, "color": BEST}},
            )  # fmt: skip
    low, high = _pad_range([predicted for predicted, _, _ in pairs])
    figure.add_scatter(
        x=[unit.of(low), unit.of(high)], y=[unit.of(low), unit.of(high)], mode="lines", name="as predicted",
        line={"dash": "dash", "width": 2, "color": GREY}, hoverinfo="skip",
    )  # fmt: skip
    _time_axis(figure, low, high, unit, axis="x", is_log=True)
    _time_axis(figure, *_pad_range([low, high, *(measured for _, measured, _ in pairs)]), unit, is_log=True)
    return figure


def plot_failures(given: Viewed) -> go.Figure:
    """Return a figure of the number of failed trials, by outcome and first line of the message.

    Parameters
    ----------
    given
        As `plot_convergence`.
    """
    kinds = failure_kinds(trial for view in session_views(given) for trial in view.trials)
    figure = row_figure("Failed trials by outcome", "trials", [kind.outcome.value for kind in kinds])
    for row, kind in enumerate(kinds):
        for position, (line, count) in enumerate(kind.messages):
            figure.add_bar(
                x=[count], y=[row], width=BAR_WIDTH, orientation="h", showlegend=False,
                marker={"color": COLOURS[position % len(COLOURS)], "line": {"width": 1, "color": _EDGE}},
                hovertext=f"{count} of {kind.num}: {label(_shorten(line))}",
                hovertemplate="%{hovertext}<extra></extra>",
            )  # fmt: skip
    figure.update_layout(barmode="stack")
    _count_axis(figure, max((kind.num for kind in kinds), default=1))
    return figure


def plot_drift(given: Viewed) -> go.Figure:
    """Return a figure of the drift of the machines' speed: the reference kernel's time over its median time.

    Parameters
    ----------
    given
        As `plot_convergence`. Trials without a reference kernel (imported ones) are left out.
    """
    views = session_views(given)
    figure = new_figure("Reference kernel over the session", "measurement", "time over its median")
    several = len(views) > 1
    samples = [(view, reference_speed) for view in views for reference_speed in reference_speeds(view)]
    names = {(view.name, one.worker): _machine(view, one.worker, several) for view, one in samples}
    colours = colours_of(names.values())
    for (view_name, worker), name in names.items():
        drift = [one for view, one in samples if view.name == view_name and one.worker == worker]
        figure.add_scatter(
            x=[one.place + 1 for one in drift], y=[round(one.median, 4) for one in drift], mode="lines+markers",
            name=label(name),
            marker={"size": 6, "color": colours[name]}, line={"width": 1.5, "color": colours[name]},
            error_y={
                "type": "data", "symmetric": False, "thickness": 1, "width": 0, "color": colours[name],
                "array": [round(one.high - one.median, 4) for one in drift],
                "arrayminus": [round(one.median - one.low, 4) for one in drift],
            },
            hovertemplate="measurement %{x}: %{y:.3f} times its median<extra></extra>",
        )  # fmt: skip
    figure.update_layout(showlegend=len(names) > 1)
    figure.add_hline(y=1.0, line={"dash": "dash", "width": 1.5, "color": GREY})
    figure.update_xaxes(rangemode="tozero")
    return figure


def _machine(view: SessionView, worker: str, several: bool) -> str:
    machine = _shorten(worker or "this machine", _MOST_NAMED)
    return f"{machine} ({view.name})" if several else machine


def plot_comparison(given: Viewed) -> go.Figure:
    """Return a figure of the final comparison: each schedule's time over the winner's, with the 95 % interval.

    Parameters
    ----------
    given
        As for `plot_convergence`; sessions without a final comparison are left out.
    """
    views = [view for view in session_views(given) if view.comparison is not None]
    rows = [
        (view, contest)
        for view in views
        if view.comparison is not None
        for contest in contests(view.comparison, view.best_s)
    ]
    names = [_contender(view, one, len(views) > 1) for view, one in rows]
    figure = row_figure("Final comparison, measured in turn", "time over the winner's", names)
    shown = [one for _, one in rows]
    figure.add_scatter(
        x=[one.ratio for one in shown], y=list(range(len(shown))), mode="markers", showlegend=False,
        marker={"size": 12, "color": [BEST if one.low == one.high else COLOURS[0] for one in shown]},
        error_x={
            "type": "data", "symmetric": False, "thickness": 2, "width": 6, "color": COLOURS[0],
            "array": [one.high - one.ratio for one in shown], "arrayminus": [one.ratio - one.low for one in shown],
        },
        text=[
            f"{units.duration(one.time_s)}, {one.ratio:.3f} times the winner's ({one.low:.3f} to {one.high:.3f}),<br>"
            f"{one.num_samples} samples" for one in shown
        ],
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    figure.add_vline(x=1.0, line={"dash": "dash", "width": 1.5, "color": GREY})
    figure.update_xaxes(nticks=6)
    return figure


def _contender(view: SessionView, contest: Contest, several: bool) -> str:
    words = f"trial {contest.number}"
    if view.comparison is not None and contest.number == view.comparison.best:
        words += ", the winner"
    if view.plan_first is not None and contest.number == view.plan_first.number:
        words += ", the plan's first choice"
    return f"{words} ({view.name})" if several else words


def plot_workers(given: Viewed) -> go.Figure:
    """Return a figure of the successful and failed trials of each worker of a cluster or board.

    Parameters
    ----------
    given
        As `plot_convergence`.
    """
    shares = [share for view in session_views(given) for share in view.shares]
    names = list(dict.fromkeys(share.worker.name or "this machine" for share in shares))
    figure = row_figure("Measuring machines", "trials", names)
    total = dict.fromkeys(names, 0)
    failed = dict.fromkeys(names, 0)
    for share in shares:
        name = share.worker.name or "this machine"
        total[name] += share.worker.trials
        failed[name] += share.worker.failed
    for outcome, counts, colour in (
        ("ran", [total[name] - failed[name] for name in names], COLOURS[0]),
        ("failed", [failed[name] for name in names], BEST),
    ):
        figure.add_bar(
            x=counts, y=list(range(len(names))), width=BAR_WIDTH, orientation="h", name=outcome,
            marker={"color": colour},
            hovertemplate=f"%{{x}} {outcome}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    _count_axis(figure, max(total.values(), default=1))
    return figure


def _count_axis(figure: go.Figure, most: int) -> None:
    """Set the axis of a bar figure to whole numbers."""
    figure.update_xaxes(rangemode="tozero", tickformat=",d", **({"dtick": 1} if most <= _MOST_COUNTED else {}))


def _hover_text(trial: Trial) -> str:
    """Return the hover text of a trial."""
    measurement = trial.measurement
    parts = [f"trial {trial.number}, proposed by {label(trial.source)}"]
    if measurement.time_s is None:
        parts.append(f"{measurement.outcome.value}: {label(_shorten(measurement.message))}")
    else:
        parts.append(f"measured {units.duration(measurement.time_s)}")
    if trial.predicted_s is not None:
        parts[-1] += f", predicted {units.duration(trial.predicted_s)}"
    if trial.corrected_s is not None:
        parts[-1] += f", corrected {units.duration(trial.corrected_s)}"
    if measurement.worker:
        parts.append(f"by {label(measurement.worker)}")
    return "<br>".join(parts)


def _shorten(text: str, most: int = _MOST_LETTERS) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most].rstrip()} …"


class _Unit(TimeUnit):
    """The unit of an axis of times, whose points have six digits."""

    def of(self, seconds: float | None) -> float | None:
        return None if seconds is None else float(f"{seconds / self.scale_s:.6g}")


def _unit_of(times_s: Sequence[float]) -> TimeUnit:
    """Return the unit of the median of some times."""
    return _Unit.fitting(statistics.median(times_s) if times_s else 1.0)


def _pad_range(values: Sequence[float]) -> tuple[float, float]:
    """Return a range with a margin of at least 2 % around values > 0; 1 to 2 without values."""
    if not values:
        return 1.0, 2.0
    low, high = min(values), max(values)
    room = max(1.01, (high / low) ** 0.06)
    return low / room, high * room


def _time_axis(
    figure: go.Figure,
    low_s: float,
    high_s: float,
    unit: TimeUnit,
    *,
    axis: Literal["x", "y"] = "y",
    is_log: bool = False,
) -> None:
    """Set the range of an axis of times; it is logarithmic if the range is wide, or with `is_log`."""
    update = figure.update_yaxes if axis == "y" else figure.update_xaxes
    low, high = low_s / unit.scale_s, high_s / unit.scale_s
    if is_log or high > _LOG_FROM * low:
        ticks = _log_ticks(low, high)
        texts = [f"{tick:,.7g}" for tick in ticks]
        update(type="log", range=[math.log10(low), math.log10(high)], tickvals=ticks, ticktext=texts)
    else:
        update(type="linear", range=[low, high])


def _log_ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers for a logarithmic axis, because plotly's own ticks may overlap."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        ticks = [digit * 10.0**power for power in decades for digit in digits]
        visible = [tick for tick in ticks if low <= tick <= high]
        if len(visible) >= _FEWEST_TICKS:
            return visible[:: math.ceil(len(visible) / _MOST_TICKS)]
    coarse = (high - low) / _FEWEST_TICKS
    power = 10.0 ** math.floor(math.log10(coarse))
    step = power * max(digit for digit in (1, 2, 5) if digit * power <= coarse)
    return [step * count for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
