"""Turn softmax, layer norms, scatters and concatenations into anatune's kernels, most of which work on matrix rows.

One more pass checks the divisors of integers.
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
    drop_repeats,
    is_unknown,
    rewrite_graph,
    rewrite_with_originals,
    tensor_type,
)
from anatune.network.graph.operators import CONCAT, DIVISIONS, DIVISOR, LAYER_NORM, SCATTER, SOFTMAX
from anatune.network.graph.passes.simplify import reshape_value, source_of

__all__ = ["check_divisors", "expand_rows", "fuse_rows", "lower_concatenations", "lower_scatters"]

_DTYPE = "float32"


def fuse_rows(graph: Graph) -> Graph:
    """Return a graph in which softmax and layer norm along the last dimensions are anatune's."""

    def replace(node: Node) -> Value:
        if not isinstance(node.type, TensorType) or node.type.dtype != _DTYPE or not node.type.shape:
            return node
        if node.op == "nn.softmax" and node.attributes["axis"] in (-1, len(node.type.shape) - 1):
            return _softmax(node)
        if node.op == "where" and (inner := _fuse_guard(node)) is not None:
            return inner
        if node.op == "nn.layer_norm":
            return _layer_norm(node)
        return node

    return rewrite_graph(graph, replace)


def lower_scatters(graph: Graph) -> Graph:
    """Return a graph whose scatters are anatune's, with indices that are not repeated for all elements of a row."""

    def replace(node: Node) -> Value:
        if (
            node.op != "scatter_elements"
            or tensor_type(node).dtype in FOREIGN
            or node.attributes["reduction"] not in _PUT
        ):
            return node
        data, indices, updates = node.arguments
        if isinstance(indices, Node) and indices.op == "broadcast_to":
            before = tensor_type(indices.arguments[0]).shape
            rank = len(tensor_type(indices).shape)
            indices = reshape_value(indices.arguments[0], (1,) * (rank - len(before)) + before)
        return Node(SCATTER, (data, indices, updates), node.type, node.attributes)

    return rewrite_graph(graph, replace)


_PUT = ("add", "max", "min", "mul", "update")


def check_divisors(graph: Graph) -> Graph:
    """Return a graph in which integer divisions check their divisors, unless these are known not to be zero."""
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

    return rewrite_graph(graph, replace)


def lower_concatenations(graph: Graph) -> Graph:
    """Return a graph whose concatenations are anatune's, with nested ones joined into one.

    One that begins as another one, which the network also needs, reads that one's result: its rows are copied in
    longer pieces, and the code for many operands takes long to compile (DenseNet).
    """
    uses, readers = graph.uses(), graph.only_readers()
    inner: dict[Value, Node] = {}  # replacements of concatenations that only another concatenation reads
    results: dict[tuple[int, tuple[Value, ...]], Value] = {}

    def replace(node: Node, old: Node) -> Value:
        if not isinstance(node.type, TensorType) or node.type.dtype != _DTYPE or not math.prod(node.type.shape):
            return node
        if node.op != "concat" or not isinstance(node.arguments[0], tuple):
            return node
        axis = _concat_axis(node)
        parts: list[Value] = []
        for part in node.arguments[0]:
            nested = inner.get(part)
            parts += nested.arguments[0] if nested is not None and _concat_axis(nested) == axis else [part]
        whole = node.of((tuple(parts),))
        sizes = (size for size in range(len(parts), 1, -1) if (axis, tuple(parts[:size])) in results)
        first = next(sizes, 0)
        begin = [results[axis, tuple(parts[:first])]] if first else []
        result = _concat(whole, begin + parts[first:], axis) if first < len(parts) else begin[0]
        if uses[old] == 1:
            inner[result] = whole
        if old not in readers or readers[old].op != "concat":
            results.setdefault((axis, tuple(parts)), result)
        return result

    return rewrite_with_originals(graph, replace)


def _softmax(node: Node) -> Value:
    data: Argument = node.arguments[0]
    shape = tensor_type(node).shape
    mask, scale = None, 1.0
    if isinstance(data, Node) and data.op == "add":
        for first, second in (data.arguments, data.arguments[::-1]):
            if tensor_type(first).shape == shape and _mask_block(second, shape):
                data, mask = first, second
                break
    if isinstance(mask, Constant):
        mask = _drop_mask_repeats(mask)
        mask = mask if drop_repeats(mask.array).any() else None
    if isinstance(data, Node) and data.op == "multiply" and isinstance(data.arguments[1], Constant):
        factor = data.arguments[1].array
        if factor.size == 1 and data.arguments[0].type == data.type:
            data, scale = data.arguments[0], float(factor.reshape(()))
    kind = (math.prod(shape[:-1]), shape[-1])
    operands = [reshape_value(data, kind)]
    if mask is not None:
        operands.append(reshape_value(mask, (math.prod(tensor_type(mask).shape[:-1]), shape[-1])))
    block = kind[0] if mask is None else _mask_block(mask, shape)
    attributes = {"scale": scale, "zero_rows": False, "block": block}
    return reshape_value(Node(SOFTMAX, tuple(operands), TensorType(kind, _DTYPE), attributes), shape)


def _drop_mask_repeats(mask: Constant) -> Constant:
    """Return a mask without its repetitions along the first dimensions."""
    array = mask.array
    for axis in range(array.ndim - 2):
        if array.strides[axis] and array.shape[axis] > 1:
            break
        array = array[(*[slice(None)] * axis, slice(1))]
    return Constant(array)


def _mask_block(value: Value, shape: tuple[int, ...]) -> int:
    """Return after how many rows of data of `shape` the rows of a mask change, or 0 if it is no such mask."""
    kind = tensor_type(value)
    rows = shape[:-1]
    mask_shape = (1,) * (len(shape) - len(kind.shape)) + kind.shape
    if kind.dtype != _DTYPE or len(mask_shape) != len(shape) or mask_shape[-1] != shape[-1]:
        return 0
    first = next((dimension for dimension, size in enumerate(rows) if mask_shape[dimension] != size), len(rows))
    last = next((dimension for dimension in range(first, len(rows)) if mask_shape[dimension] != 1), len(rows))
    if mask_shape[last:-1] != rows[last:]:
        return 0
    return math.prod(rows if math.prod(rows[:first]) == 1 or first == len(rows) else rows[first:])


_EMPTY = ("logical_not", "astype", "max", "astype", "logical_not", "equal")
"""The operators by which PyTorch's attention finds rows of only ``-inf``, from the condition to the comparison."""


def _fuse_guard(node: Node) -> Value | None:
    """Return the softmax with zeros in empty rows for ``where(empty rows, 0, softmax)``, or None for other nodes."""
    condition, zeros, softmax = node.arguments
    if isinstance(zeros, Node) and zeros.op == "broadcast_to":
        zeros = zeros.arguments[0]
    inner = softmax.arguments[0] if isinstance(softmax, Node) and softmax.op == "reshape" else None
    is_zero = isinstance(zeros, Constant) and not drop_repeats(zeros.array).any()
    if not (is_zero and isinstance(inner, Node) and inner.op == SOFTMAX and softmax.type == node.type):
        return None
    if isinstance(condition, Node) and condition.op == "isnan" and condition.arguments[0] is softmax:  # ONNX
        return reshape_value(inner.of(inner.arguments, zero_rows=True), tensor_type(node).shape)
    value: Argument = condition
    for op in _EMPTY:
        if not (isinstance(value, Node) and value.op == op):
            return None
        if op == "max" and tuple(value.attributes["axis"] or ()) not in ((-1,), (len(tensor_type(node).shape) - 1,)):
            return None
        last, value = value, value.arguments[0]
    lowest = last.arguments[1]
    if not (isinstance(lowest, Constant) and lowest.array.size == 1 and np.isneginf(lowest.array).all()):
        return None
    if tensor_type(value) != tensor_type(node) or reshape_value(value, tensor_type(inner).shape).type != inner.type:
        return None
    if not _is_softmax_of(inner, value):
        return None
    return reshape_value(inner.of(inner.arguments, zero_rows=True), tensor_type(node).shape)


def _is_softmax_of(node: Node, scores: Value) -> bool:
    """Return whether a softmax is that of `scores`, even if it has absorbed a part of their computation."""
    value: Argument = scores
    for _ in range(3):
        data = node.arguments[0]
        if reshape_value(value, tensor_type(data).shape) is data or source_of(value) is source_of(data):
            return True
        if not (isinstance(value, Node) and value.op in ("add", "multiply")):
            return False
        value = value.arguments[0] if value.arguments[0].type == value.type else value.arguments[1]
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
    operands: tuple[Value, ...] = (
        reshape_value(data, kind),
        reshape_value(factor, (length,)),
        reshape_value(term, (length,)),
    )
    neutral = zip((factor, term), (1, 0), strict=True)
    if all(isinstance(value, Constant) and np.all(value.array == number) for value, number in neutral):
        operands = operands[:1]
    attributes = {"epsilon": node.attributes["epsilon"]}
    return reshape_value(Node(LAYER_NORM, operands, TensorType(kind, _DTYPE), attributes), shape)


def _concat_axis(node: Node) -> int:
    rank = len(tensor_type(node).shape)
    return int(node.attributes["axis"] or 0) % rank


def _concat(node: Node, parts: list[Value], axis: int) -> Value:
    shape = tensor_type(node).shape
    outer = math.prod(shape[:axis])
    matrices = tuple(
        reshape_value(part, (outer, math.prod(tensor_type(part).shape[axis:])))
        for part in parts
        if math.prod(tensor_type(part).shape)
    )
    result = Node(CONCAT, matrices, TensorType((outer, math.prod(shape[axis:])), _DTYPE))
    return reshape_value(result, shape)


def expand_rows(graph: Graph) -> Graph:
    """Return a graph whose softmaxes and layer norms are standard operators again."""

    def replace(node: Node) -> Value:
        if node.op == SOFTMAX:
            return _expand_softmax(node)
        if node.op == LAYER_NORM:
            return _expand_norm(node)
        return node

    return rewrite_graph(graph, replace)


def _expand_softmax(node: Node) -> Value:
    attrs = node.attributes
    data, *masks = node.arguments
    rows, length = tensor_type(node).shape
    if attrs["scale"] != 1.0:
        data = building.elementwise("multiply", data, attrs["scale"])
    for mask in masks:
        parts = rows // attrs["block"]
        mask_rows = tensor_type(mask).shape[0] // parts
        whole = building.reshape(data, (parts, attrs["block"] // mask_rows, mask_rows, length))
        added = building.elementwise("add", whole, building.reshape(mask, (parts, 1, mask_rows, length)))
        data = building.reshape(added, (rows, length))
    result = building.softmax(data, 1)
    if not attrs["zero_rows"]:
        return result
    most = building.reduce_axes("max", data, (1,), keepdims=True)
    empty = building.elementwise("equal", most, -np.inf)
    zeros = Constant(np.zeros((1, 1), np.float32))
    condition, nothing = (building.broadcast(value, (rows, length)) for value in (empty, zeros))
    return building.where(condition, nothing, result)


def _expand_norm(node: Node) -> Value:
    data, *parameters = node.arguments
    length = tensor_type(node).shape[1]
    factor, term = parameters or (Constant(np.ones(length, np.float32)), Constant(np.zeros(length, np.float32)))
    return building.layer_norm(data, factor, term, (1,), node.attributes["epsilon"])
