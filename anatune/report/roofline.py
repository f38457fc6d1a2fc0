"""What a device can do at most, and the least time a workload needs on it."""

from __future__ import annotations

from typing import NamedTuple

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.template_names import TENSORCORE
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES, Workload

__all__ = ["Roofline", "dram_bandwidth", "peak_flop_per_s", "reachable_share", "roofline"]


class Roofline(NamedTuple):
    """The floors below which no schedule can go, in seconds, at paper peaks and at reachable ones."""

    fma_s: float
    fma_reachable_s: float
    dram_s: float
    dram_reachable_s: float

    @property
    def ridge(self) -> str:
        """The floor that is higher: "fma" or "dram"."""
        return "fma" if self.fma_s >= self.dram_s else "dram"


def peak_flop_per_s(hardware: GpuSpec | CpuSpec, dtype: str, template: str = "") -> float:
    """Return the paper peak for operands of `dtype`, operations a second.

    GPUs: the float32 peak times the spec's rate of the dtype; for the template "tensorcore" the tensor cores' own.
    CPUs: vectors hold elements of the dtype that sums are kept in, four bytes each, so that the float32 peak holds for
    all.
    """
    if isinstance(hardware, GpuSpec) and template == TENSORCORE:
        peak = hardware.tensor_flop_per_s(dtype)
        if peak is not None:
            return peak
    peak = hardware.compute.fp32_peak_flop_per_s
    if isinstance(hardware, GpuSpec):
        return peak * hardware.arithmetic_rate(dtype)
    return peak * 4 / DTYPE_BYTES[ACCUMULATOR_DTYPE.get(dtype, dtype)]


def dram_bandwidth(hardware: GpuSpec | CpuSpec) -> tuple[float, float]:
    """Return the paper and the reachable DRAM bandwidth in bytes/s (the same where the spec tells only one)."""
    paper = hardware.dram.bandwidth_bytes_per_s
    return paper, paper * getattr(hardware.dram, "reachable_fraction", 1.0)


def reachable_share(hardware: GpuSpec | CpuSpec, template: str = "") -> float:
    """Return the share of the paper peak that compiled code of a template reaches."""
    if isinstance(hardware, GpuSpec) and template == TENSORCORE and hardware.tensor_cores is not None:
        return hardware.tensor_cores.mma_sync_fraction
    return hardware.compute.reachable_fraction


def roofline(workload: Workload, hardware: GpuSpec | CpuSpec, template: str = "") -> Roofline:
    """Return the floors of `workload` on `hardware`: all its operations, and its compulsory bytes once."""
    peak = peak_flop_per_s(hardware, workload.dtype, template)
    paper, reachable = dram_bandwidth(hardware)
    return Roofline(
        fma_s=workload.flop / peak,
        fma_reachable_s=workload.flop / (peak * reachable_share(hardware, template)),
        dram_s=workload.compulsory_bytes / paper,
        dram_reachable_s=workload.compulsory_bytes / reachable,
    )
