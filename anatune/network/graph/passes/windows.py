"""Turn convolutions of small groups and pools into window kernels for CPUs, with channels last or in blocks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anatune.core.sizes import is_run_time
from anatune.core.workload.orders import Order, parse_order
from anatune.network.graph.building import reduce_axes
from anatune.network.graph.nodes import (
    Constant,
    Graph,
    Node,
    TensorType,
    Value,
    rewrite_graph,
    rewrite_with_originals,
    tensor_type,
)
from anatune.network.graph.operators import CONVOLUTION, WINDOW, find_operator
from anatune.network.graph.orders import image_sizes
from anatune.network.graph.passes.scaling import channel_values
from anatune.network.graph.passes.simplify import reshape_value
from anatune.network.graph.products import orders_of

__all__ = ["MOST_TAPS", "lower_windows", "replace_global_pools"]

_DTYPE = "float32"
_ADAPTIVE = ("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d")
MOST_TAPS = 64
"""The most taps of a window: the code of a kernel spells out all of them."""


def lower_windows(graph: Graph) -> Graph:
    """Return a graph whose convolutions of small groups and pools with channels last or in blocks are window kernels.

    A bias and a rectifier after them are fused, as for products.
    """
    uses = graph.uses()
    ends: dict[Value, Node] = {}  # replacement of a window with a single reader -> the window

    def replace(node: Node, old: Node) -> Value:
        result = with_window(node)
        window = result.arguments[0] if isinstance(result, Node) and result.op == "reshape" else result
        if isinstance(window, Node) and window.op == WINDOW and uses[old] == 1:
            ends[result] = window
        return result

    def with_window(node: Node) -> Value:
        if not isinstance(node.type, TensorType) or node.type.dtype != _DTYPE:
            return node
        if _is_open(node):  # the code of a kernel contains the borders of its images
            return node
        if node.op == CONVOLUTION:
            return _lower_groups(node)
        operator = find_operator(node)
        if (node.op == "add" or WINDOW in operator.fused_into) and node.arguments[0] in ends:
            return _fuse_step(node, ends[node.arguments[0]])
        if operator.own == WINDOW and node.attributes["out_layout"] in (None, "", node.attributes["layout"]):
            order = parse_order(node.attributes["layout"], 1 if node.op.endswith("1d") else 2)
            if order is not None and (order.is_last or order.block):
                return _lower_adaptive_pool(node, order) if node.op in _ADAPTIVE else _lower_pool(node, order)
        return node

    return rewrite_with_originals(graph, replace)


def _is_open(node: Node) -> bool:
    """Return whether a size other than the batch is known only at run time."""
    kinds = [node.type, *(value.type for value in node.arguments[:1] if isinstance(value, Value))]
    return any(isinstance(kind, TensorType) and is_run_time(kind.shape[1:]) for kind in kinds)


def _fuse_step(node: Node, window: Node) -> Value:
    """Return a window with the next step fused, or the step alone if a window cannot compute it."""
    shape = tensor_type(node).shape
    if node.type != tensor_type(node.arguments[0]):
        return node
    operands: tuple[Value, ...] = ()
    step = find_operator(node).word
    if node.op == "add":
        step = "bias"
        values = channel_values(node.arguments[1], shape, len(shape) - 1)
        if values is None or tensor_type(window).shape[1] != 1:
            return node
        operands = (Constant(np.ascontiguousarray(values).reshape(1, -1)),)
    epilogue = window.attributes["epilogue"]
    if step in epilogue:
        return node
    return reshape_value(window.of((*window.arguments, *operands), epilogue=(*epilogue, step)), shape)


def _lower_groups(node: Node) -> Value:
    data, weight, *operands = node.arguments
    attrs = node.attributes
    order, written = orders_of(node)
    rank = len(attrs["strides"])
    outputs = image_sizes(tensor_type(node), written)[1]
    if order != written or not (order.is_last or order.block) or rank > 2:
        return node
    if any(tensor_type(value).dtype != _DTYPE for value in (data, weight)):  # products handle sums of integers
        return node
    unit = attrs.get("unit", 0)
    if not unit and not outputs == attrs["groups"] == image_sizes(tensor_type(data), order)[1]:
        return node
    shape = tensor_type(weight).shape
    taps = shape[2:] if unit else shape[:rank] if order.is_last else shape[2 : 2 + rank]
    image = _image_shape(tensor_type(node).shape, order)
    sizes = {"bias": (image[1], image[4]), "add": image}
    steps = [step for step in attrs["epilogue"] if step in sizes]
    extras = [reshape_value(operand, sizes[step]) for step, operand in zip(steps, operands, strict=True)]
    windows = _window_sizes(node, taps)
    if unit:
        packed = Constant(_pack_groups(weight.array, image[1], unit))
        group = {"group": shape[1], "unit": unit}
        return _make_window(node, order, "grouped", windows, (packed, *extras), attrs["epilogue"], **group)
    taps_first = reshape_value(weight, (image[1], *_plane_sizes(taps, 1), image[4]))
    return _make_window(node, order, "depthwise", windows, (taps_first, *extras), attrs["epilogue"])


def _pack_groups(weight: NDArray[np.float32], blocks: int, unit: int) -> NDArray[np.float32]:
    """Return weights [outputs, group, taps] as `WindowKernel.shapes` has them; zeros fill the last unit of a block."""
    split = weight.reshape(blocks, -1, *weight.shape[1:])
    split = np.pad(split, [(0, 0), (0, -split.shape[1] % unit), *[(0, 0)] * 3])
    parts = split.reshape(blocks, -1, unit, *weight.shape[1:])
    return np.ascontiguousarray(parts.transpose(0, 1, 4, 3, 5, 2))


def _lower_pool(node: Node, order: Order) -> Value:
    attrs = node.attributes
    kind = "max" if node.op.startswith("nn.max") else "mean"
    if kind == "mean" and any(step != 1 for step in attrs["dilation"]):
        return node
    sizes = _window_sizes(node, attrs["pool_size"])
    return _make_window(node, order, kind, sizes, counts_padding=kind == "mean" and bool(attrs["count_include_pad"]))


def _window_sizes(node: Node, window: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the window attributes of a convolution or pool; ``before`` is the padding before the image."""
    attrs = node.attributes
    before = attrs["padding"][: len(window)]
    return {"window": window, "strides": attrs["strides"], "dilation": attrs["dilation"], "before": before}


def _lower_adaptive_pool(node: Node, order: Order) -> Value:
    """Return an adaptive pool as a window if its windows are equal parts of the image, else the node."""
    sizes, outputs = (image_sizes(tensor_type(value), order)[2:] for value in (node.arguments[0], node))
    if any(size % count for size, count in zip(sizes, outputs, strict=True)):
        return node
    if sizes == outputs:
        return reshape_value(node.arguments[0], tensor_type(node).shape)
    window = tuple(size // count for size, count in zip(sizes, outputs, strict=True))
    parts = {"window": window, "strides": window, "dilation": (1,) * len(window), "before": (0,) * len(window)}
    return _make_window(node, order, "mean", parts)


def _make_window(
    node: Node,
    order: Order,
    kind: str,
    sizes: dict[str, tuple[int, ...]],
    operands: tuple[Value, ...] = (),
    epilogue: tuple[str, ...] = (),
    *,
    counts_padding: bool = False,
    **more: int,
) -> Value:
    """Return the window that replaces a node, or the node if it has too many taps."""
    if math.prod(sizes["window"]) > MOST_TAPS:
        return node
    data = node.arguments[0]
    image = TensorType(_image_shape(tensor_type(node).shape, order), _DTYPE)
    attrs = {
        "kind": kind,
        **{name: _plane_sizes(tuple(value), int(name != "before")) for name, value in sizes.items()},
        "outputs": image.shape[2:4],
        "counts_padding": counts_padding,
        "epilogue": epilogue,
        **more,
    }
    window = Node(WINDOW, (reshape_value(data, _image_shape(tensor_type(data).shape, order)), *operands), image, attrs)
    return reshape_value(window, tensor_type(node).shape)


def _plane_sizes(sizes: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """Return sizes of height and width; `missing` is the height of an image of one dimension."""
    return (missing,) * (2 - len(sizes)) + tuple(map(int, sizes))


def _image_shape(shape: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """Return the shape with dimensions for blocks and height."""
    batch, *others, channels = shape
    blocks = 1 if order.is_last else others.pop(0)
    return (batch, blocks, *_plane_sizes(tuple(others), 1), channels)


def replace_global_pools(graph: Graph) -> Graph:
    """Return a graph whose pools over whole images are means, which are compiled together with their operands."""

    def replace(node: Node) -> Value:
        if node.op not in _ADAPTIVE or tensor_type(node).dtype != _DTYPE:
            return node
        image = 1 if node.op.endswith("1d") else 2
        order = parse_order(node.attributes["layout"], image)
        if order is None:
            return node
        first = 1 if order.is_last else 2
        axes = range(first, first + image)
        if any(tensor_type(node).shape[axis] != 1 for axis in axes):
            return node
        return reduce_axes("mean", node.arguments[0], list(axes), keepdims=True)

    return rewrite_graph(graph, replace)
