"""Recurrent layers: prepare their weights for anatune's kernels on CPUs, or unroll their steps elsewhere."""

from __future__ import annotations

from anatune.network.graph.building import concat, pad_tensor, permute, reshape, slice_axes
from anatune.network.graph.nodes import Graph, Node, Value, rewrite_graph, tensor_type
from anatune.network.graph.operators import RECURRENCE, RECURRENT
from anatune.network.graph.recurrent import GATES, layer_of, unroll

__all__ = ["block_recurrent_weights", "unroll_recurrent_layers"]


def block_recurrent_weights(graph: Graph, units: int) -> Graph:
    """Return a graph whose recurrent layers have their weights in blocks of `units`, which kernels read as a vector."""

    def replace(node: Node) -> Value:
        if node.op != RECURRENT:
            return node
        inputs, weight, *others = node.arguments
        count = GATES[node.attributes["kind"]]
        hidden = tensor_type(weight).shape[0]
        parts = (
            [(0, 2), (2, 3)] if node.attributes["kind"] == "gru" and not node.attributes["is_late"] else [(0, count)]
        )
        blocks = [
            _to_blocks(slice_axes(weight, [1], [first * hidden], [last * hidden]), last - first, units)
            for first, last in parts
        ]
        return Node(RECURRENCE, (inputs, *blocks, *others), node.type, node.attributes)

    return rewrite_graph(graph, replace)


def _to_blocks(weight: Value, gates: int, units: int) -> Value:
    """Return weights (hidden, gates * hidden) as (blocks, hidden, gates, units), with zeros after the last unit."""
    hidden = tensor_type(weight).shape[0]
    blocks = -(-hidden // units)
    whole = pad_tensor(reshape(weight, (hidden, gates, hidden)), (0, 0, 0), (0, 0, blocks * units - hidden))
    return permute(reshape(whole, (hidden, gates, blocks, units)), (2, 0, 1, 3))


def unroll_recurrent_layers(graph: Graph) -> Graph:
    """Return a graph in which recurrent layers are unrolled: each step is its own operators."""

    def replace(node: Node) -> Value:
        if node.op != RECURRENT:
            return node
        steps, ends = unroll(*layer_of(node))
        return concat([steps, *(reshape(state, (1, *tensor_type(state).shape)) for state in ends)], 0)

    return rewrite_graph(graph, replace)
