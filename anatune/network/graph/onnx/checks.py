"""Checks of ONNX nodes: dtypes of the standard, sizes of results, and attributes that no reader uses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anatune.network.graph.nodes import TensorType, Value
from anatune.network.graph.onnx.call import DTYPES, OnnxCall, RefusedError
from anatune.untyped import onnx

__all__ = ["NUMBERS", "check_results", "check_types", "check_usage"]

NUMBERS = "numbers of 8 bits or more, or booleans"
"""The words for the dtypes of graphs in messages."""
_MOST_ELEMENTS = 1 << 32
"""The most elements of a result; files may ask for any size."""
_WORDS = {"float32": "float", "float64": "double"}
"""NumPy's name of a dtype -> ONNX's name, if they differ."""


def check_types(schema: onnx.defs.OpSchema | None, inputs: Sequence[Value | None]) -> None:
    """Raise `RefusedError` if a node has more inputs than the standard allows, or inputs of other dtypes."""
    if schema is None:
        return
    if len(inputs) > schema.max_input:
        raise RefusedError(f"has {len(inputs)} inputs, expected at most {schema.max_input}")
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    dtype_of: dict[str, str] = {}
    for index, value in enumerate(inputs):
        if value is None or not isinstance(value.type, TensorType) or not schema.inputs:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]  # the last formal input may stand for several
        first = dtype_of.setdefault(formal.type_str, value.type.dtype) if formal.is_homogeneous else value.type.dtype
        if first != value.type.dtype:
            raise RefusedError(f"needs inputs of one type, got {first} and {value.type.dtype} ({formal.name})")
        dtype, words = value.type.dtype, allowed.get(formal.type_str, [formal.type_str])
        if f"tensor({_WORDS.get(dtype, dtype)})" not in words:
            dtypes = ", ".join(sorted(word.removeprefix("tensor(").removesuffix(")") for word in words))
            raise RefusedError(f"needs {dtypes} as input {index} ({formal.name}), got {dtype}")


def check_usage(
    call: OnnxCall, given: Mapping[str, Any], defaults: Mapping[str, Any], unused: Sequence[str | int]
) -> None:
    """Raise `RefusedError` if a node has an attribute or an operand that its reader did not ask for.

    Parameters
    ----------
    given, defaults : mapping
        The attributes that the node has; the default of each attribute.
    unused : sequence of (str or int)
        Names of attributes and indices of operands that change nothing if the reader does not ask for them.
    """
    for name, value in given.items():
        if name not in (*call.attributes.used, *unused) and not np.array_equal(value, defaults[name]):
            raise RefusedError(f"has {name} = {value}, which is not supported; expected {defaults[name]}")
    for index, operand in enumerate(call.inputs):
        if operand is not None and index not in call.used and index not in unused:
            raise RefusedError(f"has an input {index}, which is not supported; expected it to be omitted")


def check_results(results: Sequence[Value]) -> None:
    """Raise `RefusedError` if a result has more elements than fit into memory, or elements that are not numbers."""
    for value in results:
        if isinstance(value.type, TensorType) and value.type.dtype not in DTYPES.values():
            raise RefusedError(f"returns {value.type.dtype}, expected {NUMBERS}")
        if isinstance(value.type, TensorType) and math.prod(value.type.shape) > _MOST_ELEMENTS:
            raise RefusedError(f"returns {math.prod(value.type.shape):,} elements, expected at most {_MOST_ELEMENTS:,}")
