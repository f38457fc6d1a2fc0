"""Recorded GPU tables as lists of points that strategies can search, every row with all parameters of its tuner.

A tuner's parameters that anatune's template lacks (CLBlast's SA, SB, MDIMA, NDIMB; AutoTVM's unroll_explicit) become
further columns of a point and options of its schedule: the analytical model does not see them, strategies do. Rows
that agree in everything are merged: median of the successful times; failed only if all failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.templates.base.features import FeatureTable
from bench.replay.recorded import model_of
from bench.replay.recorded_gpu import Group, load_groups
from bench.replay.runner import ReplayRunner
from bench.replay.table import TableModel

__all__ = ["ForeignModel", "RecordedTable", "load_tables"]

Integers = NDArray[np.int64]


class _ForeignSpace:
    """A tile space with further columns, which are options of its schedules."""

    def __init__(self, space: Any, names: tuple[str, ...]) -> None:
        self.inner, self.names = space, names
        self.columns = (*space.columns, *names)
        self.workload, self.hardware, self.template = space.workload, space.hardware, space.template
        self.axes, self.levels, self.extents = space.axes, space.levels, space.extents

    def schedule_of(self, point: Any) -> Schedule:
        """Decode one point."""
        values = [int(value) for value in point]
        inner = len(self.inner.columns)
        schedule = self.inner.schedule_of(values[:inner])
        return msgspec.structs.replace(schedule, options=dict(zip(self.names, values[inner:], strict=True)))

    def schedule(self, tiles: Mapping[str, Sequence[int]]) -> Schedule:
        """Build the schedule with these factors; the other parameters are 0."""
        return msgspec.structs.replace(self.inner.schedule(tiles), options=dict.fromkeys(self.names, 0))

    def point_of(self, schedule: Schedule) -> Integers:
        """Return the point of a schedule."""
        if set(schedule.options) != set(self.names):
            raise SpaceError(f"schedule has the options {sorted(schedule.options)}, expected {sorted(self.names)}")
        tiles = self.inner.point_of(msgspec.structs.replace(schedule, options={}))
        return np.array([*tiles, *(schedule.options[name] for name in self.names)], dtype=np.int64)


class ForeignModel:
    """A model whose points have parameters that it does not know.

    Parameters
    ----------
    model
        Analytical model of the tiles.
    names : tuple of str
        Names of the other parameters, the last columns of a point.
    """

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        self.inner, self.names = model, names
        self.space = _ForeignSpace(model.space, names)
        self.workload, self.hardware, self.rules = model.workload, model.hardware, model.rules

    is_corrected = False

    def leaves(self, points: Integers) -> Integers:
        """Return none: nothing was learned."""
        return np.zeros((len(points), 0), dtype=np.int64)

    def _tiles(self, points: Integers) -> Integers:
        points = np.atleast_2d(points)
        return points[:, : points.shape[1] - len(self.names)]

    def check(self, points: Integers) -> Integers:
        """Return the rule codes of the tiles."""
        return self.inner.check(self._tiles(points))

    def times(self, points: Integers) -> tuple[NDArray[np.float64], Integers]:
        """Return (seconds, rule codes) of the tiles."""
        return self.inner.times(self._tiles(points))

    def evaluate(self, points: Integers) -> Any:
        """Score the tiles."""
        return self.inner.evaluate(self._tiles(points))

    def feature_table(self, points: Integers) -> FeatureTable:
        """Return the features of the tiles, and the other parameters' logarithms, called knob_..."""
        table = self.inner.feature_table(self._tiles(points))
        own = np.log2(1.0 + np.atleast_2d(points)[:, points.shape[-1] - len(self.names) :])
        names = (*table.names, *(f"knob_{name}" for name in self.names))
        return FeatureTable(table.time_s, table.rule, names, np.column_stack([table.values, own]))


@dataclass(frozen=True)
class RecordedTable:
    """All recorded points of one workload on one device, ready for strategies."""

    group: Group
    model: Any
    """The analytical model of its points, with the tuner's own parameters."""
    points: Integers
    time_s: NDArray[np.float64]
    spread: NDArray[np.float64]
    num_runs: NDArray[np.float64]
    knobs: dict[str, Integers] | None

    def runs_of(self, row: int | None) -> float:
        """Return how often a point was run in its measurement; 1 where that is not recorded."""
        number = 1.0 if row is None else float(self.num_runs[row])
        return number if number > 0 else 1.0

    def table(self, model: Any | None = None) -> TableModel:
        """Return the list of points, predicted by `model` (by default the analytical one)."""
        return TableModel(model or self.model, self.points, self.knobs)

    def runner(self, table: TableModel) -> ReplayRunner:
        """Return what replays it."""
        return ReplayRunner(table, self.time_s, self.spread)


def load_tables(folder: Path, notes: list[str], *, all_knobs: bool = False) -> Iterator[RecordedTable]:
    """Yield every recorded GPU table with a whole search in it (TopHub's winners are none).

    With `all_knobs` a tuner's own parameters are columns, too, where they do not vary: all its tables have the same.
    """
    for group in load_groups(folder, notes, whole=True):
        if group.kind != "tophub" and np.isfinite(group.time_s).sum() >= 10:
            yield recorded_table(group, all_knobs=all_knobs)


def recorded_table(group: Group, *, all_knobs: bool = False) -> RecordedTable:
    """Merge equal rows of a group."""
    names = tuple(name for name, values in group.others.items() if all_knobs or len(np.unique(values)) > 1)
    model: Any = model_of(group.workload, group.hardware)
    points = group.points
    if names:
        model = ForeignModel(model, names)
        points = np.column_stack([points, *(group.others[name] for name in names)])
    points, first, place = np.unique(points, axis=0, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    order = np.argsort(place, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(place))[:-1])
    time_s = np.array([_median(group.time_s[rows]) for rows in parts])
    spread = np.array([_median(group.spread[rows]) for rows in parts])
    num_runs = np.array([_median(group.num_runs[rows]) for rows in parts])
    knobs = {name: values[first] for name, values in group.knobs.items()} if group.knobs else None
    return RecordedTable(group, model, points, time_s, spread, num_runs, knobs)


def _median(values: NDArray[np.float64]) -> float:
    good = values[np.isfinite(values)]
    return float(np.median(good)) if len(good) else float("nan")
