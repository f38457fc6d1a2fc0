"""Plan the kernels of a model for a GPU, and choose the order of its activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from anatune import api
from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec, HardwareSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.model.learned.corrections import NONE
from anatune.network.compiling.planning import PlannedKernel, kernels_of, search_in_parallel, strip_epilogue
from anatune.network.compiling.targets.base import PlannedModel
from anatune.network.graph.nodes import Graph, tensor_type
from anatune.network.graph.operators import PRODUCTS
from anatune.network.graph.passes.layouts import apply_layout, choose_order
from anatune.network.graph.passes.order import GPU, run_passes
from anatune.network.graph.passes.simplify import simplify
from anatune.network.graph.products import workload_of
from anatune.records.place import RecordPlace
from anatune.records.store import RecordStore
from anatune.templates import Template, make_model, templates_of
from anatune.templates.gpu.streaming import streaming_s
from anatune.tuning.reuse import recorded_leaders

__all__ = ["apply_records", "choose_graph", "lay_out_both_orders", "predict", "transposes_s"]

_TRANSPOSE = "permute_dims"


class _GpuChoice(NamedTuple):
    """A schedule of a product without epilogue, and its prediction."""

    schedule: Schedule
    prediction: Prediction


def lay_out_both_orders(graph: Graph) -> tuple[Graph, Graph]:
    """Return an imported model after all passes, with channels first, and with channels last where possible."""
    first = run_passes(GPU, graph)
    return first, simplify(apply_layout(first, choose_order(first)))


def choose_graph(
    graphs: Sequence[Graph],
    hardware: GpuSpec,
    accuracy: str = STANDARD,
    progress: Callable[[int, int], None] | None = None,
) -> PlannedModel:
    """Plan several graphs and return the one with the least predicted time.

    Parameters
    ----------
    graphs : sequence of Graph
        The same model with its activations in different orders. Templates with quick searches compare them; the best
        graph is then planned with the widened templates as well, whose searches take several times as long.
    progress : callable, optional
        Called with (products planned, products to plan).

    Raises
    ------
    SpaceError
        No schedule of a product is legal on the hardware.
    """
    sums = [_plain_workloads(graph) for graph in graphs]
    all_workloads = tuple(dict.fromkeys(workload for graph_workloads in sums for workload in graph_workloads))
    total = len(all_workloads) + len(sums[0])

    def tell(done: int) -> None:
        if progress is not None:
            progress(min(done, total), total)

    def choices(workloads: Sequence[Workload], *, widened: bool, before: int) -> dict[Workload, _GpuChoice]:
        """Return the first choices of quick or of widened templates; products without one are missing."""
        used = [template for template in templates_of(hardware) if (template.widens is not None) == widened]
        results = search_in_parallel(
            lambda workload: _first_choice(workload, used, hardware, accuracy),
            workloads,
            lambda done: tell(before + done),
        )
        return {workload: choice for workload, choice in results.items() if choice is not None}

    chosen = choices(all_workloads, widened=False, before=0)

    def schedule_of(workload: Workload) -> Schedule:
        choice = chosen.get(strip_epilogue(workload))
        if choice is None:
            raise SpaceError(f"no schedule of {workload.describe()} is legal on {hardware.name}")
        return choice.schedule

    def plan_graph(graph: Graph) -> PlannedModel:
        kernels = kernels_of(graph, workload_of, schedule_of, lambda schedule, _: predict(schedule))
        return PlannedModel(graph, kernels, turning_s=transposes_s(graph, hardware))

    best = min(map(plan_graph, graphs), key=lambda model: model.time_s)
    for workload, choice in choices(_plain_workloads(best.graph), widened=True, before=len(all_workloads)).items():
        if workload not in chosen or choice.prediction.time_s < chosen[workload].prediction.time_s:
            chosen[workload] = choice
    tell(total)
    return plan_graph(best.graph)


def transposes_s(graph: Graph, hardware: GpuSpec) -> float:
    """Return the predicted time of a graph's transposes, s."""
    types = [tensor_type(node) for node in graph.nodes() if node.op == _TRANSPOSE]
    return sum(streaming_s(hardware, 2 * math.prod(kind.shape) * np.dtype(kind.dtype).itemsize) for kind in types)


def apply_records(kernels: Iterable[PlannedKernel], records: RecordPlace, accuracy: str) -> list[PlannedKernel]:
    """Return planned kernels with the best schedules that a record store has for their products.

    Raises
    ------
    RecordError
        The record store cannot be used.
    """
    with RecordStore(records) as store:
        return [_apply_record(kernel, store, accuracy) for kernel in kernels]


def _apply_record(kernel: PlannedKernel, store: RecordStore, accuracy: str) -> PlannedKernel:
    workload, hardware = strip_epilogue(kernel.workload), kernel.schedule.hardware
    leaders = [
        leader
        for template in templates_of(hardware)
        if _is_admitted(template, workload, hardware)
        for leader in recorded_leaders(store, workload, hardware, 1, 1, template=template.name, accuracy=accuracy)
    ]
    if not leaders:
        return kernel
    best = min(leaders, key=lambda leader: leader.trial.measurement.time_s or math.inf)
    schedule = msgspec.structs.replace(best.trial.schedule, workload=kernel.workload, hardware=hardware)
    return kernel._replace(schedule=schedule, prediction=predict(schedule), is_tuned=schedule != kernel.schedule)


def predict(schedule: Schedule) -> Prediction:
    """Return the analytical model's prediction of a schedule."""
    model = make_model(schedule.workload, schedule.hardware, schedule.template)
    prediction: Prediction = model.predictions(np.array([model.space.point_of(schedule)]))[0]
    return prediction


def _is_admitted(template: Template, workload: Workload, hardware: HardwareSpec) -> bool:
    """Return whether TVM can build a template's kernels for a product: it cannot build Triton's."""
    return template.toolchain != "triton" and template.takes(workload, hardware)


def _plain_workloads(graph: Graph) -> tuple[Workload, ...]:
    """Return the different products of a graph, without their epilogues."""
    return tuple(dict.fromkeys(strip_epilogue(workload_of(node)) for node in graph.nodes() if node.op in PRODUCTS))


def _first_choice(
    workload: Workload, templates: Iterable[Template], hardware: GpuSpec, accuracy: str
) -> _GpuChoice | None:
    plans = [
        api.plan(workload, hardware, 1, template=template.name, accuracy=accuracy, correction=NONE)
        for template in templates
        if _is_admitted(template, workload, hardware)
    ]
    choices = [_GpuChoice(plan.schedules[0], plan.predictions[0]) for plan in plans if plan.schedules]
    return min(choices, key=lambda choice: choice.prediction.time_s, default=None)
