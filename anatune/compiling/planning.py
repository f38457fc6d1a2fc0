"""Which kernel each product of a model gets: equal products are planned once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from anatune import api
from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import CpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.errors import SpaceError
from anatune.graph.nodes import Constant, Graph, Node
from anatune.graph.products import PRODUCTS, known_operands, workload_of
from anatune.templates import CPU, WINOGRAD, joined_templates, make_model
from anatune.templates.cpu.microkernels import constant_tensors
from anatune.templates.cpu.model.cold import with_cold_weights
from anatune.templates.cpu.model.model import CpuModel
from anatune.tuning.machine import usable_cores

__all__ = ["PlannedKernel", "Sum", "SumPlanner", "plan_products", "predicted", "weight_bytes", "without_steps"]

_TRANSFORMS = 4
"""Schedules of a template other than the default that are looked at: their weights, which all come anew, differ."""
Sum = tuple[Workload, tuple[str, ...]]
"""What is planned once: a product with nothing fused into its stores, and its constant operands."""


class PlannedKernel(NamedTuple):
    """A kernel and the products that it serves.

    Attributes
    ----------
    name : str
        Of its function in the library.
    workload : Workload
    schedule : Schedule
    prediction : Prediction
        Of one call.
    nodes : tuple of Node
    is_tuned : bool
        Whether `schedule` is one that was measured to be the best, not the plan's.
    """

    name: str
    workload: Workload
    schedule: Schedule
    prediction: Prediction
    nodes: tuple[Node, ...]
    is_tuned: bool = False


class SumPlanner:
    """First choices for different sums on one CPU: each is looked for once.

    Parameters
    ----------
    hardware : CpuSpec
        With the cores that kernels may use.
    weights : float
        Bytes of all products' weights (`weight_bytes`).
    accuracy : str

    Attributes
    ----------
    planned : dict of sum to Schedule
        By the sum, a product with nothing fused and its constant operands; whoever finds a better one may put it here.
    """

    def __init__(self, hardware: CpuSpec, weights: float, accuracy: str = STANDARD) -> None:
        self.hardware, self.weights, self.accuracy = hardware, weights, accuracy
        self.planned: dict[Sum, Schedule] = {}

    def plan(self, sums: Iterable[Sum], progress: Callable[[int, int], None] | None = None) -> None:
        """Plan what is not planned yet, on all cores; `progress` is called with (sums planned, sums).

        Raises
        ------
        SpaceError
            No schedule of a product is legal on the hardware.
        """
        missing = [one for one in dict.fromkeys(sums) if one not in self.planned]
        before = len(self.planned)

        def counted(done: int, total: int) -> None:
            if progress is not None:
                progress(before + done, before + total)

        self.planned |= _first_choices(missing, self.hardware, self.weights, self.accuracy, counted)

    def predicted(self, schedule: Schedule, known: tuple[str, ...]) -> Prediction:
        """Return the prediction of a schedule of a product whose operands `known` are constants."""
        return predicted(schedule, known, self.hardware, self.weights)

    def floor_s(self, workload: Workload, known: tuple[str, ...]) -> float:
        """Return a time that no plain sum undercuts."""
        return _floor_s(workload, known, self.hardware)


def plan_products(
    graph: Graph,
    hardware: CpuSpec,
    accuracy: str = STANDARD,
    progress: Callable[[int, int], None] | None = None,
    planner: SumPlanner | None = None,
) -> list[PlannedKernel]:
    """Return the model's first choice for each different product of a graph, in the order in which they come.

    Parameters
    ----------
    hardware : CpuSpec
        With the cores that kernels may use.
    progress : callable, optional
        Called with (different sums planned, different sums).
    planner : SumPlanner, optional
        Of the same hardware and accuracy: what it knows is not planned again.

    Raises
    ------
    SpaceError
        No schedule of a product is legal on the hardware.
    """
    planner = planner or SumPlanner(hardware, weight_bytes(graph.nodes()), accuracy)
    groups: dict[Sum, list[Node]] = {}
    for node in graph.nodes():
        if node.op in PRODUCTS:
            groups.setdefault((workload_of(node), known_operands(node)), []).append(node)
    sums = {key: (without_steps(key[0]), key[1]) for key in groups}
    planner.plan(sums.values(), progress)
    found = []
    for number, (key, nodes) in enumerate(groups.items()):
        workload, known = key
        schedule = msgspec.structs.replace(planner.planned[sums[key]], workload=workload)
        name = f"anatune_{number}_{workload.operator}"
        found.append(PlannedKernel(name, workload, schedule, planner.predicted(schedule, known), tuple(nodes)))
    return found


def weight_bytes(nodes: Iterable[Node]) -> float:
    """Return the bytes of the constants that products read: what a run brings from memory or the last cache."""
    read = {id(one): one for node in nodes if node.op in PRODUCTS for one in node.arguments[:2]}
    return float(sum(one.array.nbytes for one in read.values() if isinstance(one, Constant)))


def predicted(schedule: Schedule, known: tuple[str, ...], hardware: CpuSpec, weights: float) -> Prediction:
    """Return the prediction of a product in a model.

    Parameters
    ----------
    known : tuple of str
        Its constant operands.
    weights : float
        Bytes of all products' weights.
    """
    workload = schedule.workload
    model = _model(workload, known, hardware, schedule.template)
    prediction = model.predictions(np.array([model.space.point_of(schedule)]))[0]
    own = prediction.resources.get("weight_bytes") or sum(
        math.prod(access.shape) * DTYPE_BYTES[access.dtype] for access in workload.reads if access.tensor in known
    )
    overlap = schedule.template == WINOGRAD.name
    return with_cold_weights(prediction, own, weights, hardware, levels_overlap=overlap)


def _first_choices(
    sums: Collection[Sum],
    hardware: CpuSpec,
    weights: float,
    accuracy: str,
    progress: Callable[[int, int], None],
) -> dict[Sum, Schedule]:
    """Return the model's first choice for each of different sums, which all cores look for."""
    planned: dict[Sum, Schedule] = {}
    pool = ThreadPoolExecutor(usable_cores())  # compiled code, where nearly all the time goes, runs beside Python's
    try:
        searches = {pool.submit(_first_choice, *one, hardware, weights, accuracy): one for one in sums}
        for search in as_completed(searches):
            planned[searches[search]] = search.result()
            progress(len(planned), len(sums))
    finally:
        pool.shutdown(cancel_futures=True)
    return planned


def without_steps(workload: Workload) -> Workload:
    """Return the sum alone: kernels that differ by what is fused into their stores have the same tiles."""
    return CONSTRUCTORS[workload.operator](**{**workload.attribute, "epilogue": ()})


def _first_choice(
    workload: Workload, known: tuple[str, ...], hardware: CpuSpec, weights: float, accuracy: str
) -> Schedule:
    """Return the first choice for one product: of the templates' own ones the one that is fastest in the model."""

    def timed(schedule: Schedule) -> tuple[float, Schedule]:
        return predicted(schedule, known, hardware, weights).time_s, schedule

    packs = set(constant_tensors(workload)) <= set(known)
    found: list[Schedule] = []
    for template in joined_templates(workload, hardware, accuracy)[1:] if packs else ():
        found += api.plan(workload, hardware, _TRANSFORMS, template=template.name, accuracy=accuracy).schedules
    choices = [min(map(timed, found), key=itemgetter(0))] if found else []
    # No plain sum is faster than the peak; what is needs no search for the best plain sum, which is long.
    if choices and choices[0][0] < _floor_s(workload, known, hardware):
        return choices[0][1]
    model = _model(workload, known, hardware, CPU.name)
    choices = [*(timed(model.space.schedule_of(point)) for point in model.rank(1).points), *choices]
    if not choices:
        raise SpaceError(f"no schedule of {workload.describe()} is legal on {hardware.name}")
    return min(choices, key=itemgetter(0))[1]


def _floor_s(workload: Workload, known: tuple[str, ...], hardware: CpuSpec) -> float:
    """Return the time of the products that are not with padding, at the peak."""
    least_flop: float = _model(workload, known, hardware, CPU.name).least_flop
    return least_flop / hardware.peak_flop_per_s(workload.dtype)


def _model(workload: Workload, known: tuple[str, ...], hardware: CpuSpec, template: str) -> Any:
    """Return the analytical model of a template for a product, some of whose operands may be packed ahead."""
    if template == CPU.name:
        return CpuModel(workload, hardware, constants=tuple(one for one in constant_tensors(workload) if one in known))
    return make_model(workload, hardware, template)
