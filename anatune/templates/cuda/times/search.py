"""Enumeration of the macro choices of a space: the sizes of blocks, threads and staging steps.

Notation
--------
option : one way to split an axis: (blocks, threads, results of a thread) or (staging steps, iterations of a step).
macro number : mixed-radix number of one option per axis, where the last axis changes fastest.
multiplicity : number of points of the space that share a macro choice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit
from anatune.numerics.columns import Floats, Ints

__all__ = ["AxisTable", "list_macros"]


class AxisTable(NamedTuple):
    """The options of every axis, spatial axes first. Rows are padded to the longest."""

    num_options: Ints
    """(axes,): options of each axis."""
    first: Ints
    """(axes, options): blocks along a spatial axis, staging steps along a reduction axis."""
    thread: Ints
    """(axes, options): threads along a spatial axis, 1 for a reduction axis."""
    rest: Ints
    """(axes, options): results of a thread (spatial axes), iterations of a staging step (reduction axes)."""
    multiplicity: Floats
    """(axes, options): factorisations of the other levels that share the option."""
    below: Ints
    """(axes,): number of macro choices of all later axes together."""
    points_below: Floats
    """(axes,): number of points of all later axes together."""


def list_macros(
    start: int,
    stop: int,
    num_spatial: int,
    o: AxisTable,
    max_threads: int,
    points: Ints,
    numbers: Ints,
    weights: Floats,
) -> tuple[int, int, float]:
    """Write macro choices as points, beginning with number `start`. Skip those with too many threads.

    As soon as the outer axes have too many threads, all choices that share them are skipped together. The point of a
    macro choice has all results of a thread in reg_inner and all iterations of a staging step in k1.

    Parameters
    ----------
    points : (capacity, columns) int64
        Output: one point per macro choice. Only columns of tiles are written.
    numbers, weights : (capacity,) int64 and float64
        Output: macro numbers and multiplicities.

    Returns
    -------
    (next number, macro choices written, points of the space that were skipped)
    """
    digits = np.empty(len(o.num_options), np.int64)
    threads = np.ones(len(o.num_options) + 1, np.int64)
    return _list_macros(start, stop, num_spatial, o, max_threads, digits, threads, points, numbers, weights)


@jit
def _list_macros(
    start: int, stop: int, num_spatial: int, o: AxisTable, max_threads: int, digits: Ints, threads: Ints,
    points: Ints, numbers: Ints, weights: Floats,
) -> tuple[int, int, float]:  # fmt: skip
    num_axes = o.num_options.shape[0]
    skipped = 0.0
    n = 0
    number = start
    remainder = start
    for a in range(num_axes):
        digits[a] = remainder // o.below[a]
        remainder -= digits[a] * o.below[a]
    changed = 0  # the outermost axis whose digit changed
    while number < stop and n < numbers.shape[0]:
        over = -1
        for a in range(changed, num_spatial):
            threads[a + 1] = threads[a] * o.thread[a, digits[a]]
            if threads[a + 1] > max_threads:
                over = a
                break
        if over >= 0:
            lost = o.points_below[over]
            for a in range(over + 1):
                lost *= o.multiplicity[a, digits[a]]
            skipped += lost
            axis = over
        else:
            weight = 1.0
            for a in range(num_spatial):
                column = 5 * a
                points[n, column] = o.first[a, digits[a]]
                points[n, column + 1] = 1
                points[n, column + 2] = o.thread[a, digits[a]]
                points[n, column + 3] = 1
                points[n, column + 4] = o.rest[a, digits[a]]
                weight *= o.multiplicity[a, digits[a]]
            for a in range(num_spatial, num_axes):
                column = 5 * num_spatial + 3 * (a - num_spatial)
                points[n, column] = o.first[a, digits[a]]
                points[n, column + 1] = o.rest[a, digits[a]]
                points[n, column + 2] = 1
                weight *= o.multiplicity[a, digits[a]]
            numbers[n] = number
            weights[n] = weight
            n += 1
            axis = num_axes - 1
        number += o.below[axis]
        for a in range(axis + 1, num_axes):
            digits[a] = 0
        while axis > 0 and digits[axis] + 1 == o.num_options[axis]:
            digits[axis] = 0
            axis -= 1
        digits[axis] += 1
        changed = axis
    return number, n, skipped
