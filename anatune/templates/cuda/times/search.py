"""Enumeration of macro choices (block, thread and stage sizes) for exact ranking.

Notation
--------
option : one way to split an axis: (grid, thread, reg) of a spatial axis, (stages, tile) of a reduction axis.
macro number : mixed-radix number of one option an axis, the last axis fastest.
multiplicity : points of the space that share a macro choice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit
from anatune.numerics.columns import Floats, Ints

__all__ = ["Options", "list_macros"]


class Options(NamedTuple):
    """The options of every axis (spatial axes first), padded to the longest axis."""

    num_options: Ints
    """(axes,)"""
    first: Ints
    """(axes, options): grid of a spatial axis, stages of a reduction axis."""
    thread: Ints
    """(axes, options): threads (spatial axes)."""
    rest: Ints
    """(axes, options): results of a thread (spatial axes), tile of a stage (reduction axes)."""
    multiplicity: Floats
    """(axes, options): factorisations of the remaining levels that share the option."""
    below: Ints
    """(axes,): macro choices of all later axes together."""
    points_below: Floats
    """(axes,): points (micro choices included) of all later axes together."""


@jit
def list_macros(
    start: int, stop: int, num_spatial: int, o: Options, max_threads: int, points: Ints, numbers: Ints, weights: Floats
) -> tuple[int, int, float]:
    """Write macro choices from number `start` on as points, skipping those with too many threads.

    A choice is skipped, with all choices that share its outer axes, as soon as those axes show it. The point of a
    choice has all results of a thread in reg_inner and the whole stage in k1.

    Parameters
    ----------
    points : (capacity, columns) int64
        Filled with one point a choice; columns other than the tiles are left alone.
    numbers, weights : (capacity,) int64 and float64
        Filled with the macro numbers and multiplicities.

    Returns
    -------
    (next number, choices written, points of the space that were skipped)
    """
    num_axes = o.num_options.shape[0]
    digits = np.empty(num_axes, np.int64)
    threads = np.ones(num_axes + 1, np.int64)
    skipped = 0.0
    n = 0
    number = start
    rest = start
    for a in range(num_axes):
        digits[a] = rest // o.below[a]
        rest -= digits[a] * o.below[a]
    changed = 0  # outermost axis whose digit changed
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
            at = over
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
            at = num_axes - 1
        number += o.below[at]
        for a in range(at + 1, num_axes):
            digits[a] = 0
        while at > 0 and digits[at] + 1 == o.num_options[at]:
            digits[at] = 0
            at -= 1
        digits[at] += 1
        changed = at
    return number, n, skipped
