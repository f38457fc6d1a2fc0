"""The least time of a server's products on a device: bytes over bandwidth, arithmetic over the peak, launches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.access import FLOAT8_DTYPES
from anatune.templates.triton.grouped.layer import ExpertLayer
from anatune.templates.triton.problem import MatmulProblem

__all__ = ["Floor", "floor_of"]


class Floor(NamedTuple):
    """Seconds that no tile undercuts, and what takes most of them: "dram", "mma" or "launch"."""

    time_s: float
    bound_by: str


class _Kernel(NamedTuple):
    weight_bytes: float
    row_bytes: float
    """Of what it reads beside the weights, and of its results."""
    flop: float


def floor_of(what: ExpertLayer | MatmulProblem, spec: GpuSpec) -> Floor:
    """Return the least time of the products of a layer of experts, or of one product.

    Weights come from DRAM once: those of experts that have a row. Rows and results do as far as L2 cannot hold them.
    Scales of weights do not count, nor do rows that only padding asks for.
    """
    kernels = list(_kernels(what))
    dtype = what.dtype
    names = FLOAT8_DTYPES if dtype == "fp8" else (dtype,)
    rates = [rate for name in ("bfloat16", *names) if (rate := spec.tensor_flop_per_s(name))]
    peak = max(rates, default=spec.compute.fp32_peak_flop_per_s)
    spans = {"dram": 0.0, "mma": 0.0, "launch": len(kernels) * spec.launch.overhead_s}
    for kernel in kernels:
        moved = kernel.weight_bytes + max(0.0, kernel.row_bytes - spec.l2.size_bytes)
        dram_s, mma_s = moved / spec.dram.bandwidth_bytes_per_s, kernel.flop / peak
        spans["dram" if dram_s >= mma_s else "mma"] += max(dram_s, mma_s)
    return Floor(sum(spans.values()), max(spans, key=spans.__getitem__))


def _kernels(what: ExpertLayer | MatmulProblem) -> Iterable[_Kernel]:
    if isinstance(what, MatmulProblem):
        moved = float(what.m * (what.k * what.element_bytes + what.n * what.result_bytes))
        yield _Kernel(what.n * what.k * what.right_element_bytes, moved, 2.0 * what.m * what.n * what.k)
        return
    count = what.routing.num_rows
    for layer in what.products():
        product = layer.product
        weights = what.routing.num_active * layer.n * layer.k * product.right_element_bytes
        read = min(float(what.tokens), count) if layer.gathered else count
        moved = read * layer.k * product.element_bytes + count * layer.n * product.result_bytes
        yield _Kernel(weights, moved, 2.0 * count * layer.n * layer.k)
