"""Replace convolutions and matrix products by operators of anatune with fused steps; join products of the same data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anatune.network.graph import building
from anatune.network.graph.folding import concatenate
from anatune.network.graph.nodes import Constant, Graph, Node, TensorType, Value, rewrite_with_originals, tensor_type
from anatune.network.graph.operators import (
    ATTENTION,
    BATCH_MATMUL,
    CONVOLUTION,
    CONVOLUTIONS,
    MATMUL,
    PRODUCTS,
    SCALED_MATMUL,
    apply_operator,
    find_operator,
)
from anatune.network.graph.passes.scaling import channel_axis, channel_values
from anatune.network.graph.passes.simplify import reshape_value
from anatune.network.graph.products import orders_of
from anatune.network.graph.strided import HeadLayout

__all__ = ["append_steps", "fuse_products", "join_products", "unfuse"]

_DTYPE = "float32"
_KEPT = ("bias",)
"""Steps that a product keeps when its columns are joined with those of other products."""


class _ProductStep(NamedTuple):
    """A node after a product: the name of its step ("" for a reshape), and its other operand."""

    word: str
    node: Node
    operand: Value | None = None


def fuse_products(graph: Graph) -> Graph:
    """Return a graph with anatune's convolutions and matrix products, into which the steps after each are fused."""
    readers = graph.only_readers()
    chains: dict[Value, tuple[Node, list[_ProductStep]]] = {}
    claimed: set[Value] = set()
    for node in reversed(graph.nodes()):
        # Start at the end: when two products are added, the later one fuses the sum, and the other is its operand.
        if _is_product(node):
            steps = _following_steps(node, readers, claimed)
            claimed.update(step.node for step in steps)
            chains[steps[-1].node if steps else node] = node, steps
    new: dict[Value, Value] = {}

    def replace(node: Node, old: Node) -> Value:
        if old not in chains:
            return node
        anchor, steps = chains[old]
        product = new[anchor] if steps else node
        assert isinstance(product, Node)
        replaced = [step._replace(operand=step.operand and new.get(step.operand, step.operand)) for step in steps]
        return reshape_value(_product(product, replaced), tensor_type(node).shape)

    return rewrite_with_originals(graph, replace, new)


def _is_product(node: Node) -> bool:
    """Return whether anatune has kernels for a node."""
    if find_operator(node).own not in PRODUCTS or tensor_type(node).dtype != _DTYPE or not tensor_type(node).shape:
        return False
    if node.op == "scaled_matmul":
        return True
    if not all(isinstance(a, Value) and tensor_type(a).dtype == _DTYPE for a in node.arguments):
        return False
    if node.op in CONVOLUTIONS:
        return channel_axis(node) is not None
    left, right = (tensor_type(argument).shape for argument in node.arguments)
    if len(right) == 2:
        return len(left) >= 2
    return len(left) == len(right) and left[:-2] == right[:-2]


def _following_steps(node: Node, readers: Mapping[Value, Node], claimed: set[Value]) -> list[_ProductStep]:
    """Return the steps that can be fused into a product, in order; reshapes only if a step follows them."""
    channels = channel_axis(node) if node.op in CONVOLUTIONS else len(tensor_type(node).shape) - 1
    assert channels is not None
    is_batched = node.op == "matmul" and len(tensor_type(node.arguments[1]).shape) > 2
    size = tensor_type(node).shape[channels]
    steps: list[_ProductStep] = []
    last: Node = node
    while (user := readers.get(last)) is not None:
        words, operator = {step.word for step in steps}, find_operator(user)
        word: str | None = None
        other: Value | None = None
        if user in claimed or not isinstance(user.type, TensorType):
            break
        if user.op == "reshape" and node.op in ("matmul", "scaled_matmul") and user.type.shape[-1:] == (size,):
            word, channels = "", len(user.type.shape) - 1
        elif find_operator(node).own in operator.fused_into and operator.word not in words:
            word = operator.word
        elif user.op == "add" and user.type == last.type:
            other = user.arguments[1] if user.arguments[0] is last else user.arguments[0]
            assert isinstance(other, Value)
            is_bias = not is_batched and channel_values(other, user.type.shape, channels) is not None
            if is_bias and "bias" not in words:
                word = "bias"
            elif other.type == user.type and other is not last and "add" not in words:
                word = "add"
        if word is None:
            break
        steps.append(_ProductStep(word, user, other))
        last = user
    while steps and not steps[-1].word:
        steps.pop()
    return steps


def _product(node: Node, steps: list[_ProductStep]) -> Node:
    """Return anatune's node for a product and its steps; its result has the rank of the kernel's result."""
    kind = tensor_type(node)
    data, weight, *scaling = node.arguments
    attributes: dict[str, object] = {}
    if node.op == "scaled_matmul":
        left, columns = tensor_type(data).shape, kind.shape[-1]
        rows = math.prod(left[:-1])
        op, attributes, data = SCALED_MATMUL, dict(node.attributes), reshape_value(data, (rows, left[-1]))
        kind, channels = TensorType((rows, columns), kind.dtype), 1
    elif node.op in CONVOLUTIONS:
        op, channels = CONVOLUTION, 1
        names = ("strides", "padding", "dilation", "groups")
        attributes = {name: node.attributes[name] for name in names} | {"layout": "NCHW"}
    else:
        left, right = tensor_type(data).shape, tensor_type(weight).shape
        batch = math.prod(right[:-2])
        if batch == 1:
            op = MATMUL
            data, weight = reshape_value(data, (math.prod(left[:-1]), left[-1])), reshape_value(weight, right[-2:])
            kind = TensorType((math.prod(left[:-1]), right[-1]), kind.dtype)
        else:
            op = BATCH_MATMUL
            data, weight = reshape_value(data, (batch, *left[-2:])), reshape_value(weight, (batch, *right[-2:]))
            kind = TensorType((batch, left[-2], right[-1]), kind.dtype)
        channels = len(kind.shape) - 1
    operands: list[Value] = scaling
    for word, step, other in steps:
        if word == "bias":
            assert other is not None
            shape = tensor_type(step).shape
            axis = channels if node.op in CONVOLUTIONS else len(shape) - 1
            values = channel_values(other, shape, axis)
            assert values is not None
            operands.append(Constant(np.ascontiguousarray(values)))
        elif word == "add":
            assert other is not None
            operands.append(reshape_value(other, kind.shape))
    attributes["epilogue"] = tuple(step.word for step in steps if step.word)
    return Node(op, (data, weight, *operands), kind, attributes)


def unfuse(node: Node, *, keeps_bias: bool = False) -> Value:
    """Return a product of anatune without its epilogue, followed by the steps of the epilogue as operators.

    Parameters
    ----------
    keeps_bias : bool
        Whether a bias that is the first step stays in the epilogue.
    """
    kept = int(keeps_bias and node.attributes["epilogue"][:1] == ("bias",))
    return append_steps(node.of(node.arguments[: 2 + kept], epilogue=("bias",) * kept), node, kept)


def append_steps(last: Value, node: Node, first: int = 0) -> Value:
    """Return a result followed by the steps of a product's epilogue as operators; those before `first` have none."""
    operands = list(node.arguments[2 + first :])
    rank = len(tensor_type(node).shape)
    channels = 1 if node.op == CONVOLUTION and not orders_of(node)[1].is_last else rank - 1
    for step in node.attributes["epilogue"][first:]:
        if step == "bias":
            sizes = [1] * rank
            sizes[channels] = tensor_type(node).shape[channels]
            last = building.elementwise("add", last, building.reshape(operands.pop(0), sizes))
        else:
            last = (
                building.elementwise(step, last, operands.pop(0))
                if step == "add"
                else apply_operator(f"nn.{step}", last)
            )
    return last


def join_products(graph: Graph, *, takes_columns: bool = False) -> Graph:
    """Return a graph in which products of the same data are one, if their readers can read columns without a copy.

    Parameters
    ----------
    graph : Graph
        The result of `passes.attention`.
    takes_columns : bool
        Whether all readers except products can read columns; if not, only attentions can.
    """
    groups: dict[tuple[Value, tuple[str, ...]], list[Node]] = {}
    for node in _candidates(graph, takes_columns):
        groups.setdefault((node.arguments[0], _column_steps(node) if takes_columns else _steps(node)), []).append(node)
    columns: dict[Value, tuple[int, int]] = {}
    """Product -> its group and its first column there."""
    joined_groups = [group for group in groups.values() if len(group) > 1]
    for number, group in enumerate(joined_groups):
        start = 0
        for node in group:
            columns[node] = number, start
            start += tensor_type(node).shape[1]
    joined: dict[int, Node] = {}

    def replace(node: Node, old: Node) -> Value:
        if old in columns:
            number, start = columns[old]
            if number not in joined:
                joined[number] = _concatenate_products(joined_groups[number], node.arguments[0])
            part = building.slice_axes(joined[number], [1], [start], [start + tensor_type(node).shape[1]])
            for step in node.attributes["epilogue"]:
                if step not in joined[number].attributes["epilogue"]:
                    part = apply_operator(f"nn.{step}", part)
            return part
        if node.op != ATTENTION:
            return node
        operands, new_places = list(node.arguments), []
        for index, (value, layout) in enumerate(zip(old.arguments, old.attributes["places"], strict=False)):
            if value in columns:
                number, start = columns[value]
                operands[index] = joined[number]
                layout = _move_layout(layout, tensor_type(value).shape[1], tensor_type(joined[number]).shape[1], start)
            new_places.append(layout)
        return node.of(tuple(operands), places=tuple(new_places))

    return rewrite_with_originals(graph, replace) if joined_groups else graph


def _steps(node: Node) -> tuple[str, ...]:
    epilogue: tuple[str, ...] = node.attributes["epilogue"]
    return epilogue


def _column_steps(node: Node) -> tuple[str, ...]:
    """Return the first steps of a product that it keeps when its columns are joined with those of others."""
    return tuple(itertools.takewhile(lambda step: step in _KEPT, _steps(node)))


def _candidates(graph: Graph, takes_columns: bool) -> list[Node]:
    """Return products with constant weights whose readers can all read columns."""
    layouts: dict[Value, list[tuple[HeadLayout, int, int]]] = {}
    """Product -> the places at which attentions read it, with the number of heads and their size."""
    users, kept = graph.users(), set(graph.outputs)
    for node in graph.nodes():
        if node.op == ATTENTION:
            attrs = node.attributes
            sizes = (attrs["dim"], attrs["dim"], attrs["value_dim"])
            for value, layout, size in zip(node.arguments, attrs["places"], sizes, strict=False):
                layouts.setdefault(value, []).append((layout, attrs["heads"], size))

    def is_loose(value: Value) -> bool:
        """Return whether all readers of a value, also through reshapes, have their own loops."""
        return value not in kept and all(
            is_loose(user) if user.op == "reshape" else user.op not in (*PRODUCTS, ATTENTION)
            for user in users.get(value, ())
            if not (user.op == ATTENTION and value in layouts)
        )

    def is_taken(node: Node) -> bool:
        """Return whether all readers can read columns; they compute the later steps, which attentions cannot."""
        node_places, later = layouts.get(node, []), _steps(node)[len(_column_steps(node)) :]
        if not all(_is_in_columns(*attention, tensor_type(node).shape[1]) for attention in node_places):
            return False
        if not takes_columns:
            return node not in kept and len(node_places) == len(users[node])
        return is_loose(node) and "bias" not in later and not (node_places and later)

    return [node for node in graph.nodes() if node.op == MATMUL and _has_constant_weights(node) and is_taken(node)]


def _has_constant_weights(node: Node) -> bool:
    """Return whether all operands except the data are constant, and the epilogue adds no tensor."""
    return "add" not in node.attributes["epilogue"] and all(
        isinstance(argument, Constant) for argument in node.arguments[1:]
    )


def _is_in_columns(layout: HeadLayout, heads: int, size: int, width: int) -> bool:
    """Return whether a place describes columns of the rows of a matrix."""
    fits = layout.offset + (heads // layout.group - 1) * layout.head + size <= width
    return fits and layout.row in (0, width) and layout.batch % width == 0


def _move_layout(layout: HeadLayout, width: int, wider: int, start: int) -> HeadLayout:
    """Return a place in a matrix that has become columns of a wider matrix."""
    return layout._replace(offset=layout.offset + start, batch=layout.batch // width * wider, row=wider)


def _concatenate_products(group: Sequence[Node], data: Value) -> Node:
    """Return the products of a group side by side, with the steps that all of them share."""
    operands = [
        Constant(concatenate([constant.array for constant in constants], -1))
        for constants in zip(*(node.arguments[1:] for node in group), strict=True)
    ]
    steps = [_steps(node) for node in group]
    common = steps[0] if len(set(steps)) == 1 else _column_steps(group[0])
    rows = tensor_type(group[0]).shape[0]
    kind = TensorType((rows, sum(tensor_type(node).shape[1] for node in group)), tensor_type(group[0]).dtype)
    return group[0].of((data, *operands), kind, epilogue=common)
