"""Recurrent layers: as kernels of anatune's on CPUs, their steps written out elsewhere."""

from __future__ import annotations

from anatune.network.graph.building import concat, padded, permute, reshape, sliced
from anatune.network.graph.nodes import Graph, Node, Value, rewritten, tensor_type
from anatune.network.graph.operators import RECURRENCE, RECURRENT, UNITS
from anatune.network.graph.recurrent import GATES, layer_of, written_out

__all__ = ["with_recurrences", "without_recurrences"]


def with_recurrences(graph: Graph) -> Graph:
    """Return a graph whose recurrent layers have their weights in blocks of units, as kernels read them."""

    def replace(own: Node) -> Value:
        if own.op != RECURRENT:
            return own
        inputs, weight, *others = own.arguments
        count = GATES[own.attributes["kind"]]
        hidden = tensor_type(weight).shape[0]
        parts = [(0, 2), (2, 3)] if own.attributes["kind"] == "gru" and not own.attributes["is_late"] else [(0, count)]
        blocks = [
            _in_blocks(sliced(weight, [1], [first * hidden], [last * hidden]), last - first) for first, last in parts
        ]
        return Node(RECURRENCE, (inputs, *blocks, *others), own.type, own.attributes)

    return rewritten(graph, replace)


def _in_blocks(weight: Value, gates: int) -> Value:
    """Return weights (hidden, gates * hidden) as (blocks, hidden, gates, units), zeros behind the last unit."""
    hidden = tensor_type(weight).shape[0]
    blocks = -(-hidden // UNITS)
    whole = padded(reshape(weight, (hidden, gates, hidden)), (0, 0, 0), (0, 0, blocks * UNITS - hidden))
    return permute(reshape(whole, (hidden, gates, blocks, UNITS)), (2, 0, 1, 3))


def without_recurrences(graph: Graph) -> Graph:
    """Return a graph in which each step of recurrent layers is operators of its own."""

    def replace(own: Node) -> Value:
        if own.op != RECURRENT:
            return own
        found, ends = written_out(*layer_of(own))
        return concat([found, *(reshape(one, (1, *tensor_type(one).shape)) for one in ends)], 0)

    return rewritten(graph, replace)
