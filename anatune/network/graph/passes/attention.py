"""Attention as one kernel: scores, softmax and what it weighs, without the scores in memory and without transposes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from anatune.core.generation import MOST_ELEMENTS
from anatune.network.graph.building import elementwise
from anatune.network.graph.caches.lengths import lengths_of
from anatune.network.graph.caches.pages import pages_of, stored
from anatune.network.graph.nodes import Constant, Graph, Node, TensorType, Value, rewritten_beside, tensor_type
from anatune.network.graph.operators import ATTENTION, BATCH_MATMUL, SOFTMAX
from anatune.network.graph.passes.products import with_joined_products
from anatune.network.graph.passes.simplify import permuted, reshaped, simplified, source_of
from anatune.network.graph.strided import Place, View, view_of

__all__ = ["StridedAttention", "attention_of", "with_attention", "without_mask"]

_DIMENSIONS = 4
"""Of what has batch, heads, rows and columns."""


def with_attention(graph: Graph, pays: Callable[[Node], bool]) -> Graph:
    """Return a graph whose attentions are kernels, and whose products of the same data that feed them are one.

    An attention is two products with nothing fused into them and a softmax between, none of which anything else reads.
    Queries, keys and values may be columns of matrices in any order of batch, heads and rows; what was repeated for
    groups of heads is read from before that. Products are joined where attentions alone read them: nothing else reads
    columns of a wider matrix without a copy.

    Parameters
    ----------
    graph : Graph
        Behind `passes.order.CPU_KERNELS`.
    pays : callable
        Whether an attention becomes a kernel.
    """
    uses = graph.uses()
    made = 0

    def replace(own: Node, old: Node) -> Value:
        if not _is_attention(old, uses):
            return own
        softmax = source_of(own.arguments[0])
        assert isinstance(softmax, Node)
        scores = source_of(softmax.arguments[0])
        assert isinstance(scores, Node)
        attention = _attention(scores, softmax, own)
        if attention is None or not pays(attention):
            return own
        nonlocal made
        made += 1
        batch, heads, queries, size = (
            attention.attributes[name] for name in ("batch", "heads", "queries", "value_dim")
        )
        turned = permuted(reshaped(attention, (batch, queries, heads, size)), (0, 2, 1, 3))
        return reshaped(turned, tensor_type(own).shape)

    fused = rewritten_beside(graph, replace)
    return with_joined_products(simplified(fused)) if made else graph


def _is_attention(node: Node, uses: Counter[Value]) -> bool:
    """Whether an attention ends in a node: a product of a softmax of another product that nothing else reads."""

    def alone(value: Value, op: str) -> Node | None:
        while isinstance(value, Node) and value.op == "reshape" and uses[value] == 1:
            value = value.arguments[0]
        return value if isinstance(value, Node) and value.op == op and uses[value] == 1 else None

    if node.op != BATCH_MATMUL or node.attributes["epilogue"]:
        return False
    softmax = alone(node.arguments[0], SOFTMAX)
    scores = alone(softmax.arguments[0], BATCH_MATMUL) if softmax is not None else None
    if softmax is None or scores is None or scores.attributes["epilogue"]:
        return False
    return tensor_type(scores).shape == tensor_type(node.arguments[0]).shape


def _attention(scores: Node, softmax: Node, values: Node) -> Node | None:
    """Return the kernel for what two products and a softmax between them compute.

    None: keys or values are no rows in memory, or too large for 32 bits.
    """
    count, queries, keys = tensor_type(scores).shape
    dim, value_dim = tensor_type(scores.arguments[0]).shape[-1], tensor_type(values).shape[-1]
    views = [_leading(argument) for argument in (*scores.arguments[:2], values.arguments[1])]
    views[1:] = map(_before_repeating, views[1:])
    operands = (*(view.base for view in views), *softmax.arguments[1:])
    if any(math.prod(tensor_type(operand).shape) > MOST_ELEMENTS for operand in (*operands, values)):
        return None
    views[1] = views[1]._replace(
        sizes=(*views[1].sizes[:-2], keys, dim), strides=(*views[1].strides[:-2], *views[1].strides[:-3:-1])
    )
    several = [view.sizes[-3] for view in views if len(view.sizes) == _DIMENSIONS]
    # heads that were repeated for groups are two dimensions
    several += [
        math.prod(view.sizes[-4:-2]) for view in views if len(view.sizes) > _DIMENSIONS and not view.strides[-3]
    ]
    several += [view.sizes[-3] for view in views if len([size for size in view.sizes[:-2] if size > 1]) > 1]
    heads = several[0] if several else 1
    batch = count // heads
    places = [_place(view, batch, heads) for view in views]
    if count % heads or any(place is None for place in places):
        return None
    attributes = {
        "batch": batch, "heads": heads, "queries": queries, "keys": keys, "dim": dim, "value_dim": value_dim,
        **softmax.attributes, "places": tuple(places), "visible": _visible(softmax, queries),
        "causal": None,
    }  # fmt: skip
    kind = TensorType((batch * queries, heads * value_dim), tensor_type(values).dtype)
    return Node(ATTENTION, operands, kind, attributes)


def _place(view: View, batch: int, heads: int) -> Place | None:
    """Return where the rows of all heads lie, the same ones for the heads of a group; None: no place says it."""
    rows = view.sizes[-2:]
    for group in (size for size in range(1, heads + 1) if heads % size == 0):
        whole = view.reshaped((batch, heads // group, group, *rows))
        if whole is not None and (whole.strides[2] == 0 or group == 1):
            is_near = whole.strides[-1] in ((0, 1) if rows[-1] == 1 else (1,))
            apart, head, _, row = whole.strides[:4]
            return Place(whole.offset, apart, head, row, group) if is_near else None
    return None


def _before_repeating(view: View) -> View:
    """Return where the elements of a tensor lie that was repeated for groups of heads, before that was done."""
    base = view.base
    source = base.arguments[0] if isinstance(base, Node) and base.op == "reshape" else None
    if not isinstance(source, Node) or source.op != "broadcast_to":
        return view
    kind, inner = tensor_type(base).shape, view_of(source)
    is_turned = view.strides[-2:] == (1, kind[-1])
    if kind[-2:] != inner.sizes[-2:] or view.sizes[:-2] != kind[:-2] or not (is_turned or view == view_of(base)):
        return view
    step = -1 if is_turned else 1
    ends = (*inner.sizes[:-3:-1],) if is_turned else inner.sizes[-2:]
    return inner._replace(
        sizes=(*inner.sizes[:-2], *ends), strides=(*inner.strides[:-2], *inner.strides[-2:][::step])
    )  # fmt: skip


def _leading(value: Value) -> View:
    """Return where the operand of a product lies, with as many leading dimensions as it had before they became one."""
    source = value.arguments[0] if isinstance(value, Node) and value.op == "reshape" else value
    kind = tensor_type(source).shape
    is_same = len(kind) > 2 and kind[-2:] == tensor_type(value).shape[-2:]
    return view_of(source if is_same else value)


def _visible(softmax: Node, queries: int) -> tuple[int, ...]:
    """Return for each query one past the last key that a constant mask leaves; (): some query may see them all.

    What a mask hides with ``-inf`` or the lowest number has a power of 0, unless it hides everything.
    """
    mask = softmax.arguments[1] if len(softmax.arguments) > 1 else None
    is_same = softmax.attributes["block"] == tensor_type(softmax).shape[0]  # in all batches
    if not isinstance(mask, Constant) or len(mask.array) != queries or not is_same:
        return ()
    seen = mask.array > np.finfo(mask.array.dtype).min
    keys = seen.shape[1]
    last = np.where(seen.any(axis=1), keys - np.argmax(seen[:, ::-1], axis=1), keys)
    return tuple(int(one) for one in last) if last.min() < keys else ()


class StridedAttention(NamedTuple):
    """What an attention asks of a kernel, and how its operands lie.

    Attributes
    ----------
    kv_heads : int
        Heads of keys and values.
    is_causal, window
        As `core.workload.operators.attention.attention`.
    strides : tuple of three (int, int, int)
        Of queries, keys and values: elements between sequences, heads and tokens.
    offsets : tuple of int
        Elements before the first of each.
    counted, pool, page_size
        As `core.workload.operators.attention.strided_attention`, and keys of a page (0: there are none).
    """

    kv_heads: int
    is_causal: bool
    window: int
    strides: tuple[tuple[int, int, int], ...]
    offsets: tuple[int, ...]
    counted: str
    pool: int
    page_size: int


def attention_of(node: Node) -> StridedAttention | None:
    """Return what an attention asks of a kernel; None: it is more than softmax of products under a causal mask."""
    node = without_mask(node)
    own = node.attributes
    if "window" not in own or own["value_dim"] != own["dim"] or own["causal"] is not None:
        return None
    places: tuple[Place, Place, Place] = own["places"]
    (q, k, v), heads = places, own["heads"]
    shared = heads if k.head == v.head == 0 else k.group
    if shared not in (v.group, heads) or q.group != 1:
        return None
    strides = tuple((place.batch, place.head, place.row) for place in places)
    pool = math.prod(tensor_type(node.arguments[1]).shape) // k.batch if own["page_size"] else 0
    offsets = tuple(place.offset for place in places)
    return StridedAttention(
        heads // shared, own["is_causal"], own["window"], strides, offsets, own["counted"], pool, own["page_size"]
    )


def without_mask(node: Node) -> Node:
    """Return an attention of `attention_of` with the usual scale, and without a mask: attributes say what it said.

    One query sees all keys, as the last one of several does. Where a mask says how many keys each sequence has, their
    number is an operand (rows that see none are zeros); keys and values that are gathered from pages are read there.
    """
    if node.op != ATTENTION or "window" in node.attributes:
        return node
    mask = node.arguments[3] if len(node.arguments) > 3 else None
    limit = lengths_of(node) if isinstance(mask, Node) else None
    seen = _seen(node) if limit is None else (limit.is_causal, limit.window)
    if seen is None:
        return node
    own, data = node.attributes, node.arguments[0]
    usual = 1.0 / math.sqrt(own["dim"])
    if not math.isclose(own["scale"], usual, rel_tol=2.0**-21):
        data = elementwise("multiply", data, own["scale"] / usual)
    is_causal = seen[0] or own["queries"] == 1
    pages = pages_of(node)
    keys = node.arguments[1:3] if pages is None else pages.pools
    table = () if pages is None else (pages.table,)
    lengths = () if limit is None else (limit.lengths,)
    return node.of(
        (*map(stored, (data, *keys)), *table, *lengths), is_causal=is_causal, window=seen[1], visible=(), scale=usual,
        page_size=0 if pages is None else pages.size, counted="" if limit is None else "lengths",
        places=own["places"] if pages is None else (own["places"][0], *pages.places),
    )  # fmt: skip


def _seen(node: Node) -> tuple[bool, int] | None:
    """Return whether a mask is causal, and the keys that a query sees at most (0: all); None: it is another one."""
    own = node.attributes
    if len(node.arguments) <= 3:
        return None if own["visible"] else (False, 0)
    mask, queries, keys = node.arguments[3], own["queries"], own["keys"]
    if not isinstance(mask, Constant) or mask.array.size % (queries * keys) or keys < queries:
        return None
    parts = mask.array.reshape(-1, queries, keys)  # the same for all sequences
    seen = parts[0] == 0
    window = int(seen[-1].sum())
    last, key = np.arange(queries)[:, None] + (keys - queries), np.arange(keys)
    is_usual = window and np.array_equal(seen, (key <= last) & (key > last - window)) and (parts == parts[0]).all()
    if not is_usual or (parts[0][~seen] > np.finfo(np.float32).min / 2).any():
        return None
    return True, window if window < keys else 0
