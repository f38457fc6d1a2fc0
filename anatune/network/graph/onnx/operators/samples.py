"""Readers of operators that sample images at computed positions: grids and regions of interest."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from anatune.network.graph.building import (
    axis_indices,
    broadcast,
    cast,
    constant,
    elementwise,
    gather_rows,
    matmul,
    permute,
    reduce_axes,
    reshape,
    slice_axes,
    take_slices,
    where,
    widen_to_float32,
)
from anatune.network.graph.images import Tap, clip, sample_grid, weight_rows
from anatune.network.graph.nodes import Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, constant_array

__all__ = ["READERS"]


def _grid_sample(call: OnnxCall) -> Value:
    """Return an image (n, channels, sizes) sampled at a grid (n, outputs, dimensions), x first."""
    attrs = call.attributes
    mode = str({"bilinear": "linear", "bicubic": "cubic"}.get(attrs["mode"], attrs["mode"]))
    return sample_grid(
        call[0], call[1], mode=mode, padding=attrs["padding_mode"], is_aligned=bool(attrs["align_corners"])
    )


def _affine_grid(call: OnnxCall) -> Value:
    """Return the grid of images that affine maps (n, dimensions, dimensions + 1) describe, as a matrix product."""
    batch, _, *sizes = (int(size) for size in call.constant_values(1, "the sizes"))
    kind, count = call.kind(), len(sizes)
    ends = [1.0 if call.attributes["align_corners"] else 1 - 1 / size for size in sizes]
    axes = [np.linspace(-end, end, size) for end, size in zip(ends, sizes, strict=True)]
    coordinates = [coordinate.reshape(-1) for coordinate in np.meshgrid(*axes, indexing="ij")][::-1]
    table = np.stack([*coordinates, np.ones(math.prod(sizes))], axis=1)
    grid = matmul(constant(table, kind.dtype), permute(call[0], (0, 2, 1)))
    return reshape(grid, (batch, *sizes, count))


def _corners(call: OnnxCall, scale: float, offset: float) -> list[Value]:
    """Return x and y of the begin and the end of each region, (regions,), float32 or float64."""
    rois = elementwise("subtract", elementwise("multiply", widen_to_float32(call[1]), scale), offset)
    return [reshape(slice_axes(rois, [1], [index], [index + 1]), (-1,)) for index in range(4)]


def _region_taps(begin: Value, extent: Value, size: int, bins: int, ratio: int) -> tuple[list[Tap], Value]:
    """Return the taps of regions along a dimension, (regions, bins, samples), and the number of samples of each region.

    If the operator does not give this number, it is the number of pixels in a bin. Samples beyond that of a region get
    weight 0.
    """
    step, dtype = elementwise("divide", extent, float(bins)), tensor_type(extent).dtype
    if ratio > 0:
        most, count = ratio, broadcast(constant(ratio, dtype), tensor_type(step).shape)
    else:
        count = elementwise("ceil", step)
        most = int(constant_array(count, "how many points are read").max(initial=1))
    begin, step, wide_count = (reshape(numbers, (-1, 1, 1)) for numbers in (begin, step, count))
    sample, bin_index = cast(axis_indices(2, 3, most), dtype), cast(axis_indices(1, 3, bins), dtype)
    inner = elementwise("divide", elementwise("add", sample, 0.5), elementwise("maximum", wide_count, 1.0))
    point = elementwise("add", begin, elementwise("multiply", step, elementwise("add", bin_index, inner)))
    is_inside = elementwise(
        "logical_and", elementwise("greater_equal", point, -1.0), elementwise("less_equal", point, size)
    )
    point = clip(point, 0, size - 1)
    low = elementwise("floor", point)
    fraction = elementwise("subtract", point, low)
    is_inside = elementwise("logical_and", is_inside, elementwise("less", sample, wide_count))
    taps: list[Tap] = []
    for number, weight in enumerate((elementwise("add", elementwise("negative", fraction), 1.0), fraction)):
        weight = where(is_inside, weight, constant(0, dtype))
        taps.append((cast(clip(elementwise("add", low, float(number)), 0, size - 1), "int64"), weight))
    return taps, count


def _roi_align(call: OnnxCall) -> Value:
    """Return means, or weighted maxima, of points in the bins of regions, (regions, channels, bins)."""
    kind, attrs = call.kind(), call.attributes
    bins, ratio, regions = (
        (attrs["output_height"], attrs["output_width"]),
        attrs["sampling_ratio"],
        call.kind(1).shape[0],
    )
    is_half = attrs.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    dtype = tensor_type(widen_to_float32(call[1])).dtype
    left, top, right, bottom = _corners(call, attrs["spatial_scale"], 0.5 if is_half else 0.0)
    taps: list[list[Tap]] = []
    counts, are_samples = [], []
    for axis, (begin, end) in enumerate(((top, bottom), (left, right))):
        extent = elementwise("subtract", end, begin)
        extent = extent if is_half else elementwise("maximum", extent, 1.0)
        pairs, count = _region_taps(begin, extent, kind.shape[2 + axis], bins[axis], ratio)
        samples = tensor_type(pairs[0][0]).shape[2]
        shape = (regions, bins[0], samples, 1, 1) if axis == 0 else (regions, 1, 1, bins[1], samples)
        taps.append([(reshape(index, shape), reshape(weight, shape)) for index, weight in pairs if weight is not None])
        counts.append(reshape(count, (regions, 1, 1, 1, 1, 1)))
        are_samples.append(elementwise("less", cast(axis_indices(2 + 2 * axis, 6, samples), dtype), counts[-1]))
    first = reshape(cast(call[2], "int64"), (-1, 1, 1, 1, 1))
    image = widen_to_float32(permute(call[0], (0, 2, 3, 1)))
    word = "add" if attrs["mode"] == "avg" else "maximum"
    total = functools.reduce(lambda one, other: elementwise(word, one, other), [
        weight_rows(gather_rows(image, [first, y, x]), [wy, wx]) for (y, wy), (x, wx) in itertools.product(*taps)
    ])  # fmt: skip # (regions, bins, samples, bins, samples, channels)
    if word == "add":
        number = elementwise("maximum", elementwise("multiply", *counts), 1.0)
        total = elementwise("divide", reduce_axes("sum", total, [2, 4], keepdims=False), reshape(number, (-1, 1, 1, 1)))
    else:
        total = where(elementwise("logical_and", *are_samples), total, constant(-np.inf, dtype))
        is_empty = reshape(elementwise("less", elementwise("minimum", *counts), 1.0), (-1, 1, 1, 1))
        total = where(is_empty, constant(0, dtype), reduce_axes("max", total, [2, 4], keepdims=False))
    return cast(permute(total, (0, 3, 1, 2)), kind.dtype)


def _max_roi_pool(call: OnnxCall) -> Value:
    """Return the maxima in the bins of regions (batch, x, y, x, y), 0 for empty ones; rows are reduced first."""
    kind = call.kind()
    regions, bins = call.kind(1).shape[0], call.attributes["pooled_shape"]
    rois = widen_to_float32(call[1])
    dtype = tensor_type(rois).dtype
    columns = [reshape(slice_axes(rois, [1], [place], [place + 1]), (-1,)) for place in range(5)]
    values = take_slices(call[0], cast(columns[0], "int64"), 0)
    lowest = constant(-np.inf, kind.dtype)
    scaled = [elementwise("multiply", column, call.attributes["spatial_scale"]) for column in columns]
    corners = [reshape(elementwise("floor", elementwise("add", one, 0.5)), (-1, 1, 1)) for one in scaled]
    for axis, size in enumerate(kind.shape[2:]):
        begin, end = corners[2 - axis], corners[4 - axis]
        length = elementwise("maximum", elementwise("add", elementwise("subtract", end, begin), 1.0), 1.0)
        step, numbers = elementwise("divide", length, float(bins[axis])), cast(axis_indices(1, 3, bins[axis]), dtype)
        low = elementwise("floor", elementwise("multiply", step, numbers))
        high = elementwise("ceil", elementwise("multiply", step, elementwise("add", numbers, 1.0)))
        pixel = elementwise("subtract", constant(np.arange(size), dtype), begin)
        mask = elementwise("logical_and", elementwise("less_equal", low, pixel), elementwise("less", pixel, high))
        shape = tensor_type(values).shape
        if axis == 0:  # (regions, channels, bins, rows, columns)
            mask, values = (reshape(mask, (regions, 1, bins[0], size, 1)), reshape(values, (*shape[:2], 1, *shape[2:])))
        else:
            mask, values = (reshape(mask, (regions, 1, 1, bins[1], size)), reshape(values, (*shape[:3], 1, shape[3])))
        values = reduce_axes("max", where(mask, values, lowest), [3 + axis], keepdims=False)
    return where(elementwise("equal", values, -np.inf), constant(0, kind.dtype), values)


READERS: dict[str, Convert] = {
    "AffineGrid": _affine_grid,
    "GridSample": _grid_sample,
    "MaxRoiPool": _max_roi_pool,
    "RoiAlign": _roi_align,
}
