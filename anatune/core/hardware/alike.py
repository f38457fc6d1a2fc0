"""Whether two specs describe the same kind of device: kernels of one run on the other, and times can be compared."""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec, HardwareSpec

__all__ = ["difference"]

_OTHER_MEMORY = 1.2
"""Devices whose bandwidths differ by more than this factor are not the same."""


def difference(wanted: HardwareSpec, there: HardwareSpec) -> tuple[str, str] | None:
    """Return what `wanted` is and what is there instead, in words; None if they are the same kind of device.

    CPUs are told apart by architecture and instruction set. GPUs by architecture and multiprocessors, and by the
    bandwidth of their memory: an H100 and an H200 differ in that only.
    """
    if wanted.kind == "cpu" and there.kind == "cpu":
        if (wanted.arch, wanted.compute.isa) == (there.arch, there.compute.isa):
            return None
        return f"a {wanted.arch} with {wanted.compute.isa}", f"a {there.arch} with {there.compute.isa}"
    if wanted.kind == "gpu" and there.kind == "gpu":
        if _words(wanted) != _words(there):
            return _words(wanted), _words(there)
        bandwidths = wanted.dram.bandwidth_bytes_per_s, there.dram.bandwidth_bytes_per_s
        if max(bandwidths) <= _OTHER_MEMORY * min(bandwidths):
            return None
        first, second = (f"{value / 1e9:.0f} GB/s" for value in bandwidths)
        return f"a GPU with {first}", f"one with {second}"
    return f"a {wanted.kind.upper()}", f"a {there.kind.upper()} ({there.model})"


def _words(gpu: GpuSpec) -> str:
    return f"an {gpu.arch} with {gpu.compute.num_sms} multiprocessors"
