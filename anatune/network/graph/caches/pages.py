"""Find the pages that the keys and values of an attention are gathered from."""

from __future__ import annotations

import math
from typing import NamedTuple

from anatune.network.graph.building import cast, elementwise, reshape
from anatune.network.graph.nodes import HALVES, Node, Value, tensor_type
from anatune.network.graph.operators import PUT
from anatune.network.graph.strided import HeadLayout, view_of

__all__ = ["Pages", "pages_of", "skip_widening"]


class Pages(NamedTuple):
    """The pools of pages from which keys and values are gathered.

    Attributes
    ----------
    pools : tuple of two Value
    places : tuple of two Place
        The layouts of heads in the pools; `Place.batch` is the distance between pages.
    table : Value
        The indices of the pages of each sequence, (batch, pages) int32, all in range.
    size : int
        The number of keys in a page.
    """

    pools: tuple[Value, Value]
    places: tuple[HeadLayout, HeadLayout]
    table: Value
    size: int


def pages_of(node: Node) -> Pages | None:
    """Return the pages that the keys and values of an attention are gathered from, or None.

    Both have to be ``pool[table]``: whole pages along the first dimension, with equal distances between tokens. Kernels
    read 16 bits. A larger pool of 32 bits is not used, because all of it would have to be converted.
    """
    attrs, (_, keys, values) = node.attributes, node.arguments[:3]
    if not all(isinstance(v, Node) and v.op == "take" and v.attributes["axis"] == 0 for v in (keys, values)):
        return None
    table = keys.arguments[1]
    count = math.prod(tensor_type(table).shape)
    if values.arguments[1] is not table or count % attrs["batch"] or not count:
        return None
    pages = count // attrs["batch"]
    size = attrs["keys"] // pages
    pools, layouts = [], []
    for gathered, layout in zip((keys, values), attrs["places"][1:], strict=True):
        shape = tensor_type(gathered.arguments[0]).shape
        page, view = math.prod(shape[1:]), view_of(gathered.arguments[0])
        last = layout.offset + (attrs["heads"] // layout.group - 1) * layout.head + attrs["dim"]
        is_whole = size * layout.row == page and size * pages == attrs["keys"] and last <= layout.row
        contiguous_strides = (math.prod(shape[axis + 1 :]) for axis in range(1, len(shape)))
        is_contiguous = all(
            step == contiguous_step or extent == 1
            for step, contiguous_step, extent in zip(view.strides[1:], contiguous_strides, shape[1:], strict=True)
        )
        if not (is_whole and is_contiguous) or (attrs["batch"] > 1 and layout.batch != pages * page):
            return None
        pool = skip_widening(view.base)
        is_put = isinstance(pool, Node) and pool.op == PUT  # a state, stored in 16 bits
        if not is_put and tensor_type(pool).dtype not in HALVES and shape[0] > count:
            return None
        pools.append(pool)
        layouts.append(layout._replace(offset=layout.offset + view.offset, batch=view.strides[0] or page))
    most = min(tensor_type(v.arguments[0]).shape[0] for v in (keys, values)) - 1
    clamped = elementwise("minimum", elementwise("maximum", cast(table, "int64"), 0), most)
    table = reshape(cast(clamped, "int32"), (attrs["batch"], pages))
    return Pages((pools[0], pools[1]), (layouts[0], layouts[1]), table, size)


def skip_widening(value: Value) -> Value:
    """Return the 16-bit operand of a conversion, which the kernel can read directly, or the value itself."""
    source = value.arguments[0] if isinstance(value, Node) and value.op == "astype" else value
    return source if tensor_type(source).dtype in HALVES else value
