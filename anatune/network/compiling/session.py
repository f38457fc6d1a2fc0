"""``anatune.compile``: from a model to machine code, step by step, for any kind of device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.show import duration
from anatune.errors import BuildError, SpaceError, WorkloadError
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.network.compiling.compiled import CompiledModel, draw_inputs
from anatune.network.compiling.memory import check_model_memory
from anatune.network.compiling.model_cache import ModelCache
from anatune.network.compiling.request import (
    CompileRequest,
    Listeners,
    MeasuringOptions,
    ModelSource,
    QuantisingOptions,
)
from anatune.network.compiling.targets import needs_only_triton, target_of
from anatune.network.graph.nodes import Array
from anatune.network.graph.summary import Check, TensorSummary, TuningSummary
from anatune.report import units
from anatune.threads import one_by_one

if TYPE_CHECKING:
    from anatune.network.compiling.costs import ModelCosts
    from anatune.network.compiling.targets.base import ModelBuild, ModelTarget, PlannedModel
    from anatune.network.relax.frontends import Imported
    from anatune.network.relax.ranges import Sizes
    from anatune.tuning.cost import ModelEstimate
    from anatune.tuning.result import ModelProgress

__all__ = ["ModelPlan", "build", "compile", "compile_imported", "compile_source", "example_arrays", "plan", "tune"]


def compile(
    model: object,
    example_inputs: object = None,
    *,
    hw: HardwareLike = "host",
    threads: int | None = None,
    accuracy: str = STANDARD,
    precision: str | None = None,
    trials: int = 0,
    time_limit_s: float | None = None,
    records: str | Path | None = None,
    resume: bool = False,
    check: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    tuning_progress: Callable[[ModelProgress], None] | None = None,
    cluster: object = None,
    tls: str | Path | None = None,
    tracker: str | None = None,
    key: str | None = None,
    reuse: bool = True,
    stop_at: float | None = None,
    patience: int | None = None,
    on_estimate: Callable[[ModelEstimate], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    sizes: Sizes | None = None,
    dynamic_shapes: object = None,
    fallback: str | None = None,
    state: str | Mapping[str, str] | None = None,
    calibrate: object = None,
    percentile: float | None = None,
) -> CompiledModel:
    """Compile a whole model for a CPU or a GPU; with `trials` kernels are measured first, else nothing is.

    A file that was compiled the same way before is not compiled again: see `model_cache`. Else each different
    convolution and matrix product is planned once, weights are packed once, biases, sums of residuals and rectifiers
    are fused into the kernels that they follow. What anatune has no kernels for is compiled by TVM.
    A GPU need not be there: see `anatune.network.compiling.targets.gpu`. Threads that compile wait for each other.

    Parameters
    ----------
    model : torch.nn.Module, torch.export.ExportedProgram, str, Path or tvm.IRModule
        A string or path names an ONNX file or a saved exported program (.pt2), which ``torch.export.load`` reads: that
        runs code which the file may hold, so pass only those of people you trust.
    example_inputs : array, or sequence of arrays, optional
        NumPy or torch, of the sizes to compile for. Modules need them. ONNX files with dynamic axes are compiled for
        the range of each without them.
    hw : str, Path, CpuSpec or GpuSpec
        A CPU that runs here, or any GPU: a spec, its name, "host", or a file.
    threads : int, optional
        Of a CPU's kernels; all cores by default.
    accuracy : {"standard", "relaxed"}
        As `anatune.plan`. "relaxed" for NVIDIA's GPUs from sm_80 on, without records: products of float32 are of tf32
        on matrix units, and all kernels are Triton's; other GPUs multiply float32 on CUDA cores.
    precision : {"float32", "bfloat16", "float16", "int8", "fp8"}, optional
        Of a CPU: products multiply numbers of this dtype, sums are float32, and what lies between products has 16 bits
        where nothing but products reads it. By default the model's own, where the processor has instructions for it;
        else float32, which is more exact. "int8", for fixed sizes: products of a float32 model become those of
        integers, whose scales come from weights and from `calibrate`. The report says what each loses, and how far the
        outputs are from the float32 model's on that data. Of a GPU: 16 bits, of which all kernels are Triton's then, or
        "fp8": products with constant weights are of 8-bit floats where that is predicted to take less time, and a check
        allows 0.25.
    trials : int
        Measurements of all kernels together; they go where most time can be won. 0: kernels are the analytical
        model's first choices, or the best ones of `records`.
    time_limit_s : float, optional
        Measure nothing new after so many seconds of tuning.
    records : str or Path, optional
        Record file: every trial is on the disk before the next one; what it has counts and is not measured again. In
        the end the model runs a few times with its best kernels and with the plan's, in turn: the faster one is kept.
    resume : bool
        The record file has to be there.
    check : bool, optional
        Compare the outputs with the original's on random inputs: the default where the device is here. True for a GPU
        that is not: each kernel is run by the emulator instead, which takes seconds a kernel.
    progress : callable, optional
        Called with (products planned, products to plan).
    tuning_progress : callable, optional
        Called with an `anatune.tuning.result.ModelProgress` after every trial.
    cluster, tls, tracker, key
        As `anatune.tune`: who measures the kernels of a CPU, by default this machine. Devices that are not `hw` are
        refused.
    reuse : bool
        Whether kernels are those that `records` has of this device, and sessions begin with them. False: what other
        sessions measured does not count.
    stop_at, patience
        As `anatune.tune`, of each kernel: its trials go to the others then.
    on_estimate : callable, optional
        Called with an `anatune.tuning.cost.ModelEstimate` before anything is planned: about how long all will take.
    on_stage : callable, optional
        Called with a name of each stage as it begins: those of `anatune.network.compiling.costs.STAGES`.
    sizes : mapping of str to int, str or (int, int), optional
        Of a CPU: size that varies ("batch"; of an exported program the input and axis, "x_0") -> its range, ends
        included ("1..32", (1, 32)), or its only value. By default those of ``torch.export.Dim``, 1 to 512 without any.
    dynamic_shapes : optional
        Of a module: which of its sizes vary, as ``torch.export.export`` takes them.
    fallback : {"onnxruntime"}, optional
        Who runs the nodes of an ONNX model that cannot be read, on the CPU; the parts between them are compiled, each
        with its share of the trials. The report names them, and each part's share of the time.
    state : str or mapping of str to str, optional
        Of a CPU: names of outputs, and of the inputs that they are in the next call: these stay in the model. "auto":
        those of exported decoders (present.0.key, past_key_values.0.key). Buffers that a module of PyTorch's writes
        into stay there anyway.
    calibrate : str, Path, array, sequence of arrays or mapping of str to array, optional
        Inputs of the model, in a .npy or .npz file or as they are: by name or in order, of several calls along the
        first dimension.
    percentile : float, optional
        Share of an activation's numbers that its range holds at both ends (99.99); by default all of them.

    Raises
    ------
    WorkloadError
        The model cannot be imported: it is damaged, has operators that are not known, or is another one at other sizes.
    SpaceError
        An argument is out of range, or for another kind of device.
    BuildError
        TVM has no code for something.
    RunError
        An output differs from the original's; the CPU is not of the present machine's kind.
    DeviceError
        `trials` are asked for, and the CPU is not the present machine's.
    RecordError
        The record file cannot be used.
    TuningInterrupted
        Ctrl-C while kernels were measured; all trials are in the record file.
    MissingDependencyError
        TVM, or the library of the model, is not installed.
    """
    measuring = MeasuringOptions(
        trials=trials, time_limit_s=time_limit_s, records=records, resume=resume, cluster=cluster, tls=tls,
        tracker=tracker, key=key, reuse=reuse, stop_at=stop_at, patience=patience,
    )  # fmt: skip
    request = CompileRequest(
        threads=threads, accuracy=accuracy, precision=precision, check=check, fallback=fallback, measuring=measuring,
        quantising=QuantisingOptions(calibrate, percentile),
        listeners=Listeners(progress, tuning_progress, on_estimate, on_stage),
    )  # fmt: skip
    return compile_source(ModelSource(model, example_inputs, sizes, dynamic_shapes, state), hardware(hw), request)


@one_by_one
def compile_source(model_source: ModelSource, device: HardwareSpec, request: CompileRequest) -> CompiledModel:
    """Return a model compiled for a device, or as an equal call compiled it before; errors as `compile`."""
    if request.precision == "int8":
        return _compile_quantised(model_source.read(), device, request)
    if request.fallback is not None:
        from anatune.network.compiling.targets.cpu import require_cpu

        device = require_cpu(device)
    other_inputs = [model_source.sizes, model_source.state, model_source.dynamic_shapes]
    cache = ModelCache(model_source.model, model_source.example_inputs, device, request, other_inputs)
    compiled = cache.read()
    if compiled is None:
        from anatune.network.compiling.targets.planned import check_sizes

        _check_packages(model_source.model, device, request)
        target = target_of(device, request)
        source = model_source.read()
        if source.is_described:
            raise WorkloadError(
                f"compile: weights of {source.name} are on the meta device, which keeps shapes alone; load them, or "
                "predict what it would be by anatune.compare"
            )
        check_sizes(source, target)
        divided = _compile_divided(source, device, target) if request.fallback is not None else None
        compiled = compile_imported(source, target) if divided is None else divided
        cache.write(compiled)
    return compiled


def compile_imported(source: Imported, target: ModelTarget) -> CompiledModel:
    """Return an imported model compiled by a target, or by the one that takes what it has no code for."""
    try:
        return _compile_for_target(source, target)
    except (BuildError, SpaceError) as error:
        if (other := target.choose_fallback(error)) is None:
            raise
    return _compile_for_target(source, other)


def _compile_for_target(source: Imported, target: ModelTarget) -> CompiledModel:
    """Return an imported model compiled by a target, stage by stage; errors as `compile`."""
    from anatune.network.compiling.costs import ModelCosts

    if target.reads_float32:
        source = source.widened()
    is_checked = target.is_checked(source)
    costs = ModelCosts(target.hardware, target.threads, target.request, is_checked=is_checked)
    decisions = tune(plan(source, target, costs), target, costs)
    model = build(decisions, target, costs)
    if is_checked:
        with costs.time_stage("check"):
            checked = target.check(model, source)
        model.compiled.summary = msgspec.structs.replace(model.compiled.summary, **checked._asdict())
    costs.store(0 if decisions.tuning is None else decisions.tuning.new_trials)
    return model.compiled


@dataclass(frozen=True, repr=False)
class ModelPlan:
    """All that is decided of a model before it is built. Immutable; prints its kernels.

    Attributes
    ----------
    name : str
        Of the model.
    planned : PlannedModel
        Behind all passes, with the analytical model's first choices of kernels.
    measured : PlannedModel, optional
        The same with the best measured kernels; None: nothing is measured.
    tuning : TuningSummary, optional
        What measuring came to.
    """

    name: str
    planned: PlannedModel
    measured: PlannedModel | None = None
    tuning: TuningSummary | None = None

    @property
    def changed(self) -> PlannedModel | None:
        """The model with its measured kernels; None where they are those that were planned."""
        schedules = [kernel.schedule for kernel in self.planned.kernels]
        best = self.measured
        return None if best is None or [kernel.schedule for kernel in best.kernels] == schedules else best

    def __repr__(self) -> str:
        best = self.measured or self.planned
        lines = [
            f"  {len(kernel.nodes)} x {kernel.workload.describe()}, {duration(kernel.prediction.time_s)} each: "
            f"{kernel.schedule.describe()}"
            for kernel in best.kernels
        ]
        return "\n".join([f"{self.name}: products predicted to take {duration(best.time_s)} a run", *lines])


def plan(source: Imported, target: ModelTarget, costs: ModelCosts) -> ModelPlan:
    """Read a model's graph and plan it: passes, layouts and first choices of kernels; errors as `compile`."""
    from anatune.network.compiling.sizes.varying import environments
    from anatune.network.compiling.targets.planned import plan_model

    graph = source.graph(environments(source.ranges, source.state)[0])
    if target.hardware.kind == "cpu":
        check_model_memory(graph, source.name, checked=target.is_checked(source))
    costs.announce(graph)
    with costs.time_stage("plan"):
        return ModelPlan(source.name, plan_model(target, graph, source))


def tune(decisions: ModelPlan, target: ModelTarget, costs: ModelCosts) -> ModelPlan:
    """Return decisions with the best measured kernels, the same where none are measured; errors as `compile`."""
    if not target.measures:
        return decisions
    with costs.time_stage("tune"):
        kernels, tuning = target.tune(decisions.planned)
    return replace(decisions, measured=decisions.planned._replace(kernels=kernels), tuning=tuning)


def build(decisions: ModelPlan, target: ModelTarget, costs: ModelCosts) -> ModelBuild:
    """Return a model as machine code; of planned and measured kernels those that run faster. Errors as `compile`."""
    retuned, latency_summary = decisions.changed, None
    with costs.time_stage("build"):
        built = target.build(decisions.planned, forget=retuned is None)
    if target.measures:
        from anatune.network.compiling.tuning import (
            choose_faster,
            measure_latency,
        )  # late, as all that only tuning needs

        if retuned is None:
            latency_summary = measure_latency(built.compiled)
        else:
            with costs.time_stage("build"):
                other = target.build(retuned, forget=True)
            with costs.time_stage("tune"):
                latency_summary = choose_faster(other.compiled, built.compiled)
            built = other if latency_summary.is_tuned else built
    compiled = built.compiled
    compiled.summary = msgspec.structs.replace(compiled.summary, latency=latency_summary, tuning=decisions.tuning)
    return built


def _compile_quantised(source: Imported, device: HardwareSpec, request: CompileRequest) -> CompiledModel:
    """Return a float32 model as one of 8-bit integers; errors as `compile`."""
    from anatune.network.compiling.costs import ModelCosts
    from anatune.network.compiling.precision.quantising import output_error, quantise_model
    from anatune.network.compiling.sizes.varying import environments, varying_ranges
    from anatune.network.compiling.targets.cpu import require_cpu
    from anatune.network.relax.ranges import name_of

    device = require_cpu(device)
    sizes = ", ".join(map(name_of, varying_ranges(source.ranges)))
    state = ", ".join(pair.name for pair in source.state)
    for refused, advice in (
        (f"sizes of {source.name} vary ({sizes})" if sizes else "", "give example inputs (--input-shape)"),
        (f"{source.name} has state ({state})" if state else "", "leave it out"),
        ("a fallback is named" if request.fallback is not None else "", "leave it out"),
    ):
        if refused:
            raise SpaceError(
                f"compile: {refused}, which precision int8 does not take; {advice}, or leave precision out"
            )
    target = target_of(device, request)
    costs = ModelCosts(device, target.threads, request, is_checked=False)
    costs.announce(source.graph(environments(source.ranges, source.state)[0]), calibrates=True)
    listeners = msgspec.structs.replace(request.listeners, progress=None)
    plain_request = msgspec.structs.replace(request, measuring=MeasuringOptions(), listeners=listeners)
    data, percentile = request.quantising.calibrate, request.quantising.percentile
    with costs.time_stage("calibrate"):
        quantised_model = quantise_model(source.widened(), lambda: target_of(device, plain_request), data, percentile)
    listeners = msgspec.structs.replace(request.listeners, on_estimate=None)
    build_request = msgspec.structs.replace(request, listeners=listeners, check=None)
    compiled = compile_imported(quantised_model.source, target_of(device, build_request))
    check = None
    if request.check is not False:
        with costs.time_stage("check"):
            error = output_error(compiled, quantised_model.calls)
        calls = units.many(len(quantised_model.calls), "call")
        check = None if error is None else Check(error, None, f"the float32 model in {calls} of the calibration data")
    compiled.summary = msgspec.structs.replace(compiled.summary, losses=quantised_model.losses, check=check)
    return compiled


def _compile_divided(source: Imported, device: HardwareSpec, target: ModelTarget) -> CompiledModel | None:
    """Return a model of which another engine runs what cannot be read; None: all can be read. Errors as `compile`."""
    from anatune.network.compiling.divided import compile_parts

    def compile_part(part: Imported, part_request: CompileRequest) -> CompiledModel:
        return compile_imported(part, target_of(device, part_request))

    return compile_parts(source, target.request, target.threads, compile_part)


def _check_packages(model: object, device: HardwareSpec, request: CompileRequest) -> None:
    """Raise MissingDependencyError for all that is missing of what reads the model and compiles for the device."""
    from anatune.codegen.compat import import_tvm
    from anatune.named import check_all, import_optional

    checks: list[Callable[[], object]] = [import_tvm]
    if str(model).endswith(".onnx"):
        checks.append(partial(import_optional, "onnx", "onnx", "anatune compile of ONNX files"))
    if device.kind == "gpu":
        from anatune.codegen.toolchains import toolchain_of

        template = "triton" if needs_only_triton(device, request) else "cuda"
        checks.append(partial(toolchain_of(template).check_target, device))
    check_all(*checks)


def example_arrays(path: Path, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return arrays of given sizes for the inputs of an ONNX file.

    Raises
    ------
    WorkloadError
        The file is damaged, or has another number of inputs.
    """
    from anatune.network.relax.onnx_files import onnx_inputs

    inputs = onnx_inputs(path)
    if len(inputs) != len(shapes):
        names = ", ".join(name for name, _ in inputs)
        raise WorkloadError(f"{path}: {len(shapes)} shapes were given, expected one for each input: {names}")
    return draw_inputs(
        [TensorSummary(name, dtype, shape) for (name, dtype), shape in zip(inputs, shapes, strict=True)], 0
    )
