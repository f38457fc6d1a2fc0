"""What the exact search of the CPU space knows of a class of points: those of one packing and distribution over cores.

Notation
--------
lattice : all tiles whose extents divide the nest's; a row of `tiles` (N, A) int64.
worth : seconds of the cheapest completion outside a tile, inf where there is none.
node : an L1 tile, a microkernel on it, and the order of the loops between them, of one class; a row of the heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit_inline, jit_sequence
from anatune.numerics.columns import Bools, Floats, Ints
from anatune.templates.cpu.times.nest import CpuNest, combine

__all__ = [
    "KEY_ACCUMULATORS",
    "KEY_PACKED",
    "KEY_PARALLEL",
    "KEY_TIE",
    "KEY_TILES",
    "KEY_UNROLL",
    "KEY_VOLUME",
    "UNROLLED",
    "Caches",
    "Floors",
    "L1Tiles",
    "Microkernel",
    "Options",
    "SearchClass",
    "Terms",
    "Tiles",
    "Transfers",
    "seconds_one",
    "transfers_of",
    "unrolling",
]

UNROLLED = 8.0
"""Steps of a straight-line body that ties prefer: fewer pay for the loop and for addresses, more for code."""
KEY_TIE, KEY_PACKED, KEY_PARALLEL, KEY_ACCUMULATORS, KEY_UNROLL, KEY_VOLUME, KEY_TILES = 0, 1, 2, 3, 4, 5, 6
"""Columns of a node: tie step of the time, `CpuNest.pack_ties`, parallel, -accumulators, `unrolling`, -volume of the L1
tile; then tile (A), calls (A), kernel (A), l1 order, number of the class."""


class Caches(NamedTuple):
    """Which tensors are packed, and what one thread has of each cache."""

    packed: Bools
    """(X,)"""
    line: float
    """Bytes of a cache line."""
    size: Floats
    """(C,) bytes."""
    fill_s: Floats
    """(C,) seconds to bring a byte into it."""


class Tiles(NamedTuple):
    """What all tiles of the lattice hold and move, for one choice of packing and of cores."""

    caches: Caches
    lattice: Ints
    """(N, A), lexicographically ascending."""
    divisor_of: Ints
    """(N, A) index of each tile's extent among the axis's divisors."""
    stride: Ints
    """(A,) rows from a tile to the one with the axis's next divisor."""
    capacity: Floats
    """(N, C) bytes that each tile occupies of each cache."""
    moved: Floats
    """(N, C) bytes that all such tiles of the nest move into each cache that does not hold them."""


class Transfers(NamedTuple):
    """What the transfers of tiles depend on, see `CpuNest` and `Caches`."""

    extents: Ints
    boxes: Ints
    tensors: Floats
    caches: Caches
    tile: Ints
    """(A,) scratch, as the next."""
    after: Floats
    """(C,)"""


class Microkernel(NamedTuple):
    """A microkernel on an L1 tile."""

    inner: Ints
    """(A,) tile of the l1 loops."""
    calls: Ints
    """(A,) l1 iterations."""
    kernel: Ints
    """(A,) register factor in elements (0 where calls split the tile unevenly)."""


class Options(NamedTuple):
    """The microkernels that fit each divisor of each axis."""

    sequence: Ints
    """(A,) axes: spatial and SIMD first, then the reductions that are only unrolled."""
    start: Ints
    """(A, num_divisors + 1) first row of `values` of each axis and divisor."""
    values: Ints
    """(options, 3) calls, kernel (0: pair), larger kernel in rows or vectors; ascending in the latter."""
    num_blocked: int
    """Axes of the sequence before those reductions."""


class Floors(NamedTuple):
    """Core cycles that no microkernel on a tile undercuts, of one choice of packing."""

    cycles: Floats
    """(N,)"""
    whole: Floats
    """(N,) of tiles of whole reductions, exact but for the unrolling; NaN where it is not known yet."""


class L1Tiles(NamedTuple):
    """L1 tiles in ascending order of a lower bound of their time."""

    rows: Ints
    """(n,) of the lattice."""
    bound: Floats
    """(n,) seconds."""
    worth: Floats
    """(n,)"""


class Terms(NamedTuple):
    """Numbers that make a point's time of its core seconds and its transfers, in one class."""

    share: float
    """Of all work, what the busiest core does."""
    exposed: float
    """Share of the shorter one of core work and transfers that is not hidden."""
    fixed_s: float
    """Seconds of copies and of the parallel start."""
    tie: float
    """Size of a tie (logarithm of time)."""


class SearchClass(NamedTuple):
    """One choice of packing and of the distribution over the cores, with what is known about its tiles."""

    number: int
    parallel: int
    pack_tie: int
    """Sum of `CpuNest.pack_ties` of the packed tensors."""
    tiles: Tiles
    terms: Terms
    chunks: Ints
    """Rows of the lattice that may be chunks."""
    chunk_worth: Floats
    middle: Ints
    """Rows that may be L2 tiles."""
    middle_worth: Floats


@jit_inline
def unrolling(steps: float) -> float:
    """Return how many times as many or as few steps as `UNROLLED` a body has, 1 or more."""
    return max(steps, UNROLLED) / min(steps, UNROLLED)


@jit_sequence
def transfers_of(nest: CpuNest, caches: Caches) -> Transfers:
    """Return what transfers depend on, with scratch of its own."""
    tile, after = np.empty(nest.extents.shape[0], np.int64), np.empty(caches.size.shape[0])
    return Transfers(nest.extents, nest.boxes, nest.tensors, caches, tile, after)


@jit_inline
def seconds_one(terms: Terms, core_s: float, memory_s: float) -> float:
    """Return the time of a point from its core seconds on the busiest core and all transfer seconds of the nest."""
    return combine(core_s, terms.share * memory_s, terms.exposed) + terms.fixed_s
