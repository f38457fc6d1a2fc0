"""Find the number of keys of each sequence in the mask of an attention."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, reshape
from anatune.network.graph.nodes import Array, Constant, Node, Value, tensor_type

__all__ = ["Lengths", "lengths_of"]

_MOST_ELEMENTS = 1 << 26
"""The largest mask that is analysed."""


class Lengths(NamedTuple):
    """The number of keys of each sequence, (batch,) int32; if causal, the last keys are those of the queries' tokens.

    `window` is the most keys that a query sees, which are the last ones; 0: all.
    """

    lengths: Value
    is_causal: bool
    window: int


class _AffineNumber(NamedTuple):
    """Integers ``sign * source[indices] + offset``; without a source `sign` is 0."""

    source: Value | None
    sign: int
    indices: Array
    offset: Array


def lengths_of(node: Node) -> Lengths | None:
    """Return the number of keys of each sequence, or None if the mask of an attention expresses anything else.

    The mask has to leave the first keys visible, ``key < lengths[b]``, or, if it is causal, the keys up to that of each
    query, ``key <= lengths[b] - queries + query``. It may also hide the keys before a window.
    """
    attrs = node.attributes
    batch, queries, keys = attrs["batch"], attrs["queries"], attrs["keys"]
    parts = batch * attrs["heads"] * queries // attrs["block"]
    rows, remainder = divmod(tensor_type(node.arguments[3]).shape[0], parts)
    if parts not in (1, batch) or remainder or rows not in (1, queries) or parts * rows * keys > _MOST_ELEMENTS:
        return None
    numbers = [_reshape_number(n, (parts, rows, keys), "reshape") for n in _mask_numbers(node.arguments[3]) or ()]
    first = next((n for n in numbers if n.sign > 0), None)
    before = [n.offset for n in numbers if n.sign < 0]
    if first is None or first.source is None or len(before) > 1:
        return None
    if any(n.source is not first.source or not np.array_equal(n.indices, first.indices) for n in numbers):
        return None
    offset = np.minimum.reduce([n.offset for n in numbers if n.sign > 0])
    extra_keys = offset[:, -1, 0]  # the last query sees the keys below source + more
    step = int(rows > 1 and extra_keys[0] > offset[0, 0, 0])
    last = extra_keys[:, None] + step * np.arange(1 - rows, 1)
    if (step and keys < queries) or not (offset == last[..., None] - np.arange(keys)).all():
        return None
    count = math.prod(tensor_type(first.source).shape)
    if not (first.indices == (np.arange(parts)[:, None, None] if count > 1 else 0)).all() or count not in (1, parts):
        return None
    lengths = reshape(first.source, (count,))
    if extra_keys.any():
        lengths = elementwise("add", cast(lengths, "int64"), constant(extra_keys, "int64"))
    window = 0
    if before:  # the visible keys begin at a fixed distance before the last one
        widths = before[0] - np.arange(keys) + last[..., None] - 1
        window = int(widths[0, 0, 0])
        if window < 1 or not (widths == window).all() or not (step or queries == 1):
            return None
    return Lengths(broadcast(cast(lengths, "int32"), (batch,)), bool(step), window if window < keys else 0)


def _mask_numbers(value: Value) -> list[_AffineNumber] | None:
    """Return the numbers that all have to be positive where a mask hides nothing, or None for other masks."""
    if not isinstance(value, Node):
        return None
    if value.op in ("reshape", "broadcast_to", "astype"):
        return _reshape_numbers(_mask_numbers(value.arguments[0]), value)
    if value.op != "where" or not all(isinstance(constant, Constant) for constant in value.arguments[1:]):
        return None
    zero, hidden = (constant.array for constant in value.arguments[1:])
    is_negated = bool((hidden == 0).all())
    zero, hidden = (hidden, zero) if is_negated else (zero, hidden)
    if not (zero == 0).all() or not (hidden <= np.finfo(np.float32).min / 2).all():
        return None
    numbers = _condition_numbers(value.arguments[0])
    return _reshape_numbers(_negate(numbers) if is_negated else numbers, value)


def _condition_numbers(value: Value) -> list[_AffineNumber] | None:
    """Return the numbers that all have to be positive where comparisons hold, or None if there are no such numbers."""
    if not isinstance(value, Node):
        return None
    if value.op in ("reshape", "broadcast_to"):
        return _reshape_numbers(_condition_numbers(value.arguments[0]), value)
    if value.op == "logical_not":
        return _negate(_condition_numbers(value.arguments[0]))
    if value.op == "logical_and":
        first, second = (_reshape_numbers(_condition_numbers(operand), value) for operand in value.arguments)
        return None if first is None or second is None else [*first, *second]
    if value.op not in ("less", "less_equal", "greater", "greater_equal"):
        return None
    less, more = value.arguments if value.op.startswith("less") else value.arguments[::-1]
    difference = _add_numbers(more, less, -1)
    return None if difference is None else [difference._replace(offset=difference.offset + value.op.endswith("equal"))]


def _negate(numbers: list[_AffineNumber] | None) -> list[_AffineNumber] | None:
    """Return the number that is positive where a single number is not, or None if there are several numbers."""
    if numbers is None or len(numbers) > 1:
        return None
    return [number._replace(sign=-number.sign, offset=1 - number.offset) for number in numbers]


def _add_numbers(first: Value, second: Value, sign: int) -> _AffineNumber | None:
    """Return the sum of two values, or their difference if `sign` is -1, or None if both have a source."""
    operands = _affine_number(first), _affine_number(second)
    if (
        operands[0] is None
        or operands[1] is None
        or (operands[0].source is not None and operands[1].source is not None)
    ):
        return None
    left, right = operands[0], operands[1]._replace(sign=sign * operands[1].sign, offset=sign * operands[1].offset)
    source = left if left.source is not None else right
    shape = np.broadcast_shapes(left.offset.shape, right.offset.shape)
    return _AffineNumber(source.source, source.sign, np.broadcast_to(source.indices, shape), left.offset + right.offset)


def _affine_number(value: Value) -> _AffineNumber | None:
    """Return an integer tensor as a known function of its source."""
    kind = tensor_type(value)
    if kind.dtype not in ("int32", "int64") or math.prod(kind.shape) > _MOST_ELEMENTS:
        return None
    if isinstance(value, Constant):
        return _AffineNumber(None, 0, np.zeros(kind.shape, np.int64), value.array.astype(np.int64))
    if isinstance(value, Node) and value.op in ("reshape", "broadcast_to", "astype"):
        inner = _affine_number(value.arguments[0])
        if inner is not None:
            return _reshape_number(inner, kind.shape, value.op)
    if isinstance(value, Node) and value.op in ("add", "subtract"):
        inner = _add_numbers(value.arguments[0], value.arguments[1], 1 if value.op == "add" else -1)
        if inner is not None:
            return inner
    count = math.prod(kind.shape)
    return _AffineNumber(value, 1, np.arange(count).reshape(kind.shape), np.zeros(kind.shape, np.int64))


def _reshape_numbers(numbers: list[_AffineNumber] | None, value: Node) -> list[_AffineNumber] | None:
    """Return numbers reshaped or broadcast to the shape of a value."""
    op = "reshape" if value.op == "reshape" else "broadcast_to"
    return None if numbers is None else [_reshape_number(number, tensor_type(value).shape, op) for number in numbers]


def _reshape_number(number: _AffineNumber, shape: tuple[int, ...], op: str) -> _AffineNumber:
    """Return a number reshaped or broadcast to another shape."""
    change_shape = np.reshape if op == "reshape" else np.broadcast_to
    return number._replace(indices=change_shape(number.indices, shape), offset=change_shape(number.offset, shape))  # type: ignore[operator]
