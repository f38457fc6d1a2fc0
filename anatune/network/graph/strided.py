"""The memory layout of a value within another one: reshapes, permutations and slices move nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from anatune.network.graph.nodes import ITEM, Node, Scalar, TensorType, Value, tensor_type

__all__ = ["HeadLayout", "View", "view_of"]


class HeadLayout(NamedTuple):
    """The position of element (batch b, head h, row r, column c) in memory.

    ``offset + b * batch + h // group * head + r * row + c``.
    """

    offset: int
    batch: int
    head: int
    row: int
    group: int = 1


class View(NamedTuple):
    """A strided view of the elements of `base`, which is contiguous.

    Attributes
    ----------
    base : Value
    offset : int
        The position of the first element.
    sizes, strides : tuple of int
        The size and the stride of each dimension; strides in elements.
    """

    base: Value
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def reshape(self, sizes: Sequence[int]) -> View | None:
        """Return a view of the same elements with other dimensions, or None if no strides describe it.

        Source: NumPy's rule (numpy/_core/src/multiarray/shape.c, ``_attempt_nocopy_reshape``): adjacent dimensions that
        lie in memory like one dimension are merged, and the merged one may be divided.
        """
        merged: list[tuple[int, int]] = []
        for size, stride in zip(self.sizes, self.strides, strict=True):
            if size == 1:
                continue
            if merged and merged[-1][1] == size * stride:
                merged[-1] = (merged[-1][0] * size, stride)
            else:
                merged.append((size, stride))
        strides: list[int] = []
        remaining, step = 1, 0
        for size in reversed(sizes):
            if size == 1:
                strides.append(0)
                continue
            if remaining == 1:
                if not merged:
                    return None
                remaining, step = merged.pop()
            if remaining % size:
                return None
            strides.append(step)
            remaining, step = remaining // size, step * size
        return None if merged or remaining > 1 else self._replace(sizes=tuple(sizes), strides=tuple(reversed(strides)))


def view_of(value: Value) -> View:
    """Return a tensor as a view of the value whose memory it can share, which may be the tensor itself."""
    shape = tensor_type(value).shape
    contiguous = View(value, 0, shape, tuple(math.prod(shape[dimension + 1 :]) for dimension in range(len(shape))))
    if not isinstance(value, Node) or not isinstance(value.arguments[0], Value):
        return contiguous
    source = value.arguments[0]
    if value.op == "reshape":
        return view_of(source).reshape(shape) or contiguous
    if value.op == "permute_dims":
        inner, axes = view_of(source), value.attributes["axes"]
        return inner._replace(sizes=shape, strides=tuple(inner.strides[axis] for axis in axes))
    if value.op == "broadcast_to":
        inner, missing = view_of(source), len(shape) - len(tensor_type(source).shape)
        sizes = (1,) * missing + inner.sizes
        strides = (0,) * missing + inner.strides
        repeated = (stride if size == whole else 0 for stride, size, whole in zip(strides, sizes, shape, strict=True))
        return inner._replace(sizes=shape, strides=tuple(repeated))
    bounds = value.arguments[1:]
    if value.op == "strided_slice" and all(
        type(bound) is tuple and all(isinstance(scalar, Scalar) for scalar in bound) for bound in bounds
    ):
        inner = view_of(source)
        offset, new_strides = inner.offset, list(inner.strides)
        axes, begins, ends, *steps = ([int(scalar.value) for scalar in bound] for bound in bounds)
        for axis, begin, end, step in zip(axes, begins, ends, steps[0] if steps else [1] * len(axes), strict=True):
            offset += slice(begin, end, step).indices(inner.sizes[axis])[0] * inner.strides[axis]
            new_strides[axis] = step * inner.strides[axis]
        return inner._replace(offset=offset, sizes=shape, strides=tuple(new_strides))
    if value.op == ITEM and isinstance(source, Node) and source.op == "split":
        whole = source.arguments[0]
        assert isinstance(whole, Value)
        assert not isinstance(source.type, TensorType)
        axis = int(source.attributes["axis"]) % len(shape)
        inner = view_of(whole)
        before = sum(kind.shape[axis] for kind in source.type[: value.attributes["index"]])
        return inner._replace(offset=inner.offset + before * inner.strides[axis], sizes=shape)
    return contiguous
