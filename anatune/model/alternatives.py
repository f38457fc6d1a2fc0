"""Alternatives: schedules that differ from the best in a single choice, and their predicted times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.templates.base.factor import divisors
from anatune.templates.base.model import Model


class Alternative(NamedTuple):
    """A single changed choice, described in words, and its prediction."""

    axis: str
    """The changed choice: an axis, "unroll", the fetch or packing of a tensor, "parallel"."""
    change: str
    prediction: Prediction


def find_alternatives(model: Model, schedule: Schedule, slower_by: float) -> list[Alternative]:
    """Return, for each axis or option, the cheapest single change that makes the schedule noticeably slower.

    A change moves the smallest prime factor of a tile from one level to another, or sets another option.

    Parameters
    ----------
    model : Model
        Model for the schedule's workload and hardware.
    schedule : Schedule
        The schedule that is changed.
    slower_by : float
        Smallest share of the schedule's time that a change must add.

    Returns
    -------
    list of Alternative
        At most one for each axis or option, the most expensive first; legal schedules only.
    """
    changes = list(_list_changes(model, schedule))
    start = model.space.point_of(schedule)
    if not changes:
        return []
    points = np.array([point for _, _, point in changes], dtype=np.int64)
    predictions = model.predictions(points)
    limit = model.predictions(np.atleast_2d(start))[0].time_s * (1.0 + slower_by)
    cheapest: dict[str, Alternative] = {}
    for (axis, change, _), prediction in zip(changes, predictions, strict=True):
        if not prediction.legal or prediction.time_s < limit:
            continue
        if axis not in cheapest or prediction.time_s < cheapest[axis].prediction.time_s:
            cheapest[axis] = Alternative(axis, change, prediction)
    return sorted(cheapest.values(), key=lambda choice: -choice.prediction.time_s)


def _list_changes(model: Model, schedule: Schedule) -> Iterator[tuple[str, str, list[int]]]:
    """Yield (changed choice, change in words, point) for every single change of a schedule."""
    space = model.space
    start = [int(value) for value in space.point_of(schedule)]
    column = {name: index for index, name in enumerate(space.columns)}
    for axis in space.axes:
        is_pair = start[column[f"pair.{axis}"]] > 0 if f"pair.{axis}" in column else False
        # A pair of microkernels fixes the innermost two levels of its axis.
        levels = [level for level in space.levels[axis] if not (is_pair and level in ("l1", "register"))]
        for source in levels:
            factor = start[column[f"{axis}.{source}"]]
            if factor == 1:
                continue
            prime = int(divisors(factor)[1])
            for target in levels:
                if target != source:
                    point = list(start)
                    point[column[f"{axis}.{source}"]] //= prime
                    point[column[f"{axis}.{target}"]] *= prime
                    yield axis, f"a factor {prime} of {axis} in {target} instead of {source}", point
    for name, choices in space.choices.items():
        for value in choices:
            if start[column[name]] != value and (text := _choice_text(name, value)):
                point = list(start)
                point[column[name]] = value
                yield name, text, point


def _choice_text(name: str, value: int) -> str | None:
    """Return a choice in words; None for choices that make no sense alone: orders of loops, gaps between rows."""
    option, _, tensor = name.partition(".")
    return {
        "unroll": f"loops of up to {value} statements unrolled",
        "vector": f"loads of {value} elements of {tensor}",
        "pack": f"{tensor} packed" if value else f"{tensor} not packed",
        "stages": f"{value} stages",
        "group": f"blocks grouped by {value} rows",
        "parallel": "all cores" if value else "one core",
    }.get(option)
