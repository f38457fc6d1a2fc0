"""Order of points of the CPU space in a ranking, and which of them describe the same loop nest."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anatune.core.space_cpu import CpuSpace
from anatune.model.cpu_model import TIE_SHARE, CpuModel
from anatune.numerics.cpu_columns import CpuCol

__all__ = ["STEP", "first_nests", "loop_nest", "tie_keys"]

STEP = math.log1p(TIE_SHARE)
"""Logarithm of the ratio of neighbouring tie steps."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def tie_keys(model: CpuModel, points: Integers) -> Floats:
    """Return the sort keys of `points`, (num_points, num_columns) int64: rows compare lexicographically."""
    space, nest = model.space, model.nest
    raw = model.raw(points)
    steps = np.floor(np.log(raw[:, CpuCol.TIME_S]) / STEP)
    size = len(points)
    ones = np.ones(size, dtype=np.int64)

    def column(index: int) -> Integers:
        return points[:, index] if index >= 0 else ones

    kernel = np.column_stack([points[:, c] for c in nest.columns[:, 4]])
    calls = np.column_stack([points[:, c] for c in nest.columns[:, 3]])
    inner = calls * kernel
    for a, pair in enumerate(nest.columns[:, 5].tolist()):
        if pair >= 0:
            is_pair = points[:, pair] > 0
            calls[:, a] = np.where(is_pair, points[:, pair], calls[:, a])
            kernel[:, a] = np.where(is_pair, 0, kernel[:, a])
    middle = inner * np.column_stack([column(c) for c in nest.columns[:, 2].tolist()])
    chunk = middle * np.column_stack([column(c) for c in nest.columns[:, 1].tolist()])
    unroll = np.ones(size, dtype=np.int64)
    for a, axis in enumerate(space.axes):
        if nest.is_reduction[a] and axis != space.simd_axis:
            unroll *= kernel[:, a]
    packs = sum((points[:, c] for c in nest.pack_columns.tolist() if c >= 0), np.zeros(size, dtype=np.int64))
    order = nest.order_columns.tolist()
    parts = [
        steps, packs, points[:, nest.simd[2]], -raw[:, CpuCol.ACCUMULATORS], unroll, -inner.astype(float).prod(axis=1),
        inner, calls, kernel, points[:, order[3]],
        -middle.astype(float).prod(axis=1), middle, -chunk.astype(float).prod(axis=1), chunk,
        points[:, order[2]], points[:, order[1]], points[:, order[0]],
    ]  # fmt: skip
    return np.column_stack(parts).astype(np.float64)


def first_nests(space: CpuSpace, points: Integers, keys: Floats, count: int) -> tuple[Integers, Floats]:
    """Sort by key and keep the first `count` different loop nests."""
    order = np.lexsort(keys.T[::-1])
    seen: set[tuple[object, ...]] = set()
    chosen = []
    for at in order.tolist():
        nest = loop_nest(space, points[at])
        if nest not in seen:
            seen.add(nest)
            chosen.append(at)
            if len(chosen) == count:
                break
    return points[chosen], keys[chosen]


def loop_nest(space: CpuSpace, point: Integers) -> tuple[object, ...]:
    """Return what a point's program looks like, whatever its levels are called."""
    values = dict(zip(space.columns, point.tolist(), strict=True))
    loops: list[list[object]] = []
    for level in ("outer", "l3", "l2", "l1"):
        names = space.orders[level][values[f"order.{level}"]]
        if level == "l1":
            names = (*names, *space.reduction_order)
        for axis in names:
            trips = values.get(f"{axis}.{level}", 1)
            if level == "l1" and values.get(f"pair.{axis}", 0):
                loops.append([axis, -values[f"pair.{axis}"]])
            elif trips > 1:
                if loops and loops[-1][0] == axis and isinstance(loops[-1][1], int) and loops[-1][1] > 0:
                    loops[-1][1] *= trips
                else:
                    loops.append([axis, trips])
        if level == "outer" and values["parallel"]:
            loops.append(["parallel", 1])
    kernel = tuple(values[f"{axis}.{space.levels[axis][-1]}"] for axis in space.axes)
    packed = tuple(values[f"pack.{tensor}"] for tensor in space.packable)
    return (tuple((axis, trips) for axis, trips in loops), kernel, packed, values["parallel"])
