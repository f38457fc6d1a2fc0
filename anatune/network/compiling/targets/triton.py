"""Compile whole models for the matrix units of GPUs: Triton compiles every kernel, with or without a GPU.

Products, convolutions and attentions are planned. The loops between them are fused and written as Triton source. The
result is machine code and launches, without TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import msgspec

from anatune import api
from anatune.codegen.compat import make_bare_target
from anatune.codegen.triton.compiler import check_target
from anatune.core.accuracy import RELAXED
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Access, Workload
from anatune.core.workload.operators.attention import attention, strided_attention
from anatune.emit.buffer import Buffer
from anatune.errors import AnatuneError, BuildError, DeviceError, SpaceError
from anatune.measure.cuda.apart import compiled_kernels
from anatune.model.learned.corrections import NONE
from anatune.network.compiling.checking import check_outputs
from anatune.network.compiling.memory import new_memory, views
from anatune.network.compiling.parts import inputs_of, outputs_of
from anatune.network.compiling.planning import PlannedKernel, search_in_parallel
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.sizes.held import fix_state_size, set_windows
from anatune.network.compiling.sizes.varying import environments, merge_readings, varying_ranges
from anatune.network.compiling.targets.base import Checks, ModelBuild, ModelTarget, PlannedModel, emulated_error
from anatune.network.compiling.targets.described import memory_size, state_places, summary_of
from anatune.network.compiling.targets.float8 import float8_of, use_float8
from anatune.network.compiling.targets.launched import LaunchedModel, has_gpu
from anatune.network.compiling.targets.partial_sums import split_partial_sums
from anatune.network.compiling.targets.smaller import shrink_schedule
from anatune.network.graph.experts.passes import header_size, routing_products
from anatune.network.graph.integers.scaled import has_integers
from anatune.network.graph.nodes import HALVES, Graph, Node, TensorType, Value, rewrite_graph
from anatune.network.graph.operators import ATTENTION, CONVOLUTION, EXPERTS, PRODUCTS, SCALED_MATMUL
from anatune.network.graph.passes.attention import attention_of, fuse_attention, replace_mask
from anatune.network.graph.passes.layouts import apply_layout, choose_order
from anatune.network.graph.passes.order import MATRIX_UNITS, run_passes
from anatune.network.graph.passes.precision import FP8, WIDE, precision_of
from anatune.network.graph.passes.products import join_products, unfuse
from anatune.network.graph.passes.rows import expand_rows
from anatune.network.graph.passes.simplify import simplify, source_of
from anatune.network.graph.products import make_workload, workload_of
from anatune.network.graph.summary import ModelSummary, byte_count
from anatune.network.relax.device.depthwise import is_taken
from anatune.network.relax.device.ir import NoSourceError
from anatune.network.relax.device.lowering import DeviceCall, LoweredModel, PlannedCall, lower_graph
from anatune.network.relax.device.others import add_others
from anatune.network.relax.device.program import DeviceKernel, DeviceLaunch, DeviceProgram, Region
from anatune.network.relax.device.stubs import make_stub
from anatune.network.relax.frontends import ImportedModel
from anatune.network.relax.kernels import ModelKernel
from anatune.templates import TRITON
from anatune.templates.triton.program.kernel import TritonProgram
from anatune.tuning.machine import usable_cores

__all__ = ["TritonTarget"]

_MOST_ERROR = {"bfloat16": 5e-2, "float16": 1e-2, WIDE: 1e-2, FP8: 0.25}
"""Largest error of an output over its largest magnitude; float32 means tf32, which is as precise as float16."""
_LEAST_DIM = 16
"""Least head dimension of an attention: the least dimension of a product in Triton."""
_MOST_INTERPRETER_S = 600.0
"""Seconds in Triton's interpreter above which a model is not checked as a whole."""
_PROGRAM_S, _FLOP_PER_S = 3e-3, 2e8
"""Seconds of a program, and operations per second, in Triton's interpreter. Source: one core of a Zen 4."""
_ADVICE = "anatune.verify checks each planned kernel's schedule in the interpreter"


class _TritonPlanner:
    """Plans the kernels of one model in one precision; it keeps its first choices."""

    def __init__(self, hardware: GpuSpec, request: CompileRequest, precision: str) -> None:
        self.hardware, self.request, self.precision = hardware, request, precision
        self._choices: dict[Workload, tuple[Schedule, Prediction]] = {}

    def find_attentions(self, graph: Graph) -> Graph:
        """Return an imported model after the passes that find attentions."""
        graph = fuse_attention(_run_first_passes(graph), lambda node: self._attention_workload(node) is not None)
        return rewrite_graph(graph, replace_mask)

    def plan_kernels(self, graph: Graph) -> PlannedModel:
        """Return a model whose attentions are found, with first choices of kernels."""
        graph = join_products(graph, takes_columns=True)
        if self.request.precision == FP8:
            graph = use_float8(graph, self.hardware, self._inner_workload, self._predict_times)
        graph = simplify(expand_rows(rewrite_graph(graph, self._unfuse)))
        kernels: dict[tuple[Workload, tuple[int, ...]], list[Node]] = {}
        written = {source_of(value) for value in graph.outputs} | routing_products(graph)
        for node in graph.nodes():
            workload, offsets = self.workload(node, is_output=node in written)
            if workload is not None and not is_taken(workload):
                kernels.setdefault((workload, offsets), []).append(node)
        choices = self._choose(list(dict.fromkeys(workload for workload, _ in kernels)))
        planned = []
        for number, ((workload, _), nodes) in enumerate(kernels.items()):
            name = f"anatune_{number}_{workload.operator}"
            planned.append(PlannedKernel(name, *choices[workload], tuple(nodes)))
        return PlannedModel(graph, planned, precision=self.precision, target_data=self)

    def _inner_workload(self, node: Node) -> Workload | None:
        """Return the workload of a product as if it were no output; None if no template takes it."""
        return self.workload(node, is_output=False)[0]

    def _predict_times(self, workloads: Sequence[Workload]) -> dict[Workload, float]:
        """Return the predicted times of the first choices for workloads, s."""
        return {workload: choice[1].time_s for workload, choice in self._choose(workloads).items()}

    def _unfuse(self, node: Node) -> Value:
        """Return a node, without its epilogue if no template takes it with one, or as libraries compute it."""
        if node.op not in PRODUCTS or not node.attributes.get("epilogue"):
            return node
        if self.request.fuses and self._inner_workload(node) is not None:
            return node
        return unfuse(node, keeps_bias=not self.request.fuses and node.op != CONVOLUTION)

    def workload(self, node: Node, *, is_output: bool) -> tuple[Workload | None, tuple[int, ...]]:
        """Return a node's workload and the offsets of its operands; None if no template takes it."""
        if node.op == ATTENTION:
            attention_workload = self._attention_workload(node)
            assert attention_workload is not None
            return attention_workload
        if node.op not in (*PRODUCTS, EXPERTS):
            return None, ()
        plain_workload = workload_of(node)
        if plain_workload.num_reduced == 1:  # such as positions times frequencies: an elementwise multiplication
            return None, ()
        if node.op == SCALED_MATMUL:
            return plain_workload, (0,) * len(node.arguments)
        is_wider = is_output and node.op != EXPERTS and self.precision != WIDE
        dtype_text = f"{self.precision}:{WIDE}" if is_wider else self.precision
        workload = make_workload(plain_workload.operator, **{**plain_workload.attribute, "dtype": dtype_text})
        if node.op == EXPERTS:  # no other kernel computes it
            return workload, (0, 0, header_size(workload.tensor("ends").num_elements), 0)
        return (workload if TRITON.takes(workload, self.hardware) else None), (0,) * len(node.arguments)

    def _attention_workload(self, node: Node) -> tuple[Workload, tuple[int, ...]] | None:
        """Return an attention's workload and the offsets of its operands; None if the template does not take it."""
        operands = attention_of(node)
        if operands is None or self.precision == WIDE:  # its kernels have 16 bits; float32 runs as products and softmax
            return None
        attributes = node.attributes
        steps = (attributes["dim"], *operands.offsets, *(step for place in operands.strides for step in place))
        if any(step % 8 for step in steps) or attributes["dim"] < _LEAST_DIM:
            return None  # rows have to begin at multiples of 16 bytes
        contiguous = attention(
            attributes["batch"], attributes["heads"], operands.kv_heads, attributes["queries"], attributes["keys"],
            attributes["dim"], causal=operands.is_causal and (attributes["queries"] > 1 or operands.window > 0),
            window=operands.window, dtype=self.precision, page_size=operands.page_size,
        )  # fmt: skip
        workload = strided_attention(contiguous, operands.strides, counted=operands.counted, pool=operands.pool)
        offsets = (*operands.offsets, *(0 for _ in workload.reads[3:]))
        return (workload, offsets) if TRITON.takes(workload, self.hardware) else None

    def _choose(self, workloads: Sequence[Workload]) -> dict[Workload, tuple[Schedule, Prediction]]:
        """Return the first choice for each workload, and its prediction."""

        def first(workload: Workload) -> tuple[Schedule, Prediction]:
            plan = api.plan(workload, self.hardware, 1, template=TRITON.name, correction=NONE)
            if not plan.schedules:
                raise SpaceError(f"no schedule of {workload.describe()} is legal on {self.hardware.name}")
            return plan.schedules[0], plan.predictions[0]

        tell, new = self.request.progress, [one for one in workloads if one not in self._choices]
        self._choices |= search_in_parallel(first, new, lambda done: tell(done, len(new)) if tell is not None else None)
        return self._choices


_FIRST_RESULTS: WeakKeyDictionary[Graph, Graph] = WeakKeyDictionary()


def _run_first_passes(graph: Graph) -> Graph:
    """Return an imported model after the passes that are the same for all devices; they run once for a graph."""
    if graph not in _FIRST_RESULTS:
        changed = run_passes(MATRIX_UNITS, graph)
        _FIRST_RESULTS[graph] = simplify(apply_layout(changed, choose_order(changed)))
    return _FIRST_RESULTS[graph]


def _planner_of(planned: PlannedModel) -> _TritonPlanner:
    assert isinstance(planned.target_data, _TritonPlanner)
    return planned.target_data


def _has_float64(graph: Graph) -> bool:
    """Return whether any tensor of a graph is float64."""
    values = [*graph.inputs, *graph.outputs, *graph.nodes()]
    types = [kind for value in values for kind in ([value.type] if isinstance(value.type, TensorType) else value.type)]
    return any(kind.dtype == "float64" for kind in types)


class TritonTarget(ModelTarget):
    """A GPU with matrix units, which need not be present; see `ModelTarget`.

    Raises
    ------
    SpaceError
        `threads` is given, or a precision that the matrix units do not have.
    DeviceError
        `trials` or `records` is given.
    BuildError
        Triton cannot compile for the device.
    """

    hardware: GpuSpec

    def __init__(self, hardware: GpuSpec, request: CompileRequest) -> None:
        if request.threads is not None:
            raise SpaceError(f"compile: threads is for CPUs, and {hardware.name} is a GPU; leave it out")
        if request.trials or request.records is not None:
            raise DeviceError(
                f"compile: kernels for {hardware.name} are planned and not measured if Triton compiles all of them; "
                "leave trials and records out"
            )
        self._uses_tf32 = request.accuracy == RELAXED and hardware.vendor == "nvidia"
        if request.precision not in (None, *HALVES, FP8, *((WIDE,) if self._uses_tf32 else ())):
            advice = f"; leave it out for {WIDE}" if hardware.vendor == "nvidia" else ""
            raise SpaceError(
                f"compile: precision is {request.precision}, expected {', '.join(HALVES)} or {FP8} for {hardware.name}"
                f"{advice}"
            )
        super().__init__(hardware, 1, request, make_bare_target("x86_64"))
        check_target(hardware)
        self._check_units(_memory_dtype(request.precision) or HALVES[0])
        if self._uses_tf32 and request.precision in (None, WIDE):
            self.keeps_state = False  # like float32 models on CUDA cores
        if request.precision == FP8:
            float8_of(hardware)

    def _check_units(self, precision: str) -> None:
        """Raise SpaceError unless the GPU's matrix units multiply numbers of a precision."""
        TRITON.supports(make_workload("matmul", m=512, n=512, k=512, dtype=precision), self.hardware)

    # -- planning ----------------------------------------------------------------------------------------------------

    def choose_fallback(self, error: AnatuneError) -> ModelTarget | None:
        """Return the target of CUDA cores if tf32 is optional and the model was refused, not failed by a compiler."""
        is_refusal = isinstance(error, NoSourceError | SpaceError)
        if not is_refusal or not self._uses_tf32 or self.request.precision is not None:
            return None
        from anatune.network.compiling.targets.gpu import GpuTarget

        return GpuTarget(self.hardware, self.request)

    def plan(self, graph: Graph, *, varies: bool = False) -> PlannedModel:
        """Return an imported model after all passes, with first choices of kernels."""
        if has_integers(graph):
            raise BuildError(
                f"compile: the model is quantised, and products on {self.hardware.name} are {' or '.join(HALVES)}; "
                "compile the float32 model"
            )
        if self._uses_tf32 and _has_float64(graph):
            raise SpaceError("compile: the model has float64 numbers, which tf32 would round; leave --accuracy out")
        precision = _memory_dtype(self.request.precision) or precision_of(graph)
        if precision not in HALVES and not self._uses_tf32:
            others = f", or --accuracy {RELAXED} for tf32" if self.hardware.vendor == "nvidia" else ""
            raise SpaceError(
                f"compile: the model is {precision}, which {self.hardware.name}'s matrix units do not multiply without "
                f"rounding; give a precision (--precision {HALVES[1]} or {HALVES[0]}){others}"
            )
        self._check_units(precision)
        planner = _TritonPlanner(self.hardware, self.request, precision)
        if varies:
            return PlannedModel(graph, [], precision=precision, target_data=planner)
        return planner.plan_kernels(planner.find_attentions(graph))

    def extend_to_all_sizes(self, planned: PlannedModel, source: ImportedModel) -> PlannedModel:
        """Return a model whose growing tensors may have any size, and all else a fixed one."""
        planner, (symbol,) = _planner_of(planned), varying_ranges(source.ranges)
        pairs = [pair for pair in source.state if pair.symbol]
        most = min(pair.most for pair in pairs)
        fixed = {name: ends[0] for name, ends in source.ranges.items() if name != symbol}
        # tables have the rows of all positions, for every size of a call
        free = {pair.by: (fixed[pair.by], max(most, fixed[pair.by] + 1)) for pair in pairs if pair.by}
        ranges = {**source.ranges, **free}
        sets = environments(ranges, source.state)
        largest = planner.find_attentions(source.graph(sets[-1]))
        windows = [node.attributes["window"] for node in largest.nodes() if node.op == ATTENTION]

        def read(sizes: Mapping[str, int]) -> Graph:
            return largest if sizes is sets[-1] else set_windows(planner.find_attentions(source.graph(sizes)), windows)

        graph, _ = merge_readings(read, sets, source.name, varying_ranges(ranges))
        graph = fix_state_size(graph, fixed, symbol, most, len(source.state), source.name)
        model = planner.plan_kernels(simplify(graph))
        return model._replace(state=source.state, is_single=source.is_single, ranges={symbol: source.ranges[symbol]})

    # -- building ----------------------------------------------------------------------------------------------------

    def build(self, planned: PlannedModel, *, forget: bool) -> ModelBuild:
        """Build a planned model as machine code and launches.

        Raises
        ------
        BuildError
            An operator has no Triton source, or Triton refuses a kernel.
        SpaceError
            A kernel exceeds the resources of the device, or the model its memory.
        """
        lowered, stubs = self._lower(planned)
        device = self._compile(lowered.calls, lowered.arena_bytes, lowered.state)
        initial = state_places(planned, lowered)
        memory = new_memory(memory_size(initial, lowered))
        for form in lowered.forms:
            array = lowered.value(form)
            memory[form.offset : form.offset + array.nbytes] = array.reshape(-1).view("uint8")
        firsts = [pair.initial for pair in planned.state if pair.initial is not None]
        for view, first in zip(views(memory, initial), firsts, strict=True):
            view[...] = first
        facts = {launch.name: device.kernels[launch.kernel].facts for launch in reversed(device.launches)}
        summary = summary_of(planned, lowered, self.hardware, self.request.precision or planned.precision, facts)
        return ModelBuild(LaunchedModel.from_program(summary, device, memory), planned, stubs)

    def describe(self, planned: PlannedModel) -> ModelSummary:
        """Return the summary of a planned model with its predictions, without compiling it. Errors: as `build`."""
        lowered, _ = self._lower(planned)
        return summary_of(planned, lowered, self.hardware, self.request.precision or planned.precision, {})

    def programs(self, planned: PlannedModel) -> DeviceProgram:
        """Return the machine code and the launches of a planned model, without its weights. Errors: as `build`."""
        lowered, _ = self._lower(planned)
        return self._compile(lowered.calls, lowered.arena_bytes, lowered.state)

    def _lower(self, planned: PlannedModel) -> tuple[LoweredModel, dict[Node, ModelKernel]]:
        """Return a planned model as calls of programs, and a stub kernel for each product and attention."""
        programs = {kernel.name: TRITON.program(kernel.schedule) for kernel in planned.kernels}
        planned = split_partial_sums(planned, programs)
        stubs: dict[Node, ModelKernel] = {}
        calls: dict[str, PlannedCall] = {}
        for kernel in planned.kernels:
            program = programs[kernel.name]
            for node in kernel.nodes:
                stubs[node] = make_stub(kernel.name, node, kernel.schedule.key)
            operands: Sequence[Access] = kernel.workload.operands
            offsets: tuple[int, ...] = ()
            if kernel.nodes[0].op in (ATTENTION, EXPERTS):
                _, offsets = _planner_of(planned).workload(kernel.nodes[0], is_output=False)
            elif program.workspace is not None:  # its partial sums are the result
                operands, space = kernel.workload.reads, program.workspace.tensor
                program = TritonProgram(program.schedule_key, program.source, program.kernels[:1], space)
            names = tuple(access.tensor for access in operands)
            calls[kernel.name] = PlannedCall(program, names, offsets or (0,) * len(names))
        graph, count, planner = planned.graph, len(planned.state), _planner_of(planned)
        written = {source_of(value) for value in graph.outputs}
        add_others(graph, lambda node: planner.workload(node, is_output=node in written)[0], stubs, calls)
        lowered = lower_graph(graph, stubs, calls, planned.precision, self.hardware, self.target, count)
        self._check_memory(graph, lowered)
        return lowered, stubs

    def _check_memory(self, graph: Graph, lowered: LoweredModel) -> None:
        """Raise SpaceError if the device's memory cannot hold a model."""
        size = self.hardware.dram.capacity_bytes
        parts = inputs_of(graph), outputs_of(graph)  # the last ones are caches
        io_bytes = sum(byte_count(one) for part in parts for one in part[: len(part) - len(lowered.state)])
        state_bytes = sum(buffer.num_bytes for buffer in lowered.state)
        total = lowered.weight_bytes + lowered.arena_bytes + io_bytes + state_bytes
        if size is not msgspec.UNSET and total > size:
            raise SpaceError(
                f"compile: the model needs {total / 1e9:.1f} GB on {self.hardware.name}, which has {size / 1e9:.1f} GB "
                f"(weights {lowered.weight_bytes / 1e9:.1f}, activations {lowered.arena_bytes / 1e9:.1f}, "
                f"caches {state_bytes / 1e9:.1f}, inputs and outputs {io_bytes / 1e9:.1f}); take a smaller batch or "
                "another device"
            )

    def _compile(self, calls: Sequence[DeviceCall], arena_bytes: int, state: tuple[Buffer, ...]) -> DeviceProgram:
        """Return the machine code of all programs, and the launches of all calls."""
        programs = list({call.program.source: call.program for call in calls}.values())
        program_numbers = {program.source: number for number, program in enumerate(programs)}
        numbered = [(number, kernel) for number, program in enumerate(programs) for kernel in program.kernels]
        images = compiled_kernels(
            [(programs[number], kernel) for number, kernel in numbered], self.hardware, usable_cores()
        )
        kernels: dict[tuple[int, str], int] = {}
        device_kernels: list[DeviceKernel] = []
        code = b""
        for (number, kernel), image in zip(numbered, images, strict=True):
            kernels[number, kernel.name] = len(device_kernels)
            device_kernels.append(
                DeviceKernel(
                    program=number,
                    function=image.name,
                    first=len(code),
                    num_bytes=len(image.image),
                    grid=kernel.grid,
                    block=image.threads or 1,
                    dynamic_shared_bytes=image.dynamic_shared_bytes or 0,
                    scratch_bytes=image.scratch_bytes or 0,
                    facts=image.facts.with_dynamic(image.dynamic_shared_bytes or 0),
                )
            )
            code += image.image
        # the scratch memory of a launch's program lies after all other memory
        most = max((kernel.grid * kernel.scratch_bytes for kernel in device_kernels), default=0)
        scratch = Region("arena", 0, arena_bytes, most)
        launches = []
        for call in calls:
            number = program_numbers[call.program.source]
            for kernel in call.program.kernels:
                regions = tuple(call.regions[buffer.tensor] for buffer in kernel.parameters)
                kernel_index = kernels[number, kernel.name]
                scratch_region = scratch if device_kernels[kernel_index].scratch_bytes else None
                launches.append(DeviceLaunch(kernel_index, regions, scratch_region, call.name))
        return DeviceProgram(tuple(programs), tuple(device_kernels), tuple(launches), arena_bytes + most, code, state)

    # -- checking ----------------------------------------------------------------------------------------------------

    def is_checked(self, source: ImportedModel) -> bool:
        """Return whether outputs are compared: on the GPU if present, or on request in Triton's slow interpreter."""
        requested = self.request.check
        return bool(requested) or (requested is None and source.reference is not None and has_gpu(self.hardware.arch))

    def check(self, build: ModelBuild, source: ImportedModel) -> Checks:
        """Return the error of outputs, or of planned kernels on smaller workloads if interpreting takes long."""
        model = build.compiled
        assert isinstance(model, LaunchedModel)
        if not has_gpu(self.hardware.arch) and _interpreter_s(build.planned, model) > _MOST_INTERPRETER_S:
            shrunk = (kernel._replace(schedule=shrink_schedule(kernel.schedule)) for kernel in build.planned.kernels)
            return Checks(emulated=max(map(emulated_error, shrunk), default=0.0))
        if source.reference is None:
            return Checks()
        if not has_gpu(self.hardware.arch):  # its own state stays for runs on a GPU
            model = LaunchedModel.from_program(model.summary, model.program, model.memory)
            model.interprets = True
        allowed = _MOST_ERROR[self.request.precision or build.planned.precision]
        return Checks(check_outputs(model, source, lambda *_: _ADVICE, allowed=allowed))


def _memory_dtype(precision: str | None) -> str | None:
    """Return the 16-bit number format of tensors in memory for a precision; None if no precision is given."""
    return HALVES[1] if precision == FP8 else precision


def _interpreter_s(planned: PlannedModel, model: LaunchedModel) -> float:
    """Return the estimated seconds of a run in Triton's interpreter."""
    programs = sum(model.program.kernels[launch.kernel].grid for launch in model.program.launches)
    flop = sum(len(kernel.nodes) * kernel.workload.flop for kernel in planned.kernels)
    return programs * _PROGRAM_S + flop / _FLOP_PER_S
