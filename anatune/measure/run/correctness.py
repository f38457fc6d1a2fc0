"""What a kernel must compute: random operands, the float64 reference of any workload, and the comparison.

The reference follows from the access maps alone. A read becomes a view with one dimension per axis on a padded copy
(windows, strides, dilation and groups are strides of that view); a product of two such views is a matrix product, so
that BLAS does the work.

Notation
--------
K : iterations of the reduction axes. eps : distance from 1 to the next number of a dtype.
scale : what errors are relative to: the reference's largest magnitude, at least the spread of one element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from anatune.arguments import MOST_SEED, checked_integer
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, Access, Workload
from anatune.errors import MissingDependencyError, RunError
from anatune.measure.run.memory import check_memory

__all__ = [
    "Comparison",
    "Expected",
    "Verification",
    "array_dtype",
    "compare",
    "expected",
    "fill_patterns",
    "random_inputs",
    "reference",
    "tolerance",
]

Array = NDArray[Any]

_EPS: dict[str, float] = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "int8": 0.0, "int32": 0.0}

_SUM_FACTOR = 4.0
"""Allowed error of a sum of K products over eps * sqrt(K) * scale, see `tolerance`."""

_COPIED_ELEMENTS = 1 << 23
"""Most elements of an operand that are gathered for one matrix product (64 MiB in float64)."""

_COMPARED_ELEMENTS = 1 << 15
"""Elements that are compared at once: the differences stay in the cache."""


class Expected(NamedTuple):
    """A workload's result for given inputs: float64 values, what errors are relative to, the largest one allowed."""

    result: NDArray[np.float64]
    scale: float
    tolerance: float


class Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a schedule computes what its workload says.

    Attributes
    ----------
    ok : bool
        It was built, ran, and its result is right.
    max_rel_error : float or None
        Largest error over the largest magnitude of the float64 reference; None if nothing was computed.
    message : str
        Why it is not ok, in one line.
    tolerance : float
        Largest error that rounding explains.
    """

    ok: bool
    max_rel_error: float | None = None
    message: str = ""
    tolerance: float = 0.0


class Comparison(NamedTuple):
    """Whether a result is right; its largest error over `Expected.scale` (NaN where nothing was written); why not."""

    ok: bool
    max_rel_error: float
    message: str


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a workload's dtype; bfloat16 is that of ml_dtypes, as TVM gives and takes it.

    Raises
    ------
    MissingDependencyError
        bfloat16 without ml_dtypes.
    """
    if dtype != "bfloat16":
        return np.dtype(dtype)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingDependencyError(
            "bfloat16 arrays need the package ml_dtypes, which is not installed; run: pip install 'anatune[tvm]'"
        ) from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def random_inputs(workload: Workload, seed: int = 0) -> dict[str, Array]:
    """Return random operands of the nest and of its epilogue, by tensor, in the workload's own layouts and dtypes.

    Floating-point values are uniform in [-0.5, 0.5), rounded to the dtype; int8 ones whole in [-4, 4] (products of a
    few operands fit int8, sums int32), int32 ones whole in [-100, 100]. The same seed gives the same values.

    Raises
    ------
    MissingDependencyError
        bfloat16 without ml_dtypes.
    RunError
        They do not fit the free memory.
    """
    seed = checked_integer("seed", seed, 0, MOST_SEED)
    check_memory(workload, checked=False)
    arrays: dict[str, Array] = {}
    for place, access in enumerate((*workload.reads, *workload.epilogue_reads)):
        if access.tensor in arrays:
            continue
        rng = np.random.default_rng([seed, place])
        if access.dtype in ("int8", "int32"):
            most = 4 if access.dtype == "int8" else 100
            values: Array = rng.integers(-most, most + 1, access.shape, dtype=access.dtype)
        else:
            values = (rng.random(access.shape, dtype=np.float32) - np.float32(0.5)).astype(array_dtype(access.dtype))
        arrays[access.tensor] = values
    return arrays


def reference(workload: Workload, inputs: Mapping[str, Array]) -> NDArray[np.float64]:
    """Return the workload's result in float64, epilogue included.

    Parameters
    ----------
    workload
        Any workload: the result follows from its accesses, body and epilogue.
    inputs : mapping of str to ndarray
        Operands by tensor (nest and epilogue), in the shapes of their accesses; any dtype.

    Raises
    ------
    RunError
        An operand is missing or has another shape.
    """
    checked = {access.tensor: _checked(workload, access, inputs) for access in _operands(workload)}
    outside = -math.inf if workload.body == "max" else 0.0
    views = [_view(workload, access, checked[access.tensor], outside) for access in workload.reads]
    values, axes = _reduced(workload, views)
    result = np.zeros(workload.write.shape)
    written, written_axes = _view(workload, workload.write, result, 0.0)
    written[...] = _broadcast(values, axes, written_axes)
    for step in workload.epilogue:
        if step == "relu":
            np.maximum(result, 0.0, out=result)
            continue
        name = "bias" if step == "bias" else "residual"
        access = workload.tensor(name)
        addend, addend_axes = _view(workload, access, checked[name], 0.0)
        written += _broadcast(addend, addend_axes, written_axes)
    return result


def expected(workload: Workload, inputs: Mapping[str, Array]) -> Expected:
    """Return the reference together with the scale and the size of the errors that a right kernel may have.

    The scale is the reference's largest magnitude, but at least the spread of one element for operands of mean zero,
    ``sqrt(K) * rms(A) * rms(B)``: a few elements that happen to cancel, or a ReLU that leaves zeros must not
    shrink it.

    Raises
    ------
    RunError
        An operand is missing or has another shape.
    """
    result = reference(workload, inputs)
    largest = float(max(result.max(), -result.min()))
    scale = max(largest, _spread(workload, inputs)) or 1.0
    return Expected(result, scale, tolerance(workload, scale))


def tolerance(workload: Workload, scale: float = 1.0) -> float:
    """Return the largest error, over `scale`, that a right kernel may have.

    - Nothing is rounded ("max", "copy", "relu" without a sum behind them) or everything is an integer: 0. A mean of
      integers may be rounded either way: less than 1 unit.
    - Otherwise ``4 * eps(accumulator) * sqrt(K) + eps(result) * (1 + epilogue steps that add)``. For operands of mean
      zero a partial sum of k products has spread ``sqrt(k) * rms`` and each addition errs by at most half an eps of
      it, at random: ``eps / 2 * K / sqrt(2) * rms`` after K of them, which is ``0.35 * eps * sqrt(K)`` of the
      element's own spread. The factor 4 leaves 11 standard deviations to the worst of millions of elements, summed in
      the worst order (one after another; vector lanes and tiles err less).

    The worst-case bound, ``eps * K``, would let errors of whole products pass; see Higham and Mary, A New Approach to
    Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41 (2019), for why sqrt(K) holds for random data.
    """
    result = workload.write.dtype
    if result in ("int8", "int32"):
        return (1.0 - 1e-9) / scale if workload.body == "average" else 0.0
    additions = sum(step != "relu" for step in workload.epilogue)
    if workload.body in ("max", "copy", "relu") and not additions:
        return 0.0
    summed = _SUM_FACTOR * _EPS[ACCUMULATOR_DTYPE[workload.dtype]] * math.sqrt(_iterations(workload))
    return summed + _EPS[result] * (1 + additions)


def fill_patterns(dtype: str) -> tuple[float, ...]:
    """Return the values that a result is filled with before a check, one run each.

    NaN survives everything but being overwritten. Integers have no such value: two runs with two fills tell an element
    that was never written from one that happens to equal its fill.
    """
    return {"int8": (85, -86), "int32": (0x55555555, -0x55555556)}.get(dtype, (math.nan,))


def compare(workload: Workload, result: Array, want: Expected) -> Comparison:
    """Compare a kernel's result with what was expected.

    The message names the first wrong element, its value and the expected one, and how many are wrong.
    """
    if result.shape != want.result.shape:
        shape = "x".join(map(str, result.shape))
        return Comparison(False, math.nan, f"result has shape {shape}, expected {want.result.shape}")
    flat, exact = np.ascontiguousarray(result).reshape(-1), want.result.reshape(-1)
    buffer = np.empty(min(_COMPARED_ELEMENTS, max(1, flat.size)))
    largest = 0.0
    with np.errstate(invalid="ignore"):
        for start in range(0, flat.size, len(buffer)):
            difference = buffer[: min(len(buffer), flat.size - start)]
            here = slice(start, start + len(difference))
            np.subtract(flat[here].astype(np.float64), exact[here], out=difference)
            np.abs(difference, out=difference)
            error = float(difference.max())
            if not error <= largest:
                largest = error
                if math.isnan(error):
                    break
    relative = largest / want.scale
    if relative <= want.tolerance:
        return Comparison(True, relative, "")
    return Comparison(False, relative, _complaint(workload, flat, want, relative))


def _complaint(workload: Workload, flat: Array, want: Expected, relative: float) -> str:
    """Say what is wrong with a result, in one line."""
    values, exact = flat.astype(np.float64), want.result.reshape(-1)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(values - exact) <= want.tolerance * want.scale)
    where = int(np.argmax(wrong))
    place = ", ".join(str(int(index)) for index in np.unravel_index(where, want.result.shape))
    count = f"{int(wrong.sum())} of {flat.size} elements"
    name = workload.write.tensor
    if math.isnan(values[where]):
        return f"{name}[{place}] is NaN or was never written, expected {exact[where]:.6g}; {count} are wrong"
    return (
        f"{name}[{place}] is {values[where]:.6g}, expected {exact[where]:.6g}; {count} are wrong, "
        f"the largest error is {relative:.2g} of the largest magnitude (allowed {want.tolerance:.2g})"
    )


def _operands(workload: Workload) -> tuple[Access, ...]:
    return (*workload.reads, *workload.epilogue_reads)


def _checked(workload: Workload, access: Access, inputs: Mapping[str, Array]) -> NDArray[np.float64]:
    """Return one operand in float64.

    Raises
    ------
    RunError
        It is missing or has another shape.
    """
    if access.tensor not in inputs:
        names = ", ".join(operand.tensor for operand in _operands(workload))
        raise RunError(f"{workload.operator}: operand {access.tensor!r} is missing, expected arrays for {names}")
    array = np.asarray(inputs[access.tensor])
    if array.shape != access.shape:
        raise RunError(
            f"{workload.operator}: operand {access.tensor} has shape {array.shape}, expected {access.shape}; "
            "give it in the workload's own layout"
        )
    return array.astype(np.float64)


def _iterations(workload: Workload) -> int:
    return math.prod(axis.extent for axis in workload.reduction_axes)


def _spread(workload: Workload, inputs: Mapping[str, Array]) -> float:
    """Return the standard deviation of one element of the result for operands of mean zero; 0 without sums."""
    if workload.body in ("max", "copy", "relu"):
        return 0.0
    squares = [np.square(np.asarray(inputs[access.tensor]).astype(np.float64)).mean() for access in workload.reads]
    one = math.prod(squares) if workload.body in ("multiply_add", "multiply") else sum(squares)
    iterations = _iterations(workload)
    return math.sqrt(one * iterations) / (iterations if workload.body == "average" else 1)


def _view(
    workload: Workload, access: Access, array: NDArray[np.float64], outside: float
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return `array` with one dimension per axis that the access uses, and those axes; `outside` stands beyond it.

    A view of `array` itself where no index leaves it, else of a copy that holds the positions in reach.
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
        whole: Any = (*inside, ...)  # the ellipsis: never a scalar
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


def _reduced(
    workload: Workload, views: Sequence[tuple[NDArray[np.float64], tuple[str, ...]]]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the nest's values before the epilogue, and their axes (spatial ones, in any order)."""
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
    return total / _iterations(workload) if workload.body == "average" else total, spatial


def _broadcast(values: NDArray[np.float64], axes: Sequence[str], into: Sequence[str]) -> NDArray[np.float64]:
    """Return `values` with the dimensions `into`, of size 1 where it has no such axis."""
    ordered = values.transpose([axes.index(axis) for axis in into if axis in axes])
    return ordered[tuple(slice(None) if axis in axes else None for axis in into)]


def _product(
    views: Sequence[tuple[NDArray[np.float64], tuple[str, ...]]], spatial: tuple[str, ...]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the product of all views, summed over the axes that are not spatial."""
    kept = tuple(axis for axis in spatial if any(axis in axes for _, axes in views))
    if len(views) != 2:
        numbers = {axis: place for place, axis in enumerate(dict.fromkeys(axis for _, axes in views for axis in axes))}
        words: list[Any] = [item for view, axes in views for item in (view, [numbers[axis] for axis in axes])]
        return np.asarray(np.einsum(*words, [numbers[axis] for axis in kept], optimize="greedy")), kept
    (left, left_axes), (right, right_axes) = (
        _summed_alone(*views[0], {*spatial, *views[1][1]}),
        _summed_alone(*views[1], {*spatial, *views[0][1]}),
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


def _summed_alone(
    values: NDArray[np.float64], axes: tuple[str, ...], wanted: set[str]
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Sum over the axes that neither the result nor the other operand has."""
    alone = tuple(place for place, axis in enumerate(axes) if axis not in wanted)
    return (values.sum(axis=alone), tuple(axis for axis in axes if axis in wanted)) if alone else (values, axes)


def _matrix_product(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    result: NDArray[np.float64],
    sizes: tuple[int, int, int, int],
) -> None:
    """Multiply (batch, rows, inner) by (batch, inner, columns) into `result`, in parts that bound the copies.

    `sizes` are the numbers of dimensions of batch, rows, inner, columns. Views overlap, so that a matrix of all
    windows would be many times the operand.
    """
    batch, rows, inner, columns = sizes
    outer = batch + rows
    if left.size > _COPIED_ELEMENTS and outer and max(left.shape[:outer]) > 1:
        place = int(np.argmax(left.shape[:outer]))
        half = left.shape[place] // 2
        for part in (slice(None, half), slice(half, None)):
            here = (*(slice(None),) * place, part)
            _matrix_product(left[here], right[here] if place < batch else right, result[here], sizes)
        return
    if right.size > _COPIED_ELEMENTS and columns and max(right.shape[batch + inner :]) > 1:
        place = int(np.argmax(right.shape[batch + inner :]))
        half = right.shape[batch + inner + place] // 2
        for part in (slice(None, half), slice(half, None)):
            shared: Any = (..., part, *(slice(None),) * (columns - 1 - place))
            _matrix_product(left, right[shared], result[shared], sizes)
        return
    groups = left.shape[:batch]
    depth = math.prod(left.shape[outer:])
    product = left.reshape(*groups, -1, depth) @ right.reshape(*groups, depth, -1)
    result[...] = product.reshape(result.shape)
