"""In which order the dimensions of activations lie: channels first, as models say, last, or in blocks.

A choice says for each node in which order it reads and writes; `laid_out` puts it into the graph: weights are turned,
attributes changed, and transposes stand only where a reader wants another order than the writer left. Which operators
can have another order is in their table (`graph.operators`), what it changes in `_FAMILIES`; everything else keeps the
order of the model. Which choice is the fastest is asked elsewhere (`anatune.network.compiling.layouts`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

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
    mapped,
    tensor_type,
    values_in,
)
from anatune.network.graph.operators import CONVOLUTION, operator_of
from anatune.network.graph.orders import IMAGE_RANKS, block_size, image_sizes, reorder_type
from anatune.network.graph.passes.simplify import permuted, reshaped
from anatune.network.graph.products import is_depthwise

__all__ = [
    "AS_IT_IS",
    "Choice",
    "Form",
    "can_have",
    "everywhere",
    "has_any_order",
    "laid_out",
    "ordered_operands",
    "reordered_in_place",
    "result_order",
]


class Form(NamedTuple):
    """In which orders a node reads its data and writes its result; they differ for convolutions only."""

    read: Order
    written: Order


Choice = Mapping[Value, Form]
"""Node -> its form; nodes that are missing have the model's order."""

AS_IT_IS = Form(CHANNELS_FIRST, CHANNELS_FIRST)


def everywhere(graph: Graph, order: Order = CHANNELS_LAST) -> dict[Value, Form]:
    """Return the choice of one order wherever an operator can have it: no transposes between convolutions.

    Operators that can have any order follow what they read, so that none is asked for where there is no convolution.
    """
    chosen: dict[Value, Form] = {}
    for node in graph.nodes():
        if node.op == CONVOLUTION:
            options = (Form(order, order), Form(CHANNELS_FIRST, order), Form(order, CHANNELS_FIRST))
            chosen[node] = next((form for form in options if can_have(node, form)), AS_IT_IS)
        elif can_have(node, Form(order, order)):
            read = [value for value in values_in(node.arguments) if isinstance(value, Node)]
            same = [value for value in read if _rank(value) == _rank(node)] or read
            if any(chosen.get(value, AS_IT_IS).written == order for value in same):
                chosen[node] = Form(order, order)
    return chosen


def can_have(node: Node, form: Form) -> bool:
    """Whether a node has a form; blocks must divide the channels of all that lies in them."""
    if form == AS_IT_IS:
        return True
    family = _FAMILIES.get(operator_of(node).layout)
    if family is None or not isinstance(node.type, TensorType) or _read_rank(node) not in IMAGE_RANKS:
        return False
    if node.op != CONVOLUTION and (form.read != form.written or not _has_blocks(node, form.read)):
        return False
    return family.can_have(node, form)


def has_any_order(node: Node) -> bool:
    """Whether a node is as fast in any order: pools have kernels of their own for one, with the channels last."""
    family = _FAMILIES.get(operator_of(node).layout)
    return family is not None and family.is_as_fast


def result_order(node: Node, form: Form) -> Order:
    """Return the order of a node's result; without its spatial dimensions a tensor has the model's."""
    return form.written if _rank(node) == _read_rank(node) else CHANNELS_FIRST


def ordered_operands(node: Node, form: Form) -> list[tuple[Value, Order]]:
    """Return the values that a node reads in an order of its form; whatever else it reads has the model's."""
    rank = _read_rank(node)
    if node.op == CONVOLUTION:
        data, _, *operands = node.arguments
        return [(data, form.read), *((operand, form.written) for operand in operands if _rank(operand) == rank)]
    return [(value, form.read) for value in values_in(node.arguments) if _rank(value) == rank]


def laid_out(graph: Graph, choice: Choice) -> Graph:
    """Return the graph with activations in the chosen orders."""
    made: dict[Value, Value] = {}
    """By the old value: the new one, in the order that `order_of` says."""
    order_of: dict[Value, Order] = {}
    turned: dict[tuple[Value, Order], Value] = {}

    def wanted(value: Value, order: Order) -> Value:
        """Return a value of the old graph in an order; each is turned at most once."""
        now, before = made.get(value, value), order_of.get(value, CHANNELS_FIRST)
        if before == order or not isinstance(value.type, TensorType):
            return now
        key = (value, order)
        if key not in turned:
            turned[key] = reordered(now, before, order)
        return turned[key]

    def operand(value: Argument, order: Order, rank: int) -> Argument:
        """Return an operand beside data of a rank that lies in an order."""
        if not isinstance(value, Value):
            return value
        if order != CHANNELS_FIRST and 0 < _rank(value) < rank:  # broadcast: missing dimensions are the first ones
            shape = tensor_type(value).shape
            whole = reshaped(wanted(value, CHANNELS_FIRST), (1,) * (rank - len(shape)) + shape)
            return reordered(whole, CHANNELS_FIRST, order)
        return wanted(value, order if _rank(value) == rank else CHANNELS_FIRST)

    for node in graph.nodes():
        form = choice.get(node, AS_IT_IS)
        if form == AS_IT_IS:
            made[node] = node.of(mapped(node.arguments, lambda value: operand(value, CHANNELS_FIRST, 0)))
            continue
        rank = _read_rank(node)
        if node.op == CONVOLUTION:
            data, weight, *others = node.arguments
            steps = (wanted(value, form.written if _rank(value) == rank else CHANNELS_FIRST) for value in others)
            arguments = (wanted(data, form.read), weight, *steps)
        else:
            arguments = mapped(node.arguments, functools.partial(operand, order=form.read, rank=rank))
        made[node] = _FAMILIES[operator_of(node).layout].in_form(node, arguments, form)
        order_of[node] = result_order(node, form)
    outputs = tuple(wanted(value, CHANNELS_FIRST) for value in graph.outputs)
    return Graph(graph.inputs, outputs, is_tuple=graph.is_tuple)


def _rank(value: Value) -> int:
    return len(value.type.shape) if isinstance(value.type, TensorType) else -1


def _read_rank(node: Node) -> int:
    return max((_rank(value) for value in values_in(node.arguments)), default=0)


def _convolution_can(node: Node, form: Form) -> bool:
    groups = node.attributes["groups"]
    channels = [tensor_type(value).shape[1] for value in (node.arguments[0], node)]
    parts = [1 if is_depthwise(node) else groups] * 2
    blocks = [order.block for order in form]
    if is_depthwise(node) and all(blocks) and blocks[0] != blocks[1]:
        return False
    return all(
        not block or size // part % block == 0 for size, part, block in zip(channels, parts, blocks, strict=True)
    )


def _has_blocks(node: Node, order: Order) -> bool:
    """Whether blocks divide the channels of a node's result and of what it reads; one channel is broadcast."""
    if not order.block:
        return True
    rank = _read_rank(node)
    values = [value for value in (node, *values_in(node.arguments)) if _rank(value) == rank]
    channels = [tensor_type(value).shape[1] for value in values]
    is_broadcast = operator_of(node).layout == "elementwise" and tensor_type(node).shape[1:2] != (1,)
    return all(size % order.block == 0 or (size == 1 and is_broadcast) for size in channels)


def _axes(node: Node) -> list[int]:
    axes, rank = node.attributes["axis"], _read_rank(node)
    return [axis % rank for axis in (range(rank) if axes is None else axes)]


def _moved(axis: int, rank: int, order: Order) -> int:
    """Return where a dimension lies in an order; of channels in blocks, the blocks."""
    axis %= rank
    if not order.is_last or axis == 0:
        return axis
    return rank - 1 if axis == 1 else axis - 1


def _convolution(node: Node, arguments: tuple[Argument, ...], form: Form) -> Node:
    data, weight, *operands = arguments
    steps = [step for step in node.attributes["epilogue"] if STEP_OPERANDS[step]]
    block = form.written.block
    others = [
        reshaped(one, (tensor_type(one).shape[0] // block, block)) if step != "add" and block else one
        for step, one in zip(steps, operands, strict=True)
    ]
    turned = _weight(weight, form, depthwise=is_depthwise(node))
    word = layout_word(form.read, form.written, _rank(node) - 2)
    return _elementwise(node, (data, turned, *others), form, layout=word)


def _weight(weight: Value, form: Form, *, depthwise: bool) -> Value:
    """Return a weight [k, c, ...] as the form's workload has it (see `core.workload.operators.convolution`)."""
    outputs, inputs, *taps = tensor_type(weight).shape
    own, into = form.written.block or 1, 1 if depthwise else form.read.block or 1
    split = reshaped(weight, (outputs // own, own, inputs // into, into, *taps))
    image = range(4, 4 + len(taps))
    if form.written.is_last:
        turned = permuted_value(split, (*image, 2, 3, 0, 1))
        channels = (inputs // into, into) if into > 1 else (inputs,)
        return reshaped(turned, (*taps, *channels, outputs))
    turned = permuted_value(split, (0, 2, *image, 3, 1))
    inner = ((into,) if into > 1 else ()) + ((own,) if own > 1 else ())
    return reshaped(turned, (outputs // own, inputs // into, *taps, *inner))


def _keeps_shape(node: Node, form: Form) -> bool:
    shape = tensor_type(node).shape
    return _rank(node) == _read_rank(node) and any(tensor_type(one).shape == shape for one in values_in(node.arguments))


def _elementwise(node: Node, arguments: tuple[Argument, ...], form: Form, **changed: object) -> Node:
    """Return the operator on arguments in a form's orders; its result has the form's, too."""
    return node.of(arguments, reorder_type(tensor_type(node), form.written), **changed)


def _is_plain_pool(node: Node, form: Form) -> bool:
    return bool(node.attributes["layout"] == CHANNELS_FIRST.word(_rank(node) - 2))


def _pool(node: Node, arguments: tuple[Argument, ...], form: Form) -> Node:
    word = form.written.word(_rank(node) - 2)
    return _elementwise(node, arguments, form, layout=word, out_layout=word)


def _concat(node: Node, arguments: tuple[Argument, ...], form: Form) -> Node:
    return _elementwise(node, arguments, form, axis=_moved(node.attributes["axis"], _rank(node), form.written))


def _leaves_an_order(node: Node, form: Form) -> bool:
    """Whether a reduction is of the image alone, or its result has an order: without the image a tensor has none."""
    axes, image = sorted(_axes(node)), list(range(2, _read_rank(node)))
    if form.read.block and not set(axes) <= set(image):
        return False
    return bool(node.attributes["keepdims"]) or axes == image


def _reduction(node: Node, arguments: tuple[Argument, ...], form: Form) -> Value:
    rank, order = _read_rank(node), form.written
    axes = tuple(sorted(_moved(axis, rank, order) for axis in _axes(node)))
    made = _elementwise(node, arguments, form, axis=axes)
    if node.attributes["keepdims"]:
        return made
    shape, dtype = tensor_type(node)
    kind = TensorType((shape[0], shape[1] // order.block, order.block) if order.block else shape, dtype)
    return reshaped(made.of(arguments, kind), shape)


class _Family(NamedTuple):
    """Operators that have other orders in the same way.

    Attributes
    ----------
    can_have : callable
        Whether a node of them has a form that is not the model's.
    in_form : callable
        A node, its arguments in the form's orders, the form -> the same in this form. The result has its order, too, if
        it has the rank of what is read.
    is_as_fast : bool
        Whether they are as fast in any order.
    """

    can_have: Callable[[Node, Form], bool]
    in_form: Callable[[Node, tuple[Argument, ...], Form], Value]
    is_as_fast: bool = True


_FAMILIES = {
    "concat": _Family(lambda node, form: True, _concat),
    "convolution": _Family(_convolution_can, _convolution, is_as_fast=False),
    "elementwise": _Family(_keeps_shape, _elementwise),
    "pool": _Family(_is_plain_pool, _pool, is_as_fast=False),
    "reduction": _Family(_leaves_an_order, _reduction),
}
"""By `Operator.layout`."""


def permuted_value(value: Value, axes: tuple[int, ...]) -> Value:
    """Return a value with its dimensions in another order; a constant's is a view, not a copy."""
    if isinstance(value, Constant):
        return Constant(np.transpose(value.array, axes))
    return permuted(value, axes)


def reordered(value: Value, before: Order, after: Order) -> Value:
    """Return a value that lies in the order `before` in the order `after`: itself, a constant, or one transpose.

    Blocks of another length take two transposes.
    """
    if before == after:
        return value
    if before.block and after.block:
        return reordered(reordered(value, before, CHANNELS_FIRST), CHANNELS_FIRST, after)
    plain = TensorType(image_sizes(tensor_type(value), before), tensor_type(value).dtype)
    batch, channels, *image = plain.shape
    block = block_size(channels, before if before.block else after)
    sizes = {"n": batch, "c": channels // block, "b": block} | {str(at): size for at, size in enumerate(image)}
    names, wanted = (
        [name for name in _names(order, len(image)) if name != "b" or block > 1] for order in (before, after)
    )
    split = reshaped(value, tuple(sizes[name] for name in names))
    turned = permuted_value(split, tuple(names.index(name) for name in wanted))
    return reshaped(turned, reorder_type(plain, after).shape)


def reordered_in_place(kind: TensorType, before: Order, after: Order) -> bool:
    """Whether nothing moves in memory when a tensor, of a type with its channels first, goes to another order."""
    made = reordered(Input("", reorder_type(kind, before)), before, after)
    while isinstance(made, Node) and made.op == "reshape":
        made = made.arguments[0]
    return isinstance(made, Input)


def _names(order: Order, num_dimensions: int) -> list[str]:
    """Return the dimensions with blocks of channels (c) and channels of a block (b) apart."""
    image = [str(at) for at in range(num_dimensions)]
    if order.is_last:
        return ["n", *image, "c", "b"]
    return ["n", "c", *image, "b"] if order.block else ["n", "c", "b", *image]
