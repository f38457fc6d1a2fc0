"""The order of the dimensions of activations: channels first, as in the network, channels last, or blocks of channels.

A choice gives the order in which each node reads and writes. `apply_layout` applies a choice to the graph: it
transposes weights, changes attributes, and inserts a transpose where a reader needs another order than its operand has.
The table of operators (`graph.operators`) says which operators can have another order, and `_FAMILIES` how this changes
them. All other operators keep the order of the network. `anatune.network.compiling.layouts` looks for the fastest
choice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from anatune.core.sizes import is_run_time
from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.core.workload.orders import CHANNELS_FIRST, CHANNELS_LAST, Order, layout_word
from anatune.network.graph.nodes import (
    Argument,
    Constant,
    Graph,
    Input,
    Node,
    TensorType,
    Value,
    iterate_values,
    map_argument,
    tensor_type,
)
from anatune.network.graph.operators import CONVOLUTION, find_operator
from anatune.network.graph.orders import IMAGE_RANKS, block_size, image_sizes, reorder_type
from anatune.network.graph.passes.simplify import permute_value, reshape_value
from anatune.network.graph.passes.windows import MOST_TAPS
from anatune.network.graph.products import is_depthwise

__all__ = [
    "MODEL_FORM",
    "Choice",
    "LayoutForm",
    "apply_layout",
    "can_have",
    "choose_order",
    "has_any_order",
    "is_reorder_free",
    "operand_orders",
    "result_order",
]


class LayoutForm(NamedTuple):
    """The orders in which a node reads its data and writes its result; they differ for convolutions only.

    `unit` is not 0 for a convolution of groups that is a window kernel: `WindowKernel.unit`.
    """

    read: Order
    written: Order
    unit: int = 0


Choice = Mapping[Value, LayoutForm]
"""Node -> its form; missing nodes have the order of the network."""

MODEL_FORM = LayoutForm(CHANNELS_FIRST, CHANNELS_FIRST)


def choose_order(graph: Graph, order: Order = CHANNELS_LAST) -> dict[Value, LayoutForm]:
    """Return the choice in which every operator that can have an order has it.

    Operators that can have any order follow their operands, so that networks without convolutions are left unchanged.
    """
    chosen: dict[Value, LayoutForm] = {}
    for node in graph.nodes():
        if node.op == CONVOLUTION:
            options = (LayoutForm(order, order), LayoutForm(CHANNELS_FIRST, order), LayoutForm(order, CHANNELS_FIRST))
            chosen[node] = next((form for form in options if can_have(node, form)), MODEL_FORM)
        elif can_have(node, LayoutForm(order, order)):
            read = [value for value in iterate_values(node.arguments) if isinstance(value, Node)]
            same_rank = [value for value in read if _rank(value) == _rank(node)] or read
            if any(chosen.get(value, MODEL_FORM).written == order for value in same_rank):
                chosen[node] = LayoutForm(order, order)
    return chosen


def can_have(node: Node, form: LayoutForm) -> bool:
    """Return whether a node can have a form; blocks have to divide the channels of all tensors in that order."""
    if form == MODEL_FORM:
        return True
    family = _FAMILIES.get(find_operator(node).layout)
    if family is None or not isinstance(node.type, TensorType) or _read_rank(node) not in IMAGE_RANKS:
        return False
    if node.op != CONVOLUTION and (form.read != form.written or not _has_blocks(node, form.read)):
        return False
    return family.can_have(node, form)


def has_any_order(node: Node) -> bool:
    """Return whether a node is equally fast in any order; pools are not, as only some orders have kernels."""
    family = _FAMILIES.get(find_operator(node).layout)
    return family is not None and family.is_as_fast


def result_order(node: Node, form: LayoutForm) -> Order:
    """Return the order of a node's result; a tensor without spatial dimensions has the order of the network."""
    return form.written if _rank(node) == _read_rank(node) else CHANNELS_FIRST


def operand_orders(node: Node, form: LayoutForm) -> list[tuple[Value, Order]]:
    """Return the operands of a node that have an order of its form; others have the order of the network."""
    rank = _read_rank(node)
    if node.op == CONVOLUTION:
        data, _, *operands = node.arguments
        return [(data, form.read), *((operand, form.written) for operand in operands if _rank(operand) == rank)]
    return [(value, form.read) for value in iterate_values(node.arguments) if _rank(value) == rank]


def apply_layout(graph: Graph, choice: Choice) -> Graph:
    """Return the graph with activations in the chosen orders."""
    replacements: dict[Value, Value] = {}
    """Value of the old graph -> new value, in the order given by `order_of`."""
    order_of: dict[Value, Order] = {}
    transposed: dict[tuple[Value, Order], Value] = {}

    def in_order(value: Value, order: Order) -> Value:
        """Return a value of the old graph in an order; each value is transposed at most once."""
        now, before = replacements.get(value, value), order_of.get(value, CHANNELS_FIRST)
        if before == order or not isinstance(value.type, TensorType):
            return now
        key = (value, order)
        if key not in transposed:
            transposed[key] = reorder(now, before, order)
        return transposed[key]

    def operand(value: Argument, order: Order, rank: int) -> Argument:
        """Return an operand of a node whose data has a rank and an order."""
        if not isinstance(value, Value):
            return value
        if order != CHANNELS_FIRST and 0 < _rank(value) < rank:  # broadcasting adds the missing dimensions in front
            shape = tensor_type(value).shape
            whole = reshape_value(in_order(value, CHANNELS_FIRST), (1,) * (rank - len(shape)) + shape)
            return reorder(whole, CHANNELS_FIRST, order)
        return in_order(value, order if _rank(value) == rank else CHANNELS_FIRST)

    for node in graph.nodes():
        form = choice.get(node, MODEL_FORM)
        if form == MODEL_FORM:
            replacements[node] = node.of(map_argument(node.arguments, lambda value: operand(value, CHANNELS_FIRST, 0)))
            continue
        rank = _read_rank(node)
        if node.op == CONVOLUTION:
            data, weight, *others = node.arguments
            steps = (in_order(value, form.written if _rank(value) == rank else CHANNELS_FIRST) for value in others)
            arguments = (in_order(data, form.read), weight, *steps)
        else:
            arguments = map_argument(node.arguments, functools.partial(operand, order=form.read, rank=rank))
        replacements[node] = _FAMILIES[find_operator(node).layout].in_form(node, arguments, form)
        order_of[node] = result_order(node, form)
    outputs = tuple(in_order(value, CHANNELS_FIRST) for value in graph.outputs)
    return Graph(graph.inputs, outputs, is_tuple=graph.is_tuple)


def _rank(value: Value) -> int:
    return len(value.type.shape) if isinstance(value.type, TensorType) else -1


def _read_rank(node: Node) -> int:
    return max((_rank(value) for value in iterate_values(node.arguments)), default=0)


def _convolution_can_have(node: Node, form: LayoutForm) -> bool:
    if form.unit:
        return _is_window(node, form)
    groups = node.attributes["groups"]
    channels = [tensor_type(value).shape[1] for value in (node.arguments[0], node)]
    parts = [1 if is_depthwise(node) else groups] * 2
    blocks = [order.block for order in form[:2]]
    if is_depthwise(node) and all(blocks) and blocks[0] != blocks[1]:
        return False
    return all(
        not block or size // part % block == 0 for size, part, block in zip(channels, parts, blocks, strict=True)
    )


def _is_window(node: Node, form: LayoutForm) -> bool:
    """Return whether a convolution of groups can be a window kernel with units of whole groups in its blocks."""
    (_, inputs, *sizes), dtype = tensor_type(node.arguments[0])
    (outputs, group, *taps), weight_dtype = tensor_type(node.arguments[1])
    return (
        form.read == form.written != CHANNELS_FIRST
        and inputs == outputs
        and 1 < group < inputs
        and form.unit % group == 0
        and (form.read.block or form.unit) % form.unit == 0
        and inputs % (form.read.block or 1) == 0
        and {dtype, weight_dtype, node.attributes.get("dtype") or "float32"} == {"float32"}
        and isinstance(node.arguments[1], Constant)
        and len(sizes) == 2
        and math.prod(taps) <= MOST_TAPS
        and not is_run_time((inputs, *sizes))
    )


def _has_blocks(node: Node, order: Order) -> bool:
    """Return whether blocks divide the channels of a node's result and operands; a single channel broadcasts."""
    if not order.block:
        return True
    rank = _read_rank(node)
    values = [value for value in (node, *iterate_values(node.arguments)) if _rank(value) == rank]
    channels = [tensor_type(value).shape[1] for value in values]
    is_broadcast = find_operator(node).layout == "elementwise" and tensor_type(node).shape[1:2] != (1,)
    return all(size % order.block == 0 or (size == 1 and is_broadcast) for size in channels)


def _axes(node: Node) -> list[int]:
    axes, rank = node.attributes["axis"], _read_rank(node)
    return [axis % rank for axis in (range(rank) if axes is None else axes)]


def _axis_in_order(axis: int, rank: int, order: Order) -> int:
    """Return the position of a dimension in an order; for blocked channels, that of the blocks."""
    axis %= rank
    if not order.is_last or axis == 0:
        return axis
    return rank - 1 if axis == 1 else axis - 1


def _convolution(node: Node, arguments: tuple[Argument, ...], form: LayoutForm) -> Node:
    data, weight, *operands = arguments
    steps = [step for step in node.attributes["epilogue"] if STEP_OPERANDS[step]]
    block = form.written.block
    others = [
        reshape_value(operand, (tensor_type(operand).shape[0] // block, block)) if step != "add" and block else operand
        for step, operand in zip(steps, operands, strict=True)
    ]
    transposed_weight = weight if form.unit else _weight_in_form(weight, form, depthwise=is_depthwise(node))
    word = layout_word(form.read, form.written, _rank(node) - 2)
    return _elementwise(node, (data, transposed_weight, *others), form, layout=word, unit=form.unit)


def _weight_in_form(weight: Value, form: LayoutForm, *, depthwise: bool) -> Value:
    """Return a weight [k, c, ...] in the layout of the form's workload (see `core.workload.operators.convolution`)."""
    outputs, inputs, *taps = tensor_type(weight).shape
    output_block, input_block = form.written.block or 1, 1 if depthwise else form.read.block or 1
    split = reshape_value(weight, (outputs // output_block, output_block, inputs // input_block, input_block, *taps))
    image = range(4, 4 + len(taps))
    if form.written.is_last:
        transposed = permute_view(split, (*image, 2, 3, 0, 1))
        channels = (inputs // input_block, input_block) if input_block > 1 else (inputs,)
        return reshape_value(transposed, (*taps, *channels, outputs))
    transposed = permute_view(split, (0, 2, *image, 3, 1))
    inner = ((input_block,) if input_block > 1 else ()) + ((output_block,) if output_block > 1 else ())
    return reshape_value(transposed, (outputs // output_block, inputs // input_block, *taps, *inner))


def _elementwise_can_have(node: Node, form: LayoutForm) -> bool:
    shapes = [tensor_type(value).shape for value in iterate_values(node.arguments)]
    return _rank(node) == _read_rank(node) and tensor_type(node).shape in shapes


def _elementwise(node: Node, arguments: tuple[Argument, ...], form: LayoutForm, **attributes: object) -> Node:
    """Return the operator on arguments in a form's orders, with its result in the form's order."""
    return node.of(arguments, reorder_type(tensor_type(node), form.written), **attributes)


def _pool_can_have(node: Node, form: LayoutForm) -> bool:
    return bool(node.attributes["layout"] == CHANNELS_FIRST.word(_rank(node) - 2))


def _pool(node: Node, arguments: tuple[Argument, ...], form: LayoutForm) -> Node:
    word = form.written.word(_rank(node) - 2)
    return _elementwise(node, arguments, form, layout=word, out_layout=word)


def _concat(node: Node, arguments: tuple[Argument, ...], form: LayoutForm) -> Node:
    return _elementwise(node, arguments, form, axis=_axis_in_order(node.attributes["axis"], _rank(node), form.written))


def _reduction_can_have(node: Node, form: LayoutForm) -> bool:
    """Return whether a reduction keeps its dimensions or reduces exactly the image, and does not split blocks."""
    axes, image = sorted(_axes(node)), list(range(2, _read_rank(node)))
    if form.read.block and not set(axes) <= set(image):
        return False
    return bool(node.attributes["keepdims"]) or axes == image


def _reduction(node: Node, arguments: tuple[Argument, ...], form: LayoutForm) -> Value:
    rank, order = _read_rank(node), form.written
    axes = tuple(sorted(_axis_in_order(axis, rank, order) for axis in _axes(node)))
    reduction = _elementwise(node, arguments, form, axis=axes)
    if node.attributes["keepdims"]:
        return reduction
    shape, dtype = tensor_type(node)
    kind = TensorType((shape[0], shape[1] // order.block, order.block) if order.block else shape, dtype)
    return reshape_value(reduction.of(arguments, kind), shape)


class _Family(NamedTuple):
    """Operators that change in the same way when the order of dimensions changes.

    Attributes
    ----------
    can_have : callable
        Whether a node of the family can have a form other than that of the network.
    in_form : callable
        Takes a node, its arguments in the form's orders, and the form; returns the node in this form. The result has
        the form's order if its rank is that of the operands.
    is_as_fast : bool
        Whether the operators are equally fast in any order.
    """

    can_have: Callable[[Node, LayoutForm], bool]
    in_form: Callable[[Node, tuple[Argument, ...], LayoutForm], Value]
    is_as_fast: bool = True


_FAMILIES = {
    "concat": _Family(lambda node, form: True, _concat),
    "convolution": _Family(_convolution_can_have, _convolution, is_as_fast=False),
    "elementwise": _Family(_elementwise_can_have, _elementwise),
    "pool": _Family(_pool_can_have, _pool, is_as_fast=False),
    "reduction": _Family(_reduction_can_have, _reduction),
}
"""`Operator.layout` -> the family."""


def permute_view(value: Value, axes: tuple[int, ...]) -> Value:
    """Return a value with its dimensions in another order; for a constant the result is a view, not a copy."""
    if isinstance(value, Constant):
        return Constant(np.transpose(value.array, axes))
    return permute_value(value, axes)


def reorder(value: Value, before: Order, after: Order) -> Value:
    """Return a value in the order `after` that has the order `before`: itself, a constant, or one transpose.

    A change between blocks of different sizes takes two transposes.
    """
    if before == after:
        return value
    if before.block and after.block:
        return reorder(reorder(value, before, CHANNELS_FIRST), CHANNELS_FIRST, after)
    first_type = TensorType(image_sizes(tensor_type(value), before), tensor_type(value).dtype)
    batch, channels, *image = first_type.shape
    block = block_size(channels, before if before.block else after)
    sizes = {"n": batch, "c": channels // block, "b": block} | {str(d): size for d, size in enumerate(image)}
    names, new_names = (
        [name for name in _dimension_names(order, len(image)) if name != "b" or block > 1] for order in (before, after)
    )
    split = reshape_value(value, tuple(sizes[name] for name in names))
    turned = permute_view(split, tuple(names.index(name) for name in new_names))
    return reshape_value(turned, reorder_type(first_type, after).shape)


def is_reorder_free(kind: TensorType, before: Order, after: Order) -> bool:
    """Return whether reordering a tensor moves nothing in memory; `kind` is its type with channels first."""
    moved = reorder(Input("", reorder_type(kind, before)), before, after)
    while isinstance(moved, Node) and moved.op == "reshape":
        moved = moved.arguments[0]
    return isinstance(moved, Input)


def _dimension_names(order: Order, num_dimensions: int) -> list[str]:
    """Return the names of the dimensions in memory; channels are split into blocks (c) and channels of a block (b)."""
    image = [str(axis) for axis in range(num_dimensions)]
    if order.is_last:
        return ["n", *image, "c", "b"]
    return ["n", "c", *image, "b"] if order.block else ["n", "c", "b", *image]
