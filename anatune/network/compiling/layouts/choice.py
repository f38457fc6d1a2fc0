"""Choose the order of each activation by predicted times of kernels in each order, and of transposes between them.

Every product is planned with its channels last. In other orders it is first predicted with the same loops
(`layouts.moving`). Those that the solver chooses are planned, and the solver runs again, until it chooses nothing new.
A form is left out if it cannot win: if its lower bound is above the time with channels last and transposes around it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.core.workload.orders import CHANNELS_FIRST, CHANNELS_LAST, Order, layout_word
from anatune.network.compiling.layouts.assignment import LayoutOption, LayoutProblem
from anatune.network.compiling.layouts.moving import move_loops, swap_rows_and_columns
from anatune.network.compiling.planning import PlainProduct, ProductPlanner, strip_epilogue
from anatune.network.graph.nodes import Constant, Graph, Node, TensorType, Value, iterate_values, tensor_type
from anatune.network.graph.operators import CONVOLUTION
from anatune.network.graph.passes.layouts import (
    MODEL_FORM,
    Choice,
    LayoutForm,
    can_have,
    choose_order,
    has_any_order,
    is_reorder_free,
    operand_orders,
    result_order,
)
from anatune.network.graph.products import constant_operands, is_depthwise, make_workload, workload_of
from anatune.network.graph.summary import LayoutSummary
from anatune.network.kernels.window_kernel import WindowKernel, predict_groups
from anatune.templates import CPU
from anatune.templates.cpu.microkernels import constant_tensors
from anatune.templates.cpu.model.pack import COPY_BYTES_PER_CYCLE, moving_cycles

__all__ = ["choose_layouts", "transpose_s"]

_ALL_LAST = LayoutForm(CHANNELS_LAST, CHANNELS_LAST)
_MARGIN = 0.4
"""Share by which a kernel in another order must be predicted faster than with channels last. Source: Emerald Rapids,
one thread, 28 kernels of ResNet-50, MobileNet-V2 and VGG-16 with channels first or in blocks. Relative to channels
last, nine of ten take at most 1.4 times their prediction, and none less than 0.93 times. Strided 1x1 layers and those
of few channels take up to 2.2 times: they read more streams of lines than the hardware prefetches."""
_ROUNDS = 4
"""Most runs of the solver; kernels that are not planned by then keep the loops that they were predicted with."""


def choose_layouts(
    graph: Graph, planner: ProductPlanner, progress: Callable[[int, int], None] | None = None
) -> tuple[Choice, LayoutSummary | None]:
    """Return the orders of activations with the least predicted time, and a summary of them.

    Parameters
    ----------
    graph : Graph
        The graph after `graph.passes.order.CPU`.
    planner : ProductPlanner
        It has the first choices for the graph's convolutions afterwards.
    progress : callable, optional
        Called with (different products planned, different products).

    Returns
    -------
    Choice, LayoutSummary or None
        The choice for `graph.passes.layouts.apply_layout`; None if the graph has no convolutions.

    Raises
    ------
    SpaceError
        No schedule of a convolution is legal on the hardware.
    """
    nodes = graph.nodes()
    if not any(node.op == CONVOLUTION for node in nodes):
        return {}, None
    costs, last_choice = _LayoutCosts(graph, planner), choose_order(graph)
    costs.plan(last_choice, progress)
    orders = (CHANNELS_FIRST, CHANNELS_LAST, Order(block=planner.hardware.fp32_lanes))
    forms: dict[Value, list[LayoutForm]] = {node: costs.forms(node, last_choice, orders) for node in nodes}
    outputs = [(value, CHANNELS_FIRST) for value in dict.fromkeys(graph.outputs)]
    for _ in range(_ROUNDS):
        options: dict[Value, list[LayoutOption]] = {
            node: [costs.option(node, form, 0.0 if form[:2] == _ALL_LAST[:2] else _MARGIN) for form in forms[node]]
            for node in nodes
        }
        problem = LayoutProblem(options, outputs, costs.transpose_s, CHANNELS_FIRST)
        assignment = problem.solve()
        choice = {key: forms[key][place] for key, place in assignment.picked.items()}
        if not costs.plan(choice):
            break
    costs.keep_moved_schedules(choice)
    _, transposes = problem.cost_of(assignment.picked)
    words = Counter(
        layout_word(*choice[node][:2], len(node.attributes["strides"])) for node in nodes if node.op == CONVOLUTION
    )
    return choice, LayoutSummary(
        layouts=dict(words.most_common()),
        transposes=sum(costs.transpose_s(*one) > 0.0 for one in transposes),
        predicted_s=sum(one.cost_s for one in (costs.option(node, choice[node]) for node in nodes))
        + sum(costs.transpose_s(*one) for one in transposes),
        channels_last_s=costs.total_s(last_choice, outputs),
        channels_first_s=costs.total_s({}, outputs),
        # 0 if everything that is compared costs nothing
        gap=max(0.0, 1.0 - assignment.bound_s / assignment.cost_s) if assignment.cost_s else 0.0,
    )


def _is_compared(node: Node) -> bool:
    """Return whether a node's orders are compared: depthwise convolutions always have their channels last."""
    return node.op == CONVOLUTION and not is_depthwise(node)


class _LayoutCosts:
    """Predicted times of nodes in their forms, and of transposes between them."""

    def __init__(self, graph: Graph, planner: ProductPlanner) -> None:
        self.planner = planner
        self.nodes = graph.nodes()
        self._sums: dict[tuple[Node, LayoutForm], tuple[Workload, PlainProduct]] = {}
        self._moved: dict[PlainProduct, Schedule | None] = {}
        self._times: dict[tuple[Workload, tuple[str, ...], bool], float | None] = {}
        self._transpose_times: dict[tuple[TensorType, Order, Order], float] = {}

    # -- kernels -----------------------------------------------------------------------------------------------

    def sum_of(self, node: Node, form: LayoutForm) -> tuple[Workload, PlainProduct]:
        """Return the workload of a convolution in a form, and the product that is planned for it."""
        if (node, form) not in self._sums:
            original = workload_of(node)
            word = layout_word(*form[:2], len(node.attributes["strides"]))
            workload = make_workload(original.operator, **{**original.attribute, "layout": word})
            self._sums[node, form] = workload, (strip_epilogue(workload), constant_operands(node))
        return self._sums[node, form]

    def plan(self, choice: Choice, progress: Callable[[int, int], None] | None = None) -> bool:
        """Plan the convolutions in their chosen forms; return whether any of them was new."""
        before = len(self.planner.planned)
        products = [(node, choice.get(node, MODEL_FORM)) for node in self.nodes if _is_compared(node)]
        self.planner.plan((self.sum_of(*product)[1] for product in products if not product[1].unit), progress)
        return len(self.planner.planned) > before

    def move_schedule(self, node: Node, form: LayoutForm) -> Schedule | None:
        """Return the loops with channels last for another form, or with rows and columns swapped; None if illegal."""
        workload, constants = key = self.sum_of(node, form)[1]
        if key not in self._moved:
            source = self.planner.planned[self.sum_of(node, _ALL_LAST)[1]]
            packable = [tensor for tensor in constant_tensors(workload) if tensor in constants]
            moved = move_loops(source, workload, self.planner.hardware, packable)
            both = [one for one in (moved, None if moved is None else swap_rows_and_columns(moved)) if one is not None]
            self._moved[key] = min(both, key=lambda one: self.planner.predict(one, constants).time_s, default=None)
        return self._moved[key]

    def kernel_s(self, node: Node, form: LayoutForm) -> float | None:
        """Return the time of a convolution in a form, with its planned or else its moved schedule; None without one."""
        if form.unit:
            return self._window_s(node, form)
        workload, product = self.sum_of(node, form)
        is_planned = product in self.planner.planned
        key = (workload, product[1], is_planned)
        if key not in self._times:
            schedule = self.planner.planned[product] if is_planned else self.move_schedule(node, form)
            if schedule is not None:
                schedule = msgspec.structs.replace(schedule, workload=workload)
            self._times[key] = None if schedule is None else self.planner.predict(schedule, product[1]).time_s
        return self._times[key]

    def keep_moved_schedules(self, choice: Choice) -> None:
        """Give the planner the moved schedules of chosen products that are not planned."""
        for node in self.nodes:
            form = choice.get(node, MODEL_FORM)
            if _is_compared(node) and not form.unit:
                moved = None if self.sum_of(node, form)[1] in self.planner.planned else self.move_schedule(node, form)
                if moved is not None:
                    self.planner.planned[self.sum_of(node, form)[1]] = moved

    def _window_s(self, node: Node, form: LayoutForm) -> float:
        """Return the time of a convolution of groups as a window kernel."""
        batch, channels, height, width = tensor_type(node.arguments[0]).shape
        _, group, rows, columns = tensor_type(node.arguments[1]).shape
        outputs, attrs, each = tensor_type(node).shape, node.attributes, form.read.block or channels
        kernel = WindowKernel(
            "grouped", batch, channels // each, each, (height, width), (outputs[2], outputs[3]), (rows, columns),
            attrs["strides"], attrs["dilation"], attrs["padding"][:2], group=group, unit=form.unit,
        )  # fmt: skip
        return predict_groups(kernel, self.planner.hardware)

    # -- forms -------------------------------------------------------------------------------------------------

    def forms(self, node: Node, last: Choice, orders: Sequence[Order]) -> list[LayoutForm]:
        """Return the forms that may be chosen for a node."""
        last_form = last.get(node, MODEL_FORM)
        if _is_compared(node) and tensor_type(node.arguments[0]).dtype in BYTE_DTYPES:
            return [last_form]  # the instructions sum up neighbouring channels
        if _is_compared(node):
            forms = [
                LayoutForm(*pair) for pair in itertools.product(orders, orders) if can_have(node, LayoutForm(*pair))
            ]
            lanes, group = self.planner.hardware.fp32_lanes, tensor_type(node.arguments[1]).shape[1]
            unit = lanes if group % lanes else group
            windows = [form for order in orders if can_have(node, form := LayoutForm(order, order, unit))]
            windows = [form for form in windows if math.isfinite(self._window_s(node, form))]
            return [form for form in forms if form == last_form or self._can_win(node, form)] + windows
        if last_form == MODEL_FORM or not has_any_order(node):
            return [last_form]
        return [LayoutForm(order, order) for order in orders if can_have(node, LayoutForm(order, order))]

    def _can_win(self, node: Node, form: LayoutForm) -> bool:
        """Return whether a form may be faster than channels last; plan it if it may and has no moved schedule."""
        last_s = self.kernel_s(node, _ALL_LAST)
        assert last_s is not None
        transposes = [(value, order, CHANNELS_LAST) for value, order in operand_orders(node, form)]
        transposes.append((node, CHANNELS_LAST, form.written))
        last_s += sum(self.transpose_s(*one) for one in transposes)
        last = self.sum_of(node, _ALL_LAST)[1]
        # other templates may take less time than `lower_bound_s`
        is_cpu_template = self.planner.planned[last].template == CPU.name
        if last_s <= self.planner.lower_bound_s(*last) * (1.0 + _MARGIN) and (
            is_cpu_template or self.kernel_s(node, form) is None
        ):
            return False
        if self.kernel_s(node, form) is None:
            self.planner.plan([self.sum_of(node, form)[1]])
        return True

    def option(self, node: Node, form: LayoutForm, doubt: float = 0.0) -> LayoutOption:
        """Return the option of a node in a form: its results and operands, and its time, multiplied by 1 + `doubt`."""
        time_s = self.kernel_s(node, form) if _is_compared(node) else 0.0
        ordered = operand_orders(node, form)
        has_order = dict(ordered)
        reads = [*ordered, *((one, CHANNELS_FIRST) for one in iterate_values(node.arguments) if one not in has_order)]
        inputs = tuple(read for read in reads if not isinstance(read[0], Constant))
        return LayoutOption(math.inf if time_s is None else time_s * (1.0 + doubt), result_order(node, form), inputs)

    def total_s(self, choice: Choice, outputs: Collection[tuple[Value, Order]]) -> float | None:
        """Return the time of a choice, convolutions and transposes; None if a convolution has no time."""
        options: dict[Value, list[LayoutOption]] = {
            node: [self.option(node, choice.get(node, MODEL_FORM))] for node in self.nodes
        }
        cost_s, _ = LayoutProblem(options, outputs, self.transpose_s, CHANNELS_FIRST).cost_of(dict.fromkeys(options, 0))
        return cost_s if math.isfinite(cost_s) else None

    # -- values ------------------------------------------------------------------------------------------------

    def transpose_s(self, value: Value, before: Order, after: Order) -> float:
        """Return the time of transposing a value; 0 for constants, which are transposed before the run."""
        if isinstance(value, Constant):
            return 0.0
        key = (tensor_type(value), before, after)
        if key not in self._transpose_times:
            self._transpose_times[key] = transpose_s(*key, self.planner.hardware)
        return self._transpose_times[key]


def transpose_s(type_: TensorType, before: Order, after: Order, hardware: CpuSpec) -> float:
    """Return the predicted time of transposing a tensor from one order to another; 0 if nothing moves.

    A kernel of anatune's transposes in registers, at memory bandwidth (1x3x224x224, Emerald Rapids: 39 us, measured
    57).

    Parameters
    ----------
    type_ : TensorType
        The type with channels first.
    """
    if is_reorder_free(type_, before, after):
        return 0.0
    moved = 3.0 * math.prod(type_.shape) * np.dtype(type_.dtype).itemsize  # read, allocated, written
    compute = hardware.compute
    return moving_cycles(moved, COPY_BYTES_PER_CYCLE, hardware) / (compute.clock_hz * compute.usable_cores)
