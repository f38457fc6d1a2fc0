"""Tensors of images in other orders of their dimensions: sizes, and values that are turned from one to another.

Notation
--------
block : channels that lie side by side where the order has blocks; 1 for tensors of one channel, which broadcast.
"""

from __future__ import annotations

import numpy as np

from anatune.core.workload.orders import CHANNELS_FIRST, Order
from anatune.graph.nodes import Constant, Input, Node, TensorType, Value, frozen, tensor_type
from anatune.graph.simplify import permuted, reshaped

__all__ = ["IMAGE_RANKS", "image_sizes", "permuted_value", "reordered", "reordered_in_place", "typed_in"]

IMAGE_RANKS = (3, 4, 5)
"""Dimensions of tensors of images: batch, channels, and one to three of the image."""


def permuted_value(value: Value, axes: tuple[int, ...]) -> Value:
    """Return a value with its dimensions in another order; a constant's is a view, not a copy."""
    if isinstance(value, Constant):
        return Constant(frozen(np.transpose(value.array, axes)))
    return permuted(value, axes)


def typed_in(kind: TensorType, order: Order) -> TensorType:
    """Return the type of a tensor (batch, channels, image) in an order."""
    batch, channels, *image = kind.shape
    if order.is_last:
        return TensorType((batch, *image, channels), kind.dtype)
    if order.block:
        block = _block(channels, order)
        return TensorType((batch, channels // block, *image, block), kind.dtype)
    return kind


def image_sizes(kind: TensorType, order: Order) -> tuple[int, ...]:
    """Return (batch, channels, image) of a type in an order."""
    batch, *others = kind.shape
    if order.is_last:
        return (batch, others[-1], *others[:-1])
    if order.block:
        return (batch, others[0] * others[-1], *others[1:-1])
    return kind.shape


def reordered(value: Value, before: Order, after: Order) -> Value:
    """Return a value that lies in the order `before` in the order `after`: itself, a constant, or one transpose.

    Blocks of another length take two transposes.
    """
    if before == after:
        return value
    if before.block and after.block:
        return reordered(reordered(value, before, CHANNELS_FIRST), CHANNELS_FIRST, after)
    plain = TensorType(image_sizes(tensor_type(value), before), tensor_type(value).dtype)
    batch, channels, *image = plain.shape
    block = _block(channels, before if before.block else after)
    sizes = {"n": batch, "c": channels // block, "b": block} | {str(at): size for at, size in enumerate(image)}
    names, wanted = (
        [name for name in _names(order, len(image)) if name != "b" or block > 1] for order in (before, after)
    )
    split = reshaped(value, tuple(sizes[name] for name in names))
    turned = permuted_value(split, tuple(names.index(name) for name in wanted))
    return reshaped(turned, typed_in(plain, after).shape)


def reordered_in_place(kind: TensorType, before: Order, after: Order) -> bool:
    """Whether nothing moves in memory when a tensor, of a type with its channels first, goes to another order."""
    made = reordered(Input("", typed_in(kind, before)), before, after)
    while isinstance(made, Node) and made.op == "reshape":
        made = made.arguments[0]
    return isinstance(made, Input)


def _names(order: Order, num_dimensions: int) -> list[str]:
    """Return the dimensions with blocks of channels (c) and channels of a block (b) apart."""
    image = [str(at) for at in range(num_dimensions)]
    if order.is_last:
        return ["n", *image, "c", "b"]
    return ["n", "c", *image, "b"] if order.block else ["n", "c", "b", *image]


def _block(channels: int, order: Order) -> int:
    return order.block if channels > 1 and order.block else 1
