"""I/O lower bounds of a workload for each memory level of a device."""

from __future__ import annotations

from anatune.core.workload import DTYPE_BYTES, Workload
from anatune.numerics.io_bounds import contraction_traffic

__all__ = ["lower_bound_bytes", "window_reuse"]


def window_reuse(workload: Workload) -> float:
    """Return how many kernel positions one element can serve, at most: the product of max(1, kernel / stride)."""
    extents = workload.extents
    reduction = {axis.name for axis in workload.reduction_axes}
    reuse = 1.0
    for access in workload.reads:
        for terms in access.indices:
            sliding = [term for term in terms if term.axis in reduction]
            moving = [term for term in terms if term.axis not in reduction]
            if sliding and moving:
                kernel = 1 + sum(term.coefficient * (extents[term.axis] - 1) for term in sliding)
                reuse *= max(1.0, kernel / min(term.coefficient for term in moving))
    return reuse


def lower_bound_bytes(workload: Workload, capacity_bytes: float, *, with_result: bool = True) -> float:
    """Return a lower bound on the bytes that cross into fast memories of `capacity_bytes` each.

    The larger of the compulsory traffic (every touched element once) and, for contractions of two operands, the
    capacity bound of `contraction_traffic`.

    Parameters
    ----------
    with_result : bool
        Whether the result and the epilogue's operands cross this level too (they bypass shared memory).
    """
    element = DTYPE_BYTES[workload.dtype]
    bound = float(workload.compulsory_bytes)
    if not with_result:
        operands = {access.tensor: access for access in workload.reads}
        bound = float(sum(access.touched_elements(workload.extents) * element for access in operands.values()))
    if workload.body == "multiply_add" and len(workload.reads) == 2 and workload.reduction_axes:
        capacity = max(1.0, capacity_bytes / element)
        bound = max(bound, element * contraction_traffic(workload.num_points, capacity, window_reuse(workload)))
    return bound
