"""The entry to the compiled code: rule codes, times, bounds and quantities of batches of points."""

from __future__ import annotations

import math

from anatune.numerics._jit import jit
from anatune.numerics.columns import CHUNK_SIZE, Bytes, Floats, Ints
from anatune.templates.cuda.times.micro import fill_best_micro, fill_loop_effects, fill_micro
from anatune.templates.cuda.times.tile import fill_limiters, fill_macro, load_points, take_compiled
from anatune.templates.cuda.times.time import fill_even_time, fill_time
from anatune.templates.gpu.times.columns import Chunk, Col, Gpu, NestArrays

__all__ = ["ANY_BOUND", "BOUND", "CHECK", "MACRO_BOUND", "PREDICT", "run_points"]

CHECK, PREDICT, BOUND, MACRO_BOUND, ANY_BOUND = 0, 1, 2, 3, 4
"""Tasks of `run_points`. CHECK: rules only. PREDICT: times of points. BOUND: bounds over loop splits and unroll depths.
MACRO_BOUND: bounds over the order of the register tile and fetch widths, too. ANY_BOUND: over all splits of the
reduction, too. `cuda.model.ranking` says why the bounds hold."""


@jit
def run_points(
    points: Ints,
    task: int,
    nest: NestArrays,
    gpu: Gpu,
    table: Bytes,
    c: Chunk,
    rules: Ints,
    times: Floats,
    columns: Floats,
    compiled: Floats,
) -> None:
    """Check, predict or bound `points`, (num_points, columns of the space) int64.

    Points that break a rule get a time as if the rule were not there. A BOUND holds for all points that differ only in
    how reg_outer/reg_inner and k1/k2 divide their products, and in the unroll depth. A MACRO_BOUND holds for all points
    with the same sizes of blocks, threads and staging steps. An ANY_BOUND holds for every split of the reduction, too;
    `points` then have no split.

    Parameters
    ----------
    task : int
        CHECK, PREDICT, BOUND, MACRO_BOUND or ANY_BOUND.
    rules : (num_points,) int64
        Output: the code of the first broken rule, 0 for legal points.
    times : (num_points,) float64
        Output: seconds, unless `task` is CHECK.
    columns : (Col.COUNT, num_points) float64, or (0, 0)
        Output: every quantity, if the array has rows.
    compiled : (3, num_points) float64, or (0, 0)
        Numbers of a compiler that replace the model's, for PREDICT: registers of a thread, shared bytes of a block,
        accumulators of a thread in local memory.
    """
    for start in range(0, points.shape[0], CHUNK_SIZE):
        n = min(CHUNK_SIZE, points.shape[0] - start)
        load_points(points, start, n, nest, c)
        fill_macro(n, nest, gpu, c)
        for i in range(n):
            rules[start + i] = int(c.values[Col.RULE, i])
        if task == CHECK:
            continue
        if task == PREDICT:
            fill_loop_effects(n, gpu, c)
            if compiled.shape[0] > 0:
                take_compiled(start, n, compiled, nest, gpu, c)
        else:
            for i in range(n):
                c.values[Col.DYNAMIC, i] = 0.0
                c.values[Col.REUSE, i] = math.sqrt(c.values[Col.STEPS, i])
        if task >= MACRO_BOUND:
            fill_best_micro(n, nest, gpu, c)
        else:
            fill_micro(n, nest, gpu, c, table)
        fill_time(n, nest, gpu, c)
        if task == ANY_BOUND:
            fill_even_time(n, nest, gpu, c)
        for i in range(n):
            times[start + i] = c.values[Col.TIME_S, i]
        if columns.shape[0] > 0:
            fill_limiters(n, gpu, c)
        for row in range(columns.shape[0]):
            for i in range(n):
                columns[row, start + i] = c.values[row, i]
