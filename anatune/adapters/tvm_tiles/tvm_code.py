"""The code that TVM and LLVM generate for MetaSchedule's CPU loop nests: unrolled loops and vectors.

vector : TVM makes the innermost loop of the last spatial axis a vector operation. If that loop has one iteration, LLVM
    vectorises the innermost remaining loop if it runs along the last spatial axis, or groups neighbouring results of an
    unrolled loop (SLP). Along another axis, LLVM uses gathers and scatters.
body : the unrolled loops, from the innermost outwards. TVM unrolls while the number of statements stays within
    ``auto_unroll_max_step``, then LLVM unrolls while the number of instructions stays within its limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.tvm_tiles.tvm_shape import NestShape, TiledNests
from anatune.templates.cpu.times.nest import CpuCore

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNROLL_DEPTH = 8
"""The most nested loops that TVM unrolls. Source: UnrollLoop's auto_max_depth."""
LLVM_UNROLL = 300.0
"""The most instructions for which LLVM unrolls a whole loop of constant extent. Source: LLVM, -unroll-threshold."""
REDUCTION_INSTRUCTIONS, SPATIAL_INSTRUCTIONS = 9.0, 11.0
"""The instructions that LLVM counts for one statement in a loop over a reduction axis (the result stays in a register)
and over a spatial axis: two or three addresses, loads, multiply, add, store."""
LLVM_VECTOR = 4
"""The fewest neighbouring elements that LLVM vectorises by itself: 128 bits of float32."""
SCATTER_STATEMENTS = 16.0
"""The most statements of a body that LLVM vectorises across rows. Source: assembly of candidates for Zen 4."""
PIPES = 2.0
"""The instructions of one kind in a cycle for vectors of at most half the width, unverified."""


class Vector(NamedTuple):
    """The vector operation of each nest; all arrays are (num_nests,)."""

    length: Floats
    """The elements of one statement's operation."""
    full: Floats
    """The loads of whole registers for one vector; `narrow` is the number of narrower loads for the remainder."""
    narrow: Floats
    operations: Floats
    """The number of multiply-add instructions."""
    fma_cycles: Floats
    registers: Floats


class CompiledCode(NamedTuple):
    """The generated code of a batch of nests.

    Attributes
    ----------
    trips : (num_nests, loops) float64
        The extents of the loops without TVM's vectors. The loop that LLVM vectorises keeps its extent.
    unrolled : (num_nests, loops) bool
        Whether each loop is unrolled.
    automatic : (num_nests,) int64
        The loop that LLVM vectorises, -1 if none.
    scattered : (num_nests,) bool
        Whether LLVM vectorises across rows.
    vector : Vector
        The vector operation.
    statements : (num_nests,) float64
        The number of executed statements, one vector each.
    """

    trips: Floats
    unrolled: Bools
    automatic: Integers
    scattered: Bools
    vector: Vector
    statements: Floats

    @property
    def is_automatic(self) -> Bools:
        """True if LLVM vectorises a loop, (num_nests,)."""
        return self.automatic >= 0

    @property
    def body(self) -> Floats:
        """The extents of the unrolled loops, 1 for the others, (num_nests, loops)."""
        return np.where(self.unrolled, self.trips, 1.0)

    def with_vector_trips(self, trips: Floats | float) -> Floats:
        """Return the extents of the loops, with `trips` for the loop that LLVM vectorises."""
        result = self.trips.copy()
        rows = np.flatnonzero(self.automatic >= 0)
        result[rows, self.automatic[rows]] = np.broadcast_to(trips, len(result))[rows]
        return result

    def innermost_loop(self) -> tuple[Integers, Bools]:
        """Return the innermost loop that is not unrolled, and whether there is one, (num_nests,) each."""
        return _last_chosen_loop((self.trips > 1) & ~self.unrolled)


def compiled_code(shape: NestShape, core: CpuCore, nests: TiledNests) -> CompiledCode:
    """Predict the code that TVM and LLVM generate for nests."""
    trips = shape.trips(nests)
    total = trips.prod(axis=1)
    length = np.where(trips[:, -1] <= nests.vectorize, trips[:, -1], 1.0)
    trips[:, -1] /= length
    unrolled = _find_unrolled_loops(shape, trips, length, nests.unroll)
    last, is_left = _last_chosen_loop((trips > 1) & ~unrolled)
    along = trips[np.arange(len(trips)), last]
    plain = length == 1
    runs_along_simd = np.array([axis == shape.simd for axis, _ in shape.loops])
    windows = shape.has_windows
    fits = plain & is_left & runs_along_simd[last] & (along >= LLVM_VECTOR + windows) & shape.is_contiguous
    automatic = np.where(fits, last, -1)
    length = np.where(fits, along, length)
    small = np.where(unrolled, trips, 1.0).prod(axis=1) <= SCATTER_STATEMENTS
    scattered = (length == 1) & is_left & ~shape.reduces[last] & (along >= shape.lanes) & small
    for loop in np.flatnonzero(runs_along_simd) if shape.is_contiguous else ():
        grouped = ~scattered & (length == 1) & unrolled[:, loop] & (trips[:, loop] >= LLVM_VECTOR * (1 + windows))
        length = np.where(grouped, trips[:, loop], length)
        trips[grouped, loop] = 1.0
    vector = _vector(shape.lanes, core, length, fits)
    return CompiledCode(trips, unrolled, automatic, scattered, vector, total / length)


def _last_chosen_loop(chosen: Bools) -> tuple[Integers, Bools]:
    """Return the last chosen loop, and whether one is chosen, (num_nests,) each."""
    last: Integers = chosen.shape[1] - 1 - np.argmax(chosen[:, ::-1], axis=1)
    return last, np.asarray(chosen.any(axis=1))


def _find_unrolled_loops(shape: NestShape, trips: Floats, length: Floats, unroll: Integers) -> Bools:
    """Return whether each loop is unrolled, (num_nests, loops)."""
    count = len(trips)
    loops = [at for at in reversed(range(trips.shape[1])) if shape.loops[at][1] != "S0"]  # loops of S0 are parallel
    size, depth, goes_on = np.ones(count), np.zeros(count), np.ones(count, dtype=bool)
    result = np.zeros(trips.shape, dtype=bool)
    for loop in loops:
        real = trips[:, loop] > 1
        fits = goes_on & real & (size * trips[:, loop] <= unroll) & (depth <= UNROLL_DEPTH)
        result[:, loop] = fits
        size = np.where(fits, size * trips[:, loop], size)
        depth += fits
        goes_on &= fits | ~real
    registers = np.ceil(np.exp2(np.ceil(np.log2(length))) / shape.lanes)
    reduces = shape.reduces[_last_chosen_loop(trips > 1)[0]]
    size = size * np.where(reduces, REDUCTION_INSTRUCTIONS, SPATIAL_INSTRUCTIONS) * np.maximum(registers, 1.0)
    goes_on = np.ones(count, dtype=bool)
    for loop in loops:
        real = (trips[:, loop] > 1) & ~result[:, loop]
        fits = goes_on & real & (size * trips[:, loop] <= LLVM_UNROLL)
        result[:, loop] |= fits
        size = np.where(fits, size * trips[:, loop], size)
        goes_on &= fits | ~real
    return result


def _vector(lanes: int, core: CpuCore, length: Floats, automatic: Bools) -> Vector:
    """Return the vector operation; TVM's vectors are padded to a power of two, LLVM's loops have scalar remainders."""
    full, remainder = np.floor(length / lanes), np.mod(length, lanes)
    whole = remainder.astype(np.int64)
    bits = np.array([int(value).bit_count() for value in whole], dtype=np.float64)
    parts = np.array([int(value).bit_count() for value in whole // LLVM_VECTOR], dtype=np.float64)
    narrow = np.where(automatic, parts + np.mod(remainder, LLVM_VECTOR), bits)
    rounded = np.exp2(np.ceil(np.log2(length)))
    registers = np.ceil(rounded / lanes)
    tvm_c = registers / narrow_rate(core.fma_per_cycle, lanes / np.minimum(rounded, lanes))
    llvm_c = full / core.fma_per_cycle + narrow / narrow_rate(core.fma_per_cycle, 2.0)
    return Vector(
        length,
        full,
        narrow,
        np.where(automatic, full + narrow, registers),
        np.where(automatic, llvm_c, tvm_c),
        np.where(automatic, 1.0, registers),
    )


def narrow_rate(rate: float, narrower: Floats | float) -> Floats:
    """Return the instructions in a cycle for vectors that are `narrower` times narrower than the registers."""
    return np.asarray(np.maximum(rate, np.minimum(PIPES, rate * np.asarray(narrower))), dtype=np.float64)
