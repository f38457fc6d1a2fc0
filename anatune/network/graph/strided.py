"""Where the elements of a value lie in the memory of another: reshapes, permutations and parts move nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from anatune.network.graph.nodes import ITEM, Node, Scalar, TensorType, Value, tensor_type

__all__ = ["Place", "View", "view_of"]


class Place(NamedTuple):
    """Where element (batch b, head h, row r, column c) lies.

    ``offset + b * batch + h // group * head + r * row + c``.
    """

    offset: int
    batch: int
    head: int
    row: int
    group: int = 1


class View(NamedTuple):
    """Elements of `base`, which is contiguous.

    Attributes
    ----------
    base : Value
    offset : int
        Of the first element.
    sizes, strides : tuple of int
        Of each dimension; strides in elements.
    """

    base: Value
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def reshaped(self, sizes: Sequence[int]) -> View | None:
        """Return the same elements in other dimensions; None: no strides describe that.

        Source: NumPy's rule (numpy/_core/src/multiarray/shape.c, ``_attempt_nocopy_reshape``): neighbours that lie as
        one dimension are one, which may be divided.
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
        left, step = 1, 0
        for size in reversed(sizes):
            if size == 1:
                strides.append(0)
                continue
            if left == 1:
                if not merged:
                    return None
                left, step = merged.pop()
            if left % size:
                return None
            strides.append(step)
            left, step = left // size, step * size
        return None if merged or left > 1 else self._replace(sizes=tuple(sizes), strides=tuple(reversed(strides)))


def view_of(value: Value) -> View:
    """Return where the elements of a tensor lie; what is computed lies in itself."""
    own = tensor_type(value).shape
    plain = View(value, 0, own, tuple(math.prod(own[place + 1 :]) for place in range(len(own))))
    if not isinstance(value, Node) or not isinstance(value.arguments[0], Value):
        return plain
    source = value.arguments[0]
    if value.op == "reshape":
        return view_of(source).reshaped(own) or plain
    if value.op == "permute_dims":
        inner, axes = view_of(source), value.attributes["axes"]
        return inner._replace(sizes=own, strides=tuple(inner.strides[axis] for axis in axes))
    if value.op == "broadcast_to":
        inner, missing = view_of(source), len(own) - len(tensor_type(source).shape)
        sizes = (1,) * missing + inner.sizes
        strides = (0,) * missing + inner.strides
        kept = (stride if size == whole else 0 for stride, size, whole in zip(strides, sizes, own, strict=True))
        return inner._replace(sizes=own, strides=tuple(kept))
    words = value.arguments[1:]
    if value.op == "strided_slice" and all(
        type(word) is tuple and all(isinstance(one, Scalar) for one in word) for word in words
    ):
        inner = view_of(source)
        offset, apart = inner.offset, list(inner.strides)
        axes, begins, ends, *steps = ([int(one.value) for one in word] for word in words)
        for axis, begin, end, step in zip(axes, begins, ends, steps[0] if steps else [1] * len(axes), strict=True):
            offset += slice(begin, end, step).indices(inner.sizes[axis])[0] * inner.strides[axis]
            apart[axis] = step * inner.strides[axis]
        return inner._replace(offset=offset, sizes=own, strides=tuple(apart))
    if value.op == ITEM and isinstance(source, Node) and source.op == "split":
        whole = source.arguments[0]
        assert isinstance(whole, Value)
        assert not isinstance(source.type, TensorType)
        axis = int(source.attributes["axis"]) % len(own)
        inner = view_of(whole)
        before = sum(kind.shape[axis] for kind in source.type[: value.attributes["index"]])
        return inner._replace(offset=inner.offset + before * inner.strides[axis], sizes=own)
    return plain
