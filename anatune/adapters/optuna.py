"""Optuna: the tile space as distributions, and the schedules of smallest predicted time as its first trials."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anatune import api
from anatune.arguments import checked_integer, shown
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.measure.named_hardware import HardwareLike
from anatune.model.pruning.subset import SpaceSubset
from anatune.named import import_optional
from anatune.templates.base.model import Progress

__all__ = ["ScheduleSpace", "schedule_space"]

MOST_CHOSEN = 20_000
"""Kept schedules whose values make up the distributions."""


def schedule_space(
    workload: Workload,
    hw: HardwareLike,
    keep: int = 256,
    *,
    template: str | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> ScheduleSpace:
    """Return the search space of a workload for Optuna: the values that occur in the `keep` best schedules.

    Parameters
    ----------
    workload, hw
        As `anatune.prune`.
    template : str, optional
        As `anatune.space`: of one template, by default the device's.
    keep : int
        Schedules of smallest predicted time, one of each time, whose values are offered in all combinations.
    time_limit_s, progress
        Of the search for these, as in `anatune.prune`.

    Raises
    ------
    SpaceError
        `keep` is no count of at most 20,000; nothing is legal.
    UnknownNameError, SpecError
        As `anatune.hardware`.
    """
    keep = checked_integer("optuna: keep", keep, 1, MOST_CHOSEN)
    space = api.space(workload, hw, template=template)
    subset = api.prune(
        workload,
        space.hardware,
        keep,
        template=space.template,  # one space: its axes become parameters
        distinct=True,  # else the first ones are alike
        time_limit_s=time_limit_s,
        progress=progress,
    )
    assert isinstance(subset, SpaceSubset)
    return ScheduleSpace(subset)


class _Trial(Protocol):
    """An ``optuna.Trial``, as far as it is used here."""

    def suggest_categorical(self, name: str, choices: list[str]) -> object: ...


class _Study(Protocol):
    """An ``optuna.Study``, as far as it is used here."""

    def enqueue_trial(self, params: dict[str, str], *, skip_if_exists: bool) -> None: ...


class ScheduleSpace:
    """Parameters of schedules: one for the tiling of each axis ("8x2x16x2x1", outer to inner), one for each choice.

    Parameters
    ----------
    subset : SpaceSubset
        What `anatune.prune` returned for a space.

    Attributes
    ----------
    schedules : list of Schedule
        The kept ones, best first.

    Raises
    ------
    SpaceError
        Nothing is kept.
    """

    def __init__(self, subset: SpaceSubset) -> None:
        self.subset, self.space = subset, subset.space
        self.schedules: list[Schedule] = list(subset)
        if not self.schedules:
            raise SpaceError(f"optuna: nothing is legal in {subset.space!r}; use a smaller workload or another device")
        self._points = [self.space.point_of(schedule) for schedule in self.schedules]
        self._model = api.model(subset.workload, subset.hardware, self.space.template)

    def __repr__(self) -> str:
        return f"ScheduleSpace({len(self.schedules)} schedules of {self.space!r})"

    @cached_property
    def choices(self) -> dict[str, list[str]]:
        """Parameter -> its values, those of the best schedules first."""
        found: dict[str, dict[str, None]] = {}
        for point in self._points:
            for name, value in self._values(point).items():
                found.setdefault(name, {})[value] = None
        return {name: list(values) for name, values in found.items()}

    @property
    def distributions(self) -> dict[str, Any]:
        """Parameter -> ``optuna.distributions.CategoricalDistribution``.

        Raises
        ------
        MissingDependencyError
            Optuna is not installed.
        """
        kind = import_optional("optuna", "optuna", "distributions").distributions.CategoricalDistribution
        return {name: kind(values) for name, values in self.choices.items()}

    def params(self, schedule: Schedule) -> dict[str, str]:
        """Return the parameters of a schedule, for ``study.enqueue_trial`` or ``study.add_trial``.

        Raises
        ------
        SpaceError
            It belongs to another workload or template.
        """
        return self._values(self.space.point_of(schedule))

    def schedule(self, params: dict[str, str]) -> Schedule:
        """Return the schedule of parameters (``trial.params``).

        Raises
        ------
        SpaceError
            A parameter is missing or no value of this space, or the combination breaks a rule of the device.
        """
        columns = self.space.columns
        point = np.ones(len(columns), dtype=np.int64)
        for name, places in self._groups.items():
            words = str(params.get(name, "")).split("x")
            if len(words) != len(places) or not all(word.isdecimal() for word in words):
                raise SpaceError(
                    f"optuna: {name} is {shown(params.get(name))}, expected one of {self.choices[name][:3]}"
                )
            point[places] = [int(word) for word in words]
        rule = int(self._model.check(point[None, :])[0])
        if rule:
            broken = self._model.rules[rule - 1]
            raise SpaceError(f"optuna: {broken.broken_text(broken.needed)}; try another combination")
        found: Schedule = self.space.schedule_of(point)
        return found

    def suggest(self, trial: _Trial) -> Schedule:
        """Return the schedule that a trial is about; to be called in an objective.

        Raises
        ------
        optuna.TrialPruned
            The sampler has combined values that break a rule of the device.
        """
        params = {name: str(trial.suggest_categorical(name, values)) for name, values in self.choices.items()}
        try:
            return self.schedule(params)
        except SpaceError as error:
            raise import_optional("optuna", "optuna", "suggest").TrialPruned(str(error)) from None

    def enqueue(self, study: _Study, count: int = 8) -> None:
        """Make the best schedules the next trials of a study; those it has already are left out.

        Raises
        ------
        SpaceError
            `count` is below 1.
        """
        for schedule in self.schedules[: checked_integer("optuna: count", count, 1)]:
            study.enqueue_trial(self.params(schedule), skip_if_exists=True)

    @cached_property
    def _groups(self) -> dict[str, list[int]]:
        """Parameter -> its columns: the levels of an axis (and its pair of microkernels) are one parameter."""
        groups: dict[str, list[int]] = {}
        for place, column in enumerate(self.space.columns):
            head, _, tail = column.partition(".")
            axis = head if head in self.space.axes else tail if head == "pair" else None
            groups.setdefault(column if axis is None else f"tiles.{axis}", []).append(place)
        return groups

    def _values(self, point: NDArray[np.int64]) -> dict[str, str]:
        return {name: "x".join(str(int(v)) for v in point[places]) for name, places in self._groups.items()}
