"""Compile whole models for CPUs: kernels of anatune's for all but single operators, which can be measured."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from anatune.codegen.compat import list_features, target_of
from anatune.codegen.cpu.features import code_features
from anatune.core.accuracy import error_of
from anatune.core.hardware.dot import tile_features
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import matmul
from anatune.errors import RunError, SpaceError
from anatune.measure.cpu.features import allow_tiles, lacking_features
from anatune.measure.cpu.kernel import check_instructions
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.network.compiling.attention import plan_attentions
from anatune.network.compiling.checking import TOLERANCE, FaultSearch, check_outputs
from anatune.network.compiling.layouts.choice import choose_layouts
from anatune.network.compiling.plan_cache import PlanCache
from anatune.network.compiling.planning import PlannedKernel, ProductPlanner, plan_products
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.sizes.varying import (
    environments,
    extend_attention,
    extend_products,
    merge_readings,
    varying_ranges,
)
from anatune.network.compiling.targets.base import Checks, Code, ModelBuild, ModelTarget, PlannedModel
from anatune.network.graph.integers.few_bits import pack_byte_weights, unpack_products
from anatune.network.graph.integers.scaled import has_integers
from anatune.network.graph.nodes import HALVES, Graph, Node
from anatune.network.graph.passes.attention import fuse_attention
from anatune.network.graph.passes.layouts import Choice, LayoutForm, apply_layout
from anatune.network.graph.passes.order import CPU, CPU_KERNELS, run_passes
from anatune.network.graph.passes.precision import FP8, WIDE, mark_products, precision_of, store_16_bit
from anatune.network.graph.passes.recurrent import block_recurrent_weights
from anatune.network.graph.summary import ModelSummary, TuningSummary
from anatune.network.relax.building import build_library
from anatune.network.relax.frontends import ImportedModel
from anatune.network.relax.kernels import ModelKernel, attention_kernel, list_unplanned, model_kernel, write_unplanned
from anatune.network.relax.writing import write_model
from anatune.templates import AMX
from anatune.templates.cpu.dot import has_instruction
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.scaled.rules import ISAS
from anatune.tuning.machine import choose_threads

__all__ = ["CpuTarget", "has_precision", "require_cpu"]


def require_cpu(hw: HardwareLike) -> CpuSpec:
    """Return the CPU of a name.

    Raises
    ------
    SpaceError
        The device is a GPU.
    UnknownNameError, SpecError
        As `anatune.hardware`.
    """
    device = hardware(hw)
    if device.kind != "cpu":
        raise SpaceError(f"compile: {device.name} is a GPU, expected a CPU; give --hw host or the spec file of a CPU")
    return device


def _square_matmul(dtype: str, size: int = 512) -> Workload:
    return matmul(size, size, size, dtype=dtype)


def has_precision(hardware: CpuSpec, precision: str) -> bool:
    """Return whether a CPU has instructions for products of a precision."""
    return precision == WIDE or (precision in HALVES and has_instruction(_square_matmul(precision), hardware))


def _drop_unusable_tiles(hardware: CpuSpec) -> CpuSpec:
    """Return a CPU as this process may use it: without AMX if the system refuses its registers, with a warning."""
    if not tile_features(hardware):
        return hardware
    try:
        allow_tiles(tile_features(hardware))
    except RunError as error:
        warnings.warn(f"compile: kernels do not use AMX: {error}", stacklevel=4)
        return msgspec.structs.replace(hardware, amx=msgspec.UNSET)
    return hardware


def _check_precision(hardware: CpuSpec, precision: str) -> None:
    """Raise SpaceError for a precision that the CPU has no instructions for."""
    if has_instruction(_square_matmul(precision), hardware):
        return
    models = [CpuModel(_square_matmul(dtype), hardware) for dtype in (precision, WIDE)]
    times = [float(model.times(model.rank(1).points)[0][0]) for model in models]
    ratio = times[0] / times[1]
    slower = f"takes {ratio:.2g} times as long as in {WIDE}" if ratio >= 1.05 else f"is not faster than in {WIDE}"
    raise SpaceError(
        f"compile: precision is {precision}, and {hardware.name} has no instructions for it: in software a product "
        f"{slower}; leave the precision out to use {WIDE}"
    )


class _CpuDecisions(NamedTuple):
    """Decisions for a model at its first sizes: the orders of activations, and which attentions become kernels."""

    planner: ProductPlanner
    orders: list[LayoutForm | None]
    pay: list[bool]


def _data_of(planned: PlannedModel) -> _CpuDecisions:
    assert isinstance(planned.target_data, _CpuDecisions)
    return planned.target_data


class CpuTarget(ModelTarget):
    """A CPU, which runs here unless `is_present` is False: then models are only predicted. See `ModelTarget`.

    Raises
    ------
    SpaceError
        The number of threads is out of range.
    RunError
        The CPU is of another kind than this machine's.
    """

    hardware: CpuSpec
    cores: CpuSpec

    def __init__(self, hardware: CpuSpec, request: CompileRequest, *, is_present: bool = True) -> None:
        if is_present:
            check_instructions(hardware)
            hardware = _drop_unusable_tiles(hardware)
        threads = choose_threads(hardware, request.threads, None if is_present else hardware.compute.num_cores)
        super().__init__(hardware, threads, request, target_of(hardware, threads=threads))
        if is_present:
            features = code_features(list_features(self.target), platform.machine())
            hidden = set(lacking_features(features))  # that a virtual machine hides; float32 code needs none
            self.features = tuple(name for name in features if name not in hidden)
        self.measures = request.trials > 0 or request.records is not None
        if request.precision in HALVES:
            _check_precision(hardware, request.precision)
        if request.precision == FP8:
            raise SpaceError(
                f"compile: precision is {FP8}, which needs a GPU, and {hardware.name} is a CPU; take {HALVES[1]} "
                "or int8"
            )

    def required_features(self, planned: PlannedModel) -> tuple[str, ...]:
        """Return the instructions that a processor needs for a model, with AMX if a kernel uses it."""
        uses_tiles = any(kernel.schedule.template == AMX.name for kernel in planned.kernels)
        return (*self.features, *(("amx-tile", *tile_features(self.hardware)) if uses_tiles else ()))

    def plan(self, graph: Graph, *, varies: bool = False) -> PlannedModel:
        """Return an imported model after all passes, with first choices of kernels."""
        dtype = precision_of(graph)
        precision = self.request.precision or (dtype if has_instruction(_square_matmul(dtype), self.hardware) else WIDE)
        planned = self._apply_passes(graph, precision, varies=varies)
        products = plan_products(planned.graph, _data_of(planned).planner, self.request.progress)
        return planned._replace(kernels=products)

    def extend_to_all_sizes(self, planned: PlannedModel, source: ImportedModel) -> PlannedModel:
        """Return a model extended to all sizes of its ranges. Errors: as `ModelTarget.extend_to_all_sizes`."""
        first, ranges = planned.graph, varying_ranges(source.ranges)
        sets, fallbacks = (environments(source.ranges, source.state, within=is_within) for is_within in (False, True))

        def read(sizes: Mapping[str, int]) -> Graph:
            return first if sizes == sets[0] else self._apply_decisions(source.graph(sizes), planned)

        graph, nodes = merge_readings(read, sets, source.name, ranges, fallbacks)
        return planned._replace(
            graph=graph,
            kernels=list(extend_products(planned.kernels, nodes, _data_of(planned).planner, ranges)),
            attentions=[extend_attention(one, nodes) for one in planned.attentions],
            ranges=ranges,
        )

    def _apply_passes(
        self, graph: Graph, precision: str, planner: ProductPlanner | None = None, *, varies: bool = False
    ) -> PlannedModel:
        """Return an imported model with layouts and attentions, without kernels; `planner` knows an equal model."""
        graph = self._mark_precision(run_passes(CPU, self._rewrite_weights(graph)), precision)
        accuracy, progress = self.request.accuracy, self.request.progress if planner is None else None
        planner = planner or ProductPlanner(graph, self.cores, accuracy, PlanCache(self.cores, accuracy))
        choice, layouts = choose_layouts(graph, planner, progress)
        orders = [choice.get(node) for node in graph.nodes()]
        pay: list[bool] = []
        graph = run_passes(CPU_KERNELS, apply_layout(graph, choice))
        graph, attentions = plan_attentions(graph, self.cores, pay, is_open=varies)
        decisions = _CpuDecisions(planner, orders, pay)
        return PlannedModel(graph, [], attentions, layouts, precision=precision, target_data=decisions)

    def _rewrite_weights(self, graph: Graph) -> Graph:
        """Return a graph with products of few bits where the CPU has kernels, and recurrent weights in blocks."""
        graph = (pack_byte_weights if self.cores.compute.isa in ISAS else unpack_products)(graph)
        return block_recurrent_weights(graph, self.cores.fp32_lanes)

    def _apply_decisions(self, graph: Graph, planned: PlannedModel) -> Graph:
        """Return an imported model after all passes, with the decisions of another reading at other sizes."""
        graph = self._mark_precision(run_passes(CPU, self._rewrite_weights(graph)), planned.precision)
        _, orders, pay = _data_of(planned)
        choice: Choice = {node: form for node, form in zip(graph.nodes(), orders, strict=False) if form is not None}
        answers = iter(pay)
        return store_16_bit(
            fuse_attention(run_passes(CPU_KERNELS, apply_layout(graph, choice)), lambda _: next(answers, False))
        )

    def _mark_precision(self, graph: Graph, precision: str) -> Graph:
        """Return a graph whose products have the chosen precision."""
        if precision not in HALVES:
            return graph
        return mark_products(graph, precision, lambda workload: has_instruction(workload, self.hardware))

    def tune(self, planned: PlannedModel) -> tuple[list[PlannedKernel], TuningSummary]:
        """Measure kernels, and return them with the best schedules and a summary."""
        from anatune.network.compiling.tuning import tune_kernels

        return tune_kernels(planned.kernels, self.hardware, self.threads, self.request)

    def kernels(self, planned: PlannedModel) -> dict[Node, ModelKernel]:
        """Return the kernel of each node that anatune has one for."""
        kernels: dict[Node, ModelKernel] = write_unplanned(planned.graph, self.hardware, self.threads)
        for product in planned.kernels:
            kernel = model_kernel(product.name, product.schedule, self.threads, product.span)
            kernels.update((node, kernel) for node in product.nodes)
        for attention in planned.attentions:
            kernel = attention_kernel(attention.name, attention.kernel, self.hardware.fp32_lanes, self.threads)
            kernels.update((node, kernel) for node in attention.nodes)
        return kernels

    def describe(self, planned: PlannedModel) -> ModelSummary:
        """Return the summary of a planned model with its predictions, without writing or compiling its kernels."""
        names = {node: name for node, (name, _) in list_unplanned(planned.graph).items()}
        names |= {node: kernel.name for kernel in planned.kernels for node in kernel.nodes}
        names |= {node: attention.name for attention in planned.attentions for node in attention.nodes}
        unwritten = {node: ModelKernel(name, None, {}) for node, name in names.items()}
        return self.summarise(planned, unwritten, (), int(_data_of(planned).planner.weights))

    def generate_code(self, planned: PlannedModel) -> Code:
        """Compile a planned model by TVM."""
        kernels = self.kernels(planned)
        model = write_model(planned.graph, kernels, ranges=planned.ranges, state=planned.state)
        return Code(planned, kernels, model.weights, build_library(model, self.target, self.threads))

    def is_checked(self, source: ImportedModel) -> bool:
        """Return whether outputs are compared with the original's."""
        return self.request.check is not False and source.reference is not None

    def check(self, build: ModelBuild, source: ImportedModel) -> Checks:
        """Return the error of the outputs; a RunError names the operator that is wrong."""
        planned = build.planned
        allowed = max((error_of(one.schedule) for one in planned.kernels), default=0.0)

        def prepare(graph: Graph) -> Graph:
            planner, varies = _data_of(planned).planner, bool(planned.ranges)
            return self._apply_passes(graph, planned.precision, planner, varies=varies).graph

        search = FaultSearch(
            planned.graph, build.kernels, planned.kernels, self.target, self.threads, source.graph, prepare
        )
        allowed = max(allowed, TOLERANCE[planned.precision] if planned.precision in HALVES else 0.0)
        rounds = has_integers(planned.graph)
        return Checks(check=check_outputs(build.compiled, source, search.explain, allowed=allowed, rounds=rounds))
