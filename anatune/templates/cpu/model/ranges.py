"""CPU programs for a range of extents: candidates, their times, and bounds.

A program has the whole ranged axis in loops of one level (`cpu.range_space`). Its nest at an extent is a point of the
space of that extent, so the time that the model predicts for the point is that of the program. Bounds hold for every
schedule of the template at an extent, also for those with loops of several levels along the axis. So a proven loss is
relative to the plan of the single extent.

At a prime extent, all schedules have the axis in loops of one level, so the best ones are programs. Therefore
candidates come from prime extents if the range has any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.ranges import RangedWorkload
from anatune.errors import SpaceError
from anatune.numerics.columns import Ints
from anatune.templates.base.family import FamilyBounds, Floats, Program, ProgramFamily
from anatune.templates.base.watch import Watch
from anatune.templates.cpu.microkernels import constant_tensors
from anatune.templates.cpu.model.groups import least_seconds
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.model.order import STEP
from anatune.templates.cpu.model.ranking import EXHAUSTIVE_LIMIT
from anatune.templates.cpu.model.search import Search
from anatune.templates.cpu.range_space import calls_of, check_axis, most_elements, schedule_at
from anatune.templates.cpu.rules import ORDER_LEVELS, lanes_of, pair_of, words_of
from anatune.templates.cpu.times.classes import KEY_TIE
from anatune.templates.cpu.times.microkernel import CpuRule

__all__ = ["CpuFamily"]

_STEP = 1.5
"""Ratio of neighbouring extents whose best schedules become candidates."""
_TOP = 6
"""Number of schedules taken from each of these extents."""
_MOST_SEARCHED, _WORTH_SEARCHING, _UNSEARCHED = 64, 1.005, 0.5
"""Parameters of the search for bounds.

Most extents that are searched; how much further from the limits their bounds must be than that of the next extent,
which is not searched (below, a search would prove nothing); the share of progress for bounds without a search.
"""


class _ExtentModels(NamedTuple):
    """The models of one extent. `model` has the SIMD axis and constants of the programs."""

    model: CpuModel
    single: CpuModel
    """The model of the single extent, with its own SIMD axis and constants."""
    least_s: float


class _ProgramNests(NamedTuple):
    """Points of programs, as functions of the extent.

    Attributes
    ----------
    model : CpuModel
        The model of one extent.
    axis : str
    there : (num_programs, num_columns) int64
        The points at that extent.
    most : (num_programs,) int64
        Most elements of a call; 0 for a loop of single iterations.
    """

    model: CpuModel
    axis: str
    there: Ints
    most: Ints

    def fits(self, model: CpuModel) -> bool:
        """Return whether the columns of points have the same meaning at another extent."""
        space, other = self.model.space, model.space
        is_same = space.columns == other.columns and space.orders == other.orders
        return is_same and self.model.workload.extents[self.axis] > 1

    def points(self, extent: int) -> Ints:
        """Return the points at another extent, as `cpu.range_space.schedule_at` defines them."""
        columns = self.model.space.columns
        levels = [columns.index(f"{self.axis}.{level}") for level in self.model.space.levels[self.axis]]
        points, in_calls = self.there.copy(), self.most > 0
        outside = points[:, levels]
        points[:, levels] = np.where(in_calls[:, None], 1, np.where(outside > 1, extent, 1))
        calls = -(-extent // np.maximum(self.most, 1))
        divides = extent % calls == 0
        points[in_calls, levels[-1]] = np.where(divides, extent // calls, extent)[in_calls]
        points[in_calls, levels[-2]] = np.where(divides, calls, 1)[in_calls]
        pair = f"pair.{self.axis}"
        if pair in columns:
            points[in_calls, columns.index(pair)] = np.where(divides, 0, calls)[in_calls]
        return points


class CpuFamily(ProgramFamily):
    """The programs of the template "cpu". A program is its `Schedule` at the largest extent.

    Raises
    ------
    SpaceError
        Addresses depend on the extent of the axis, or it is vectorised.
    """

    template = "cpu"
    hardware: CpuSpec

    def __init__(self, workload: RangedWorkload, hardware: GpuSpec | CpuSpec) -> None:
        super().__init__(workload, hardware)
        largest, axis = workload.largest, workload.axis
        check_axis(largest, axis)
        self.constants = constant_tensors(largest)
        space = self._model(workload.extents[-1], None).space
        self._simd = space.simd_axis
        if self._simd == axis:
            raise SpaceError(f"{largest.operator}: {axis} has no range on CPUs: the schedules vectorise it")
        self._models: dict[int, _ExtentModels] = {}
        self._proven_s: dict[int, float] = {}

    def _model(self, extent: int, simd: str | None) -> CpuModel:
        return CpuModel(self.workload.at(extent), self.hardware, simd=simd, constants=self.constants)

    def _models_at(self, extent: int) -> _ExtentModels:
        if extent not in self._models:
            single = model = CpuModel(self.workload.at(extent), self.hardware)
            least_s = least_seconds(single)
            if single.space.simd_axis != self._simd or constant_tensors(single.workload) != self.constants:
                model = self._model(extent, self._simd)
                least_s = min(least_s, least_seconds(model))
            self._models[extent] = _ExtentModels(model, single, least_s)
        return self._models[extent]

    def candidates(self, watch: Watch) -> Sequence[Program]:
        """Return the best programs of some extents, each with every possible number of elements of a call.

        See `ProgramFamily.candidates`.
        """
        programs: dict[str, Schedule] = {}
        extents = list(self._sample_extents())
        for number, extent in enumerate(extents):
            model = self._models_at(extent).model
            for point in model.rank(_TOP, watch.left_s, distinct=True).points:
                for schedule in self._add_axis_to_orders(model.space.schedule_of(point)):
                    for program in self._programs(schedule):
                        programs.setdefault(program.key, program)
            watch.report((number + 1) / len(extents))
            if watch.is_over and programs:
                break
        return list(programs.values())

    def _sample_extents(self) -> Iterator[int]:
        """Yield extents from the whole range. The largest one is first: its best schedule suits most others."""
        extents = self.workload.extents
        primes = [extent for extent in extents if _is_prime(extent)] or list(extents)
        sampled, reached = [], math.inf
        for extent in reversed(primes):
            if extent * _STEP <= reached:
                sampled.append(extent)
                reached = extent
        return iter(dict.fromkeys((*sampled, extents[0], extents[-1])))

    def _add_axis_to_orders(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield a schedule with the ranged axis in all orders. An axis of one iteration is in none, so it is added."""
        axis, space = self.workload.axis, self._models_at(self.workload.extents[-1]).model.space
        if schedule.workload.extents[axis] > 1:
            yield schedule
            return
        for position in ("before", "behind"):
            options = dict(schedule.options)
            for level in ORDER_LEVELS:
                order = words_of(schedule, f"order.{level}")
                options[f"order.{level}"] = (axis, *order) if position == "before" else (*order, axis)
            if all(options[f"order.{level}"] in space.orders[level] for level in ORDER_LEVELS):
                yield _replace_options(schedule, options)

    def _programs(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield the programs that follow from a schedule of one extent."""
        axis, last = self.workload.axis, self.workload.extents[-1]
        try:
            most = most_elements(schedule, axis)
        except SpaceError:
            return
        if any(factor > 1 for factor in schedule.tiles[axis][:-2]):
            yield schedule_at(schedule, axis, last)
            return
        registers = self.hardware.compute.num_vector_registers
        vectors = 1
        for other in schedule.workload.spatial_axes:
            if other.name != axis:
                size = calls_of(schedule, other.name)[1]
                in_elements = other.name == self._simd and pair_of(schedule, other.name) is None
                vectors *= -(-size // lanes_of(schedule)) if in_elements else size
        for number in sorted({most, *range(1, registers // vectors + 1)}):
            yield schedule_at(_replace_options(schedule, {**schedule.options, f"most.{axis}": number}), axis, last)

    def times(self, programs: Sequence[Program]) -> Floats:
        """Return the times of programs, see `ProgramFamily.times`."""
        schedules = cast(Sequence[Schedule], programs)
        axis, last = self.workload.axis, self.workload.extents[-1]
        most = [most_elements(schedule, axis) if _in_calls(schedule, axis) else 0 for schedule in schedules]
        last_model = self._models_at(last).model
        nests = _ProgramNests(last_model, axis, _points(last_model, schedules), np.array(most, dtype=np.int64))
        seconds = np.full((len(schedules), len(self.workload.extents)), np.inf)
        for index, extent in enumerate(self.workload.extents):
            model = self._models_at(extent).model
            if nests.fits(model):
                points = nests.points(extent)
            else:
                points = _points(model, [self.schedule(schedule, extent) for schedule in schedules])
            times, rules = model.times(points)
            # one chunk breaks the rule parallel_cores, which programs need not keep at every extent
            seconds[:, index] = np.where((rules == 0) | (rules == CpuRule.parallel_cores), times, np.inf)
        return seconds

    def bounds(self, limits_s: Floats, watch: Watch) -> FamilyBounds:
        """Prove bounds for every schedule of the template at each extent, ranged or not, see `ProgramFamily.bounds`.

        Bounds without a search come first. Then the extents whose bounds are furthest from the limits are searched.
        """
        extents = self.workload.extents
        least, is_complete = np.zeros(len(extents)), True
        for index, extent in enumerate(extents):
            if extent not in self._models and watch.is_over:  # models that `times` made are at hand
                return FamilyBounds(np.minimum(least, limits_s), is_complete=False)
            least[index] = self._models_at(extent).least_s
            watch.report(_UNSEARCHED * (index + 1) / len(extents))
        looseness = np.where(np.isfinite(limits_s), limits_s, least) / least
        order = np.argsort(-looseness, kind="stable").tolist()
        threshold = max(1.0, float(looseness[order[_MOST_SEARCHED]])) if len(order) > _MOST_SEARCHED else 1.0
        searched = [at for at in order[:_MOST_SEARCHED] if looseness[at] > _WORTH_SEARCHING * threshold]
        for number, index in enumerate(searched):
            if extents[index] in self._proven_s:
                continue
            if watch.is_over:
                is_complete = False
                break
            self._proven_s[extents[index]] = self._search(extents[index], watch)
            watch.report(_UNSEARCHED + (1.0 - _UNSEARCHED) * (number + 1) / len(searched))
        proven = np.array([self._proven_s.get(extent, 0.0) for extent in extents])
        return FamilyBounds(np.minimum(np.maximum(least, proven), limits_s), is_complete=is_complete)

    def _search(self, extent: int, watch: Watch) -> float:
        """Return the least time of any schedule at an extent, up to a tie step; 0.0 if the time limit is reached."""
        model = self._models_at(extent).single
        if model.space.size <= EXHAUSTIVE_LIMIT:
            return float(model.times(model.rank(1).points)[0][0])
        search = Search(model, 1, watch.part(0.0, 0.0))
        return math.exp(float(search.heap[0, KEY_TIE]) * STEP) if search.gap is None and search.count else 0.0

    def schedule(self, program: Program, extent: int) -> Schedule:
        """Return a program as the schedule of one extent, see `ProgramFamily.schedule`."""
        return schedule_at(cast(Schedule, program), self.workload.axis, extent)


def _replace_options(schedule: Schedule, options: Mapping[str, OptionValue]) -> Schedule:
    fields = {name: getattr(schedule, name) for name in schedule.__struct_fields__}
    return Schedule(**{**fields, "options": options})


def _points(model: CpuModel, schedules: Sequence[Schedule]) -> Ints:
    """Return the points of schedules of a model's workload, (num_schedules, num_columns) int64."""
    width = len(model.space.columns)
    return np.array([model.space.point_of(schedule) for schedule in schedules], dtype=np.int64).reshape(-1, width)


def _in_calls(schedule: Schedule, axis: str) -> bool:
    """Return whether the loop of the axis consists of microkernel calls."""
    return all(factor == 1 for factor in schedule.tiles[axis][:-2])


def _is_prime(number: int) -> bool:
    return number < 4 or all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
