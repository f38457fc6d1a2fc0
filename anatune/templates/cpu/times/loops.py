"""The loop nests of points of the CPU space, independent of the names of their levels."""

from __future__ import annotations

from anatune.numerics._jit import jit
from anatune.numerics.columns import Ints

__all__ = ["list_loops"]


@jit
def list_loops(points: Ints, columns: Ints, order_columns: Ints, orders: Ints, flags: Ints, rows: Ints) -> None:
    """Write a row for each point; rows are equal if the loop nests are.

    Parameters
    ----------
    points : (num_points, num_columns) int64
    columns, order_columns, orders, flags
        See `cpu.loops.LoopTables`; A axes, F flags.
    rows : (num_points, 5 * A + 1 + F) int64, zeros
        Overwritten: the loops from the outermost one (trips times A + 1, plus the axis; negative for a pair of
        microkernels; -1 between the parallel loops and the others), zeros, the register factors, the flags.
    """
    num_axes = columns.shape[0]
    num_loops = 4 * num_axes + 1
    for p in range(points.shape[0]):
        point = points[p]
        row = rows[p]
        count = 0
        last_axis = -1  # neighbouring loops of one axis count as one loop
        for level in range(4):
            order = orders[level, point[order_columns[level]]]
            depth = 0
            while depth < order.shape[0] and order[depth] >= 0:
                depth += 1
            for i in range(depth - 1, -1, -1):
                a = order[i]
                if level == 3 and columns[a, 5] >= 0 and point[columns[a, 5]] > 0:
                    row[count] = -(point[columns[a, 5]] * (num_axes + 1) + a)
                    count += 1
                    last_axis = -1
                    continue
                trips = point[columns[a, level]] if columns[a, level] >= 0 else 1
                if trips == 1:
                    continue
                if last_axis == a:
                    row[count - 1] = (row[count - 1] - a) * trips + a
                    continue
                row[count] = trips * (num_axes + 1) + a
                count += 1
                last_axis = a
            if level == 0 and point[flags[flags.shape[0] - 1]] != 0:
                row[count] = -1
                count += 1
                last_axis = -1
        for a in range(num_axes):
            row[num_loops + a] = point[columns[a, 4]]
        for f in range(flags.shape[0]):
            row[num_loops + num_axes + f] = point[flags[f]]
