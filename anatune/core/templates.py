"""Templates: what kinds of schedules there are, one record each, and where the parts of anatune lie that make them.

A part is the name of an object, ``module:object``, that `Template.part` imports: nothing is imported for a template
that nobody asks for, and core knows no other floor. What all templates of a kind of device share stands in its
`DeviceKind`. Code that holds a schedule, a space or a model asks its template; it does not compare names or types.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from anatune.arguments import checked_choice
from anatune.named import resolve

__all__ = [
    "CPU",
    "CUDA",
    "HALFSUMS",
    "PIPELINED",
    "TEMPLATES",
    "TENSORCORE",
    "THIN",
    "WINOGRAD",
    "DeviceKind",
    "Template",
    "joined_templates",
    "template_named",
    "template_of",
    "templates_of",
]


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


class Template(_Parts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of schedules. Immutable.

    Attributes
    ----------
    name : str
        On the command line, in schedules, JSON, records and cards.
    device : DeviceKind
        What it is for. The first template of a device's kind is its default.
    code : str
        Room of ``anatune/templates`` whose compiled code its model runs.
    ranges : str or None
        ``(ranged workload, hardware) -> ProgramFamily`` (`base.family`): programs that take an extent when they
        are called; None: it has none.
    tensor_cores : bool
        Whether products are made on matrix units: float32 operands are rounded to tf32, sums are cut off.
    widens : str or None
        Template whose schedules it holds, all of them, among more: tuning takes it in its place where it applies.
    joins : bool
        Whether it is ranked and tuned together with its device's default where it applies and nobody names a template.
    rules : str
        ``(workload, hardware, tiles, unroll, vector, options) -> None``: raises SpaceError for what is no schedule.
    levels : str
        ``workload -> {axis: names of its factors, outer to inner}``.
    applies : str or None
        ``(workload, hardware) -> bool``; None: to every workload and device of its kind.
    model : str
        ``(workload, hardware) -> Model``, the analytical model, with its tile space as ``.space``.
    accuracies : tuple of str
        Those of `core.accuracy.ACCURACIES` at which it has schedules.
    accuracy : str or None
        ``schedule -> accuracy`` that its arithmetic needs, one of `core.accuracy.ACCURACIES`; None: all are "standard".
        The model then takes the keyword ``accuracy``, and its space holds what that admits.
    error : str or None
        ``schedule -> float``: largest error that rounding explains, over the result's scale, with the margin of
        `core.accuracy.rounding_error` (11 standard deviations). None: a plain sum's, which that function gives.
    program_key : str
        ``schedule -> Hashable``: equal for schedules that become the same program.
    program : str
        ``schedule -> program``: what the lowering of its device turns into a TVM module.
    learner : str
        Strategy that tunes by default and learns from each trial (`search.base.make_strategy`).
    feature_version : int
        Of the features of its model's points (`base.features`): corrections learned from another are refused.
    corrections : str or None
        Tuner whose kernels the shipped corrections describe that also hold for this template's.
    diverse : bool
        Whether its model's errors have been measured, so that few are kept by what they differ in
        (`model.pruning.diversity`).
    """

    name: str
    device: DeviceKind
    code: str
    ranges: str | None = None
    tensor_cores: bool = False
    widens: str | None = None
    joins: bool = False
    rules: str
    levels: str
    applies: str | None = None
    model: str
    accuracies: tuple[str, ...] = ("standard", "relaxed")
    accuracy: str | None = None
    all_accuracy: str = "relaxed"
    """What its model is made for where nobody says: all schedules that give the same results each time."""
    error: str | None = None
    program_key: str
    program: str
    learner: str = "anatune.search.strategies.learned:LearnedStrategy"
    feature_version: int = 1
    corrections: str | None = None
    diverse: bool = False

    def takes(self, workload: Any, hardware: Any) -> bool:
        """Return whether it applies to a workload on a device of its kind."""
        return self.applies is None or bool(self.part("applies")(workload, hardware))


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

CUDA = Template(
    name="cuda",
    device=_GPU,
    code="cuda",
    corrections="ansor",
    diverse=True,
    rules="anatune.templates.cuda.rules:check_cuda",
    ranges="anatune.templates.cuda.model.ranges:CudaRanges",
    levels="anatune.templates.cuda.rules:levels_of",
    accuracy="anatune.templates.gpu.split_space:needed_accuracy",
    all_accuracy="standard",
    model="anatune.templates.cuda.model.model:GpuModel",
    program_key="anatune.templates.cuda.program.nest:program_key",
    program="anatune.templates.cuda.program.cuda_cores:kernel_program",
)
"""Block, virtual thread, thread and register tiles on CUDA cores; operands staged in shared memory."""
PIPELINED = Template(
    name="pipelined",
    device=_GPU,
    code="cuda",
    widens="cuda",
    rules="anatune.templates.cuda.rules:check_pipelined",
    levels="anatune.templates.cuda.rules:levels_of",
    accuracy="anatune.templates.gpu.split_space:needed_accuracy",
    all_accuracy="standard",
    applies="anatune.templates.cuda.rules:pipeline_applies",
    model="anatune.templates.cuda.model.pipelined:PipelinedModel",
    program_key="anatune.templates.cuda.program.nest:program_key",
    program="anatune.templates.cuda.program.cuda_cores:kernel_program",
)
"""The same with a choice of staging pipeline and of padded rows in shared memory."""
TENSORCORE = Template(
    name="tensorcore",
    device=_GPU,
    code="tensorcore",
    tensor_cores=True,
    rules="anatune.templates.tensorcore.rules:check_tensorcore",
    levels="anatune.templates.tensorcore.rules:levels_of",
    accuracy="anatune.templates.gpu.split_space:needed_accuracy",
    all_accuracy="standard",
    model="anatune.templates.tensorcore.model:TensorCoreModel",
    program_key="anatune.core.schedule:schedule_key",
    program="anatune.templates.tensorcore.program.program:tensorcore_program",
)
"""Block, warp and instruction tiles of the matrix product behind a workload, on tensor cores."""
THIN = Template(
    name="thin",
    device=_GPU,
    code="thin",
    joins=True,
    rules="anatune.templates.thin.rules:check_thin",
    levels="anatune.templates.thin.rules:levels_of",
    applies="anatune.templates.thin.rules:applies",
    model="anatune.templates.thin.model:ThinModel",
    program_key="anatune.core.schedule:schedule_key",
    program="anatune.templates.thin.program.program:thin_program",
)
"""Products with a vector or few rows, and long reductions: one operand is streamed once, threads share its sums."""
CPU = Template(
    name="cpu",
    device=_CPU,
    code="cpu",
    rules="anatune.templates.cpu.rules:check_cpu",
    levels="anatune.templates.cpu.rules:levels_of",
    model="anatune.templates.cpu.model.model:CpuModel",
    ranges="anatune.templates.cpu.model.ranges:CpuFamily",
    program_key="anatune.templates.cpu.program.nest:program_key",
    program="anatune.templates.cpu.program.program:program_of",
    learner="anatune.search.strategies.ranked:ModelStrategy",
    feature_version=2,
)
"""A microkernel or a pair of them, cache tiles, loop orders, packing and a parallel loop."""
WINOGRAD = Template(
    name="winograd",
    device=_CPU,
    code="winograd",
    joins=True,
    rules="anatune.templates.winograd.rules:check_winograd",
    levels="anatune.templates.winograd.rules:levels_of",
    applies="anatune.templates.winograd.rules:applies",
    model="anatune.templates.winograd.model:WinogradModel",
    accuracy="anatune.templates.winograd.space:needed_accuracy",
    error="anatune.templates.winograd.space:largest_error",
    program_key="anatune.core.schedule:schedule_key",
    program="anatune.templates.winograd.program.program:program_of",
)
"""3x3 convolutions of stride 1 by Winograd's transforms F(2x2, 3x3) and F(4x4, 3x3), on CPUs."""
HALFSUMS = msgspec.structs.replace(
    CPU,
    name="fp16_accumulation",
    joins=True,
    rules="anatune.templates.cpu.rules:check_half_sums",
    applies="anatune.templates.cpu.dot:half_sums_apply",
    ranges=None,
    model="anatune.templates.cpu.model.fp16_accumulation:HalfSumsModel",
    accuracies=("relaxed",),
    accuracy="anatune.templates.cpu.fp16_accumulation:needed_accuracy",
    error="anatune.templates.cpu.fp16_accumulation:largest_error",
)
"""The template "cpu" on float16 with sums of a call in half precision (AVX512_FP16), those of calls in float32."""

TEMPLATES = {one.name: one for one in (CUDA, PIPELINED, TENSORCORE, THIN, CPU, WINOGRAD, HALFSUMS)}
"""Every template by its name. A new one stands here."""


class _Device(Protocol):
    """What is asked of a hardware spec here."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


def template_named(name: str) -> Template:
    """Return the template of that name."""
    return TEMPLATES[name]


def templates_of(hardware: _Device) -> tuple[Template, ...]:
    """Return the templates of a device's kind, its default first."""
    return tuple(one for one in TEMPLATES.values() if one.device.name == hardware.kind)


def joined_templates(workload: Any, hardware: _Device, accuracy: str) -> tuple[Template, ...]:
    """Return the templates that are ranked together where nobody names one: the default, and those that join it.

    Parameters
    ----------
    accuracy : str
        One of `core.accuracy.ACCURACIES`: those that have no schedule at it do not join.
    """
    default, *others = templates_of(hardware)
    joining = (one for one in others if one.joins and accuracy in one.accuracies)
    return (default, *(one for one in joining if one.takes(workload, hardware)))


def template_of(name: str | None, hardware: _Device) -> Template:
    """Return the template of a device that is asked for by its name; None: its default.

    Raises
    ------
    SpaceError
        There is none of that name for the device.
    """
    known = templates_of(hardware)
    if name is None:
        return known[0]
    names = tuple(one.name for one in known)
    return TEMPLATES[checked_choice("template", name, names, otherwise=f"for {hardware.name}")]
