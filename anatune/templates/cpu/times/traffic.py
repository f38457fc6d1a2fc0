"""Cache traffic of chunks of points, in one pass over the loops.

Loops are visited from the innermost one outwards, each with the tile that it completes. For a cache of size S, let p be
the first loop whose tile no longer fits while its body does. Everything inside p is fetched once (consecutive
iterations of p share what they have in common), and again in each iteration of the loops outside p: ``traffic =
footprint(tile of p) * iterations outside p``. This is an LRU reuse-distance argument (Source: [IOOpt] Sec. 4, [TACO22]
Sec. 5). A nest that fits completely costs its footprint, once. Results cross the memory bus twice: allocated and
written back. Between caches, lines travel back at the same time as others come. Source: 3x3 layer of 544x544x32 on an
Emerald Rapids, whose 38 MB go to L3: 3.2 ms, 2.9 of them multiply-adds.
"""

from __future__ import annotations

import math

from anatune.numerics._jit import jit, jit_helper
from anatune.numerics.columns import CHUNK_SIZE, Floats
from anatune.templates.cpu.times.columns import CpuChunk, CpuCol
from anatune.templates.cpu.times.nest import CpuNest

__all__ = ["tile_traffic", "traffic"]

_N = CHUNK_SIZE


@jit_helper
def _footprints(nest: CpuNest, line: float, c: CpuChunk) -> None:
    """Fill MOVED and WRITTEN, the bytes that `c.tile` fetches and writes back, and `c.capacity`: `nest.footprint`."""
    v = c.values
    boxes = nest.boxes
    num_levels = c.capacity.shape[0]
    per_line = 1.0 / line
    for i in range(_N):
        v[CpuCol.MOVED + i] = 0.0
        v[CpuCol.WRITTEN + i] = 0.0
    for level in range(num_levels):
        capacity, colliding = c.capacity[level], c.colliding[level]
        for i in range(_N):
            capacity[i] = 0.0
            colliding[i] = 0.0
    is_first_term = True
    is_first_dim = True
    stride = 1.0
    strided_axis = 0
    for t in range(boxes.shape[0]):
        scale = float(boxes[t, 2])
        tile = c.tile[boxes[t, 1]]
        if is_first_term:
            for i in range(_N):
                v[CpuCol.SPAN + i] = 1.0
                v[CpuCol.TOUCHED + i] = 1.0
        if scale > 0.0:
            for i in range(_N):
                v[CpuCol.SPAN + i] += scale * (tile[i] - 1.0)
                v[CpuCol.TOUCHED + i] *= tile[i]
        if scale > stride:
            stride = scale
            strided_axis = boxes[t, 1]
        end = boxes[t, 3]
        is_first_term = end > 0
        if end == 0:
            continue
        size = float(boxes[t, 4])
        if is_first_dim:  # includes the gap after a strided element, so that tiles sum to at least their union
            strided = c.tile[strided_axis]
            for i in range(_N):
                span = v[CpuCol.SPAN + i]
                gap = max(0.0, stride - (span - stride * (strided[i] - 1.0))) if stride > 1.0 else 0.0
                is_whole = 1.0 if span >= size else 0.0
                v[CpuCol.RUN + i] = span + gap
                v[CpuCol.ROW_COUNT + i] = 1.0
                v[CpuCol.IS_OPEN + i] = is_whole
                v[CpuCol.IS_SHORT + i] = 1.0 - is_whole
        else:
            for i in range(_N):
                used = min(v[CpuCol.SPAN + i], v[CpuCol.TOUCHED + i])
                is_open = v[CpuCol.IS_OPEN + i] > 0.0
                v[CpuCol.RUN + i] *= used if is_open else 1.0
                v[CpuCol.ROW_COUNT + i] *= 1.0 if is_open else used
                v[CpuCol.IS_OPEN + i] = 1.0 if is_open and v[CpuCol.SPAN + i] >= size else 0.0
            trips = c.tile[boxes[t, 5]]
            for level in range(num_levels):
                colliding, gap = c.colliding[level], float(boxes[t, 6 + level])
                for i in range(_N):
                    colliding[i] = max(colliding[i], trips[i] * gap)
        is_first_dim = end == 2
        stride = 1.0
        if end == 2:
            x = boxes[t, 0]
            element, is_result, is_ragged = nest.tensors[x, 0], nest.tensors[x, 1], nest.tensors[x, 2] > 0.0
            packed = c.packed[x]
            for i in range(_N):
                segment = v[CpuCol.RUN + i] * element
                rows = v[CpuCol.ROW_COUNT + i]
                is_dense = packed[i] > 0.0 or rows == 1.0
                over = (segment - element) * per_line + 1.0
                lines = over if is_ragged else math.ceil(segment * per_line)
                held = rows * (segment if is_dense else lines * line)
                v[CpuCol.BYTES + i] = held
                v[CpuCol.MOVED + i] += held
                v[CpuCol.WRITTEN + i] += held * is_result
                v[CpuCol.SPREAD + i] = 0.0 if is_dense else rows * v[CpuCol.IS_SHORT + i]
            for level in range(num_levels):
                capacity, colliding = c.capacity[level], c.colliding[level]
                gap = nest.tensors[x, 3 + level]
                for i in range(_N):
                    spread = max(v[CpuCol.SPREAD + i] * gap, colliding[i] if v[CpuCol.SPREAD + i] > 0.0 else 0.0)
                    capacity[i] += max(v[CpuCol.BYTES + i], spread)
                    colliding[i] = 0.0


@jit_helper
def _close(c: CpuChunk) -> None:
    """Set the traffic of undecided caches that no longer hold the tile, and the part of it that takes time."""
    v = c.values
    last = c.traffic.shape[0] - 1
    for level in range(last + 1):
        traffic, capacity, size = c.traffic[level], c.capacity[level], c.size[level]
        timed, alone = c.timed[level], 1.0 if level == last else 0.0
        for i in range(_N):
            outgrown = traffic[i] < 0.0 and capacity[i] > size[i]
            moved, written, outside = v[CpuCol.MOVED + i], v[CpuCol.WRITTEN + i], v[CpuCol.OUTSIDE + i]
            traffic[i] = (moved + written) * outside if outgrown else traffic[i]
            timed[i] = (moved + alone * written) * outside if outgrown else timed[i]


@jit_helper
def _first_tiles(nest: CpuNest, c: CpuChunk) -> None:
    """Fill the tile of one step of the microkernel and the number of steps."""
    v = c.values
    lanes = float(nest.simd[1])
    for i in range(_N):
        v[CpuCol.OUTSIDE + i] = 1.0
    for a in range(nest.extents.shape[0]):
        unit = lanes if a == nest.simd[0] else 1.0
        kernel = nest.columns[a, 4]
        for i in range(_N):
            inner, calls = c.inner[a, i], c.calls[a, i]
            most = min(math.ceil(math.ceil(inner / unit) / calls) * unit, inner)
            c.tile[a, i] = most if c.is_pair[a, i] > 0.0 else c.raw[kernel, i]
            v[CpuCol.OUTSIDE + i] *= calls
            if nest.is_reduction[a] and a != nest.simd[0]:
                v[CpuCol.OUTSIDE + i] *= c.raw[kernel, i]
                c.tile[a, i] = 1.0
        for level in range(3):
            column = nest.columns[a, level]
            if column >= 0:
                for i in range(_N):
                    v[CpuCol.OUTSIDE + i] *= c.raw[column, i]


@jit_helper
def _unroll(nest: CpuNest, c: CpuChunk) -> None:
    """Grow the tile by the unrolled steps of the microkernel."""
    v = c.values
    for a in range(nest.extents.shape[0]):
        if nest.is_reduction[a] and a != nest.simd[0]:
            kernel = nest.columns[a, 4]
            for i in range(_N):
                c.tile[a, i] = c.raw[kernel, i]
                v[CpuCol.OUTSIDE + i] /= c.raw[kernel, i]


@jit_helper
def _grow(level: int, nest: CpuNest, c: CpuChunk) -> None:
    """Fill `c.grown`, `c.trips` and `c.choice` for the loops of `level` (0 outer, 1 l3, 2 l2, 3 l1)."""
    for a in range(nest.extents.shape[0]):
        column = nest.columns[a, level]
        for i in range(_N):
            trips = c.raw[column, i] if column >= 0 else 1.0
            c.trips[a, i] = c.calls[a, i] if level == 3 else trips
            c.grown[a, i] = c.inner[a, i] if level == 3 else c.tile[a, i] * trips
    order = nest.order_columns[level]
    for i in range(_N):
        c.choice[i] = int(c.raw[order, i])


@jit_helper
def _grow_by_loop(level: int, depth: int, nest: CpuNest, c: CpuChunk) -> None:
    """Grow the tile by the loop number `depth` in the order of each point."""
    v = c.values
    axes = nest.orders[level, :, depth]
    for i in range(_N):
        a = axes[c.choice[i]]
        c.tile[a, i] = c.grown[a, i]
        v[CpuCol.OUTSIDE + i] /= c.trips[a, i]


@jit_helper
def traffic(nest: CpuNest, line: float, c: CpuChunk) -> None:
    """Fill `c.traffic`, the bytes into and out of each cache in a first call, `c.timed` and `c.held`.

    `load_points` has to run before.
    """
    v = c.values
    num_levels = c.traffic.shape[0]
    for cache in range(num_levels):
        for i in range(_N):
            c.traffic[cache, i] = -1.0
            c.timed[cache, i] = 0.0
    _first_tiles(nest, c)
    for level in range(5, -1, -1):  # 5: a step of the microkernel, 4: its unrolled body
        if level == 4:
            _unroll(nest, c)
        num_loops = 1
        if level < 4:
            _grow(level, nest, c)
            num_loops = 0
            while nest.orders[level, 0, num_loops] >= 0:
                num_loops += 1
        for depth in range(num_loops):
            if level < 4:
                _grow_by_loop(level, depth, nest, c)
            _footprints(nest, line, c)
            _close(c)
        if 1 <= level <= 3:
            cache = min(3 - level, num_levels - 1)
            for i in range(_N):
                c.held[3 - level, i] = c.capacity[cache, i]
    for cache in range(num_levels):
        for i in range(_N):
            is_open = c.traffic[cache, i] < 0.0
            c.traffic[cache, i] = v[CpuCol.MOVED + i] + v[CpuCol.WRITTEN + i] if is_open else c.traffic[cache, i]


@jit
def tile_traffic(
    raw: Floats,
    inner: Floats,
    calls: Floats,
    packed: Floats,
    size: Floats,
    nest: CpuNest,
    line: float,
    c: CpuChunk,
    moved: Floats,
) -> None:
    """Fill `moved`, the bytes that enter each cache, for nests with one tile for each level and no pairs.

    Parameters
    ----------
    raw : (columns, num_points) float64
        The columns that ``nest.columns`` and ``nest.order_columns`` name.
    inner, calls : (A, num_points) float64
        Tile of the innermost loops, and their iterations (reductions; 1 on spatial axes).
    packed : (X, num_points) float64
        1 if a tensor is in a separate buffer, without gaps between rows.
    size : (C,) float64
        Bytes of each cache that one thread has.
    line : float
        Bytes of a cache line.
    moved : (C, num_points) float64
    """
    count = raw.shape[1]
    for start in range(0, count, _N):
        n = min(_N, count - start)
        for i in range(_N):
            number = start + min(i, n - 1)
            for column in range(raw.shape[0]):
                c.raw[column, i] = raw[column, number]
            for a in range(inner.shape[0]):
                c.inner[a, i] = inner[a, number]
                c.calls[a, i] = calls[a, number]
                c.is_pair[a, i] = 1.0
            for x in range(packed.shape[0]):
                c.packed[x, i] = packed[x, number]
            for level in range(size.shape[0]):
                c.size[level, i] = size[level]
        traffic(nest, line, c)
        for level in range(size.shape[0]):
            for i in range(n):
                moved[level, start + i] = c.traffic[level, i]
