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
    """Return a lower bound on the elements that a contraction moves into a memory, whatever the schedule.

    It has two operands and `num_points` iterations; the memory holds `capacity` elements.

    ``2 * num_points / sqrt(capacity * window_reuse)``: for matmul ``2 M N K / sqrt(S)``. Source: [IOLB] Sec. 6, matmul,
    leading term. A sliding window lets one element serve several kernel positions: window_reuse is the product over
    the window's dimensions of max(1, kernel / stride). Source: [Demmel18] Theorem 1, small-filter case.
    """
    return 2.0 * num_points / math.sqrt(capacity * window_reuse)


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


def gpu_io_bounds(workload: Workload, hardware: GpuSpec, sharing_threads: int) -> dict[str, float]:
    """Return memory level of a GPU -> lower bound on the bytes that cross it, whatever the schedule.

    "dram": into the chip (L2 and all SMs); "l2": into an SM (shared memory, L1, registers); "shared": into registers.

    Parameters
    ----------
    sharing_threads : int
        Threads that use each other's registers: 1, or a warp for tensor cores. 0: nothing is staged in shared memory.
    """
    bounds = {
        level: lower_bound_bytes(workload, held)
        for level, held in (
            ("dram", chip_bytes(hardware)),
            ("l2", sm_bytes(hardware)),
        )
    }
    if sharing_threads:
        register_bytes = _REGISTER_BYTES * hardware.registers.per_thread * sharing_threads
        bounds["shared"] = lower_bound_bytes(workload, register_bytes, with_result=False)
    return bounds
