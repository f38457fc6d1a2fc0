"""Operators on known values: constants, computed when a model is compiled, and in float64, which a check compares with.

Products are no part of this: `anatune.measure.run.reference` computes them from their workloads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from anatune.core.sizes import at_run_time
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
    mapped,
    tensor_type,
    unknown,
    values_in,
)
from anatune.network.graph.operators import DIVISIONS, Operator, operator_of

__all__ = ["computed", "concatenated", "value_of"]

_MOST_ELEMENTS = 1 << 24
"""Largest result that is made of smaller constants: a mask is, a tensor of gigabytes is not."""
_IGNORED = {"assume_inbound", "dtype", "out_dtype", "vdevice"}
"""Attributes that say nothing which the result's type does not."""


def computed(node: Node) -> Value:
    """Return the constant that a node of constants is, or one without elements, else the node.

    In 16 bits that is only what needs no rounding: see `anatune.network.graph.passes.precision`.
    """
    if not isinstance(node.type, TensorType) or at_run_time(tuple(node.type.shape)):
        return node
    if 0 in node.type.shape or _sums_nothing(node):
        return _zeros(node)
    operator, arguments = operator_of(node), node.arguments
    if operator.compute is None or operator.is_own:
        return node
    if operator.reads_type_only and arguments and isinstance(arguments[0], Value):
        assert isinstance(arguments[0].type, TensorType)
        arguments = (Constant(np.broadcast_to(np.zeros((), node.type.dtype), arguments[0].type.shape)), *arguments[1:])
    if any(isinstance(value, Constant) and is_unknown(value.array) for value in values_in(arguments)):
        is_constant = all(isinstance(value, Constant) for value in values_in(arguments))
        return Constant(unknown(node.type)) if is_constant else node
    is_half = node.type.dtype in HALVES
    values = [_known(argument, is_half=is_half) for argument in arguments]
    known = sum(value.array.size for value in values_in(arguments) if isinstance(value, Constant))
    size = math.prod(node.type.shape)
    compute = operator.compute
    if node.op in DIVISIONS and "int" in node.type.dtype and all(value is not None for value in values):
        if not np.asarray(values[1]).all():
            return node  # an error where it is computed
        compute = meanings.whole_quotients if node.op == "divide" else compute
    if all(isinstance(argument, Constant) for argument in arguments) and _is_of_elements(operator):
        values, size = _once(values)  # type: ignore[arg-type]
    is_large = size > max(_MOST_ELEMENTS, known) and node.op != "broadcast_to"  # which is a view
    if is_large or any(value is None for value in values):
        return node
    attributes = {name: value for name, value in node.attributes.items() if name not in _IGNORED}
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(compute(*values, **attributes))
            result = found.astype(node.type.dtype, copy=False)
            if is_half and not np.array_equal(result.astype(found.dtype), found, equal_nan=found.dtype.kind == "f"):
                return node
    except (TypeError, ValueError, IndexError, AttributeError):  # an attribute that means more than NumPy knows
        return node
    if size < math.prod(node.type.shape):
        result = np.broadcast_to(result, node.type.shape)
    return Constant(result) if result.shape == node.type.shape else node


def _is_of_elements(operator: Operator) -> bool:
    compute = operator.compute
    return (isinstance(compute, np.ufunc) and compute.signature is None) or operator.name in ("astype", "where")


def _once(values: Sequence[Array]) -> tuple[list[object], int]:
    """Return arrays without what all repeat along a dimension, as masks do along sequences, and how many are left."""
    spread = np.broadcast_arrays(*values)
    kept = tuple(
        slice(1 if all(one.strides[axis] == 0 for one in spread) else None) for axis in range(spread[0].ndim)
    )  # fmt: skip
    return [one[kept] for one in spread], spread[0][kept].size


def concatenated(arrays: Sequence[Array], axis: int) -> Array:
    """Return arrays one behind the other."""
    if not all(map(is_unknown, arrays)):
        return np.concatenate(arrays, axis=axis)
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    return unknown(TensorType(tuple(shape), arrays[0].dtype.name))


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


def _known(argument: Argument, *, is_half: bool = False) -> object:
    """Return an argument for NumPy, in float32 what has 16 bits if that `is_half`; None: it is not known."""
    if isinstance(argument, Constant):
        return (
            argument.array.astype(np.float32) if is_half and tensor_type(argument).dtype in HALVES else argument.array
        )
    if isinstance(argument, Shape):
        return tuple(argument)
    if isinstance(argument, Scalar):
        if at_run_time(argument.value):
            return None
        return argument.value if argument.dtype.startswith("int") else np.dtype(argument.dtype).type(argument.value)
    if isinstance(argument, tuple):
        found = [_known(one, is_half=is_half) for one in argument]
        return None if any(one is None for one in found) else found
    return None


def value_of(node: Node, operands: Mapping[Value, Array]) -> Array | None:
    """Return a node's result, floating-point numbers in float64; None: what its operator computes is not known here.

    Parameters
    ----------
    operands : mapping of Value to ndarray
        Each value that the node reads and that is no constant.
    """

    def in_float64(argument: Argument) -> Argument:
        if isinstance(argument, Value):
            array = argument.array if isinstance(argument, Constant) else operands[argument]
            return Constant(array.astype(np.float64) if "float" in array.dtype.name else array)
        is_number = isinstance(argument, Scalar) and "float" in argument.dtype
        return argument._replace(dtype="float64") if is_number else argument

    if not isinstance(node.type, TensorType):
        return None
    arguments = mapped(node.arguments, in_float64)
    operator = operator_of(node)
    if operator.is_own and operator.compute is not None:
        with np.errstate(all="ignore"):
            return np.asarray(operator.compute(*(one.array for one in arguments), **node.attributes))
    kind = TensorType(node.type.shape, "float64" if "float" in node.type.dtype else node.type.dtype)
    found = computed(node.of(arguments, kind))
    return found.array if isinstance(found, Constant) else None
