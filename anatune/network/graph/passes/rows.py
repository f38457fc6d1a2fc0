"""Softmax, layer norm, elementary functions and concatenations as anatune's, which treat the rows of a matrix.

And what looks at the divisors of whole numbers.
"""

from __future__ import annotations

import math

import numpy as np

from anatune.network.graph import building
from anatune.network.graph.nodes import (
    FOREIGN,
    Argument,
    Constant,
    Graph,
    Node,
    Scalar,
    TensorType,
    Value,
    is_unknown,
    once,
    rewritten,
    rewritten_beside,
    tensor_type,
)
from anatune.network.graph.operators import CONCAT, DIVISIONS, DIVISOR, LAYER_NORM, SCATTER, SOFTMAX
from anatune.network.graph.passes.simplify import reshaped, source_of

__all__ = ["with_checked_divisors", "with_concatenations", "with_rows", "with_scatters", "without_rows"]

_DTYPE = "float32"


def with_rows(graph: Graph) -> Graph:
    """Return a graph in which softmax and layer norm along the last dimensions are anatune's."""

    def replace(own: Node) -> Value:
        if not isinstance(own.type, TensorType) or own.type.dtype != _DTYPE or not own.type.shape:
            return own
        if own.op == "nn.softmax" and own.attributes["axis"] in (-1, len(own.type.shape) - 1):
            return _softmax(own)
        if own.op == "where" and (inner := _guarded(own)) is not None:
            return inner
        if own.op == "nn.layer_norm":
            return _layer_norm(own)
        return own

    return rewritten(graph, replace)


def with_scatters(graph: Graph) -> Graph:
    """Return a graph whose updates are put at places that are not repeated for all elements of a row."""

    def replace(own: Node) -> Value:
        if own.op != "scatter_elements" or tensor_type(own).dtype in FOREIGN or own.attributes["reduction"] not in _PUT:
            return own
        data, indices, updates = own.arguments
        if isinstance(indices, Node) and indices.op == "broadcast_to":
            before = tensor_type(indices.arguments[0]).shape
            rank = len(tensor_type(indices).shape)
            indices = reshaped(indices.arguments[0], (1,) * (rank - len(before)) + before)
        return Node(SCATTER, (data, indices, updates), own.type, own.attributes)

    return rewritten(graph, replace)


_PUT = ("add", "max", "min", "mul", "update")


def with_checked_divisors(graph: Graph) -> Graph:
    """Return a graph whose divisions of whole numbers read divisors that were looked at, unless none can be zero."""
    checked: dict[tuple[Value, str], Node] = {}

    def replace(node: Node) -> Value:
        if node.op not in DIVISIONS or "int" not in tensor_type(node).dtype or 0 in tensor_type(node).shape:
            return node
        first, second = node.arguments
        if isinstance(second, Scalar):
            second = Constant(np.array(0 if second.value == 0 else 1, tensor_type(node).dtype))  # sizes are not zero
        if isinstance(second, Constant) and not is_unknown(second.array) and second.array.all():
            return node
        divisor = Node(DIVISOR, (second,), tensor_type(second), {"operator": node.op})
        return node.of((first, checked.setdefault((second, node.op), divisor)))

    return rewritten(graph, replace)


def with_concatenations(graph: Graph) -> Graph:
    """Return a graph whose concatenations are anatune's; nested ones are one."""
    uses = graph.uses()
    inner: dict[Value, Node] = {}  # concatenations that only another one reads, by what stands in their place

    def replace(own: Node, old: Node) -> Value:
        if not isinstance(own.type, TensorType) or own.type.dtype != _DTYPE or not math.prod(own.type.shape):
            return own
        if own.op != "concat" or not isinstance(own.arguments[0], tuple):
            return own
        axis = _axis_of(own)
        parts: list[Value] = []
        for part in own.arguments[0]:
            nested = inner.get(part)
            parts += nested.arguments[0] if nested is not None and _axis_of(nested) == axis else [part]
        whole = own.of((tuple(parts),))
        made = _concat(whole, parts, axis)
        if uses[old] == 1:
            inner[made] = whole
        return made

    return rewritten_beside(graph, replace)


def _softmax(node: Node) -> Value:
    data: Argument = node.arguments[0]
    shape = tensor_type(node).shape
    mask, scale = None, 1.0
    if isinstance(data, Node) and data.op == "add":
        for one, other in (data.arguments, data.arguments[::-1]):
            if tensor_type(one).shape == shape and _mask_block(other, shape):
                data, mask = one, other
                break
    if isinstance(mask, Constant):
        mask = _unrepeated(mask)
        mask = mask if once(mask.array).any() else None
    if isinstance(data, Node) and data.op == "multiply" and isinstance(data.arguments[1], Constant):
        factor = data.arguments[1].array
        if factor.size == 1 and data.arguments[0].type == data.type:
            data, scale = data.arguments[0], float(factor.reshape(()))
    kind = (math.prod(shape[:-1]), shape[-1])
    operands = [reshaped(data, kind)]
    if mask is not None:
        operands.append(reshaped(mask, (math.prod(tensor_type(mask).shape[:-1]), shape[-1])))
    block = kind[0] if mask is None else _mask_block(mask, shape)
    attributes = {"scale": scale, "zero_rows": False, "block": block}
    return reshaped(Node(SOFTMAX, tuple(operands), TensorType(kind, _DTYPE), attributes), shape)


def _unrepeated(mask: Constant) -> Constant:
    """Return a mask without what it repeats along its first dimensions."""
    array = mask.array
    for axis in range(array.ndim - 2):
        if array.strides[axis] and array.shape[axis] > 1:
            break
        array = array[(*[slice(None)] * axis, slice(1))]
    return Constant(array)


def _mask_block(value: Value, shape: tuple[int, ...]) -> int:
    """Return after how many rows of data of `shape` other rows of a mask follow; 0: it is no such mask."""
    kind = tensor_type(value)
    rows = shape[:-1]
    own = (1,) * (len(shape) - len(kind.shape)) + kind.shape
    if kind.dtype != _DTYPE or len(own) != len(shape) or own[-1] != shape[-1]:
        return 0
    first = next((place for place, size in enumerate(rows) if own[place] != size), len(rows))
    last = next((place for place in range(first, len(rows)) if own[place] != 1), len(rows))
    if own[last:-1] != rows[last:]:
        return 0
    return math.prod(rows if math.prod(rows[:first]) == 1 or first == len(rows) else rows[first:])


_EMPTY = ("logical_not", "astype", "max", "astype", "logical_not", "equal")
"""How PyTorch's attention finds rows of nothing but ``-inf``, from the condition back to the comparison."""


def _guarded(node: Node) -> Value | None:
    """Return a softmax whose empty rows are zeros for ``where(empty rows, 0, softmax)``; None: the node is none."""
    condition, zeros, found = node.arguments
    if isinstance(zeros, Node) and zeros.op == "broadcast_to":
        zeros = zeros.arguments[0]
    inner = found.arguments[0] if isinstance(found, Node) and found.op == "reshape" else None
    is_zero = isinstance(zeros, Constant) and not once(zeros.array).any()
    if not (is_zero and isinstance(inner, Node) and inner.op == SOFTMAX and found.type == node.type):
        return None
    if isinstance(condition, Node) and condition.op == "isnan" and condition.arguments[0] is found:  # as ONNX files do
        return reshaped(inner.of(inner.arguments, zero_rows=True), tensor_type(node).shape)
    at: Argument = condition
    for op in _EMPTY:
        if not (isinstance(at, Node) and at.op == op):
            return None
        if op == "max" and tuple(at.attributes["axis"] or ()) not in ((-1,), (len(tensor_type(node).shape) - 1,)):
            return None
        last, at = at, at.arguments[0]
    lowest = last.arguments[1]
    if not (isinstance(lowest, Constant) and lowest.array.size == 1 and np.isneginf(lowest.array).all()):
        return None
    if tensor_type(at) != tensor_type(node) or reshaped(at, tensor_type(inner).shape).type != inner.type:
        return None
    if not _reads(inner, at):
        return None
    return reshaped(inner.of(inner.arguments, zero_rows=True), tensor_type(node).shape)


def _reads(node: Node, scores: Value) -> bool:
    """Whether a softmax is that of `scores`, however much of their computation it has taken in."""
    at: Argument = scores
    for _ in range(3):
        data = node.arguments[0]
        if reshaped(at, tensor_type(data).shape) is data or source_of(at) is source_of(data):
            return True
        if not (isinstance(at, Node) and at.op in ("add", "multiply")):
            return False
        at = at.arguments[0] if at.arguments[0].type == at.type else at.arguments[1]
    return False


def _layer_norm(node: Node) -> Value:
    data, gamma, beta = node.arguments
    shape = tensor_type(node).shape
    axes = sorted(axis % len(shape) for axis in node.attributes["axes"])
    if axes != list(range(len(shape) - len(axes), len(shape))) or not math.prod(shape):
        return node
    length = math.prod(shape[axes[0] :])
    factor = gamma if node.attributes["scale"] else Constant(np.ones(length, np.float32))
    term = beta if node.attributes["center"] else Constant(np.zeros(length, np.float32))
    kind = (math.prod(shape[: axes[0]]), length)
    operands: tuple[Value, ...] = (reshaped(data, kind), reshaped(factor, (length,)), reshaped(term, (length,)))
    plain = zip((factor, term), (1, 0), strict=True)
    if all(isinstance(one, Constant) and np.all(one.array == number) for one, number in plain):
        operands = operands[:1]
    attributes = {"epsilon": node.attributes["epsilon"]}
    return reshaped(Node(LAYER_NORM, operands, TensorType(kind, _DTYPE), attributes), shape)


def _axis_of(node: Node) -> int:
    rank = len(tensor_type(node).shape)
    return int(node.attributes["axis"] or 0) % rank


def _concat(node: Node, parts: list[Value], axis: int) -> Value:
    shape = tensor_type(node).shape
    outer = math.prod(shape[:axis])
    matrices = tuple(
        reshaped(part, (outer, math.prod(tensor_type(part).shape[axis:])))
        for part in parts
        if math.prod(tensor_type(part).shape)
    )
    made = Node(CONCAT, matrices, TensorType((outer, math.prod(shape[axis:])), _DTYPE))
    return reshaped(made, shape)


def without_rows(graph: Graph) -> Graph:
    """Return a graph whose softmaxes and layer norms are operators that anybody knows."""

    def replace(node: Node) -> Value:
        if node.op == SOFTMAX:
            return _plain_softmax(node)
        if node.op == LAYER_NORM:
            return _plain_norm(node)
        return node

    return rewritten(graph, replace)


def _plain_softmax(node: Node) -> Value:
    own = node.attributes
    data, *masks = node.arguments
    rows, length = tensor_type(node).shape
    if own["scale"] != 1.0:
        data = building.elementwise("multiply", data, own["scale"])
    for mask in masks:
        parts = rows // own["block"]
        own_rows = tensor_type(mask).shape[0] // parts
        whole = building.reshape(data, (parts, own["block"] // own_rows, own_rows, length))
        added = building.elementwise("add", whole, building.reshape(mask, (parts, 1, own_rows, length)))
        data = building.reshape(added, (rows, length))
    made = building.softmax(data, 1)
    if not own["zero_rows"]:
        return made
    most = building.reduced("max", data, (1,), keepdims=True)
    empty = building.elementwise("equal", most, -np.inf)
    zeros = Constant(np.zeros((1, 1), np.float32))
    condition, nothing = (building.broadcast(one, (rows, length)) for one in (empty, zeros))
    return building.where(condition, nothing, made)


def _plain_norm(node: Node) -> Value:
    data, *known = node.arguments
    length = tensor_type(node).shape[1]
    factor, term = known or (Constant(np.ones(length, np.float32)), Constant(np.zeros(length, np.float32)))
    return building.layer_norm(data, factor, term, (1,), node.attributes["epsilon"])
