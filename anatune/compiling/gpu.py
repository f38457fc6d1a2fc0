"""Whole models for an NVIDIA GPU, compiled where there is none.

Products and convolutions get anatune's kernels, everything else TVM's own schedules; all are cubins when this ends.
Weights go to the GPU when the model is loaded there. Outputs are compared with the original's where such a GPU is; else
the emulator can run each kernel.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Sequence

import msgspec

from anatune import api
from anatune.codegen.compat import gpu_target_of, link_library
from anatune.codegen.cuda.artifact import check_resources
from anatune.codegen.cuda.nvrtc import check_arch
from anatune.codegen.relax.frontends import Imported
from anatune.codegen.relax.gpu_building import built_for_gpu
from anatune.codegen.relax.gpu_kernels import GpuModelKernel, gpu_kernels
from anatune.codegen.relax.gpu_machine import check_gpu
from anatune.codegen.relax.writing import written
from anatune.compiling.checking import checked
from anatune.compiling.compiled import CompiledModel
from anatune.compiling.costs import ModelCosts
from anatune.compiling.gpu_planning import PlannedGraph, choose_graph, predicted, recorded
from anatune.compiling.parts import inputs_of, kernel_summary, operators_of, outputs_of
from anatune.compiling.planning import PlannedKernel
from anatune.compiling.request import Request
from anatune.compiling.weights import pack_weights
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import BuildError, DeviceError, RunError, SpaceError
from anatune.files import scratch_folder
from anatune.graph.passes import in_both_orders
from anatune.graph.summary import ModelSummary
from anatune.measure.verify import verify
from anatune.model.learned.corrections import NONE
from anatune.records.place import record_place
from anatune.tuning.machine import usable_cores
from anatune.version import __version__

__all__ = ["compile_for_gpu"]

_COMPILED = 8
"""Programs that are compiled for a sum whose first choice spills registers, or needs more than the device has."""


def compile_for_gpu(source_of: Callable[[], Imported], device: GpuSpec, request: Request) -> CompiledModel:
    """Return a model compiled for a GPU; see `anatune.compiling.session.compile`.

    Parameters
    ----------
    source_of : callable
        Imports the model: called once the other arguments have been checked.

    Raises
    ------
    SpaceError
        Threads were asked for, or no schedule of a product is legal.
    DeviceError
        Trials were asked for.
    BuildError
        The GPU is not NVIDIA's, or NVRTC does not know its architecture; TVM has no code for something.
    RunError
        An output, or a kernel in the emulator, is wrong.
    """
    if request.threads is not None:
        raise SpaceError(f"compile: threads are for CPUs, and {device.name} is none; leave them out")
    if request.budget.trials:
        raise DeviceError(
            f"compile: kernels for {device.name} are not measured by compile; `anatune tune` on that GPU writes a "
            "record file, and compile with it (--records) and without trials takes the best ones"
        )
    target = gpu_target_of(device)
    check_arch(device.arch)
    source = source_of()
    graphs = in_both_orders(source.graph())
    for graph in graphs:
        graph.is_tuple = graph.is_tuple and not source.is_single
    is_checked = bool(request.check) or (request.check is None and _is_here(device) and source.reference is not None)
    costs = ModelCosts(device, 1, request, is_checked=is_checked)
    costs.tell(graph)
    with costs.part("plan"):
        planned = choose_graph(graphs, device, request.accuracy, request.progress)
    del graphs, graph  # the order that was not chosen has constants of its own
    if request.budget.records is not None and request.budget.reuse:
        planned = recorded(planned, device, record_place(request.budget.records), request.accuracy)
    with costs.part("build"):
        planned, kernels = _compiled(planned, device)
        by_node = {id(node): kernels[one.name] for one in planned.kernels for node in one.nodes}
        model = written(planned.graph, by_node)
        built = built_for_gpu(model, kernels.values(), target, device.arch)
    memory, places = pack_weights(model.weights, target, forget=True)
    summary = ModelSummary(
        version=__version__,
        hardware=device.name,
        arch=device.arch,
        machine=platform.machine(),
        features=(),
        threads=1,
        is_tuple=planned.graph.is_tuple,
        inputs=inputs_of(planned.graph),
        outputs=outputs_of(planned.graph),
        weights=places,
        weight_bytes=len(memory),
        kernels=tuple(kernel_summary(one, kernels[one.name].facts) for one in planned.kernels),
        operators=operators_of(planned.graph, by_node, device),
        device="gpu",
        turning_s=planned.turning_s,
    )
    folder = scratch_folder(BuildError)
    try:
        library = folder / "model.so"
        link_library(built.executable, library)
        built.cubins.embed(library)
        compiled = CompiledModel(summary, library, memory, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    with costs.part("check"):
        if request.check is not False and _is_here(device):
            if source.reference is not None:
                compiled.summary = msgspec.structs.replace(summary, check=checked(compiled, source, lambda *_: _ADVICE))
        elif request.check:
            compiled.summary = msgspec.structs.replace(summary, emulated=_emulated(planned.kernels))
    costs.keep(0)
    return compiled


_ADVICE = "anatune.verify says of each kernel's schedule whether the emulator agrees"


def _is_here(device: GpuSpec) -> bool:
    try:
        check_gpu("the model", device.arch)
    except RunError:
        return False
    return True


def _compiled(planned: PlannedGraph, device: GpuSpec) -> tuple[PlannedGraph, dict[str, GpuModelKernel]]:
    """Return a planned graph with its kernels by name, those replaced that the compiler makes slow or illegal."""
    workers = usable_cores()
    kernels = gpu_kernels({one.name: one.schedule for one in planned.kernels}, workers)
    others = {
        one.name: again
        for one in planned.kernels
        if (kernels[one.name].facts.spill_bytes or not _fits(kernels[one.name], device))
        and (again := _next_choice(one, device)) is not None
    }
    if others:
        kernels |= gpu_kernels({name: one.schedule for name, one in others.items()}, workers)
        planned = planned._replace(kernels=[others.get(one.name, one) for one in planned.kernels])
    for one in planned.kernels:
        check_resources(kernels[one.name], device)
    return planned, kernels


def _fits(kernel: GpuModelKernel, device: GpuSpec) -> bool:
    try:
        check_resources(kernel, device)
    except SpaceError:
        return False
    return True


def _next_choice(one: PlannedKernel, device: GpuSpec) -> PlannedKernel | None:
    """Return a kernel with the best of some schedules by what the compiler says of them; None: none is better."""
    answer = api.plan(one.workload, device, 1, template=one.schedule.template, compile=_COMPILED, correction=NONE)
    if not answer.schedules:
        return None
    return one._replace(schedule=answer.schedules[0], prediction=predicted(answer.schedules[0]))


def _emulated(kernels: Sequence[PlannedKernel]) -> float:
    """Return the largest error of kernels in the emulator, over the scale of their results.

    Raises
    ------
    RunError
        One is wrong.
    """
    worst = 0.0
    for one in kernels:
        found = verify(one.schedule)
        if not found.ok:
            raise RunError(
                f"check: {one.name} ({one.workload.describe()}) is wrong in the emulator: {found.message}; check=False "
                "(--no-check) builds it all the same"
            )
        worst = max(worst, found.max_rel_error or 0.0)
    return worst
