"""Time of what has no schedule to choose: it reads and writes its tensors once, and computes little."""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec

__all__ = ["streaming_s"]


def streaming_s(hardware: GpuSpec, num_bytes: int, flop: int = 0) -> float:
    """Return the time of a launch, s: of its bytes or its arithmetic, whichever takes longer, and of launching.

    Tensors lie in the L2 cache where it holds all of them: what came before has left them there.

    Parameters
    ----------
    hardware : GpuSpec
    num_bytes : int
        Read and written.
    flop : int
        float32 operations.
    """
    compute, dram = hardware.compute, hardware.dram
    rate = dram.bandwidth_bytes_per_s * dram.reachable_fraction
    if num_bytes <= hardware.l2.size_bytes:
        rate = max(rate, hardware.l2.bandwidth_bytes_per_s)
    arithmetic_s = flop / (compute.fp32_peak_flop_per_s * compute.reachable_fraction)
    return max(num_bytes / rate, arithmetic_s) + hardware.launch.overhead_s
