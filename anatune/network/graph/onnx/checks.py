"""What nodes of ONNX models are held to: dtypes of the standard, results that fit, nothing that no reader asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anatune.network.graph.nodes import TensorType, Value
from anatune.network.graph.onnx.call import DTYPES, Call, RefusedError
from anatune.untyped import onnx

__all__ = ["NUMBERS", "check_results", "check_types", "check_used"]

NUMBERS = "numbers of 8 bits or more, or truth values"
"""What messages call the dtypes of graphs."""
_MOST_ELEMENTS = 1 << 32
"""Of a result: files may ask for any."""
_WORDS = {"float32": "float", "float64": "double"}
"""NumPy's name of a dtype -> ONNX's, where that is another one."""


def check_types(schema: onnx.defs.OpSchema | None, inputs: Sequence[Value | None]) -> None:
    """Raise a `RefusedError` where there are more inputs than the standard allows, or one has another dtype."""
    if schema is None:
        return
    if len(inputs) > schema.max_input:
        raise RefusedError(f"has {len(inputs)} inputs, expected {schema.max_input} at most")
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    seen: dict[str, str] = {}
    for place, value in enumerate(inputs):
        if value is None or not isinstance(value.type, TensorType) or not schema.inputs:
            continue
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]  # the last one may be of any number
        first = seen.setdefault(formal.type_str, value.type.dtype) if formal.is_homogeneous else value.type.dtype
        if first != value.type.dtype:
            raise RefusedError(f"takes inputs of one type, got {first} and {value.type.dtype} ({formal.name})")
        dtype, words = value.type.dtype, allowed.get(formal.type_str, [formal.type_str])
        if f"tensor({_WORDS.get(dtype, dtype)})" not in words:
            known = ", ".join(sorted(word.removeprefix("tensor(").removesuffix(")") for word in words))
            raise RefusedError(f"takes {known} as input {place} ({formal.name}), got {dtype}")


def check_used(call: Call, given: Mapping[str, Any], defaults: Mapping[str, Any], unused: Sequence[str | int]) -> None:
    """Raise a `RefusedError` where a node has an attribute or an operand that its reader did not ask for.

    Parameters
    ----------
    given, defaults : mapping
        Attributes that the node has; what each is where it is left out.
    unused : sequence of (str or int)
        Attributes and places of operands that change nothing where the reader does not ask for them.
    """
    for name, value in given.items():
        if name not in (*call.attributes.used, *unused) and not np.array_equal(value, defaults[name]):
            raise RefusedError(f"has {name} = {value}, which is not supported; expected {defaults[name]}")
    for place, operand in enumerate(call.inputs):
        if operand is not None and place not in call.used and place not in unused:
            raise RefusedError(f"has an input {place}, which is not supported; expected it to be left out")


def check_results(results: Sequence[Value]) -> None:
    """Raise a `RefusedError` where a result has more elements than any machine's memory, or other ones than numbers."""
    for value in results:
        if isinstance(value.type, TensorType) and value.type.dtype not in DTYPES.values():
            raise RefusedError(f"makes {value.type.dtype}, expected {NUMBERS}")
        if isinstance(value.type, TensorType) and math.prod(value.type.shape) > _MOST_ELEMENTS:
            raise RefusedError(f"makes {math.prod(value.type.shape):,} elements, expected {_MOST_ELEMENTS:,} at most")
