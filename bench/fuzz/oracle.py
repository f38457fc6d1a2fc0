"""Which results a program may have: samples of its values in float64 with noise of rounding, and the hull of them.

Each operator is computed in float64 several times: once rounded to its dtype, once not rounded at all, and a few times
with noise of some units in the last place. How far the samples of an element are apart is what rounding does to it;
an element is right inside of their hull, widened by as much on both sides. So moves, integers, comparisons and choices
are compared exactly wherever no rounding decides them, NaN and infinities have to be where some sample has them, and a
tie that rounding may break excuses both answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.fuzz.program import Array

__all__ = [
    "EXACT", "INNER", "MOST", "MOVE", "NUM_SAMPLES", "OUTER", "WIDER", "Noise", "Undefined", "fault", "is_float",
    "rounded", "worst_error",
]  # fmt: skip

MOVE, EXACT, OUTER, INNER = "move", "exact", "outer", "inner"
"""How an operator rounds: elements are copied, signs of zeros included; results are exact, signs of zeros apart; the
result is rounded; operands are combined inside (sums, products), so that they have noise, too."""
NUM_SAMPLES = 9
"""Samples: rounded, not rounded, and the others with noise, of which two have the largest, upwards and downwards:
random noise in a few samples may leave out one answer to a comparison of equal numbers."""
ULPS = 4.0
"""Noise, in units in the last place: what an elementary function may be off."""
WIDER = 3.0
"""How much wider than the samples the hull is, on each side."""
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_LEAST = {"float16": 1.2e-7, "bfloat16": 1.2e-38, "float32": 1.2e-38, "float64": 2.3e-308}
"""Least normal numbers, of float16 the least there is: smaller results of inexact operators may be zero."""
MOST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4028235e38, "float64": float(np.finfo("float64").max)}
"""Largest finite numbers."""


class Undefined:
    """A value of which the standard says nothing: a quotient by the integer zero, an integer of NaN."""


def is_float(dtype: str) -> bool:
    """Return whether a dtype is of numbers that are rounded."""
    return dtype in _EPSILON


def rounded(array: Array, dtype: str) -> Array:
    """Return float64 numbers rounded to a dtype, as float64."""
    if dtype == "float64":
        return array
    if dtype == "bfloat16":
        import ml_dtypes

        return array.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    with np.errstate(all="ignore"):
        return array.astype(dtype).astype(np.float64)


class Noise:
    """Rounding of one sample.

    Parameters
    ----------
    sample : int
        0: results are rounded; 1: nothing is; else with noise.
    seed : int
    """

    def __init__(self, sample: int, seed: int) -> None:
        self.sample, self._random = sample, np.random.default_rng([seed, sample])

    def operand(self, array: Array, dtype: str) -> Array:
        """Return an operand of an operator that combines its operands."""
        return self._flush(self._shaken(array, dtype), dtype) if self.sample > 1 else array

    def dividend(self, array: Array, dtype: str, sign: float) -> Array:
        """Return an operand of a quotient that becomes whole: noise moves dividend (1.0) and divisor (-1.0) apart.

        One sample each rounds towards the next whole quotient and away from it: where the quotient is nearly whole,
        random noise in a few samples may miss one of the two.
        """
        if self.sample not in (2, 3):
            return self.operand(array, dtype)
        return array * (1 + sign * (5 - 2 * self.sample) * ULPS * _EPSILON[dtype])

    def inner(self, array: Array, error: float | Array, dtype: str) -> Array:
        """Return a result in float64 with the error that combining operands makes at most; zeros stay.

        A sum that is not larger than its error is exactly zero in two samples: a quotient by it is infinite then.
        Denormal numbers that a processor may compute as zeros are such zeros before there is an error.
        """
        if self.sample <= 1 or not np.any(error):
            return array
        array = self._flush(array, dtype)
        with np.errstate(all="ignore"):
            is_zero = (array == 0) | ((self.sample <= 3) & (np.abs(array) <= error))
            return np.where(is_zero, 0 * array, array + error * self._random.uniform(-1, 1, array.shape))

    def overflow(self, array: Array, native: Array, *, is_of_squares: bool = False) -> Array:
        """Return a result in which what leaves the dtype's range inside of its operator is NaN or infinite.

        The order of sums decides which, so that one of these samples each has what `native`, PyTorch's or the
        reference's result in the dtype, has, and the two infinities. Where squares overflow that a norm divides by, 0
        is a result, too (a quotient by infinity), and `native` is not the only finite one: whatever it has may be NaN.
        """
        if not 2 <= self.sample <= 4 + is_of_squares or native.shape != array.shape:
            return array
        values = (np.nan if is_of_squares else native, np.inf, -np.inf, 0.0)[self.sample - 2]
        with np.errstate(all="ignore"):
            is_over = ~np.isfinite(native)
            is_over |= is_of_squares & (np.abs(native - array) > 0.01 * np.abs(array))
        return np.where(np.isfinite(array) & is_over, values, array)

    def result(self, array: Array, dtype: str, how: str) -> Array:
        """Return a result in float64 as its operator rounds; of integers as it is."""
        if how == MOVE or not is_float(dtype):
            return array
        if self.sample > 1:
            array = array if how == EXACT else self._shaken(array, dtype)
            # The first two of these samples have one sign each, so that a zero or a NaN may have either.
            alike = {2: 1.0, 3: -1.0}.get(self.sample)
            signs = alike or self._random.integers(0, 2, array.shape) * 2.0 - 1
            array = np.where((array == 0) | np.isnan(array), np.copysign(array, signs), array)
            array = self._flush(array, dtype) if how != EXACT else array
        return array if self.sample == 1 else rounded(array, dtype)

    def _shaken(self, array: Array, dtype: str) -> Array:
        noise = {7: 1.0, 8: -1.0}.get(self.sample) or self._random.uniform(-1, 1, array.shape)
        with np.errstate(all="ignore"):
            return array * (1 + ULPS * _EPSILON[dtype] * noise)

    def _flush(self, array: Array, dtype: str) -> Array:
        """Return, in one sample, zeros for denormal numbers: processors may compute so (VDPBF16PS does)."""
        return np.where(np.abs(array) < _LEAST[dtype], np.copysign(0.0, array), array) if self.sample == 2 else array


def worst_error(computed: Array, wide: Array) -> float:
    """Return how far finite numbers are off at most that were computed in a narrower dtype."""
    if computed is None or computed.dtype.kind not in "fV" or computed.shape != wide.shape:
        return 0.0
    with np.errstate(all="ignore"):
        away = np.abs(computed.astype(np.float64) - wide)
    away = away[np.isfinite(away)]
    return float(away.max()) if away.size else 0.0


def fault(samples: Sequence[Array], got: Array, dtype: str, *, exact: bool, signs: bool = False) -> str:
    """Return what is wrong with a result; "": nothing.

    Parameters
    ----------
    samples : sequence of array
        Of float64 numbers where `dtype` is of floats, else of the dtype.
    got : array
    dtype : str
        What the result has to have.
    exact : bool
        Whether no operator that the result comes from rounds: its samples are all there is.
    signs : bool
        Whether signs of zeros count, too.
    """
    first = samples[0]
    if got.shape != first.shape:
        return f"has shape {got.shape}, expected {first.shape}"
    if got.dtype.name != dtype:
        return f"is {got.dtype.name}, expected {dtype}"
    if dtype == "object":
        return "" if (got == first).all() else "other text"
    if not is_float(dtype):
        stack = np.stack([np.asarray(one).astype(dtype) for one in samples])
        bad = (got < stack.min(0)) | (got > stack.max(0)) if dtype != "bool" else ~(stack == got).any(0)
        return _told(bad, got, stack)
    stack = np.stack([rounded(np.asarray(one, np.float64), dtype) for one in samples])
    wide = got.astype(np.float64)
    with np.errstate(all="ignore"):
        is_nan = np.isnan(stack)
        low, high = np.where(is_nan, np.inf, stack).min(0), np.where(is_nan, -np.inf, stack).max(0)
        # An infinite sample says nothing about how far the finite ones may be off: they alone give the slack.
        is_finite = np.isfinite(stack)
        least, most = np.where(is_finite, stack, np.inf).min(0), np.where(is_finite, stack, -np.inf).max(0)
        size = np.where(least <= most, np.maximum(np.abs(least), np.abs(most)), 0.0)
        width = np.where(least <= most, most - least, 0.0)
        # Where one sample alone is finite its noise has no width.
        units = np.where(is_finite.sum(0) < len(stack), 2 + ULPS, 2.0) * _EPSILON[dtype]
        slack = np.zeros_like(width) if exact else WIDER * width + units * size + _LEAST[dtype]
        slack = np.where(np.isfinite(slack), slack, 0.0)
        inside = (wide >= low - slack) & (wide <= high + slack)
        inside |= np.isposinf(wide) & (high + slack >= MOST[dtype]) & ~np.isneginf(high)
        inside |= np.isneginf(wide) & (low - slack <= -MOST[dtype]) & ~np.isposinf(low)
        bad = np.where(np.isnan(wide), ~is_nan.any(0), ~inside)
        if dtype in ("float16", "bfloat16"):  # what is infinite in 16 bits may be any number where it is not rounded
            bad &= is_finite.all(0) | ~is_finite.any(0)
    if signs:
        bad |= (wide == 0) & (stack == 0).all(0) & (np.signbit(stack) != np.signbit(wide)).all(0)
    return _told(bad, wide, stack, 17 if dtype == "float64" else 9)


def _told(bad: Array, got: Array, stack: Array, digits: int = 9) -> str:
    """Return where elements are wrong, and the first of them beside its samples."""
    count = int(np.count_nonzero(bad))
    if not count:
        return ""
    place = tuple(int(one[0]) for one in np.nonzero(bad)) if bad.ndim else ()
    low, high = stack[(slice(None), *place)].min(), stack[(slice(None), *place)].max()
    expected = f"{_text(low, digits)}" if low == high else f"{_text(low, digits)} to {_text(high, digits)}"
    return f"{count} of {bad.size} elements wrong, {list(place)} is {_text(got[place], digits)}, expected {expected}"


def _text(number: Any, digits: int) -> str:
    return f"{float(number):.{digits}g}" if np.asarray(number).dtype.kind == "f" else str(number)
