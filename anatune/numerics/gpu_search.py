"""Enumeration of macro choices (block, thread and stage sizes) with admissible bounds, for exact ranking.

Notation
--------
option : one way to split an axis: (grid, thread, reg) of a spatial axis, (stages, tile) of a reduction axis.
macro number : mixed-radix number of one option an axis, the last axis fastest.
multiplicity : points of the space that share a macro choice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.numerics._jit import jit, jit_helper
from anatune.numerics.columns import CHUNK_SIZE, Chunk, Col, Gpu, Nest
from anatune.numerics.gpu_micro import best_micro
from anatune.numerics.gpu_tile import RULE_THREADS, macro
from anatune.numerics.gpu_time import time

__all__ = ["Options", "bound_macros"]

_STAGES = int(Col.STAGES)
_RULE = int(Col.RULE)
_TIME_S = int(Col.TIME_S)


class Options(NamedTuple):
    """The options of every axis, padded to the longest axis."""

    count: NDArray[np.int64]
    """(axes,)"""
    first: NDArray[np.int64]
    """(axes, options): grid of a spatial axis, stages of a reduction axis."""
    thread: NDArray[np.int64]
    """(axes, options): threads (spatial axes)."""
    rest: NDArray[np.int64]
    """(axes, options): results of a thread (spatial axes), tile of a stage (reduction axes)."""
    multiplicity: NDArray[np.float64]
    """(axes, options): factorisations of the remaining levels that share the option."""
    below: NDArray[np.int64]
    """(axes,): macro choices of all later axes together."""
    points_below: NDArray[np.float64]
    """(axes,): points (micro choices included) of all later axes together."""


@jit_helper
def _store(i: int, digits: Any, o: Options, nest: Nest, c: Chunk) -> float:
    """Write the macro choice `digits` into column `i` of the chunk; return its multiplicity."""
    multiplicity = 1.0
    for a in range(nest.num_spatial):
        option = digits[a]
        c.grid[a, i] = o.first[a, option]
        c.thread[a, i] = o.thread[a, option]
        c.reg[a, i] = o.rest[a, option]
        c.inner[a, i] = o.rest[a, option]
        c.tile[a, i] = o.thread[a, option] * o.rest[a, option]
        multiplicity *= o.multiplicity[a, option]
    stages = 1.0
    for r in range(nest.num_reduction):
        a = nest.num_spatial + r
        option = digits[a]
        stages *= o.first[a, option]
        c.tile[a, i] = o.rest[a, option]
        multiplicity *= o.multiplicity[a, option]
    c.values[_STAGES, i] = stages
    return multiplicity


@jit_helper
def _flush(
    n: int, nest: Nest, gpu: Gpu, c: Chunk, limit_s: float, numbers: Any, weights: Any, counts: Any,
    found: int, bounds: Any, kept: Any,
) -> int:  # fmt: skip
    """Bound the first `n` macro choices of the chunk; count them by rule and keep those that may beat `limit_s`."""
    macro(n, nest, gpu, c)
    best_micro(n, nest, gpu, c)
    time(n, nest, gpu, c)
    for i in range(n):
        rule = int(c.values[_RULE, i])
        counts[rule] += weights[i]
        if rule == 0 and c.values[_TIME_S, i] <= limit_s:
            bounds[found] = c.values[_TIME_S, i]
            kept[found] = numbers[i]
            found += 1
    return found


@jit
def bound_macros(
    start: int, stop: int, nest: Nest, gpu: Gpu, o: Options, c: Chunk, limit_s: float, budget: int,
    counts: Any, bounds: Any, kept: Any,
) -> tuple[int, int, int]:  # fmt: skip
    """Bound macro choices from number `start` on.

    Choices whose threads exceed the device's limit are skipped as soon as the outer axes show it.

    Parameters
    ----------
    stop : int
        Number of all macro choices.
    budget : int
        Choices to bound before returning; also ends when `bounds` is nearly full.
    counts : (rules + 1,) float64
        Incremented by the points (multiplicities) that break each rule, [0]: legal.
    bounds, kept : (capacity,) float64 and int64
        Filled with the bounds and numbers of legal choices whose bound is at most `limit_s` seconds.

    Returns
    -------
    (next number, choices kept, choices bounded)
    """
    num_axes = nest.num_spatial + nest.num_reduction
    digits = np.empty(num_axes, np.int64)
    threads = np.ones(num_axes + 1, np.int64)
    numbers = np.empty(CHUNK_SIZE, np.int64)
    weights = np.empty(CHUNK_SIZE)
    found = 0
    bounded = 0
    n = 0
    number = start
    fresh = 0  # outermost axis whose digit changed
    rest = number
    for a in range(num_axes):
        digits[a] = rest // o.below[a]
        rest -= digits[a] * o.below[a]
    while number < stop:
        skipped = -1
        for a in range(fresh, nest.num_spatial):
            threads[a + 1] = threads[a] * o.thread[a, digits[a]]
            if threads[a + 1] > gpu.max_threads_block:
                skipped = a
                break
        if skipped >= 0:
            points = o.points_below[skipped]
            for a in range(skipped + 1):
                points *= o.multiplicity[a, digits[a]]
            counts[RULE_THREADS] += points
            number += o.below[skipped]
            at = skipped
        else:
            weights[n] = _store(n, digits, o, nest, c)
            numbers[n] = number
            n += 1
            bounded += 1
            number += 1
            at = num_axes - 1
        for a in range(at + 1, num_axes):
            digits[a] = 0
        while at >= 0:
            digits[at] += 1
            if digits[at] < o.count[at] or at == 0:
                break
            digits[at] = 0
            at -= 1
        fresh = at
        if n == CHUNK_SIZE:
            found = _flush(n, nest, gpu, c, limit_s, numbers, weights, counts, found, bounds, kept)
            n = 0
            if bounded >= budget or found + CHUNK_SIZE > bounds.shape[0]:
                return number, found, bounded
    if n > 0:
        found = _flush(n, nest, gpu, c, limit_s, numbers, weights, counts, found, bounds, kept)
    return number, found, bounded
