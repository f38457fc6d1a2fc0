"""Means of windows that hang over the padding, as ``ceil_mode`` leaves them.

PyTorch and ONNX divide by what of a window lies in the padded image, TVM's operator by the whole window.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from anatune.graph.nodes import Argument, Array, Constant, Graph, Node, Value, frozen, rewritten, tensor_type

__all__ = ["with_partial_means"]

_POOLS = {f"nn.avg_pool{rank}d": rank for rank in (1, 2, 3)}


def with_partial_means(graph: Graph) -> Graph:
    """Return a graph as PyTorch and ONNX mean it: means of windows that are cut off are of what is left of them."""

    def replace(node: Node, arguments: tuple[Argument, ...]) -> Value:
        own = node.of(arguments)
        if own.op not in _POOLS or not (own.attributes["ceil_mode"] and own.attributes["count_include_pad"]):
            return own
        factors = _factors(own)
        if all((factor == 1.0).all() for factor in factors):
            return own
        kind = tensor_type(own)
        whole = functools.reduce(np.multiply.outer, factors).astype(kind.dtype)
        return Node("multiply", (own, Constant(frozen(whole.reshape(1, 1, *whole.shape)))), kind)

    return rewritten(graph, replace)


def _factors(node: Node) -> list[Array]:
    """Return for each dimension of an image what means along it are multiplied by."""
    own, rank = node.attributes, _POOLS[node.op]
    sizes, outputs = (tensor_type(one).shape[2:] for one in (node.arguments[0], node))
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
