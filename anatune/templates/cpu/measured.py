"""The share of the peak that the microkernel of a point reached when measured alone, from the table of a spec.

Source: [TACO22] Sec. 4.1 and 4.2: microkernels are measured once a machine. The two of a pair have as many vectors and
steps, and the pair is as good as the worse one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.cpu_groups import MicrokernelTable
from anatune.core.workload.access import Access
from anatune.core.workload.nest import Workload
from anatune.templates.base.space import Space

__all__ = ["microkernel_shares"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def microkernel_shares(table: MicrokernelTable, space: Space, simd: str, lanes: int, points: Integers) -> Floats | None:
    """Return the share of the peak of the microkernel of each point; 0 if it is not among the good ones in the table.

    Parameters
    ----------
    simd : str
        The vectorised axis of the space.
    lanes : int
        Elements of a vector.
    points : (num_points, num_columns) int64

    Returns
    -------
    (num_points,) float64 or None
        The loss from idle lanes of a masked vector is included. None: the table does not describe microkernels of this
        workload. Its microkernels multiply float32 vectors, which all rows share, by one element for each row.
    """
    operand = _vector_operand(space.workload, simd)
    if operand is None:
        return None
    columns = {name: points[:, number] for number, name in enumerate(space.columns)}
    ones = np.ones(len(points), dtype=np.int64)
    rows, vectors, steps, is_shared = [ones, ones], [ones, ones], ones, ones > 0
    for axis in space.workload.axes:
        size = columns[f"{axis.name}.{space.levels[axis.name][-1]}"]
        if axis.kind == "reduction":
            steps = steps * size
            continue
        calls = np.maximum(columns.get(f"pair.{axis.name}", ones), 1)
        if axis.name == simd:
            units = -(-size // lanes)
            vectors = [units // calls, -(-units // calls)]
        else:
            rows = [rows[0] * (size // calls), rows[1] * -(-size // calls)]
            is_shared &= (size == 1) | (not operand.uses(axis.name))
    table_shares = _ShareTable(table)
    nearest = np.abs(np.log2(np.array(table_shares.steps)) - np.log2(steps)[:, None]).argmin(axis=1)
    shares_of_pairs = [table_shares.of(some, others, nearest) for some in rows for others in vectors]
    result: Floats = np.min(shares_of_pairs, axis=0) * space.lane_shares(points) * is_shared
    return result


def _vector_operand(workload: Workload, simd: str) -> Access | None:
    """Return the operand of which microkernels load vectors while they broadcast the other; None if there is none."""
    loaded = [access for access in workload.reads if access.uses(simd)]
    is_product = workload.body == "multiply_add" and workload.dtype == "float32"
    is_outer = len(workload.reads) == 2 and len(loaded) == 1 and any(x.name == simd for x in workload.spatial_axes)
    return loaded[0] if is_product and is_outer else None


class _ShareTable:
    """The shares of a table as an array: (rows, vectors, number of the step count)."""

    def __init__(self, table: MicrokernelTable) -> None:
        self.steps = sorted({steps for _, _, steps, _ in table.tiles})
        most = np.array([tile[:2] for tile in table.tiles]).max(axis=0, initial=0)
        self._shares = np.zeros((*(most + 1), len(self.steps)))
        for rows, vectors, steps, share in table.tiles:
            self._shares[rows, vectors, self.steps.index(steps)] = share

    def of(self, rows: Integers, vectors: Integers, steps: Integers) -> Floats:
        """Return the shares of tiles; 0 for tiles that are not in the table."""
        num_rows, num_vectors, _ = self._shares.shape
        is_known = (rows < num_rows) & (vectors < num_vectors)
        return np.where(is_known, self._shares[rows * is_known, vectors * is_known, steps], 0.0)
