"""Average pools behind the 1x1 convolutions that read them."""

from __future__ import annotations

import math

from anatune.network.graph.nodes import Graph, Node, TensorType, Value, rewritten_beside, tensor_type
from anatune.network.graph.operators import CONVOLUTIONS

__all__ = ["pools_last"]

_AVERAGES = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")


def pools_last(graph: Graph) -> Graph:
    """Return a graph in which 1x1 convolutions of fewer outputs than inputs come before the pool that they read.

    Both are linear, and fewer channels are pooled. Padding has to count as zeros in the pool's means, and nothing else
    may read the pool. Results differ by rounding.
    """
    uses = graph.uses()
    alone: dict[Value, Node] = {}  # pools that are read once

    def replace(own: Node, old: Node) -> Value:
        if own.op in _AVERAGES and uses[old] == 1:
            alone[own] = own
        pool = alone.get(own.arguments[0]) if own.op in CONVOLUTIONS else None
        if pool is None or not _is_pointwise(own) or not _keeps_zeros(pool):
            return own
        data = pool.arguments[0]
        inputs, outputs = tensor_type(pool).shape[1], tensor_type(own).shape[1]
        if outputs >= inputs or math.prod(tensor_type(data).shape[2:]) > math.prod(tensor_type(pool).shape[2:]):
            return own  # of a pool with strides the convolution would do more
        batch, _, *image = tensor_type(data).shape
        inner = own.of((data, own.arguments[1]), TensorType((batch, outputs, *image), "float32"))
        return pool.of((inner,), tensor_type(own))

    return rewritten_beside(graph, replace)


def _is_pointwise(node: Node) -> bool:
    """Whether a convolution with its channels first has one tap, no groups and no strides."""
    own = node.attributes
    weight = node.arguments[1]
    return (
        own["data_layout"] in ("NCW", "NCHW")
        and own["kernel_layout"] in ("OIW", "OIHW")
        and own["out_layout"] in ("", own["data_layout"])
        and tensor_type(node).dtype == tensor_type(weight).dtype == "float32"
        and own["groups"] == 1
        and all(size == 1 for size in (*tensor_type(weight).shape[2:], *own["strides"]))
        and not any(own["padding"])
    )


def _keeps_zeros(pool: Node) -> bool:
    """Whether each mean is the same share of a whole window's sum."""
    own = pool.attributes
    first = own["layout"] in ("NCW", "NCHW") and own["out_layout"] in ("", None, own["layout"])
    return first and (bool(own["count_include_pad"]) or not any(own["padding"])) and not own["ceil_mode"]
