"""Programs of the template "triton" for a range of extents. Every kernel for a single extent is one.

A Triton kernel masks its last tiles. It therefore serves any extent of an axis, if no address depends on that extent.
The time of a program at an extent is the time of the ordinary model.

The best time of each extent is exact. All kernels are timed at the first extent of each group of extents that all tiles
divide into as many parts. At the other extents of the group only those kernels are timed that may be the best there.
This suffices because a kernel's time within a group falls no faster than the extent grows: each quantity of the model
either grows with the extent or falls no faster than that (bytes from memory over bytes from L2), and sums, maxima and
norms of such quantities do the same.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.ranges import RangedWorkload
from anatune.errors import SpaceError
from anatune.templates.base.family import FamilyBounds, Floats, Program, ProgramFamily
from anatune.templates.base.watch import Watch
from anatune.templates.triton.model import TritonModel
from anatune.templates.triton.program.sizes import find_index
from anatune.templates.triton.rules import LEAST_TILE, check_supported

__all__ = ["TritonRanges"]

Points = NDArray[np.int64]

_STRIDES = (64, 16, 4, 1)
"""Strides in which groups of extents are visited, so that a time limit leaves some of the whole range."""
_TOP = 256
"""Number of fastest kernels of an extent, whose first few different times give the candidates."""
_DISTINCT = 6


class TritonRanges(ProgramFamily):
    """The programs of the template "triton" for products. A program is a point. Otherwise like `ProgramFamily`.

    Raises
    ------
    SpaceError
        The template does not take the workload, or addresses depend on the extent of the axis.
    """

    template: ClassVar[str] = "triton"
    hardware: GpuSpec

    def __init__(self, workload: RangedWorkload, hardware: GpuSpec) -> None:
        super().__init__(workload, hardware)
        axis, largest = workload.axis, workload.largest
        self._models: dict[int, TritonModel] = {}
        gemm = check_supported(largest, hardware)
        if largest.dtype == "float32":
            raise SpaceError(
                f"template triton rounds float32 operands of {largest.operator} to tf32, and plans for a range have "
                "the accuracy standard; name a dtype of 16 bits or another template"
            )
        self._index = find_index(largest, gemm, axis)
        smallest, space = self._model_at(workload.extents[0]).space, self._model_at(workload.extents[-1]).space
        space.choices = {**space.choices, "split_k": smallest.choices["split_k"]}
        self._columns, points = space.columns, space.points_at(np.arange(space.size))
        self._points: Points = points[self._model_at(workload.extents[-1]).check(points) == 0]
        step = 1 if self._index == "batch" else LEAST_TILE  # all tile sizes are multiples of it
        iterations = workload.numbers * (gemm.extents[self._index] // workload.extents[-1])
        starts = np.flatnonzero(np.diff(-(-iterations // step), prepend=-1))
        self._groups = list(itertools.pairwise([*starts.tolist(), len(iterations)]))
        self._best_s: Floats = np.zeros(len(iterations))
        self._programs: dict[Program, None] = {}

    def _model_at(self, extent: int) -> TritonModel:
        if extent not in self._models:
            self._models[extent] = TritonModel(self.workload.at(extent), self.hardware, STANDARD)
        return self._models[extent]

    def _seconds(self, extent: int, points: Points) -> Floats:
        """Return the seconds at an extent of points of the largest extent's space; inf if they are illegal there."""
        model = copy.copy(self._model_at(self.workload.extents[-1]))
        model.problem = self._model_at(extent).problem
        times, rules = model.times(points)
        return np.where(rules == 0, times, np.inf)

    def candidates(self, watch: Watch) -> Sequence[Program]:
        """Return the best program of every extent and some that are almost as fast; see `ProgramFamily.candidates`."""
        self._find_best_times(watch)
        return list(self._programs)

    def _find_best_times(self, watch: Watch) -> None:
        """Find the best times of the remaining extents until the time is up. Do at least one group."""
        steps = (self._groups[::-1][::stride] for stride in _STRIDES)
        groups = dict.fromkeys(itertools.chain([self._groups[0]], *steps))
        for number, (first, stop) in enumerate(groups):
            if watch.is_over and self._programs:
                return
            if not self._best_s[first]:
                self._search_group(first, stop)
            watch.report((number + 1) / len(groups))

    def _search_group(self, first: int, stop: int) -> None:
        """Find the best times of a group of extents, from number `first` to before `stop`."""
        extents, space = self.workload.extents, self._model_at(self.workload.extents[first]).space
        inside = self._points[:, self._columns.index("split_k")] <= space.choices["split_k"][-1]
        if self._index != "batch":
            inside &= self._points[:, self._columns.index(f"{self._index}.tile")] <= space.table(self._index).max()
        points = self._points[inside]
        times = self._seconds(extents[first], points)
        near = np.argsort(times, kind="stable")[:_TOP]
        different = np.unique(times[near].round(12), return_index=True)[1][:_DISTINCT]
        self._programs |= dict.fromkeys(map(tuple, points[near[different]].tolist()))
        for number in range(first, stop):
            limit_s = self._seconds(extents[number], points[near[:1]])[0] * extents[number] / extents[first]
            candidates = points[times <= limit_s * (1.0 + 1e-9)]
            seconds = self._seconds(extents[number], candidates)
            self._best_s[number] = seconds.min()
            self._programs[tuple(candidates[seconds.argmin()].tolist())] = None

    def times(self, programs: Sequence[Program]) -> Floats:
        """Return seconds of programs at every extent; see `ProgramFamily.times`."""
        points = np.array(programs, dtype=np.int64)
        return np.stack([self._seconds(extent, points) for extent in self.workload.extents], axis=1)

    def bounds(self, limits_s: Floats, watch: Watch) -> FamilyBounds:
        """Return the best times that are known, and lower bounds at other extents; see `ProgramFamily.bounds`."""
        self._find_best_times(watch)
        least = np.array([self._model_at(extent).floor_s for extent in self.workload.extents])
        is_known = self._best_s > 0.0
        return FamilyBounds(np.minimum(np.where(is_known, self._best_s, least), limits_s), (), bool(is_known.all()))

    def schedule(self, program: Program, extent: int) -> Schedule:
        """Return a program as the schedule of one extent; see `ProgramFamily.schedule`."""
        space = self._model_at(extent).space
        values = dict(zip(self._columns, program, strict=True))  # type: ignore[call-overload]
        return space.schedule_of([values[column] for column in space.columns])
