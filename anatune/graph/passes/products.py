"""Convolutions and matrix products with the steps that follow each and can be fused into it, as anatune's."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.graph import building
from anatune.graph.nodes import Constant, Graph, Node, TensorType, Value, rewritten_beside, tensor_type, values_in
from anatune.graph.operators import (
    BATCH_MATMUL,
    CONVOLUTION,
    CONVOLUTIONS,
    MATMUL,
    PRODUCTS,
    SCALED_MATMUL,
    applied,
    operator_of,
)
from anatune.graph.passes.scaling import channel_axis, channel_values
from anatune.graph.passes.simplify import reshaped
from anatune.graph.products import orders_of

__all__ = ["unfused", "with_products"]

_DTYPE = "float32"


class _Step(NamedTuple):
    """A node behind a product: the step that it is ("": a reshape), and its operand beside the product."""

    word: str
    node: Node
    operand: Value | None = None


def with_products(graph: Graph) -> Graph:
    """Return a graph whose convolutions and matrix products are anatune's, each with the steps that follow it."""
    users: dict[int, list[Node]] = {}
    for node in graph.nodes():
        for value in values_in(node.arguments):
            users.setdefault(id(value), []).append(node)
    kept = {id(value) for value in graph.outputs}
    chains: dict[int, tuple[Node, list[_Step]]] = {}
    claimed: set[int] = set()
    for node in reversed(graph.nodes()):
        # From the end: of two products that are added up, the later one takes the sum, which the other one feeds.
        if _is_product(node):
            steps = _steps_behind(node, users, kept, claimed)
            claimed.update(id(step.node) for step in steps)
            chains[id(steps[-1].node if steps else node)] = node, steps
    new: dict[int, Value] = {}

    def replace(node: Node, old: Node) -> Value:
        made: Value = node
        if id(old) in chains:
            anchor, steps = chains[id(old)]
            own = new[id(anchor)] if steps else node
            assert isinstance(own, Node)
            now = [step._replace(operand=new.get(id(step.operand), step.operand)) for step in steps]
            made = reshaped(_product(own, now), tensor_type(node).shape)
        new[id(old)] = made
        return made

    return rewritten_beside(graph, replace)


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


def _steps_behind(node: Node, users: dict[int, list[Node]], kept: set[int], claimed: set[int]) -> list[_Step]:
    """Return the steps that can be fused into a product, in order; reshapes only where a step follows."""
    channels = channel_axis(node) if node.op in CONVOLUTIONS else len(tensor_type(node).shape) - 1
    assert channels is not None
    is_batched = node.op == "matmul" and len(tensor_type(node.arguments[1]).shape) > 2
    size = tensor_type(node).shape[channels]
    found: list[_Step] = []
    at: Node = node
    while id(at) not in kept and len(users.get(id(at), ())) == 1:
        (user,) = users[id(at)]
        words, operator = {step.word for step in found}, operator_of(user)
        word: str | None = None
        other: Value | None = None
        if id(user) in claimed or not isinstance(user.type, TensorType):
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
    data, weight, *operands = node.arguments
    made: Value = node.of((data, weight), epilogue=())
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
