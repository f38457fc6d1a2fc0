"""How many keys sequences have, where a mask says no more than that."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, reshape
from anatune.network.graph.nodes import Array, Constant, Node, Value, tensor_type

__all__ = ["Lengths", "lengths_of"]

_MOST_ELEMENTS = 1 << 26
"""Of a mask that is looked at."""


class Lengths(NamedTuple):
    """How many keys each sequence has: (batch,) int32; causal: the last ones are those of the queries' tokens.

    `window`: keys that a query sees at most, the last ones; 0: all.
    """

    lengths: Value
    is_causal: bool
    window: int


class _Number(NamedTuple):
    """Integers ``sign * source[place] + offset``; source None: sign is 0."""

    source: Value | None
    sign: int
    place: Array
    offset: Array


def lengths_of(node: Node) -> Lengths | None:
    """Return how many keys each sequence has where the mask of an attention says no more than that.

    It hides the keys from a number on, ``key < lengths[b]``, or, under a causal mask, the keys behind each query's own,
    ``key <= lengths[b] - queries + query``, and perhaps those before a window.
    """
    own = node.attributes
    batch, queries, keys = own["batch"], own["queries"], own["keys"]
    parts = batch * own["heads"] * queries // own["block"]
    rows, odd = divmod(tensor_type(node.arguments[3]).shape[0], parts)
    if parts not in (1, batch) or odd or rows not in (1, queries) or parts * rows * keys > _MOST_ELEMENTS:
        return None
    found = [_spread(one, (parts, rows, keys), "reshape") for one in _mask(node.arguments[3]) or ()]
    first = next((one for one in found if one.sign > 0), None)
    before = [one.offset for one in found if one.sign < 0]
    if first is None or first.source is None or len(before) > 1:
        return None
    if any(one.source is not first.source or not np.array_equal(one.place, first.place) for one in found):
        return None
    offset = np.minimum.reduce([one.offset for one in found if one.sign > 0])
    more = offset[:, -1, 0]  # what the keys of a last query are fewer than, beside the source
    step = int(rows > 1 and more[0] > offset[0, 0, 0])
    last = more[:, None] + step * np.arange(1 - rows, 1)
    if (step and keys < queries) or not (offset == last[..., None] - np.arange(keys)).all():
        return None
    count = math.prod(tensor_type(first.source).shape)
    if not (first.place == (np.arange(parts)[:, None, None] if count > 1 else 0)).all() or count not in (1, parts):
        return None
    lengths = reshape(first.source, (count,))
    if more.any():
        lengths = elementwise("add", cast(lengths, "int64"), constant(more, "int64"))
    window = 0
    if before:  # the keys that are seen are those from a number on that is as much less
        wide = before[0] - np.arange(keys) + last[..., None] - 1
        window = int(wide[0, 0, 0])
        if window < 1 or not (wide == window).all() or not (step or queries == 1):
            return None
    return Lengths(broadcast(cast(lengths, "int32"), (batch,)), bool(step), window if window < keys else 0)


def _mask(value: Value) -> list[_Number] | None:
    """Return what is positive, all of it, where a mask of numbers hides nothing; None: it is another mask."""
    if not isinstance(value, Node):
        return None
    if value.op in ("reshape", "broadcast_to", "astype"):
        return _all_spread(_mask(value.arguments[0]), value)
    if value.op != "where" or not all(isinstance(one, Constant) for one in value.arguments[1:]):
        return None
    zero, hidden = (one.array for one in value.arguments[1:])
    is_turned = bool((hidden == 0).all())
    zero, hidden = (hidden, zero) if is_turned else (zero, hidden)
    if not (zero == 0).all() or not (hidden <= np.finfo(np.float32).min / 2).all():
        return None
    found = _condition(value.arguments[0])
    return _all_spread(_negated(found) if is_turned else found, value)


def _condition(value: Value) -> list[_Number] | None:
    """Return what is positive, all of it, where comparisons hold; None: they are none of integers known but for one."""
    if not isinstance(value, Node):
        return None
    if value.op in ("reshape", "broadcast_to"):
        return _all_spread(_condition(value.arguments[0]), value)
    if value.op == "logical_not":
        return _negated(_condition(value.arguments[0]))
    if value.op == "logical_and":
        first, second = (_all_spread(_condition(one), value) for one in value.arguments)
        return None if first is None or second is None else [*first, *second]
    if value.op not in ("less", "less_equal", "greater", "greater_equal"):
        return None
    less, more = value.arguments if value.op.startswith("less") else value.arguments[::-1]
    found = _sum(more, less, -1)
    return None if found is None else [found._replace(offset=found.offset + value.op.endswith("equal"))]


def _negated(numbers: list[_Number] | None) -> list[_Number] | None:
    """Return what is positive where a number is not; None: there are several."""
    if numbers is None or len(numbers) > 1:
        return None
    return [one._replace(sign=-one.sign, offset=1 - one.offset) for one in numbers]


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


def _all_spread(numbers: list[_Number] | None, value: Node) -> list[_Number] | None:
    """Return numbers in the shape of a value: the reshape of what they are, or what follows from them."""
    how = "reshape" if value.op == "reshape" else "broadcast_to"
    return None if numbers is None else [_spread(one, tensor_type(value).shape, how) for one in numbers]


def _spread(number: _Number, shape: tuple[int, ...], op: str) -> _Number:
    """Return a number in another shape: of as many elements, or repeated."""
    spread = np.reshape if op == "reshape" else np.broadcast_to
    return number._replace(place=spread(number.place, shape), offset=spread(number.offset, shape))  # type: ignore[operator]
