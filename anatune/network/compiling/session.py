"""``anatune.compile``: read a model, plan, measure, build and check it, for any kind of device."""

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
from anatune.network.compiling.request import CompileRequest, Int8Options, Listeners, MeasuringOptions, ModelSource
from anatune.network.compiling.targets import needs_only_triton, target_of
from anatune.network.graph.nodes import Array
from anatune.network.graph.summary import Check, TensorSummary, TuningSummary
from anatune.report import units
from anatune.threads import compile_in_turn

if TYPE_CHECKING:
    from anatune.network.compiling.costs import ModelCosts
    from anatune.network.compiling.targets.base import ModelBuild, ModelTarget, PlannedModel
    from anatune.network.relax.frontends import ImportedModel
    from anatune.network.relax.ranges import Sizes
    from anatune.tuning.cost import ModelEstimate
    from anatune.tuning.result import ModelProgress

__all__ = ["ModelPlan", "build", "compile", "compile_source", "compile_with_fallback", "example_arrays", "plan", "tune"]


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
    """Compile a whole network for a CPU or a GPU. With `trials`, its kernels are measured first.

    A model file that was compiled the same way before is loaded from the user's cache (`model_cache`). Otherwise each
    different convolution and matrix product is planned once and its weights are packed once. Biases, residual sums and
    activations are fused into the kernels before them. TVM compiles the operators that anatune has no kernels for.
    The GPU need not be present: see `anatune.network.compiling.targets.gpu`. Threads that compile take turns.

    Parameters
    ----------
    model : torch.nn.Module, torch.export.ExportedProgram, str, Path or tvm.IRModule
        A string or path names an ONNX file or a saved exported program (.pt2). ``torch.export.load``, which reads the
        latter, runs code that the file may contain: pass only files from people you trust.
    example_inputs : array, or sequence of arrays, optional
        NumPy or torch arrays of the sizes to compile for. Modules need them. Without them, an ONNX file with dynamic
        axes is compiled for the range of each.
    hw : str, Path, CpuSpec or GpuSpec
        A CPU that this code runs on, or any GPU: a spec, its name, "host", or a spec file.
    threads : int, optional
        Threads of a CPU's kernels; all cores by default.
    accuracy : {"standard", "relaxed"}
        As `anatune.plan`. With "relaxed", and without records, products of float32 run as tf32 on the matrix units of
        NVIDIA GPUs from sm_80 on, and Triton compiles all kernels. Other GPUs multiply float32 on CUDA cores.
    precision : {"float32", "bfloat16", "float16", "int8", "fp8"}, optional
        The number format of products. On a CPU: sums are float32, and tensors that only products read have 16 bits. The
        default is the model's own format if the processor has instructions for it, otherwise float32. "int8" needs
        fixed sizes: products of a float32 model become integer products, with scales from the weights and `calibrate`.
        The report names what each product loses, and the error of the outputs on that data. On a GPU: 16 bits, with
        Triton kernels only, or "fp8": products with constant weights use 8-bit floats if the prediction is less time,
        and a check allows an error of 0.25.
    trials : int
        Number of trials for all kernels together; they go to the kernels with the most time to gain. With 0, kernels
        are the first choices of the analytical model, or the best ones of `records`.
    time_limit_s : float, optional
        Seconds of tuning after which no new trial starts.
    records : str or Path, optional
        Record file. Every trial is stored before the next one starts; stored trials count and are not repeated. At the
        end the model runs a few times with its best kernels and with the planned ones, in turn; the faster build is
        kept.
    resume : bool
        Require that the record file exists.
    check : bool, optional
        Compare the outputs with those of the original on random inputs. This is the default if the device is present.
        For an absent GPU, True runs each kernel in the emulator, which takes seconds per kernel.
    progress : callable, optional
        Called with (products planned, products to plan).
    tuning_progress : callable, optional
        Called with an `anatune.tuning.result.ModelProgress` after every trial.
    cluster, tls, tracker, key
        As `anatune.tune`: where kernels of a CPU are measured, by default on this machine. Devices other than `hw` are
        refused.
    reuse : bool
        Use the kernels that `records` has for this device, and begin sessions with them. With False, trials of other
        sessions do not count.
    stop_at, patience
        As `anatune.tune`, for each kernel: the trials that it does not use go to the others.
    on_estimate : callable, optional
        Called with an `anatune.tuning.cost.ModelEstimate`, the expected duration, before anything is planned.
    on_stage : callable, optional
        Called with the description of each stage as it begins: a value of `anatune.network.compiling.costs.STAGES`.
    sizes : mapping of str to int, str or (int, int), optional
        For a CPU: name of a size that varies ("batch"; for an exported program the input and axis, "x_0") -> its range
        with both ends ("1..32", (1, 32)), or its only value. The default is that of ``torch.export.Dim``, or 1 to 512.
    dynamic_shapes : optional
        For a module: which of its sizes vary, as ``torch.export.export`` takes them.
    fallback : {"onnxruntime"}, optional
        The engine that runs the nodes of an ONNX model that anatune cannot read, on the CPU. The parts between them are
        compiled, each with its share of the trials. The report names these nodes and each part's share of the time.
    state : str or mapping of str to str, optional
        For a CPU: name of an output -> name of the input that takes it in the next call. These tensors stay in the
        model. "auto" takes the names of exported decoders (present.0.key, past_key_values.0.key). Buffers that a
        PyTorch module writes to stay in the model in any case.
    calibrate : str, Path, array, sequence of arrays or mapping of str to array, optional
        Inputs of the model, as arrays or in a .npy or .npz file, by name or in order. Several calls lie one after the
        other along the first dimension.
    percentile : float, optional
        Share of an activation's values that its range covers at both ends (99.99); by default all of them.

    Raises
    ------
    WorkloadError
        The model cannot be imported: it is damaged, has unknown operators, or computes something else at other sizes.
    SpaceError
        An argument is out of range, or belongs to another kind of device.
    BuildError
        TVM cannot compile an operator.
    RunError
        An output differs from the original's, or the CPU is of another kind than this machine's.
    DeviceError
        `trials` is given, and the CPU is not this machine's.
    RecordError
        The record file cannot be used.
    TuningInterrupted
        Ctrl-C while kernels were measured; all trials are in the record file.
    MissingDependencyError
        TVM, or the library that reads the model, is not installed.
    """
    measuring = MeasuringOptions(
        trials=trials, time_limit_s=time_limit_s, records=records, resume=resume, cluster=cluster, tls=tls,
        tracker=tracker, key=key, reuse=reuse, stop_at=stop_at, patience=patience,
    )  # fmt: skip
    request = CompileRequest(
        threads=threads, accuracy=accuracy, precision=precision, check=check, fallback=fallback, measuring=measuring,
        quantising=Int8Options(calibrate, percentile),
        listeners=Listeners(progress, tuning_progress, on_estimate, on_stage),
    )  # fmt: skip
    return compile_source(ModelSource(model, example_inputs, sizes, dynamic_shapes, state), hardware(hw), request)


@compile_in_turn
def compile_source(model_source: ModelSource, device: HardwareSpec, request: CompileRequest) -> CompiledModel:
    """Return a model compiled for a device, from the cache if an equal call compiled it. Errors: as `compile`."""
    if request.precision == "int8":
        return _compile_int8(model_source.read(), device, request)
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
                f"compile: {source.name} has weights on the meta device, which stores no values; load the weights, or "
                "predict its time with anatune.compare"
            )
        check_sizes(source, target)
        divided = _compile_in_parts(source, device, target) if request.fallback is not None else None
        compiled = compile_with_fallback(source, target) if divided is None else divided
        cache.write(compiled)
    return compiled


def compile_with_fallback(source: ImportedModel, target: ModelTarget) -> CompiledModel:
    """Return an imported model compiled for a target, or for the target's fallback if the target refuses it."""
    try:
        return _compile_for_target(source, target)
    except (BuildError, SpaceError) as error:
        if (other := target.choose_fallback(error)) is None:
            raise
    return _compile_for_target(source, other)


def _compile_for_target(source: ImportedModel, target: ModelTarget) -> CompiledModel:
    """Return an imported model planned, tuned, built and checked for one target. Raises the errors of `compile`."""
    from anatune.network.compiling.costs import ModelCosts

    if target.reads_float32:
        source = source.widen()
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
    """The kernels of a model before it is built: planned ones and, if it was tuned, measured ones. Immutable.

    Attributes
    ----------
    name : str
        Name of the model.
    planned : PlannedModel
        The model after all passes, with the first choices of the analytical model as kernels.
    measured : PlannedModel, optional
        The same model with the best measured kernels; None if nothing was measured.
    tuning : TuningSummary, optional
        Trials and times of the measurements.
    """

    name: str
    planned: PlannedModel
    measured: PlannedModel | None = None
    tuning: TuningSummary | None = None

    @property
    def tuned_model(self) -> PlannedModel | None:
        """The model with its measured kernels; None if they are the planned ones."""
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


def plan(source: ImportedModel, target: ModelTarget, costs: ModelCosts) -> ModelPlan:
    """Return a model's plan: its graph after all passes, layouts and first choices of kernels. Errors: as `compile`."""
    from anatune.network.compiling.sizes.varying import environments
    from anatune.network.compiling.targets.planned import plan_model

    graph = source.graph(environments(source.ranges, source.state)[0])
    if target.hardware.kind == "cpu":
        check_model_memory(graph, source.name, checked=target.is_checked(source))
    costs.announce(graph)
    with costs.time_stage("plan"):
        return ModelPlan(source.name, plan_model(target, graph, source))


def tune(decisions: ModelPlan, target: ModelTarget, costs: ModelCosts) -> ModelPlan:
    """Return a plan with the best measured kernels, unchanged if the target measures none. Errors: as `compile`."""
    if not target.measures:
        return decisions
    with costs.time_stage("tune"):
        kernels, tuning = target.tune(decisions.planned)
    return replace(decisions, measured=decisions.planned._replace(kernels=kernels), tuning=tuning)


def build(decisions: ModelPlan, target: ModelTarget, costs: ModelCosts) -> ModelBuild:
    """Build the planned and the measured kernels and return the faster model. Raises the errors of `compile`."""
    retuned, latency_summary = decisions.tuned_model, None
    with costs.time_stage("build"):
        built = target.build(decisions.planned, forget=retuned is None)
    if target.measures:
        from anatune.network.compiling.tuning import choose_faster, measure_latency  # late: only tuning needs them

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


def _compile_int8(source: ImportedModel, device: HardwareSpec, request: CompileRequest) -> CompiledModel:
    """Return a float32 model compiled with 8-bit integers. Raises the errors of `compile`."""
    from anatune.network.compiling.costs import ModelCosts
    from anatune.network.compiling.precision.quantising import output_error, quantise_model
    from anatune.network.compiling.sizes.varying import environments, varying_ranges
    from anatune.network.compiling.targets.cpu import require_cpu
    from anatune.network.relax.ranges import name_of

    device = require_cpu(device)
    sizes = ", ".join(map(name_of, varying_ranges(source.ranges)))
    state = ", ".join(pair.name for pair in source.state)
    for refused, advice in (
        (f"the sizes {sizes} of {source.name} vary" if sizes else "", "give example inputs (--input-shape)"),
        (f"{source.name} has state ({state})" if state else "", "leave the state out"),
        ("a fallback is given" if request.fallback is not None else "", "leave it out"),
    ):
        if refused:
            raise SpaceError(
                f"compile: {refused}, which precision int8 does not support; {advice}, or leave the precision out"
            )
    target = target_of(device, request)
    costs = ModelCosts(device, target.threads, request, is_checked=False)
    costs.announce(source.graph(environments(source.ranges, source.state)[0]), calibrates=True)
    listeners = msgspec.structs.replace(request.listeners, progress=None)
    plain_request = msgspec.structs.replace(request, measuring=MeasuringOptions(), listeners=listeners)
    data, percentile = request.quantising.calibrate, request.quantising.percentile
    with costs.time_stage("calibrate"):
        quantised_model = quantise_model(source.widen(), lambda: target_of(device, plain_request), data, percentile)
    listeners = msgspec.structs.replace(request.listeners, on_estimate=None)
    build_request = msgspec.structs.replace(request, listeners=listeners, check=None)
    compiled = compile_with_fallback(quantised_model.source, target_of(device, build_request))
    check = None
    if request.check is not False:
        with costs.time_stage("check"):
            error = output_error(compiled, quantised_model.calls)
        calls = units.many(len(quantised_model.calls), "call")
        check = None if error is None else Check(error, None, f"the float32 model in {calls} of the calibration data")
    compiled.summary = msgspec.structs.replace(compiled.summary, losses=quantised_model.losses, check=check)
    return compiled


def _compile_in_parts(source: ImportedModel, device: HardwareSpec, target: ModelTarget) -> CompiledModel | None:
    """Return a model in which onnxruntime runs the unreadable nodes; None if all can be read. Errors: as `compile`."""
    from anatune.network.compiling.divided import compile_parts

    def compile_part(part: ImportedModel, part_request: CompileRequest) -> CompiledModel:
        return compile_with_fallback(part, target_of(device, part_request))

    return compile_parts(source, target.request, target.threads, compile_part)


def _check_packages(model: object, device: HardwareSpec, request: CompileRequest) -> None:
    """Raise MissingDependencyError for every package that reading the model and compiling for the device lack."""
    from anatune.codegen.compat import import_tvm
    from anatune.named import check_all, import_optional

    checks: list[Callable[[], object]] = [import_tvm]
    if str(model).endswith(".onnx"):
        checks.append(partial(import_optional, "onnx", "onnx", "anatune compile of ONNX files"))
    if device.kind == "gpu":
        from anatune.codegen.toolchains import find_toolchain

        template = "triton" if needs_only_triton(device, request) else "cuda"
        checks.append(partial(find_toolchain(template).check_target, device))
    check_all(*checks)


def example_arrays(path: Path, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return random arrays of given sizes for the inputs of an ONNX file.

    Raises
    ------
    WorkloadError
        The file is damaged, or has another number of inputs.
    """
    from anatune.network.relax.onnx_files import onnx_inputs

    inputs = onnx_inputs(path)
    if len(inputs) != len(shapes):
        names = ", ".join(name for name, _ in inputs)
        raise WorkloadError(f"{path}: got {len(shapes)} shapes, expected one for each of its inputs: {names}")
    return draw_inputs(
        [TensorSummary(name, dtype, shape) for (name, dtype), shape in zip(inputs, shapes, strict=True)], 0
    )
