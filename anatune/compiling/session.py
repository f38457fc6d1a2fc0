"""``anatune.compile``: from a model to machine code, step by step."""

from __future__ import annotations

import functools
import platform
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from numpy.typing import NDArray

from anatune.arguments import checked_flag, checked_function
from anatune.codegen.compat import features_of, link_library, target_of
from anatune.codegen.cpu.export.features import code_features
from anatune.codegen.relax.building import built
from anatune.codegen.relax.frontends import Imported, imported, onnx_inputs
from anatune.codegen.relax.kernels import ModelKernel, model_kernel, row_kernels
from anatune.codegen.relax.others import other_kernels
from anatune.codegen.relax.writing import written
from anatune.compiling.attention import PlannedAttention, attention_kernels, plan_attentions
from anatune.compiling.checking import checked
from anatune.compiling.choosing import faster, latency
from anatune.compiling.compiled import CompiledModel, draw_inputs
from anatune.compiling.costs import ModelCosts
from anatune.compiling.faults import Suspects
from anatune.compiling.layouts import Ordered, ordered
from anatune.compiling.parts import attention_summary, inputs_of, kernel_summary, operators_of, outputs_of, rows_of
from anatune.compiling.planning import PlannedKernel, SumPlanner, plan_products
from anatune.compiling.request import Request
from anatune.compiling.tuning import TuningBudget, tuned
from anatune.compiling.weights import pack_weights
from anatune.core.accuracy import STANDARD, checked_accuracy
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import BuildError, SpaceError, WorkloadError
from anatune.files import scratch_folder
from anatune.graph.nodes import Graph
from anatune.graph.passes import for_cpu, without_orders
from anatune.graph.summary import ModelSummary, TensorSummary
from anatune.measure.cpu.calls import check_instructions
from anatune.measure.cpu.features import lacking_features
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.tuning.cost import ModelEstimate
from anatune.tuning.machine import choose_threads
from anatune.tuning.result import ModelProgress
from anatune.version import __version__

__all__ = ["compile", "compile_for_cpu", "device_of", "example_arrays", "kernels_of"]

_ROOM_BYTES = 1 << 25
"""More than a library with its object file takes: LLVM ends the process where it cannot write."""


def compile(
    model: Any,
    example_inputs: Any = None,
    *,
    hw: HardwareLike = "host",
    threads: int | None = None,
    accuracy: str = STANDARD,
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
) -> CompiledModel:
    """Compile a whole model for a CPU or an NVIDIA GPU; with `trials` kernels are measured first, else nothing is.

    Each different convolution and matrix product is planned once, weights are packed once, biases, sums of residuals
    and rectifiers are fused into the kernels that they follow. What anatune has no kernels for is compiled by TVM.
    A GPU need not be there: see `anatune.compiling.gpu`.

    Parameters
    ----------
    model : torch.nn.Module, torch.export.ExportedProgram, str, Path or tvm.IRModule
        A string or path names an ONNX file or a saved exported program (.pt2), which ``torch.export.load`` reads: that
        runs code which the file may hold, so pass only those of people you trust.
    example_inputs : array, or sequence of arrays, optional
        NumPy or torch, of the sizes to compile for. Modules need them, and ONNX files with dynamic axes.
    hw : str, Path, CpuSpec or GpuSpec
        A CPU that runs here, or any NVIDIA GPU: a spec, its name, "host", or a file.
    threads : int, optional
        Of a CPU's kernels; all cores by default.
    accuracy : {"standard", "relaxed"}
        As `anatune.plan`. "relaxed" also admits tensor cores for float32, which they round to tf32.
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

    Raises
    ------
    WorkloadError
        The model cannot be imported: it is damaged, dynamic, or has operators that TVM does not know.
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
    check = None if check is None else checked_flag("compile: check", check)
    checked_function("compile: progress", progress)
    accuracy = checked_accuracy("compile: accuracy", accuracy)
    checked_function("compile: tuning_progress", tuning_progress)
    checked_function("compile: on_estimate", on_estimate)
    budget = TuningBudget(
        trials=trials, time_limit_s=time_limit_s, records=records, resume=resume, cluster=cluster, tls=tls,
        tracker=tracker, key=key, reuse=reuse, stop_at=stop_at, patience=patience,
    )  # fmt: skip
    device = hardware(hw)
    request = Request(threads, accuracy, budget, check, progress, tuning_progress, on_estimate)
    if isinstance(device, GpuSpec):
        from anatune.compiling.gpu import compile_for_gpu

        return compile_for_gpu(lambda: imported(model, example_inputs), device, request)
    return compile_for_cpu(lambda: imported(model, example_inputs), device, request)


def compile_for_cpu(source_of: Callable[[], Imported], device: CpuSpec, request: Request) -> CompiledModel:
    """Return a model compiled for a CPU; see `compile`."""
    device, count = device_of(device, request.threads)
    budget = request.budget
    source = source_of()
    cores = device.with_threads(count)
    is_checked = request.check is not False and source.reference is not None
    costs, imported_graph = ModelCosts(device, count, request, is_checked=is_checked), _graph(source)
    costs.tell(imported_graph)
    with costs.part("plan"):
        graph, attentions, found = _prepared(imported_graph, cores, request.accuracy, request.progress)
        planned = plan_products(graph, cores, request.accuracy, request.progress, found.planner)
    del imported_graph  # its constants are not those of what is planned
    best, measured, tuning = planned, budget.trials > 0 or budget.records is not None, None
    if measured:
        with costs.part("tune"):
            best, tuning = tuned(planned, device, count, budget, request.accuracy, request.tuning_progress)
    is_changed = [one.schedule for one in best] != [one.schedule for one in planned]
    with costs.part("build"):
        compiled, own = _built(graph, planned, attentions, found, device, count, forget=not is_changed)
    if is_changed:
        with costs.part("build"):
            other = _built(graph, best, attentions, found, device, count, forget=True)
        with costs.part("tune"):
            compiled, judged = faster(other.compiled, compiled)
        if judged.is_tuned:
            planned, own = best, other.kernels
        compiled.summary = msgspec.structs.replace(compiled.summary, latency=judged)
    elif measured:
        compiled.summary = msgspec.structs.replace(compiled.summary, latency=latency(compiled))
    compiled.summary = msgspec.structs.replace(compiled.summary, tuning=tuning)
    if is_checked:
        original = functools.partial(_graph, source)

        def again(given: Graph) -> Graph:
            return _prepared(given, cores, request.accuracy, planner=found.planner)[0]

        suspects = Suspects(graph, own, planned, target_of(device, threads=count), count, original, again)
        with costs.part("check"):
            check = checked(compiled, source, suspects.named)
        compiled.summary = msgspec.structs.replace(compiled.summary, check=check)
    costs.keep(0 if tuning is None else tuning.new_trials)
    return compiled


class _Build(NamedTuple):
    """A model as machine code, and its kernels by ``id`` of their nodes."""

    compiled: CompiledModel
    kernels: dict[int, ModelKernel]


def device_of(hw: HardwareLike, threads: int | None) -> tuple[CpuSpec, int]:
    """Return the CPU to compile for, and the threads of its kernels; errors as `compile`."""
    device = hardware(hw)
    if not isinstance(device, CpuSpec):
        raise SpaceError(f"compile: {device.name} is a GPU, expected a CPU; name --hw host or the file of one")
    check_instructions(device)
    return device, choose_threads(device, threads)


def example_arrays(path: Path, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
    """Return arrays of given sizes for the inputs of an ONNX file.

    Raises
    ------
    WorkloadError
        The file is damaged, or has another number of inputs.
    """
    inputs = onnx_inputs(path)
    if len(inputs) != len(shapes):
        names = ", ".join(name for name, _ in inputs)
        raise WorkloadError(f"{path}: {len(shapes)} shapes were given, expected one for each input: {names}")
    return draw_inputs([TensorSummary(*one, shape) for one, shape in zip(inputs, shapes, strict=True)], 0)


def _built(
    graph: Graph,
    planned: list[PlannedKernel],
    attentions: list[PlannedAttention],
    found: Ordered,
    device: CpuSpec,
    threads: int,
    *,
    forget: bool,
) -> _Build:
    """Return a planned model as machine code, in a scratch folder that goes with it; `forget` as `pack_weights`."""
    target, cores = target_of(device, threads=threads), device.with_threads(threads)
    kernels = kernels_of(planned, threads)
    rows = {**row_kernels(graph, device.fp32_lanes, threads), **other_kernels(graph, device, threads)}
    own = {**kernels, **rows, **attention_kernels(attentions, device.fp32_lanes, threads)}
    model = written(graph, own)
    executable, plain = built(model, target, threads)
    memory, places = pack_weights(model.weights, target, forget=forget)
    features = code_features(features_of(target), platform.machine())
    hidden = set(lacking_features(features))  # by a virtual machine: float32 code does not use what is not there
    summary = ModelSummary(
        version=__version__,
        hardware=device.name,
        arch=device.arch,
        machine=platform.machine(),
        features=tuple(name for name in features if name not in hidden),
        threads=threads,
        is_tuple=graph.is_tuple,
        inputs=inputs_of(graph),
        outputs=outputs_of(graph),
        weights=places,
        weight_bytes=len(memory),
        kernels=(*map(kernel_summary, planned), *map(attention_summary, attentions)),
        operators=operators_of(graph, own, cores),
        rows=rows_of(graph, rows, cores),
        unscheduled=plain,
        layouts=found.layouts,
    )
    folder = scratch_folder(BuildError, _ROOM_BYTES)
    try:
        link_library(executable, folder / "model.so")
        compiled = CompiledModel(summary, folder / "model.so", memory, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _Build(compiled, own)


def _graph(source: Imported) -> Graph:
    """Return a model as it was imported."""
    graph = source.graph()
    graph.is_tuple = graph.is_tuple and not source.is_single
    return graph


def _prepared(
    graph: Graph,
    device: CpuSpec,
    accuracy: str,
    progress: Callable[[int, int], None] | None = None,
    planner: SumPlanner | None = None,
) -> tuple[Graph, list[PlannedAttention], Ordered]:
    """Return what is planned of an imported model, its attentions, and its layouts."""
    found = ordered(without_orders(graph), device, accuracy, progress, planner)
    return *plan_attentions(for_cpu(found.graph), device), found


def kernels_of(planned: Sequence[PlannedKernel], threads: int) -> dict[int, ModelKernel]:
    """Return ``id`` of each product -> its kernel."""
    kernels: dict[int, ModelKernel] = {}
    for one in planned:
        kernel = model_kernel(one.name, one.schedule, threads)
        kernels.update((id(node), kernel) for node in one.nodes)
    return kernels
