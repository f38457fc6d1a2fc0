"""Tables that say which columns of a CPU point hold the factors and orders of its loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.templates.cpu.rules import ORDER_LEVELS, SPATIAL_LEVELS

__all__ = ["LoopTables", "loop_tables"]

Integers = NDArray[np.int64]


class LoopTables(NamedTuple):
    """Columns of a point and loop orders, for A axes."""

    columns: Integers
    """(A, 6) columns of the factors: outer, l3, l2, l1, register (unroll), and the calls of the pair; -1 if lacking."""
    order_columns: Integers
    """(4,) columns of the orders: outer, l3, l2, l1."""
    orders: Integers
    """(4, choices, A + 1) axes from the innermost to the outermost loop, then -1; -2 marks orders the level lacks."""
    flags: Integers
    """Columns of the 0/1 choices: one for each packable tensor, then the parallel loop."""


def loop_tables(
    levels: Mapping[str, Sequence[str]],
    columns: Sequence[str],
    orders: Mapping[str, Sequence[Sequence[str]]],
    reduction_order: Sequence[str],
) -> LoopTables:
    """Build the tables of a space.

    Parameters
    ----------
    levels : mapping of str to sequence of str
        Axis -> names of its factors, outer to inner.
    columns : sequence of str
        Names of the entries of a point.
    orders : mapping of str to sequence of sequence of str
        Level -> its loop orders, outer to inner.
    reduction_order : sequence of str
        Reduction axes inside the l1 loops, outer to inner.
    """
    number = {axis: index for index, axis in enumerate(levels)}
    column = {name: index for index, name in enumerate(columns)}
    factors = np.full((len(levels), 6), -1, dtype=np.int64)
    for axis, names in levels.items():
        for level in names:
            level_number = 4 if level == "unroll" else SPATIAL_LEVELS.index(level)
            factors[number[axis], level_number] = column[f"{axis}.{level}"]
        factors[number[axis], 5] = column.get(f"pair.{axis}", -1)
    most_orders = max(len(orders[level]) for level in ORDER_LEVELS)
    axes = np.full((4, most_orders, len(levels) + 1), -1, dtype=np.int64)
    for index, level in enumerate(ORDER_LEVELS):
        axes[index, len(orders[level]) :] = -2
        for choice, order in enumerate(orders[level]):
            inner = [*reversed(reduction_order), *reversed(order)] if level == "l1" else list(reversed(order))
            axes[index, choice, : len(inner)] = [number[axis] for axis in inner]
    flags = [column[name] for name in columns if name.startswith("pack.") or name == "parallel"]
    order_columns = np.array([column[f"order.{level}"] for level in ORDER_LEVELS], dtype=np.int64)
    return LoopTables(factors, order_columns, axes, np.array(flags, dtype=np.int64))
