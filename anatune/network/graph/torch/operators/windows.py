"""Readers of products, convolutions, pools and resized images."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    arg_extreme,
    broadcast,
    constant,
    convolution,
    elementwise,
    gather,
    make_node,
    matmul,
    pad_tensor,
    permute,
    pool,
    reduce_axes,
    reshape,
    take_constant_slices,
    take_slices,
)
from anatune.network.graph.images import neighbours, resize_axis, sample_grid
from anatune.network.graph.nodes import Array, TensorType, Value, tensor_type
from anatune.network.graph.operators import GROUPED_MATMUL
from anatune.network.graph.torch.call import Convert, RefusedError, TorchCall, is_float
from anatune.network.graph.transposed import transposed_convolution

__all__ = ["READERS"]

# ---- products ----


def _read_product(first: str, second: str) -> Convert:
    """Return a reader of a product of matrices, vectors or batches of matrices."""
    return lambda call: matmul(call.operand(first), call.operand(second))


def _read_sum(first: str, second: str) -> Convert:
    """Return a reader of ``beta * self + alpha * product``."""

    def read(call: TorchCall) -> Value:
        product = matmul(call.operand(first), call.operand(second))
        if call.name.startswith("addbmm"):
            product = reduce_axes("sum", product, [0], keepdims=False)
        if call["alpha"] != 1:
            product = elementwise("multiply", product, call["alpha"])
        if call["beta"] == 0:
            return product
        term = call.operand("self")
        return elementwise("add", term if call["beta"] == 1 else elementwise("multiply", term, call["beta"]), product)

    return read


def _grouped_product(call: TorchCall) -> Value:
    """Return rows multiplied by the matrix of their group."""
    x, weights, ends = call["self"], call["mat2"], call["offs"]
    ranks = len(tensor_type(x).shape), len(tensor_type(weights).shape)
    if ranks == (3, 3):
        product = matmul(x, weights)
    elif ranks == (2, 3) and ends is not None:
        product = _group_rows(x, weights, ends)
    else:
        raise RefusedError("multiplies groups of columns, expected groups of rows")
    return product if call["bias"] is None else elementwise("add", product, call["bias"])


def _group_rows(x: Value, weights: Value, ends: Value) -> Value:
    """Return rows (rows, inner) times matrices (groups, inner, columns); each group's rows precede its end."""
    (rows, _), dtype = tensor_type(x)
    return make_node(GROUPED_MATMUL, (x, weights, ends), TensorType((rows, tensor_type(weights).shape[2]), dtype))


def _triple_product(call: TorchCall) -> Value:
    """Return the product of three tensors, broadcast along new dimensions and summed along some."""
    parts = []
    for number in ("1", "2", "3"):
        value, added = call[f"i{number}"], set(call[f"expand{number}"])
        sizes = iter(tensor_type(value).shape)
        rank = len(added) + len(tensor_type(value).shape)
        parts.append(reshape(value, [1 if axis in added else next(sizes) for axis in range(rank)]))
    product = functools.reduce(lambda one, other: elementwise("multiply", one, other), parts)
    return reduce_axes("sum", product, call["sumdim"], keepdims=False)


# ---- convolutions ----


def _convolution(call: TorchCall) -> Value:
    data, weight, rank = call["input"], call["weight"], len(call.kind.shape) - 2
    names = ("stride", "padding", "dilation")
    strides, padding, dilation = (_per_dimension(call[name], rank) for name in names)
    if call.get("transposed"):
        result = transposed_convolution(
            data, weight, strides=strides, padding=(*padding, *padding), dilation=dilation, groups=call["groups"],
            output_padding=_per_dimension(call["output_padding"], rank),
        )  # fmt: skip
    else:
        result = convolution(
            data, weight, strides=strides, padding=(*padding, *padding), dilation=dilation, groups=call["groups"]
        )
    if call["bias"] is None:
        return result
    return elementwise("add", result, reshape(call["bias"], (1, -1, *(1,) * rank)))


def _per_dimension(sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return a size for each dimension of an image; a single size is used for all."""
    return tuple(sizes) * rank if len(sizes) == 1 else tuple(sizes)


# ---- pools ----


def _add_batch(value: Value, rank: int) -> Value:
    """Return an image of `rank` dimensions with a batch dimension."""
    shape = tensor_type(value).shape
    return value if len(shape) == rank + 2 else reshape(value, (1, *shape))


def _pool_sizes(call: TorchCall, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return window, strides and padding of a pool."""
    window = _per_dimension(call["kernel_size"], rank)
    return window, _per_dimension(call["stride"] or window, rank), _per_dimension(call["padding"], rank)


def _read_mean_pool(rank: int) -> Convert:
    def read(call: TorchCall) -> Value:
        value = _add_batch(call["self"], rank)
        window, strides, padding = _pool_sizes(call, rank)
        ceil_mode = bool(call["ceil_mode"])  # windows that exceed the padding count only the elements within it
        counts = bool(call["count_include_pad"]) and (any(padding) or not ceil_mode)
        pads, divisor = [*padding, *padding], call.get("divisor_override")
        factor: Array = np.ones(())
        if divisor is not None or (ceil_mode and counts):  # elements beyond the padding are zeros that do not count
            image = tensor_type(value).shape[2:]
            for axis, count in enumerate(call.kind.shape[-rank:]):
                first = np.arange(count) * strides[axis]
                end = image[axis] + 2 * padding[axis]
                factor = np.multiply.outer(factor, window[axis] / (np.minimum(first + window[axis], end) - first))
                pads[rank + axis] = max(int(first[-1]) + window[axis] - image[axis] - padding[axis], padding[axis])
            factor = factor if divisor is None else np.array(math.prod(window) / divisor)
            value = pad_tensor(value, [0, 0, *pads[:rank]], [0, 0, *pads[rank:]])
            pads, counts, ceil_mode = [0] * (2 * rank), True, False
        means = pool(
            "avg", value, window=window, strides=strides, padding=pads, dilation=(1,) * rank, ceil_mode=ceil_mode,
            count_include_pad=counts,
        )  # fmt: skip
        if (factor != 1).any():
            means = elementwise("multiply", means, constant(factor, call.kind.dtype))
        return reshape(means, call.kind.shape)

    return read


def _read_max_pool(rank: int) -> Convert:
    """Return a reader of the largest elements of windows, and of their indices in the image."""

    def read(call: TorchCall) -> list[Value | None]:
        value = _add_batch(call["self"], rank)
        window, strides, padding = _pool_sizes(call, rank)
        dilation = _per_dimension(call["dilation"], rank)
        full_padding = (*padding, *padding)
        largest = pool(
            "max", value, window=window, strides=strides, padding=full_padding, dilation=dilation,
            ceil_mode=bool(call["ceil_mode"]),
        )  # fmt: skip
        indices: Value | None = None
        if call.users > 1:
            tables = []
            for axis, count in enumerate(tensor_type(largest).shape[2:]):
                taps = np.arange(window[axis]) * dilation[axis] - padding[axis]
                table = np.arange(count)[:, None] * strides[axis] + taps
                inside = np.ma.masked_outside(table, 0, tensor_type(value).shape[2 + axis] - 1)
                ends = (inside.min(axis=1, keepdims=True), inside.max(axis=1, keepdims=True))
                tables.append(np.clip(table, *ends))  # exclude padding, even if nothing is larger
            indices = reshape(_index_of_largest(value, tables), call.kind.shape)
        return [reshape(largest, call.kind.shape), indices]

    return read


def _take_windows(value: Value, tables: Sequence[Array]) -> Value:
    """Return the windows of an image, (n, c, windows of each dimension, taps); `tables`: (windows, taps) of each."""
    rank, shape = len(tables), tensor_type(value).shape
    for axis in reversed(range(rank)):
        value = take_slices(value, constant(tables[axis], "int64"), 2 + axis)
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    counts = [len(table) for table in tables]
    return reshape(permute(value, order), (*shape[:2], *counts, -1))


def _index_of_largest(value: Value, tables: Sequence[Array]) -> Value:
    """Return the flat index in the image of the largest element of each window."""
    rank, kind = len(tables), tensor_type(value)
    taps = arg_extreme("argmax", _take_windows(value, tables), -1, keepdims=True)
    flat: Array = np.zeros((), np.int64)
    for axis, table in enumerate(tables):
        positions = table.reshape(
            [1] * axis + [len(table)] + [1] * (rank - 1) + [table.shape[1]] + [1] * (rank - 1 - axis)
        )
        flat = flat * kind.shape[2 + axis] + positions
    flat = flat.reshape(1, 1, *flat.shape[:rank], -1)
    all_positions = broadcast(constant(flat, "int64"), (*kind.shape[:2], *flat.shape[2:]))
    return gather(all_positions, taps, -1)


def _adaptive_mean(call: TorchCall) -> Value:
    value, rank = call["self"], len(call["output_size"])
    layout = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[rank]
    data = _add_batch(value, rank)
    kind = TensorType((*tensor_type(data).shape[:2], *call.kind.shape[-rank:]), call.kind.dtype)
    name, sizes = f"nn.adaptive_avg_pool{rank}d", tuple(call["output_size"])
    return reshape(make_node(name, (data,), kind, output_size=sizes, layout=layout, out_layout=layout), call.kind.shape)


def _adaptive_max(call: TorchCall) -> list[Value | None]:
    """Return maxima of parts of an image: a pool if the parts have one size, else windows that repeat elements."""
    rank = len(call["output_size"])
    value = _add_batch(call["self"], rank)
    image, sizes = tensor_type(value).shape[2:], call.kind.shape[-rank:]
    indices: Value | None = None
    if all(size % count == 0 for size, count in zip(image, sizes, strict=True)) and call.users == 1:
        window = [size // count for size, count in zip(image, sizes, strict=True)]
        largest = pool("max", value, window=window, strides=window, padding=(0,) * 2 * rank, dilation=(1,) * rank)
    else:
        tables = []
        for size, count in zip(image, sizes, strict=True):
            starts = np.arange(count) * size // count
            ends = -(-(np.arange(count) + 1) * size // count)
            taps = int((ends - starts).max())
            tables.append(np.minimum(starts[:, None] + np.arange(taps), ends[:, None] - 1))
        largest = reduce_axes("max", _take_windows(value, tables), [-1], keepdims=False)
        indices = reshape(_index_of_largest(value, tables), call.kind.shape) if call.users > 1 else None
    return [reshape(largest, call.kind.shape), indices]


# ---- images of other sizes ----


def _scales(call: TorchCall, rank: int) -> list[float | None]:
    """Return the scale of an image along each dimension; None: it follows from the sizes."""
    if "scale_factors" in call.arguments:
        return list(call["scale_factors"] or [None] * rank)
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[rank]
    return [call.get(name) for name in names]


def _centres(call: TorchCall, axis: int, rank: int, image: Sequence[int]) -> Array:
    """Return the positions of the result's elements in the image, along a dimension."""
    size, count = image[axis], call.kind.shape[2 + axis]
    indices = np.arange(count, dtype=np.float64)
    if call.get("align_corners"):
        return indices * (size - 1) / max(count - 1, 1)
    scale = _scales(call, rank)[axis]
    return (indices + 0.5) * (1 / scale if scale else size / count) - 0.5


def _image_operand(call: TorchCall) -> Value:
    """Return the image to resize."""
    value: Value = call["input" if "input" in call.arguments else "self"]
    return value


def _nearest(call: TorchCall) -> Value:
    value, rank = _image_operand(call), len(call.kind.shape) - 2
    image = tensor_type(value).shape[2:]
    for axis, (size, scale) in enumerate(zip(image, _scales(call, rank), strict=True)):
        count = call.kind.shape[2 + axis]
        step = np.float32(1 / scale if scale else size / count)
        positions = np.arange(count, dtype=np.float32)
        positions = (positions + np.float32(0.5)) * step if "exact" in call.name else positions * step
        numbers = np.minimum(np.floor(positions).astype(np.int64), size - 1)
        value = take_constant_slices(value, numbers, 2 + axis)
    return value


def _read_interpolation(mode: str, *, is_smoothed: bool = False) -> Convert:
    """Return a reader of a resized image: weighted sums of neighbours along each dimension.

    With antialiasing (`is_smoothed`) an element is the mean of everything that it covers.
    """

    def read(call: TorchCall) -> Value:
        value, rank = _image_operand(call), len(call.kind.shape) - 2
        if not is_float(call.kind.dtype):
            raise RefusedError("resizes integers, expected floating-point numbers; convert them first")
        image = tensor_type(value).shape[2:]
        for axis in reversed(range(rank)):
            centres, count = _centres(call, axis, rank, image), call.kind.shape[2 + axis]
            size, scale = image[axis], _scales(call, rank)[axis]
            if is_smoothed:
                step = (size - 1) / max(count - 1, 1) if call["align_corners"] else 1 / scale if scale else size / count
                centres = (np.arange(count) + 0.5) * step - 0.5
                indices, weights = neighbours(
                    centres, size, mode, shrunk=1 / max(step, 1.0), slope=-0.5, exclude_outside=True
                )
            else:
                indices, weights = neighbours(np.maximum(centres, 0) if mode == "linear" else centres, size, mode)
            value = resize_axis(value, 2 + axis, indices, weights)
        return value

    return read


def _grid_sample(call: TorchCall) -> Value:
    """Return the elements of an image at the positions of a grid."""
    return sample_grid(
        call["input"],
        call["grid"],
        mode=("linear", "nearest", "cubic")[call["interpolation_mode"]],
        padding=("zeros", "border", "reflection")[call["padding_mode"]],
        is_aligned=bool(call["align_corners"]),
        clips_first=False,
    )


READERS: dict[str, Convert] = {
    "_adaptive_avg_pool2d": _adaptive_mean,
    "_adaptive_avg_pool3d": _adaptive_mean,
    "_grouped_mm": _grouped_product,
    "_trilinear": _triple_product,
    "_upsample_bicubic2d_aa": _read_interpolation("cubic", is_smoothed=True),
    "_upsample_bilinear2d_aa": _read_interpolation("linear", is_smoothed=True),
    "adaptive_max_pool2d": _adaptive_max,
    "adaptive_max_pool3d": _adaptive_max,
    "addbmm": _read_sum("batch1", "batch2"),
    "addmm": _read_sum("mat1", "mat2"),
    "addmv": _read_sum("mat", "vec"),
    "avg_pool1d": _read_mean_pool(1),
    "avg_pool2d": _read_mean_pool(2),
    "avg_pool3d": _read_mean_pool(3),
    "baddbmm": _read_sum("batch1", "batch2"),
    "bmm": _read_product("self", "mat2"),
    "convolution": _convolution,
    "dot": _read_product("self", "tensor"),
    "grid_sampler_2d": _grid_sample,
    "grid_sampler_3d": _grid_sample,
    "max_pool2d_with_indices": _read_max_pool(2),
    "max_pool3d_with_indices": _read_max_pool(3),
    "grouped_mm_fallback": lambda call: _group_rows(call["input"], call["weight"], call["offs"]),  # in transformers
    "mm": _read_product("self", "mat2"),
    "mv": _read_product("self", "vec"),
    "upsample_bicubic2d": _read_interpolation("cubic"),
    "upsample_bilinear2d": _read_interpolation("linear"),
    "upsample_linear1d": _read_interpolation("linear"),
    **{f"upsample_nearest{rank}d": _nearest for rank in (1, 2, 3)},
    **{f"_upsample_nearest_exact{rank}d": _nearest for rank in (1, 2, 3)},
    "upsample_trilinear3d": _read_interpolation("linear"),
}
"""Operator without its overload -> reader."""
