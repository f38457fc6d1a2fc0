"""Plans for a device with one changed number, and a figure of their predicted times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace as replace_fields

from anatune import api
from anatune.core.hardware.changed import Change, changes_of
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.model.plan import Plan
from anatune.plots.theme import COLOURS, GREY, label, new_figure
from anatune.report import units
from anatune.templates import make_model
from anatune.templates.base.model import Guarantee, Progress

if TYPE_CHECKING:
    import plotly.graph_objects as go

FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
"""Factors of the number in the spec."""
_LEAST_S = 0.05
"""Shortest time limit of one plan, s."""


@dataclass(frozen=True)
class Answer:
    """The plan of a changed device.

    Attributes
    ----------
    factor : float
        The number over that in the spec.
    value : str
        The number as text with its unit.
    schedule, prediction
        The best schedule there; None if none is legal or was found in time.
    guarantee : Guarantee
        The proof of the answer.
    kept_s : float or None
        Predicted seconds there of the schedule that is best on the unchanged device; None where it would be illegal.
    """

    factor: float
    value: str
    schedule: Schedule | None
    prediction: Prediction | None
    guarantee: Guarantee
    kept_s: float | None


@dataclass(frozen=True)
class Question:
    """A number of a device, and the answers for some of its values, ascending; factor 1 is among them."""

    change: Change
    answers: list[Answer]

    @property
    def start(self) -> int:
        """The position of the unchanged device."""
        return next(at for at, answer in enumerate(self.answers) if answer.factor == 1.0)


def what_if(
    plan: Plan,
    factors: Sequence[float] = FACTORS,
    *,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> list[Question]:
    """Plan anew for devices with one number changed, everything else held.

    Learned corrections are left out, because they were learned for the unchanged device.

    Parameters
    ----------
    plan : Plan
        With at least one schedule; its templates, accuracy and threads are kept.
    factors : sequence of float
        A factor of the value in the spec, > 0.
    time_limit_s : float, optional
        Of all plans together, about; an answer then says how far from the best it may be.
    progress : callable, optional
        Called with the share that is done, in [0, 1].

    Raises
    ------
    SpaceError
        Nothing is legal on the unchanged device.
    """
    _ = plan.best  # raises
    began = time.monotonic()
    wanted = sorted({*factors, 1.0})
    changes = changes_of(plan.hardware)
    tasks = len(changes) * (len(wanted) - 1) + 1
    done = 0

    def answer(change: Change, factor: float, device: HardwareSpec) -> Answer:
        nonlocal done
        left_s = None
        if time_limit_s is not None:
            left_s = max(_LEAST_S, (time_limit_s - (time.monotonic() - began)) / (tasks - done))
        template = None if plan.joined else plan.template
        changed_plan = api.plan(
            plan.workload, device, 1, template=template, accuracy=plan.accuracy, time_limit_s=left_s, correction="none"
        )
        done += 1
        if progress is not None:
            progress(min(1.0, done / tasks))
        return Answer(
            factor,
            _value(change, factor),
            changed_plan.schedules[0] if changed_plan.schedules else None,
            changed_plan.predictions[0] if changed_plan.schedules else None,
            changed_plan.guarantee,
            _kept_seconds(plan, device),
        )

    base = answer(changes[0], 1.0, plan.hardware)
    questions = []
    for change in changes:
        answers = []
        for factor in wanted:
            device = plan.hardware if factor == 1.0 else change.scaled(factor)
            if device is None:  # no device is like that
                continue
            if factor == 1.0:
                value = _value(change, 1.0)
                answers.append(Answer(1.0, value, base.schedule, base.prediction, base.guarantee, base.kept_s))
            else:
                answers.append(answer(change, factor, device))
        questions.append(Question(change, answers))
    return questions


def _kept_seconds(plan: Plan, device: HardwareSpec) -> float | None:
    """Return the predicted seconds of the plan's best schedule on another device, None where it is illegal there."""
    schedule = plan.best
    try:
        model = make_model(plan.workload, device, schedule.template, plan.accuracy)
        point = model.space.point_of(replace_fields(schedule, hardware=device))
    except SpaceError:
        return None
    time_s, rule = model.times(point[None, :])
    return float(time_s[0]) if rule[0] == 0 and np.isfinite(time_s[0]) else None


def _value(change: Change, factor: float) -> str:
    """Return a changed number as people read it."""
    value = change.value * factor
    if change.unit == "bytes/s":
        return units.rate(value)
    return units.size(value) if change.unit == "bytes" else units.count(max(1, round(value)))


def plot_what_if(plan: Plan, questions: Sequence[Question] | None = None) -> go.Figure:
    """Return how the best predicted time follows each number of the device.

    Parameters
    ----------
    plan : Plan
        With at least one schedule.
    questions : sequence of Question, optional
        The answers to show; left out, those of `what_if`.

    Raises
    ------
    SpaceError
        Nothing is legal.
    MissingDependencyError
        plotly is not installed.
    """
    shown = what_if(plan) if questions is None else questions
    now_s = next(one.prediction.time_s for one in shown[0].answers if one.factor == 1.0 and one.prediction is not None)
    figure = new_figure(
        f"What if {plan.hardware.model} were another", "times what the device has", "best time over the present one"
    )
    for question, colour in zip(shown, (COLOURS[3], COLOURS[7], COLOURS[4], COLOURS[0]), strict=False):
        there = [one for one in question.answers if one.prediction is not None]
        figure.add_scatter(
            x=[one.factor for one in there],
            y=[one.prediction.time_s / now_s for one in there if one.prediction is not None],
            mode="lines+markers", name=label(question.change.name), line={"color": colour, "width": 2.5},
            marker={"size": 8}, customdata=[label(one.value) for one in there],
            hovertemplate=f"{label(question.change.name)} %{{customdata}}: %{{y:.3g}} times<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=1.0, line={"color": GREY, "width": 1, "dash": "dash"})
    ticks = sorted({one.factor for question in shown for one in question.answers})
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    figure.update_yaxes(rangemode="tozero")
    return figure
