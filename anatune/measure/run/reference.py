"""The result of any workload, computed from its access maps in float64, or exactly for integers.

A read becomes a view with one dimension per axis on a padded copy (windows, strides, dilation and groups become strides
of that view). A product of two such views is a matrix product, which BLAS computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from anatune.core.activations import ACTIVATIONS
from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.nest import Access, Workload
from anatune.core.workload.number_formats import FACTOR_STEPS, STEP_OPERANDS
from anatune.errors import RunError
from anatune.measure.run.kernel_references import IN_PARTS, KERNEL_REFERENCES

Values = NDArray[np.float64]
Operand = NDArray[np.generic]

_COPIED_ELEMENTS = 1 << 23
"""Largest number of elements of an operand that are gathered for one matrix product (64 MiB in float64)."""


def reference(workload: Workload, inputs: Mapping[str, Operand]) -> Values:
    """Return the workload's result in float64, epilogue included.

    Sums of products of 8-bit integers are exact, and wrap around as int32 does; the steps after them round as
    `anatune.core.workload.number_formats` says, so that a right kernel's result is equal (of 16 bits: this, rounded).

    Parameters
    ----------
    workload
        Any workload; the result follows from its accesses, body and epilogue.
    inputs : mapping of str to ndarray
        Operands by tensor (nest and epilogue), in the shapes of their accesses; any dtype.

    Raises
    ------
    RunError
        An operand is missing or has another shape.
    """
    checked = {access.tensor: _check_operand(workload, access, inputs) for access in workload.operands}
    if workload.is_kernel:
        kernel_values = KERNEL_REFERENCES[workload.body](workload, checked)
        for step in workload.epilogue:  # operands for the columns, or for all elements
            name = STEP_OPERANDS[step]
            kernel_values = ACTIVATIONS[step](kernel_values) if name is None else kernel_values + checked[name]
        return kernel_values
    outside = -math.inf if workload.body == "max" else 0.0
    views = []
    for access in workload.reads:
        values = checked[access.tensor]
        if access.zero_point:  # the padding has this value
            values = values - access.zero_point
        views.append(_view(workload, access, values, outside))
    values, axes = _reduce(workload, views)
    result = np.zeros(workload.write.shape)
    written, written_axes = _view(workload, workload.write, result, 0.0)
    written[...] = _broadcast(values, axes, written_axes)
    is_integer = workload.dtype in INTEGER_RANGE
    if is_integer and workload.body == "multiply_add":
        _wrap(result)
    for step in workload.epilogue:
        name = STEP_OPERANDS[step]
        if name is None:
            result[...] = ACTIVATIONS[step](result)
            continue
        operand, operand_axes = _view(workload, workload.tensor(name), checked[name], 0.0)
        operand = _broadcast(operand, operand_axes, written_axes)
        if step not in FACTOR_STEPS:
            written += operand
            if is_integer:
                _wrap(result) if workload.tensor(name).dtype == "int32" else _round_to_float32(result)
            continue
        if not is_integer:
            written *= operand
            continue
        _round_to_float32(result)  # rounds int32 values; float32 values do not change
        written *= operand
        _round_to_float32(result)  # products of two float32 numbers are exact in float64 and rounded once
        if step == "requantize":
            zero_point = workload.write.zero_point
            np.clip(np.rint(result) + zero_point, *INTEGER_RANGE[workload.write.dtype], out=result)
    return result


def _wrap(values: Values) -> None:
    """Wrap whole numbers below 2**53 around to int32, in place."""
    if values.size and max(values.max(), -values.min()) >= 2**31:
        values[...] = values.astype(np.int64).astype(np.int32)


def _round_to_float32(values: Values) -> None:
    """Round to the nearest float32 (ties to even), in place."""
    values[...] = values.astype(np.float32)


def _check_operand(workload: Workload, access: Access, inputs: Mapping[str, Operand]) -> Any:
    """Return one operand, converted to float64 unless the reference does that itself.

    Raises
    ------
    RunError
        The operand is missing or has another shape.
    """
    if access.tensor not in inputs:
        names = ", ".join(operand.tensor for operand in workload.operands)
        raise RunError(f"{workload.operator}: operand {access.tensor!r} is missing, expected arrays for {names}")
    array = np.asarray(inputs[access.tensor])
    if array.shape != access.shape:
        raise RunError(
            f"{workload.operator}: operand {access.tensor} has shape {array.shape}, expected {access.shape}; "
            "give it in the workload's own layout"
        )
    return array if (workload.body, access.tensor) in IN_PARTS else array.astype(np.float64)


def _view(workload: Workload, access: Access, array: Values, outside: float) -> tuple[Values, tuple[str, ...]]:
    """Return `array` with one dimension per axis that the access uses, and those axes; `outside` is read beyond it.

    It is a view of `array` itself if no index leaves it, else of a padded copy.
    """
    extents = workload.extents
    first = access.offsets
    last = tuple(
        offset + sum(term.coefficient * (extents[term.axis] - 1) for term in terms)
        for terms, offset in zip(access.indices, access.offsets, strict=True)
    )
    low = tuple(max(0, start) for start in first)
    high = tuple(min(size, stop + 1) for size, stop in zip(access.shape, last, strict=True))
    inside = tuple(slice(start, max(start, stop)) for start, stop in zip(low, high, strict=True))
    if low == first and all(stop < size for stop, size in zip(last, access.shape, strict=True)):
        whole: tuple[slice | EllipsisType, ...] = (*inside, ...)  # the ellipsis avoids a scalar
        base = array[whole]
    else:
        base = np.full([stop - start + 1 for start, stop in zip(first, last, strict=True)], outside)
        shifted = tuple(slice(part.start - start, part.stop - start) for part, start in zip(inside, first, strict=True))
        base[shifted] = array[inside]
    axes = tuple(axis for axis in extents if access.uses(axis))
    steps = dict.fromkeys(axes, 0)
    for terms, stride in zip(access.indices, base.strides, strict=True):
        for term in terms:
            steps[term.axis] += term.coefficient * stride
    return as_strided(base, [extents[axis] for axis in axes], [steps[axis] for axis in axes]), axes


def _reduce(workload: Workload, views: Sequence[tuple[Values, tuple[str, ...]]]) -> tuple[Values, tuple[str, ...]]:
    """Return the values before the epilogue, and their spatial axes in any order."""
    spatial = tuple(axis.name for axis in workload.spatial_axes)
    if workload.body in ("multiply_add", "multiply"):
        values, axes = _product(views, spatial)
        used = {axis for _, names in views for axis in names}
        repeated = math.prod(axis.extent for axis in workload.reduction_axes if axis.name not in used)
        return values * repeated if repeated > 1 else values, axes
    parts = []
    for values, axes in views:
        if workload.body == "relu":
            values = np.maximum(values, 0.0)
        summed = tuple(place for place, axis in enumerate(axes) if axis not in spatial)
        kept = tuple(axis for axis in axes if axis in spatial)
        if summed:
            values = values.max(axis=summed) if workload.body == "max" else values.sum(axis=summed)
        if workload.body != "max":
            values = values * math.prod(axis.extent for axis in workload.reduction_axes if axis.name not in axes)
        parts.append(_broadcast(values, kept, spatial))
    total = parts[0]
    for part in parts[1:]:
        total = np.maximum(total, part) if workload.body == "max" else total + part
    return total / workload.num_reduced if workload.body == "average" else total, spatial


def _broadcast(values: Values, axes: Sequence[str], into: Sequence[str]) -> Values:
    """Return `values` with the dimensions `into`; missing axes have size 1."""
    ordered = values.transpose([axes.index(axis) for axis in into if axis in axes])
    return ordered[tuple(slice(None) if axis in axes else None for axis in into)]


def _product(
    views: Sequence[tuple[Values, tuple[str, ...]]], spatial: tuple[str, ...]
) -> tuple[Values, tuple[str, ...]]:
    """Return the product of all views, summed over the axes that are not spatial."""
    kept = tuple(axis for axis in spatial if any(axis in axes for _, axes in views))
    if len(views) != 2:
        numbers = {axis: place for place, axis in enumerate(dict.fromkeys(axis for _, axes in views for axis in axes))}
        words: list[Any] = [item for view, axes in views for item in (view, [numbers[axis] for axis in axes])]
        return np.asarray(np.einsum(*words, [numbers[axis] for axis in kept], optimize="greedy")), kept
    (left, left_axes), (right, right_axes) = (
        _sum_single_axes(*views[0], {*spatial, *views[1][1]}),
        _sum_single_axes(*views[1], {*spatial, *views[0][1]}),
    )
    both = [axis for axis in left_axes if axis in right_axes]
    inner = [axis for axis in both if axis not in spatial]
    if not inner:
        return _broadcast(left, left_axes, kept) * _broadcast(right, right_axes, kept), kept
    batch = [axis for axis in both if axis in spatial]
    rows = [axis for axis in left_axes if axis not in both]
    columns = [axis for axis in right_axes if axis not in both]
    left = left.transpose([left_axes.index(axis) for axis in (*batch, *rows, *inner)])
    right = right.transpose([right_axes.index(axis) for axis in (*batch, *inner, *columns)])
    sizes = (len(batch), len(rows), len(inner), len(columns))
    result = np.empty((*left.shape[: len(batch) + len(rows)], *right.shape[len(batch) + len(inner) :]))
    _matrix_product(left, right, result, sizes)
    return result, (*batch, *rows, *columns)


def _sum_single_axes(values: Values, axes: tuple[str, ...], wanted: set[str]) -> tuple[Values, tuple[str, ...]]:
    """Sum over the axes that neither the result nor the other operand has."""
    alone = tuple(place for place, axis in enumerate(axes) if axis not in wanted)
    return (values.sum(axis=alone), tuple(axis for axis in axes if axis in wanted)) if alone else (values, axes)


def _matrix_product(left: Values, right: Values, result: Values, sizes: tuple[int, int, int, int]) -> None:
    """Multiply (batch, rows, inner) by (batch, inner, columns) into `result`, in parts that limit the copies.

    `sizes` are the numbers of dimensions of batch, rows, inner, columns. Views overlap, so that a matrix of all windows
    would be many times as large as the operand.
    """
    batch, rows, inner, columns = sizes
    outer = batch + rows
    if left.size > _COPIED_ELEMENTS and outer and max(left.shape[:outer]) > 1:
        axis = int(np.argmax(left.shape[:outer]))
        half = left.shape[axis] // 2
        for part in (slice(None, half), slice(half, None)):
            here = (*(slice(None),) * axis, part)
            _matrix_product(left[here], right[here] if axis < batch else right, result[here], sizes)
        return
    if right.size > _COPIED_ELEMENTS and columns and max(right.shape[batch + inner :]) > 1:
        axis = int(np.argmax(right.shape[batch + inner :]))
        half = right.shape[batch + inner + axis] // 2
        for part in (slice(None, half), slice(half, None)):
            shared: tuple[slice | EllipsisType, ...] = (..., part, *(slice(None),) * (columns - 1 - axis))
            _matrix_product(left, right[shared], result[shared], sizes)
        return
    groups = left.shape[:batch]
    depth = math.prod(left.shape[outer:])
    product = left.reshape(*groups, -1, depth) @ right.reshape(*groups, depth, -1)
    result[...] = product.reshape(result.shape)
