"""Find the number of keys of each sequence in the mask of an attention."""

from __future__ import annotations

import itertools
import math
from functools import reduce
from typing import NamedTuple

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, reshape
from anatune.network.graph.nodes import Array, Constant, Node, Value, tensor_type

__all__ = ["Lengths", "lengths_of"]

_MOST_ELEMENTS = 1 << 26
"""The most integers that are analysed; those that dimensions share count once, so a mask may be larger."""


class Lengths(NamedTuple):
    """The number of keys of each sequence, (batch,) int32; if causal, the last keys are those of the queries' tokens.

    `lengths` is None if each sequence has all keys. `window` is the most keys that a query sees, which are the last
    ones; 0: all.
    """

    lengths: Value | None
    is_causal: bool
    window: int


class _AffineNumber(NamedTuple):
    """Integers ``sign * source[indices] + sum(terms)``; without a source `sign` is 0.

    Indices and terms have size 1 in dimensions that do not change them.
    """

    source: Value | None
    sign: int
    indices: Array
    terms: tuple[Array, ...]


class _Limit(NamedTuple):
    """A number that is ``first - step * key`` plus a number of the source, for each sequence and query.

    `first` has shape (parts, queries, 1), or sizes of 1.
    """

    number: _AffineNumber
    first: Array
    step: int


def lengths_of(node: Node) -> Lengths | None:
    """Return the number of keys of each sequence, or None if the mask of an attention expresses anything else.

    The mask has to leave the first keys visible, ``key < lengths[b]``, or, if it is causal, the keys up to that of each
    query, ``key <= lengths[b] - queries + query``. It may also hide the keys before a window.
    """
    attrs = node.attributes
    batch, queries, keys = attrs["batch"], attrs["queries"], attrs["keys"]
    parts = batch * attrs["heads"] * queries // attrs["block"]
    rows, remainder = divmod(tensor_type(node.arguments[3]).shape[0], parts)
    if parts not in (1, batch) or remainder or rows not in (1, queries):
        return None
    shape, old = (parts, rows, keys), tensor_type(node.arguments[3]).shape
    numbers = [_change_shape(n, old, shape) for n in _mask_numbers(node.arguments[3]) or ()]
    limits = [None if number is None else _limit_of(number, keys) for number in numbers]
    ends = [limit for limit in limits if limit is not None and limit.step == 1]
    begins = [limit for limit in limits if limit is not None and limit.step == -1]
    if not ends or len(begins) > 1 or len(ends) + len(begins) < len(numbers):
        return None
    source, indices = ends[0].number.source, ends[0].number.indices
    if any(limit.number.source is not source or (limit.number.indices != indices).any() for limit in ends + begins):
        return None
    first = np.broadcast_to(reduce(np.minimum, [limit.first for limit in ends]), (parts, rows, 1))[..., 0]
    extra_keys = first[:, -1]  # the last query sees the keys below the source's number plus these
    step = int(rows > 1 and extra_keys[0] > first[0, 0])
    last = extra_keys[:, None] + step * np.arange(1 - rows, 1)
    if (step and keys < queries) or (first != last).any():
        return None
    window = 0
    if begins:  # the visible keys begin at a fixed distance before the last one
        widths = begins[0].first[..., 0] + last - 1
        window = int(widths[0, 0])
        if window < 1 or (widths != window).any() or not (step or queries == 1):
            return None
        window = window if window < keys else 0
    if source is None:
        return Lengths(None, bool(step), window) if (extra_keys == keys).all() else None
    count = math.prod(tensor_type(source).shape)
    if count not in (1, parts) or (indices != (np.arange(parts)[:, None, None] if count > 1 else 0)).any():
        return None
    lengths = reshape(source, (count,))
    if extra_keys.any():
        lengths = elementwise("add", cast(lengths, "int64"), constant(extra_keys, "int64"))
    return Lengths(broadcast(cast(lengths, "int32"), (batch,)), bool(step), window)


def _limit_of(number: _AffineNumber, keys: int) -> _Limit | None:
    """Return a number of shape (parts, rows, keys) as a limit of the keys, or None if it is none."""
    first = sum((term[..., :1] for term in number.terms), np.zeros((1, 1, 1), np.int64))
    slopes = [term - term[..., :1] for term in number.terms if term.shape[-1] > 1]
    slope = sum(slopes[1:], slopes[0]) if slopes else np.zeros((1, 1, 1), np.int64)
    step = number.sign or (1 if slope.flat[-1] < 0 else -1)
    return _Limit(number, first, step) if (slope == -step * np.arange(keys)).all() else None


def _mask_numbers(value: Value) -> list[_AffineNumber] | None:
    """Return the numbers that all have to be positive where a mask hides nothing, or None for other masks."""
    if not isinstance(value, Node):
        return None
    if value.op in ("reshape", "broadcast_to", "astype"):
        return _reshape_numbers(_mask_numbers(value.arguments[0]), value)
    if value.op != "where" or not all(isinstance(constant, Constant) for constant in value.arguments[1:]):
        return None
    zero, hidden = (_drop_repeats(constant.array) for constant in value.arguments[1:])
    is_negated = bool((hidden == 0).all())
    zero, hidden = (hidden, zero) if is_negated else (zero, hidden)
    if not (zero == 0).all() or not (hidden <= np.finfo(np.float32).min / 2).all():
        return None
    numbers = _condition_numbers(value.arguments[0])
    return _reshape_numbers(_negate(numbers) if is_negated else numbers, value)


def _condition_numbers(value: Value) -> list[_AffineNumber] | None:
    """Return the numbers that all have to be positive where comparisons hold, or None if there are no such numbers."""
    if isinstance(value, Constant) and _drop_repeats(value.array).all():
        return []
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
    return None if difference is None else [_add_term(difference, int(value.op.endswith("equal")))]


def _negate(numbers: list[_AffineNumber] | None) -> list[_AffineNumber] | None:
    """Return the number that is positive where a single number is not, or None if there are several numbers."""
    if numbers is None or len(numbers) != 1:
        return None
    return [_add_term(_multiply_number(number, -1), 1) for number in numbers]


def _multiply_number(number: _AffineNumber, sign: int) -> _AffineNumber:
    return number._replace(sign=sign * number.sign, terms=tuple(sign * term for term in number.terms))


def _add_term(number: _AffineNumber, term: int) -> _AffineNumber:
    return number._replace(terms=(*number.terms, np.full((1,) * number.indices.ndim, term, np.int64)))


def _add_numbers(first: Value, second: Value, sign: int) -> _AffineNumber | None:
    """Return the sum of two values, or their difference if `sign` is -1, or None if both have a source."""
    operands = _affine_number(first), _affine_number(second)
    if (
        operands[0] is None
        or operands[1] is None
        or (operands[0].source is not None and operands[1].source is not None)
    ):
        return None
    left, right = operands[0], _multiply_number(operands[1], sign)
    rank = max(left.indices.ndim, right.indices.ndim)
    left, right = _align(left, rank), _align(right, rank)
    source = left if left.source is not None else right
    return source._replace(terms=left.terms + right.terms)


def _affine_number(value: Value) -> _AffineNumber | None:
    """Return an integer tensor as a known function of its source."""
    kind = tensor_type(value)
    if kind.dtype not in ("int32", "int64"):
        return None
    if isinstance(value, Constant):
        array = _drop_repeats(value.array)
        return _AffineNumber(None, 0, np.zeros((1,) * array.ndim, np.int64), (array.astype(np.int64),))
    if isinstance(value, Node) and value.op in ("reshape", "broadcast_to", "astype"):
        inner = _affine_number(value.arguments[0])
        if inner is not None:
            return _reshape_number(inner, value)
    if isinstance(value, Node) and value.op in ("add", "subtract"):
        inner = _add_numbers(value.arguments[0], value.arguments[1], 1 if value.op == "add" else -1)
        if inner is not None:
            return inner
    count = math.prod(kind.shape)
    return _AffineNumber(value, 1, np.arange(count).reshape(kind.shape), ()) if count <= _MOST_ELEMENTS else None


def _drop_repeats(array: Array) -> Array:
    """Return an array with size 1 in the dimensions along which it repeats itself in memory."""
    return array[tuple(slice(1 if step == 0 else None) for step in array.strides)]


def _reshape_numbers(numbers: list[_AffineNumber] | None, value: Node) -> list[_AffineNumber] | None:
    """Return numbers reshaped or broadcast to the shape of a value; None if one of them becomes too large."""
    results = [_reshape_number(number, value) for number in numbers or ()]
    return None if numbers is None or None in results else results  # type: ignore[return-value]


def _reshape_number(number: _AffineNumber, value: Node) -> _AffineNumber | None:
    """Return a number reshaped or broadcast to the shape of a value; None if it becomes too large."""
    shape = tensor_type(value).shape
    if value.op == "reshape":
        return _change_shape(number, tensor_type(value.arguments[0]).shape, shape)
    return _align(number, len(shape))


def _align(number: _AffineNumber, rank: int) -> _AffineNumber:
    """Return a number with leading dimensions of size 1, so that its arrays have a rank."""
    indices, *terms = (a.reshape((1,) * (rank - a.ndim) + a.shape) for a in (number.indices, *number.terms))
    return number._replace(indices=indices, terms=tuple(terms))


def _change_shape(number: _AffineNumber, old: tuple[int, ...], new: tuple[int, ...]) -> _AffineNumber | None:
    """Return a number reshaped; dimensions that both shapes end with keep a size of 1. None if it becomes too large."""
    pairs = zip(old[::-1], new[::-1], strict=False)
    count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    arrays = []
    for array in (number.indices, *number.terms):
        ending = array.shape[len(old) - count :]
        if math.prod(old[: len(old) - count]) * math.prod(ending) > _MOST_ELEMENTS:
            return None
        whole = np.broadcast_to(array, (*old[: len(old) - count], *ending))
        arrays.append(whole.reshape(*new[: len(new) - count], *ending))
    return number._replace(indices=arrays[0], terms=tuple(arrays[1:]))
