"""What TVM and LLVM make of MetaSchedule's CPU nests: which loops are unrolled, what is a vector.

vector : the innermost loop of the last spatial axis is one vector operation (TVM). Where it has one iteration, LLVM
    vectorises the innermost loop that is left if that runs along the last spatial axis, or groups neighbouring results
    of an unrolled one (SLP); along another axis it uses gathers and scatters.
body : loops that are unrolled, from the inside: TVM's while the statements stay within ``auto_unroll_max_step``, then
    LLVM's while the instructions stay within its limit.
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
"""Nested loops that TVM unrolls at most. Source: UnrollLoop's auto_max_depth."""
LLVM_UNROLL = 300.0
"""Instructions up to which LLVM unrolls a loop of constant trip count whole. Source: LLVM, -unroll-threshold."""
REDUCTION_INSTRUCTIONS, SPATIAL_INSTRUCTIONS = 9.0, 11.0
"""Instructions of one statement as LLVM counts them, in a loop over a reduction (the result stays) and over a spatial
axis: two or three addresses, loads, multiply, add, store."""
LLVM_VECTOR = 4
"""Fewest neighbouring elements that LLVM makes a vector by itself: 128 bits of float32."""
SCATTER_STATEMENTS = 16.0
"""Statements of a body that LLVM still vectorises across rows. Source: assembly of candidates for Zen 4."""
PIPES = 2.0
"""Instructions of one kind a cycle for vectors of half the width and less, unverified."""


class Vector(NamedTuple):
    """The vector operation of each nest, (num_nests,) each."""

    length: Floats
    """Elements of one statement's operation."""
    full: Floats
    """Loads of whole registers for one vector, and narrower ones for what remains."""
    narrow: Floats
    operations: Floats
    """Multiply-adds."""
    fma_cycles: Floats
    registers: Floats


class CompiledCode(NamedTuple):
    """A batch of nests as code.

    Attributes
    ----------
    trips : (num_nests, loops) float64
        Iterations of the loops that are no vectors; the loop that LLVM vectorises still has its own.
    unrolled : (num_nests, loops) bool
    automatic : (num_nests,) int64
        The loop that LLVM vectorises, -1: none.
    scattered : (num_nests,) bool
        LLVM vectorises across rows.
    vector : Vector
    statements : (num_nests,) float64
        Statements that are executed, a vector each.
    """

    trips: Floats
    unrolled: Bools
    automatic: Integers
    scattered: Bools
    vector: Vector
    statements: Floats

    @property
    def is_automatic(self) -> Bools:
        """Where LLVM vectorises a loop."""
        return self.automatic >= 0

    @property
    def body(self) -> Floats:
        """Iterations of the unrolled loops, 1 for the others, (num_nests, loops)."""
        return np.where(self.unrolled, self.trips, 1.0)

    def with_vector_trips(self, trips: Floats | float) -> Floats:
        """Return `trips` of the loops with other ones for the loop that LLVM vectorises."""
        result = self.trips.copy()
        rows = np.flatnonzero(self.automatic >= 0)
        result[rows, self.automatic[rows]] = np.broadcast_to(trips, len(result))[rows]
        return result

    def last_left(self) -> tuple[Integers, Bools]:
        """Return the innermost loop that is not unrolled, and whether there is one."""
        return _last((self.trips > 1) & ~self.unrolled)


def compiled_code(shape: NestShape, core: CpuCore, nests: TiledNests) -> CompiledCode:
    """Return what the compilers make of nests."""
    trips = shape.trips(nests)
    total = trips.prod(axis=1)
    length = np.where(trips[:, -1] <= nests.vectorize, trips[:, -1], 1.0)
    trips[:, -1] /= length
    unrolled = _unrolled(shape, trips, length, nests.unroll)
    last, is_left = _last((trips > 1) & ~unrolled)
    along = trips[np.arange(len(trips)), last]
    plain = length == 1
    runs_along_simd = np.array([axis == shape.simd for axis, _ in shape.loops])
    windows = shape.has_windows
    fits = plain & is_left & runs_along_simd[last] & (along >= LLVM_VECTOR + windows) & shape.is_contiguous
    automatic = np.where(fits, last, -1)
    length = np.where(fits, along, length)
    small = np.where(unrolled, trips, 1.0).prod(axis=1) <= SCATTER_STATEMENTS
    scattered = (length == 1) & is_left & ~shape.reduces[last] & (along >= shape.lanes) & small
    for at in np.flatnonzero(runs_along_simd) if shape.is_contiguous else ():
        grouped = ~scattered & (length == 1) & unrolled[:, at] & (trips[:, at] >= LLVM_VECTOR * (1 + windows))
        length = np.where(grouped, trips[:, at], length)
        trips[grouped, at] = 1.0
    vector = _vector(shape.lanes, core, length, fits)
    return CompiledCode(trips, unrolled, automatic, scattered, vector, total / length)


def _last(chosen: Bools) -> tuple[Integers, Bools]:
    """Return the last chosen loop, and whether there is one."""
    last: Integers = chosen.shape[1] - 1 - np.argmax(chosen[:, ::-1], axis=1)
    return last, np.asarray(chosen.any(axis=1))


def _unrolled(shape: NestShape, trips: Floats, length: Floats, unroll: Integers) -> Bools:
    """Return which loops are unrolled, (num_nests, loops)."""
    count = len(trips)
    loops = [at for at in reversed(range(trips.shape[1])) if shape.loops[at][1] != "S0"]  # those are parallel
    size, depth, goes_on = np.ones(count), np.zeros(count), np.ones(count, dtype=bool)
    result = np.zeros(trips.shape, dtype=bool)
    for at in loops:
        real = trips[:, at] > 1
        fits = goes_on & real & (size * trips[:, at] <= unroll) & (depth <= UNROLL_DEPTH)
        result[:, at] = fits
        size = np.where(fits, size * trips[:, at], size)
        depth += fits
        goes_on &= fits | ~real
    registers = np.ceil(np.exp2(np.ceil(np.log2(length))) / shape.lanes)
    reduces = shape.reduces[_last(trips > 1)[0]]
    size = size * np.where(reduces, REDUCTION_INSTRUCTIONS, SPATIAL_INSTRUCTIONS) * np.maximum(registers, 1.0)
    goes_on = np.ones(count, dtype=bool)
    for at in loops:
        real = (trips[:, at] > 1) & ~result[:, at]
        fits = goes_on & real & (size * trips[:, at] <= LLVM_UNROLL)
        result[:, at] |= fits
        size = np.where(fits, size * trips[:, at], size)
        goes_on &= fits | ~real
    return result


def _vector(lanes: int, core: CpuCore, length: Floats, automatic: Bools) -> Vector:
    """Return the operation: TVM's vectors are rounded up to a power of two, LLVM's loops leave scalars behind."""
    full, rest = np.floor(length / lanes), np.mod(length, lanes)
    whole = rest.astype(np.int64)
    bits = np.array([int(value).bit_count() for value in whole], dtype=np.float64)
    parts = np.array([int(value).bit_count() for value in whole // LLVM_VECTOR], dtype=np.float64)
    narrow = np.where(automatic, parts + np.mod(rest, LLVM_VECTOR), bits)
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
    """Return instructions a cycle on vectors that are `narrower` times narrower than the registers."""
    return np.asarray(np.maximum(rate, np.minimum(PIPES, rate * np.asarray(narrower))), dtype=np.float64)
