"""The templates that are known, as far as schedules need them: rooms of `anatune.templates` register theirs here.

Schedules, which are below all templates, are checked by the one that they name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anatune.named import resolve

__all__ = ["DEVICES", "REGISTERED", "DeviceKind"]


REGISTERED: dict[str, Any] = {}
"""Name -> `base.template.Template`, the default of each kind of device first."""


class _Parts(msgspec.Struct, frozen=True):
    """A record whose fields name objects, ``module:object``."""

    def part(self, name: str) -> Any:
        """Return the object that the field called `name` names."""
        return resolve(getattr(self, name))


class DeviceKind(_Parts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all templates of a kind of device share. Immutable.

    Attributes
    ----------
    name : str
        "gpu" or "cpu": ``kind`` of a spec file.
    lowering : str
        ``(schedule, threads) -> codegen.lowered.Lowered``: takes all tensors in the workload's own layouts.
    measurer : str
        Class that builds, checks and times schedules (`measure.run.measurer.Measurer`).
    protocol : str
        How long and how often that times a kernel (`measure.run.timing.TimingProtocol`).
    kernel : str
        ``(schedule, threads) -> kernel``: built and loaded into this process.
    verifier : str
        ``(schedule, threads, seed) -> Verification``.
    inspector : str
        ``(schedule, threads) -> dict``: what the compiler says.
    functions : str
        Class of TVM functions whose nest can be a kernel (`codegen.tvm.kernel.TirTask`).
    range_kernel, range_verifier : str
        Of plans for a range: ``(plan, threads) -> kernel`` of every extent; ``(plan, threads, seed) -> Verification``.
    streaming : str
        ``(hardware, num_bytes, flop) -> seconds`` of a call that reads and writes tensors once.
    models : str
        ``(source, hardware, request) -> CompiledModel``: compiles whole models (`compiling.session.compile`).
    """

    name: str
    lowering: str
    measurer: str
    protocol: str
    kernel: str
    verifier: str
    inspector: str
    functions: str
    streaming: str
    models: str
    range_kernel: str
    range_verifier: str


_GPU = DeviceKind(
    name="gpu",
    lowering="anatune.codegen.cuda.lower:lower_gpu",
    measurer="anatune.measure.cuda.measurer:GpuMeasurer",
    protocol="anatune.measure.cuda.runner:GPU_PROTOCOL",
    kernel="anatune.measure.cuda.calls:build",
    verifier="anatune.measure.cuda.calls:verify",
    inspector="anatune.measure.cuda.calls:inspect",
    functions="anatune.codegen.tvm.gpu_kernel:GpuTirTask",
    streaming="anatune.templates.gpu.streaming:streaming_s",
    models="anatune.compiling.gpu:compile_for_gpu",
    range_kernel="anatune.measure.cuda.ranges:build_range",
    range_verifier="anatune.measure.cuda.ranges:verify_range",
)
_CPU = DeviceKind(
    name="cpu",
    lowering="anatune.codegen.cpu.lower:lower_whole",
    measurer="anatune.measure.cpu.measurer:CpuMeasurer",
    protocol="anatune.measure.run.timing:CPU_PROTOCOL",
    kernel="anatune.measure.cpu.calls:build",
    range_kernel="anatune.measure.cpu.ranged:build",
    verifier="anatune.measure.cpu.calls:verify",
    inspector="anatune.measure.cpu.calls:inspect",
    functions="anatune.codegen.tvm.kernel:TirTask",
    streaming="anatune.templates.cpu.model.streaming:streaming_s",
    models="anatune.compiling.session:compile_for_cpu",
    range_verifier="anatune.measure.cpu.ranged:verify",
)
DEVICES = {kind.name: kind for kind in (_GPU, _CPU)}
