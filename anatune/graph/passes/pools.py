"""Average pools: behind the 1x1 convolutions that read them, and as PyTorch and ONNX mean them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from anatune.graph.nodes import (
    Array,
    Constant,
    Graph,
    Node,
    TensorType,
    Value,
    rewritten,
    rewritten_beside,
    tensor_type,
)
from anatune.graph.operators import CONVOLUTIONS, applied

__all__ = ["pools_last", "with_partial_means"]

_AVERAGES = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")


def pools_last(graph: Graph) -> Graph:
    """Return a graph in which 1x1 convolutions of fewer outputs than inputs come before the pool that they read.

    Both are linear, and fewer channels are pooled. Padding has to count as zeros in the pool's means, and nothing else
    may read the pool. Results differ by rounding.
    """
    uses = graph.uses()
    alone: dict[int, Node] = {}  # pools that are read once

    def replace(own: Node, old: Node) -> Value:
        if own.op in _AVERAGES and uses[id(old)] == 1:
            alone[id(own)] = own
        pool = alone.get(id(own.arguments[0])) if own.op in CONVOLUTIONS else None
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


def with_partial_means(graph: Graph) -> Graph:
    """Return a graph as PyTorch and ONNX mean it: means of windows that are cut off are of what is left of them.

    With ``ceil_mode`` windows hang over the padding. PyTorch and ONNX divide by what of a window lies in the padded
    image, TVM's operator by the whole window.
    """

    def replace(own: Node) -> Value:
        if own.op not in _AVERAGES or not (own.attributes["ceil_mode"] and own.attributes["count_include_pad"]):
            return own
        factors = _factors(own)
        if all((factor == 1.0).all() for factor in factors):
            return own
        whole = functools.reduce(np.multiply.outer, factors).astype(tensor_type(own).dtype)
        return applied("multiply", own, Constant(whole.reshape(1, 1, *whole.shape)))

    return rewritten(graph, replace)


def _factors(node: Node) -> list[Array]:
    """Return for each dimension of an image what means along it are multiplied by."""
    own = node.attributes
    sizes, outputs = (tensor_type(value).shape[2:] for value in (node.arguments[0], node))
    rank = len(sizes)
    found = []
    for d in range(rank):
        window, step, stride = own["pool_size"][d], own["dilation"][d], own["strides"][d]
        end = sizes[d] + own["padding"][rank + d]
        found.append(_of_windows(range(outputs[d]), stride, own["padding"][d], window, step, end))
    return found


def _of_windows(places: Sequence[int], stride: int, before: int, window: int, step: int, end: int) -> Array:
    """Return taps of a window over those before `end`, for each place."""
    first = np.array(places) * stride - before
    inside = (first[:, None] + np.arange(window) * step < end).sum(axis=1)
    return np.asarray(window / np.maximum(inside, 1))
