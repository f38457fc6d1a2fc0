"""Operators on constants, computed when a model is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anatune.core.activations import ACTIVATIONS
from anatune.graph.nodes import (
    Argument,
    Array,
    Constant,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    frozen,
    tensor_type,
    values_in,
)

__all__ = ["computed", "layer_norm"]

_MOST_ELEMENTS = 1 << 24
"""Largest result that is made of smaller constants: a mask is, a tensor of gigabytes is not."""


def _slice(array: Array, axes: Any, begin: Any, end: Any, strides: Any = None) -> Array:
    cut = [slice(None)] * array.ndim
    steps = strides if strides is not None else (1,) * len(axes)
    for axis, start, stop, step in zip(axes, begin, end, steps, strict=True):
        cut[axis] = slice(start, stop, step)
    return array[tuple(cut)]


def _take(array: Array, indices: Array, axis: int | None = None, **_: Any) -> Array:
    return np.take(array, indices, axis=axis, mode="wrap" if indices.size and indices.min() < 0 else "raise")


def _special(name: str, array: Array, **named: Any) -> Array:
    from scipy import special  # late: models are run without it

    found: Array = getattr(special, name)(array, **named)
    return found


def layer_norm(
    data: Array,
    factor: Array,
    term: Array,
    *,
    epsilon: float,
    axes: Any = (-1,),
    center: bool = True,
    scale: bool = True,
) -> Array:
    """Return data of mean 0 and variance 1 along `axes`, times a factor, plus a term."""
    away = data - data.mean(axis=tuple(axes), keepdims=True)
    scaled = away / np.sqrt((away**2).mean(axis=tuple(axes), keepdims=True) + epsilon)
    return np.asarray(scaled * (factor if scale else 1.0) + (term if center else 0.0))


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    **{name: getattr(np, name) for name in ("abs", "ceil", "cos", "floor", "log", "round", "sign", "sin", "trunc")},
    **{f"nn.{name}": function for name, function in ACTIVATIONS.items()},
    "add": np.add,
    "arange": lambda start, stop, step, **_: np.arange(start, stop, step),
    "astype": lambda array, **_: array,
    "bitwise_and": np.bitwise_and,
    "bitwise_not": np.bitwise_not,
    "bitwise_or": np.bitwise_or,
    "broadcast_to": np.broadcast_to,
    "clip": np.clip,
    "concat": lambda arrays, axis: np.concatenate(arrays, axis),
    "cumsum": lambda array, axis, exclusive: array.cumsum(axis) - (array if exclusive else 0),
    "divide": np.divide,
    "equal": np.equal,
    "erf": lambda array: _special("erf", array),
    "exp": np.exp,
    "expand_dims": lambda array, axis: np.expand_dims(array, tuple(axis)),
    "flip": lambda array, axis: np.flip(array, axis),
    "floor_divide": np.floor_divide,
    "floor_mod": np.mod,
    "full": lambda shape, value, **_: np.full(shape, value),
    "full_like": lambda array, value, **_: np.full(array.shape, value),
    "gather_elements": lambda array, indices, axis: np.take_along_axis(array, indices, axis),
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "index_tensor": lambda array, indices: array[tuple(indices)],
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_not": np.logical_not,
    "logical_or": np.logical_or,
    "matmul": np.matmul,
    "max": lambda array, axis, keepdims: array.max(axis, keepdims=keepdims),
    "maximum": np.maximum,
    "mean": lambda array, axis, keepdims: array.mean(axis, keepdims=keepdims),
    "min": lambda array, axis, keepdims: array.min(axis, keepdims=keepdims),
    "minimum": np.minimum,
    "mod": np.fmod,
    "multiply": np.multiply,
    "negative": np.negative,
    "nn.layer_norm": layer_norm,
    "nn.leakyrelu": lambda array, alpha: np.where(array > 0, array, alpha * array),
    "nn.log_softmax": lambda array, axis: _special("log_softmax", array, axis=axis),
    "nn.softmax": lambda array, axis: _special("softmax", array, axis=axis),
    "not_equal": np.not_equal,
    "ones": lambda shape, **_: np.ones(shape),
    "ones_like": lambda array, **_: np.ones(array.shape),
    "permute_dims": lambda array, axes: np.transpose(array, axes),
    "power": np.power,
    "prod": lambda array, axis, keepdims: array.prod(axis, keepdims=keepdims),
    "repeat": lambda array, repeats, axis: np.repeat(array, repeats, axis),
    "reshape": lambda array, shape: array.reshape(shape),
    "rsqrt": lambda array: 1.0 / np.sqrt(array),
    "sigmoid": lambda array: _special("expit", array),
    "sqrt": np.sqrt,
    "square": np.square,
    "squeeze": lambda array, axis: array.squeeze(axis),
    "stack": lambda arrays, axis: np.stack(arrays, axis),
    "std": lambda array, axis, keepdims: array.std(axis, keepdims=keepdims),
    "strided_slice": lambda array, axes, begin, end, *strides, **_: _slice(array, axes, begin, end, *strides),
    "subtract": np.subtract,
    "sum": lambda array, axis, keepdims: array.sum(axis, keepdims=keepdims),
    "take": _take,
    "tanh": np.tanh,
    "tile": lambda array, repeats: np.tile(array, repeats),
    "tril": lambda array, k, **_: np.tril(array, k),
    "triu": lambda array, k, **_: np.triu(array, k),
    "variance": lambda array, axis, keepdims: array.var(axis, keepdims=keepdims),
    "where": np.where,
    "zeros": lambda shape, **_: np.zeros(shape),
    "zeros_like": lambda array, **_: np.zeros(array.shape),
}
"""Relax operator -> the same on arrays; shapes are tuples, numbers NumPy's, attributes keywords."""

_IGNORED = {"assume_inbound", "dtype", "out_dtype", "vdevice"}
"""Attributes that say nothing which the result's type does not."""

_BY_TYPE = {"full_like", "ones_like", "zeros_like"}
"""Operators that read the type of their first argument only."""


def computed(node: Node) -> Value:
    """Return the constant that a node of constants is, or one without elements, else the node."""
    if not isinstance(node.type, TensorType):
        return node
    if 0 in node.type.shape or _sums_nothing(node):
        return _zeros(node)
    function, arguments = _FUNCTIONS.get(node.op), node.arguments
    if function is None:
        return node
    if node.op in _BY_TYPE and arguments and isinstance(arguments[0], Value):
        assert isinstance(arguments[0].type, TensorType)
        arguments = (Constant(np.broadcast_to(np.zeros((), node.type.dtype), arguments[0].type.shape)), *arguments[1:])
    values = [_known(argument) for argument in arguments]
    known = sum(value.array.size for value in values_in(arguments) if isinstance(value, Constant))
    if any(value is None for value in values) or math.prod(node.type.shape) > max(_MOST_ELEMENTS, known):
        return node
    attributes = {name: value for name, value in node.attributes.items() if name not in _IGNORED}
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(function(*values, **attributes))
        result = found.astype(node.type.dtype, copy=False)
    except (TypeError, ValueError, IndexError, AttributeError):  # an attribute that means more than NumPy knows
        return node
    return Constant(frozen(result)) if result.shape == node.type.shape else node


def _sums_nothing(node: Node) -> bool:
    """Whether a node is a product along an axis without elements, hence zeros."""
    return node.op == "matmul" and all(0 in tensor_type(one).shape for one in node.arguments)


def _zeros(node: Node) -> Value:
    """Return zeros of a node's type; the node itself where NumPy does not have its dtype."""
    kind = tensor_type(node)
    try:
        return Constant(np.broadcast_to(np.zeros((), kind.dtype), kind.shape))
    except TypeError:
        return node


def _known(argument: Argument) -> Any:
    """Return an argument for NumPy; None: it is not known."""
    if isinstance(argument, Constant):
        return argument.array
    if isinstance(argument, Shape):
        return tuple(argument)
    if isinstance(argument, Scalar):
        return argument.value if argument.dtype.startswith("int") else np.dtype(argument.dtype).type(argument.value)
    if isinstance(argument, tuple):
        found = [_known(one) for one in argument]
        return None if any(one is None for one in found) else found
    return None
