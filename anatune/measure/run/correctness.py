"""Checks of a kernel's result and of the memory around it: random operands, allowed errors, fills, guard zones.

Notation
--------
K : iterations of the reduction axes. eps : distance from 1 to the next number of a dtype.
scale : the value that errors are relative to: the reference's largest magnitude, at least the spread of one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.arguments import MOST_SEED, check_integer, plain_array
from anatune.core.accuracy import EPS, rounding_error
from anatune.core.workload.access import FLOAT8_DTYPES, INTEGER_RANGE
from anatune.core.workload.kernels import KERNELS
from anatune.core.workload.nest import Workload
from anatune.core.workload.number_formats import FACTOR_STEPS, STEP_OPERANDS
from anatune.errors import MissingDependencyError, RunError
from anatune.measure.run.kernel_references import FURTHER_REFERENCES, KERNEL_OPERANDS
from anatune.measure.run.memory import check_memory
from anatune.measure.run.reference import reference

Array = NDArray[Any]

_SPREAD = 40.0
"""Standard deviation of requantized results for random operands, with which a few in a thousand saturate int8."""

_COMPARED_ELEMENTS = 1 << 15
"""Number of elements that are compared at once, so that the differences stay in the cache."""

GUARD_BYTES = 4096
"""Bytes on both sides of an argument that no kernel may write."""

GUARD_FILL = 0xFF
"""The byte in guard zones and in results before a run: NaN in every floating-point dtype."""


class Expected(NamedTuple):
    """A workload's result for given inputs: float64 values, the scale of errors, and the largest allowed error.

    `further` holds the same for each tensor of `Workload.further`.
    """

    result: NDArray[np.float64]
    scale: float
    tolerance: float
    further: Mapping[str, Expected] = MappingProxyType({})

    def allowing(self, error: float) -> Expected:
        """Return the same result with errors up to `error` allowed (`core.accuracy.error_of`)."""
        return self._replace(tolerance=max(self.tolerance, error))


class Verification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of checking whether a schedule computes its workload correctly.

    Attributes
    ----------
    ok : bool
        Whether it was built, ran, and gave the correct result.
    max_rel_error : float or None
        Largest error over the largest magnitude of the float64 reference; None if nothing was computed.
    message : str
        Reason if it is not ok, in one line.
    tolerance : float
        Largest error that rounding explains.
    note : str
        Errors that this check cannot detect; "" if there are none.
    """

    ok: bool
    max_rel_error: float | None = None
    message: str = ""
    tolerance: float = 0.0
    note: str = ""


class Correctness(NamedTuple):
    """The correctness of a result: whether it is right, its largest error over `Expected.scale`, and the reason."""

    ok: bool
    max_rel_error: float
    message: str


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a workload's dtype; bfloat16 and 8-bit floats are those of ml_dtypes, as TVM's.

    Raises
    ------
    MissingDependencyError
        The dtype needs ml_dtypes, which is not installed.
    """
    if dtype not in ("bfloat16", *FLOAT8_DTYPES):
        return np.dtype(dtype)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingDependencyError(
            f"{dtype} arrays need the package ml_dtypes, which is not installed; run: pip install ml_dtypes"
        ) from None
    numpy_dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype))
    return numpy_dtype


def random_inputs(workload: Workload, seed: int = 0) -> dict[str, Array]:
    """Return random operands of a workload and of its epilogue, by tensor, in the workload's layouts and dtypes.

    Floating-point values are uniform in [-0.5, 0.5), rounded to the dtype. 8-bit integers of a matrix product or
    convolution have every value of their dtype, int8 ones of others are whole in [-4, 4] (products of a few operands
    fit int8), int32 ones whole in [-100, 100]. Factors of "scale" and "requantize" bring results to a spread of about
    1, and of 40. The same seed gives the same values.

    Raises
    ------
    MissingDependencyError
        bfloat16 or an 8-bit float without ml_dtypes.
    RunError
        The operands do not fit into the free memory.
    """
    seed = check_integer("seed", seed, 0, MOST_SEED)
    check_memory(workload, checked=False)
    arrays: dict[str, Array] = {}
    factors = _typical_factors(workload)
    for position, access in enumerate(workload.operands):
        if access.tensor in arrays:
            continue
        rng = np.random.default_rng([seed, position])
        drawn = KERNEL_OPERANDS.get((workload.body, access.tensor))
        if drawn is not None:
            values: Array = drawn(workload, rng).astype(array_dtype(access.dtype))
        elif access.dtype in INTEGER_RANGE:
            low, high = _drawn_range(workload, access.dtype)
            values = rng.integers(low, high, access.shape, dtype=access.dtype, endpoint=True)
        elif access.tensor in factors:
            spread = np.float32(factors[access.tensor])
            values = (rng.random(access.shape, dtype=np.float32) + np.float32(0.5)) * spread
        else:
            values = (rng.random(access.shape, dtype=np.float32) - np.float32(0.5)).astype(array_dtype(access.dtype))
        arrays[access.tensor] = values
    return arrays


def _drawn_range(workload: Workload, dtype: str) -> tuple[int, int]:
    """Return the lowest and highest value of random operands of an integer dtype."""
    if dtype == "int32":
        return -100, 100
    is_product = workload.body == "multiply_add" and len(workload.reads) == 2
    is_product |= workload.is_kernel and KERNELS[workload.body].exact
    return INTEGER_RANGE[dtype] if is_product else (-4, 4)


def _typical_factors(workload: Workload) -> dict[str, float]:
    """Return tensor -> typical factor of the steps "scale" and "requantize" for random operands."""
    steps = [step for step in workload.epilogue if step in FACTOR_STEPS]
    deviation = math.sqrt(workload.num_reduced)
    for access in workload.reads:
        if access.dtype not in INTEGER_RANGE:
            deviation *= math.sqrt(1 / 12)
            continue
        low, high = INTEGER_RANGE[access.dtype]
        deviation *= math.sqrt(((high - low + 1) ** 2 - 1) / 12 + ((high + low) / 2 - access.zero_point) ** 2)
    factors = {}
    for step in steps:
        factor = _SPREAD if step == "requantize" else 1.0
        factors[str(STEP_OPERANDS[step])] = factor / deviation
        deviation = factor
    return factors


def check_operands(workload: Workload, names: Sequence[str], arrays: Sequence[Array]) -> dict[str, Array]:
    """Return the operands of a call by tensor.

    Raises
    ------
    RunError
        The number of arrays, a shape or a dtype is wrong.
    """
    if len(arrays) != len(names):
        raise RunError(f"{workload.operator}: got {len(arrays)} arrays, expected {len(names)}: {', '.join(names)}")
    checked = {}
    for name, array in zip(names, arrays, strict=True):
        access, given = workload.tensor(name), plain_array(f"{workload.operator}: {name}", array, RunError)
        if given.shape != access.shape or given.dtype != array_dtype(access.dtype):
            raise RunError(
                f"{workload.operator}: {name} is {given.dtype} of shape {given.shape}, "
                f"expected {access.dtype} of shape {access.shape}"
            )
        checked[name] = given
    return checked


def compute_expected(workload: Workload, inputs: Mapping[str, Array]) -> Expected:
    """Return the float64 result with the scale and the largest allowed error of a correct kernel.

    The scale is the reference's largest magnitude, but at least the spread of one element for operands of mean zero,
    ``sqrt(K) * rms(A) * rms(B)``: a few elements that happen to cancel, or a ReLU that leaves zeros must not
    shrink it.

    Raises
    ------
    RunError
        An operand is missing or has another shape.
    """
    with np.errstate(invalid="ignore"):  # inf - inf, as in the kernel
        result = reference(workload, inputs)
    largest = float(max(result.max(), -result.min()))
    if not math.isfinite(largest):
        largest = float(np.abs(result[np.isfinite(result)]).max(initial=0.0))
    scale = max(largest, _spread(workload, inputs)) or 1.0
    return Expected(result, scale, tolerance(workload, scale), _expected_further(workload, inputs))


def _expected_further(workload: Workload, inputs: Mapping[str, Array]) -> dict[str, Expected]:
    """Return the expected values of the results besides the first one."""
    operands = (
        {name: np.asarray(array).astype(np.float64) for name, array in inputs.items()} if workload.further else {}
    )
    further = {}
    for access in workload.further:
        values = FURTHER_REFERENCES[access.tensor](workload, operands)
        allowed = EPS[access.dtype] + EPS[workload.dtype] + 32 * EPS["float32"]
        further[access.tensor] = Expected(values, float(np.abs(values).max()) or 1.0, allowed)
    return further


def tolerance(workload: Workload, scale: float = 1.0) -> float:
    """Return the largest error, over `scale`, of a correct kernel.

    - Nothing is rounded ("max", "copy", "relu" without a sum), or operands are integers: 0, since the
      steps behind integer sums say how they round. A mean of integers may be rounded either way: less than 1 unit. A
      result of 16 bits is rounded once, and may be once more: an eps of it.
    - One of `core.workload.kernels` keeps float32 between its operands and its result: an eps of each of these, and 32
      of float32; operands that are multiplied without rounding have none.
    - Otherwise `core.accuracy.rounding_error`.
    """
    if workload.is_kernel:
        unit = EPS.get(workload.write.dtype, 1.0 / scale)  # integers may be rounded either way
        exact = KERNELS[workload.body].exact and workload.dtype not in ("float16", "bfloat16")
        return unit + (0.0 if exact else EPS[workload.dtype]) + 32 * EPS["float32"]
    if workload.dtype in INTEGER_RANGE:
        if workload.write.dtype in ("float16", "bfloat16"):
            return EPS[workload.write.dtype]
        return (1.0 - 1e-9) / scale if workload.body == "average" else 0.0
    if workload.body in ("max", "copy", "relu") and all(step == "relu" for step in workload.epilogue):
        return 0.0
    return rounding_error(workload)


def fill_bytes(dtype: str) -> tuple[int, ...]:
    """Return the bytes with which a result is filled before a check; there is one run for each.

    A NaN that stays was never overwritten. Integers have no such value, so two runs with different fills distinguish an
    element that was never written from one that equals its fill by chance.
    """
    return (0x55, 0xAA) if dtype in INTEGER_RANGE else (GUARD_FILL,)


def check_runs(
    workload: Workload, want: Expected, run: Callable[[int], Mapping[str, Array]], changed: Callable[[], str]
) -> Correctness:
    """Run a kernel on each of the fills and compare.

    Parameters
    ----------
    run : callable
        Fills the results with a byte, runs the kernel, and returns the results by tensor.
    changed : callable
        Returns afterwards which operand or guard zone the kernel changed; "" if none.
    """
    answer = Correctness(True, 0.0, "")
    for byte in fill_bytes(workload.write.dtype):
        here = compare_all(workload, run(byte), want)
        answer = here if not here.ok or here.max_rel_error > answer.max_rel_error else answer
        if not here.ok:
            break
    complaint = changed()
    return Correctness(False, answer.max_rel_error, complaint) if complaint else answer


def same_bytes(left: Array, right: Array) -> bool:
    """Return whether two C-contiguous arrays hold the same bytes (so that a NaN equals itself)."""
    if left.nbytes != right.nbytes:
        return False
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in (left, right))
    return bool(first == second)  # compared as memory, without temporaries


def compare(workload: Workload, result: Array, want: Expected, tensor: str = "") -> Correctness:
    """Compare a kernel's result with the expected one; NaN and infinities must be at the same positions.

    `tensor` names one of several results; by default the workload's main result.

    The message names the first wrong element, its value and the expected one, and how many are wrong.
    """
    if result.shape != want.result.shape:
        shape = "x".join(map(str, result.shape))
        return Correctness(False, math.nan, f"result has shape {shape}, expected {want.result.shape}")
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
            if math.isnan(error):
                difference[_alike(flat[here], exact[here])] = 0.0
                error = float(difference.max())
            if not error <= largest:
                largest = error
                if math.isnan(error):
                    break
    relative = largest / want.scale
    if relative <= want.tolerance:
        return Correctness(True, relative, "")
    return Correctness(False, relative, _complaint(tensor or workload.write.tensor, flat, want, relative))


def compare_all(workload: Workload, results: Mapping[str, Array], want: Expected) -> Correctness:
    """Compare a kernel's results by tensor, the main one first; return the first wrong one."""
    answer = compare(workload, results[workload.write.tensor], want)
    for tensor, wanted in want.further.items():
        here = compare(workload, results[tensor], wanted, tensor)
        answer = answer if here.ok or not answer.ok else here
    return answer


def _alike(values: Array, exact: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return where both are NaN, or the same number, be it infinite."""
    same: NDArray[np.bool_] = (values == exact) | (np.isnan(values) & np.isnan(exact))
    return same


def _complaint(name: str, flat: Array, want: Expected, relative: float) -> str:
    """Return one line that describes the error of a result."""
    values, exact = flat.astype(np.float64), want.result.reshape(-1)
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(values - exact) <= want.tolerance * want.scale) | _alike(values, exact))
    where = int(np.argmax(wrong))
    index_text = ", ".join(str(int(index)) for index in np.unravel_index(where, want.result.shape))
    count = f"{int(wrong.sum())} of {flat.size} elements"
    if math.isnan(values[where]):
        return f"{name}[{index_text}] is NaN or was never written, expected {exact[where]:.6g}; {count} are wrong"
    return (
        f"{name}[{index_text}] is {values[where]:.6g}, expected {exact[where]:.6g}; {count} are wrong, "
        f"the largest error is {relative:.2g} of the largest magnitude (allowed {want.tolerance:.2g})"
    )


def _spread(workload: Workload, inputs: Mapping[str, Array]) -> float:
    """Return the standard deviation of one element of the result for operands of mean zero.

    It is 0 if the result is no sum, or a scaled sum of integers.
    """
    factors = [STEP_OPERANDS[step] for step in workload.epilogue if step in FACTOR_STEPS]
    if workload.body in ("max", "copy", "relu") or workload.is_kernel or (factors and workload.dtype in INTEGER_RANGE):
        return 0.0
    squares = [_mean_square(np.asarray(inputs[access.tensor]).astype(np.float64)) for access in workload.reads]
    product = math.prod(squares) if workload.body in ("multiply_add", "multiply") else sum(squares)
    product *= math.prod(_mean_square(inputs[str(factor)].astype(np.float64)) for factor in factors)
    iterations = workload.num_reduced
    return math.sqrt(product * iterations) / (iterations if workload.body == "average" else 1)


def _mean_square(values: NDArray[np.float64]) -> float:
    """Return the mean of the squares of finite numbers."""
    mean = float(np.square(values).mean())
    return mean if math.isfinite(mean) else float(np.square(values[np.isfinite(values)]).sum() / values.size)
