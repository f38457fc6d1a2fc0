"""Which kernel each product of a model gets on a GPU, and in which order its activations lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

import msgspec
import numpy as np

from anatune import api
from anatune.compiling.planning import PlannedKernel, without_steps
from anatune.core.accuracy import RELAXED, STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.graph.nodes import Graph, Node, tensor_type
from anatune.graph.products import PRODUCTS, workload_of
from anatune.model.learned.corrections import NONE
from anatune.records.place import RecordPlace
from anatune.records.store import RecordStore
from anatune.templates import Template, make_model, templates_of
from anatune.templates.gpu.streaming import streaming_s
from anatune.tuning.machine import usable_cores
from anatune.tuning.reuse import recorded_leaders

__all__ = ["PlannedGraph", "admitted", "choose_graph", "predicted", "recorded", "turning_s"]

_NARROW = ("float16", "bfloat16")
_TURN = "permute_dims"


class Choice(NamedTuple):
    """A schedule of a sum, and its prediction."""

    schedule: Schedule
    prediction: Prediction


class PlannedGraph(NamedTuple):
    """A graph, its kernels, and what the model says of it.

    Attributes
    ----------
    graph : Graph
    kernels : list of PlannedKernel
        In the order in which they come.
    turning_s : float
        Predicted time of the transposes that its order of dimensions needs.
    """

    graph: Graph
    kernels: list[PlannedKernel]
    turning_s: float

    @property
    def time_s(self) -> float:
        """Predicted time of products and transposes in a run."""
        return self.turning_s + sum(len(one.nodes) * one.prediction.time_s for one in self.kernels)


def admitted(template: Template, workload: Workload, hardware: GpuSpec, accuracy: str) -> bool:
    """Whether a model's product may get schedules of a template: tensor cores round float32, which is relaxed."""
    exact = workload.dtype in _NARROW or accuracy == RELAXED
    return (exact or not template.tensor_cores) and template.takes(workload, hardware)


def choose_graph(
    graphs: Sequence[Graph],
    hardware: GpuSpec,
    accuracy: str = STANDARD,
    progress: Callable[[int, int], None] | None = None,
) -> PlannedGraph:
    """Return the graph with the least predicted time, planned.

    Parameters
    ----------
    graphs : sequence of Graph
        The same model with its activations in different orders. They are compared by quick templates; the one that
        is chosen gets the widened ones besides, whose spaces are searched several times as long.
    progress : callable, optional
        Called with (sums planned, sums to plan).

    Raises
    ------
    SpaceError
        No schedule of a product is legal on the hardware.
    """
    sums = [_sums_of(graph) for graph in graphs]
    every = tuple(dict.fromkeys(one for own in sums for one in own))
    total = len(every) + len(sums[0])

    def tell(done: int) -> None:
        if progress is not None:
            progress(min(done, total), total)

    quick = [one for one in templates_of(hardware) if one.widens is None]
    found = _planned(every, quick, hardware, accuracy, tell)
    best = min((_of(graph, hardware, found) for graph in graphs), key=lambda one: one.time_s)
    chosen = _sums_of(best.graph)
    wide = [one for one in templates_of(hardware) if one.widens is not None]
    wider = _planned(chosen, wide, hardware, accuracy, lambda done: tell(len(every) + done))
    for workload, choice in wider.items():
        if workload not in found or choice.prediction.time_s < found[workload].prediction.time_s:
            found[workload] = choice
    tell(total)
    return _of(best.graph, hardware, found)


def turning_s(graph: Graph, hardware: GpuSpec) -> float:
    """Return the predicted time of a graph's transposes, s."""
    kinds = [tensor_type(node) for node in graph.nodes() if node.op == _TURN]
    return sum(streaming_s(hardware, 2 * math.prod(one.shape) * np.dtype(one.dtype).itemsize) for one in kinds)


def recorded(planned: PlannedGraph, hardware: GpuSpec, records: RecordPlace, accuracy: str) -> PlannedGraph:
    """Return a planned graph with the best schedules that a record file has of its sums.

    Raises
    ------
    RecordError
        The file cannot be used.
    """
    with RecordStore(records) as store:
        kernels = []
        for one in planned.kernels:
            sum_ = without_steps(one.workload)
            trials = [
                found
                for template in templates_of(hardware)
                if admitted(template, sum_, hardware, accuracy)
                for found in recorded_leaders(store, sum_, hardware, 1, 1, template=template.name, accuracy=accuracy)
            ]
            if trials:
                best = min(trials, key=lambda found: found.trial.measurement.time_s or math.inf)
                schedule = msgspec.structs.replace(best.trial.schedule, workload=one.workload, hardware=hardware)
                is_tuned = schedule != one.schedule
                one = one._replace(schedule=schedule, prediction=predicted(schedule), is_tuned=is_tuned)
            kernels.append(one)
    return planned._replace(kernels=kernels)


def predicted(schedule: Schedule) -> Prediction:
    """Return what the analytical model says of a schedule."""
    model = make_model(schedule.workload, schedule.hardware, schedule.template)
    found: Prediction = model.predictions(np.array([model.space.point_of(schedule)]))[0]
    return found


def _sums_of(graph: Graph) -> tuple[Workload, ...]:
    """Return the different sums of a graph, nothing fused into their stores."""
    return tuple(dict.fromkeys(without_steps(workload_of(node)) for node in graph.nodes() if node.op in PRODUCTS))


def _planned(
    sums: Sequence[Workload],
    templates: Iterable[Template],
    hardware: GpuSpec,
    accuracy: str,
    tell: Callable[[int], None],
) -> dict[Workload, Choice]:
    """Return the first choice of some templates for each sum, which all cores look for; those without are missing."""
    used = tuple(templates)
    found: dict[Workload, Choice] = {}
    pool = ThreadPoolExecutor(usable_cores())  # compiled code, where nearly all the time goes, runs beside Python's
    try:
        searches = {pool.submit(_first_choice, one, used, hardware, accuracy): one for one in sums}
        for done, search in enumerate(as_completed(searches), 1):
            choice = search.result()
            if choice is not None:
                found[searches[search]] = choice
            tell(done)
    finally:
        pool.shutdown(cancel_futures=True)
    return found


def _first_choice(
    workload: Workload, templates: tuple[Template, ...], hardware: GpuSpec, accuracy: str
) -> Choice | None:
    answers = [
        api.plan(workload, hardware, 1, template=one.name, accuracy=accuracy, correction=NONE)
        for one in templates
        if admitted(one, workload, hardware, accuracy)
    ]
    choices = [Choice(one.schedules[0], one.predictions[0]) for one in answers if one.schedules]
    return min(choices, key=lambda one: one.prediction.time_s, default=None)


def _of(graph: Graph, hardware: GpuSpec, found: Mapping[Workload, Choice]) -> PlannedGraph:
    """Return a graph with the choices for its sums."""
    groups: dict[Workload, list[Node]] = {}
    for node in graph.nodes():
        if node.op in PRODUCTS:
            groups.setdefault(workload_of(node), []).append(node)
    kernels = []
    for number, (workload, nodes) in enumerate(groups.items()):
        choice = found.get(without_steps(workload))
        if choice is None:
            raise SpaceError(f"no schedule of {workload.describe()} is legal on {hardware.name}")
        schedule = msgspec.structs.replace(choice.schedule, workload=workload)
        name = f"anatune_{number}_{workload.operator}"
        kernels.append(PlannedKernel(name, workload, schedule, predicted(schedule), tuple(nodes)))
    return PlannedGraph(graph, kernels, turning_s(graph, hardware))
