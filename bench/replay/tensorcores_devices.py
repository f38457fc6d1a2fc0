"""The specs of the devices that tables of tensor-core kernels name, and what a device's own cuBLAS rows say of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from anatune.core.hardware.files import hardware
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import AnatuneError
from bench.replay.tensorcores_tables import Choices

__all__ = ["anchored", "spec_named"]

_SPECS = {
    "A100": "a100_sxm_80gb",
    "A100-SXM4-80GB": "a100_sxm_80gb",
    "A100-PCIE-40GB": "a100_pcie",
    "H100": "h100_sxm",
    "H100 80GB HBM3": "h100_sxm",
    "H100 PCIe": "h100_pcie",
    "GB200": "b200",
    "GB300": "b200",
    "B300": "b200",
    "RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000",
}
"""Names of the tables -> ours, where they are not alike."""
_LARGE_FLOP = 2e11
_LARGE_BYTES = 3e8
_FEWEST = 5


def spec_named(device: str) -> GpuSpec | None:
    """Return the spec of a table's device; None, and a printed line, where there is none."""
    try:
        spec = hardware(_SPECS.get(device, device.lower().replace(" ", "_").replace("-", "_")))
    except AnatuneError as error:
        print(f"{device}: left out: {error}")
        return None
    if not isinstance(spec, GpuSpec):
        print(f"{device}: left out: {spec.name} is no GPU")
        return None
    return spec


def anchored(spec: GpuSpec, rows: Iterable[Choices]) -> GpuSpec:
    """Return the spec with the DRAM bandwidth and the matrix rate under load that cuBLAS reached on the same device.

    The tables do not say which A100 or H100, how much power it was allowed, nor its clocks. Only cuBLAS' times are
    used, of products of over 200 GFLOP (95th percentile of the rate) and of those that move over 300 MB at less than a
    tenth of that rate (largest bandwidth); nothing changes where there are fewer than five.
    """
    rates, bandwidths = [], []
    for row in rows:
        p = row.problem
        if not row.library_s > 0 or p.converts:
            continue
        flop = 2.0 * p.m * p.n * p.k
        moved = (p.m * p.k + p.k * p.n) * p.element_bytes + p.m * p.n * p.result_bytes
        peak = spec.tensor_flop_per_s("float32" if p.dtype == "tf32" else p.dtype)
        if flop > _LARGE_FLOP and p.element_bytes == 2 and peak:
            rates.append(flop / row.library_s / peak)
        if moved > _LARGE_BYTES and peak and flop / row.library_s < 0.1 * peak:
            bandwidths.append(moved / row.library_s)
    if len(rates) >= _FEWEST and spec.tensor_cores is not None:
        share = float(min(1.0, np.quantile(rates, 0.95)))
        spec = replace(spec, tensor_cores=replace(spec.tensor_cores, sustained_fraction=round(share, 3)))
    if len(bandwidths) >= _FEWEST:
        nominal = max(bandwidths) / spec.dram.reachable_fraction
        spec = replace(spec, dram=replace(spec.dram, bandwidth_bytes_per_s=nominal))
    return spec
