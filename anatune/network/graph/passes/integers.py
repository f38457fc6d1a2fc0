"""Quantised networks: data movement and products on 8-bit integers, with everything that is fused into the stores.

Networks convert integers to numbers, compute with the numbers, and convert the result back. `move_conversions` moves
the conversions past operators that only move elements, up to the products. `fuse_integer_products` replaces those
products by products of integers. The remaining conversions are compiled with the operators around them. A result
differs by 1 from the exact one if a number is too close to the middle of two integers for float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.network.graph.folding import fold
from anatune.network.graph.integers.scaled import QuantisationScale, dequantize, scale_of
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
    rewrite_with_originals,
    select_result,
    tensor_type,
)
from anatune.network.graph.operators import CONVOLUTION, CONVOLUTIONS, MATMUL, QUANTIZE, find_operator
from anatune.network.graph.passes.scaling import channel_values
from anatune.network.graph.passes.simplify import reshape_value

__all__ = ["MAXIMA", "MOVES", "fuse_integer_products", "move_conversions"]

MOVES = ("broadcast_to", "flip", "permute_dims", "reshape", "strided_slice", "take")
"""Operators that return elements of their first argument unchanged."""
MAXIMA = ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
_LARGEST = 1 << 30
"""The largest absolute value of a bias that is added to sums of int32."""
_ROUNDED = 2.0**-21
"""The relative error that the product of an integer bias with a float32 scale may have."""


def move_conversions(graph: Graph) -> Graph:
    """Return a graph in which integers are dequantised as late, and numbers are quantised as early as possible.

    Data movement, concatenations and max pools between them then work on integers.
    """
    uses = graph.uses()
    alone: set[Value] = set()  # new values with a single reader

    def replace(node: Node, old: Node) -> Value:
        moved = _move_quantize(node, alone) if node.op == QUANTIZE else _move_dequantize(node)
        if uses[old] == 1:
            alone.add(moved)
        return moved

    return rewrite_with_originals(graph, replace)


def _is_move(node: Node) -> bool:
    return node.op in MOVES or find_operator(node).is_reshape


def _move_other(node: Node, value: Value) -> Node:
    """Return a data movement applied to other data."""
    kind = tensor_type(node)._replace(dtype=tensor_type(value).dtype)
    return node.of((value, *node.arguments[1:]), kind)


def _move_dequantize(node: Node) -> Value:
    """Return an operator on dequantised integers as the dequantised result of the operator on integers, if equal."""
    first = node.arguments[0] if node.arguments else None
    if node.op == ITEM and isinstance(first, Node) and first.op == "split":
        scale = scale_of(first.arguments[0])
        if scale is None or not scale.is_one:
            return node
        data = first.arguments[0].arguments[0]
        assert not isinstance(first.type, TensorType)
        kinds = tuple(TensorType(kind.shape, tensor_type(data).dtype) for kind in first.type)
        parts = Node("split", (data,), kinds, first.attributes, first.kind)
        return dequantize(select_result(parts, node.attributes["index"]), scale)
    if node.op == "concat" and isinstance(first, tuple):
        scales = [scale_of(part) for part in first]
        parts_of = [part.arguments[0] for part, scale in zip(first, scales, strict=True) if scale is not None]
        if scales[0] is None or not scales[0].is_one or not all(scales[0].equals(scale) for scale in scales):
            return node
        if len({tensor_type(part).dtype for part in parts_of}) > 1:
            return node
        kind = TensorType(tensor_type(node).shape, tensor_type(parts_of[0]).dtype)
        return dequantize(node.of((tuple(parts_of),), kind), scales[0])
    scale = scale_of(first)
    if scale is None or not isinstance(node.type, TensorType):
        return node
    assert isinstance(first, Node)
    data = first.arguments[0]
    if scale.is_one and (_is_move(node) or node.op in MAXIMA):
        moved = fold(_move_other(node, data))
        return dequantize(moved, scale)
    if node.op == "permute_dims" and isinstance(data, Constant):
        rank = len(node.type.shape)
        axes = node.attributes["axes"]
        turned = (array.transpose(axes) if array.ndim == rank else array for array in scale)
        return dequantize(Constant(data.array.transpose(axes)), QuantisationScale(*turned))
    return node


def _move_quantize(node: Node, alone: set[Value]) -> Value:
    """Return a quantisation moved before data movement, or removed if it inverts a dequantisation of the same scale."""
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
        return _move_quantize(node.of((value, *node.arguments[1:]), TensorType(tensor_type(value).shape, dtype)), alone)

    if (_is_move(data) or data.op in MAXIMA) and not isinstance(data.arguments[0], Constant):
        return _move_other(data, before(data.arguments[0]))
    if data.op == "concat" and isinstance(data.arguments[0], tuple):
        return data.of((tuple(before(part) for part in data.arguments[0]),), node.type)
    return node


# ---- products ----


class _IntegerOperands(NamedTuple):
    """The operands of a product as integers, where the second operand has no zero points.

    Attributes
    ----------
    data : Value
    scale : Scale
        The scale of `data`.
    weight : Array
        int8.
    factors : Array
        The scale of each output channel, float64: the scale of `data` times that of the weight.
    """

    data: Value
    scale: QuantisationScale
    weight: Array
    factors: Array


@dataclass
class _FusedSteps:
    """The nodes after a product that are fused into it.

    Attributes
    ----------
    last : Node
        The last of these nodes, in the old graph.
    bias : ndarray, optional
    is_rectified : bool
    scale : Scale, optional
        The scale of the integers that the result is quantised to, of the type of `last`.
    """

    last: Node
    bias: Array | None = None
    is_rectified: bool = False
    scale: QuantisationScale | None = None
    nodes: list[Node] = field(default_factory=list)


def fuse_integer_products(graph: Graph) -> Graph:
    """Return a graph whose convolutions and matrix products of integers are anatune's, with the steps after each.

    Fused steps are a bias, a rectifier (its upper bound is the largest integer), and the quantisation of the result.
    """
    readers = graph.only_readers()
    ends: dict[Value, tuple[Node, _FusedSteps]] = {}
    for node in graph.nodes():
        if _is_integer_product(node):
            end = _find_end(node, readers)
            ends[end.last] = node, end
    new: dict[Value, Value] = {}

    def replace(node: Node, old: Node) -> Value:
        if old not in ends:
            return node
        product, end = ends[old]
        anchor = new[product] if end.nodes else node
        assert isinstance(anchor, Node)
        integer_product = _product(anchor, end)
        return node if integer_product is None else reshape_value(integer_product, tensor_type(node).shape)

    return rewrite_with_originals(graph, replace, new)


def _is_integer_product(node: Node) -> bool:
    """Return whether a node is a product of dequantised integers with constant integers."""
    if node.op not in CONVOLUTIONS and node.op != "matmul":
        return False
    data, weight = node.arguments
    scale, weight_scale = scale_of(data), scale_of(weight)
    if scale is None or weight_scale is None or not scale.is_one or not isinstance(weight.arguments[0], Constant):
        return False
    if tensor_type(data.arguments[0]).dtype not in BYTE_DTYPES:
        return False
    if node.op == "matmul":
        return len(tensor_type(weight).shape) == 2 and len(tensor_type(data).shape) >= 2
    return bool(node.attributes["data_layout"] in ("NCW", "NCHW", "NCDHW"))


def _channel_axis(node: Node, shape: tuple[int, ...]) -> int:
    return 1 if node.op in CONVOLUTIONS else len(shape) - 1


def _find_end(node: Node, readers: Mapping[Value, Node]) -> _FusedSteps:
    """Return the steps that are fused into a product: up to a quantisation, or else only a bias and a rectifier."""
    size = tensor_type(node).shape[_channel_axis(node, tensor_type(node).shape)]
    end = unquantised = _FusedSteps(node)
    upper = math.inf
    while (user := readers.get(end.last)) is not None:
        if not isinstance(user.type, TensorType):
            break
        following = _FusedSteps(user, end.bias, end.is_rectified, None, [*end.nodes, user])
        shape = user.type.shape
        is_bounded = end.is_rectified or upper < math.inf
        if user.op == "add" and user.type == end.last.type and end.bias is None and not is_bounded:
            other = user.arguments[user.arguments[0] is end.last]
            following.bias = _constant_channel_values(other, shape, _channel_axis(node, shape))
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
            unquantised = end
    return unquantised


def _constant_channel_values(value: Argument, shape: tuple[int, ...], axis: int) -> Array | None:
    """Return `channel_values` of a constant, which may be dequantised."""
    constant = fold(value) if isinstance(value, Node) else value
    return channel_values(constant, shape, axis)


def _bounds(node: Node) -> tuple[float, float] | None:
    """Return the bounds that a node clips its first argument to, or None if it does something else."""
    if node.op in ("nn.relu", "nn.relu6"):
        return 0.0, 6.0 if node.op == "nn.relu6" else math.inf
    if node.op not in ("maximum", "minimum", "clip"):
        return None
    numbers = [_number(argument) for argument in node.arguments[1:]]
    if any(argument is None for argument in numbers):
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


def _operands(node: Node) -> _IntegerOperands | None:
    """Return a product's operands, or None if the weights minus their zero points do not fit into int8."""
    data, weight = node.arguments
    scale, weight_scale = scale_of(data), scale_of(weight)
    assert scale is not None
    assert weight_scale is not None
    integer_weight = weight.arguments[0].array.astype(np.int32) - weight_scale.zero
    if integer_weight.size and not -128 <= integer_weight.min() <= integer_weight.max() <= 127:
        return None
    axis = 0 if node.op in CONVOLUTIONS else 1
    factors = channel_values(Constant(weight_scale.scale), integer_weight.shape, axis)
    if factors is None:
        return None
    product = factors.astype(np.float64) * float(scale.scale.reshape(()))
    return _IntegerOperands(data.arguments[0], scale, integer_weight.astype(np.int8), product)


def _product(node: Node, end: _FusedSteps) -> Node | None:
    """Return anatune's integer product with the shape of its kernel, or None if it cannot be computed in integers."""
    integers = _operands(node)
    if integers is None:
        return None
    data, weight = integers.data, integers.weight
    kind, zero = tensor_type(node), int(integers.scale.zero.reshape(()))
    attributes: dict[str, object] = {}
    if node.op in CONVOLUTIONS:
        names = ("strides", "padding", "dilation", "groups")
        attributes = {name: node.attributes[name] for name in names} | {"layout": "NCHW"}
        is_padded = any(node.attributes["padding"])
        sums = weight.astype(np.int64).sum(axis=tuple(range(1, weight.ndim)))
    else:
        data = reshape_value(data, (math.prod(kind.shape[:-1]), weight.shape[0]))
        kind = TensorType(tensor_type(data).shape[:1] + weight.shape[1:], kind.dtype)
        is_padded, sums = False, weight.astype(np.int64).sum(axis=0)
    # With padding the zero point fills the border of the image; else its contribution is a part of the bias.
    inner = np.zeros(len(integers.factors)) if is_padded else -float(zero) * sums
    if is_padded and zero:
        attributes["input_zero_point"] = zero
    with np.errstate(all="ignore"):  # a bias divided by a tiny scale overflows and is rejected below
        steps, operands = _steps(end, integers.factors, inner)
        # In float32 the contribution of the zero point would cost digits of the bias, so the kernel subtracts it.
        if inner.any() and steps[:2] == ("scale", "bias") and end.scale is None:
            attributes["input_zero_point"] = zero
            steps, operands = _steps(end, integers.factors, np.zeros_like(inner))
    if any(one.dtype == np.float64 for one in operands):
        return None
    operator = CONVOLUTION if node.op in CONVOLUTIONS else MATMUL
    dtype = "float32"
    if end.scale is not None:
        dtype = tensor_type(end.last).dtype
        attributes["output_zero_point"] = int(end.scale.zero.reshape(()))
    attributes["epilogue"] = steps
    return Node(operator, (data, *map(Constant, (weight, *operands))), kind._replace(dtype=dtype), attributes)


def _steps(end: _FusedSteps, factors: Array, inner: Array) -> tuple[tuple[str, ...], list[Array]]:
    """Return the steps after sums of integers and their operands; a float64 operand does not fit into int32.

    Parameters
    ----------
    factors, inner : ndarray
        The factor and the integer term of each channel.
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
    # The quantised result is at least the zero point. If that is the least integer, a rectifier changes nothing.
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
