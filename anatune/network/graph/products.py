"""The workloads of the products of a network: convolutions and matrix products that anatune has kernels for."""

from __future__ import annotations

from functools import lru_cache

from anatune.core.workload.nest import Attribute, Workload
from anatune.core.workload.number_formats import format_word
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.orders import Order, parse_order
from anatune.network.graph.nodes import Constant, Node, tensor_type
from anatune.network.graph.operators import BATCH_MATMUL, EXPERTS, MATMUL, SCALED_MATMUL
from anatune.network.graph.orders import image_sizes

__all__ = ["ZERO_POINTS", "constant_operands", "is_depthwise", "make_workload", "orders_of", "workload_of"]

ZERO_POINTS = ("input_zero_point", "output_zero_point")
"""The zero-point attributes that products of 8-bit integers share with their workloads."""
_SIZES = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
_TAPS = {1: ("s",), 2: ("r", "s"), 3: ("t", "r", "s")}


@lru_cache(maxsize=4096)  # layers of a network ask for the same workloads again and again
def make_workload(operator: str, **attributes: Attribute) -> Workload:
    """Return the workload that an operator's constructor makes, and raise the errors that it raises."""
    return CONSTRUCTORS[operator](**attributes)


def workload_of(node: Node) -> Workload:
    """Return the workload of a product, at its planned sizes.

    Raises
    ------
    WorkloadError
        The product is too large, or its padding is one that anatune has no kernels for.
    """
    kinds = [tensor_type(argument) for argument in node.arguments[:2]]
    data, weight = (tuple(map(int, kind.shape)) for kind in kinds)
    if node.op == EXPERTS:
        return _experts_workload(node, weight[0], data[1])
    steps = node.attributes["epilogue"]
    if node.op == SCALED_MATMUL:
        return _scaled_workload(node, data[0], data[1], weight[0])
    attrs = {name: node.attributes[name] for name in ZERO_POINTS if name in node.attributes}
    word = format_word([kind.dtype for kind in kinds], tensor_type(node).dtype, steps)
    attrs |= {"dtype": node.attributes.get("dtype") or word, "epilogue": steps}
    if node.op == MATMUL:
        return make_workload("matmul", m=data[0], n=weight[1], k=data[1], **attrs)
    if node.op == BATCH_MATMUL:
        return make_workload("batch_matmul", b=data[0], m=data[1], n=weight[2], k=data[2], **attrs)
    read, written = orders_of(node)
    rank = len(node.attributes["strides"])
    batch, channels, *sizes = map(int, image_sizes(tensor_type(node.arguments[0]), read))
    outputs = image_sizes(tensor_type(node), written)[1]
    taps = weight[:rank] if written.is_last else weight[2 : 2 + rank]
    return make_workload(
        f"conv{rank}d",
        n=batch,
        c=channels,
        k=outputs,
        **dict(zip(_SIZES[rank], sizes, strict=True)),
        **dict(zip(_TAPS[rank], taps, strict=True)),
        stride=node.attributes["strides"],
        padding=node.attributes["padding"],
        dilation=node.attributes["dilation"],
        groups=node.attributes["groups"],
        layout=node.attributes["layout"],
        **attrs,
    )


def _scaled_workload(node: Node, m: int, k: int, n: int) -> Workload:
    attrs = node.attributes
    if "scales" in attrs:  # scales of rows and columns: 8-bit floats on GPUs
        return make_workload("scaled_matmul", m=m, n=n, k=k, dtype=f"{attrs['dtype']}:bfloat16", scales=attrs["scales"])
    fields = {name: attrs[name] for name in ("zero_points", "rounded", "epilogue")}
    group = 0 if attrs["group"] == k else attrs["group"]
    return make_workload("scaled_matmul", m=m, n=n, k=k, dtype=f"float32xint{attrs['bits']}", group=group, **fields)


def _experts_workload(node: Node, experts: int, k: int) -> Workload:
    (rows, n), attrs = tensor_type(node).shape, node.attributes
    return make_workload("grouped_matmul", tokens=rows // attrs["top_k"], experts=experts, n=n, k=k, **attrs)


def orders_of(node: Node) -> tuple[Order, Order]:
    """Return the orders in which a convolution reads its data and writes its result."""
    rank = len(node.attributes["strides"])
    orders = [parse_order(word, rank) for word in node.attributes["layout"].split(":")]
    read, written = orders[0], orders[-1]
    assert read is not None
    assert written is not None
    return read, written


def is_depthwise(node: Node) -> bool:
    """Return whether a convolution in channels-first order has one group for each channel."""
    channels = [tensor_type(value).shape[1] for value in (node.arguments[0], node)]
    return node.attributes["groups"] > 1 and channels == [node.attributes["groups"]] * 2


def constant_operands(node: Node) -> tuple[str, ...]:
    """Return the names of a product's constant operands, which can be packed ahead of time."""
    workload = workload_of(node)
    return tuple(
        access.tensor
        for access, value in zip(workload.reads, node.arguments, strict=False)
        if isinstance(value, Constant)
    )
