"""Devices that whole models are compiled for: what each kind has to say, as one interface.

A kind is imported when a model is for it: compiling for a CPU loads nothing of GPUs.
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
    """Whether a GPU's kernels are all Triton's."""
    if request.precision is not None or (device.kind == "gpu" and device.vendor == "amd"):
        return True
    return _can_round_float32(device, request)


def _can_round_float32(device: HardwareSpec, request: CompileRequest) -> bool:
    """Whether products of float32 may be tf32's: kernels with records are those that were measured, on CUDA cores."""
    if device.kind != "gpu" or request.accuracy != RELAXED or request.trials or request.records is not None:
        return False
    from anatune.core.workload.operators.matmul import matmul
    from anatune.templates import TRITON

    return TRITON.takes(matmul(512, 512, 512), device)


def target_of(device: HardwareSpec, request: CompileRequest) -> ModelTarget:
    """Return what a kind of device has to say when models are compiled for it."""
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
    """Return a compiled model of any kind, as `CompiledModel` takes it."""
    from anatune.network.compiling.compiled import CompiledModel

    kind = CompiledModel
    if summary.launches:
        from anatune.network.compiling.targets.launched import LaunchedModel

        kind = LaunchedModel
    return kind(summary, library, memory, scratch, is_cached=is_cached)
