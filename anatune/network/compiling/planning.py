"""The kernel of each product of a model: equal products are planned once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import CpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.core.workload.ranges import make_ranged_workload
from anatune.errors import SpaceError
from anatune.model.rank import Constraints, rank
from anatune.network.compiling.plan_cache import PlanCache
from anatune.network.graph.nodes import Constant, Graph, Node
from anatune.network.graph.operators import PRODUCTS, SCALED_MATMUL
from anatune.network.graph.products import constant_operands, make_workload, workload_of
from anatune.network.kernels.functions import add_functions
from anatune.network.relax.kernels import RangedCalls
from anatune.templates import CPU, SCALED, WINOGRAD, joined_templates, make_model
from anatune.templates.cpu.microkernels import constant_tensors
from anatune.templates.cpu.model.cold import with_cold_weights
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.range_space import runs_for_all
from anatune.templates.scaled.rules import change_rows, set_floats
from anatune.tuning.machine import usable_cores

__all__ = [
    "PlainProduct",
    "PlannedKernel",
    "ProductPlanner",
    "kernels_of",
    "plan_products",
    "predict_product",
    "search_in_parallel",
    "strip_epilogue",
    "weight_bytes",
]

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")
_TRANSFORMS = 4
"""Schedules that are compared of a template other than the default: they differ in their weights, read anew."""
_RANGED_COUNT = 24
"""First choices among which a schedule is looked for that runs for all extents of a range."""
PlainProduct = tuple[Workload, tuple[str, ...]]
"""The key of planning: a product without its epilogue, and the names of its constant operands."""


class PlannedKernel(NamedTuple):
    """A kernel and the nodes that it computes.

    Attributes
    ----------
    name : str
        Name of its function in the library.
    schedule : Schedule
    prediction : Prediction
        Prediction of one call.
    nodes : tuple of Node
    is_tuned : bool
        Whether `schedule` is the best of those measured, and not the plan's.
    span : RangedCalls, optional
        The range of the extent that the kernel takes at run time.
    """

    name: str
    schedule: Schedule
    prediction: Prediction
    nodes: tuple[Node, ...]
    is_tuned: bool = False
    span: RangedCalls | None = None

    @property
    def workload(self) -> Workload:
        """The workload of its schedule."""
        return self.schedule.workload


class ProductPlanner:
    """Plans products without epilogues on one CPU, each of them once.

    Parameters
    ----------
    graph : Graph
        The model, which gives the bytes of weights that one run reads.
    hardware : CpuSpec
        The CPU with the cores that kernels may use.
    accuracy : str
    cache : PlanCache, optional
        Plans of earlier models on this CPU; None plans everything anew.

    Attributes
    ----------
    planned : dict of PlainProduct to Schedule
        The first choices so far; callers may replace one by a better schedule.
    """

    def __init__(
        self, graph: Graph, hardware: CpuSpec, accuracy: str = STANDARD, cache: PlanCache | None = None
    ) -> None:
        self._cache = cache
        self.hardware, self.weights, self.accuracy = hardware, weight_bytes(graph.nodes()), accuracy
        self.planned: dict[PlainProduct, Schedule] = {}

    def plan(self, sums: Iterable[PlainProduct], progress: Callable[[int, int], None] | None = None) -> None:
        """Plan the products that are not planned yet, on all cores; `progress` takes (products planned, products).

        Raises
        ------
        SpaceError
            No schedule of a product is legal on the hardware.
        """
        missing = [wanted for wanted in dict.fromkeys(sums) if wanted not in self.planned]
        before = len(self.planned)

        def report_done(planned_count: int) -> None:
            if progress is not None:
                progress(before + planned_count, before + len(missing))

        self.planned |= search_in_parallel(self.first_choice, missing, report_done)

    def predict(self, schedule: Schedule, constants: tuple[str, ...]) -> Prediction:
        """Return the prediction of a product's schedule; the operands `constants` are constants."""
        return predict_product(schedule, constants, self.hardware, self.weights)

    def lower_bound_s(self, workload: Workload, constants: tuple[str, ...]) -> float:
        """Return a time that no untransformed product goes below: its multiplications without padding, at the peak."""
        least_flop: float = _make_model(workload, constants, self.hardware, CPU.name).least_flop
        return least_flop / self.hardware.peak_flop_per_s(workload.dtype)

    def first_choice(self, wanted: PlainProduct) -> Schedule:
        """Return the fastest of the templates' first choices for one product, by their predictions.

        Raises
        ------
        SpaceError
            No schedule of it is legal on the hardware.
        """
        workload, constants = wanted
        if workload.is_kernel:
            return self._choose_few_bits(workload, constants)
        choices = self._best_transform(workload, constants)
        # No untransformed product is faster than the peak: a faster transform spares the long search for the best one.
        if choices and choices[0][0] < self.lower_bound_s(workload, constants):
            return choices[0][1]
        choices += [(self.predict(one, constants).time_s, one) for one in self._default_choices(workload, constants)]
        if not choices:
            raise SpaceError(f"no schedule of {workload.describe()} is legal on {self.hardware.name}")
        return min(choices, key=itemgetter(0))[1]

    def _choose_few_bits(self, workload: Workload, constants: tuple[str, ...], most: int = 0) -> Schedule:
        """Return the first choice for a product with weights of few bits, which a model reads from memory in each run.

        With `most`, the schedule serves any number of rows up to `most`: it minimises the product of its times for the
        rows of `workload` and for `most` rows. Both run on the same packed weights, with or without unpacking to
        float32.
        """
        (template, *_) = joined_templates(workload, self.hardware, self.accuracy)
        count, name = (_RANGED_COUNT, f"{template.name} {most}") if most else (_TRANSFORMS, template.name)

        def search() -> list[Schedule]:
            return rank(workload, self.hardware, count, Constraints(accuracy=self.accuracy)).schedules

        def time_s(schedule: Schedule) -> float:
            return self.predict(schedule, constants).time_s

        candidates = self._find_schedules(workload, constants, name, search)
        if not most:
            return min(candidates, key=time_s)
        largest = make_ranged_workload(workload, "i", (most,)).largest
        timed = [(time_s(schedule), schedule) for schedule in candidates]
        variants = [(time, set_floats(schedule, is_set)) for time, schedule in timed for is_set in (False, True)]
        return min(variants, key=lambda way: way[0] * time_s(change_rows(way[1], largest)))[1]

    def _default_choices(self, workload: Workload, constants: tuple[str, ...], axis: str = "") -> list[Schedule]:
        """Return the default template's first choice; with an axis, the first that runs for all extents of the axis."""

        def search() -> list[Schedule]:
            model = _make_model(workload, constants, self.hardware, CPU.name)
            candidates = (model.space.schedule_of(point) for point in model.rank(_RANGED_COUNT if axis else 1).points)
            return [one for one in candidates if not axis or runs_for_all(one, axis)][:1]

        return self._find_schedules(workload, constants, f"{CPU.name} {axis}" if axis else CPU.name, search)

    def _best_transform(self, workload: Workload, constants: tuple[str, ...]) -> list[tuple[float, Schedule]]:
        """Return the time and the schedule of the best template other than the default; [] if none has a schedule."""
        if not set(constant_tensors(workload)) <= set(constants):
            return []
        hardware, accuracy = self.hardware, self.accuracy
        candidates: list[Schedule] = []

        def rank_template(template: str) -> list[Schedule]:
            return rank(workload, hardware, _TRANSFORMS, Constraints(template=template, accuracy=accuracy)).schedules

        for joined in joined_templates(workload, hardware, accuracy)[1:]:
            candidates += self._find_schedules(workload, constants, joined.name, partial(rank_template, joined.name))
        timed = [(self.predict(schedule, constants).time_s, schedule) for schedule in candidates]
        return [min(timed, key=itemgetter(0))] if timed else []

    def _find_schedules(
        self, workload: Workload, constants: tuple[str, ...], template: str, search: Callable[[], list[Schedule]]
    ) -> list[Schedule]:
        """Return the schedules that a search finds in a template, from the cache if an earlier model needed them."""
        return search() if self._cache is None else self._cache.schedules(workload, constants, template, search)

    def ranged_choice(self, workload: Workload, constants: tuple[str, ...], axis: str, most: int) -> Schedule:
        """Return the first choice for a product with any extent of an axis up to `most`.

        For rows it is planned at the extent of `workload`. For batches and images it is a schedule that runs for all
        extents, or the schedule of a single image.

        Raises
        ------
        SpaceError
            None of the first choices runs for a range.
        """
        extent = workload.extents[axis]
        if workload.is_kernel:
            return self._choose_few_bits(workload, constants, most)
        if axis == "i":
            choices = [(0.0, one) for one in self._default_choices(workload, constants, axis)]
        else:
            schedules = self._default_choices(make_ranged_workload(workload, axis, (1,)).largest, constants)
            choices = [(self.predict(one, constants).time_s * extent, one) for one in schedules]
            choices += self._best_transform(workload, constants)
        if not choices:
            raise SpaceError(
                f"no schedule of {workload.describe()} runs for a range of {axis} on {self.hardware.name}; compile "
                "the model for fixed sizes"
            )
        return min(choices, key=itemgetter(0))[1]


def plan_products(
    graph: Graph, planner: ProductPlanner, progress: Callable[[int, int], None] | None = None
) -> list[PlannedKernel]:
    """Return the first choices of kernels for the different products of a graph, in the order of the graph.

    Parameters
    ----------
    planner : ProductPlanner
        Its earlier choices are used again.
    progress : callable, optional
        Called with (different products planned, different products).

    Raises
    ------
    SpaceError
        No schedule of a product is legal on the hardware.
    """

    def key_of(node: Node) -> PlainProduct:
        return workload_of(node), constant_operands(node)

    def sum_of(key: PlainProduct) -> PlainProduct:
        return strip_epilogue(key[0]), key[1]

    planner.plan((sum_of(key_of(node)) for node in graph.nodes() if node.op in PRODUCTS), progress)
    return kernels_of(
        graph, key_of, lambda key: planner.planned[sum_of(key)], lambda schedule, key: planner.predict(schedule, key[1])
    )


def kernels_of(
    graph: Graph,
    key_of: Callable[[Node], Key],
    schedule_of: Callable[[Key], Schedule],
    prediction_of: Callable[[Schedule, Key], Prediction],
) -> list[PlannedKernel]:
    """Return the kernels of a graph's products, in the order of the graph.

    Parameters
    ----------
    key_of : callable
        Returns the key of a node; products with equal keys share a kernel.
    schedule_of : callable
        Returns the schedule of a key's product without its epilogue, which is added here.
    prediction_of : callable
        Returns the prediction of that schedule.
    """
    groups: dict[Key, list[Node]] = {}
    for node in graph.nodes():
        if node.op in PRODUCTS:
            groups.setdefault(key_of(node), []).append(node)
    kernels = []
    for number, (key, nodes) in enumerate(groups.items()):
        workload = workload_of(nodes[0])
        schedule = msgspec.structs.replace(schedule_of(key), workload=workload)
        name = f"anatune_{number}_{workload.operator}"
        kernels.append(PlannedKernel(name, schedule, prediction_of(schedule, key), tuple(nodes)))
    return kernels


def search_in_parallel(
    search: Callable[[Key], Result], keys: Collection[Key], progress: Callable[[int], None]
) -> dict[Key, Result]:
    """Return the result of a search for each key; the searches run on all cores.

    Parameters
    ----------
    progress : callable
        Called with the number of finished searches.
    """
    results: dict[Key, Result] = {}
    pool = ThreadPoolExecutor(usable_cores())  # nearly all the time goes to compiled code, which releases the GIL
    try:
        searches = {pool.submit(search, key): key for key in keys}
        for finished in as_completed(searches):
            results[searches[finished]] = finished.result()
            progress(len(results))
    finally:
        pool.shutdown(cancel_futures=True)
    return results


def weight_bytes(nodes: Iterable[Node]) -> float:
    """Return the bytes of the constants that products read: a run loads them from memory or the last cache."""
    read = {value for node in nodes if node.op in PRODUCTS for value in node.arguments[: _count_operands(node)]}
    return float(sum(value.array.nbytes for value in read if isinstance(value, Constant)))


def _count_operands(node: Node) -> int:
    """Return the number of operands of a product: data, weights, and their scales and zero points."""
    return 2 if node.op != SCALED_MATMUL else 3 + node.attributes["zero_points"]


def predict_product(schedule: Schedule, constants: tuple[str, ...], hardware: CpuSpec, weights: float) -> Prediction:
    """Return the prediction of a product within a model.

    Parameters
    ----------
    constants : tuple of str
        Names of its constant operands.
    weights : float
        Bytes of the weights of all products.
    """
    workload = schedule.workload
    model = _make_model(workload, constants, hardware, schedule.template)
    prediction = model.predictions(np.array([model.space.point_of(schedule)]))[0]
    product_bytes = prediction.resources.get("weight_bytes") or sum(
        math.prod(access.shape) * DTYPE_BYTES[access.dtype] for access in workload.reads if access.tensor in constants
    )
    overlap = schedule.template in (WINOGRAD.name, SCALED.name)
    prediction = with_cold_weights(prediction, product_bytes, weights, hardware, levels_overlap=overlap)
    return add_functions(prediction, workload, hardware)


def strip_epilogue(workload: Workload) -> Workload:
    """Return a product's workload without its epilogue: products that differ only by it share their tiles.

    Products of 8-bit integers that differ only by the value of a nonzero zero point share their tiles as well.
    """
    attrs = {**workload.attribute, "epilogue": ()}
    if workload.dtype in BYTE_DTYPES:
        zero = min(1, abs(int(str(attrs.get("input_zero_point", 0)))))
        attrs |= {"dtype": str(attrs["dtype"]).partition(":")[0], "input_zero_point": zero, "output_zero_point": 0}
    return make_workload(workload.operator, **attrs)


@lru_cache(maxsize=256)
def _make_model(workload: Workload, constants: tuple[str, ...], hardware: CpuSpec, template: str) -> Any:
    """Return the analytical model of a template for a product, some of whose operands can be packed ahead."""
    if template == CPU.name:
        return CpuModel(
            workload, hardware, constants=tuple(name for name in constant_tensors(workload) if name in constants)
        )
    return make_model(workload, hardware, template)
