"""Fuse attention into one kernel: scores, softmax and weighted values, without scores in memory or transposes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from anatune.core.generation import MOST_ELEMENTS
from anatune.network.graph.building import elementwise
from anatune.network.graph.caches.lengths import lengths_of
from anatune.network.graph.caches.pages import pages_of, skip_widening
from anatune.network.graph.nodes import Constant, Graph, Node, TensorType, Value, rewrite_with_originals, tensor_type
from anatune.network.graph.operators import ATTENTION, BATCH_MATMUL, SOFTMAX
from anatune.network.graph.passes.products import join_products
from anatune.network.graph.passes.simplify import permute_value, reshape_value, simplify, source_of
from anatune.network.graph.strided import HeadLayout, View, view_of

__all__ = ["StridedAttention", "attention_of", "fuse_attention", "replace_mask"]

_DIMENSIONS = 4
"""The rank of tensors of batch, heads, rows and columns."""


def fuse_attention(graph: Graph, pays: Callable[[Node], bool]) -> Graph:
    """Return a graph whose attentions are kernels, and in which products of the same data that feed them are joined.

    An attention consists of two products without an epilogue and a softmax between them, whose results nothing else
    reads. Queries, keys and values may be columns of matrices in any order of batch, heads and rows. Keys and values
    that are repeated for groups of heads are read before the repetition. Products are joined only if attentions are
    their only readers, because other readers would need a copy of their columns.

    Parameters
    ----------
    graph : Graph
        The result of `passes.order.CPU_KERNELS`.
    pays : callable
        Whether an attention becomes a kernel.
    """
    uses = graph.uses()
    kernel_count = 0

    def replace(node: Node, old: Node) -> Value:
        if not _is_attention(old, uses):
            return node
        softmax = source_of(node.arguments[0])
        assert isinstance(softmax, Node)
        scores = source_of(softmax.arguments[0])
        assert isinstance(scores, Node)
        attention = _attention(scores, softmax, node)
        if attention is None or not pays(attention):
            return node
        nonlocal kernel_count
        kernel_count += 1
        batch, heads, queries, size = (
            attention.attributes[name] for name in ("batch", "heads", "queries", "value_dim")
        )
        heads_first = permute_value(reshape_value(attention, (batch, queries, heads, size)), (0, 2, 1, 3))
        return reshape_value(heads_first, tensor_type(node).shape)

    fused = rewrite_with_originals(graph, replace)
    return join_products(simplify(fused)) if kernel_count else graph


def _is_attention(node: Node, uses: Counter[Value]) -> bool:
    """Return whether a node ends an attention: the product of softmax(product) and values, with no other readers."""

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
    """Return the attention kernel for two products with a softmax between them.

    Return None if keys or values are not rows in memory, or too large for 32-bit offsets.
    """
    count, queries, keys = tensor_type(scores).shape
    dim, value_dim = tensor_type(scores.arguments[0]).shape[-1], tensor_type(values).shape[-1]
    views = [_unflattened_view(argument) for argument in (*scores.arguments[:2], values.arguments[1])]
    views[1:] = map(_view_before_repeat, views[1:])
    operands = (*(view.base for view in views), *softmax.arguments[1:])
    if any(math.prod(tensor_type(operand).shape) > MOST_ELEMENTS for operand in (*operands, values)):
        return None
    views[1] = views[1]._replace(
        sizes=(*views[1].sizes[:-2], keys, dim), strides=(*views[1].strides[:-2], *views[1].strides[:-3:-1])
    )
    head_counts = [view.sizes[-3] for view in views if len(view.sizes) == _DIMENSIONS]
    # heads that are repeated for groups are two dimensions
    head_counts += [
        math.prod(view.sizes[-4:-2]) for view in views if len(view.sizes) > _DIMENSIONS and not view.strides[-3]
    ]
    head_counts += [view.sizes[-3] for view in views if len([size for size in view.sizes[:-2] if size > 1]) > 1]
    heads = head_counts[0] if head_counts else 1
    batch = count // heads
    layouts = [_head_layout(view, batch, heads) for view in views]
    if count % heads or any(layout is None for layout in layouts):
        return None
    attributes = {
        "batch": batch, "heads": heads, "queries": queries, "keys": keys, "dim": dim, "value_dim": value_dim,
        **softmax.attributes, "places": tuple(layouts), "visible": _visible_keys(softmax, queries),
        "causal": None,
    }  # fmt: skip
    kind = TensorType((batch * queries, heads * value_dim), tensor_type(values).dtype)
    return Node(ATTENTION, operands, kind, attributes)


def _head_layout(view: View, batch: int, heads: int) -> HeadLayout | None:
    """Return the position of the rows of all heads, or None if no `Place` describes it; groups of heads share rows."""
    rows = view.sizes[-2:]
    for group in (size for size in range(1, heads + 1) if heads % size == 0):
        grouped = view.reshape((batch, heads // group, group, *rows))
        if grouped is not None and (grouped.strides[2] == 0 or group == 1):
            is_near = grouped.strides[-1] in ((0, 1) if rows[-1] == 1 else (1,))
            batch_stride, head_stride, _, row_stride = grouped.strides[:4]
            return HeadLayout(grouped.offset, batch_stride, head_stride, row_stride, group) if is_near else None
    return None


def _view_before_repeat(view: View) -> View:
    """Return the view of a tensor before it was repeated for groups of heads."""
    base = view.base
    source = base.arguments[0] if isinstance(base, Node) and base.op == "reshape" else None
    if not isinstance(source, Node) or source.op != "broadcast_to":
        return view
    shape, inner = tensor_type(base).shape, view_of(source)
    is_turned = view.strides[-2:] == (1, shape[-1])
    if shape[-2:] != inner.sizes[-2:] or view.sizes[:-2] != shape[:-2] or not (is_turned or view == view_of(base)):
        return view
    step = -1 if is_turned else 1
    ends = (*inner.sizes[:-3:-1],) if is_turned else inner.sizes[-2:]
    return inner._replace(
        sizes=(*inner.sizes[:-2], *ends), strides=(*inner.strides[:-2], *inner.strides[-2:][::step])
    )  # fmt: skip


def _unflattened_view(value: Value) -> View:
    """Return the view of a product's operand, with the leading dimensions that it had before they were flattened."""
    source = value.arguments[0] if isinstance(value, Node) and value.op == "reshape" else value
    shape = tensor_type(source).shape
    is_same = len(shape) > 2 and shape[-2:] == tensor_type(value).shape[-2:]
    return view_of(source if is_same else value)


def _visible_keys(softmax: Node, queries: int) -> tuple[int, ...]:
    """Return for each query the end of the keys that a constant mask leaves visible; () if some query may see all keys.

    Keys that a mask hides with ``-inf`` or the lowest number have weight 0, unless the mask hides all keys.
    """
    mask = softmax.arguments[1] if len(softmax.arguments) > 1 else None
    is_same = softmax.attributes["block"] == tensor_type(softmax).shape[0]  # in all batches
    if not isinstance(mask, Constant) or len(mask.array) != queries or not is_same:
        return ()
    seen = mask.array > np.finfo(mask.array.dtype).min
    keys = seen.shape[1]
    last = np.where(seen.any(axis=1), keys - np.argmax(seen[:, ::-1], axis=1), keys)
    return tuple(int(end) for end in last) if last.min() < keys else ()


class StridedAttention(NamedTuple):
    """The parameters of an attention kernel and the memory layout of its operands.

    Attributes
    ----------
    kv_heads : int
        The number of heads of keys and values.
    is_causal, window
        Attributes of `core.workload.operators.attention.attention`.
    strides : tuple of three (int, int, int)
        Elements between sequences, heads and tokens, for queries, keys and values.
    offsets : tuple of int
        Elements before the first element of each.
    counted, pool, page_size
        Attributes of `core.workload.operators.attention.strided_attention`; `page_size` is 0 without pages.
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
    """Return the parameters of an attention, or None if it is more than the softmax of products under a causal mask."""
    node = replace_mask(node)
    attrs = node.attributes
    if "window" not in attrs or attrs["value_dim"] != attrs["dim"] or attrs["causal"] is not None:
        return None
    layouts: tuple[HeadLayout, HeadLayout, HeadLayout] = attrs["places"]
    (q, k, v), heads = layouts, attrs["heads"]
    shared = heads if k.head == v.head == 0 else k.group
    if shared not in (v.group, heads) or q.group != 1:
        return None
    strides = tuple((layout.batch, layout.head, layout.row) for layout in layouts)
    pool = math.prod(tensor_type(node.arguments[1]).shape) // k.batch if attrs["page_size"] else 0
    offsets = tuple(layout.offset for layout in layouts)
    return StridedAttention(
        heads // shared, attrs["is_causal"], attrs["window"], strides, offsets,
        attrs["counted"], pool, attrs["page_size"],
    )  # fmt: skip


def replace_mask(node: Node) -> Node:
    """Return an attention with the usual scale and without a mask: attributes replace the mask, as in `attention_of`.

    A single query sees all keys, as the last one of several queries does. If a mask says how many keys each sequence
    has, that number becomes an operand, and rows that see no key are zeros. Keys and values that are gathered from
    pages are read from the pages.
    """
    if node.op != ATTENTION or "window" in node.attributes:
        return node
    mask = node.arguments[3] if len(node.arguments) > 3 else None
    limit = lengths_of(node) if isinstance(mask, Node) else None
    seen = _mask_pattern(node) if limit is None else (limit.is_causal, limit.window)
    if seen is None:
        return node
    attrs, data = node.attributes, node.arguments[0]
    usual = 1.0 / math.sqrt(attrs["dim"])
    if not math.isclose(attrs["scale"], usual, rel_tol=2.0**-21):
        data = elementwise("multiply", data, attrs["scale"] / usual)
    is_causal = seen[0] or attrs["queries"] == 1
    pages = pages_of(node)
    keys = node.arguments[1:3] if pages is None else pages.pools
    table = () if pages is None else (pages.table,)
    lengths = () if limit is None or limit.lengths is None else (limit.lengths,)
    return node.of(
        (*map(skip_widening, (data, *keys)), *table, *lengths), is_causal=is_causal, window=seen[1], visible=(),
        scale=usual, page_size=0 if pages is None else pages.size, counted="lengths" if lengths else "",
        places=attrs["places"] if pages is None else (attrs["places"][0], *pages.places),
    )  # fmt: skip


def _mask_pattern(node: Node) -> tuple[bool, int] | None:
    """Return whether a mask is causal and the most keys that a query sees (0: all), or None for any other mask."""
    attrs = node.attributes
    if len(node.arguments) <= 3:
        return None if attrs["visible"] else (False, 0)
    mask, queries, keys = node.arguments[3], attrs["queries"], attrs["keys"]
    if not isinstance(mask, Constant) or mask.array.size % (queries * keys) or keys < queries:
        return None
    parts = mask.array.reshape(-1, queries, keys)  # usable only if all sequences have the same mask
    seen = parts[0] == 0
    window = int(seen[-1].sum())
    last, key = np.arange(queries)[:, None] + (keys - queries), np.arange(keys)
    is_usual = window and np.array_equal(seen, (key <= last) & (key > last - window)) and (parts == parts[0]).all()
    if not is_usual or (parts[0][~seen] > np.finfo(np.float32).min / 2).any():
        return None
    return True, window if window < keys else 0
