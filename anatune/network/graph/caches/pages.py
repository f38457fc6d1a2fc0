"""Which pages keys and values are gathered from."""

from __future__ import annotations

import math
from typing import NamedTuple

from anatune.network.graph.building import cast, elementwise, reshape
from anatune.network.graph.nodes import HALVES, Node, Value, tensor_type
from anatune.network.graph.operators import PUT
from anatune.network.graph.strided import Place, view_of

__all__ = ["Pages", "pages_of", "stored"]


class Pages(NamedTuple):
    """Where keys and values lie that were gathered from pages.

    Attributes
    ----------
    pools : tuple of two Value
    places : tuple of two Place
        In the pools; `Place.batch` is between pages.
    table : Value
        (batch, pages) int32: which pages, all of them in the pools.
    size : int
        Keys of a page.
    """

    pools: tuple[Value, Value]
    places: tuple[Place, Place]
    table: Value
    size: int


def pages_of(node: Node) -> Pages | None:
    """Return which pages the keys and values of an attention are gathered from; None: from none that say it.

    Both are ``pool[table]``: whole pages along the first dimension, in which tokens lie evenly apart. The kernel reads
    16 bits: a pool of more is not converted as a whole for fewer pages.
    """
    own, (_, keys, values) = node.attributes, node.arguments[:3]
    if not all(isinstance(one, Node) and one.op == "take" and one.attributes["axis"] == 0 for one in (keys, values)):
        return None
    table = keys.arguments[1]
    count = math.prod(tensor_type(table).shape)
    if values.arguments[1] is not table or count % own["batch"] or not count:
        return None
    pages = count // own["batch"]
    size = own["keys"] // pages
    pools, places = [], []
    for gathered, place in zip((keys, values), own["places"][1:], strict=True):
        shape = tensor_type(gathered.arguments[0]).shape
        page, view = math.prod(shape[1:]), view_of(gathered.arguments[0])
        last = place.offset + (own["heads"] // place.group - 1) * place.head + own["dim"]
        is_whole = size * place.row == page and size * pages == own["keys"] and last <= place.row
        plain = (math.prod(shape[axis + 1 :]) for axis in range(1, len(shape)))
        is_plain = all(
            step == own_step or extent == 1
            for step, own_step, extent in zip(view.strides[1:], plain, shape[1:], strict=True)
        )
        if not (is_whole and is_plain) or (own["batch"] > 1 and place.batch != pages * page):
            return None
        pool = stored(view.base)
        is_put = isinstance(pool, Node) and pool.op == PUT  # a state, which has 16 bits in memory
        if not is_put and tensor_type(pool).dtype not in HALVES and shape[0] > count:
            return None
        pools.append(pool)
        places.append(place._replace(offset=place.offset + view.offset, batch=view.strides[0] or page))
    most = min(tensor_type(one.arguments[0]).shape[0] for one in (keys, values)) - 1
    inside = elementwise("minimum", elementwise("maximum", cast(table, "int64"), 0), most)
    table = reshape(cast(inside, "int32"), (own["batch"], pages))
    return Pages((pools[0], pools[1]), (places[0], places[1]), table, size)


def stored(value: Value) -> Value:
    """Return what has 16 bits already where that is converted: the kernel reads it so."""
    source = value.arguments[0] if isinstance(value, Node) and value.op == "astype" else value
    return source if tensor_type(source).dtype in HALVES else value
