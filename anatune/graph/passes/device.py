"""What models for GPUs have other than models for CPUs: rows as operators, attentions that a template takes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.graph import building
from anatune.graph.nodes import Constant, Graph, Node, Value, rewritten, tensor_type
from anatune.graph.operators import LAYER_NORM, SOFTMAX
from anatune.graph.strided import Place

__all__ = ["TokenAttention", "attention_of", "without_rows"]


def without_rows(graph: Graph) -> Graph:
    """Return a graph whose softmaxes and layer norms are operators that anybody knows."""

    def replace(node: Node) -> Value:
        if node.op == SOFTMAX:
            return _softmax(node)
        if node.op == LAYER_NORM:
            return _layer_norm(node)
        return node

    return rewritten(graph, replace)


def _softmax(node: Node) -> Value:
    own = node.attributes
    data, *masks = node.arguments
    rows, length = tensor_type(node).shape
    if own["scale"] != 1.0:
        data = building.elementwise("multiply", data, own["scale"])
    for mask in masks:
        parts = rows // own["block"]
        own_rows = tensor_type(mask).shape[0] // parts
        whole = building.reshape(data, (parts, own["block"] // own_rows, own_rows, length))
        added = building.elementwise("add", whole, building.reshape(mask, (parts, 1, own_rows, length)))
        data = building.reshape(added, (rows, length))
    made = building.softmax(data, 1)
    if not own["zero_rows"]:
        return made
    most = building.reduced("max", data, (1,), keepdims=True)
    empty = building.elementwise("equal", most, -np.inf)
    zeros = Constant(np.zeros((1, 1), np.float32))
    condition, nothing = (building.broadcast(one, (rows, length)) for one in (empty, zeros))
    return building.where(condition, nothing, made)


def _layer_norm(node: Node) -> Value:
    data, *known = node.arguments
    length = tensor_type(node).shape[1]
    factor, term = known or (Constant(np.ones(length, np.float32)), Constant(np.zeros(length, np.float32)))
    return building.layer_norm(data, factor, term, (1,), node.attributes["epsilon"])


class TokenAttention(NamedTuple):
    """How an attention's operands lie as rows of tokens.

    Attributes
    ----------
    kv_heads : int
        Heads of keys and values.
    pitch_q, pitch_kv : int
        Elements between tokens of queries, and of keys and values.
    offsets : tuple of int
        Elements before the first of queries, of keys, of values.
    """

    kv_heads: int
    pitch_q: int
    pitch_kv: int
    offsets: tuple[int, ...]


def attention_of(node: Node) -> TokenAttention | None:
    """Return how an attention's operands lie; None: not as rows of tokens, or it is more than softmax of products.

    Heads have to lie beside each other in rows of tokens, batches behind each other, and the mask to be causal.
    """
    own = node.attributes
    batch, heads, queries, keys, dim = (own[name] for name in ("batch", "heads", "queries", "keys", "dim"))
    if own["value_dim"] != dim or own["causal"] is not None:  # with such masks no row is empty
        return None
    if not math.isclose(own["scale"] * math.sqrt(dim), 1.0, rel_tol=1e-5) or not _is_seen_as(node, queries, keys):
        return None
    places: tuple[Place, Place, Place] = own["places"]
    q, k, v = places
    shared = heads if k.head == v.head == 0 else k.group
    if k.row != v.row or shared not in (v.group, heads) or q.group != 1:
        return None
    for place, tokens, near in ((q, queries, heads == 1), (k, keys, heads == shared), (v, keys, heads == shared)):
        if (not near and place.head != dim) or (batch > 1 and place.batch != tokens * place.row):
            return None
    rows = heads * dim
    offsets = tuple(place.offset for place in places)
    return TokenAttention(heads // shared, q.row or rows, k.row or rows // shared, offsets)


def _is_seen_as(node: Node, queries: int, keys: int) -> bool:
    """Whether a query sees all keys, or under a mask those up to its own place and no others."""
    if "is_causal" in node.attributes:  # it was looked at before
        return True
    if len(node.arguments) <= 3:
        return not node.attributes["visible"]
    mask = node.arguments[3]
    if not isinstance(mask, Constant) or mask.array.shape != (queries, keys) or keys < queries:
        return False
    lowest = np.finfo(np.float32).min
    seen = np.tril(np.ones((queries, keys), bool), keys - queries)
    return bool((mask.array[seen] == 0).all() and (mask.array[~seen] <= lowest / 2).all())
