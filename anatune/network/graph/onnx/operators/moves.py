"""Readers of operators that move elements to positions known when a model is read: shapes, slices, pads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    axis_indices,
    broadcast,
    cast,
    concat,
    constant,
    elementwise,
    make_node,
    pad_tensor,
    permute,
    reshape,
    slice_axes,
    split,
    take_slices,
    where,
)
from anatune.network.graph.nodes import Constant, Scalar, Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError, check_table

__all__ = ["READERS"]


def _shape(call: OnnxCall) -> Value:
    sizes = call.kind().shape[call.attributes.get("start", 0) : call.attributes.get("end")]
    return constant(np.array(sizes, "int64"), "int64")


def _size(call: OnnxCall) -> Value:
    return constant(math.prod(call.kind().shape), "int64")


def _reshape(call: OnnxCall) -> Value:
    sizes = [int(size) for size in call.constant_values(1, "the shape").reshape(-1)]
    if not call.attributes.get("allowzero"):
        sizes = [call.kind().shape[dimension] if size == 0 else size for dimension, size in enumerate(sizes)]
    return reshape(call[0], sizes)


def _transpose(call: OnnxCall) -> Value:
    return permute(call[0], call.attributes.get("perm") or range(call.rank)[::-1])


def _squeeze(call: OnnxCall) -> Value:
    axes, shape = call.numbers("axes", 1), call.kind().shape
    if axes is None:
        axes = [axis for axis, size in enumerate(shape) if size == 1]
    named = {axis % call.rank for axis in axes} if call.rank else set()
    return reshape(call[0], [size for axis, size in enumerate(shape) if axis not in named])


def _unsqueeze(call: OnnxCall) -> Value:
    axes = call.numbers("axes", 1) or []
    rank = call.rank + len(axes)
    named = {axis % rank for axis in axes}
    sizes = iter(call.kind().shape)
    return reshape(call[0], [1 if axis in named else next(sizes) for axis in range(rank)])


def _flatten(call: OnnxCall) -> Value:
    axis, shape = call.attributes["axis"], call.kind().shape
    axis = axis + call.rank if axis < 0 else axis
    return reshape(call[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _expand(call: OnnxCall) -> Value:
    return broadcast(call[0], [int(size) for size in call.constant_values(1, "the shape").reshape(-1)])


def _concat(call: OnnxCall) -> Value:
    return concat([call[place] for place in range(len(call.inputs))], call.attributes["axis"])


def _split(call: OnnxCall) -> Sequence[Value]:
    """Return parts of the given sizes, or of equal sizes, of which the last one may be smaller."""
    axis, sizes = call.attributes["axis"], call.numbers("split", 1)
    size = call.kind().shape[axis]
    if sizes is None:
        count = len(call.outputs)
        if call.attributes.get("num_outputs", count) != count:
            raise RefusedError(f"has num_outputs {call.attributes['num_outputs']}, but {count} outputs")
        each = -(-size // count)
        sizes = [max(0, min(each, size - each * place)) for place in range(count)]
    if sum(sizes) != size:
        raise RefusedError(f"splits {size} elements into parts of {sum(sizes)} in total, expected as many")
    return split(call[0], sizes, axis)


def _slice(call: OnnxCall) -> Value:
    """Return a slice; its numbers are attributes before version 10, then operands."""
    starts, ends = call.numbers("starts", 1), call.numbers("ends", 2)
    axes, steps = call.numbers("axes", 3), call.numbers("steps", 4)
    if starts is None or ends is None:
        raise RefusedError("has no starts or no ends, expected both")
    return slice_axes(call[0], range(len(starts)) if axes is None else axes, starts, ends, steps)


def _tile(call: OnnxCall) -> Value:
    """Return a repeated tensor: each dimension gets a new one before it, which is broadcast."""
    shape, repeats = call.kind().shape, [int(count) for count in call.constant_values(1, "how often").reshape(-1)]
    split_shape = [size for pair in zip((1,) * call.rank, shape, strict=True) for size in pair]
    repeated_shape = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    sizes = [count * size for count, size in zip(repeats, shape, strict=True)]
    return reshape(broadcast(reshape(call[0], split_shape), repeated_shape), sizes)


def _pad(call: OnnxCall) -> Value:
    """Return a padded or cropped tensor; its numbers are attributes before version 11, then operands."""
    pads, axes = call.numbers("pads", 1), call.numbers("axes", 3)
    axes = list(range(call.rank)) if axes is None else axes
    if pads is None or len(pads) != 2 * len(axes):
        raise RefusedError(f"has {len(pads or [])} pads, expected two for each of {len(axes)} dimensions")
    before, after = [0] * call.rank, [0] * call.rank
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[index + len(axes)]
    shape = call.kind().shape
    value = slice_axes(
        call[0], range(call.rank), [max(0, -size) for size in before],
        [max(0, size + min(0, more)) for size, more in zip(shape, after, strict=True)],
    )  # fmt: skip
    before, after = [max(0, size) for size in before], [max(0, size) for size in after]
    mode = call.attributes["mode"]
    if mode != "constant":
        for axis, more in enumerate(zip(before, after, strict=True)):
            if any(more):
                check_table(sum(more) + tensor_type(value).shape[axis])
                places = np.pad(np.arange(tensor_type(value).shape[axis]), more, mode)
                value = take_slices(value, constant(places, "int64"), axis)
        return value
    number = call.get(2)
    if number is None:
        return _pad_any(value, before, after, call.attributes.get("value", 0.0))
    if isinstance(number, Constant):
        return _pad_any(value, before, after, number.array.reshape(()).item())
    is_kept = np.pad(np.ones(tensor_type(value).shape, bool), list(zip(before, after, strict=True)))
    return where(constant(is_kept, "bool"), _pad_any(value, before, after, 0), reshape(number, ()))


def _pad_any(value: Value, before: Sequence[int], after: Sequence[int], number: float) -> Value:
    """Return a tensor padded with a number; booleans are padded as bytes, because TVM cannot pad booleans."""
    kind = tensor_type(value)
    if not math.prod(kind.shape):
        shape = [sum(sizes) for sizes in zip(before, kind.shape, after, strict=True)]
        return broadcast(constant(number, kind.dtype), shape)
    if kind.dtype == "bool":
        return cast(pad_tensor(cast(value, "uint8"), before, after, number), "bool")
    return pad_tensor(value, before, after, number)


def _center_crop_pad(call: OnnxCall) -> Value:
    value, sizes = call[0], call.constant_values(1, "the sizes").reshape(-1)
    before, after = [0] * call.rank, [0] * call.rank
    for axis, size in zip(call.attributes.get("axes") or range(call.rank), sizes, strict=True):
        more = int(size) - call.kind().shape[axis]
        if more < 0:
            value = slice_axes(value, [axis], [-more // 2], [-more // 2 + int(size)])
        else:
            before[axis], after[axis] = more // 2, more - more // 2
    return _pad_any(value, before, after, 0)


def _depth_to_space(call: OnnxCall) -> Value:
    """Return channels rearranged as pixels; the channels of a block are outermost, or innermost (CRD)."""
    batch, channels, height, width = call.kind().shape
    size = call.attributes["blocksize"]
    depth = channels // size**2
    if call.attributes.get("mode") == "CRD":
        pixels = permute(reshape(call[0], (batch, depth, size, size, height, width)), (0, 1, 4, 2, 5, 3))
    else:
        pixels = permute(reshape(call[0], (batch, size, size, depth, height, width)), (0, 3, 4, 1, 5, 2))
    return reshape(pixels, (batch, depth, height * size, width * size))


def _space_to_depth(call: OnnxCall) -> Value:
    batch, channels, height, width = call.kind().shape
    size = call.attributes["blocksize"]
    blocks = reshape(call[0], (batch, channels, height // size, size, width // size, size))
    order = (0, 1, 3, 5, 2, 4) if call.attributes.get("mode") == "CRD" else (0, 3, 5, 1, 2, 4)
    return reshape(permute(blocks, order), (batch, channels * size**2, height // size, width // size))


def _trilu(call: OnnxCall) -> Value:
    """Return the elements above or below a diagonal, and zeros elsewhere."""
    kind, diagonal, is_upper = call.kind(), call.get(1), call.attributes["upper"]
    if call.rank < 2:
        raise RefusedError(f"has an input {kind}, expected at least 2 dimensions")
    if diagonal is None or isinstance(diagonal, Constant):
        number = 0 if diagonal is None else diagonal.array.item()
        return make_node("triu" if is_upper else "tril", (call[0], Scalar(number, "int64")), kind)
    rows, columns = (axis_indices(axis, 2, kind.shape[axis]) for axis in (-2, -1))
    first = elementwise("add", rows, reshape(diagonal, ()))
    is_kept = elementwise("greater_equal" if is_upper else "less_equal", columns, first)
    return where(is_kept, call[0], constant(0, kind.dtype))


def _compress(call: OnnxCall) -> Value:
    axis, indices = call.attributes.get("axis"), np.flatnonzero(call.constant_values(1, "what is kept"))
    value = reshape(call[0], (-1,)) if axis is None else call[0]
    return take_slices(value, constant(indices, "int64"), axis or 0)


READERS: dict[str, Convert] = {
    "CenterCropPad": _center_crop_pad,
    "Compress": _compress,
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
