"""In which order the dimensions of activations lie: channels first, as models say, or last.

`chosen` decides for each node, `laid_out` puts what was decided into the graph: weights are turned, attributes
changed, and transposes stand only where a reader wants another order than the writer left. Which operators can have
either order, and what it changes, is one table, `_RULES`; everything else keeps the order of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anatune.graph.nodes import Argument, Constant, Graph, Node, TensorType, Value, frozen, tensor_type, values_in
from anatune.graph.products import CONVOLUTION
from anatune.graph.simplify import permuted, reshaped

__all__ = ["Choice", "channels_last", "laid_out"]

Choice = Mapping[int, bool]
"""``id`` of a node -> whether the channels of its operands and result come last; nodes that are missing: first."""

_LAYOUTS = {3: ("NCW", "NWC"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}
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


def to_last(rank: int) -> tuple[int, ...]:
    """Return the permutation that puts the channels last."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """Return the permutation that puts them back behind the batch."""
    return (0, rank - 1, *range(1, rank - 1))


def channels_last(graph: Graph) -> dict[int, bool]:
    """Return the choice "channels last wherever an operator can": no transposes between convolutions.

    Operators that can have either order follow what they read, so that none is asked for where there is no
    convolution.
    """
    chosen: dict[int, bool] = {}
    for node in graph.nodes():
        if node.op == CONVOLUTION:
            chosen[id(node)] = True
        elif _can_be_last(node):
            read = [value for value in values_in(node.arguments) if isinstance(value, Node)]
            same = [value for value in read if _rank(value) == _rank(node)] or read
            chosen[id(node)] = any(chosen.get(id(value), False) for value in same)
    return chosen


def laid_out(graph: Graph, choice: Choice) -> Graph:
    """Return the graph with activations in the chosen order."""
    made: dict[int, Value] = {}
    """By the old value: the new one, in the order that `is_last` says."""
    is_last: dict[int, bool] = {}
    turned: dict[tuple[int, bool], Value] = {}

    def wanted(value: Value, last: bool) -> Value:
        """Return a value of the old graph in an order; each is turned at most once."""
        now = made.get(id(value), value)
        if is_last.get(id(value), False) == last or not isinstance(value.type, TensorType):
            return now
        key = (id(value), last)
        if key not in turned:
            rank = len(value.type.shape)
            turned[key] = _permuted(now, to_last(rank) if last else to_first(rank))
        return turned[key]

    def arguments_of(argument: Argument, last: bool, rank: int) -> Argument:
        if isinstance(argument, Value):
            if last and isinstance(argument.type, TensorType) and 0 < len(argument.type.shape) < rank:
                shape = argument.type.shape  # broadcast: missing dimensions are the first ones
                return _permuted(reshaped(wanted(argument, False), (1,) * (rank - len(shape)) + shape), to_last(rank))
            has_order = isinstance(argument.type, TensorType) and len(argument.type.shape) == rank
            return wanted(argument, last and has_order)
        if type(argument) is tuple:
            return tuple(arguments_of(one, last, rank) for one in argument)
        return argument

    for node in graph.nodes():
        last = choice.get(id(node), False)
        if not last:
            made[id(node)] = node.of(arguments_of(node.arguments, False, 0))
            continue
        rule = _RULES[node.op]
        rank = _read_rank(node)
        if node.op == CONVOLUTION:
            data, weight, *operands = node.arguments
            found = (wanted(data, True), weight, *(wanted(one, _rank(one) == rank) for one in operands))
        else:
            found = arguments_of(node.arguments, True, rank)
        made[id(node)] = rule(node, found)
        is_last[id(node)] = _rank(made[id(node)]) == rank
    outputs = tuple(wanted(value, False) for value in graph.outputs)
    return Graph(graph.inputs, outputs, is_tuple=graph.is_tuple)


def _rank(value: Value) -> int:
    return len(value.type.shape) if isinstance(value.type, TensorType) else -1


def _read_rank(node: Node) -> int:
    return max((_rank(value) for value in values_in(node.arguments)), default=0)


def _permuted(value: Value, axes: tuple[int, ...]) -> Value:
    if isinstance(value, Constant):
        return Constant(frozen(np.transpose(value.array, axes)))
    return permuted(value, axes)


def _can_be_last(node: Node) -> bool:
    """Whether a node has a form with the channels last."""
    if node.op not in _RULES or not isinstance(node.type, TensorType) or _read_rank(node) not in _LAYOUTS:
        return False
    rank = _rank(node)
    if node.op in _ELEMENTWISE:
        return rank == _read_rank(node) and any(value.type == node.type for value in values_in(node.arguments))
    if node.op in _POOLS:
        return bool(node.attributes["layout"] == _LAYOUTS[rank][0])
    if node.op in _REDUCTIONS:
        # Without its spatial dimensions a tensor has no order.
        return bool(node.attributes["keepdims"]) or sorted(_axes(node)) == list(range(2, _read_rank(node)))
    return True


def _axes(node: Node) -> list[int]:
    axes, rank = node.attributes["axis"], _read_rank(node)
    return [axis % rank for axis in (range(rank) if axes is None else axes)]


def _moved(axis: int, rank: int) -> int:
    """Return where a dimension lies with the channels last."""
    return to_last(rank).index(axis % rank)


def _typed(node: Node) -> TensorType:
    kind = tensor_type(node)
    return TensorType(tuple(kind.shape[axis] for axis in to_last(len(kind.shape))), kind.dtype)


def _convolution(node: Node, arguments: tuple[Argument, ...]) -> Node:
    data, weight, *operands = arguments
    rank = len(tensor_type(weight).shape)
    turned = _permuted(weight, (*range(2, rank), 1, 0))
    return Node(node.op, (data, turned, *operands), _typed(node), {**node.attributes, "channels_last": True})


def _elementwise(node: Node, arguments: tuple[Argument, ...]) -> Node:
    return Node(node.op, arguments, _typed(node), node.attributes, node.kind)


def _pool(node: Node, arguments: tuple[Argument, ...]) -> Node:
    word = _LAYOUTS[_rank(node)][1]
    attributes = {**node.attributes, "layout": word, "out_layout": word}
    return Node(node.op, arguments, _typed(node), attributes, node.kind)


def _concat(node: Node, arguments: tuple[Argument, ...]) -> Node:
    attributes = {**node.attributes, "axis": _moved(node.attributes["axis"], _rank(node))}
    return Node(node.op, arguments, _typed(node), attributes, node.kind)


def _reduction(node: Node, arguments: tuple[Argument, ...]) -> Node:
    rank = _read_rank(node)
    axes: Any = tuple(sorted(_moved(axis, rank) for axis in _axes(node)))
    kind = _typed(node) if node.attributes["keepdims"] else tensor_type(node)
    return Node(node.op, arguments, kind, {**node.attributes, "axis": axes}, node.kind)


_RULES: dict[str, Callable[[Node, tuple[Argument, ...]], Node]] = {
    CONVOLUTION: _convolution,
    "concat": _concat,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(_REDUCTIONS, _reduction),
}
"""Operator -> the same with the channels last, on arguments in that order. The result has it too if it has the rank."""
