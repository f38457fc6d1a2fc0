"""Devices that whole models are compiled for, with one interface.

The module of a kind of device is imported on use: compiling for a CPU imports nothing of GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anatune.core.accuracy import RELAXED
from anatune.core.hardware.spec import HardwareSpec

if TYPE_CHECKING:
    from anatune.network.compiling.compiled import CompiledModel
    from anatune.network.compiling.memory import Memory
    from anatune.network.compiling.request import CompileRequest
    from anatune.network.compiling.targets.base import ModelTarget
    from anatune.network.graph.summary import ModelSummary

__all__ = ["make_compiled_model", "needs_only_triton", "target_of"]


def needs_only_triton(device: HardwareSpec, request: CompileRequest) -> bool:
    """Return whether Triton compiles all kernels of a model; meaningful for GPUs only."""
    if request.precision is not None or (device.kind == "gpu" and device.vendor == "amd"):
        return True
    return _can_round_float32(device, request)


def _can_round_float32(device: HardwareSpec, request: CompileRequest) -> bool:
    """Return whether float32 products may run as tf32; with records they may not: those are measured on CUDA cores."""
    if device.kind != "gpu" or request.accuracy != RELAXED or request.trials or request.records is not None:
        return False
    from anatune.core.workload.operators.matmul import matmul
    from anatune.templates import TRITON

    return TRITON.takes(matmul(512, 512, 512), device)


def target_of(device: HardwareSpec, request: CompileRequest) -> ModelTarget:
    """Return the target of a device for one request."""
    if device.kind == "gpu" and needs_only_triton(device, request):
        from anatune.network.compiling.targets.triton import TritonTarget

        return TritonTarget(device, request)
    if device.kind == "gpu":
        from anatune.network.compiling.targets.gpu import GpuTarget

        return GpuTarget(device, request)
    from anatune.network.compiling.targets.cpu import CpuTarget

    return CpuTarget(device, request)


def make_compiled_model(
    summary: ModelSummary, library: Path, memory: Memory, scratch: Path | None = None, *, is_cached: bool = False
) -> CompiledModel:
    """Return a compiled model of the class that runs it; arguments as `CompiledModel`."""
    from anatune.network.compiling.compiled import CompiledModel

    kind = CompiledModel
    if summary.launches:
        from anatune.network.compiling.targets.launched import LaunchedModel

        kind = LaunchedModel
    return kind(summary, library, memory, scratch, is_cached=is_cached)
