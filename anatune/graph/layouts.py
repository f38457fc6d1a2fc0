"""In which order the dimensions of activations lie: channels first, as models say, last, or in blocks.

A choice says for each node in which order it reads and writes; `laid_out` puts it into the graph: weights are turned,
attributes changed, and transposes stand only where a reader wants another order than the writer left. Which operators
can have another order, and what it changes, is one table, `_RULES`; everything else keeps the order of the model.
Which choice is the fastest is asked elsewhere (`anatune.compiling.layouts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from anatune.core.workload.orders import CHANNELS_FIRST, CHANNELS_LAST, Order, layout_word
from anatune.graph.nodes import Argument, Graph, Node, TensorType, Value, tensor_type, values_in
from anatune.graph.orders import IMAGE_RANKS, permuted_value, reordered, typed_in
from anatune.graph.products import CONVOLUTION, is_depthwise
from anatune.graph.simplify import reshaped

__all__ = [
    "AS_IT_IS",
    "Choice",
    "Form",
    "can_have",
    "channels_last",
    "everywhere",
    "has_any_order",
    "laid_out",
    "ordered_operands",
    "result_order",
]


class Form(NamedTuple):
    """In which orders a node reads its data and writes its result; they differ for convolutions only."""

    read: Order
    written: Order


Choice = Mapping[int, Form]
"""``id`` of a node -> its form; nodes that are missing have the model's order."""

AS_IT_IS = Form(CHANNELS_FIRST, CHANNELS_FIRST)
_ELEMENTWISE = frozenset(
    (
        "abs", "add", "clip", "divide", "erf", "exp", "floor", "hardswish", "log", "maximum", "minimum", "multiply",
        "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu", "power", "rsqrt",
        "sigmoid", "sqrt", "square", "subtract", "tanh",
    )
)  # fmt: skip
_POOLS = frozenset(
    [
        *(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3)),
        *(f"nn.adaptive_avg_pool{rank}d" for rank in (1, 2, 3)),
    ]
)
_REDUCTIONS = frozenset(("mean", "sum", "max", "min", "variance"))


def channels_last(graph: Graph) -> dict[int, Form]:
    """Return the choice "channels last wherever an operator can": no transposes between convolutions."""
    return everywhere(graph, CHANNELS_LAST)


def everywhere(graph: Graph, order: Order) -> dict[int, Form]:
    """Return the choice of one order wherever an operator can have it.

    Operators that can have any order follow what they read, so that none is asked for where there is no convolution.
    """
    chosen: dict[int, Form] = {}
    for node in graph.nodes():
        if node.op == CONVOLUTION:
            options = (Form(order, order), Form(CHANNELS_FIRST, order), Form(order, CHANNELS_FIRST))
            chosen[id(node)] = next((form for form in options if can_have(node, form)), AS_IT_IS)
        elif can_have(node, Form(order, order)):
            read = [value for value in values_in(node.arguments) if isinstance(value, Node)]
            same = [value for value in read if _rank(value) == _rank(node)] or read
            if any(chosen.get(id(value), AS_IT_IS).written == order for value in same):
                chosen[id(node)] = Form(order, order)
    return chosen


def can_have(node: Node, form: Form) -> bool:
    """Whether a node has a form; blocks must divide the channels of all that lies in them."""
    if form == AS_IT_IS:
        return True
    if node.op not in _RULES or not isinstance(node.type, TensorType) or _read_rank(node) not in IMAGE_RANKS:
        return False
    if node.op == CONVOLUTION:
        return _convolution_can(node, form)
    rank = _rank(node)
    if form.read != form.written or not _has_blocks(node, form.read):
        return False
    if node.op in _ELEMENTWISE:
        return rank == _read_rank(node) and any(value.type == node.type for value in values_in(node.arguments))
    if node.op in _POOLS:
        return bool(node.attributes["layout"] == CHANNELS_FIRST.word(rank - 2))
    if node.op in _REDUCTIONS:
        image = list(range(2, _read_rank(node)))
        if form.read.block and not set(_axes(node)) <= set(image):
            return False
        # Without its spatial dimensions a tensor has no order.
        return bool(node.attributes["keepdims"]) or sorted(_axes(node)) == image
    return True


def has_any_order(node: Node) -> bool:
    """Whether a node is as fast in any order: pools have kernels of their own for one, with the channels last."""
    return node.op in _RULES and node.op not in (CONVOLUTION, *_POOLS)


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
    made: dict[int, Value] = {}
    """By the old value: the new one, in the order that `order_of` says."""
    order_of: dict[int, Order] = {}
    turned: dict[tuple[int, Order], Value] = {}

    def wanted(value: Value, order: Order) -> Value:
        """Return a value of the old graph in an order; each is turned at most once."""
        now, before = made.get(id(value), value), order_of.get(id(value), CHANNELS_FIRST)
        if before == order or not isinstance(value.type, TensorType):
            return now
        key = (id(value), order)
        if key not in turned:
            turned[key] = reordered(now, before, order)
        return turned[key]

    def arguments_of(argument: Argument, order: Order, rank: int) -> Argument:
        if isinstance(argument, Value):
            if order == CHANNELS_FIRST or not isinstance(argument.type, TensorType):
                return wanted(argument, CHANNELS_FIRST)
            shape = argument.type.shape
            if 0 < len(shape) < rank:  # broadcast: missing dimensions are the first ones
                whole = reshaped(wanted(argument, CHANNELS_FIRST), (1,) * (rank - len(shape)) + shape)
                return reordered(whole, CHANNELS_FIRST, order)
            return wanted(argument, order if len(shape) == rank else CHANNELS_FIRST)
        if type(argument) is tuple:
            return tuple(arguments_of(one, order, rank) for one in argument)
        return argument

    for node in graph.nodes():
        form = choice.get(id(node), AS_IT_IS)
        if form == AS_IT_IS:
            made[id(node)] = node.of(arguments_of(node.arguments, CHANNELS_FIRST, 0))
            continue
        rule = _RULES[node.op]
        rank = _read_rank(node)
        if node.op == CONVOLUTION:
            data, weight, *operands = node.arguments
            others = (
                wanted(operand, form.written if _rank(operand) == rank else CHANNELS_FIRST) for operand in operands
            )
            found = (wanted(data, form.read), weight, *others)
        else:
            found = arguments_of(node.arguments, form.read, rank)
        made[id(node)] = rule(node, found, form)
        order_of[id(node)] = result_order(node, form)
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
    is_broadcast = node.op in _ELEMENTWISE and tensor_type(node).shape[1:2] != (1,)
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


def _typed(node: Node, order: Order) -> TensorType:
    return typed_in(tensor_type(node), order)


def _convolution(node: Node, arguments: tuple[Argument, ...], form: Form) -> Node:
    data, weight, *operands = arguments
    rank = _rank(node)
    steps = [step for step in node.attributes["epilogue"] if step in ("bias", "add")]
    block = form.written.block
    others = [
        reshaped(one, (tensor_type(one).shape[0] // block, block)) if step == "bias" and block else one
        for step, one in zip(steps, operands, strict=True)
    ]
    attributes = {**node.attributes, "layout": layout_word(form.read, form.written, rank - 2)}
    turned = _weight(weight, form, depthwise=is_depthwise(node))
    return Node(node.op, (data, turned, *others), _typed(node, form.written), attributes)


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


def _elementwise(node: Node, arguments: tuple[Argument, ...], form: Form) -> Node:
    return Node(node.op, arguments, _typed(node, form.written), node.attributes, node.kind)


def _pool(node: Node, arguments: tuple[Argument, ...], form: Form) -> Node:
    word = form.written.word(_rank(node) - 2)
    attributes = {**node.attributes, "layout": word, "out_layout": word}
    return Node(node.op, arguments, _typed(node, form.written), attributes, node.kind)


def _concat(node: Node, arguments: tuple[Argument, ...], form: Form) -> Node:
    attributes = {**node.attributes, "axis": _moved(node.attributes["axis"], _rank(node), form.written)}
    return Node(node.op, arguments, _typed(node, form.written), attributes, node.kind)


def _reduction(node: Node, arguments: tuple[Argument, ...], form: Form) -> Value:
    rank, order = _read_rank(node), form.written
    axes: Any = tuple(sorted(_moved(axis, rank, order) for axis in _axes(node)))
    attributes = {**node.attributes, "axis": axes}
    if node.attributes["keepdims"]:
        return Node(node.op, arguments, _typed(node, order), attributes, node.kind)
    shape, dtype = tensor_type(node)
    kind = TensorType((shape[0], shape[1] // order.block, order.block) if order.block else shape, dtype)
    return reshaped(Node(node.op, arguments, kind, attributes, node.kind), shape)


_RULES: dict[str, Callable[[Node, tuple[Argument, ...], Form], Value]] = {
    CONVOLUTION: _convolution,
    "concat": _concat,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(_REDUCTIONS, _reduction),
}
"""Operator -> the same in a form, on arguments in its order. The result has it too if it has the rank."""
