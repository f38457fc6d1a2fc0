"""What a device can do at most, and the least time a workload needs on it."""

from __future__ import annotations

from typing import NamedTuple

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates import template_named


class Roofline(NamedTuple):
    """The floors below which no schedule can go, in seconds, at theoretical peaks and at reachable ones."""

    fma_s: float
    fma_reachable_s: float
    dram_s: float


def peak_flop_per_s(hardware: GpuSpec | CpuSpec, dtype: str, template: str = "") -> float:
    """Return the theoretical peak for operands of `dtype`, operations a second; see the spec's method of that name."""
    return template_named(template).peak_flop_per_s(dtype, hardware) if template else hardware.peak_flop_per_s(dtype)


def workload_peak(workload: Workload, hardware: GpuSpec | CpuSpec, template: str = "") -> float:
    """Return the theoretical peak of the unit that makes a template's kernel of a workload, operations a second."""
    if workload.multiplies:
        packed = workload.is_kernel and workload.dtype == "uint8"  # 4-bit floats, two of which count as one of 8 bits
        return peak_flop_per_s(hardware, workload.dtype, template) * (2.0 if packed else 1.0)
    return hardware.peak_flop_per_s("float32")  # kernels of rows convert what they read


def ceiling(workload: Workload, hardware: GpuSpec | CpuSpec, template: str = "") -> tuple[float, float]:
    """Return the work that a speed counts, and the most of it in a second: operations, bytes where there are none."""
    if workload.flop:
        return workload.flop, workload_peak(workload, hardware, template)
    return workload.compulsory_bytes, hardware.dram.bandwidth_bytes_per_s


def dram_bandwidth(hardware: GpuSpec | CpuSpec) -> tuple[float, float]:
    """Return the nominal and the reachable DRAM bandwidth in bytes/s (the same where the spec tells only one)."""
    paper = hardware.dram.bandwidth_bytes_per_s
    return paper, paper * getattr(hardware.dram, "reachable_fraction", 1.0)


def reachable_share(hardware: GpuSpec | CpuSpec, template: str = "") -> float:
    """Return the share of the theoretical peak that compiled code of a template reaches."""
    return template_named(template).reachable_share(hardware) if template else hardware.reachable_share()


def roofline(workload: Workload, hardware: GpuSpec | CpuSpec, template: str = "") -> Roofline:
    """Return the floors of `workload` on `hardware`: all its operations, and its compulsory bytes once."""
    peak = workload_peak(workload, hardware, template)
    return Roofline(
        fma_s=workload.flop / peak,
        fma_reachable_s=workload.flop / (peak * reachable_share(hardware, template)),
        dram_s=workload.compulsory_bytes / hardware.dram.bandwidth_bytes_per_s,
    )
