"""Programs of the template "cuda" for a range of extents: candidates, times, and proofs that nothing is faster.

A program is a tiling whose block along the ranged axis has any size up to a limit (`ranged_tiles`), with everything
else fixed. Times of single shapes are those of the ordinary model, evaluated at every extent. What no program of any
tiling can beat is found as in the ranking of one shape, by bounds of macro choices; as a program never gets faster with
more iterations, a bound at an extent holds for all larger ones, and intervals are halved where that is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from anatune.core.hardware.spec import GpuSpec
from anatune.core.rules.cuda import check_formats
from anatune.core.rules.split import num_tiles
from anatune.core.schedule import Schedule
from anatune.core.space.split import split_options
from anatune.core.workload.ranges import RangedWorkload
from anatune.model.cuda.ranged_tiles import MACRO_BOUND, PREDICT, Floats, Macros, Points, RangedTiles
from anatune.model.ranges.family import Bounds, Program, ProgramFamily
from anatune.model.watch import Watch

__all__ = ["CudaRanges"]

OCTAVE = 2.0
"""Ratio of the extents of an interval whose bounds begin with all macro choices."""
SMALL = 64
"""Extents below which times hardly depend on the extent: added to both ends for the ratio."""
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
MOST_FASTER = 64
"""Programs that a proof returns at most."""


class _Octave(NamedTuple):
    """An interval of extents, their numbers `first` to `last`, and its macro choices up to a bound of `cut_s`."""

    first: int
    last: int
    macros: Macros
    bounds: Floats
    cut_s: float


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

    # ---- candidates ----------------------------------------------------------------------------------------

    def candidates(self, watch: Watch) -> Sequence[Program]:
        """Return the best programs of a few extents of each octave; see `ProgramFamily.candidates`."""
        found: dict[Program, None] = {}
        octaves = self._octaves(watch.part(0.0, 0.6))
        tiles = self._tiles
        splits = tiles.splits[tiles.splits[:, 1] == 0]
        for number, octave in enumerate(octaves):
            for at in _probes(octave.first, octave.last, self.workload.numbers):
                extent = int(self.workload.numbers[at])
                order = np.argsort(tiles.bounds(extent, octave.macros), kind="stable")[:TRIED]
                found |= dict.fromkeys(map(tuple, self._best(extent, octave.macros[order], splits).tolist()))
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
        """Return the macro choices of each octave that are near its best bound."""
        if self._known is not None:
            return self._known
        numbers, known, first = self.workload.numbers, [], 0
        while first < len(numbers):
            most = OCTAVE * (numbers[first] + SMALL) - SMALL
            last = int(np.searchsorted(numbers, most, side="right")) - 1
            last = max(first, min(last, len(numbers) - 1))
            known.append(self._octave(first, last))
            watch.report((last + 1) / len(numbers))
            first = last + 1
        self._known = known
        return known

    def _octave(self, first: int, last: int) -> _Octave:
        extent, best = int(self.workload.numbers[first]), np.inf
        kept, bounds = [], []
        for macros in self._tiles.slabs():
            found = self._tiles.bounds(extent, macros)
            best = min(best, float(found.min(initial=np.inf)))
            near = found <= KEPT * best
            kept.append(macros[near])
            bounds.append(found[near])
        all_bounds = np.concatenate(bounds)
        near = all_bounds <= KEPT * best
        return _Octave(first, last, np.concatenate(kept)[near], all_bounds[near], KEPT * best)

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
        proof = _Proof(self._tiles, self.workload.numbers, limits_s)
        octaves = self._octaves(watch.part(0.0, 0.1))
        for number, octave in enumerate(octaves):
            if watch.is_over:
                # What is known without a search: no macro choice has a smaller bound than the best of the octave.
                part = slice(octave.first, octave.last + 1)
                floor = float(octave.bounds.min(initial=octave.cut_s))
                proof.seconds[part] = np.minimum(limits_s[part], floor)
                proof.is_complete = False
                continue
            proof.interval(octave.first, octave.last, octave.macros, octave.bounds, octave.cut_s, watch)
            watch.report(0.1 + 0.9 * (number + 1) / len(octaves))
        return Bounds(proof.seconds, tuple(proof.faster), proof.is_complete)

    def schedule(self, program: Program, extent: int) -> Schedule:
        """Return a program as the schedule of one extent; see `ProgramFamily.schedule`."""
        point = self._tiles.at(extent, np.array([program], dtype=np.int64))[0].tolist()
        workload, space = self.workload.at(extent), self._tiles.space
        tiles, at = {}, 0
        for axis in space.axes:
            width = len(space.levels[axis])
            tiles[axis] = tuple(point[at : at + width])
            at += width
        unroll, *rest = point[at:]
        widths, split = rest[: len(space.staged)], tuple(rest[len(space.staged) :])
        options = split_options(split, num_tiles(tiles, workload), self._tiles.hardware)
        vector = dict(zip(space.staged, widths, strict=True))
        return Schedule(workload, self.hardware, self.template, tiles, unroll, vector, options)


class _Proof:
    """Bounds at every extent, filled interval by interval."""

    def __init__(self, tiles: RangedTiles, numbers: Points, limits_s: Floats) -> None:
        self._tiles, self._numbers, self._limits = tiles, numbers, limits_s
        self.seconds = np.zeros(len(numbers))
        self.faster: dict[Program, None] = {}
        self.is_complete = True

    def interval(self, first: int, last: int, macros: Macros, bounds: Floats, cut_s: float, watch: Watch) -> None:
        """Bound the extents of an interval, given the macro choices whose bound there may be below `cut_s`."""
        part = slice(first, last + 1)
        limits = np.minimum(self._limits[part], cut_s)
        most = float(limits.max())
        inside = bounds < most
        macros, bounds = macros[inside], bounds[inside]
        if not len(macros):
            self.seconds[part] = limits
            return
        if watch.is_over:
            self.seconds[part] = np.minimum(limits, bounds.min())
            self.is_complete = False
            return
        low, high = int(self._numbers[first]), int(self._numbers[last])
        if first == last:
            self._single(first, macros, float(limits[0]))
            return
        if high <= SHORT * low:
            points = self._tiles.expand(low, high, macros, most)
            if points is not None:
                times = self._tiles.lowest(low, high, points, PREDICT)
                self._points(first, last, points, times, cut_s, watch)
                return
        middle = int(np.searchsorted(self._numbers, np.sqrt(low * high), side="left"))
        middle = min(max(middle, first + 1), last)
        self.interval(first, middle - 1, macros, bounds, cut_s, watch)
        self.interval(middle, last, macros, self._tiles.bounds(int(self._numbers[middle]), macros), cut_s, watch)

    def _single(self, place: int, macros: Macros, limit_s: float) -> None:
        """Find the best time of one extent, if it is below a limit."""
        tiles, extent = self._tiles, int(self._numbers[place])
        best = limit_s
        for splits, is_program in ((tiles.splits[tiles.splits[:, 1] == 0], True), (tiles.splits, False)):
            found = None
            rows = tiles.split(macros, splits)
            bounds = tiles.run(extent, rows, MACRO_BOUND)
            for at in np.argsort(bounds, kind="stable"):
                if bounds[at] >= best:
                    break
                point, best = tiles.best_of(extent, rows[at], best)
                found = point if point is not None else found
            # Leftovers depend on the extent: such points are references, no programs.
            if is_program and found is not None and len(self.faster) < MOST_FASTER:
                self.faster[tuple(found.tolist())] = None
        self.seconds[place] = best

    def _points(self, first: int, last: int, points: Points, times: Floats, cut_s: float, watch: Watch) -> None:
        """Bound the extents of an interval, given points that may be fast enough, and what they do not beat there."""
        part = slice(first, last + 1)
        limits = np.minimum(self._limits[part], cut_s)
        inside = times < limits.max()
        points, times = points[inside], times[inside]
        if not len(points):
            self.seconds[part] = limits
        elif watch.is_over:
            self.seconds[part] = np.minimum(limits, times.min())
            self.is_complete = False
        elif first == last:
            exact = self._tiles.run(int(self._numbers[first]), points, PREDICT)
            self.seconds[first] = min(float(limits[0]), float(exact.min()))
            own = np.where(points[:, -2] == 0, exact, np.inf)
            if own.min() < limits[0] and len(self.faster) < MOST_FASTER:
                self.faster[tuple(points[own.argmin()].tolist())] = None
        else:
            middle = (first + last + 1) // 2
            self._points(first, middle - 1, points, times, cut_s, watch)
            times = self._tiles.lowest(int(self._numbers[middle]), int(self._numbers[last]), points, PREDICT)
            self._points(middle, last, points, times, cut_s, watch)


def _probes(first: int, last: int, numbers: Points) -> list[int]:
    """Return the places of a few extents of an octave."""
    wanted = np.geomspace(numbers[first], numbers[last], PROBES_AN_OCTAVE)
    places = np.searchsorted(numbers[first : last + 1], wanted.round()).clip(0, last - first) + first
    return [int(place) for place in np.unique(places)]
