"""Windows over images: depthwise convolutions and pools, channels last or in blocks, as kernels of their own for CPUs.

``anatune.window`` takes data (n, blocks, height, width, channels of a block), weights (blocks, taps down, taps across,
channels) where attribute ``kind`` is "depthwise" (else "max" or "mean"), and the operands of the steps in ``epilogue``:
a bias (blocks, channels), a sum as the result. Where channels come last there is one block. ``outputs``, ``window``,
``strides``, ``dilation`` and ``before`` (the padding) are of height and width; ``counts_padding`` says whether padding
counts as zeros in a mean. Images of one dimension have the height 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anatune.core.workload.orders import Order, order_named
from anatune.graph.nodes import Argument, Constant, Graph, Node, TensorType, Value, frozen, rewritten, tensor_type
from anatune.graph.orders import image_sizes
from anatune.graph.products import CONVOLUTION, orders_of
from anatune.graph.scaling import channel_values
from anatune.graph.simplify import reshaped

__all__ = ["WINDOW", "with_windows"]

WINDOW = "anatune.window"
_DTYPE = "float32"
_POOLS = {f"nn.{kind}_pool{rank}d": kind for kind in ("max", "avg") for rank in (1, 2)}
_ADAPTIVE = ("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d")
_STEPS = {"add": "bias", "nn.relu": "relu", "nn.relu6": "relu6"}
_MOST_TAPS = 64
"""Of a window: all are written out in the code of a kernel."""


def with_windows(graph: Graph) -> Graph:
    """Return a graph whose depthwise convolutions and pools with the channels last are anatune's.

    Pools take a bias and a rectifier behind them along, as products do.
    """
    uses = graph.uses()
    ends: dict[int, Node] = {}  # windows that are read once, by what stands for their results

    def replace(node: Node, arguments: tuple[Argument, ...]) -> Value:
        made = found(node.of(arguments))
        window = made.arguments[0] if isinstance(made, Node) and made.op == "reshape" else made
        if isinstance(window, Node) and window.op == WINDOW and uses[id(node)] == 1:
            ends[id(made)] = window
        return made

    def found(own: Node) -> Value:
        if not isinstance(own.type, TensorType) or own.type.dtype != _DTYPE:
            return own
        if own.op == CONVOLUTION:
            return _depthwise(own)
        if own.op in _STEPS and id(own.arguments[0]) in ends:
            return _with_step(own, ends[id(own.arguments[0])])
        if own.op in (*_POOLS, *_ADAPTIVE) and own.attributes["out_layout"] in (None, "", own.attributes["layout"]):
            order = order_named(own.attributes["layout"], 1 if own.op.endswith("1d") else 2)
            if order is not None and (order.is_last or order.block):
                return _pool(own, order) if own.op in _POOLS else _adaptive(own, order)
        return own

    return rewritten(graph, replace)


def _with_step(node: Node, window: Node) -> Value:
    """Return a window with the step that follows it; the step alone where it is none of a window's."""
    shape = tensor_type(node).shape
    if node.type != tensor_type(node.arguments[0]):
        return node
    operands: tuple[Value, ...] = ()
    if node.op == "add":
        values = channel_values(node.arguments[1], shape, len(shape) - 1)
        if values is None or tensor_type(window).shape[1] != 1:
            return node
        operands = (Constant(frozen(np.ascontiguousarray(values).reshape(1, -1))),)
    epilogue = window.attributes["epilogue"]
    if _STEPS[node.op] in epilogue:
        return node
    attributes = {**window.attributes, "epilogue": (*epilogue, _STEPS[node.op])}
    return reshaped(Node(WINDOW, (*window.arguments, *operands), window.type, attributes), shape)


def _depthwise(node: Node) -> Value:
    data, weight, *operands = node.arguments
    own = node.attributes
    order, written = orders_of(node)
    rank = len(own["strides"])
    outputs = image_sizes(tensor_type(node), written)[1]
    if order != written or not (order.is_last or order.block) or rank > 2:
        return node
    if not outputs == own["groups"] == image_sizes(tensor_type(data), order)[1]:
        return node
    shape = tensor_type(weight).shape
    taps = shape[:rank] if order.is_last else shape[2 : 2 + rank]
    image = _image(tensor_type(node).shape, order)
    sizes = {"bias": (image[1], image[4]), "add": image}
    steps = [step for step in own["epilogue"] if step in sizes]
    more = [reshaped(one, sizes[step]) for step, one in zip(steps, operands, strict=True)]
    attributes = {
        "window": taps,
        "strides": own["strides"],
        "dilation": own["dilation"],
        "before": own["padding"][:rank],
    }
    turned = reshaped(weight, (image[1], *_planar(taps, 1), image[4]))
    return _window(node, order, "depthwise", attributes, (turned, *more), own["epilogue"])


def _pool(node: Node, order: Order) -> Value:
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
    return _window(node, order, kind, attributes, counts_padding=kind == "mean" and bool(own["count_include_pad"]))


def _adaptive(node: Node, order: Order) -> Value:
    """Return a pool whose windows are equal parts of the image; other sizes stay as they are."""
    sizes, outputs = (image_sizes(tensor_type(one), order)[2:] for one in (node.arguments[0], node))
    if any(size % count for size, count in zip(sizes, outputs, strict=True)):
        return node
    if sizes == outputs:
        return node.arguments[0]  # type: ignore[no-any-return]
    window = tuple(size // count for size, count in zip(sizes, outputs, strict=True))
    attributes = {"window": window, "strides": window, "dilation": (1,) * len(window), "before": (0,) * len(window)}
    return _window(node, order, "mean", attributes)


def _window(
    node: Node,
    order: Order,
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
    image = TensorType(_image(tensor_type(node).shape, order), _DTYPE)
    found = {
        "kind": kind,
        **{name: _planar(tuple(value), int(name != "before")) for name, value in attributes.items()},
        "outputs": image.shape[2:4],
        "counts_padding": counts_padding,
        "epilogue": epilogue,
    }
    made = Node(WINDOW, (reshaped(data, _image(tensor_type(data).shape, order)), *operands), image, found)
    return reshaped(made, tensor_type(node).shape)


def _planar(sizes: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """Return sizes of height and width; an image of one dimension has `missing` as the first."""
    return (missing,) * (2 - len(sizes)) + tuple(map(int, sizes))


def _image(shape: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """Return the shape with blocks and a height."""
    batch, *others, channels = shape
    blocks = 1 if order.is_last else others.pop(0)
    return (batch, blocks, *_planar(tuple(others), 1), channels)
