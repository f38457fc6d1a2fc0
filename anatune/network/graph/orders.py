"""Types of tensors of images in other orders of their dimensions, and sizes of what windows leave.

Notation
--------
block : channels that lie side by side where the order has blocks; 1 for tensors of one channel, which broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.orders import Order
from anatune.network.graph.nodes import TensorType

__all__ = ["IMAGE_RANKS", "block_of", "image_sizes", "pool_sizes", "typed_in"]

IMAGE_RANKS = (3, 4, 5)
"""Dimensions of tensors of images: batch, channels, and one to three of the image."""


def typed_in(kind: TensorType, order: Order) -> TensorType:
    """Return the type of a tensor (batch, channels, image) in an order."""
    batch, channels, *image = kind.shape
    if order.is_last:
        return TensorType((batch, *image, channels), kind.dtype)
    if order.block:
        block = block_of(channels, order)
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


def block_of(channels: int, order: Order) -> int:
    """Return the channels of a block; without blocks each channel is one."""
    return order.block if channels > 1 and order.block else 1


def pool_sizes(
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    ceil_mode: bool = False,
) -> tuple[int, ...]:
    """Return the sizes of what windows leave; with `ceil_mode` they may hang over what they begin in."""
    found, rank = [], len(sizes)
    for axis in range(rank):
        before, after = padding[axis], padding[rank + axis]
        room = sizes[axis] + before + after - dilation[axis] * (window[axis] - 1) - 1
        count = (-(-room // strides[axis]) if ceil_mode else room // strides[axis]) + 1
        if ceil_mode and (count - 1) * strides[axis] >= sizes[axis] + before:
            count -= 1
        if count < 1:
            raise ValueError(f"a window of {window[axis]} does not fit into {sizes[axis]} elements")
        found.append(int(count))
    return tuple(found)
