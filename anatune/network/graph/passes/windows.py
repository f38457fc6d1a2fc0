"""Depthwise convolutions and pools as kernels of their own for CPUs, channels last or in blocks."""

from __future__ import annotations

import math

import numpy as np

from anatune.core.sizes import at_run_time
from anatune.core.workload.orders import Order, order_named
from anatune.network.graph.building import reduced
from anatune.network.graph.nodes import (
    Constant,
    Graph,
    Node,
    TensorType,
    Value,
    rewritten,
    rewritten_beside,
    tensor_type,
)
from anatune.network.graph.operators import CONVOLUTION, WINDOW, operator_of
from anatune.network.graph.orders import image_sizes
from anatune.network.graph.passes.scaling import channel_values
from anatune.network.graph.passes.simplify import reshaped
from anatune.network.graph.products import orders_of

__all__ = ["with_means", "with_windows"]

_DTYPE = "float32"
_ADAPTIVE = ("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d")
_MOST_TAPS = 64
"""Of a window: all are written out in the code of a kernel."""


def with_windows(graph: Graph) -> Graph:
    """Return a graph whose depthwise convolutions and pools with the channels last are anatune's.

    Pools take a bias and a rectifier behind them along, as products do.
    """
    uses = graph.uses()
    ends: dict[Value, Node] = {}  # windows that are read once, by what stands for their results

    def replace(node: Node, old: Node) -> Value:
        made = with_window(node)
        window = made.arguments[0] if isinstance(made, Node) and made.op == "reshape" else made
        if isinstance(window, Node) and window.op == WINDOW and uses[old] == 1:
            ends[made] = window
        return made

    def with_window(own: Node) -> Value:
        if not isinstance(own.type, TensorType) or own.type.dtype != _DTYPE:
            return own
        if _is_open(own):  # borders are parts of the code
            return own
        if own.op == CONVOLUTION:
            return _depthwise(own)
        operator = operator_of(own)
        if (own.op == "add" or WINDOW in operator.fused_into) and own.arguments[0] in ends:
            return _with_step(own, ends[own.arguments[0]])
        if operator.own == WINDOW and own.attributes["out_layout"] in (None, "", own.attributes["layout"]):
            order = order_named(own.attributes["layout"], 1 if own.op.endswith("1d") else 2)
            if order is not None and (order.is_last or order.block):
                return _adaptive(own, order) if own.op in _ADAPTIVE else _pool(own, order)
        return own

    return rewritten_beside(graph, replace)


def _is_open(node: Node) -> bool:
    """Whether a size of its images, but for the batch, is known at run time alone."""
    kinds = [node.type, *(value.type for value in node.arguments[:1] if isinstance(value, Value))]
    return any(isinstance(kind, TensorType) and at_run_time(kind.shape[1:]) for kind in kinds)


def _with_step(node: Node, window: Node) -> Value:
    """Return a window with the step that follows it; the step alone where it is none of a window's."""
    shape = tensor_type(node).shape
    if node.type != tensor_type(node.arguments[0]):
        return node
    operands: tuple[Value, ...] = ()
    step = operator_of(node).word
    if node.op == "add":
        step = "bias"
        values = channel_values(node.arguments[1], shape, len(shape) - 1)
        if values is None or tensor_type(window).shape[1] != 1:
            return node
        operands = (Constant(np.ascontiguousarray(values).reshape(1, -1)),)
    epilogue = window.attributes["epilogue"]
    if step in epilogue:
        return node
    return reshaped(window.of((*window.arguments, *operands), epilogue=(*epilogue, step)), shape)


def _depthwise(node: Node) -> Value:
    data, weight, *operands = node.arguments
    own = node.attributes
    order, written = orders_of(node)
    rank = len(own["strides"])
    outputs = image_sizes(tensor_type(node), written)[1]
    if order != written or not (order.is_last or order.block) or rank > 2:
        return node
    if any(tensor_type(value).dtype != _DTYPE for value in (data, weight)):  # sums of integers, which products have
        return node
    if not outputs == own["groups"] == image_sizes(tensor_type(data), order)[1]:
        return node
    shape = tensor_type(weight).shape
    taps = shape[:rank] if order.is_last else shape[2 : 2 + rank]
    image = _image(tensor_type(node).shape, order)
    sizes = {"bias": (image[1], image[4]), "add": image}
    steps = [step for step in own["epilogue"] if step in sizes]
    more = [reshaped(one, sizes[step]) for step, one in zip(steps, operands, strict=True)]
    turned = reshaped(weight, (image[1], *_planar(taps, 1), image[4]))
    return _window(node, order, "depthwise", _sizes(node, taps), (turned, *more), own["epilogue"])


def _pool(node: Node, order: Order) -> Value:
    own = node.attributes
    kind = "max" if node.op.startswith("nn.max") else "mean"
    if kind == "mean" and any(step != 1 for step in own["dilation"]):
        return node
    sizes = _sizes(node, own["pool_size"])
    return _window(node, order, kind, sizes, counts_padding=kind == "mean" and bool(own["count_include_pad"]))


def _sizes(node: Node, window: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a convolution or pool as a window's attributes; the padding's are those before the image."""
    own = node.attributes
    before = own["padding"][: len(window)]
    return {"window": window, "strides": own["strides"], "dilation": own["dilation"], "before": before}


def _adaptive(node: Node, order: Order) -> Value:
    """Return a pool whose windows are equal parts of the image; other sizes stay as they are."""
    sizes, outputs = (image_sizes(tensor_type(value), order)[2:] for value in (node.arguments[0], node))
    if any(size % count for size, count in zip(sizes, outputs, strict=True)):
        return node
    if sizes == outputs:
        return reshaped(node.arguments[0], tensor_type(node).shape)
    window = tuple(size // count for size, count in zip(sizes, outputs, strict=True))
    parts = {"window": window, "strides": window, "dilation": (1,) * len(window), "before": (0,) * len(window)}
    return _window(node, order, "mean", parts)


def _window(
    node: Node,
    order: Order,
    kind: str,
    sizes: dict[str, tuple[int, ...]],
    operands: tuple[Value, ...] = (),
    epilogue: tuple[str, ...] = (),
    *,
    counts_padding: bool = False,
) -> Value:
    """Return the window in place of a node; where it has too many taps, the node."""
    if math.prod(sizes["window"]) > _MOST_TAPS:
        return node
    data = node.arguments[0]
    image = TensorType(_image(tensor_type(node).shape, order), _DTYPE)
    attributes = {
        "kind": kind,
        **{name: _planar(tuple(value), int(name != "before")) for name, value in sizes.items()},
        "outputs": image.shape[2:4],
        "counts_padding": counts_padding,
        "epilogue": epilogue,
    }
    made = Node(WINDOW, (reshaped(data, _image(tensor_type(data).shape, order)), *operands), image, attributes)
    return reshaped(made, tensor_type(node).shape)


def _planar(sizes: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """Return sizes of height and width; an image of one dimension has `missing` as the first."""
    return (missing,) * (2 - len(sizes)) + tuple(map(int, sizes))


def _image(shape: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """Return the shape with blocks and a height."""
    batch, *others, channels = shape
    blocks = 1 if order.is_last else others.pop(0)
    return (batch, blocks, *_planar(tuple(others), 1), channels)


def with_means(graph: Graph) -> Graph:
    """Return a graph whose pools of whole images are means, which are compiled with what comes before."""

    def replace(own: Node) -> Value:
        if own.op not in _ADAPTIVE or tensor_type(own).dtype != _DTYPE:
            return own
        image = 1 if own.op.endswith("1d") else 2
        order = order_named(own.attributes["layout"], image)
        if order is None:
            return own
        first = 1 if order.is_last else 2
        axes = range(first, first + image)
        if any(tensor_type(own).shape[axis] != 1 for axis in axes):
            return own
        return reduced("mean", own.arguments[0], list(axes), keepdims=True)

    return rewritten(graph, replace)
