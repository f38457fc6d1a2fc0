"""Batches of GPU points: all columns, times alone, rule codes."""

from __future__ import annotations

import math
from typing import Any

from anatune.numerics._jit import jit
from anatune.numerics.columns import CHUNK_SIZE, Chunk, Col, Gpu, Nest
from anatune.numerics.gpu_micro import loop_effects, micro
from anatune.numerics.gpu_tile import load_points, macro
from anatune.numerics.gpu_time import time

__all__ = ["check_points", "class_times", "predict_columns", "predict_times"]

_DYNAMIC = int(Col.DYNAMIC)
_REUSE = int(Col.REUSE)
_STEPS = int(Col.STEPS)
_RULE = int(Col.RULE)
_TIME_S = int(Col.TIME_S)


@jit
def predict_columns(points: Any, nest: Nest, gpu: Gpu, table: Any, c: Chunk, out: Any) -> None:
    """Fill `out` (Col.COUNT, num_points) float64 for `points` (num_points, num_columns) int64.

    Points that break a rule are timed as if the limit were not there.
    """
    for start in range(0, points.shape[0], CHUNK_SIZE):
        n = min(CHUNK_SIZE, points.shape[0] - start)
        load_points(points, start, n, nest, c)
        macro(n, nest, gpu, c)
        loop_effects(points, start, n, nest, gpu, c)
        micro(n, nest, gpu, c, table)
        time(n, nest, gpu, c)
        out[:, start : start + n] = c.values[:, :n]


@jit
def predict_times(points: Any, nest: Nest, gpu: Gpu, table: Any, c: Chunk, times: Any, rules: Any) -> None:
    """Fill `times` (num_points,) float64 seconds and `rules` (num_points,) int64 (0: legal)."""
    for start in range(0, points.shape[0], CHUNK_SIZE):
        n = min(CHUNK_SIZE, points.shape[0] - start)
        load_points(points, start, n, nest, c)
        macro(n, nest, gpu, c)
        loop_effects(points, start, n, nest, gpu, c)
        micro(n, nest, gpu, c, table)
        time(n, nest, gpu, c)
        for i in range(n):
            times[start + i] = c.values[_TIME_S, i]
            rules[start + i] = int(c.values[_RULE, i])


@jit
def class_times(points: Any, nest: Nest, gpu: Gpu, table: Any, c: Chunk, times: Any) -> None:
    """Fill `times` with bounds over all splits of reg_outer/reg_inner and k1/k2 and all unroll depths.

    Nothing is indexed dynamically, and spilled accumulators are kept over the whole reduction tile.
    """
    for start in range(0, points.shape[0], CHUNK_SIZE):
        n = min(CHUNK_SIZE, points.shape[0] - start)
        load_points(points, start, n, nest, c)
        macro(n, nest, gpu, c)
        for i in range(n):
            c.values[_DYNAMIC, i] = 0.0
            c.values[_REUSE, i] = math.sqrt(c.values[_STEPS, i])
        micro(n, nest, gpu, c, table)
        time(n, nest, gpu, c)
        for i in range(n):
            times[start + i] = c.values[_TIME_S, i]


@jit
def check_points(points: Any, nest: Nest, gpu: Gpu, c: Chunk, rules: Any) -> None:
    """Fill `rules` (num_points,) int64 with the code of the first broken rule, 0 where legal."""
    for start in range(0, points.shape[0], CHUNK_SIZE):
        n = min(CHUNK_SIZE, points.shape[0] - start)
        load_points(points, start, n, nest, c)
        macro(n, nest, gpu, c)
        for i in range(n):
            rules[start + i] = int(c.values[_RULE, i])
