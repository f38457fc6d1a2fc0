"""Features of CPU points: numbers that tell how far a correction carries over from one point to another.

Notation -------- P, Q : numbers of points of two batches. kernel : log2 of the rows and vectors of the microkernel (the
larger of two) and of its unrolled steps; number of kernels. tiles : log2 of the extents of the L1 tile, the L2 tile and
the chunk, axis by axis. shares : the parts of the predicted time over the whole. choices : packed tensors; the
innermost loop of each level; whether the outer loops are parallel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.search.points import Floats, Integers
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.space import ORDER_LEVELS
from anatune.templates.cpu.times.columns import CpuCol

_PARTS = (
    CpuCol.FMA_S, CpuCol.LOAD_S, CpuCol.LATENCY_S, CpuCol.ISSUE_S, CpuCol.OVERHEAD_S, CpuCol.PACKING_S, CpuCol.L2_S,
    CpuCol.L3_S, CpuCol.DRAM_S,
)  # fmt: skip


class Features(NamedTuple):
    """Features of a batch: float columns for `kernel`, `tiles`, `shares`; small integers for `packs`, `loops`."""

    kernel: Floats
    tiles: Floats
    shares: Floats
    packs: Integers
    loops: Integers


class Similarity(NamedTuple):
    """Prior covariance of log(measured / predicted) of two points: three sums of products of closeness.

    It has standard deviations (of the parts of the residual that depend on the microkernel, on the tiles, and on the
    binding resources) and lengths (differences that reduce the closeness to exp(-1/2)).
    Source: rounded from what leave-one-out likelihood prefers on 128 trials each of four layers (matmul 512x1024x1024,
    resnet18:C2, resnet50:R12, bert:M2 and M4), one core of an EPYC of family 25, 2026-11.
    """

    kernel_std: float = 0.06
    tiles_std: float = 0.02
    shares_std: float = 0.085
    kernel_length: float = 0.8
    tiles_length: float = 3.0
    shares_length: float = 0.1
    pack_factor: float = 0.8
    """Factor on the closeness for each tensor that only one of the points packs."""
    loop_factor: float = 0.1
    """Factor on the closeness for each level with another innermost loop."""
    noise_std: float = 0.025

    @property
    def variance(self) -> float:
        """Prior variance of one residual, without noise."""
        return self.kernel_std**2 + self.tiles_std**2 + self.shares_std**2

    def covariance(self, point: Features, many: Features) -> Floats:
        """Return the covariance of one point (a batch of one row) with each of many, (Q,)."""
        packs = self.pack_factor ** (many.packs != point.packs).sum(axis=1)
        loops = self.loop_factor ** (many.loops != point.loops).sum(axis=1)
        kernel = np.exp(-0.5 * np.square((many.kernel - point.kernel) / self.kernel_length).sum(axis=1))
        tiles = np.exp(-0.5 * np.square((many.tiles - point.tiles) / self.tiles_length).sum(axis=1))
        shares = np.exp(-0.5 * np.square((many.shares - point.shares) / self.shares_length).sum(axis=1))
        result: Floats = (
            self.kernel_std**2 * kernel * packs
            + self.tiles_std**2 * tiles * loops * packs
            + self.shares_std**2 * shares
        )
        return result


def compute_features(model: CpuModel, points: Integers) -> tuple[Floats, Features]:
    """Return the predicted seconds and the features of points, (P, num_columns) int64."""
    space = model.space
    column = {name: at for at, name in enumerate(space.columns)}
    spatial = {axis.name for axis in space.workload.spatial_axes}
    kernel: list[Integers | Floats] = []
    unroll = np.ones(len(points))
    extents: list[Integers] = [np.ones(len(points), dtype=np.int64)]  # so that the list is never empty
    trips: dict[str, dict[str, Integers]] = {level: {} for level in ORDER_LEVELS}
    for axis in space.axes:
        levels = space.levels[axis]
        factors = {level: points[:, column[f"{axis}.{level}"]] for level in levels}
        calls = points[:, column[f"pair.{axis}"]] if axis in space.pairable else np.zeros(len(points), dtype=np.int64)
        inner = factors[levels[-1]]
        if axis in spatial or axis == space.simd_axis:
            units = -(-inner // space.lanes) if axis == space.simd_axis else inner
            kernel += [-(-units // np.maximum(calls, 1)), np.where(calls > 0, 2, 1)]
        else:
            unroll *= inner
        extent = inner
        for level in ("l1", "l2", "l3"):
            extent = extent * factors.get(level, 1)
            if space.extents[axis] > 1:
                extents.append(extent)
        for level in ORDER_LEVELS:
            count = factors.get(level, np.ones(len(points), dtype=np.int64))
            trips[level][axis] = np.maximum(count, calls) if level == "l1" else count
    raw = model.raw(points)
    times = raw[:, CpuCol.TIME_S.row]
    packs = points[:, [column[f"pack.{tensor}"] for tensor in space.packable]]
    loops = [
        _innermost(space.orders[level], points[:, column[f"order.{level}"]], trips[level]) for level in ORDER_LEVELS
    ]
    features = Features(
        kernel=np.log2(np.column_stack([*kernel, unroll])),
        tiles=np.log2(np.column_stack(extents)),
        shares=raw[:, [part.row for part in _PARTS]] / times[:, None],
        packs=packs,
        loops=np.column_stack([*loops, points[:, column["parallel"]]]),
    )
    return times, features


def _innermost(orders: tuple[tuple[str, ...], ...], choice: Integers, trips: dict[str, Integers]) -> Integers:
    """Return the number of the innermost axis with more than one iteration, -1 if there is none."""
    names = list(trips)
    result = np.full(len(choice), -1, dtype=np.int64)
    for number, order in enumerate(orders):
        for axis in order:
            result = np.where((choice == number) & (trips[axis] > 1), names.index(axis), result)
    return result
