"""Tiles that do not divide an extent: those that the spaces for CUDA cores list beside the perfect divisors.

An extent with a divisor near every power of two up to `MOST_BLOCK` gets no such tiles: the spaces of 56, 196 and 4096
hold perfect divisors only. A prime has no divisor near 16, and 147 has none near 32, so that blocks would be far too
small or too large. Such extents get tile sizes that are smooth (products of 2, 3, 5 and 7, which can be split into
threads and registers) and waste little. Extents from `LEAST_FREE` on get all of these sizes, smaller ones get one size
per octave. Reduction axes get powers of two and three times powers of two.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import Workload
from anatune.templates.base.factor import count_factorisations, divisors, factorisations, prime_exponents
from anatune.templates.base.space import SpacePart, tilings
from anatune.templates.cuda.guards import guardable_axes

__all__ = ["MOST_BLOCK", "MOST_DEPTH", "axis_tilings", "guarded_tiles", "has_poor_divisors"]

MOST_BLOCK = 256
"""Largest guarded tile of a spatial axis. The best plans of even extents have no larger blocks along one axis."""
MOST_DEPTH = 128
"""Largest guarded tile of a reduction axis. A larger one does not fit in shared memory beside a block of any width."""
LEAST_TILE = 8
"""Smallest power of two that needs a divisor near it. Below, a divisor or the whole extent is as good."""
NEAR = 1.5
"""Largest ratio, in both directions, between a power of two and a divisor near it."""
LEAST_FREE = 256
"""Smallest extent that gets all tile sizes. Images have two smaller extents, and spaces grow with the product."""
MOST_WASTE = 0.125
"""Largest share of iterations beyond the end of an axis, relative to its extent."""


def has_poor_divisors(extent: int, most: int) -> bool:
    """Return whether some power of two up to the extent and to `most` has no divisor of the extent near it."""
    sizes = (2**e for e in range(LEAST_TILE.bit_length() - 1, min(extent, most).bit_length()))
    factors = divisors(extent)
    return any(
        not any(size <= _ratio(size) * divisor and divisor <= NEAR * size for divisor in factors) for size in sizes
    )


def _ratio(size: int) -> float:
    """Return the largest ratio of a power of two to a smaller divisor near it. The divisor 4 is near the smallest."""
    return 2.0 if size == LEAST_TILE else NEAR


@lru_cache(maxsize=1024)
def guarded_tiles(extent: int, most: int) -> tuple[int, ...]:
    """Return tile sizes up to `most` that cover an extent without dividing it, ascending; () if its divisors suffice.

    The sizes are smooth multiples of 2, 4 or 8, where larger sizes have the larger factor. A small extent gets one size
    per octave: the one that wastes least, and of equal ones the one with most factors 2.

    Parameters
    ----------
    most : int
        `MOST_BLOCK`, or for a reduction axis `MOST_DEPTH`.
    """
    if not has_poor_divisors(extent, most):
        return ()
    sizes = [size for size in _smooth(most) if extent % size and _total(extent, size) <= (1.0 + MOST_WASTE) * extent]
    if extent >= LEAST_FREE:
        return tuple(sizes)
    octaves: dict[int, list[int]] = {}
    for size in sizes:
        octaves.setdefault(size.bit_length(), []).append(size)
    return tuple(min(few, key=lambda size: (_total(extent, size), -(size & -size))) for few in octaves.values())


def _total(extent: int, size: int) -> int:
    """Return the iterations of all tiles of `size` that cover an extent."""
    return -(-extent // size) * size


@lru_cache(maxsize=16)
def _smooth(most: int) -> tuple[int, ...]:
    if most == MOST_DEPTH:
        return tuple(sorted(factor * 2**e for factor in (1, 3) for e in range(1, 8) if factor * 2**e <= most))
    return tuple(
        size
        for size in range(2, most + 1)
        if size % (2 if size < 16 else 4 if size < 128 else 8) == 0 and prime_exponents(size)[-1][0] <= 7
    )


def axis_tilings(workload: Workload, axis: str, levels: tuple[str, ...]) -> SpacePart:
    """Return the tilings of an axis in lexicographic order: perfect divisors, and guarded tiles if these are poor."""
    extent = workload.extents[axis]
    is_spatial = any(spatial_axis.name == axis for spatial_axis in workload.spatial_axes)
    sizes = guarded_tiles(extent, MOST_BLOCK if is_spatial else MOST_DEPTH) if axis in guardable_axes(workload) else ()
    if not sizes:
        return tilings(axis, levels, extent)
    count = count_factorisations(extent, len(levels))
    count += sum(count_factorisations(size, len(levels) - 1) for size in sizes)
    columns = [f"{axis}.{level}" for level in levels]
    rows = partial(_all_rows, extent, sizes, len(levels))
    return SpacePart(axis, columns, count, rows, f"perfect divisors of {extent}, or tiles of the space that cover it")


def _all_rows(extent: int, sizes: tuple[int, ...], width: int) -> NDArray[np.int64]:
    tables = [factorisations(extent, width)]
    for size in sizes:
        inner = factorisations(size, width - 1)
        tables.append(np.column_stack([np.full(len(inner), math.ceil(extent / size), dtype=np.int64), inner]))
    rows = np.concatenate(tables)
    return np.ascontiguousarray(rows[np.lexsort(rows.T[::-1])])
