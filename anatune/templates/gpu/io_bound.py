"""I/O lower bounds of a workload for each memory level of a device."""

from __future__ import annotations

import math

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Workload

__all__ = ["chip_bytes", "contraction_traffic", "gpu_io_bounds", "lower_bound_bytes", "sm_bytes", "window_reuse"]

_REGISTER_BYTES = 4


def sm_bytes(hardware: GpuSpec) -> float:
    """Return the bytes that an SM can hold: registers, L1, shared memory."""
    return hardware.shared_memory.per_sm_bytes + _REGISTER_BYTES * hardware.registers.per_sm + hardware.l1.size_bytes


def chip_bytes(hardware: GpuSpec) -> float:
    """Return the bytes that the chip can hold: L2 and all SMs."""
    return hardware.l2.size_bytes + hardware.compute.num_sms * sm_bytes(hardware)


def contraction_traffic(num_points: float, capacity: float, window_reuse: float) -> float:
    """Return a lower bound on the elements that a contraction of two operands moves into a memory, for any schedule.

    The bound is ``2 * num_points / sqrt(capacity * window_reuse)``; for matmul ``2 M N K / sqrt(S)``. Source: [IOLB]
    Sec. 6, matmul, leading term. With a sliding window one element serves several kernel positions. Source: [Demmel18]
    Theorem 1, small-filter case.

    Parameters
    ----------
    num_points : float
        Iterations.
    capacity : float
        Elements that the memory holds.
    window_reuse : float
        Product over the window's dimensions of max(1, kernel / stride).
    """
    return 2.0 * num_points / math.sqrt(capacity * window_reuse)


def window_reuse(workload: Workload) -> float:
    """Return the most kernel positions that one element can serve: the product of max(1, kernel / stride)."""
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

    It is the larger of the compulsory traffic (every touched element once) and, for contractions of two operands, the
    bound of `contraction_traffic`.

    Parameters
    ----------
    with_result : bool
        Whether the result and the operands of the epilogue cross this level, too. They bypass shared memory.
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


def gpu_io_bounds(workload: Workload, hardware: GpuSpec, sharing_threads: int) -> dict[str, float]:
    """Return memory level of a GPU -> lower bound on the bytes that cross it, for any schedule.

    "dram": into the chip (L2 and all SMs). "l2": into an SM (shared memory, L1, registers). "shared": into registers.

    Parameters
    ----------
    sharing_threads : int
        Threads that share their registers: 1, or a warp for matrix units. 0: nothing is staged in shared memory.
    """
    bounds = {
        level: lower_bound_bytes(workload, held)
        for level, held in (("dram", chip_bytes(hardware)), ("l2", sm_bytes(hardware)))
    }
    if sharing_threads:
        register_bytes = _REGISTER_BYTES * hardware.registers.per_thread * sharing_threads
        bounds["shared"] = lower_bound_bytes(workload, register_bytes, with_result=False)
    return bounds
