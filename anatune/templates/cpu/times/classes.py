"""Data of the exact search of the CPU space: one class is the points of one packing and distribution over the cores.

Notation
--------
lattice : all tiles whose extents divide those of the nest; rows of `tiles` (N, A) int64.
worth : transfer seconds of the cheapest completion outside a tile, inf if there is none.
node : an L1 tile, a microkernel on it, and the order of the loops between them, of one class; a row of the heap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit_inline
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
    "LatticeTiles",
    "MicrokernelOptions",
    "MicrokernelShape",
    "SearchClass",
    "Terms",
    "Transfers",
    "point_seconds",
    "transfers_of",
    "unrolling",
]

UNROLLED = 8.0
"""Number of unrolled steps that ties prefer. Fewer steps cost more loop instructions, more steps more code."""
KEY_TIE, KEY_PACKED, KEY_PARALLEL, KEY_ACCUMULATORS, KEY_UNROLL, KEY_VOLUME, KEY_TILES = 0, 1, 2, 3, 4, 5, 6
"""Columns of a node.

They are the tie step of the time, `CpuNest.pack_ties`, parallel, -accumulators, `unrolling`, and -volume of the L1
tile. Then follow tile (A), calls (A), kernel (A), the l1 order and the number of the class.
"""


class Caches(NamedTuple):
    """The packed tensors, and the share of each cache that one thread has."""

    packed: Bools
    """(X,) True if packed."""
    line: float
    """Bytes of a cache line."""
    size: Floats
    """(C,) bytes."""
    fill_s: Floats
    """(C,) seconds to fetch a byte into the cache."""


class LatticeTiles(NamedTuple):
    """The capacity and traffic of all tiles of the lattice, for one packing and number of threads."""

    caches: Caches
    lattice: Ints
    """(N, A), lexicographically ascending."""
    divisor_of: Ints
    """(N, A) index of the extent of each tile among the divisors of the axis."""
    stride: Ints
    """(A,) rows from a tile to the one with the next divisor of the axis."""
    capacity: Floats
    """(N, C) bytes that each tile occupies of each cache."""
    moved: Floats
    """(N, C) bytes that all such tiles of the nest move into each cache that does not hold one."""


class Transfers(NamedTuple):
    """The data on which the transfers of tiles depend, see `CpuNest` and `Caches`."""

    extents: Ints
    boxes: Ints
    tensors: Floats
    caches: Caches
    tile: Ints
    """(A,) work space."""
    after: Floats
    """(C,) work space."""


class MicrokernelShape(NamedTuple):
    """The shape of a microkernel on an L1 tile."""

    inner: Ints
    """(A,) extents of the L1 tile."""
    calls: Ints
    """(A,) iterations of the l1 loops."""
    kernel: Ints
    """(A,) register factor in elements; 0 if a pair of microkernels covers the axis."""


class MicrokernelOptions(NamedTuple):
    """The microkernels that fit each divisor of each axis."""

    sequence: Ints
    """(A,) axes: spatial axes and the SIMD axis first, then the reduction axes that are only unrolled."""
    start: Ints
    """(A, num_divisors + 1) first row in `values` of each axis and divisor."""
    values: Ints
    """(options, 3) calls, kernel (0: pair), larger kernel in rows or vectors; ascending in the larger kernel."""
    num_blocked: int
    """Number of axes in the sequence before the reduction axes that are only unrolled."""


class Floors(NamedTuple):
    """Lower bounds on the core cycles of any microkernel on a tile, for one packing."""

    cycles: Floats
    """(N,) bound of each tile."""
    whole: Floats
    """(N,) bounds of tiles of whole reductions, exact except for the unrolling; NaN if not computed yet."""


class L1Tiles(NamedTuple):
    """L1 tiles in ascending order of a lower bound of their time."""

    rows: Ints
    """(n,) rows of the lattice."""
    bound: Floats
    """(n,) lower bounds in seconds."""
    worth: Floats
    """(n,) worth of each tile."""


class Terms(NamedTuple):
    """Numbers from which the time of a point follows, given its core seconds and transfer seconds, in one class."""

    share: float
    """Share of all work that the busiest core does."""
    exposed: float
    """Share of the shorter of core work and transfers that is not hidden."""
    fixed_s: float
    """Seconds of copies and of the parallel start."""
    tie: float
    """Width of a tie step, as a logarithm of time."""


class SearchClass(NamedTuple):
    """A packing and a distribution over the cores, with the data of its tiles."""

    number: int
    parallel: int
    pack_tie: int
    """Sum of `CpuNest.pack_ties` of the packed tensors."""
    tiles: LatticeTiles
    terms: Terms
    chunks: Ints
    """Rows of the lattice that can be chunks."""
    chunk_worth: Floats
    middle: Ints
    """Rows of the lattice that can be L2 tiles."""
    middle_worth: Floats


@jit_inline
def unrolling(steps: float) -> float:
    """Return the ratio >= 1 between the steps of a body and `UNROLLED`."""
    return max(steps, UNROLLED) / min(steps, UNROLLED)


def transfers_of(nest: CpuNest, caches: Caches) -> Transfers:
    """Return the transfers of a nest, with new work space."""
    tile, after = np.empty(nest.extents.shape[0], np.int64), np.empty(caches.size.shape[0])
    return Transfers(nest.extents, nest.boxes, nest.tensors, caches, tile, after)


@jit_inline
def point_seconds(terms: Terms, core_s: float, memory_s: float) -> float:
    """Return the time of a point from the core seconds of the busiest core and all transfer seconds of the nest."""
    return combine(core_s, terms.share * memory_s, terms.exposed) + terms.fixed_s
