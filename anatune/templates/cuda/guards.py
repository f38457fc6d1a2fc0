"""Tiles that need not divide an extent: which axes may have them, and checks of tilings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import given_tiles, parse_factors

__all__ = ["check_covering", "check_covering_tiles", "covered_extents", "guardable_axes"]


@lru_cache(maxsize=256)  # lists of schedules are checked one by one
def guardable_axes(workload: Workload) -> frozenset[str]:
    """Return the axes whose tiles need not divide their extents.

    All spatial axes are among them: results beyond their ends are not stored. What a reduction axis reads beyond its
    end must not change the result. Therefore every operand needs a dimension that is indexed by this axis alone and
    ends where the axis ends: elements beyond it are read as the neutral element of the body. Other elements times 0
    could be NaN.
    """
    spatial = {axis.name for axis in workload.spatial_axes}
    return frozenset(spatial | {axis.name for axis in workload.reduction_axes if _ends_with(workload, axis.name)})


def _ends_with(workload: Workload, axis: str) -> bool:
    extent = workload.extents[axis]
    for access in workload.reads:
        ends_there = (
            [(term.axis, term.coefficient) for term in terms] == [(axis, 1)] and offset == 0 and size == extent
            for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True)
        )
        if not any(ends_there):
            return False
    return True


def covered_extents(tiles: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return axis -> iterations of all its tiles, including those beyond its end."""
    return {axis: math.prod(factors) for axis, factors in tiles.items()}


def check_covering_tiles(workload: Workload, tiles: Mapping[str, object], levels: Mapping[str, Sequence[str]]) -> None:
    """Raise SpaceError unless `tiles` has factors of every axis that divide its extent, or cover it if that is allowed.

    Factors are tuples of Python ints. If tiles do not divide an extent, their number is the least that covers it.
    """
    for axis, factors, names in given_tiles(tiles, levels):
        check_covering(workload, axis, factors, names)


def check_covering(workload: Workload, axis: str, factors: Sequence[int], levels: Sequence[str]) -> None:
    """Raise SpaceError unless `factors` has a count for each level, and they divide or cover the extent of the axis."""
    extent, counts = workload.extents[axis], parse_factors(axis, factors, levels)
    product, inner = math.prod(counts), math.prod(counts[1:])
    if product == extent:
        return
    blocks = -(-extent // inner)
    if axis not in guardable_axes(workload):
        raise SpaceError(
            f"tiles[{axis!r}] = {counts} multiply to {product}, expected the extent {extent}: tilings of this "
            "axis are perfect divisors, because elements beyond its end would change the result"
        )
    if inner > MAX_INTEGER or counts[0] != blocks:
        raise SpaceError(
            f"tiles[{axis!r}] = {counts} multiply to {product}, expected the extent {extent} (perfect divisors), or "
            f"{blocks} as the first factor: the fewest tiles that cover it"
        )
