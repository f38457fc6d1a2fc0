"""Programs of the template "cuda" for a range of extents: candidates, times, and proofs that nothing is faster.

A program is a tiling whose block along the ranged axis may have any size up to a limit (`ranged_tiles`). Its time at an
extent is the time of the ordinary model. The proofs use the bounds of macro choices, as the ranking of a single extent
does (`ranking`). A program never gets faster with more iterations, so that a bound at one extent holds for all larger
extents. An interval of extents for which this bound is too low is halved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.ranges import RangedWorkload
from anatune.templates.base.family import FamilyBounds, Program, ProgramFamily
from anatune.templates.base.watch import Watch
from anatune.templates.cuda.model.ranged_tiles import MACRO_BOUND, PREDICT, Floats, Macros, Points, RangedTiles
from anatune.templates.gpu.rules import check_formats

__all__ = ["CudaRanges"]

Singles = NDArray[np.float32]
Kind = TypeVar("Kind", bound=np.generic)

OCTAVE = 2.0
"""Largest ratio of the lower bounds of the extents in an octave, an interval whose proof begins with all macro
choices."""
KEPT = 2.4
"""Macro choices of an octave are kept if their bound at its first extent is at most the best bound times this."""
PROBES_AN_OCTAVE = 8
"""Number of extents of an octave whose best programs become candidates."""
TRIED = 256
"""Number of macro choices (best bounds first) whose splits are bounded at such an extent."""
EXPANDED = 24
"""Number of macro choices with a split (best bounds first) whose points are evaluated at such an extent."""
NEAR = 1.12
"""Programs become candidates if their time at an extent is at most the best time times this."""
SHORT = 1.02
"""Ratio of the extents of an interval below which points are bounded instead of macro choices."""
LOOSE = 64
"""Length of an interval below which macro choices are bounded with their splits, at each extent that adds a block."""
MOST_SPLIT = 1_000_000
"""Most macro choices with a split that are bounded together."""
MOST_SHARED = 1 << 26
"""Most macro choices for which the bounds of the first octave are stored, 4 bytes each."""
MOST_TRIED = 300_000
"""Most macro choices of an octave (best bounds first) that are bounded at the extents of candidates."""
MOST_FASTER = 64
"""Most programs that a proof returns."""


class _Octave:
    """An interval of extents, numbers `first` to `last`, and its macro choices with a bound up to `cut_s`.

    `bound_choices` fills it slab by slab. Until it is done, `cut_s` is a time that no program beats. The first octave
    stores its bounds in the list `shared`, which later octaves read.
    """

    def __init__(
        self, tiles: RangedTiles, numbers: Points, first: int, last: int, floor_s: float, shared: list[Singles]
    ) -> None:
        self.first, self.last = first, last
        self._shared = shared
        self._tiles, self._numbers, self._extent = tiles, numbers, int(numbers[first])
        self._slabs_bounded, self._best = 0, np.inf
        self._kept = [(np.empty((0, len(tiles.options)), dtype=np.int32), np.empty(0))]
        self.cut_s = floor_s

    @property
    def is_done(self) -> bool:
        """True if all macro choices have been bounded."""
        return self._slabs_bounded == self._tiles.num_slabs

    @property
    def macros(self) -> Macros:
        """Macro choices near the best bound, (count, num_axes)."""
        return self._join()[0]

    @property
    def bounds(self) -> Floats:
        """Bounds of these macro choices at the first extent, in seconds."""
        return self._join()[1]

    def bound_choices(self, watch: Watch) -> None:
        """Bound the remaining macro choices until the time is up. The first call bounds at least one slab."""
        while not self.is_done and not (self._slabs_bounded and watch.is_over):
            macros = self._tiles.slab(self._slabs_bounded)
            earlier_bounds = self._shared[self._slabs_bounded] if self._slabs_bounded < len(self._shared) else None
            if earlier_bounds is not None:
                # A bound at a smaller extent holds here, too: macro choices far from the best need no new bound.
                macros = macros[np.isfinite(earlier_bounds) & (earlier_bounds <= KEPT * self._best)]
            bounds = self._tiles.bounds(self._extent, macros)
            if earlier_bounds is None and self.first == 0 and self._tiles.num_macros <= MOST_SHARED:
                self._shared.append(np.nextafter(bounds.astype(np.float32), np.float32(0.0)))
            self._best = min(self._best, float(bounds.min(initial=np.inf)))
            self._kept.append(_select_below(KEPT * self._best, macros, bounds))
            self._slabs_bounded += 1
            watch.report(self._slabs_bounded / self._tiles.num_slabs)
        if self.is_done:
            self.cut_s = KEPT * self._best

    def split(self, count: int) -> _Octave:
        """Cut the interval after its first `count` extents. Return the rest as an octave."""
        middle, last = self.first + count, self.last
        self.last = middle - 1
        return _Octave(
            self._tiles, self._numbers, middle, last, self._tiles.least_time_s(int(self._numbers[middle])), self._shared
        )

    def _join(self) -> tuple[Macros, Floats]:
        if len(self._kept) > 1:
            macros, bounds = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
            self._kept = [_select_below(KEPT * self._best, macros, bounds)]
        return self._kept[0]


class CudaRanges(ProgramFamily):
    """The programs of the template "cuda"; otherwise like `ProgramFamily`.

    Raises
    ------
    SpaceError
        The workload's number formats have no kernel in CUDA C.
    """

    template: ClassVar[str] = "cuda"

    def __init__(self, workload: RangedWorkload, hardware: GpuSpec) -> None:
        check_formats(workload.largest)
        super().__init__(workload, hardware)
        self._tiles = RangedTiles(workload, hardware)
        self._all_octaves: list[_Octave] | None = None
        self._times: dict[Program, Floats] = {}
        self._proven: Floats = np.zeros(len(workload.numbers))

    # ---- candidates ----------------------------------------------------------------------------------------

    def candidates(self, watch: Watch) -> Sequence[Program]:
        """Return the best programs of a few extents of each octave; see `ProgramFamily.candidates`."""
        programs: dict[Program, None] = {}
        octaves = self._octaves(watch.part(0.0, 0.6))
        tiles = self._tiles
        splits = tiles.splits[tiles.splits[:, 1] == 0]
        for number, octave in enumerate(octaves):
            macros = octave.macros
            if len(macros) > MOST_TRIED:
                macros = macros[np.argpartition(octave.bounds, MOST_TRIED)[:MOST_TRIED]]
            for position in _choose_probes(octave.first, octave.last, self.workload.numbers):
                extent = int(self.workload.numbers[position])
                order = np.argsort(tiles.bounds(extent, macros), kind="stable")[:TRIED]
                programs |= dict.fromkeys(map(tuple, self._find_best_points(extent, macros[order], splits).tolist()))
                if watch.is_over and programs:
                    return list(programs)
            watch.report(0.6 + 0.4 * (number + 1) / len(octaves))
        return list(programs)

    def _find_best_points(self, extent: int, macros: Macros, splits: Points) -> Points:
        """Return the best points near the best time at an extent, one for each of the best macro choices and splits."""
        rows = self._tiles.split(macros, splits)
        bounds = self._tiles.run(extent, rows, MACRO_BOUND)
        order = np.argsort(bounds, kind="stable")[:EXPANDED]
        points, times, best = [], [], np.inf
        for number in order:
            if bounds[number] > NEAR * best:
                break
            point, time_s = self._tiles.find_best(extent, rows[number], NEAR * best)
            if point is not None:
                points.append(point)
                times.append(time_s)
                best = min(best, time_s)
        is_near = np.array(times) <= NEAR * best
        return np.array(points)[is_near] if points else np.empty((0, rows.shape[1]), dtype=np.int64)

    def _octaves(self, watch: Watch) -> list[_Octave]:
        """Return the octaves of the range, with their macro choices near the best bound, until the time limit."""
        numbers = self.workload.numbers
        if self._all_octaves is None:
            floors = np.array([self._tiles.least_time_s(extent) for extent in numbers.tolist()])
            shared: list[Singles] = []
            self._all_octaves, first = [], 0
            while first < len(numbers):
                last = int(np.searchsorted(floors, OCTAVE * floors[first], side="right")) - 1
                last = max(first, last)
                self._all_octaves.append(_Octave(self._tiles, numbers, first, last, float(floors[first]), shared))
                first = last + 1
            self._proven[:] = floors
        for number, octave in enumerate(self._all_octaves):
            limit_s = None if watch.left_s is None else watch.left_s / (len(self._all_octaves) - number)
            octave.bound_choices(
                watch.part(number / len(self._all_octaves), (number + 1) / len(self._all_octaves), limit_s)
            )
        return self._all_octaves

    # ---- times ---------------------------------------------------------------------------------------------

    def times(self, programs: Sequence[Program]) -> Floats:
        """Return seconds of programs at every extent; see `ProgramFamily.times`."""
        new = [program for program in programs if program not in self._times]
        if new:
            table = np.empty((len(new), len(self.workload.numbers)))
            points = np.array(new, dtype=np.int64)
            for number, extent in enumerate(self.workload.numbers.tolist()):
                table[:, number] = self._tiles.run(extent, points, PREDICT)
            self._times |= dict(zip(new, table, strict=True))
        return np.array([self._times[program] for program in programs])

    # ---- proofs --------------------------------------------------------------------------------------------

    def bounds(self, limits_s: Floats, watch: Watch) -> FamilyBounds:
        """Return times that no program beats, up to the limits; see `ProgramFamily.bounds`."""
        proof = _Proof(self._tiles, self.workload.numbers, limits_s, self._proven)
        limit_s = None if watch.left_s is None else 0.5 * watch.left_s
        octaves = self._octaves(watch.part(0.0, 0.1, limit_s))
        for octave in octaves:
            part = slice(octave.first, octave.last + 1)
            over = np.flatnonzero(limits_s[part] > octave.cut_s)
            if octave.is_done and len(over) and over[0]:
                # Here the limits rise faster than the bounds, so that the later extents need more macro choices.
                octaves.insert(octaves.index(octave) + 1, octave.split(int(over[0])))
            octave.bound_choices(watch.part(0.1, 0.1))
            proof.is_complete &= octave.is_done
            remaining_watch = watch.part(0.1, 1.0)
            proof.bound_interval(octave.first, octave.last, octave.macros, octave.bounds, octave.cut_s, remaining_watch)
        return FamilyBounds(np.minimum(proof.seconds, limits_s), tuple(proof.faster), proof.is_complete)

    def schedule(self, program: Program, extent: int) -> Schedule:
        """Return a program as the schedule of one extent; see `ProgramFamily.schedule`."""
        point = self._tiles.fit_to_extent(extent, np.array([program], dtype=np.int64))[0].tolist()
        return msgspec.structs.replace(self._tiles.space.cuda_schedule(point), workload=self.workload.at(extent))


class _Proof:
    """Bounds at every extent, which are filled interval by interval. `seconds` begins with what is already proven."""

    def __init__(self, tiles: RangedTiles, numbers: Points, limits_s: Floats, seconds: Floats) -> None:
        self._tiles, self._numbers, self._limits, self.seconds = tiles, numbers, limits_s, seconds
        self.faster: dict[Program, None] = {}
        self.is_complete = True

    def bound_interval(self, first: int, last: int, macros: Macros, bounds: Floats, cut_s: float, watch: Watch) -> None:
        """Bound the extents of an interval. `macros` are the choices whose bound there may be below `cut_s`."""
        macros, bounds = self._filter_open(first, last, macros, bounds, cut_s, watch)
        if not len(macros):
            return
        tiles = self._tiles
        low, high = int(self._numbers[first]), int(self._numbers[last])
        if first == last or (high - low < LOOSE and len(macros) * len(tiles.splits) <= MOST_SPLIT):
            rows, row_bounds = tiles.find_rows_below(low, high, macros, self._largest_limit(first, last, cut_s))
            self._bound_rows(first, last, rows, row_bounds, cut_s, watch)
            return
        middle = self._middle(first, last)
        self.bound_interval(first, middle - 1, macros, bounds, cut_s, watch)
        self.bound_interval(middle, last, macros, tiles.bounds(int(self._numbers[middle]), macros), cut_s, watch)

    def _bound_rows(self, first: int, last: int, rows: Points, bounds: Floats, cut_s: float, watch: Watch) -> None:
        """Bound the extents of an interval, given macro choices with a split. These bounds are much sharper."""
        rows, bounds = self._filter_open(first, last, rows, bounds, cut_s, watch)
        if not len(rows):
            return
        low, high = int(self._numbers[first]), int(self._numbers[last])
        if first == last:
            self._solve_extent(first, rows, min(float(self._limits[first]), cut_s))
            return
        if high <= SHORT * low:
            points = self._tiles.expand(low, high, rows, self._largest_limit(first, last, cut_s))
            if points is not None:
                times = self._tiles.lowest_times(low, high, points, PREDICT)
                self._bound_points(first, last, points, times, cut_s, watch)
                return
        middle = self._middle(first, last)
        self._bound_rows(first, middle - 1, rows, bounds, cut_s, watch)
        bounds = self._tiles.lowest_times(int(self._numbers[middle]), high, rows, MACRO_BOUND)
        self._bound_rows(middle, last, rows, bounds, cut_s, watch)

    def _middle(self, first: int, last: int) -> int:
        """Return the position that divides an interval of several extents: the first extent of its second half."""
        between = np.sqrt(self._numbers[first] * self._numbers[last])
        middle = int(np.searchsorted(self._numbers, between, side="left"))
        return min(max(middle, first + 1), last)

    def _solve_extent(self, position: int, rows: Points, limit_s: float) -> None:
        """Find the best time at one extent, if it is below a limit."""
        tiles, extent = self._tiles, int(self._numbers[position])
        best = limit_s
        is_loose = rows[:, -2] > 0
        for part, is_program in ((rows[~is_loose], True), (rows[is_loose], False)):
            fastest = None
            bounds = tiles.run(extent, part, MACRO_BOUND)
            part, bounds = _select_below(best, part, bounds)
            for number in np.argsort(bounds, kind="stable"):
                if bounds[number] >= best:
                    break
                point, best = tiles.find_best(extent, part[number], best)
                fastest = point if point is not None else fastest
            # Leftovers depend on the extent: such points are references for other programs, not programs.
            if is_program and fastest is not None and len(self.faster) < MOST_FASTER:
                self.faster[tuple(fastest.tolist())] = None
        self.seconds[position] = best

    def _bound_points(self, first: int, last: int, points: Points, times: Floats, cut_s: float, watch: Watch) -> None:
        """Bound the extents of an interval, given points that may be fast enough and their bounds there."""
        points, times = self._filter_open(first, last, points, times, cut_s, watch)
        if not len(points):
            return
        if first == last:
            limit_s = min(float(self._limits[first]), cut_s)
            exact = self._tiles.run(int(self._numbers[first]), points, PREDICT)
            self.seconds[first] = min(limit_s, float(exact.min()))
            program_times = np.where(points[:, -2] == 0, exact, np.inf)
            if program_times.min() < limit_s and len(self.faster) < MOST_FASTER:
                self.faster[tuple(points[program_times.argmin()].tolist())] = None
        else:
            middle = (first + last + 1) // 2
            self._bound_points(first, middle - 1, points, times, cut_s, watch)
            times = self._tiles.lowest_times(int(self._numbers[middle]), int(self._numbers[last]), points, PREDICT)
            self._bound_points(middle, last, points, times, cut_s, watch)

    def _largest_limit(self, first: int, last: int, cut_s: float) -> float:
        """Return the largest limit in an interval that is not yet proven."""
        limits = np.minimum(self._limits[first : last + 1], cut_s)
        return float(np.where(self.seconds[first : last + 1] < limits, limits, 0.0).max())

    def _filter_open(
        self, first: int, last: int, rows: NDArray[Kind], bounds: Floats, cut_s: float, watch: Watch
    ) -> tuple[NDArray[Kind], Floats]:
        """Return the rows that may still beat the limits of an interval. When the time is up, return none."""
        watch.report(first / len(self._numbers))
        part = slice(first, last + 1)
        proven = np.minimum(self._limits[part], cut_s)
        rows, bounds = _select_below(self._largest_limit(first, last, cut_s), rows, bounds)
        if len(rows) and watch.is_over:
            proven = np.minimum(proven, bounds.min())
            self.is_complete, rows = False, rows[:0]
        if not len(rows):
            self.seconds[part] = np.maximum(self.seconds[part], proven)
        return rows, bounds


def _select_below(limit_s: float, rows: NDArray[Kind], bounds: Floats) -> tuple[NDArray[Kind], Floats]:
    """Return the rows whose bound is below a limit, and these bounds."""
    inside = bounds < limit_s
    return rows[inside], bounds[inside]


def _choose_probes(first: int, last: int, numbers: Points) -> list[int]:
    """Return the positions of a few extents of an octave."""
    targets = np.geomspace(numbers[first], numbers[last], PROBES_AN_OCTAVE)
    places = np.searchsorted(numbers[first : last + 1], targets.round()).clip(0, last - first) + first
    return [int(place) for place in np.unique(places)]
