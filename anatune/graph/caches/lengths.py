"""How many keys sequences have, where a mask says no more than that."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.graph.building import broadcast, cast, constant, elementwise, reshape
from anatune.graph.nodes import Array, Constant, Node, Value, tensor_type

__all__ = ["Lengths", "lengths_of"]

_MOST_ELEMENTS = 1 << 26
"""Of a mask that is looked at."""


class Lengths(NamedTuple):
    """How many keys each sequence has: (batch,) int32; causal: the last ones are those of the queries' tokens."""

    lengths: Value
    is_causal: bool


class _Number(NamedTuple):
    """Integers ``sign * source[place] + offset``; source None: sign is 0."""

    source: Value | None
    sign: int
    place: Array
    offset: Array


def lengths_of(node: Node) -> Lengths | None:
    """Return how many keys each sequence has where the mask of an attention says no more than that.

    It hides the keys from a number on, of one query ``key < lengths[b]``, or, under a causal mask, the keys behind each
    query's own: ``key <= lengths[b] - queries + query``.
    """
    own = node.attributes
    batch, queries, keys = own["batch"], own["queries"], own["keys"]
    parts = batch * own["heads"] * queries // own["block"]
    rows, odd = divmod(tensor_type(node.arguments[3]).shape[0], parts)
    if parts not in (1, batch) or odd or rows not in (1, queries) or parts * rows * keys > _MOST_ELEMENTS:
        return None
    found = _mask(node.arguments[3])
    if found is None or found.source is None or found.sign < 0:
        return None
    place, offset = (one.reshape(parts, rows, keys) for one in (found.place, found.offset))
    more = offset[:, -1, 0]  # what the keys of a last query are fewer than, beside the source
    step = int(rows > 1 and more[0] > offset[0, 0, 0])
    last = more[:, None] + step * np.arange(1 - rows, 1)
    if (step and keys < queries) or not (offset == last[..., None] - np.arange(keys)).all():
        return None
    count = math.prod(tensor_type(found.source).shape)
    if not (place == (np.arange(parts)[:, None, None] if count > 1 else 0)).all() or count not in (1, parts):
        return None
    lengths = reshape(found.source, (count,))
    if more.any():
        lengths = elementwise("add", cast(lengths, "int64"), constant(more, "int64"))
    return Lengths(broadcast(cast(lengths, "int32"), (batch,)), bool(step))


def _mask(value: Value) -> _Number | None:
    """Return what is positive where a mask of numbers hides nothing; None: it is another mask."""
    if not isinstance(value, Node):
        return None
    if value.op in ("reshape", "broadcast_to", "astype"):
        inner = _mask(value.arguments[0])
        return None if inner is None else _spread(inner, tensor_type(value).shape, value.op)
    if value.op != "where" or not all(isinstance(one, Constant) for one in value.arguments[1:]):
        return None
    zero, hidden = (one.array for one in value.arguments[1:])
    is_turned = bool((hidden == 0).all())
    zero, hidden = (hidden, zero) if is_turned else (zero, hidden)
    if not (zero == 0).all() or not (hidden <= np.finfo(np.float32).min / 2).all():
        return None
    found = _condition(value.arguments[0])
    found = found if found is None or not is_turned else _negated(found)
    return None if found is None else _spread(found, tensor_type(value).shape, "broadcast_to")


def _condition(value: Value) -> _Number | None:
    """Return what is positive where a comparison holds; None: it is none of integers that are known but for one."""
    if not isinstance(value, Node):
        return None
    if value.op in ("reshape", "broadcast_to"):
        inner = _condition(value.arguments[0])
        return None if inner is None else _spread(inner, tensor_type(value).shape, value.op)
    if value.op == "logical_not":
        inner = _condition(value.arguments[0])
        return None if inner is None else _negated(inner)
    if value.op == "logical_and":
        return _both(*map(_condition, value.arguments))
    if value.op not in ("less", "less_equal", "greater", "greater_equal"):
        return None
    less, more = value.arguments if value.op.startswith("less") else value.arguments[::-1]
    found = _sum(more, less, -1)
    return found if found is None or not value.op.endswith("equal") else found._replace(offset=found.offset + 1)


def _both(first: _Number | None, second: _Number | None) -> _Number | None:
    """Return what is positive where two numbers are; None: they follow from different ones, or in different ways."""
    if first is None or second is None or first[:2] != second[:2]:
        return None
    place, other = np.broadcast_arrays(first.place, second.place)
    same = np.array_equal(place, other)
    return first._replace(place=place, offset=np.minimum(first.offset, second.offset)) if same else None


def _negated(number: _Number) -> _Number:
    """Return what is positive where a number is not."""
    return number._replace(sign=-number.sign, offset=1 - number.offset)


def _sum(first: Value, second: Value, sign: int) -> _Number | None:
    """Return a value and another one added to it, or subtracted."""
    found = _number(first), _number(second)
    if found[0] is None or found[1] is None or (found[0].source is not None and found[1].source is not None):
        return None
    one, other = found[0], found[1]._replace(sign=sign * found[1].sign, offset=sign * found[1].offset)
    source = one if one.source is not None else other
    shape = np.broadcast_shapes(one.offset.shape, other.offset.shape)
    return _Number(source.source, source.sign, np.broadcast_to(source.place, shape), one.offset + other.offset)


def _number(value: Value) -> _Number | None:
    """Return an integer tensor as one that is known but for its source."""
    kind = tensor_type(value)
    if kind.dtype not in ("int32", "int64") or math.prod(kind.shape) > _MOST_ELEMENTS:
        return None
    if isinstance(value, Constant):
        return _Number(None, 0, np.zeros(kind.shape, np.int64), value.array.astype(np.int64))
    if isinstance(value, Node) and value.op in ("reshape", "broadcast_to", "astype"):
        inner = _number(value.arguments[0])
        if inner is not None:
            return _spread(inner, kind.shape, value.op)
    if isinstance(value, Node) and value.op in ("add", "subtract"):
        inner = _sum(value.arguments[0], value.arguments[1], 1 if value.op == "add" else -1)
        if inner is not None:
            return inner
    count = math.prod(kind.shape)
    return _Number(value, 1, np.arange(count).reshape(kind.shape), np.zeros(kind.shape, np.int64))


def _spread(number: _Number, shape: tuple[int, ...], op: str) -> _Number:
    """Return a number in another shape: of as many elements, or repeated."""
    spread = np.reshape if op == "reshape" else np.broadcast_to
    return number._replace(place=spread(number.place, shape), offset=spread(number.offset, shape))  # type: ignore[operator]
