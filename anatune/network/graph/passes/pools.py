"""Move average pools behind the 1x1 convolutions that read them."""

from __future__ import annotations

import math

from anatune.network.graph.nodes import Graph, Node, TensorType, Value, rewrite_with_originals, tensor_type
from anatune.network.graph.operators import CONVOLUTIONS

__all__ = ["move_pools_last"]

_AVERAGES = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")


def move_pools_last(graph: Graph) -> Graph:
    """Return a graph in which average pools come after 1x1 convolutions with fewer outputs than inputs.

    Both are linear, and fewer channels are pooled. The pool's means have to count padding as zeros, and nothing else
    may read the pool. Results differ by rounding.
    """
    uses = graph.uses()
    alone: dict[Value, Node] = {}  # pools with a single reader

    def replace(node: Node, old: Node) -> Value:
        if node.op in _AVERAGES and uses[old] == 1:
            alone[node] = node
        pool = alone.get(node.arguments[0]) if node.op in CONVOLUTIONS else None
        if pool is None or not _is_pointwise(node) or not _keeps_zeros(pool):
            return node
        data = pool.arguments[0]
        inputs, outputs = tensor_type(pool).shape[1], tensor_type(node).shape[1]
        if outputs >= inputs or math.prod(tensor_type(data).shape[2:]) > math.prod(tensor_type(pool).shape[2:]):
            return node  # before a pool with strides the convolution would compute more
        batch, _, *image = tensor_type(data).shape
        inner = node.of((data, node.arguments[1]), TensorType((batch, outputs, *image), "float32"))
        return pool.of((inner,), tensor_type(node))

    return rewrite_with_originals(graph, replace)


def _is_pointwise(node: Node) -> bool:
    """Return whether a channels-first convolution has one tap, no groups and no strides."""
    attrs = node.attributes
    weight = node.arguments[1]
    return (
        attrs["data_layout"] in ("NCW", "NCHW")
        and attrs["kernel_layout"] in ("OIW", "OIHW")
        and attrs["out_layout"] in ("", attrs["data_layout"])
        and tensor_type(node).dtype == tensor_type(weight).dtype == "float32"
        and attrs["groups"] == 1
        and all(size == 1 for size in (*tensor_type(weight).shape[2:], *attrs["strides"]))
        and not any(attrs["padding"])
    )


def _keeps_zeros(pool: Node) -> bool:
    """Return whether every mean divides the sum of its window by the same number."""
    attrs = pool.attributes
    first = attrs["layout"] in ("NCW", "NCHW") and attrs["out_layout"] in ("", None, attrs["layout"])
    return first and (bool(attrs["count_include_pad"]) or not any(attrs["padding"])) and not attrs["ceil_mode"]
