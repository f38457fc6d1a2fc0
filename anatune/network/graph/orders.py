"""Types of image tensors in other orders of their dimensions, and output sizes of windows.

Notation
--------
block : the number of channels that lie side by side in blocked orders; 1 for tensors of one channel, which broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.orders import Order
from anatune.network.graph.nodes import TensorType

__all__ = ["IMAGE_RANKS", "block_size", "image_sizes", "pool_sizes", "reorder_type"]

IMAGE_RANKS = (3, 4, 5)
"""The ranks of image tensors: batch, channels, and one to three dimensions of the image."""


def reorder_type(kind: TensorType, order: Order) -> TensorType:
    """Return the type of a (batch, channels, image) tensor in another order."""
    batch, channels, *image = kind.shape
    if order.is_last:
        return TensorType((batch, *image, channels), kind.dtype)
    if order.block:
        block = block_size(channels, order)
        return TensorType((batch, channels // block, *image, block), kind.dtype)
    return kind


def image_sizes(kind: TensorType, order: Order) -> tuple[int, ...]:
    """Return the sizes (batch, channels, image) of a type in an order."""
    batch, *others = kind.shape
    if order.is_last:
        return (batch, others[-1], *others[:-1])
    if order.block:
        return (batch, others[0] * others[-1], *others[1:-1])
    return kind.shape


def block_size(channels: int, order: Order) -> int:
    """Return the number of channels in a block, 1 for orders without blocks."""
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
    """Return the output sizes of a sliding window; with `ceil_mode` the last window may reach beyond the padding."""
    outputs, rank = [], len(sizes)
    for axis in range(rank):
        before, after = padding[axis], padding[rank + axis]
        span = sizes[axis] + before + after - dilation[axis] * (window[axis] - 1) - 1
        count = (-(-span // strides[axis]) if ceil_mode else span // strides[axis]) + 1
        if ceil_mode and (count - 1) * strides[axis] >= sizes[axis] + before:
            count -= 1
        if count < 1:
            raise ValueError(f"a window of {window[axis]} does not fit into {sizes[axis]} elements with their padding")
        outputs.append(int(count))
    return tuple(outputs)
