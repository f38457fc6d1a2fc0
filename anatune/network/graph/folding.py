"""Compute operators: fold constants when a network is compiled, and compute float64 results for a check.

Products are not handled here: `anatune.measure.run.reference` computes them from their workloads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from anatune.core.sizes import is_run_time
from anatune.network.graph import meanings
from anatune.network.graph.nodes import (
    HALVES,
    Argument,
    Array,
    Constant,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    is_unknown,
    iterate_values,
    make_unknown,
    map_argument,
    tensor_type,
)
from anatune.network.graph.operators import DIVISIONS, Operator, find_operator

__all__ = ["concatenate", "evaluate_node", "fold"]

_MOST_ELEMENTS = 1 << 26
"""The largest result that is folded from smaller constants: the mask of 8,192 tokens, not a tensor of gigabytes."""
_IGNORED = {"assume_inbound", "dtype", "out_dtype", "vdevice"}
"""Attributes that the result's type already expresses."""


def fold(node: Node) -> Value:
    """Return the constant result of a node whose arguments are constants or whose result is empty, else the node.

    In 16 bits only results that need no rounding are folded: see `anatune.network.graph.passes.precision`.
    """
    if not isinstance(node.type, TensorType) or is_run_time(tuple(node.type.shape)):
        return node
    if 0 in node.type.shape or _sums_nothing(node):
        return _zeros(node)
    operator, arguments = find_operator(node), node.arguments
    if operator.compute is None or operator.is_own:
        return node
    if operator.reads_type_only and arguments and isinstance(arguments[0], Value):
        assert isinstance(arguments[0].type, TensorType)
        arguments = (Constant(np.broadcast_to(np.zeros((), node.type.dtype), arguments[0].type.shape)), *arguments[1:])
    if any(isinstance(value, Constant) and is_unknown(value.array) for value in iterate_values(arguments)):
        is_constant = all(isinstance(value, Constant) for value in iterate_values(arguments))
        return Constant(make_unknown(node.type)) if is_constant else node
    is_half = node.type.dtype in HALVES
    values = [_numpy_argument(argument, is_half=is_half) for argument in arguments]
    constant_elements = sum(value.array.size for value in iterate_values(arguments) if isinstance(value, Constant))
    size = math.prod(node.type.shape)
    compute = operator.compute
    if node.op in DIVISIONS and "int" in node.type.dtype and all(value is not None for value in values):
        if not np.asarray(values[1]).all():
            return node  # the division by zero is reported at run time
        compute = meanings.whole_quotients if node.op == "divide" else compute
    if all(isinstance(argument, Constant) for argument in arguments) and _is_elementwise(operator):
        values, size = _drop_shared_repeats(values)  # type: ignore[arg-type]
    is_large = size > max(_MOST_ELEMENTS, constant_elements) and node.op != "broadcast_to"  # a broadcast is a view
    if is_large or any(value is None for value in values):
        return node
    attributes = {name: value for name, value in node.attributes.items() if name not in _IGNORED}
    try:
        with np.errstate(all="ignore"):
            exact = np.asarray(compute(*values, **attributes))
            result = exact.astype(node.type.dtype, copy=False)
            if is_half and not np.array_equal(result.astype(exact.dtype), exact, equal_nan=exact.dtype.kind == "f"):
                return node
    except (TypeError, ValueError, IndexError, AttributeError):  # NumPy does not know this attribute
        return node
    if size < math.prod(node.type.shape):
        result = np.broadcast_to(result, node.type.shape)
    return Constant(result) if result.shape == node.type.shape else node


def _is_elementwise(operator: Operator) -> bool:
    compute = operator.compute
    return (isinstance(compute, np.ufunc) and compute.signature is None) or operator.name in ("astype", "where")


def _drop_shared_repeats(values: Sequence[Array]) -> tuple[list[object], int]:
    """Return arrays without the repetitions that all of them share along a dimension, and the number of elements."""
    broadcast = np.broadcast_arrays(*values)
    slices = tuple(
        slice(1 if all(array.strides[axis] == 0 for array in broadcast) else None) for axis in range(broadcast[0].ndim)
    )  # fmt: skip
    return [array[slices] for array in broadcast], broadcast[0][slices].size


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """Return the concatenation of arrays, which is an unknown array (`make_unknown`) if all of them are."""
    if not all(map(is_unknown, arrays)):
        return np.concatenate(arrays, axis=axis)
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    return make_unknown(TensorType(tuple(shape), arrays[0].dtype.name))


def _sums_nothing(node: Node) -> bool:
    """Return whether a node is a matrix product over an axis without elements, hence zeros."""
    return node.op == "matmul" and all(0 in tensor_type(operand).shape for operand in node.arguments)


def _zeros(node: Node) -> Value:
    """Return zeros of a node's type, or the node itself if NumPy does not have its dtype."""
    kind = tensor_type(node)
    try:
        return Constant(np.broadcast_to(np.zeros((), kind.dtype), kind.shape))
    except TypeError:
        return node


def _numpy_argument(argument: Argument, *, is_half: bool = False) -> object:
    """Return an argument for NumPy, 16-bit floats in float32 if `is_half`; None if it is unknown."""
    if isinstance(argument, Constant):
        return (
            argument.array.astype(np.float32) if is_half and tensor_type(argument).dtype in HALVES else argument.array
        )
    if isinstance(argument, Shape):
        return tuple(argument)
    if isinstance(argument, Scalar):
        if is_run_time(argument.value):
            return None
        return argument.value if argument.dtype.startswith("int") else np.dtype(argument.dtype).type(argument.value)
    if isinstance(argument, tuple):
        elements = [_numpy_argument(element, is_half=is_half) for element in argument]
        return None if any(element is None for element in elements) else elements
    return None


def evaluate_node(node: Node, operands: Mapping[Value, Array]) -> Array | None:
    """Return a node's result with floating-point numbers in float64, or None if its operator cannot be computed here.

    Parameters
    ----------
    operands : mapping of Value to ndarray
        The array of each value that the node reads and that is not a constant.
    """

    def in_float64(argument: Argument) -> Argument:
        if isinstance(argument, Value):
            array = argument.array if isinstance(argument, Constant) else operands[argument]
            return Constant(array.astype(np.float64) if "float" in array.dtype.name else array)
        is_number = isinstance(argument, Scalar) and "float" in argument.dtype
        return argument._replace(dtype="float64") if is_number else argument

    if not isinstance(node.type, TensorType):
        return None
    arguments = map_argument(node.arguments, in_float64)
    operator = find_operator(node)
    if operator.is_own and operator.compute is not None:
        with np.errstate(all="ignore"):
            return np.asarray(operator.compute(*(operand.array for operand in arguments), **node.attributes))
    kind = TensorType(node.type.shape, "float64" if "float" in node.type.dtype else node.type.dtype)
    result = fold(node.of(arguments, kind))
    return result.array if isinstance(result, Constant) else None
