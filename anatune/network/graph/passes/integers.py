"""Quantised models: what moves 8-bit integers, and products of them with all that is fused into their stores.

Models say where numbers become integers and what computes with them as numbers: convert, compute, convert back.
`integers_moved` lets conversions meet the products around what only moves elements; `with_integer_products` makes those
products of integers. Conversions that are left are compiled with the operators around them. Results differ from the
model's in exact arithmetic where a number lies as near as float32 rounds to the middle of two integers: by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.network.graph.folding import computed
from anatune.network.graph.integers.scaled import Scale, dequantized, scale_of
from anatune.network.graph.nodes import (
    ITEM,
    Argument,
    Array,
    Constant,
    Graph,
    Node,
    Scalar,
    TensorType,
    Value,
    item_of,
    rewritten_beside,
    tensor_type,
)
from anatune.network.graph.operators import CONVOLUTION, CONVOLUTIONS, MATMUL, QUANTIZE, operator_of
from anatune.network.graph.passes.scaling import channel_values
from anatune.network.graph.passes.simplify import reshaped

__all__ = ["MAXIMA", "MOVES", "integers_moved", "with_integer_products"]

MOVES = ("broadcast_to", "flip", "permute_dims", "reshape", "strided_slice", "take")
"""Operators that return elements of their first argument."""
MAXIMA = ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
_LARGEST = 1 << 30
"""Of a bias in sums of int32."""
_ROUNDED = 2.0**-21
"""Of a bias that was a whole number of units, times a scale in float32: how far from that it may be."""


def integers_moved(graph: Graph) -> Graph:
    """Return a graph in which integers become numbers as late, and numbers integers as early as can be.

    Moves, concatenations and largest elements are between them no longer: they have integers.
    """
    uses = graph.uses()
    alone: set[Value] = set()  # new values that are read once

    def replace(own: Node, old: Node) -> Value:
        made = _earlier(own, alone) if own.op == QUANTIZE else _later(own)
        if uses[old] == 1:
            alone.add(made)
        return made

    return rewritten_beside(graph, replace)


def _is_move(node: Node) -> bool:
    return node.op in MOVES or operator_of(node).is_reshape


def _on(node: Node, value: Value) -> Node:
    """Return an operator that moves elements on other data."""
    kind = tensor_type(node)._replace(dtype=tensor_type(value).dtype)
    return node.of((value, *node.arguments[1:]), kind)


def _later(node: Node) -> Value:
    """Return an operator on converted integers as the conversion of its result, where it only moves or compares."""
    first = node.arguments[0] if node.arguments else None
    if node.op == ITEM and isinstance(first, Node) and first.op == "split":
        scale = scale_of(first.arguments[0])
        if scale is None or not scale.is_one:
            return node
        data = first.arguments[0].arguments[0]
        assert not isinstance(first.type, TensorType)
        kinds = tuple(TensorType(kind.shape, tensor_type(data).dtype) for kind in first.type)
        parts = Node("split", (data,), kinds, first.attributes, first.kind)
        return dequantized(item_of(parts, node.attributes["index"]), scale)
    if node.op == "concat" and isinstance(first, tuple):
        scales = [scale_of(part) for part in first]
        parts_of = [part.arguments[0] for part, scale in zip(first, scales, strict=True) if scale is not None]
        if scales[0] is None or not scales[0].is_one or not all(scales[0].equals(scale) for scale in scales):
            return node
        if len({tensor_type(part).dtype for part in parts_of}) > 1:
            return node
        kind = TensorType(tensor_type(node).shape, tensor_type(parts_of[0]).dtype)
        return dequantized(node.of((tuple(parts_of),), kind), scales[0])
    scale = scale_of(first)
    if scale is None or not isinstance(node.type, TensorType):
        return node
    assert isinstance(first, Node)
    data = first.arguments[0]
    if scale.is_one and (_is_move(node) or node.op in MAXIMA):
        moved = computed(_on(node, data))
        return dequantized(moved, scale)
    if node.op == "permute_dims" and isinstance(data, Constant):
        rank = len(node.type.shape)
        axes = node.attributes["axes"]
        turned = (one.transpose(axes) if one.ndim == rank else one for one in scale)
        return dequantized(Constant(data.array.transpose(axes)), Scale(*turned))
    return node


def _earlier(node: Node, alone: set[Value]) -> Value:
    """Return a conversion to integers before what only moves elements, and none of what was integers of its scale."""
    scale, data = scale_of(node, QUANTIZE), node.arguments[0]
    assert scale is not None
    assert isinstance(node.type, TensorType)
    dtype = node.type.dtype
    ends = (node.attributes["low"], node.attributes["high"])
    if not isinstance(data, Node) or not scale.is_one:
        return node
    if scale.equals(scale_of(data)) and tensor_type(data.arguments[0]).dtype == dtype and ends == INTEGER_RANGE[dtype]:
        return data.arguments[0]  # type: ignore[no-any-return]
    if data not in alone:
        return node

    def before(value: Value) -> Value:
        return _earlier(node.of((value, *node.arguments[1:]), TensorType(tensor_type(value).shape, dtype)), alone)

    if (_is_move(data) or data.op in MAXIMA) and not isinstance(data.arguments[0], Constant):
        return _on(data, before(data.arguments[0]))
    if data.op == "concat" and isinstance(data.arguments[0], tuple):
        return data.of((tuple(before(part) for part in data.arguments[0]),), node.type)
    return node


# ---- products ----


class _Integers(NamedTuple):
    """A product's operands, as integers without zero points of the second.

    Attributes
    ----------
    data : Value
    scale : Scale
        Of data.
    weight : Array
        int8.
    factors : Array
        float64, scales of each output channel: data's times the weight's.
    """

    data: Value
    scale: Scale
    weight: Array
    factors: Array


@dataclass
class _End:
    """What follows a product, as far as it is fused.

    Attributes
    ----------
    last : Node
        The last node of it, of the old graph.
    bias : ndarray, optional
    is_rectified : bool
    scale : Scale, optional
        Of the integers that the result becomes, of `last`'s type.
    """

    last: Node
    bias: Array | None = None
    is_rectified: bool = False
    scale: Scale | None = None
    nodes: list[Node] = field(default_factory=list)


def with_integer_products(graph: Graph) -> Graph:
    """Return a graph whose convolutions and matrix products of integers are anatune's, with what follows each.

    That is a bias, a rectifier (whose upper bound is the largest integer's), and the conversion of the result.
    """
    readers = graph.only_readers()
    ends: dict[Value, tuple[Node, _End]] = {}
    for node in graph.nodes():
        if _takes(node):
            end = _end_of(node, readers)
            ends[end.last] = node, end
    new: dict[Value, Value] = {}

    def replace(node: Node, old: Node) -> Value:
        if old not in ends:
            return node
        product, end = ends[old]
        own = new[product] if end.nodes else node
        assert isinstance(own, Node)
        found = _product(own, end)
        return node if found is None else reshaped(found, tensor_type(node).shape)

    return rewritten_beside(graph, replace, new)


def _takes(node: Node) -> bool:
    """Whether a node is a product of converted integers with integers that are known."""
    if node.op not in CONVOLUTIONS and node.op != "matmul":
        return False
    data, weight = node.arguments
    scale, own = scale_of(data), scale_of(weight)
    if scale is None or own is None or not scale.is_one or not isinstance(weight.arguments[0], Constant):
        return False
    if tensor_type(data.arguments[0]).dtype not in BYTE_DTYPES:
        return False
    if node.op == "matmul":
        return len(tensor_type(weight).shape) == 2 and len(tensor_type(data).shape) >= 2
    return bool(node.attributes["data_layout"] in ("NCW", "NCHW", "NCDHW"))


def _channel_axis(node: Node, shape: tuple[int, ...]) -> int:
    return 1 if node.op in CONVOLUTIONS else len(shape) - 1


def _end_of(node: Node, readers: Mapping[Value, Node]) -> _End:
    """Return what is fused behind a product: up to a conversion to integers, or, without one, a bias and rectifier."""
    size = tensor_type(node).shape[_channel_axis(node, tensor_type(node).shape)]
    end = plain = _End(node)
    upper = math.inf
    while (user := readers.get(end.last)) is not None:
        if not isinstance(user.type, TensorType):
            break
        following = _End(user, end.bias, end.is_rectified, None, [*end.nodes, user])
        shape = user.type.shape
        is_bounded = end.is_rectified or upper < math.inf
        if user.op == "add" and user.type == end.last.type and end.bias is None and not is_bounded:
            other = user.arguments[user.arguments[0] is end.last]
            following.bias = _known_values(other, shape, _channel_axis(node, shape))
            if following.bias is None:
                break
        elif user.op == "reshape" and node.op == "matmul" and shape[-1:] == (size,):
            pass
        elif (bounds := _bounds(user)) is not None and bounds[0] in (0.0, -math.inf):
            following.is_rectified = following.is_rectified or bounds[0] == 0.0
            upper = min(upper, bounds[1])
        elif user.op == QUANTIZE and user.arguments[0] is end.last:
            scale = scale_of(user, QUANTIZE)
            assert scale is not None
            ends = INTEGER_RANGE[user.type.dtype]
            if scale.is_one and (user.attributes["low"], user.attributes["high"]) == ends:
                highest = (ends[1] - float(scale.zero.reshape(()))) * float(scale.scale.reshape(()))
                if upper >= highest * (1.0 - 1e-6):
                    following.scale = scale
                    return following
            break
        else:
            break
        end = following
        if upper == math.inf and user.op != "reshape":
            plain = end
    return plain


def _known_values(value: Argument, shape: tuple[int, ...], axis: int) -> Array | None:
    """Return `channel_values` of a constant, of a converted one, too."""
    known = computed(value) if isinstance(value, Node) else value
    return channel_values(known, shape, axis)


def _bounds(node: Node) -> tuple[float, float] | None:
    """Return what a node bounds its first argument by; None: it is something else."""
    if node.op in ("nn.relu", "nn.relu6"):
        return 0.0, 6.0 if node.op == "nn.relu6" else math.inf
    if node.op not in ("maximum", "minimum", "clip"):
        return None
    numbers = [_number(one) for one in node.arguments[1:]]
    if any(one is None for one in numbers):
        return None
    ends = {"maximum": (*numbers, math.inf), "minimum": (-math.inf, *numbers)}
    low, high = ends.get(node.op, tuple(numbers))
    assert low is not None
    assert high is not None
    return low, high


def _number(argument: Argument) -> float | None:
    if isinstance(argument, Scalar):
        return float(argument.value)
    if isinstance(argument, Constant) and argument.array.size == 1:
        return float(argument.array.reshape(()))
    return None


def _operands(node: Node) -> _Integers | None:
    """Return a product's operands; None: the weights have zero points that int8 has no room for."""
    data, weight = node.arguments
    scale, own = scale_of(data), scale_of(weight)
    assert scale is not None
    assert own is not None
    whole = weight.arguments[0].array.astype(np.int32) - own.zero
    if whole.size and not -128 <= whole.min() <= whole.max() <= 127:
        return None
    axis = 0 if node.op in CONVOLUTIONS else 1
    factors = channel_values(Constant(own.scale), whole.shape, axis)
    if factors is None:
        return None
    product = factors.astype(np.float64) * float(scale.scale.reshape(()))
    return _Integers(data.arguments[0], scale, whole.astype(np.int8), product)


def _product(node: Node, end: _End) -> Node | None:
    """Return anatune's product of integers, its result as the kernel has it; None: it stays one of numbers."""
    found = _operands(node)
    if found is None:
        return None
    data, weight = found.data, found.weight
    kind, zero = tensor_type(node), int(found.scale.zero.reshape(()))
    attributes: dict[str, object] = {}
    if node.op in CONVOLUTIONS:
        names = ("strides", "padding", "dilation", "groups")
        attributes = {name: node.attributes[name] for name in names} | {"layout": "NCHW"}
        is_padded = any(node.attributes["padding"])
        sums = weight.astype(np.int64).sum(axis=tuple(range(1, weight.ndim)))
    else:
        data = reshaped(data, (math.prod(kind.shape[:-1]), weight.shape[0]))
        kind = TensorType(tensor_type(data).shape[:1] + weight.shape[1:], kind.dtype)
        is_padded, sums = False, weight.astype(np.int64).sum(axis=0)
    # Around the image a zero point is what the padding holds; else it is a part of the bias.
    inner = np.zeros(len(found.factors)) if is_padded else -float(zero) * sums
    if is_padded and zero:
        attributes["input_zero_point"] = zero
    with np.errstate(all="ignore"):  # what a bias over a tiny scale leaves is too large
        steps, operands = _steps(end, found.factors, inner)
        # In float32 the zero point's part would leave digits of the bias, which numbers keep.
        if inner.any() and steps[:2] == ("scale", "bias") and end.scale is None:
            attributes["input_zero_point"] = zero
            steps, operands = _steps(end, found.factors, np.zeros_like(inner))
    if any(one.dtype == np.float64 for one in operands):
        return None
    operator = CONVOLUTION if node.op in CONVOLUTIONS else MATMUL
    dtype = "float32"
    if end.scale is not None:
        dtype = tensor_type(end.last).dtype
        attributes["output_zero_point"] = int(end.scale.zero.reshape(()))
    attributes["epilogue"] = steps
    return Node(operator, (data, *map(Constant, (weight, *operands))), kind._replace(dtype=dtype), attributes)


def _steps(end: _End, factors: Array, inner: Array) -> tuple[tuple[str, ...], list[Array]]:
    """Return the steps behind sums of integers, and their operands; one of float64 has no place in int32.

    Parameters
    ----------
    factors, inner : ndarray
        Of each channel: what a sum is multiplied by, and what is added to it.
    """
    bias = np.zeros(len(factors)) if end.bias is None else end.bias.astype(np.float64)
    whole = np.rint(bias / factors)
    unit = 1.0 if end.scale is None else float(end.scale.scale.reshape(()))
    is_whole = end.bias is None or (
        end.scale is not None and bool((np.abs(bias - whole * factors) <= _ROUNDED * np.abs(bias)).all())
    )
    total = inner + whole
    steps: list[str] = []
    operands: list[Array] = []
    # What a product becomes is at least the zero point, which may be the least integer there is.
    is_free = end.scale is not None and end.scale.zero.reshape(()) == INTEGER_RANGE[tensor_type(end.last).dtype][0]
    rectifier = ["relu"] * (end.is_rectified and not is_free)
    if not is_whole:
        steps += ["scale", "bias", *rectifier]
        operands += [factors.astype(np.float32), (inner * factors + bias).astype(np.float32)]
        factors = np.ones(len(factors))
    elif total.any():
        steps.append("bias")
        operands.append(total.astype(np.int32) if np.abs(total).max() <= _LARGEST else total)
    if end.scale is None and is_whole:
        steps += ["scale", *rectifier]
        operands.append(factors.astype(np.float32))
    elif end.scale is not None:
        steps += [*(rectifier if is_whole else []), "requantize"]
        operands.append((factors / unit).astype(np.float32))
    return tuple(steps), operands
