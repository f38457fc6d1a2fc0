"""Programs of the template "cuda" for a range of extents: candidates, times, and proofs that nothing is faster.

A program is a tiling whose block along the ranged axis has any size up to a limit (`ranged_tiles`), with everything
else fixed. Times of single shapes are those of the ordinary model, evaluated at every extent. What no program of any
tiling can beat is found as in the ranking of one shape, by bounds of macro choices; as a program never gets faster with
more iterations, a bound at an extent holds for all larger ones, and intervals are halved where that is not enough.
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
from anatune.templates.base.family import Bounds, Program, ProgramFamily
from anatune.templates.base.watch import Watch
from anatune.templates.cuda.model.ranged_tiles import MACRO_BOUND, PREDICT, Floats, Macros, Points, RangedTiles
from anatune.templates.gpu.rules import check_formats

__all__ = ["CudaRanges"]

Singles = NDArray[np.float32]
Kind = TypeVar("Kind", bound=np.generic)

OCTAVE = 2.0
"""Ratio of the least times of the extents of an interval whose bounds begin with all macro choices."""
KEPT = 2.4
"""Macro choices of an octave that are kept: up to so many times the best bound at its first extent."""
PROBES_AN_OCTAVE = 8
"""Extents of an octave whose best programs are candidates."""
TRIED = 256
"""Macro choices, best bounds first, whose splits are looked at there."""
EXPANDED = 24
"""Macro choices with a split, best bounds first, whose programs are looked at there."""
NEAR = 1.12
"""Programs up to so many times the best time of an extent are candidates."""
SHORT = 1.02
"""Ratio of the extents of an interval below which single programs are looked at, no longer macro choices."""
LOOSE = 64
"""Extents of an interval of which leftovers are looked at together: at each extent where blocks join."""
MOST_SPLIT = 1_000_000
"""Macro choices with a split that are bounded together."""
MOST_SHARED = 1 << 26
"""Macro choices of whose bounds those of the first interval are kept, 4 bytes each."""
MOST_TRIED = 300_000
"""Macro choices of an octave, best bounds first, that are bounded at extents of candidates."""
MOST_FASTER = 64
"""Programs that a proof returns at most."""


class _Octave:
    """An interval of extents, their numbers `first` to `last`, and its macro choices up to a bound of `cut_s`.

    `look` fills it, part by part: until it is done, `cut_s` is what no program at all beats. The first interval leaves
    its bounds, part by part, in the list that all `shared`.
    """

    def __init__(
        self, tiles: RangedTiles, numbers: Points, first: int, last: int, floor_s: float, shared: list[Singles]
    ) -> None:
        self.first, self.last = first, last
        self._shared = shared
        self._tiles, self._numbers, self._extent = tiles, numbers, int(numbers[first])
        self._looked, self._best = 0, np.inf
        self._kept = [(np.empty((0, len(tiles.options)), dtype=np.int32), np.empty(0))]
        self.cut_s = floor_s

    @property
    def is_done(self) -> bool:
        """Whether all macro choices have been looked at."""
        return self._looked == self._tiles.num_slabs

    @property
    def macros(self) -> Macros:
        """Those near the best bound, (count, num_axes)."""
        return self._joined()[0]

    @property
    def bounds(self) -> Floats:
        """Their bounds at the first extent, s."""
        return self._joined()[1]

    def look(self, watch: Watch) -> None:
        """Look at what is left, at least at one part in the first call, until the time is up."""
        while not self.is_done and not (self._looked and watch.is_over):
            macros = self._tiles.slab(self._looked)
            known = self._shared[self._looked] if self._looked < len(self._shared) else None
            if known is not None:
                # A bound at a smaller extent holds here, and spares the work where nothing can be near the best.
                macros = macros[np.isfinite(known) & (known <= KEPT * self._best)]
            found = self._tiles.bounds(self._extent, macros)
            if known is None and self.first == 0 and self._tiles.num_macros <= MOST_SHARED:
                self._shared.append(np.nextafter(found.astype(np.float32), np.float32(0.0)))
            self._best = min(self._best, float(found.min(initial=np.inf)))
            self._kept.append(_below(KEPT * self._best, macros, found))
            self._looked += 1
            watch.report(self._looked / self._tiles.num_slabs)
        if self.is_done:
            self.cut_s = KEPT * self._best

    def split(self, count: int) -> _Octave:
        """Return the extents behind the first `count` ones as an interval of their own, which this one loses."""
        middle, last = self.first + count, self.last
        self.last = middle - 1
        return _Octave(
            self._tiles, self._numbers, middle, last, self._tiles.floor(int(self._numbers[middle])), self._shared
        )

    def _joined(self) -> tuple[Macros, Floats]:
        if len(self._kept) > 1:
            macros, bounds = (np.concatenate(parts) for parts in zip(*self._kept, strict=True))
            self._kept = [_below(KEPT * self._best, macros, bounds)]
        return self._kept[0]


class CudaRanges(ProgramFamily):
    """The programs of the template "cuda"; otherwise as `ProgramFamily`.

    Raises
    ------
    SpaceError
        The workload's number formats are not for GPUs.
    """

    template: ClassVar[str] = "cuda"

    def __init__(self, workload: RangedWorkload, hardware: GpuSpec) -> None:
        check_formats(workload.largest)
        super().__init__(workload, hardware)
        self._tiles = RangedTiles(workload, hardware)
        self._known: list[_Octave] | None = None
        self._times: dict[Program, Floats] = {}
        self._proven: Floats = np.zeros(len(workload.numbers))

    # ---- candidates ----------------------------------------------------------------------------------------

    def candidates(self, watch: Watch) -> Sequence[Program]:
        """Return the best programs of a few extents of each octave; see `ProgramFamily.candidates`."""
        found: dict[Program, None] = {}
        octaves = self._octaves(watch.part(0.0, 0.6))
        tiles = self._tiles
        splits = tiles.splits[tiles.splits[:, 1] == 0]
        for number, octave in enumerate(octaves):
            macros = octave.macros
            if len(macros) > MOST_TRIED:
                macros = macros[np.argpartition(octave.bounds, MOST_TRIED)[:MOST_TRIED]]
            for at in _probes(octave.first, octave.last, self.workload.numbers):
                extent = int(self.workload.numbers[at])
                order = np.argsort(tiles.bounds(extent, macros), kind="stable")[:TRIED]
                found |= dict.fromkeys(map(tuple, self._best(extent, macros[order], splits).tolist()))
                if watch.is_over and found:
                    return list(found)
            watch.report(0.6 + 0.4 * (number + 1) / len(octaves))
        return list(found)

    def _best(self, extent: int, macros: Macros, splits: Points) -> Points:
        """Return the best point of each of the best macro choices and splits at an extent, of those near the best."""
        rows = self._tiles.split(macros, splits)
        bounds = self._tiles.run(extent, rows, MACRO_BOUND)
        order = np.argsort(bounds, kind="stable")[:EXPANDED]
        points, times, best = [], [], np.inf
        for at in order:
            if bounds[at] > NEAR * best:
                break
            point, time_s = self._tiles.best_of(extent, rows[at], NEAR * best)
            if point is not None:
                points.append(point)
                times.append(time_s)
                best = min(best, time_s)
        near = np.array(times) <= NEAR * best
        return np.array(points)[near] if points else np.empty((0, rows.shape[1]), dtype=np.int64)

    def _octaves(self, watch: Watch) -> list[_Octave]:
        """Return the macro choices of each octave that are near its best bound, as far as the time allows."""
        numbers = self.workload.numbers
        if self._known is None:
            floors = np.array([self._tiles.floor(extent) for extent in numbers.tolist()])
            shared: list[Singles] = []
            self._known, first = [], 0
            while first < len(numbers):
                last = int(np.searchsorted(floors, OCTAVE * floors[first], side="right")) - 1
                last = max(first, last)
                self._known.append(_Octave(self._tiles, numbers, first, last, float(floors[first]), shared))
                first = last + 1
            self._proven[:] = floors
        for at, octave in enumerate(self._known):
            limit_s = None if watch.left_s is None else watch.left_s / (len(self._known) - at)
            octave.look(watch.part(at / len(self._known), (at + 1) / len(self._known), limit_s))
        return self._known

    # ---- times ---------------------------------------------------------------------------------------------

    def times(self, programs: Sequence[Program]) -> Floats:
        """Return seconds at every extent; see `ProgramFamily.times`."""
        new = [program for program in programs if program not in self._times]
        if new:
            table = np.empty((len(new), len(self.workload.numbers)))
            points = np.array(new, dtype=np.int64)
            for at, extent in enumerate(self.workload.numbers.tolist()):
                table[:, at] = self._tiles.run(extent, points, PREDICT)
            self._times |= dict(zip(new, table, strict=True))
        return np.array([self._times[program] for program in programs])

    # ---- proofs --------------------------------------------------------------------------------------------

    def bounds(self, limits_s: Floats, watch: Watch) -> Bounds:
        """Return what no program beats, up to the limits; see `ProgramFamily.bounds`."""
        proof = _Proof(self._tiles, self.workload.numbers, limits_s, self._proven)
        limit_s = None if watch.left_s is None else 0.5 * watch.left_s
        octaves = self._octaves(watch.part(0.0, 0.1, limit_s))
        for octave in octaves:
            part = slice(octave.first, octave.last + 1)
            over = np.flatnonzero(limits_s[part] > octave.cut_s)
            if octave.is_done and len(over) and over[0]:
                # Times rise faster than the least ones: what is behind needs more macro choices.
                octaves.insert(octaves.index(octave) + 1, octave.split(int(over[0])))
            octave.look(watch.part(0.1, 0.1))
            proof.is_complete &= octave.is_done
            rest = watch.part(0.1, 1.0)
            proof.interval(octave.first, octave.last, octave.macros, octave.bounds, octave.cut_s, rest)
        return Bounds(np.minimum(proof.seconds, limits_s), tuple(proof.faster), proof.is_complete)

    def schedule(self, program: Program, extent: int) -> Schedule:
        """Return a program as the schedule of one extent; see `ProgramFamily.schedule`."""
        point = self._tiles.at(extent, np.array([program], dtype=np.int64))[0].tolist()
        return msgspec.structs.replace(self._tiles.space.plain_schedule(point), workload=self.workload.at(extent))


class _Proof:
    """Bounds at every extent, filled interval by interval; `seconds` has what was proven before."""

    def __init__(self, tiles: RangedTiles, numbers: Points, limits_s: Floats, seconds: Floats) -> None:
        self._tiles, self._numbers, self._limits, self.seconds = tiles, numbers, limits_s, seconds
        self.faster: dict[Program, None] = {}
        self.is_complete = True

    def interval(self, first: int, last: int, macros: Macros, bounds: Floats, cut_s: float, watch: Watch) -> None:
        """Bound the extents of an interval, given the macro choices whose bound there may be below `cut_s`."""
        macros, bounds = self._left(first, last, macros, bounds, cut_s, watch)
        if not len(macros):
            return
        tiles = self._tiles
        low, high = int(self._numbers[first]), int(self._numbers[last])
        if first == last or (high - low < LOOSE and len(macros) * len(tiles.splits) <= MOST_SPLIT):
            rows, found = tiles.rows_below(low, high, macros, self._most(first, last, cut_s))
            self._rows(first, last, rows, found, cut_s, watch)
            return
        middle = self._middle(first, last)
        self.interval(first, middle - 1, macros, bounds, cut_s, watch)
        self.interval(middle, last, macros, tiles.bounds(int(self._numbers[middle]), macros), cut_s, watch)

    def _rows(self, first: int, last: int, rows: Points, bounds: Floats, cut_s: float, watch: Watch) -> None:
        """Bound the extents of an interval, given macro choices with a split, which bound far better than without."""
        rows, bounds = self._left(first, last, rows, bounds, cut_s, watch)
        if not len(rows):
            return
        low, high = int(self._numbers[first]), int(self._numbers[last])
        if first == last:
            self._single(first, rows, min(float(self._limits[first]), cut_s))
            return
        if high <= SHORT * low:
            points = self._tiles.expand(low, high, rows, self._most(first, last, cut_s))
            if points is not None:
                times = self._tiles.lowest(low, high, points, PREDICT)
                self._points(first, last, points, times, cut_s, watch)
                return
        middle = self._middle(first, last)
        self._rows(first, middle - 1, rows, bounds, cut_s, watch)
        bounds = self._tiles.lowest(int(self._numbers[middle]), high, rows, MACRO_BOUND)
        self._rows(middle, last, rows, bounds, cut_s, watch)

    def _middle(self, first: int, last: int) -> int:
        """Return the place at which an interval of several extents is divided: the first one of its second part."""
        between = np.sqrt(self._numbers[first] * self._numbers[last])
        middle = int(np.searchsorted(self._numbers, between, side="left"))
        return min(max(middle, first + 1), last)

    def _single(self, place: int, rows: Points, limit_s: float) -> None:
        """Find the best time of one extent, if it is below a limit."""
        tiles, extent = self._tiles, int(self._numbers[place])
        best = limit_s
        is_loose = rows[:, -2] > 0
        for part, is_program in ((rows[~is_loose], True), (rows[is_loose], False)):
            found = None
            bounds = tiles.run(extent, part, MACRO_BOUND)
            part, bounds = _below(best, part, bounds)
            for at in np.argsort(bounds, kind="stable"):
                if bounds[at] >= best:
                    break
                point, best = tiles.best_of(extent, part[at], best)
                found = point if point is not None else found
            # Leftovers depend on the extent: such points are references, no programs.
            if is_program and found is not None and len(self.faster) < MOST_FASTER:
                self.faster[tuple(found.tolist())] = None
        self.seconds[place] = best

    def _points(self, first: int, last: int, points: Points, times: Floats, cut_s: float, watch: Watch) -> None:
        """Bound the extents of an interval, given points that may be fast enough, and what they do not beat there."""
        points, times = self._left(first, last, points, times, cut_s, watch)
        if not len(points):
            return
        if first == last:
            limit_s = min(float(self._limits[first]), cut_s)
            exact = self._tiles.run(int(self._numbers[first]), points, PREDICT)
            self.seconds[first] = min(limit_s, float(exact.min()))
            own = np.where(points[:, -2] == 0, exact, np.inf)
            if own.min() < limit_s and len(self.faster) < MOST_FASTER:
                self.faster[tuple(points[own.argmin()].tolist())] = None
        else:
            middle = (first + last + 1) // 2
            self._points(first, middle - 1, points, times, cut_s, watch)
            times = self._tiles.lowest(int(self._numbers[middle]), int(self._numbers[last]), points, PREDICT)
            self._points(middle, last, points, times, cut_s, watch)

    def _most(self, first: int, last: int, cut_s: float) -> float:
        """Return the largest limit of an interval's extents at which it is not proven yet."""
        limits = np.minimum(self._limits[first : last + 1], cut_s)
        return float(np.where(self.seconds[first : last + 1] < limits, limits, 0.0).max())

    def _left(
        self, first: int, last: int, rows: NDArray[Kind], bounds: Floats, cut_s: float, watch: Watch
    ) -> tuple[NDArray[Kind], Floats]:
        """Return what may still be fast enough in an interval; none, and what is proven then, when the time is up."""
        watch.report(first / len(self._numbers))
        part = slice(first, last + 1)
        proven = np.minimum(self._limits[part], cut_s)
        rows, bounds = _below(self._most(first, last, cut_s), rows, bounds)
        if len(rows) and watch.is_over:
            proven = np.minimum(proven, bounds.min())
            self.is_complete, rows = False, rows[:0]
        if not len(rows):
            self.seconds[part] = np.maximum(self.seconds[part], proven)
        return rows, bounds


def _below(limit_s: float, rows: NDArray[Kind], bounds: Floats) -> tuple[NDArray[Kind], Floats]:
    """Return the rows whose bound is below a limit, and those bounds."""
    inside = bounds < limit_s
    return rows[inside], bounds[inside]


def _probes(first: int, last: int, numbers: Points) -> list[int]:
    """Return the places of a few extents of an octave."""
    wanted = np.geomspace(numbers[first], numbers[last], PROBES_AN_OCTAVE)
    places = np.searchsorted(numbers[first : last + 1], wanted.round()).clip(0, last - first) + first
    return [int(place) for place in np.unique(places)]
