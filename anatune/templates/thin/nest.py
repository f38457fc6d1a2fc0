"""The form of a workload as a stream: one large operand that is read once, with few results for each of its elements.

It covers products of a matrix with a vector or with few rows, and reductions of one tensor, and follows from their
access maps alone. `thin.rules` says which of them the template takes.

Notation
--------
big : the operand that is streamed; small : the other operand of a product, a few rows that are used again and again.
m, n, k : the fused axes of the small operand and the result (rows), of the big operand and the result, and of the sum.
    Axes that both operands and the result have are the batch.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from anatune.core.workload.implicit_gemm import (
    VECTOR_BYTES,
    guarded_dimensions,
    reduction_orders,
    touched_bytes,
    vector_width,
)
from anatune.core.workload.nest import DTYPE_BYTES, Access, Workload
from anatune.errors import SpaceError

__all__ = ["ThinNest", "thin_nest"]

REDUCTIONS = ("add", "max", "average")
"""Bodies of reductions of one operand."""


class ThinNest(NamedTuple):
    """The stream of a workload; axis names outer to inner.

    Attributes
    ----------
    fused : dict of str to tuple of str
        Fused index ("batch", "m", "n", "k") -> its axes; a reduction of one tensor has neither batch nor m.
    big : Access
    small : Access or None
        None: a reduction of one tensor.
    along_k : bool
        True if neighbouring elements of the big operand follow k; else they follow n.
    width : int
        Most elements of the big operand that one load can have, a power of two.
    small_width : int
        Most elements of the small operand along k that one load can have.
    rows_inside : bool
        True if neighbouring results follow m, not n.
    guarded, small_guarded : tuple of bool
        For each dimension, True if positions can be outside the tensor (padding).
    extents : dict of str to int
        Fused index -> iterations.
    """

    fused: dict[str, tuple[str, ...]]
    big: Access
    small: Access | None
    along_k: bool
    width: int
    small_width: int
    rows_inside: bool
    guarded: tuple[bool, ...]
    small_guarded: tuple[bool, ...]
    extents: dict[str, int]

    def axes(self, index: str) -> tuple[str, ...]:
        """Return the axes of a fused index, outer to inner."""
        return self.fused[index]

    @property
    def streamed(self) -> int:
        """Number of elements of the big operand that are read."""
        return self.extents["batch"] * self.extents["n"] * self.extents["k"]


@lru_cache(maxsize=64)  # checks of a list of schedules call this for each of them
def thin_nest(workload: Workload) -> ThinNest:
    """Return the stream of `workload`. Of two operands, the one with more iterations is the big one.

    Raises
    ------
    SpaceError
        The workload is neither a sum of products of two tensors nor a reduction of one.
    """
    reads, sums = workload.reads, [axis.name for axis in workload.reduction_axes]
    is_product = workload.body == "multiply_add" and len(reads) == 2
    is_reduction = workload.body in REDUCTIONS and len(reads) == 1
    if not sums or not (is_product or is_reduction) or not all(read.uses(axis) for read in reads for axis in sums):
        raise SpaceError(
            f"{workload.operator} is neither a sum of products of two tensors over axes of both nor a reduction of "
            "one, which the template thin needs; choose another template or leave it out"
        )
    extents, order = workload.extents, workload.output_axes
    if is_product:
        axes_of = [tuple(axis for axis in order if read.uses(axis)) for read in reads]
        batch = tuple(axis for axis in order if axis in axes_of[0] and axis in axes_of[1])
        alone = [tuple(axis for axis in axes if axis not in batch) for axes in axes_of]
        sizes = [math.prod(extents[axis] for axis in axes) for axes in alone]
        big_number = 0 if sizes[0] > sizes[1] else 1
        big, small, n, m = reads[big_number], reads[1 - big_number], alone[big_number], alone[1 - big_number]
    else:
        big, small, n, m, batch = reads[0], None, order, (), ()
    widest = VECTOR_BYTES // DTYPE_BYTES[workload.dtype]
    by_n, near_n = vector_width(big, n, workload, widest), touched_bytes(big, n, workload)
    k = min(
        reduction_orders(sums, extents),
        key=lambda k: (-vector_width(big, k, workload, widest), touched_bytes(big, k, workload)),
    )
    by_k, near_k = vector_width(big, k, workload, widest), touched_bytes(big, k, workload)
    along_k = by_k > by_n or (by_k == by_n and near_k < near_n)
    moving = [axis for axis in order if extents[axis] > 1]
    fused = {"batch": batch, "m": m, "n": n, "k": k}
    return ThinNest(
        fused,
        big,
        small,
        along_k,
        by_k if along_k else by_n,
        1 if small is None else vector_width(small, k, workload, widest),
        bool(moving) and moving[-1] in m,
        guarded_dimensions(big, workload),
        () if small is None else guarded_dimensions(small, workload),
        {name: math.prod(extents[axis] for axis in axes) for name, axes in fused.items()},
    )
