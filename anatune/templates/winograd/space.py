"""The tile space of 3x3 convolutions by Winograd's transforms: tiles, channels, the output tile, the parallel loop.

A schedule, outer to inner (V: transformed inputs, U: transformed weights, M: their products; t counts the
``(output_tile + 2)^2`` frequencies)::

    for block of tiles, factor "block" of p                                 parallel? (split "tiles")
      for tile of the block: V[t][tile][c] = transform of its input
      for chunk of output channels, factor "chunk" of f                     parallel? (split "channels")
        for t, for sliver of the chunk, for call of the block:
          microkernel: "row" tiles x "vector" vectors, all input channels, "unroll" of them straight-line
        for tile of the block, for vector of the chunk: output = transform of M[t][tile][f], epilogue, store

``Schedule.tiles`` holds, outer to inner, (block, call, row) of the output tiles p, which are counted through all
images, (chunk, sliver, vector, lane) of the output channels f, and (step, unroll) of the input channels c. Each product
is the extent or, at a guarded edge, more. ``Schedule.unroll`` is the unroll factor of c.

``Schedule.options``:

========================= ============================================================================================
"output_tile"             Rows and columns of an output tile: 2, F(2x2, 3x3), or 4, F(4x4, 3x3), which needs fewer
                          products and rounds more (`winograd.minimal_filtering`).
"parallel"                Whether a loop is distributed over the cores.
"split"                   Only then, which one: "tiles" (each thread has its own V and M) or "channels" (a shared V).
========================= ============================================================================================

The weights are transformed ahead of the run. Of 8-bit operands V and U are int16, M is int32, and factors of c are
even; F(2x2, 3x3) alone has integer transforms. A point is an integer vector in the order of `WinogradSpace.columns`;
the space is small enough to be evaluated whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import RELAXED, admits, checked_accuracy, rounding_error
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import LegalityCheck, Part, Space
from anatune.templates.cpu.microkernels import simd_lanes
from anatune.templates.winograd.convolution3x3 import convolution3x3
from anatune.templates.winograd.minimal_filtering import filtering
from anatune.templates.winograd.rules import (
    ACCURACY,
    LEVELS,
    OUTPUT_TILES,
    SPLITS,
    convolution_on,
    covered,
    output_tile_of,
    output_tiles,
)

__all__ = ["WinogradSpace", "largest_error"]

UNROLLS = (1, 2, 4, 8)
"""Input channels of the straight-line body, of integers pairs of them."""
MOST_BLOCK = 512
"""Tiles of a block, at most: what they become leaves the L2 cache even with one vector of channels."""
MOST_VECTORS = 8
_SPLIT_NUMBERS: dict[object, int] = {None: 0, **{name: number for number, name in enumerate(SPLITS, start=1)}}


def largest_error(schedule: Schedule) -> float:
    """Return the largest error that rounding explains, over the result's scale: a direct sum's, grown; 0: integers."""
    workload = schedule.workload
    convolution = convolution3x3(workload)
    if convolution.is_integer:
        return 0.0
    return rounding_error(workload, filtering(output_tile_of(schedule)).error_growth(convolution.channels))


def _counts(most: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, ... below `most`, and `most` itself."""
    sizes = {size for e in range(most.bit_length()) for size in (2**e, 3 * 2**e) if size < most}
    return sorted(sizes | {most})


class WinogradSpace(Space):
    """All schedules of one 3x3 convolution on one CPU that the template can express.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    is_legal : callable
        (num_points, num_columns) int64 -> (num_points,) bool: the hardware's limits, given by the model layer.
    accuracy : {"standard", "relaxed"}
        What the arithmetic of its schedules may need: "standard" leaves out F(4x4, 3x3).

    Raises
    ------
    SpaceError
        As `rules.convolution_on`; no such accuracy.
    """

    template = "winograd"
    hardware: CpuSpec

    def __init__(self, workload: Workload, hardware: CpuSpec, is_legal: LegalityCheck, accuracy: str = RELAXED) -> None:
        self.convolution = convolution_on(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.lanes = simd_lanes(workload, hardware.compute.simd_bits)
        self.axes = tuple(LEVELS)
        self.extents = covered(self.convolution, min(OUTPUT_TILES))
        self.levels = {"p": ("call", "row"), "f": ("sliver", "vector"), "c": ("unroll",)}
        self.accuracy = checked_accuracy("accuracy", accuracy)
        sizes = tuple(size for size in output_tiles(self.convolution) if admits(accuracy, ACCURACY[size]))
        self.choices = {"output_tile": sizes, "split": tuple(_SPLIT_NUMBERS.values())}

    def _axis(self, axis: str) -> Part:
        registers = self.hardware.compute.num_vector_registers
        rows: list[tuple[int, ...]]
        if axis == "c":
            group = self.convolution.group
            most = min(-(-self.extents["c"] // group), self.lanes)
            rows = [(unroll * group,) for unroll in UNROLLS if unroll <= most and self.lanes % unroll == 0]
        elif axis == "p":
            most = self.extents["p"]
            sizes = range(1, min(registers, most) + 1)
            rows = [(calls, row) for row in sizes for calls in _counts(-(-min(most, MOST_BLOCK) // row))]
        else:
            units = -(-self.extents["f"] // self.lanes)
            widths = range(1, min(registers // 2, MOST_VECTORS, units) + 1)
            rows = [(slivers, width) for width in widths for slivers in _counts(-(-units // width))]
        return self._tiles_of(axis, sorted(rows))

    def error_growth(self, output_tile: int) -> float:
        """Return the errors of results over those of direct sums, for random operands."""
        return filtering(output_tile).error_growth(self.convolution.channels)

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        values = self._values(point)
        output_tile, split = values[-2:]
        return self.schedule(self._tiles(values), output_tile, (None, *SPLITS)[split])

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template, or its factors do not fit the space.
        """
        self._check_own(schedule)
        tiles, options = schedule.tiles, schedule.options
        split = _SPLIT_NUMBERS[options.get("split")]
        numbers = (*tiles["p"][1:], *tiles["f"][1:3], tiles["c"][1], options["output_tile"], split)
        return np.array(numbers, dtype=np.int64)

    def schedule(self, tiles: Mapping[str, Sequence[int]], output_tile: int = 2, split: str | None = None) -> Schedule:
        """Build the schedule with these tiles; any sizes are accepted, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            "p" -> (call, row), "f" -> (sliver, vector), "c" -> (unroll,): what is left out is 1.
        output_tile : {2, 4}
            Rows and columns of an output tile.
        split : {"tiles", "channels"}, optional
            What the parallel loop distributes; without it the kernel runs on one core.

        Raises
        ------
        SpaceError
            Unknown index, wrong number of factors, no such output tile or split.
        """
        if output_tile not in (sizes := output_tiles(self.convolution)):
            raise SpaceError(f"output_tile is {output_tile!r:.40}, expected one of {sizes}")
        if split is not None and split not in SPLITS:
            raise SpaceError(f"split is {split!r:.40}, expected one of {', '.join(SPLITS)}, or none")
        example, extents = "{'p': (2, 14), 'f': (2, 2), 'c': (4,)}", covered(self.convolution, int(output_tile))
        complete = self._covering(tiles, example, extents, {"f": self.lanes})
        options: dict[str, OptionValue] = {"output_tile": int(output_tile), "parallel": split is not None}
        if split is not None:
            options["split"] = split
        return Schedule(self.workload, self.hardware, self.template, complete, complete["c"][-1], options=options)
