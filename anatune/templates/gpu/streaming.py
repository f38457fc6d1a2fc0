"""Time of nodes that have no schedule to choose: they read and write their tensors once and compute little."""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec

__all__ = ["streaming_s"]


def streaming_s(hardware: GpuSpec, num_bytes: int, flop: int = 0, cached_bytes: int = 0) -> float:
    """Return the seconds of a launch: bytes or arithmetic, whichever takes longer, plus the launch overhead.

    Tensors are read from the L2 cache if it holds all of them: the launch before has left them there.

    Parameters
    ----------
    hardware : GpuSpec
    num_bytes : int
        Bytes read and written.
    flop : int
        Number of float32 operations.
    cached_bytes : int
        Bytes that L2 delivers, if the kernel reads elements more than once.
    """
    compute, dram = hardware.compute, hardware.dram
    rate = dram.bandwidth_bytes_per_s * dram.reachable_fraction
    if num_bytes <= hardware.l2.size_bytes:
        rate = max(rate, hardware.l2.bandwidth_bytes_per_s)
    arithmetic_s = flop / (compute.fp32_peak_flop_per_s * compute.reachable_fraction)
    cached_s = cached_bytes / hardware.l2.bandwidth_bytes_per_s
    return max(num_bytes / rate, cached_s, arithmetic_s) + hardware.launch.overhead_s
