"""Convolutions and matrix products as anatune's: with the steps that follow each, and those of the same data as one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anatune.network.graph import building
from anatune.network.graph.folding import concatenate
from anatune.network.graph.nodes import Constant, Graph, Node, TensorType, Value, rewritten_beside, tensor_type
from anatune.network.graph.operators import (
    ATTENTION,
    BATCH_MATMUL,
    CONVOLUTION,
    CONVOLUTIONS,
    MATMUL,
    PRODUCTS,
    SCALED_MATMUL,
    applied,
    operator_of,
)
from anatune.network.graph.passes.scaling import channel_axis, channel_values
from anatune.network.graph.passes.simplify import reshaped
from anatune.network.graph.products import orders_of
from anatune.network.graph.strided import Place

__all__ = ["unfused", "with_joined_products", "with_products", "with_steps"]

_DTYPE = "float32"
_KEPT = ("bias",)
"""Steps of a product that its columns keep beside others'."""


class _Step(NamedTuple):
    """A node behind a product: the step that it is ("": a reshape), and its operand beside the product."""

    word: str
    node: Node
    operand: Value | None = None


def with_products(graph: Graph) -> Graph:
    """Return a graph whose convolutions and matrix products are anatune's, each with the steps that follow it."""
    readers = graph.only_readers()
    chains: dict[Value, tuple[Node, list[_Step]]] = {}
    claimed: set[Value] = set()
    for node in reversed(graph.nodes()):
        # From the end: of two products that are added up, the later one takes the sum, which the other one feeds.
        if _is_product(node):
            steps = _steps_behind(node, readers, claimed)
            claimed.update(step.node for step in steps)
            chains[steps[-1].node if steps else node] = node, steps
    new: dict[Value, Value] = {}

    def replace(node: Node, old: Node) -> Value:
        if old not in chains:
            return node
        anchor, steps = chains[old]
        own = new[anchor] if steps else node
        assert isinstance(own, Node)
        now = [step._replace(operand=step.operand and new.get(step.operand, step.operand)) for step in steps]
        return reshaped(_product(own, now), tensor_type(node).shape)

    return rewritten_beside(graph, replace, new)


def _is_product(node: Node) -> bool:
    """Whether anatune has kernels for a node."""
    if operator_of(node).own not in PRODUCTS or tensor_type(node).dtype != _DTYPE or not tensor_type(node).shape:
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


def _steps_behind(node: Node, readers: Mapping[Value, Node], claimed: set[Value]) -> list[_Step]:
    """Return the steps that can be fused into a product, in order; reshapes only where a step follows."""
    channels = channel_axis(node) if node.op in CONVOLUTIONS else len(tensor_type(node).shape) - 1
    assert channels is not None
    is_batched = node.op == "matmul" and len(tensor_type(node.arguments[1]).shape) > 2
    size = tensor_type(node).shape[channels]
    found: list[_Step] = []
    at: Node = node
    while (user := readers.get(at)) is not None:
        words, operator = {step.word for step in found}, operator_of(user)
        word: str | None = None
        other: Value | None = None
        if user in claimed or not isinstance(user.type, TensorType):
            break
        if user.op == "reshape" and node.op in ("matmul", "scaled_matmul") and user.type.shape[-1:] == (size,):
            word, channels = "", len(user.type.shape) - 1
        elif operator_of(node).own in operator.fused_into and operator.word not in words:
            word = operator.word
        elif user.op == "add" and user.type == at.type:
            other = user.arguments[1] if user.arguments[0] is at else user.arguments[0]
            assert isinstance(other, Value)
            is_bias = not is_batched and channel_values(other, user.type.shape, channels) is not None
            if is_bias and "bias" not in words:
                word = "bias"
            elif other.type == user.type and other is not at and "add" not in words:
                word = "add"
        if word is None:
            break
        found.append(_Step(word, user, other))
        at = user
    while found and not found[-1].word:
        found.pop()
    return found


def _product(node: Node, steps: list[_Step]) -> Node:
    """Return anatune's node for a product and its steps; its result has as many dimensions as the kernel's."""
    kind = tensor_type(node)
    data, weight, *scaling = node.arguments
    attributes: dict[str, object] = {}
    if node.op == "scaled_matmul":
        left, columns = tensor_type(data).shape, kind.shape[-1]
        rows = math.prod(left[:-1])
        op, attributes, data = SCALED_MATMUL, dict(node.attributes), reshaped(data, (rows, left[-1]))
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
            data, weight = reshaped(data, (math.prod(left[:-1]), left[-1])), reshaped(weight, right[-2:])
            kind = TensorType((math.prod(left[:-1]), right[-1]), kind.dtype)
        else:
            op = BATCH_MATMUL
            data, weight = reshaped(data, (batch, *left[-2:])), reshaped(weight, (batch, *right[-2:]))
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
            operands.append(reshaped(other, kind.shape))
    attributes["epilogue"] = tuple(step.word for step in steps if step.word)
    return Node(op, (data, weight, *operands), kind, attributes)


def unfused(node: Node) -> Value:
    """Return a product of anatune's with the steps that were fused into it as operators behind it."""
    return with_steps(node.of(node.arguments[:2], epilogue=()), node)


def with_steps(made: Value, node: Node) -> Value:
    """Return a result with the steps behind it that were fused into a product."""
    operands = list(node.arguments[2:])
    rank = len(tensor_type(node).shape)
    channels = 1 if node.op == CONVOLUTION and not orders_of(node)[1].is_last else rank - 1
    for step in node.attributes["epilogue"]:
        if step == "bias":
            sizes = [1] * rank
            sizes[channels] = tensor_type(node).shape[channels]
            made = building.elementwise("add", made, building.reshape(operands.pop(0), sizes))
        else:
            made = building.elementwise(step, made, operands.pop(0)) if step == "add" else applied(f"nn.{step}", made)
    return made


def with_joined_products(graph: Graph, *, takes_columns: bool = False) -> Graph:
    """Return a graph in which products of the same data are one, where readers can take columns without a copy.

    Parameters
    ----------
    graph : Graph
        Behind `passes.attention`.
    takes_columns : bool
        Whether all but products can; else attentions alone.
    """
    groups: dict[tuple[Value, tuple[str, ...]], list[Node]] = {}
    for node in _candidates(graph, takes_columns):
        groups.setdefault((node.arguments[0], _kept(node) if takes_columns else _steps(node)), []).append(node)
    columns: dict[Value, tuple[int, int]] = {}
    """Product -> which group it is of, and its first column there."""
    together = [group for group in groups.values() if len(group) > 1]
    for number, group in enumerate(together):
        start = 0
        for node in group:
            columns[node] = number, start
            start += tensor_type(node).shape[1]
    made: dict[int, Node] = {}

    def replace(own: Node, old: Node) -> Value:
        if old in columns:
            number, start = columns[old]
            if number not in made:
                made[number] = _side_by_side(together[number], own.arguments[0])
            part = building.sliced(made[number], [1], [start], [start + tensor_type(own).shape[1]])
            for step in own.attributes["epilogue"]:
                if step not in made[number].attributes["epilogue"]:
                    part = applied(f"nn.{step}", part)
            return part
        if own.op != ATTENTION:
            return own
        operands, found = list(own.arguments), []
        for at, (value, place) in enumerate(zip(old.arguments, old.attributes["places"], strict=False)):
            if value in columns:
                number, start = columns[value]
                operands[at] = made[number]
                place = _moved(place, tensor_type(value).shape[1], tensor_type(made[number]).shape[1], start)
            found.append(place)
        return own.of(tuple(operands), places=tuple(found))

    return rewritten_beside(graph, replace) if together else graph


def _steps(node: Node) -> tuple[str, ...]:
    found: tuple[str, ...] = node.attributes["epilogue"]
    return found


def _kept(node: Node) -> tuple[str, ...]:
    """Return the first steps of a product, as far as its columns keep them beside others'."""
    return tuple(itertools.takewhile(lambda step: step in _KEPT, _steps(node)))


def _candidates(graph: Graph, takes_columns: bool) -> list[Node]:
    """Return products of constants whose readers all take columns."""
    places: dict[Value, list[tuple[Place, int, int]]] = {}
    """Product -> where attentions read it, their heads and the sizes of these."""
    users, kept = graph.users(), set(graph.outputs)
    for node in graph.nodes():
        if node.op == ATTENTION:
            own = node.attributes
            sizes = (own["dim"], own["dim"], own["value_dim"])
            for value, place, size in zip(node.arguments, own["places"], sizes, strict=False):
                places.setdefault(value, []).append((place, own["heads"], size))

    def is_loose(value: Value) -> bool:
        """Whether nobody reads a value, through reshapes, but what has loops of its own."""
        return value not in kept and all(
            is_loose(user) if user.op == "reshape" else user.op not in (*PRODUCTS, ATTENTION)
            for user in users.get(value, ())
            if not (user.op == ATTENTION and value in places)
        )

    def is_taken(node: Node) -> bool:
        """Whether all readers take columns; what is no first step they compute, which attentions do not."""
        own, later = places.get(node, []), _steps(node)[len(_kept(node)) :]
        if not all(_in_columns(*one, tensor_type(node).shape[1]) for one in own):
            return False
        if not takes_columns:
            return node not in kept and len(own) == len(users[node])
        return is_loose(node) and "bias" not in later and not (own and later)

    return [node for node in graph.nodes() if node.op == MATMUL and _is_known(node) and is_taken(node)]


def _is_known(node: Node) -> bool:
    """Whether everything but the data is constant, and nothing of the result's size is added."""
    return "add" not in node.attributes["epilogue"] and all(
        isinstance(argument, Constant) for argument in node.arguments[1:]
    )


def _in_columns(place: Place, heads: int, size: int, width: int) -> bool:
    """Whether a place is columns of the rows of a matrix."""
    inside = place.offset + (heads // place.group - 1) * place.head + size <= width
    return inside and place.row in (0, width) and place.batch % width == 0


def _moved(place: Place, width: int, wider: int, start: int) -> Place:
    """Return a place in a matrix that has become columns of a wider one."""
    return place._replace(offset=place.offset + start, batch=place.batch // width * wider, row=wider)


def _side_by_side(group: Sequence[Node], data: Value) -> Node:
    """Return the products of a group side by side, with the steps that all of them have."""
    operands = [
        Constant(concatenate([constant.array for constant in constants], -1))
        for constants in zip(*(node.arguments[1:] for node in group), strict=True)
    ]
    steps = [_steps(node) for node in group]
    common = steps[0] if len(set(steps)) == 1 else _kept(group[0])
    rows = tensor_type(group[0]).shape[0]
    kind = TensorType((rows, sum(tensor_type(node).shape[1] for node in group)), tensor_type(group[0]).dtype)
    return group[0].of((data, *operands), kind, epilogue=common)
