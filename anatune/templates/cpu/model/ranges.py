"""Programs of CPUs for a range of extents: which are worth a choice, their times, and what no schedule undercuts.

A program has the whole ranged axis in loops of one level (`cpu.range_space`); its nest at an extent is a point of
that extent's own space, so that the model's time of the point is the program's. Bounds hold for every schedule of the
template at an extent, those with several levels of loops along the axis included, so that a proven loss is one against
the plan of the single shape.

At an extent that is prime, the axis has loops of one level in all schedules: the best ones there are programs as they
stand. Extents that are looked at are prime where the range has primes.
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
from anatune.templates.base.family import Bounds, Floats, Program, ProgramFamily
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
"""Ratio of neighbouring extents whose best schedules are looked at."""
_TOP = 6
"""Schedules that are taken of each."""
_MOST_SEARCHED, _WORTH_SEARCHING, _UNSEARCHED = 64, 1.005, 0.5
"""Most extents that are searched; how much further from the limits their bounds are than those of the next ones, which
are not searched: less would prove nothing; share of the work that bounds without a search are."""


class _At(NamedTuple):
    """What one extent's model needs: of the programs' own choice of SIMD axis and constants."""

    model: CpuModel
    single: CpuModel
    """Of the single shape, with its own choice of them."""
    least_s: float


class _Nests(NamedTuple):
    """Points of programs, as functions of the extent.

    Attributes
    ----------
    model : CpuModel
        Of one extent.
    axis : str
    there : (num_programs, num_columns) int64
        The points at that extent.
    most : (num_programs,) int64
        Most elements of a call; 0: a loop of single iterations.
    """

    model: CpuModel
    axis: str
    there: Ints
    most: Ints

    def fits(self, model: CpuModel) -> bool:
        """Whether points mean the same at another extent."""
        own, other = self.model.space, model.space
        return (
            own.columns == other.columns and own.orders == other.orders and self.model.workload.extents[self.axis] > 1
        )

    def points(self, extent: int) -> Ints:
        """Return the points at another extent, as `cpu.range_space.schedule_at` has them."""
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
    """The programs of the template "cpu"; a program is its `Schedule` at the largest extent.

    Raises
    ------
    SpaceError
        Addresses depend on the extent of the axis, or vectors run along it.
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
            raise SpaceError(f"{largest.operator}: no range of {axis} on CPUs: vectors run along it")
        self._known: dict[int, _At] = {}
        self._proven_s: dict[int, float] = {}

    def _model(self, extent: int, simd: str | None) -> CpuModel:
        return CpuModel(self.workload.at(extent), self.hardware, simd=simd, constants=self.constants)

    def _at(self, extent: int) -> _At:
        if extent not in self._known:
            single = model = CpuModel(self.workload.at(extent), self.hardware)
            least_s = least_seconds(single)
            if single.space.simd_axis != self._simd or constant_tensors(single.workload) != self.constants:
                model = self._model(extent, self._simd)
                least_s = min(least_s, least_seconds(model))
            self._known[extent] = _At(model, single, least_s)
        return self._known[extent]

    def candidates(self, watch: Watch) -> Sequence[Program]:
        """See `ProgramFamily`: the best at some extents, each with every number of elements that calls may have."""
        programs: dict[str, Schedule] = {}
        extents = list(self._looked_at())
        for number, extent in enumerate(extents):
            model = self._at(extent).model
            for point in model.rank(_TOP, watch.left_s, distinct=True).points:
                for schedule in self._with_loops(model.space.schedule_of(point)):
                    for program in self._programs(schedule):
                        programs.setdefault(program.key, program)
            watch.report((number + 1) / len(extents))
            if watch.is_over and programs:
                break
        return list(programs.values())

    def _looked_at(self) -> Iterator[int]:
        """Yield extents over the whole range, the largest first: what is best there serves most others well."""
        extents = self.workload.extents
        primes = [extent for extent in extents if _is_prime(extent)] or list(extents)
        wanted, reached = [], math.inf
        for extent in reversed(primes):
            if extent * _STEP <= reached:
                wanted.append(extent)
                reached = extent
        return iter(dict.fromkeys((*wanted, extents[0], extents[-1])))

    def _with_loops(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield a schedule with the loops of the axis in its orders, which those of one iteration have not."""
        axis, space = self.workload.axis, self._at(self.workload.extents[-1]).model.space
        if schedule.workload.extents[axis] > 1:
            yield schedule
            return
        for place in ("before", "behind"):
            options = dict(schedule.options)
            for level in ORDER_LEVELS:
                order = words_of(schedule, f"order.{level}")
                options[f"order.{level}"] = (axis, *order) if place == "before" else (*order, axis)
            if all(options[f"order.{level}"] in space.orders[level] for level in ORDER_LEVELS):
                yield _replaced(schedule, options)

    def _programs(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield the programs that a schedule of one extent suggests."""
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
            yield schedule_at(_replaced(schedule, {**schedule.options, f"most.{axis}": number}), axis, last)

    def times(self, programs: Sequence[Program]) -> Floats:
        """See `ProgramFamily`."""
        schedules = cast(Sequence[Schedule], programs)
        axis, last = self.workload.axis, self.workload.extents[-1]
        most = [most_elements(schedule, axis) if _in_calls(schedule, axis) else 0 for schedule in schedules]
        there = self._at(last).model
        nests = _Nests(there, axis, _points(there, schedules), np.array(most, dtype=np.int64))
        seconds = np.full((len(schedules), len(self.workload.extents)), np.inf)
        for at, extent in enumerate(self.workload.extents):
            model = self._at(extent).model
            if nests.fits(model):
                points = nests.points(extent)
            else:
                points = _points(model, [self.schedule(schedule, extent) for schedule in schedules])
            times, rules = model.times(points)
            # a loop of one chunk breaks the rule of cores: programs keep it at every extent
            seconds[:, at] = np.where((rules == 0) | (rules == CpuRule.parallel_cores), times, np.inf)
        return seconds

    def bounds(self, limits_s: Floats, watch: Watch) -> Bounds:
        """See `ProgramFamily`: no schedule of the template is faster at an extent, ranged or not.

        Bounds without a search come first; then the extents where they are furthest from the limits are searched.
        """
        extents = self.workload.extents
        least, is_complete = np.zeros(len(extents)), True
        for at, extent in enumerate(extents):
            if extent not in self._known and watch.is_over:  # what times were asked for is known
                return Bounds(np.minimum(least, limits_s), is_complete=False)
            least[at] = self._at(extent).least_s
            watch.report(_UNSEARCHED * (at + 1) / len(extents))
        loose = np.where(np.isfinite(limits_s), limits_s, least) / least
        order = np.argsort(-loose, kind="stable").tolist()
        rest = max(1.0, float(loose[order[_MOST_SEARCHED]])) if len(order) > _MOST_SEARCHED else 1.0
        wanted = [at for at in order[:_MOST_SEARCHED] if loose[at] > _WORTH_SEARCHING * rest]
        for number, at in enumerate(wanted):
            if extents[at] in self._proven_s:
                continue
            if watch.is_over:
                is_complete = False
                break
            self._proven_s[extents[at]] = self._searched(extents[at], watch)
            watch.report(_UNSEARCHED + (1.0 - _UNSEARCHED) * (number + 1) / len(wanted))
        proven = np.array([self._proven_s.get(extent, 0.0) for extent in extents])
        return Bounds(np.minimum(np.maximum(least, proven), limits_s), is_complete=is_complete)

    def _searched(self, extent: int, watch: Watch) -> float:
        """Return the least seconds of any schedule at an extent, to the step of ties; 0.0 where the time ended."""
        model = self._at(extent).single
        if model.space.size <= EXHAUSTIVE_LIMIT:
            return float(model.times(model.rank(1).points)[0][0])
        search = Search(model, 1, watch.part(0.0, 0.0))
        return math.exp(float(search.heap[0, KEY_TIE]) * STEP) if search.gap is None and search.count else 0.0

    def schedule(self, program: Program, extent: int) -> Schedule:
        """See `ProgramFamily`."""
        return schedule_at(cast(Schedule, program), self.workload.axis, extent)


def _replaced(schedule: Schedule, options: Mapping[str, OptionValue]) -> Schedule:
    fields = {name: getattr(schedule, name) for name in schedule.__struct_fields__}
    return Schedule(**{**fields, "options": options})


def _points(model: CpuModel, schedules: Sequence[Schedule]) -> Ints:
    """Return the points of schedules of a model's workload, (num_schedules, num_columns) int64."""
    width = len(model.space.columns)
    return np.array([model.space.point_of(schedule) for schedule in schedules], dtype=np.int64).reshape(-1, width)


def _in_calls(schedule: Schedule, axis: str) -> bool:
    """Whether the axis's loop is one of calls of microkernels."""
    return all(factor == 1 for factor in schedule.tiles[axis][:-2])


def _is_prime(number: int) -> bool:
    return number < 4 or all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
