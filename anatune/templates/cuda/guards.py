"""Tiles that need not divide an extent: which axes can have them, and which tilings of an axis there are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import checked_factors, given_tiles

__all__ = ["check_covering", "check_covering_tiles", "covered_extents", "guardable"]


@lru_cache(maxsize=256)  # lists of schedules are checked one by one
def guardable(workload: Workload) -> frozenset[str]:
    """Return the axes whose tiles need not divide their extents.

    Results behind the end of a spatial axis are not stored. What a reduction axis has behind its end must not count:
    every operand has to lie there along a dimension of its own, whose end is the axis's, so that it is read as the
    body's neutral element (a product of 0 and of what lies there by chance could be no number).
    """
    spatial = {axis.name for axis in workload.spatial_axes}
    return frozenset(spatial | {axis.name for axis in workload.reduction_axes if _ends_with(workload, axis.name)})


def _ends_with(workload: Workload, axis: str) -> bool:
    extent = workload.extents[axis]
    for access in workload.reads:
        own = (
            [(term.axis, term.coefficient) for term in terms] == [(axis, 1)] and offset == 0 and size == extent
            for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True)
        )
        if not any(own):
            return False
    return True


def covered_extents(tiles: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return axis -> iterations of its tiles, those behind its end among them."""
    return {axis: math.prod(factors) for axis, factors in tiles.items()}


def check_covering_tiles(workload: Workload, tiles: Mapping[str, object], levels: Mapping[str, Sequence[str]]) -> None:
    """Raise SpaceError unless `tiles` has factors of every axis that divide its extent, or cover it where they may.

    Factors are tuples of Python ints; the first of tiles that do not divide is the least that covers the extent.
    """
    for axis, factors, names in given_tiles(tiles, levels):
        check_covering(workload, axis, factors, names)


def check_covering(workload: Workload, axis: str, factors: Sequence[int], levels: Sequence[str]) -> None:
    """Raise SpaceError unless `factors` are one count for each level that divide or cover the axis's extent."""
    extent, counts = workload.extents[axis], checked_factors(axis, factors, levels)
    product, inner = math.prod(counts), math.prod(counts[1:])
    if product == extent:
        return
    blocks = -(-extent // inner)
    if axis not in guardable(workload):
        raise SpaceError(
            f"tiles[{axis!r}] = {counts} multiply to {product}, expected the extent {extent}: tilings of this "
            "axis are perfect divisors, because what lies behind its end would count"
        )
    if inner > MAX_INTEGER or counts[0] != blocks:
        raise SpaceError(
            f"tiles[{axis!r}] = {counts} multiply to {product}, expected the extent {extent} (perfect divisors), or "
            f"{blocks} first: as many tiles as cover it"
        )
