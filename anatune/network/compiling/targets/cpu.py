"""Whole models for CPUs: everything but single operators gets kernels of anatune's, which can be measured."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from anatune.codegen.compat import features_of, target_of
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
from anatune.network.compiling.targets.base import CheckResult, GeneratedCode, ModelBuild, ModelTarget, PlannedModel
from anatune.network.graph.integers.few_bits import unpacked_products, with_byte_weights
from anatune.network.graph.integers.scaled import has_integers
from anatune.network.graph.nodes import HALVES, Graph, Node
from anatune.network.graph.passes.attention import with_attention
from anatune.network.graph.passes.layouts import Choice, Form, laid_out
from anatune.network.graph.passes.order import CPU, CPU_KERNELS, after
from anatune.network.graph.passes.precision import FP8, WIDE, marked, precision_of, stored
from anatune.network.graph.summary import TuningSummary
from anatune.network.relax.building import built
from anatune.network.relax.frontends import Imported
from anatune.network.relax.kernels import ModelKernel, attention_kernel, model_kernel, unplanned_kernels
from anatune.network.relax.writing import written
from anatune.templates import AMX
from anatune.templates.cpu.dot import has_instruction
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.scaled.rules import ISAS
from anatune.tuning.machine import choose_threads

__all__ = ["CpuTarget", "require_cpu"]


def require_cpu(hw: HardwareLike) -> CpuSpec:
    """Return the CPU of a name.

    Raises
    ------
    SpaceError
        It is a GPU.
    UnknownNameError, SpecError
        As `anatune.hardware`.
    """
    device = hardware(hw)
    if device.kind != "cpu":
        raise SpaceError(f"compile: {device.name} is a GPU, expected a CPU; name --hw host or the file of one")
    return device


def _square_matmul(dtype: str, size: int = 512) -> Workload:
    return matmul(size, size, size, dtype=dtype)


def _drop_unusable_tiles(hardware: CpuSpec) -> CpuSpec:
    """Return a CPU as this process may use it: without tiles where the system gives no registers, which is said."""
    if not tile_features(hardware):
        return hardware
    try:
        allow_tiles(tile_features(hardware))
    except RunError as error:
        warnings.warn(f"compile: kernels do without AMX; {error}", stacklevel=4)
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
        f"{slower}; leave it out, then {WIDE} is taken"
    )


class _CpuDecisions(NamedTuple):
    """What is decided of a model at the first of its sizes: orders of activations, and which attentions pay."""

    planner: ProductPlanner
    orders: list[Form | None]
    pay: list[bool]


def _data_of(planned: PlannedModel) -> _CpuDecisions:
    assert isinstance(planned.target_data, _CpuDecisions)
    return planned.target_data


class CpuTarget(ModelTarget):
    """A CPU that runs here; see `ModelTarget`.

    Raises
    ------
    SpaceError
        The threads are out of range.
    RunError
        The CPU is not of the present machine's kind.
    """

    hardware: CpuSpec
    cores: CpuSpec

    def __init__(self, hardware: CpuSpec, request: CompileRequest) -> None:
        check_instructions(hardware)
        hardware = _drop_unusable_tiles(hardware)
        threads = choose_threads(hardware, request.threads)
        super().__init__(hardware, threads, request, target_of(hardware, threads=threads))
        features = code_features(features_of(self.target), platform.machine())
        hidden = set(lacking_features(features))  # by a virtual machine: float32 code does not use what is not there
        self.features = tuple(name for name in features if name not in hidden)
        self.measures = request.trials > 0 or request.records is not None
        if request.precision in HALVES:
            _check_precision(hardware, request.precision)
        if request.precision == FP8:
            raise SpaceError(
                f"compile: precision is {FP8}, which is for GPUs, and {hardware.name} is none; take {HALVES[1]} or int8"
            )

    def required_features(self, planned: PlannedModel) -> tuple[str, ...]:
        """Return what a processor has to have for a model: tiles, too, if a kernel uses them."""
        uses_tiles = any(kernel.schedule.template == AMX.name for kernel in planned.kernels)
        return (*self.features, *(("amx-tile", *tile_features(self.hardware)) if uses_tiles else ()))

    def plan(self, graph: Graph, *, varies: bool = False) -> PlannedModel:
        """Return an imported model behind all passes, with the model's first choices of kernels."""
        model_dtype = precision_of(graph)
        precision = self.request.precision or (
            model_dtype if has_instruction(_square_matmul(model_dtype), self.hardware) else WIDE
        )
        planned = self._apply_passes(graph, precision, varies=varies)
        products = plan_products(planned.graph, _data_of(planned).planner, self.request.progress)
        return planned._replace(kernels=products)

    def extend_to_all_sizes(self, planned: PlannedModel, source: Imported) -> PlannedModel:
        """See `ModelTarget`."""
        first, ranges = planned.graph, varying_ranges(source.ranges)
        size_sets, fallback_sizes = (
            environments(source.ranges, source.state, within=is_within) for is_within in (False, True)
        )

        def read(sizes: Mapping[str, int]) -> Graph:
            return first if sizes == size_sets[0] else self._apply_decisions(source.graph(sizes), planned)

        graph, nodes = merge_readings(read, size_sets, source.name, ranges, fallback_sizes)
        return planned._replace(
            graph=graph,
            kernels=list(extend_products(planned.kernels, nodes, _data_of(planned).planner, ranges)),
            attentions=[extend_attention(one, nodes) for one in planned.attentions],
            ranges=ranges,
        )

    def _apply_passes(
        self, graph: Graph, precision: str, planner: ProductPlanner | None = None, *, varies: bool = False
    ) -> PlannedModel:
        """Return an imported model with its layouts and attentions, without kernels; `planner`: of an equal one."""
        graph = self._mark_precision(after(CPU, self._rewrite_few_bits(graph)), precision)
        accuracy, progress = self.request.accuracy, self.request.progress if planner is None else None
        planner = planner or ProductPlanner(graph, self.cores, accuracy, PlanCache(self.cores, accuracy))
        choice, layouts = choose_layouts(graph, planner, progress)
        orders = [choice.get(node) for node in graph.nodes()]
        pay: list[bool] = []
        graph = after(CPU_KERNELS, laid_out(graph, choice))
        graph, attentions = plan_attentions(graph, self.cores, pay, is_open=varies)
        decisions = _CpuDecisions(planner, orders, pay)
        return PlannedModel(graph, [], attentions, layouts, precision=precision, target_data=decisions)

    def _rewrite_few_bits(self, graph: Graph) -> Graph:
        """Return a graph with products with weights of few bits where the CPU has kernels for them, else without."""
        return (with_byte_weights if self.cores.compute.isa in ISAS else unpacked_products)(graph)

    def _apply_decisions(self, graph: Graph, planned: PlannedModel) -> Graph:
        """Return an imported model behind all passes, with the decisions that were taken at its other sizes."""
        graph = self._mark_precision(after(CPU, self._rewrite_few_bits(graph)), planned.precision)
        _, orders, pay = _data_of(planned)
        choice: Choice = {node: form for node, form in zip(graph.nodes(), orders, strict=False) if form is not None}
        answers = iter(pay)
        return stored(with_attention(after(CPU_KERNELS, laid_out(graph, choice)), lambda _: next(answers, False)))

    def _mark_precision(self, graph: Graph, precision: str) -> Graph:
        """Return a graph whose products have the chosen precision."""
        if precision not in HALVES:
            return graph
        return marked(graph, precision, lambda workload: has_instruction(workload, self.hardware))

    def tune(self, planned: PlannedModel) -> tuple[list[PlannedKernel], TuningSummary]:
        """Return kernels with the best measured schedules, and what measuring came to."""
        from anatune.network.compiling.tuning import tune_kernels

        return tune_kernels(planned.kernels, self.hardware, self.threads, self.request)

    def kernels(self, planned: PlannedModel) -> dict[Node, ModelKernel]:
        """Return each node that anatune has a kernel for -> its kernel."""
        kernels: dict[Node, ModelKernel] = unplanned_kernels(planned.graph, self.hardware, self.threads)
        for product in planned.kernels:
            kernel = model_kernel(product.name, product.schedule, self.threads, product.span)
            kernels.update((node, kernel) for node in product.nodes)
        for attention in planned.attentions:
            kernel = attention_kernel(attention.name, attention.kernel, self.hardware.fp32_lanes, self.threads)
            kernels.update((node, kernel) for node in attention.nodes)
        return kernels

    def generate_code(self, planned: PlannedModel) -> GeneratedCode:
        """Return what TVM builds of a planned model."""
        kernels = self.kernels(planned)
        model = written(planned.graph, kernels, ranges=planned.ranges, state=planned.state)
        return GeneratedCode(planned, kernels, model.weights, built(model, self.target, self.threads))

    def is_checked(self, source: Imported) -> bool:
        """Whether outputs are compared with the original's."""
        return self.request.check is not False and source.reference is not None

    def check(self, build: ModelBuild, source: Imported) -> CheckResult:
        """Return how far outputs are from the original's; an error names the operator that is wrong."""
        planned = build.planned
        allowed = max((error_of(one.schedule) for one in planned.kernels), default=0.0)

        def prepare(graph: Graph) -> Graph:
            planner, varies = _data_of(planned).planner, bool(planned.ranges)
            return self._apply_passes(graph, planned.precision, planner, varies=varies).graph

        fault_search = FaultSearch(
            planned.graph, build.kernels, planned.kernels, self.target, self.threads, source.graph, prepare
        )
        allowed = max(allowed, TOLERANCE[planned.precision] if planned.precision in HALVES else 0.0)
        rounds = has_integers(planned.graph)
        return CheckResult(
            check=check_outputs(build.compiled, source, fault_search.find_fault, allowed=allowed, rounds=rounds)
        )
