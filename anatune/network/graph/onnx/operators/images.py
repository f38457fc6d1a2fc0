"""Operators that change the sizes of images: each axis at once, by weights that are known when a model is read.

Source: the text of the standard on ``Resize``, whose formulas of coordinates and of cubic weights these are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, padded, reshape, taken, where
from anatune.network.graph.images import neighbours, resized_axis
from anatune.network.graph.nodes import Array, Value, tensor_type
from anatune.network.graph.onnx.call import Call, Convert, RefusedError, check_table

__all__ = ["READERS"]


class _Axis(NamedTuple):
    """How an axis changes.

    Attributes
    ----------
    axis, size, outputs : int
        Which; elements before and after.
    scale : float
        Outputs of an element, where that is no whole number of outputs, too.
    region : tuple of float
        Of the axis that is resized, from 0 to 1, for ``tf_crop_and_resize``.
    """

    axis: int
    size: int
    outputs: int
    scale: float
    region: tuple[float, float]

    @property
    def is_same(self) -> bool:
        """Whether nothing changes."""
        return self.size == self.outputs and math.isclose(self.scale, 1) and self.region == (0.0, 1.0)


def _coordinates(one: _Axis, mode: str, dtype: str) -> Array:
    """Return where each output lies among the elements of an axis, computed in a dtype."""
    place, width = np.arange(one.outputs, dtype=dtype), one.scale * one.size
    if mode == "align_corners":
        return place * ((one.size - 1) / (width - 1) if width != 1 else 0)
    if mode == "asymmetric":
        return place / one.scale
    if mode == "tf_crop_and_resize":
        begin, end = one.region
        if width == 1:
            return np.full(one.outputs, (begin + end) * (one.size - 1) / 2)
        return place * (end - begin) * (one.size - 1) / (width - 1) + begin * (one.size - 1)
    found = (place + 0.5) / one.scale - 0.5
    if mode == "half_pixel_symmetric":
        return found + one.size / 2 * (1 - one.outputs / width)
    if mode == "pytorch_half_pixel" and width == 1:
        return np.full(one.outputs, -0.5)
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise RefusedError(f"has the coordinates {mode}, which the standard does not know")
    return found


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _weights(call: Call, one: _Axis, where_from: Array) -> tuple[Array, Array]:
    """Return which elements each output is made of, and their weights; both (outputs, taps)."""
    own, mode = call.attributes, call.attributes["mode"]
    if mode == "nearest":
        old = "ceil" if one.scale < 1 else "floor"  # as onnxruntime does before version 11, which says nothing
        places = _NEAREST[own.get("nearest_mode", old)](where_from)[:, None]
        return np.clip(places, 0, one.size - 1).astype(np.int64), np.ones((one.outputs, 1))
    shrunk = min(one.scale, 1.0) if own.get("antialias") and one.outputs else 1.0
    return neighbours(
        where_from, one.size, mode, shrunk=shrunk, slope=own.get("cubic_coeff_a", -0.75),
        exclude_outside=bool(own.get("exclude_outside")),
    )  # fmt: skip


def _resized(call: Call, changes: Sequence[_Axis]) -> Value:
    """Return a tensor of other sizes; integers are float64 meanwhile, and rounded.

    Axes that shrink are first, those that grow last, of these the innermost first: it is read element by element, which
    the fewest should be.
    """
    mode, kind = call.attributes["mode"], call.kind()
    coordinates = call.attributes.get("coordinate_transformation_mode", "asymmetric")
    is_exact = mode == "nearest" or kind.dtype in ("float32", "float64")
    is_whole = kind.dtype.startswith(("int", "uint"))
    value = call[0] if is_exact else cast(call[0], "float64" if is_whole else "float32")
    outside = np.zeros((), bool)
    for one in sorted(changes, key=lambda one: (one.scale > 1, -one.axis if one.scale > 1 else one.axis)):
        if one.is_same:
            continue
        check_table(one.outputs)
        # nearest elements are chosen in float32, as by others: 1.5 / 0.6 has to be 2.5, though 0.6 is rounded
        where_from = _coordinates(one, coordinates, "float32" if mode == "nearest" else "float64")
        if coordinates == "tf_crop_and_resize":
            is_outside = (where_from < 0) | (where_from > one.size - 1)
            outside = outside | is_outside.reshape(-1, *(1,) * (call.rank - 1 - one.axis))
        value = resized_axis(value, one.axis, *_weights(call, one, where_from))
    dtype = tensor_type(value).dtype
    if outside.any():
        number = broadcast(constant(call.attributes["extrapolation_value"], dtype), tensor_type(value).shape)
        value = where(constant(outside, "bool"), number, value)
    if is_whole and not is_exact:
        limits = np.iinfo(kind.dtype)
        value = elementwise("minimum", elementwise("maximum", elementwise("round", value), limits.min), limits.max)
    return cast(value, kind.dtype)


def _numbers(call: Call, place: int, what: str) -> list[float]:
    """Return numbers of an operand; none where it is left out or empty."""
    value = call.get(place)
    if value is None or 0 in tensor_type(value).shape:
        return []
    return [float(number) for number in call.known(place, what).reshape(-1)]


def _outputs(size: int, scale: float) -> int:
    """Return how many elements a scale makes, in float32, which it is given in."""
    return int(np.float32(size) * np.float32(scale))


def _resize(call: Call) -> Value:
    """Return a resized tensor: scales alone before version 11; then a region, scales or sizes."""
    shape = call.kind().shape
    if call.opset < 11:
        return _scaled(call, call.known(1, "the scales").tolist())
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
                raise RefusedError(f"makes {size} elements of none along axis {axis}, expected none")
        scales = [
            size / shape[axis] if size else float(not shape[axis]) for size, axis in zip(sizes, axes, strict=True)
        ]
        policy = call.attributes.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scales = [min(scales) if policy == "not_larger" else max(scales)] * len(axes)
            sizes = [int(scale * shape[axis] + 0.5) for scale, axis in zip(scales, axes, strict=True)]
    else:
        sizes = [_outputs(shape[axis], scale) for scale, axis in zip(scales, axes, strict=True)]
    regions = list(zip(region[: len(axes)], region[len(axes) :], strict=True))
    return _resized(call, [
        _Axis(axis, shape[axis], size, scale, own)
        for axis, size, scale, own in zip(axes, sizes, scales, regions, strict=True)
    ])  # fmt: skip


def _scaled(call: Call, scales: Sequence[float]) -> Value:
    shape = call.kind().shape
    changes = zip(range(call.rank), shape, scales, strict=True)
    return _resized(
        call, [_Axis(axis, size, _outputs(size, scale), scale, (0.0, 1.0)) for axis, size, scale in changes]
    )


def _upsample(call: Call) -> Value:
    own, scales = call.attributes, call.attributes.get("scales")
    if "height_scale" in own:  # version 1
        scales = [1.0] * (call.rank - 2) + [own["height_scale"], own["width_scale"]]
    return _scaled(call, call.known(1, "the scales").tolist() if scales is None else scales)


def _col2im(call: Call) -> Value:
    """Return images that columns of blocks add up to: for each pixel the places of what it sums, (pixels, most)."""
    size, block = (call.known(place, what).tolist() for place, what in ((1, "the sizes"), (2, "the block")))
    rank, (batch, channels, columns) = len(size), call.kind().shape
    dilations, strides = (call.attributes.get(name) or [1] * rank for name in ("dilations", "strides"))
    pads = call.attributes.get("pads") or [0] * 2 * rank
    axes = zip(size, block, dilations, strides, pads[:rank], pads[rank:], strict=True)
    inside, pixel = np.ones((1, 1), bool), np.zeros((1, 1), np.int64)
    for length, taps, apart, step, before, after in axes:
        count = (length + before + after - apart * (taps - 1) - 1) // step + 1
        place = (np.arange(taps) * apart)[:, None] + np.arange(count) * step - before
        shape = (len(pixel) * taps, pixel.shape[1] * count)
        is_inside = (place >= 0) & (place < length)
        inside = (inside[:, None, :, None] & is_inside[:, None, :]).reshape(shape)
        pixel = (pixel[:, None, :, None] * length + place[:, None, :]).reshape(shape)
    taps, channels = math.prod(block), channels // math.prod(block)
    sources = np.flatnonzero(inside)
    targets = pixel.reshape(-1)[sources]
    order = np.argsort(targets, kind="stable")
    sources, targets = sources[order], targets[order]
    rank_in_pixel = np.arange(len(targets)) - np.searchsorted(targets, targets)
    table = np.full((math.prod(size), int(rank_in_pixel.max(initial=0)) + 1), taps * columns)  # a zero at the end
    table[targets, rank_in_pixel] = sources
    flat = padded(reshape(call[0], (batch * channels, taps * columns)), (0, 0), (0, 1))
    total: Value | None = None
    for column in table.T:
        part = taken(flat, constant(column, "int64"), 1)
        total = part if total is None else elementwise("add", total, part)
    assert total is not None
    return reshape(total, (batch, channels, *size))


READERS: dict[str, Convert] = {
    "Col2Im": _col2im,
    "Resize": _resize,
    "Upsample": _upsample,
}
