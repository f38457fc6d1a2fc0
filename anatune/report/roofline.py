"""The peaks of a device, and the lower bounds on the time of a workload that follow from them."""

from __future__ import annotations

from typing import NamedTuple

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates import get_template


class Roofline(NamedTuple):
    """Lower bounds on every time, s: arithmetic at the peak, at the reachable peak, and DRAM traffic."""

    fma_s: float
    fma_reachable_s: float
    dram_s: float


def peak_flop_per_s(hardware: GpuSpec | CpuSpec, dtype: str, template: str = "") -> float:
    """Return the peak for operands of `dtype`, operations per second; see the spec's method of the same name."""
    return get_template(template).peak_flop_per_s(dtype, hardware) if template else hardware.peak_flop_per_s(dtype)


def workload_peak(workload: Workload, hardware: GpuSpec | CpuSpec, template: str = "") -> float:
    """Return the peak of the units that a template's kernel of a workload uses, operations per second."""
    if workload.multiplies:
        packed = workload.is_kernel and workload.dtype == "uint8"  # 4-bit floats, two in a byte
        return peak_flop_per_s(hardware, workload.dtype, template) * (2.0 if packed else 1.0)
    return hardware.peak_flop_per_s("float32")  # kernels of rows compute in float32


def ceiling(workload: Workload, hardware: GpuSpec | CpuSpec, template: str = "") -> tuple[float, float]:
    """Return the work of a workload (operations, or bytes if it has none), and the most of it per second."""
    if workload.flop:
        return workload.flop, workload_peak(workload, hardware, template)
    return workload.compulsory_bytes, hardware.dram.bandwidth_bytes_per_s


def dram_bandwidth(hardware: GpuSpec | CpuSpec) -> tuple[float, float]:
    """Return the nominal and the reachable DRAM bandwidth in bytes/s; equal if the spec has only one."""
    paper = hardware.dram.bandwidth_bytes_per_s
    return paper, paper * getattr(hardware.dram, "reachable_fraction", 1.0)


def reachable_share(hardware: GpuSpec | CpuSpec, template: str = "") -> float:
    """Return the share of the peak that compiled code of a template reaches."""
    return get_template(template).reachable_share(hardware) if template else hardware.reachable_share()


def roofline(workload: Workload, hardware: GpuSpec | CpuSpec, template: str = "") -> Roofline:
    """Return the lower bounds of `workload` on `hardware`: all its operations, and its compulsory bytes once."""
    peak = workload_peak(workload, hardware, template)
    return Roofline(
        fma_s=workload.flop / peak,
        fma_reachable_s=workload.flop / (peak * reachable_share(hardware, template)),
        dram_s=workload.compulsory_bytes / hardware.dram.bandwidth_bytes_per_s,
    )
