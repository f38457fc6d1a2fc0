"""Cache traffic of plain tiled nests, by the pass that the CPU model uses for its own (`cpu.times.traffic`)."""

from __future__ import annotations

from anatune.numerics._jit import jit
from anatune.numerics.columns import CHUNK_SIZE, Floats
from anatune.templates.cpu.times.columns import CpuChunk
from anatune.templates.cpu.times.nest import CpuNest
from anatune.templates.cpu.times.traffic import traffic

__all__ = ["tile_traffic"]

_N = CHUNK_SIZE


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
    """Fill `moved`, bytes that enter each cache.

    Parameters
    ----------
    raw : (columns, num_points) float64
        The columns that ``nest.columns`` and ``nest.order_columns`` name.
    inner, calls : (A, num_points) float64
        Tile of the innermost loops, and their iterations (reductions; 1 on spatial axes).
    packed : (X, num_points) float64
        1 where a tensor lies in a buffer of its own, without gaps between rows.
    size : (C,) float64
        Bytes that one thread has of each cache.
    line : float
        Bytes of a cache line.
    moved : (C, num_points) float64
    """
    count = raw.shape[1]
    for start in range(0, count, _N):
        n = min(_N, count - start)
        for i in range(_N):
            at = start + min(i, n - 1)
            for column in range(raw.shape[0]):
                c.raw[column, i] = raw[column, at]
            for a in range(inner.shape[0]):
                c.inner[a, i] = inner[a, at]
                c.calls[a, i] = calls[a, at]
                c.is_pair[a, i] = 1.0
            for x in range(packed.shape[0]):
                c.packed[x, i] = packed[x, at]
            for level in range(size.shape[0]):
                c.size[level, i] = size[level]
        traffic(nest, line, c)
        for level in range(size.shape[0]):
            for i in range(n):
                moved[level, start + i] = c.traffic[level, i]
