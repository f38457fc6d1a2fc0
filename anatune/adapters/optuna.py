"""Optuna: a space of schedules as distributions, and the best predicted schedules as a study's first trials."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anatune import api
from anatune.arguments import check_integer, quote
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.measure.named_hardware import HardwareLike
from anatune.model.pruning.subset import SpaceSubset
from anatune.named import import_optional
from anatune.templates.base.model import Progress

__all__ = ["ScheduleSpace", "schedule_space"]

MOST_CHOSEN = 20_000
"""The most schedules whose values make up the distributions."""


def schedule_space(
    workload: Workload,
    hw: HardwareLike,
    keep: int = 256,
    *,
    template: str | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> ScheduleSpace:
    """Return a search space for Optuna, made of the values that occur in the `keep` best schedules of a workload.

    Parameters
    ----------
    workload, hw
        The same as in `anatune.prune`.
    template : str, optional
        The template whose space is searched, as in `anatune.space`. The default is the device's default template.
    keep : int
        The number of schedules with the smallest predicted times, one for each time. Optuna may combine their values
        freely.
    time_limit_s, progress
        The limit and the progress callback of the search for these schedules, as in `anatune.prune`.

    Raises
    ------
    SpaceError
        `keep` is not an integer from 1 to 20,000, or no schedule is legal.
    UnknownNameError, SpecError
        The device is unknown or its file is wrong, as in `anatune.hardware`.
    """
    keep = check_integer("optuna: keep", keep, 1, MOST_CHOSEN)
    space = api.space(workload, hw, template=template)
    subset = api.prune(
        workload,
        space.hardware,
        keep,
        template=space.template,  # the axes of a single space become parameters
        distinct=True,  # otherwise the first schedules hardly differ
        time_limit_s=time_limit_s,
        progress=progress,
    )
    assert isinstance(subset, SpaceSubset)
    return ScheduleSpace(subset)


class _Trial(Protocol):
    """The methods of ``optuna.Trial`` that are used here."""

    def suggest_categorical(self, name: str, choices: list[str]) -> object: ...


class _Study(Protocol):
    """The methods of ``optuna.Study`` that are used here."""

    def enqueue_trial(self, params: dict[str, str], *, skip_if_exists: bool) -> None: ...


class ScheduleSpace:
    """The parameters of schedules: the tiling of each axis ("8x2x16x2x1", outer to inner), and every other choice.

    Parameters
    ----------
    subset : SpaceSubset
        The result of `anatune.prune`.

    Attributes
    ----------
    schedules : list of Schedule
        The kept schedules, best first.

    Raises
    ------
    SpaceError
        The subset is empty.
    """

    def __init__(self, subset: SpaceSubset) -> None:
        self.subset, self.space = subset, subset.space
        self.schedules: list[Schedule] = list(subset)
        if not self.schedules:
            raise SpaceError(f"optuna: no schedule is legal in {subset.space!r}; use another workload or device")
        self._points = [self.space.point_of(schedule) for schedule in self.schedules]
        self._model = api.model(subset.workload, subset.hardware, self.space.template)

    def __repr__(self) -> str:
        return f"ScheduleSpace({len(self.schedules)} schedules of {self.space!r})"

    @cached_property
    def choices(self) -> dict[str, list[str]]:
        """The values of each parameter; those of the best schedules come first."""
        values_by_name: dict[str, dict[str, None]] = {}
        for point in self._points:
            for name, value in self._values(point).items():
                values_by_name.setdefault(name, {})[value] = None
        return {name: list(values) for name, values in values_by_name.items()}

    @property
    def distributions(self) -> dict[str, Any]:
        """The ``optuna.distributions.CategoricalDistribution`` of each parameter.

        Raises
        ------
        MissingDependencyError
            Optuna is not installed.
        """
        distribution = import_optional("optuna", "optuna", "distributions").distributions.CategoricalDistribution
        return {name: distribution(values) for name, values in self.choices.items()}

    def params(self, schedule: Schedule) -> dict[str, str]:
        """Return the parameters of a schedule, for ``study.enqueue_trial`` or ``study.add_trial``.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template.
        """
        return self._values(self.space.point_of(schedule))

    def schedule(self, params: dict[str, str]) -> Schedule:
        """Return the schedule that these parameters (``trial.params``) describe.

        Raises
        ------
        SpaceError
            A parameter is missing, its value is not in this space, or the combination breaks a rule of the device.
        """
        columns = self.space.columns
        point = np.ones(len(columns), dtype=np.int64)
        for name, places in self._groups.items():
            words = str(params.get(name, "")).split("x")
            if len(words) != len(places) or not all(word.isdecimal() for word in words):
                raise SpaceError(
                    f"optuna: {name} is {quote(params.get(name))}, expected one of {self.choices[name][:3]}"
                )
            point[places] = [int(word) for word in words]
        rule = int(self._model.check(point[None, :])[0])
        if rule:
            broken = self._model.rules[rule - 1]
            raise SpaceError(f"optuna: {broken.broken_text(broken.needed)}; try another combination")
        schedule: Schedule = self.space.schedule_of(point)
        return schedule

    def suggest(self, trial: _Trial) -> Schedule:
        """Ask a trial for all parameters and return its schedule; call this in an objective.

        Raises
        ------
        optuna.TrialPruned
            The sampler combined values that break a rule of the device.
        """
        params = {name: str(trial.suggest_categorical(name, values)) for name, values in self.choices.items()}
        try:
            return self.schedule(params)
        except SpaceError as error:
            raise import_optional("optuna", "optuna", "suggest").TrialPruned(str(error)) from None

    def enqueue(self, study: _Study, count: int = 8) -> None:
        """Make the best schedules the next trials of a study; schedules that it already has are skipped.

        Raises
        ------
        SpaceError
            `count` is below 1.
        """
        for schedule in self.schedules[: check_integer("optuna: count", count, 1)]:
            study.enqueue_trial(self.params(schedule), skip_if_exists=True)

    @cached_property
    def _groups(self) -> dict[str, list[int]]:
        """The columns of each parameter: all levels of an axis, and its pair of microkernels, are one parameter."""
        groups: dict[str, list[int]] = {}
        for index, column in enumerate(self.space.columns):
            head, _, tail = column.partition(".")
            axis = head if head in self.space.axes else tail if head == "pair" else None
            groups.setdefault(column if axis is None else f"tiles.{axis}", []).append(index)
        return groups

    def _values(self, point: NDArray[np.int64]) -> dict[str, str]:
        return {name: "x".join(str(int(v)) for v in point[places]) for name, places in self._groups.items()}
