"""Products, convolutions, pools, and images of other sizes."""

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
    made,
    matmul,
    padded,
    permute,
    pool,
    reduced,
    reshape,
    taken,
    taken_at,
)
from anatune.network.graph.images import neighbours, resize_axis, sample_grid
from anatune.network.graph.nodes import Array, TensorType, Value, tensor_type
from anatune.network.graph.operators import GROUPED_MATMUL
from anatune.network.graph.torch.call import Call, Convert, RefusedError, is_float
from anatune.network.graph.transposed import transposed_convolution

__all__ = ["READERS"]

# ---- products ----


def _product(first: str, second: str) -> Convert:
    """Return what reads a product of two matrices, or vectors, or batches of matrices."""
    return lambda call: matmul(call.operand(first), call.operand(second))


def _with_sum(first: str, second: str) -> Convert:
    """Return what reads ``beta * self + alpha * product``."""

    def read(call: Call) -> Value:
        found = matmul(call.operand(first), call.operand(second))
        if call.name.startswith("addbmm"):
            found = reduced("sum", found, [0], keepdims=False)
        if call["alpha"] != 1:
            found = elementwise("multiply", found, call["alpha"])
        if call["beta"] == 0:
            return found
        term = call.operand("self")
        return elementwise("add", term if call["beta"] == 1 else elementwise("multiply", term, call["beta"]), found)

    return read


def _grouped_product(call: Call) -> Value:
    """Return rows times the matrix of the group that each is of."""
    x, weights, ends = call["self"], call["mat2"], call["offs"]
    ranks = len(tensor_type(x).shape), len(tensor_type(weights).shape)
    if ranks == (3, 3):
        found = matmul(x, weights)
    elif ranks == (2, 3) and ends is not None:
        found = _by_groups(x, weights, ends)
    else:
        raise RefusedError("multiplies groups of columns, expected groups of rows")
    return found if call["bias"] is None else elementwise("add", found, call["bias"])


def _by_groups(x: Value, weights: Value, ends: Value) -> Value:
    """Return rows (rows, inner) times matrices (groups, inner, columns), each group's rows before its end."""
    (rows, _), dtype = tensor_type(x)
    return made(GROUPED_MATMUL, (x, weights, ends), TensorType((rows, tensor_type(weights).shape[2]), dtype))


def _triple_product(call: Call) -> Value:
    """Return the product of three tensors, each with more dimensions of size 1, summed along some."""
    parts = []
    for place in ("1", "2", "3"):
        value, added = call[f"i{place}"], set(call[f"expand{place}"])
        sizes = iter(tensor_type(value).shape)
        rank = len(added) + len(tensor_type(value).shape)
        parts.append(reshape(value, [1 if axis in added else next(sizes) for axis in range(rank)]))
    found = functools.reduce(lambda one, other: elementwise("multiply", one, other), parts)
    return reduced("sum", found, call["sumdim"], keepdims=False)


# ---- convolutions ----


def _convolution(call: Call) -> Value:
    data, weight, rank = call["input"], call["weight"], len(call.kind.shape) - 2
    names = ("stride", "padding", "dilation")
    strides, padding, dilation = (_each(call[name], rank) for name in names)
    if call.get("transposed"):
        found = transposed_convolution(
            data, weight, strides=strides, padding=(*padding, *padding), dilation=dilation, groups=call["groups"],
            output_padding=_each(call["output_padding"], rank),
        )  # fmt: skip
    else:
        found = convolution(
            data, weight, strides=strides, padding=(*padding, *padding), dilation=dilation, groups=call["groups"]
        )
    if call["bias"] is None:
        return found
    return elementwise("add", found, reshape(call["bias"], (1, -1, *(1,) * rank)))


def _each(given: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return a size for each dimension of an image; one is for all."""
    return tuple(given) * rank if len(given) == 1 else tuple(given)


# ---- pools ----


def _batched(value: Value, rank: int) -> Value:
    """Return an image of `rank` dimensions with a batch."""
    shape = tensor_type(value).shape
    return value if len(shape) == rank + 2 else reshape(value, (1, *shape))


def _sizes(call: Call, rank: int) -> tuple[tuple[int, ...], ...]:
    """Return window, strides and padding of a pool."""
    window = _each(call["kernel_size"], rank)
    return window, _each(call["stride"] or window, rank), _each(call["padding"], rank)


def _mean_pool(rank: int) -> Convert:
    def read(call: Call) -> Value:
        value = _batched(call["self"], rank)
        window, strides, padding = _sizes(call, rank)
        ceil_mode = bool(call["ceil_mode"])  # windows that hang over count what is there
        counts = bool(call["count_include_pad"]) and (any(padding) or not ceil_mode)
        around, divisor = [*padding, *padding], call.get("divisor_override")
        factor: Array = np.ones(())
        if divisor is not None or (ceil_mode and counts):  # what hangs over is zeros, and counts as nothing
            image = tensor_type(value).shape[2:]
            for axis, count in enumerate(call.kind.shape[-rank:]):
                first = np.arange(count) * strides[axis]
                end = image[axis] + 2 * padding[axis]
                factor = np.multiply.outer(factor, window[axis] / (np.minimum(first + window[axis], end) - first))
                around[rank + axis] = max(int(first[-1]) + window[axis] - image[axis] - padding[axis], padding[axis])
            factor = factor if divisor is None else np.array(math.prod(window) / divisor)
            value = padded(value, [0, 0, *around[:rank]], [0, 0, *around[rank:]])
            around, counts, ceil_mode = [0] * (2 * rank), True, False
        found = pool(
            "avg", value, window=window, strides=strides, padding=around, dilation=(1,) * rank, ceil_mode=ceil_mode,
            count_include_pad=counts,
        )  # fmt: skip
        if (factor != 1).any():
            found = elementwise("multiply", found, constant(factor, call.kind.dtype))
        return reshape(found, call.kind.shape)

    return read


def _max_pool(rank: int) -> Convert:
    """Return what reads the largest elements of windows, and where in the image they are."""

    def read(call: Call) -> list[Value | None]:
        value = _batched(call["self"], rank)
        window, strides, padding = _sizes(call, rank)
        dilation = _each(call["dilation"], rank)
        around = (*padding, *padding)
        found = pool(
            "max", value, window=window, strides=strides, padding=around, dilation=dilation,
            ceil_mode=bool(call["ceil_mode"]),
        )  # fmt: skip
        places: Value | None = None
        if call.users > 1:
            tables = []
            for axis, count in enumerate(tensor_type(found).shape[2:]):
                taps = np.arange(window[axis]) * dilation[axis] - padding[axis]
                table = np.arange(count)[:, None] * strides[axis] + taps
                inside = np.ma.masked_outside(table, 0, tensor_type(value).shape[2 + axis] - 1)
                ends = (inside.min(axis=1, keepdims=True), inside.max(axis=1, keepdims=True))
                tables.append(np.clip(table, *ends))  # padding is no place, even where nothing is larger
            places = reshape(_places_of_largest(value, tables), call.kind.shape)
        return [reshape(found, call.kind.shape), places]

    return read


def _in_windows(value: Value, tables: Sequence[Array]) -> Value:
    """Return an image's windows, (n, c, windows of each dimension, taps); `tables`: (windows, taps) of each one."""
    rank, shape = len(tables), tensor_type(value).shape
    for axis in reversed(range(rank)):
        value = taken(value, constant(tables[axis], "int64"), 2 + axis)
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    counts = [len(table) for table in tables]
    return reshape(permute(value, order), (*shape[:2], *counts, -1))


def _places_of_largest(value: Value, tables: Sequence[Array]) -> Value:
    """Return where in an image, row by row, the largest element of each window is."""
    rank, kind = len(tables), tensor_type(value)
    taps = arg_extreme("argmax", _in_windows(value, tables), -1, keepdims=True)
    flat: Array = np.zeros((), np.int64)
    for axis, table in enumerate(tables):
        places = table.reshape(
            [1] * axis + [len(table)] + [1] * (rank - 1) + [table.shape[1]] + [1] * (rank - 1 - axis)
        )
        flat = flat * kind.shape[2 + axis] + places
    flat = flat.reshape(1, 1, *flat.shape[:rank], -1)
    whole = broadcast(constant(flat, "int64"), (*kind.shape[:2], *flat.shape[2:]))
    return gather(whole, taps, -1)


def _adaptive_mean(call: Call) -> Value:
    value, rank = call["self"], len(call["output_size"])
    layout = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[rank]
    data = _batched(value, rank)
    kind = TensorType((*tensor_type(data).shape[:2], *call.kind.shape[-rank:]), call.kind.dtype)
    name, sizes = f"nn.adaptive_avg_pool{rank}d", tuple(call["output_size"])
    return reshape(made(name, (data,), kind, output_size=sizes, layout=layout, out_layout=layout), call.kind.shape)


def _adaptive_max(call: Call) -> list[Value | None]:
    """Return the largest elements of parts of an image: equal ones are a pool, others windows that repeat elements."""
    rank = len(call["output_size"])
    value = _batched(call["self"], rank)
    image, sizes = tensor_type(value).shape[2:], call.kind.shape[-rank:]
    places: Value | None = None
    if all(size % count == 0 for size, count in zip(image, sizes, strict=True)) and call.users == 1:
        window = [size // count for size, count in zip(image, sizes, strict=True)]
        found = pool("max", value, window=window, strides=window, padding=(0,) * 2 * rank, dilation=(1,) * rank)
    else:
        tables = []
        for size, count in zip(image, sizes, strict=True):
            starts = np.arange(count) * size // count
            ends = -(-(np.arange(count) + 1) * size // count)
            taps = int((ends - starts).max())
            tables.append(np.minimum(starts[:, None] + np.arange(taps), ends[:, None] - 1))
        found = reduced("max", _in_windows(value, tables), [-1], keepdims=False)
        places = reshape(_places_of_largest(value, tables), call.kind.shape) if call.users > 1 else None
    return [reshape(found, call.kind.shape), places]


# ---- images of other sizes ----


def _scales(call: Call, rank: int) -> list[float | None]:
    """Return by how much an image is enlarged along each dimension; None: as its sizes say."""
    if "scale_factors" in call.arguments:
        return list(call["scale_factors"] or [None] * rank)
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[rank]
    return [call.get(name) for name in names]


def _centres(call: Call, axis: int, rank: int, image: Sequence[int]) -> Array:
    """Return where in an image the elements of a larger or smaller one lie, along a dimension."""
    size, count = image[axis], call.kind.shape[2 + axis]
    places = np.arange(count, dtype=np.float64)
    if call.get("align_corners"):
        return places * (size - 1) / max(count - 1, 1)
    scale = _scales(call, rank)[axis]
    return (places + 0.5) * (1 / scale if scale else size / count) - 0.5


def _image(call: Call) -> Value:
    """Return the image that is resized."""
    value: Value = call["input" if "input" in call.arguments else "self"]
    return value


def _nearest(call: Call) -> Value:
    value, rank = _image(call), len(call.kind.shape) - 2
    image = tensor_type(value).shape[2:]
    for axis, (size, scale) in enumerate(zip(image, _scales(call, rank), strict=True)):
        count = call.kind.shape[2 + axis]
        step = np.float32(1 / scale if scale else size / count)
        places = np.arange(count, dtype=np.float32)
        places = (places + np.float32(0.5)) * step if "exact" in call.name else places * step
        numbers = np.minimum(np.floor(places).astype(np.int64), size - 1)
        value = taken_at(value, numbers, 2 + axis)
    return value


def _between(mode: str, *, is_smoothed: bool = False) -> Convert:
    """Return what reads an image of another size: along each dimension sums of weighted neighbours.

    Smoothed (antialiased), an element is the mean of all that it covers.
    """

    def read(call: Call) -> Value:
        value, rank = _image(call), len(call.kind.shape) - 2
        if not is_float(call.kind.dtype):
            raise RefusedError("resizes whole numbers, expected floating-point ones; convert them before")
        image = tensor_type(value).shape[2:]
        for axis in reversed(range(rank)):
            centres, count = _centres(call, axis, rank, image), call.kind.shape[2 + axis]
            size, scale = image[axis], _scales(call, rank)[axis]
            if is_smoothed:
                step = (size - 1) / max(count - 1, 1) if call["align_corners"] else 1 / scale if scale else size / count
                centres = (np.arange(count) + 0.5) * step - 0.5
                places, weights = neighbours(
                    centres, size, mode, shrunk=1 / max(step, 1.0), slope=-0.5, exclude_outside=True
                )
            else:
                places, weights = neighbours(np.maximum(centres, 0) if mode == "linear" else centres, size, mode)
            value = resize_axis(value, 2 + axis, places, weights)
        return value

    return read


def _sampled(call: Call) -> Value:
    """Return the elements of an image at places that another tensor has."""
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
    "_upsample_bicubic2d_aa": _between("cubic", is_smoothed=True),
    "_upsample_bilinear2d_aa": _between("linear", is_smoothed=True),
    "adaptive_max_pool2d": _adaptive_max,
    "adaptive_max_pool3d": _adaptive_max,
    "addbmm": _with_sum("batch1", "batch2"),
    "addmm": _with_sum("mat1", "mat2"),
    "addmv": _with_sum("mat", "vec"),
    "avg_pool1d": _mean_pool(1),
    "avg_pool2d": _mean_pool(2),
    "avg_pool3d": _mean_pool(3),
    "baddbmm": _with_sum("batch1", "batch2"),
    "bmm": _product("self", "mat2"),
    "convolution": _convolution,
    "dot": _product("self", "tensor"),
    "grid_sampler_2d": _sampled,
    "grid_sampler_3d": _sampled,
    "max_pool2d_with_indices": _max_pool(2),
    "max_pool3d_with_indices": _max_pool(3),
    "grouped_mm_fallback": lambda call: _by_groups(call["input"], call["weight"], call["offs"]),  # of transformers
    "mm": _product("self", "mat2"),
    "mv": _product("self", "vec"),
    "upsample_bicubic2d": _between("cubic"),
    "upsample_bilinear2d": _between("linear"),
    "upsample_linear1d": _between("linear"),
    **{f"upsample_nearest{rank}d": _nearest for rank in (1, 2, 3)},
    **{f"_upsample_nearest_exact{rank}d": _nearest for rank in (1, 2, 3)},
    "upsample_trilinear3d": _between("linear"),
}
"""Operator without its overload -> what reads it."""
