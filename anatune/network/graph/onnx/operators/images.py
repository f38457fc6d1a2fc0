"""Readers of operators that resize images, axis by axis, with weights that are known when a model is read.

Source: the description of ``Resize`` in the standard, with its formulas of coordinates and of cubic weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from anatune.network.graph.building import (
    broadcast,
    cast,
    constant,
    elementwise,
    pad_tensor,
    reshape,
    take_slices,
    where,
)
from anatune.network.graph.images import neighbours, resize_axis
from anatune.network.graph.nodes import Array, Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError, check_table

__all__ = ["READERS"]


class _AxisChange(NamedTuple):
    """The change of an axis.

    Attributes
    ----------
    axis, size, outputs : int
        The axis, and its elements before and after.
    scale : float
        Outputs per element, which may be a fraction.
    region : tuple of float
        The part of the axis that is resized, from 0 to 1, for ``tf_crop_and_resize``.
    """

    axis: int
    size: int
    outputs: int
    scale: float
    region: tuple[float, float]

    @property
    def is_same(self) -> bool:
        """Return whether nothing changes."""
        return self.size == self.outputs and math.isclose(self.scale, 1) and self.region == (0.0, 1.0)


def _coordinates(change: _AxisChange, mode: str, dtype: str) -> Array:
    """Return the position of each output among the elements of an axis, computed in a dtype."""
    index, width = np.arange(change.outputs, dtype=dtype), change.scale * change.size
    if mode == "align_corners":
        return index * ((change.size - 1) / (width - 1) if width != 1 else 0)
    if mode == "asymmetric":
        return index / change.scale
    if mode == "tf_crop_and_resize":
        begin, end = change.region
        if width == 1:
            return np.full(change.outputs, (begin + end) * (change.size - 1) / 2)
        return index * (end - begin) * (change.size - 1) / (width - 1) + begin * (change.size - 1)
    half_pixel = (index + 0.5) / change.scale - 0.5
    if mode == "half_pixel_symmetric":
        return half_pixel + change.size / 2 * (1 - change.outputs / width)
    if mode == "pytorch_half_pixel" and width == 1:
        return np.full(change.outputs, -0.5)
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise RefusedError(f"has the coordinate_transformation_mode {mode}, which is not in the standard")
    return half_pixel


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _axis_weights(call: OnnxCall, change: _AxisChange, coordinates: Array) -> tuple[Array, Array]:
    """Return the indices of the elements that each output is interpolated from, and their weights; (outputs, taps)."""
    attrs, mode = call.attributes, call.attributes["mode"]
    if mode == "nearest":
        old = "ceil" if change.scale < 1 else "floor"  # like onnxruntime; the standard says nothing before version 11
        indices = _NEAREST[attrs.get("nearest_mode", old)](coordinates)[:, None]
        return np.clip(indices, 0, change.size - 1).astype(np.int64), np.ones((change.outputs, 1))
    shrunk = min(change.scale, 1.0) if attrs.get("antialias") and change.outputs else 1.0
    return neighbours(
        coordinates, change.size, mode, shrunk=shrunk, slope=attrs.get("cubic_coeff_a", -0.75),
        exclude_outside=bool(attrs.get("exclude_outside")),
    )  # fmt: skip


def _resize_axes(call: OnnxCall, changes: Sequence[_AxisChange]) -> Value:
    """Return a resized tensor; integers are computed in float64 and rounded.

    Axes that shrink come first, axes that grow come last, the innermost of these first. Resizing the innermost axis
    reads single elements, so that the tensor should be small then.
    """
    mode, kind = call.attributes["mode"], call.kind()
    coordinate_mode = call.attributes.get("coordinate_transformation_mode", "asymmetric")
    is_exact = mode == "nearest" or kind.dtype in ("float32", "float64")
    is_whole = kind.dtype.startswith(("int", "uint"))
    value = call[0] if is_exact else cast(call[0], "float64" if is_whole else "float32")
    outside = np.zeros((), bool)
    for change in sorted(changes, key=lambda one: (one.scale > 1, -one.axis if one.scale > 1 else one.axis)):
        if change.is_same:
            continue
        check_table(change.outputs)
        # Nearest elements are selected in float32, as in other engines: 1.5 / 0.6 has to be 2.5, though 0.6 is rounded.
        coordinates = _coordinates(change, coordinate_mode, "float32" if mode == "nearest" else "float64")
        if coordinate_mode == "tf_crop_and_resize":
            is_outside = (coordinates < 0) | (coordinates > change.size - 1)
            outside = outside | is_outside.reshape(-1, *(1,) * (call.rank - 1 - change.axis))
        value = resize_axis(value, change.axis, *_axis_weights(call, change, coordinates))
    dtype = tensor_type(value).dtype
    if outside.any():
        number = broadcast(constant(call.attributes["extrapolation_value"], dtype), tensor_type(value).shape)
        value = where(constant(outside, "bool"), number, value)
    if is_whole and not is_exact:
        limits = np.iinfo(kind.dtype)
        value = elementwise("minimum", elementwise("maximum", elementwise("round", value), limits.min), limits.max)
    return cast(value, kind.dtype)


def _numbers(call: OnnxCall, index: int, what: str) -> list[float]:
    """Return the numbers of an operand, or none if it is omitted or empty."""
    value = call.get(index)
    if value is None or 0 in tensor_type(value).shape:
        return []
    return [float(number) for number in call.constant_values(index, what).reshape(-1)]


def _output_size(size: int, scale: float) -> int:
    """Return the number of outputs for a scale, computed in float32, the dtype of the scale."""
    return int(np.float32(size) * np.float32(scale))


def _resize(call: OnnxCall) -> Value:
    """Return a resized tensor; operands are scales before version 11, then a region, scales or sizes."""
    shape = call.kind().shape
    if call.opset < 11:
        return _resize_by_scales(call, call.constant_values(1, "the scales").tolist())
    axes = [axis % call.rank for axis in call.attributes.get("axes") or range(call.rank)]
    uses_region = call.attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"
    region = _numbers(call, 1, "the region") if uses_region else []
    region = region or [0.0] * len(axes) + [1.0] * len(axes)
    scales, sizes = _numbers(call, 2, "the scales"), [int(size) for size in _numbers(call, 3, "the sizes")]
    if len(scales or sizes) != len(axes):
        raise RefusedError(f"has {len(scales or sizes)} scales or sizes, expected one for each of {len(axes)} axes")
    if sizes:
        for size, axis in zip(sizes, axes, strict=True):
            if size and not shape[axis]:
                raise RefusedError(f"resizes an empty axis {axis} to {size} elements, expected 0")
        scales = [
            size / shape[axis] if size else float(not shape[axis]) for size, axis in zip(sizes, axes, strict=True)
        ]
        policy = call.attributes.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scales = [min(scales) if policy == "not_larger" else max(scales)] * len(axes)
            sizes = [int(scale * shape[axis] + 0.5) for scale, axis in zip(scales, axes, strict=True)]
    else:
        sizes = [_output_size(shape[axis], scale) for scale, axis in zip(scales, axes, strict=True)]
    regions = list(zip(region[: len(axes)], region[len(axes) :], strict=True))
    return _resize_axes(call, [
        _AxisChange(axis, shape[axis], size, scale, part)
        for axis, size, scale, part in zip(axes, sizes, scales, regions, strict=True)
    ])  # fmt: skip


def _resize_by_scales(call: OnnxCall, scales: Sequence[float]) -> Value:
    shape = call.kind().shape
    changes = zip(range(call.rank), shape, scales, strict=True)
    return _resize_axes(
        call, [_AxisChange(axis, size, _output_size(size, scale), scale, (0.0, 1.0)) for axis, size, scale in changes]
    )


def _upsample(call: OnnxCall) -> Value:
    attrs, scales = call.attributes, call.attributes.get("scales")
    if "height_scale" in attrs:  # version 1
        scales = [1.0] * (call.rank - 2) + [attrs["height_scale"], attrs["width_scale"]]
    return _resize_by_scales(call, call.constant_values(1, "the scales").tolist() if scales is None else scales)


def _col2im(call: OnnxCall) -> Value:
    """Return images that sum overlapping blocks; a table (pixels, most) lists the elements that each pixel sums."""
    size, block = (call.constant_values(place, what).tolist() for place, what in ((1, "the sizes"), (2, "the block")))
    rank, (batch, channels, columns) = len(size), call.kind().shape
    dilations, strides = (call.attributes.get(name) or [1] * rank for name in ("dilations", "strides"))
    pads = call.attributes.get("pads") or [0] * 2 * rank
    axes = zip(size, block, dilations, strides, pads[:rank], pads[rank:], strict=True)
    inside, pixel = np.ones((1, 1), bool), np.zeros((1, 1), np.int64)
    for length, taps, dilation, step, before, after in axes:
        count = (length + before + after - dilation * (taps - 1) - 1) // step + 1
        position = (np.arange(taps) * dilation)[:, None] + np.arange(count) * step - before
        shape = (len(pixel) * taps, pixel.shape[1] * count)
        is_inside = (position >= 0) & (position < length)
        inside = (inside[:, None, :, None] & is_inside[:, None, :]).reshape(shape)
        pixel = (pixel[:, None, :, None] * length + position[:, None, :]).reshape(shape)
    taps, channels = math.prod(block), channels // math.prod(block)
    sources = np.flatnonzero(inside)
    targets = pixel.reshape(-1)[sources]
    order = np.argsort(targets, kind="stable")
    sources, targets = sources[order], targets[order]
    rank_in_pixel = np.arange(len(targets)) - np.searchsorted(targets, targets)
    table = np.full((math.prod(size), int(rank_in_pixel.max(initial=0)) + 1), taps * columns)  # a zero at the end
    table[targets, rank_in_pixel] = sources
    flat = pad_tensor(reshape(call[0], (batch * channels, taps * columns)), (0, 0), (0, 1))
    total: Value | None = None
    for column in table.T:
        part = take_slices(flat, constant(column, "int64"), 1)
        total = part if total is None else elementwise("add", total, part)
    assert total is not None
    return reshape(total, (batch, channels, *size))


READERS: dict[str, Convert] = {"Col2Im": _col2im, "Resize": _resize, "Upsample": _upsample}
