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
images, (chunk, sliver, vector, lane) of the output channels f, and (step, unroll) of the input channels c. The product
of the factors is the extent or, at a guarded edge, more. ``Schedule.unroll`` is the unroll factor of c.

``Schedule.options``:

========================= ============================================================================================
"output_tile"             Rows and columns of an output tile: 2 is F(2x2, 3x3), 4 is F(4x4, 3x3), which needs fewer
                          products and has larger rounding errors (`winograd.minimal_filtering`).
"parallel"                True if a loop is distributed over the cores.
"split"                   The loop that is distributed: "tiles" (each thread has its own V and M) or "channels" (V is
                          shared). Only with "parallel".
========================= ============================================================================================

The weights are transformed ahead of the run. For 8-bit operands V and U are int16, M is int32, factors of c are even,
and only F(2x2, 3x3) has integer transforms. A point is a vector of integers in the order of `WinogradSpace.columns`.
The space is small enough to be evaluated exhaustively.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import RELAXED, admits, rounding_error, validate_accuracy
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import LegalityCheck, Space, SpacePart
from anatune.templates.cpu.microkernels import simd_lanes
from anatune.templates.winograd.convolution3x3 import convolution3x3
from anatune.templates.winograd.minimal_filtering import filtering
from anatune.templates.winograd.rules import (
    ACCURACY,
    LEVELS,
    OUTPUT_TILES,
    SPLITS,
    convolution_on,
    index_extents,
    output_tile_of,
    output_tiles,
)

__all__ = ["WinogradSpace", "largest_error"]

UNROLLS = (1, 2, 4, 8)
"""Input channels of the straight-line body; for integers, pairs of them."""
MOST_BLOCK = 512
"""Most tiles of a block. The products of more tiles leave the L2 cache even with one vector of channels."""
MOST_VECTORS = 8
_SPLIT_NUMBERS: dict[object, int] = {None: 0, **{name: number for number, name in enumerate(SPLITS, start=1)}}


def largest_error(schedule: Schedule) -> float:
    """Return the largest error that rounding explains, relative to the scale of the result; 0 for integers."""
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
        The computation and the spec of the CPU.
    is_legal : callable
        (num_points, num_columns) int64 -> (num_points,) bool: the limits of the device, which the model knows.
    accuracy : {"standard", "relaxed"}
        The lowest accuracy of its schedules: "standard" excludes F(4x4, 3x3).

    Raises
    ------
    SpaceError
        The template does not take the workload (`rules.convolution_on`), or the accuracy is unknown.
    """

    template = "winograd"
    hardware: CpuSpec

    def __init__(self, workload: Workload, hardware: CpuSpec, is_legal: LegalityCheck, accuracy: str = RELAXED) -> None:
        self.convolution = convolution_on(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.lanes = simd_lanes(workload, hardware.compute.simd_bits)
        self.axes = tuple(LEVELS)
        self.extents = index_extents(self.convolution, min(OUTPUT_TILES))
        self.levels = {"p": ("call", "row"), "f": ("sliver", "vector"), "c": ("unroll",)}
        self.accuracy = validate_accuracy("accuracy", accuracy)
        sizes = tuple(size for size in output_tiles(self.convolution) if admits(accuracy, ACCURACY[size]))
        self.choices = {"output_tile": sizes, "split": tuple(_SPLIT_NUMBERS.values())}

    def _axis(self, axis: str) -> SpacePart:
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
        """Return the ratio of the errors of results to those of direct sums, for random operands."""
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
        self._check_membership(schedule)
        tiles, options = schedule.tiles, schedule.options
        split = _SPLIT_NUMBERS[options.get("split")]
        numbers = (*tiles["p"][1:], *tiles["f"][1:3], tiles["c"][1], options["output_tile"], split)
        return np.array(numbers, dtype=np.int64)

    def schedule(self, tiles: Mapping[str, Sequence[int]], output_tile: int = 2, split: str | None = None) -> Schedule:
        """Build the schedule with these tiles; any sizes are accepted, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            "p" -> (call, row), "f" -> (sliver, vector), "c" -> (unroll,). Factors left out are 1.
        output_tile : {2, 4}
            Rows and columns of an output tile.
        split : {"tiles", "channels"}, optional
            The loop that is distributed over the cores; without it the kernel runs on one core.

        Raises
        ------
        SpaceError
            An index, output tile or split is unknown, or the number of factors is wrong.
        """
        if output_tile not in (sizes := output_tiles(self.convolution)):
            raise SpaceError(f"output_tile is {output_tile!r:.40}, expected one of {sizes}")
        if split is not None and split not in SPLITS:
            raise SpaceError(f"split is {split!r:.40}, expected one of {', '.join(SPLITS)}, or none")
        example, extents = "{'p': (2, 14), 'f': (2, 2), 'c': (4,)}", index_extents(self.convolution, int(output_tile))
        complete = self._covering(tiles, example, extents, {"f": self.lanes})
        options: dict[str, OptionValue] = {"output_tile": int(output_tile), "parallel": split is not None}
        if split is not None:
            options["split"] = split
        return Schedule(self.workload, self.hardware, self.template, complete, complete["c"][-1], options=options)
