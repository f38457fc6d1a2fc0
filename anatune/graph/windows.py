"""Windows over images with the channels last: depthwise convolutions and pools, as kernels of their own for CPUs.

``anatune.window`` takes data (n, height, width, channels), weights (taps down, taps across, channels) where attribute
``kind`` is "depthwise" (else "max" or "mean"), and the operands of the steps in ``epilogue``. ``outputs``, ``window``,
``strides``, ``dilation`` and ``before`` (the padding) are of height and width; ``counts_padding`` says whether padding
counts as zeros in a mean. Images of one dimension have the height 1.
"""

from __future__ import annotations

import math
from typing import Any

from anatune.core.workload.orders import CHANNELS_LAST
from anatune.graph.nodes import Argument, Graph, Node, TensorType, Value, rewritten, tensor_type
from anatune.graph.products import CONVOLUTION, orders_of
from anatune.graph.simplify import reshaped

__all__ = ["WINDOW", "with_windows"]

WINDOW = "anatune.window"
_DTYPE = "float32"
_LAYOUTS = {3: "NWC", 4: "NHWC"}
_POOLS = {f"nn.{kind}_pool{rank}d": kind for kind in ("max", "avg") for rank in (1, 2)}
_ADAPTIVE = ("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d")
_MOST_TAPS = 64
"""Of a window: all are written out in the code of a kernel."""


def with_windows(graph: Graph) -> Graph:
    """Return a graph whose depthwise convolutions and pools with the channels last are anatune's."""

    def replace(node: Node, arguments: tuple[Argument, ...]) -> Value:
        own = node.of(arguments)
        if not isinstance(own.type, TensorType) or own.type.dtype != _DTYPE or len(own.type.shape) not in _LAYOUTS:
            return own
        if own.op == CONVOLUTION:
            return _depthwise(own)
        if own.op in (*_POOLS, *_ADAPTIVE):
            layout = own.attributes["layout"]
            if layout == _LAYOUTS[len(own.type.shape)] and own.attributes["out_layout"] in (None, "", layout):
                return _pool(own) if own.op in _POOLS else _adaptive(own)
        return own

    return rewritten(graph, replace)


def _depthwise(node: Node) -> Value:
    data, weight, *operands = node.arguments
    own = node.attributes
    if orders_of(node) != (CHANNELS_LAST, CHANNELS_LAST):
        return node
    *taps, per_group, outputs = tensor_type(weight).shape
    if own["groups"] != outputs or per_group != 1:
        return node
    if outputs != tensor_type(data).shape[-1]:
        return node
    shape = (*_planar(tuple(taps), 1), outputs)
    more = [
        reshaped(one, _image(tensor_type(node).shape)) if step == "add" else one
        for step, one in zip([word for word in own["epilogue"] if word in ("bias", "add")], operands, strict=True)
    ]
    attributes = {
        "window": tuple(taps),
        "strides": own["strides"],
        "dilation": own["dilation"],
        "before": own["padding"][: len(taps)],
    }
    return _window(node, "depthwise", attributes, (reshaped(weight, shape), *more), own["epilogue"])


def _pool(node: Node) -> Value:
    own = node.attributes
    kind = "max" if _POOLS[node.op] == "max" else "mean"
    rank = len(own["pool_size"])
    if kind == "mean" and any(step != 1 for step in own["dilation"]):
        return node
    attributes = {
        "window": own["pool_size"],
        "strides": own["strides"],
        "dilation": own["dilation"],
        "before": own["padding"][:rank],
    }
    return _window(node, kind, attributes, counts_padding=kind == "mean" and bool(own["count_include_pad"]))


def _adaptive(node: Node) -> Value:
    """Return a pool whose windows are equal parts of the image; other sizes stay as they are."""
    sizes, outputs = (tensor_type(one).shape[1:-1] for one in (node.arguments[0], node))
    if any(size % count for size, count in zip(sizes, outputs, strict=True)):
        return node
    if sizes == outputs:
        return node.arguments[0]  # type: ignore[no-any-return]
    window = tuple(size // count for size, count in zip(sizes, outputs, strict=True))
    attributes = {"window": window, "strides": window, "dilation": (1,) * len(window), "before": (0,) * len(window)}
    return _window(node, "mean", attributes)


def _window(
    node: Node,
    kind: str,
    attributes: dict[str, Any],
    operands: tuple[Value, ...] = (),
    epilogue: tuple[str, ...] = (),
    *,
    counts_padding: bool = False,
) -> Value:
    """Return the window in place of a node; where it has too many taps, the node."""
    if math.prod(attributes["window"]) > _MOST_TAPS:
        return node
    data = node.arguments[0]
    image = TensorType(_image(tensor_type(node).shape), _DTYPE)
    found = {
        "kind": kind,
        **{name: _planar(tuple(value), int(name != "before")) for name, value in attributes.items()},
        "outputs": image.shape[1:3],
        "counts_padding": counts_padding,
        "epilogue": epilogue,
    }
    made = Node(WINDOW, (reshaped(data, _image(tensor_type(data).shape)), *operands), image, found)
    return reshaped(made, tensor_type(node).shape)


def _planar(sizes: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """Return sizes of height and width; an image of one dimension has `missing` as the first."""
    return (missing,) * (2 - len(sizes)) + tuple(map(int, sizes))


def _image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with a height."""
    return (shape[0], *_planar(shape[1:-1], 1), shape[-1])
