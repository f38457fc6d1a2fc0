"""How ONNX operators that move elements are drawn: shapes, slices, joints, indices."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from bench.fuzz.builder import VARYING, Draw, Skip
from bench.fuzz.onnx.elements import INTEGERS

if TYPE_CHECKING:
    from bench.fuzz.onnx.cases import OnnxBuilder as Builder

__all__ = ["MOVES"]


def _any(b: Builder, low: int = 1, high: int = 5) -> str:
    return b.pick((b.dtype,) * 5 + ("bool", *INTEGERS[:4]), low, high)


def _reshape(b: Builder) -> None:
    x = _any(b)
    shape, sizes = b.arrays[x].shape, []
    left = list(shape)
    while left:  # neighbours are joined, or a dimension is split
        count = b.integer(1, min(2, len(left)))
        size, left = int(np.prod(left[:count])), left[count:]
        factors = [f for f in range(2, 9) if size and size % f == 0 and size != f]
        sizes += [f := b.choice(factors), size // f] if factors and b.chance(0.4) else [size]
    if b.chance(0.4) and 0 not in sizes:
        sizes[b.integer(0, len(sizes) - 1)] = -1
    b.add("Reshape", [x, b.numbers(sizes)])


def _transpose(b: Builder) -> None:
    x = _any(b, 2)
    b.add("Transpose", [x], {"perm": [int(one) for one in b.random.permutation(b.arrays[x].ndim)]})


def _concat(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(-b.arrays[x].ndim, b.arrays[x].ndim - 1)
    shape = list(b.arrays[x].shape)
    others = []
    for _ in range(b.integer(1, 2)):
        shape[axis] = max(1, b.size())
        others.append(x if b.chance(0.2) else b.new(shape, b.arrays[x].dtype.name))
    b.add("Concat", [x, *others], {"axis": axis})


def _slice(b: Builder) -> None:
    x = _any(b)
    shape = b.arrays[x].shape
    axes = sorted(b.random.choice(len(shape), b.integer(1, min(2, len(shape))), replace=False).tolist())
    starts, ends, steps = [], [], []
    for axis in axes:
        step = b.choice([1, 1, 1, 2, 3, -1, -2])
        low, high = sorted(b.integer(-shape[axis] - 1, shape[axis] + 1) for _ in "ab")
        begin, end = (low, high) if step > 0 else (high, low)
        if b.chance(0.3):
            begin, end = (-1, 1 << 62) if b.chance(0.5) else ((0, 1 << 62) if step > 0 else (-1, -(1 << 62)))
        starts.append(begin), ends.append(end), steps.append(step)
    b.add("Slice", [x, b.numbers(starts), b.numbers(ends), b.numbers(axes), b.numbers(steps)])


def _flipped(b: Builder) -> None:
    """Add a slice that turns an axis around."""
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    b.add("Slice", [x, b.numbers([-1]), b.numbers([-(1 << 62)]), b.numbers([axis]), b.numbers([-1])])


def _split(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    size = b.arrays[x].shape[axis]
    if size < 2:
        raise Skip
    first = b.integer(1, size - 1)
    b.add("Split", [x, b.numbers([first, size - first])], {"axis": axis}, outputs=2)


def _squeeze(b: Builder) -> None:
    x = _any(b)
    ones = [axis for axis, size in enumerate(b.arrays[x].shape) if size == 1]
    if not ones:
        raise Skip
    b.add("Squeeze", [x, b.numbers([b.choice(ones)])] if b.chance(0.7) else [x])


def _unsqueeze(b: Builder) -> None:
    x = _any(b, 0, 4)
    b.add("Unsqueeze", [x, b.numbers([b.integer(-b.arrays[x].ndim - 1, b.arrays[x].ndim)])])


def _expand(b: Builder) -> None:
    x = _any(b, 0, 4)
    shape = [b.size() or 1 if size == 1 and b.chance(0.7) else size for size in b.arrays[x].shape]
    b.add("Expand", [x, b.numbers([b.integer(1, 3), *shape] if b.chance(0.3) else shape)])


def _tile(b: Builder) -> None:
    x = _any(b, 1, 4)
    b.add("Tile", [x, b.numbers([b.integer(1, 3) for _ in b.arrays[x].shape])])


def _pad(b: Builder) -> None:
    x = _any(b, 1, 4)
    array = b.arrays[x]
    mode = b.choice(["constant", "constant", "edge", "reflect", "wrap" if b.opset >= 19 else "edge"])
    low = -1 if mode == "constant" and b.chance(0.2) else 0
    most = 3 if mode in ("constant", "edge") else max(0, min(2, *(size - 1 for size in array.shape), 2))
    pads = [b.integer(low, most) for _ in range(2 * array.ndim)]
    inputs = [x, b.numbers(pads)]
    if mode == "constant" and b.chance(0.4):
        inputs.append(b.given(np.array(b.choice([0, 1, 3]), array.dtype), weight=True))
    b.add("Pad", inputs, {"mode": mode})


def _flatten(b: Builder) -> None:
    x = _any(b)
    b.add("Flatten", [x], {"axis": b.integer(-b.arrays[x].ndim, b.arrays[x].ndim)})


def _blocks(op: str, b: Builder) -> None:
    size = b.integer(1, 3)
    n, c, h, w = b.integer(1, 3), b.integer(1, 3), b.integer(1, 4), b.integer(1, 4)
    shape = (n, c * size * size, h, w) if op == "DepthToSpace" else (n, c, h * size, w * size)
    x = b.new(shape, weight=False)
    b.add(op, [x], {"blocksize": size, "mode": b.choice([None, "CRD"]) if op == "DepthToSpace" else None})


def _shape(b: Builder) -> None:
    x = _any(b)
    b.add("Shape", [x], {"start": b.choice([None, 1, -1]) if b.opset >= 15 else None})


def _trilu(b: Builder) -> None:
    x = _any(b, 2, 4)
    b.add("Trilu", [x, b.given(np.array(b.integer(-3, 3)), weight=True)], {"upper": b.choice([0, 1])})


def _crop(b: Builder) -> None:
    x = _any(b, 1, 4)
    b.add("CenterCropPad", [x, b.numbers([max(1, b.size()) for _ in b.arrays[x].shape])])


def _constant_of_shape(b: Builder) -> None:
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [b.choice([0.0, 1.5])])
    x = b.add("ConstantOfShape", [b.numbers(b.shape(1, 2))], {"value": value})
    b.add("Add", [x, b.like(x)])


def _constant(b: Builder) -> None:
    shape = b.shape(1, 2)
    numbers = np.asarray(b.random.standard_normal(shape), "float32").reshape(-1)
    x = b.add("Constant", [], {"value": helper.make_tensor("value", TensorProto.FLOAT, shape, numbers)})
    b.add("Mul", [x, b.new(shape, "float32", weight=False)])


def _eye(b: Builder) -> None:
    x = b.pick((b.dtype, "int32"), 2, 2)
    b.add("Add", [x, b.add("EyeLike", [x], {"k": b.integer(-2, 2)})])


def _range(b: Builder) -> None:
    x = b.add("Range", [b.given(np.array(one, "int64"), weight=True) for one in (0, b.integer(1, 9), b.integer(1, 2))])
    b.add("Cast", [x], {"to": 1})


def _gather(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    size = b.arrays[x].shape[axis]
    shape = b.shape(0, 2) if b.chance(0.8) else ()
    b.add("Gather", [x, b.indices(shape, -size, size, dtype=b.choice(["int64", "int32"]))], {"axis": axis})


def _gather_elements(b: Builder) -> None:
    x = _any(b)
    axis, shape = b.integer(0, b.arrays[x].ndim - 1), list(b.arrays[x].shape)
    size = shape[axis]
    shape[axis] = b.integer(1, 5)
    b.add("GatherElements", [x, b.indices(shape, -size, size)], {"axis": axis})


def _gather_nd(b: Builder) -> None:
    x = _any(b, 1, 4)
    array = b.arrays[x]
    depth = b.integer(1, array.ndim)
    shape = (*b.shape(1, 2), depth)
    b.add("GatherND", [x, b.indices(shape, 0, min([2, *array.shape[:depth]]))])


def _scatter_elements(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int64", "int32"), 1, 4)
    array = b.arrays[x]
    axis, shape = b.integer(0, array.ndim - 1), list(array.shape)
    size = shape[axis]
    reduction = b.choice(["add", "mul", "max", "min"]) if b.opset >= 18 and b.chance(0.6) else None
    count = b.integer(1, 5) if reduction else min(size, b.integer(1, 3))
    shape[axis] = count
    if reduction:
        where = b.indices(shape, -size, size)
    else:  # places differ: the order of updates is open
        where = b.given(
            np.broadcast_to(
                b.random.permutation(size)[:count].reshape([-1 if one == axis else 1 for one in range(array.ndim)]),
                shape,
            ).astype("int64"),
            weight=True,
        )
    b.add("ScatterElements", [x, where, b.new(shape, array.dtype.name)], {"axis": axis, "reduction": reduction})


def _scatter_nd(b: Builder) -> None:
    x = b.pick((b.dtype, b.dtype, "int64"), 1, 4)
    array = b.arrays[x]
    reduction = b.choice(["add", "mul", "max", "min"]) if b.opset >= 18 and b.chance(0.6) else None
    count = b.integer(1, 4) if reduction else 1
    where = b.indices((count, 1), 0, array.shape[0])
    b.add("ScatterND", [x, where, b.new((count, *array.shape[1:]), array.dtype.name)], {"reduction": reduction})


def _one_hot(b: Builder) -> None:
    depth = b.integer(1, 9)
    where = b.indices(b.shape(1, 2), -depth, depth, weight=False)
    b.add(
        "OneHot",
        [where, b.given(np.array(depth), weight=True), b.given(np.array([0, b.choice([1, 3])], b.dtype), weight=True)],
        {"axis": b.choice([-1, 0])},
    )


def _reverse_sequence(b: Builder) -> None:
    x = b.pick(low=2, high=4)
    time, batch = b.arrays[x].shape[:2]
    if not time * batch or time == VARYING:  # no length may be more than the steps that there are
        raise Skip
    b.add("ReverseSequence", [x, b.indices((batch,), 1, time + 1)], {"time_axis": 0, "batch_axis": 1})


def _compress(b: Builder) -> None:
    x = _any(b)
    axis = b.integer(0, b.arrays[x].ndim - 1)
    b.add("Compress", [x, b.given(b.random.random(b.arrays[x].shape[axis]) < 0.6, weight=True)], {"axis": axis})


def _tensor_scatter(b: Builder) -> None:
    batch, rows, size, new = b.integer(1, 2), b.integer(3, 6), b.integer(1, 4), b.integer(1, 2)
    past, update = b.new((batch, rows, size), weight=False), b.new((batch, new, size), weight=False)
    b.add("TensorScatter", [past, update, b.indices((batch,), 0, rows - new + 1)], {"axis": 1})


MOVES: dict[str, Draw] = {
    "Identity": lambda b: b.add("Identity", [_any(b)]),
    "CenterCropPad": _crop,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    **{op: functools.partial(_blocks, op) for op in ("DepthToSpace", "SpaceToDepth")},
    "Expand": _expand,
    "EyeLike": _eye,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Slice that flips": _flipped,
    "Size": lambda b: b.add("Size", [_any(b)]),
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Compress": _compress,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}
"""As `ELEMENTS`."""
