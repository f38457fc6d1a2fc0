"""Plain evaluation of a workload, point by point from its access maps: slow, for proofs on small shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import Access, Workload


def position(access: Access, point: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(
        sum(term.coefficient * point[term.axis] for term in terms) + offset
        for terms, offset in zip(access.indices, access.offsets, strict=True)
    )


def inside(access: Access, place: tuple[int, ...]) -> bool:
    return all(0 <= index < extent for index, extent in zip(place, access.shape, strict=True))


def points(workload: Workload) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(axis.extent) for axis in workload.axes))


def random_arrays(workload: Workload, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Small whole numbers, so that float64 sums are exact."""
    rng = np.random.default_rng(seed)
    accesses = (*workload.reads, *workload.epilogue_reads)
    return {access.tensor: rng.integers(-5, 6, access.shape).astype(np.float64) for access in accesses}


def evaluate(workload: Workload, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Run the nest and its epilogue in float64."""
    reduces = bool(workload.reduction_axes)
    outside = -math.inf if workload.body == "max" else 0.0
    result = np.full(workload.write.shape, outside)
    names = [axis.name for axis in workload.axes]
    for values in points(workload):
        point = dict(zip(names, values, strict=True))
        operands = []
        for access in workload.reads:
            place = position(access, point)
            operands.append(arrays[access.tensor][place] if inside(access, place) else outside)
        target = position(workload.write, point)
        assert inside(workload.write, target)
        if workload.body in ("multiply_add", "multiply"):
            value = math.prod(operands)
        elif workload.body == "max":
            value = max(operands)
        elif workload.body == "relu":
            value = max(operands[0], 0.0)
        else:
            value = sum(operands)
        if not reduces:
            result[target] = value
        elif workload.body == "max":
            result[target] = max(result[target], value)
        else:
            result[target] += value
    if workload.body == "average":
        result /= math.prod(axis.extent for axis in workload.reduction_axes)
    return _epilogue(workload, arrays, result)


def _epilogue(
    workload: Workload, arrays: Mapping[str, NDArray[np.float64]], result: NDArray[np.float64]
) -> NDArray[np.float64]:
    operands = {access.tensor: access for access in workload.epilogue_reads}
    names = [axis.name for axis in workload.spatial_axes]
    for step in workload.epilogue:
        if step == "relu":
            result = np.maximum(result, 0.0)
            continue
        access = operands["residual" if step == "add" else step]
        for values in itertools.product(*(range(axis.extent) for axis in workload.spatial_axes)):
            point = dict(zip(names, values, strict=True))
            target, operand = position(workload.write, point), arrays[access.tensor][position(access, point)]
            result[target] = result[target] * operand if step == "scale" else result[target] + operand
    return result


def touched(workload: Workload, access: Access) -> int:
    """Count distinct elements of the tensor that the nest touches."""
    names = [axis.name for axis in workload.axes]
    places = (position(access, dict(zip(names, values, strict=True))) for values in points(workload))
    return len({place for place in places if inside(access, place)})


def convolve(
    data: NDArray[np.float64],
    weight: NDArray[np.float64],
    stride: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> NDArray[np.float64]:
    """Channels-first convolution by padding and slicing, for any number of dimensions."""
    padded = np.pad(data, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    kernel = weight.shape[2:]
    sizes = [
        (size - (taps - 1) * step - 1) // jump + 1
        for size, taps, step, jump in zip(padded.shape[2:], kernel, dilation, stride, strict=True)
    ]
    filters, inner = weight.shape[0] // groups, weight.shape[1]
    output = np.zeros((data.shape[0], weight.shape[0], *sizes))
    for taps in itertools.product(*(range(extent) for extent in kernel)):
        window = tuple(
            slice(tap * step, tap * step + (size - 1) * jump + 1, jump)
            for tap, step, size, jump in zip(taps, dilation, sizes, stride, strict=True)
        )
        patch = padded[(slice(None), slice(None), *window)]
        for group in range(groups):
            rows = slice(group * filters, (group + 1) * filters)
            columns = slice(group * inner, (group + 1) * inner)
            here = weight[(rows, slice(None), *taps)]
            output[:, rows] += np.einsum("fc,nc...->nf...", here, patch[:, columns])
    return output
