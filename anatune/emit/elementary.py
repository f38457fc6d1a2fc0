"""Elementary functions of float32 vectors as LLVM IR without branches: exp, log, erf, tanh, and activations.

Errors against float64, over all float32 numbers (`tests/unit/codegen/cpu/test_rows.py`): at most 4 ulp, denormal
results included; exp, expm1, log, log1p, erf and tanh at most 2. Processors that do not fuse multiplications and
additions lose some digits of gelu_tanh below -5. NaN stays NaN, infinities have their limits; ``-inf`` gives NaN where
PyTorch's formula does (``-inf * 0``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from anatune.emit.llvm import LlvmCode

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts; products of the first with whole numbers below 2**15 are exact. Source: Cephes, expf.c."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""(exp(r) - 1 - r) / r**2 for \\|r\\| <= ln(2) / 2, highest power first. Source: Cephes, expf.c."""
_EXP_LOWEST, _EXP_HIGHEST = -104.0, 89.0
"""Bounds of x beyond which exp(x) is 0 or infinite."""
_POWER_LOWEST = -87.33654
"""Lower bound of x for which exp(x) is a normal number: ``-126 ln 2``."""
_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
"""(log(1 + r) - r + r**2 / 2) / r**3 for 1 + r between the roots of 1/2 and 2. Source: Cephes, logf.c."""
_ROOT_HALF_BITS = 0x3F3504F3
_TINY = 2.0**-126
"""The smallest normal number."""
_ONE_BITS = 0x3F800000
_WHOLE = 1.5 * 2.0**23
"""A number whose sum with a float32 below 2**22 holds the nearest integer in its lowest bits."""
_WHOLE_BITS = 0x4B400000
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
"""(tanh(x) - x) / x**3 in x**2 for \\|x\\| < 0.625. Source: Cephes, tanhf.c."""
_TANH_SMALL = 0.625
_TANH_FAR = 10.0
"""Bound from which on tanh(x) is 1 in float32."""
_ERF_SMALL = 0.927734375
_ERF = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
"""(erf(x) - x) / x in x**2 below `_ERF_SMALL`. Source: N. Juffa, answer 35148199 on stackoverflow.com."""
_ERF_TAIL = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1,
             -1.28717512e-1)  # fmt: skip
"""(log(1 - erf(x)) + x) / x above `_ERF_SMALL`. Source: the same."""
MIDDLE = 2.25
NORMAL_TAIL = (-0.04133846515, 0.1582670013, -0.2216490501, 0.1599598803,
                -0.103758318, 0.02202423145, 0.04124738273, 0.08981943191,
                -0.02964574585, -0.3976194544, 0.4999999975)  # fmt: skip
"""(1 + x / m) exp(x**2 / 2) times the normal distribution of -x, in x / (x + m) with m = `MIDDLE`, for x up to 14.6.
A minimax fit of SciPy's `erfcx`: relative error 5e-9."""
_GELU_FAR = 10.0
"""Bound above which gelu(x) is x."""
_PRODUCT_LOWEST = -109.0
"""Bound of x below which x * exp(x) is 0."""
_GELU_TANH = tuple(2.0 * math.sqrt(2.0 / math.pi) * factor for factor in (1.0, 0.044715))
_GELU_TANH_FAR = 12.0
"""Bound: below -12 gelu_tanh(x) is 0."""
_EXPM1_LOWEST = -30.0
"""Bound below which expm1(x) is -1."""
_SMALL = 2.0**-24
"""Bound of \\|x\\| below which expm1(x) and log1p(x) are x."""
_LOG1P_LARGE = 2.0**24
"""Bound from which on log1p(x) is log(x)."""


class _VectorOperations:
    """Operations on vectors in LLVM IR."""

    def __init__(self, code: LlvmCode) -> None:
        self.code, self.integers = code, code.of("int32")
        self.constant, self.binary, self.multiply_add = code.constant, code.binary, code.multiply_add

    def absolute(self, x: str) -> str:
        return self.code.call(self.code.vector, f"llvm.fabs.v{self.code.lanes}f32", [(self.code.vector, x)])

    def copy_sign(self, size: str, sign: str) -> str:
        kind = self.code.vector
        return self.code.call(kind, f"llvm.copysign.v{self.code.lanes}f32", [(kind, size), (kind, sign)])

    def less(self, left: str, right: str) -> str:
        return self.code.emit(f"fcmp olt {self.code.vector} {left}, {right}")

    def where(self, holds: str, yes: str, no: str) -> str:
        return self.code.emit(
            f"select <{self.code.lanes} x i1> {holds}, {self.code.vector} {yes}, {self.code.vector} {no}"
        )

    def bits(self, x: str) -> str:
        return self.code.emit(f"bitcast {self.code.vector} {x} to {self.integers.vector}")

    def value(self, bits: str) -> str:
        return self.code.emit(f"bitcast {self.integers.vector} {bits} to {self.code.vector}")

    def to_float(self, whole: str) -> str:
        return self.code.emit(f"sitofp {self.integers.vector} {whole} to {self.code.vector}")

    def whole(self, operation: str, left: str, right: int | str) -> str:
        other = self.integers.constant(right) if isinstance(right, int) else right
        return self.code.emit(f"{operation} {self.integers.vector} {left}, {other}")


def exp(ops: _VectorOperations, x: str) -> str:
    """Return exp of a vector.

    Elements below `_EXP_LOWEST` are not computed: a product that underflows costs x86 processors 150 to 200 cycles, and
    half of the elements under a causal mask would underflow.
    """
    parts = _power_parts(ops, x)
    return ops.where(parts.is_zero, ops.constant(0.0), parts.times(ops))


class _Power(NamedTuple):
    """A power of e: a number about 1 and two factors, because one would leave the range; or zero."""

    is_zero: str
    factors: tuple[str, str, str]

    def times(self, ops: _VectorOperations, number: str = "") -> str:
        """Return the product with a number, which is rounded to a denormal only once."""
        value, *more = (number, *self.factors) if number else self.factors
        for factor in more:
            value = ops.binary("mul", value, factor)
        return value


def _power_parts(ops: _VectorOperations, x: str, low: str = "", lowest: float = _EXP_LOWEST) -> _Power:
    """Return exp of ``x + low`` with a small `low`; it is zero below `lowest`."""
    is_zero = ops.less(x, ops.constant(lowest))
    x = ops.where(is_zero, ops.constant(0.0), x)
    x = ops.where(ops.less(ops.constant(_EXP_HIGHEST), x), ops.constant(_EXP_HIGHEST), x)
    moved, value = _reduce_range(ops, x, low)
    value = ops.binary("add", value, ops.constant(1.0))
    power = ops.whole("sub", ops.bits(moved), _WHOLE_BITS)
    half = ops.whole("ashr", power, 1)
    first, second = (
        ops.value(ops.whole("shl", ops.whole("add", part, 127), 23)) for part in (half, ops.whole("sub", power, half))
    )
    return _Power(is_zero, (value, first, second))


def power(code: LlvmCode, x: str) -> str:
    """Return exp of a vector of numbers below 88; results that are no normal numbers become zero.

    It needs two thirds of the instructions of `exp`.
    """
    ops = _VectorOperations(code)
    is_zero = ops.less(x, ops.constant(_POWER_LOWEST))
    moved, value = _reduce_range(ops, x)
    shifted = ops.whole("shl", ops.bits(moved), 23)  # only n remains: higher bits are shifted out
    factor = ops.value(ops.whole("add", shifted, _ONE_BITS))
    return ops.where(is_zero, ops.constant(0.0), ops.multiply_add(value, factor, factor))


def _reduce_range(ops: _VectorOperations, x: str, low: str = "") -> tuple[str, str]:
    """Return n with `_WHOLE` added and ``exp(r) - 1`` for ``x + low = n ln 2 + r``."""
    moved = ops.multiply_add(x, ops.constant(_LOG2_E), ops.constant(_WHOLE))
    whole = ops.binary("sub", moved, ops.constant(_WHOLE))
    rest = ops.multiply_add(whole, ops.constant(-_LN2_HIGH), x)
    if low:  # the sum is rounded once
        rest = ops.binary("add", rest, ops.multiply_add(whole, ops.constant(-_LN2_LOW), low))
    else:
        rest = ops.multiply_add(whole, ops.constant(-_LN2_LOW), rest)
    return moved, ops.multiply_add(_polynomial(ops, _EXP, rest), ops.binary("mul", rest, rest), rest)


def _log(ops: _VectorOperations, x: str) -> str:
    zero, limit = ops.constant(0.0), ops.constant(math.inf)
    is_tiny = ops.less(x, ops.constant(_TINY))
    scaled = ops.where(is_tiny, ops.binary("mul", x, ops.constant(2.0**23)), x)
    n, rest = _scale_near_one(ops, scaled)
    exponent = ops.binary("sub", ops.to_float(n), ops.where(is_tiny, ops.constant(23.0), zero))
    value = ops.where(ops.less(x, limit), _log_near_one(ops, rest, exponent), x)
    below = ops.where(ops.less(x, zero), ops.constant(math.nan), ops.binary("sub", x, limit))
    return ops.where(ops.less(zero, x), value, below)


def _scale_near_one(ops: _VectorOperations, x: str) -> tuple[str, str]:
    """Return n and ``r`` for ``x = 2**n (1 + r)`` with 1 + r between the roots of 1/2 and 2."""
    bits = ops.bits(x)
    n = ops.whole("ashr", ops.whole("sub", bits, _ROOT_HALF_BITS), 23)
    return n, ops.binary("sub", ops.value(ops.whole("sub", bits, ops.whole("shl", n, 23))), ops.constant(1.0))


def _log_near_one(ops: _VectorOperations, rest: str, times: str) -> str:
    """Return ``log(1 + rest) + times * ln 2``."""
    square = ops.binary("mul", rest, rest)
    value = ops.binary("mul", ops.binary("mul", _polynomial(ops, _LOG, rest), rest), square)
    value = ops.multiply_add(times, ops.constant(_LN2_LOW), value)
    value = ops.multiply_add(square, ops.constant(-0.5), value)
    return ops.multiply_add(times, ops.constant(_LN2_HIGH), ops.binary("add", rest, value))


def _log1p(ops: _VectorOperations, x: str) -> str:
    """Return ``log(1 + x)``; the rounding error of the sum is added to the part near 1.

    Source: fdlibm, s_log1p.c.
    """
    unit, zero, limit = ops.constant(1.0), ops.constant(0.0), ops.constant(math.inf)
    is_large = ops.less(ops.constant(_LOG1P_LARGE), x)
    total = ops.where(is_large, x, ops.binary("add", x, unit))
    is_above = ops.less(unit, x)
    more, less = ops.where(is_above, x, unit), ops.where(is_above, unit, x)
    lost = ops.where(is_large, zero, ops.binary("sub", less, ops.binary("sub", total, more)))
    n, rest = _scale_near_one(ops, total)
    scale = ops.value(ops.whole("sub", ops.integers.constant(128 << 23), ops.whole("shl", n, 23)))  # 2**(1 - n)
    rest = ops.multiply_add(ops.binary("mul", lost, ops.constant(0.5)), scale, rest)
    value = ops.where(ops.less(x, limit), _log_near_one(ops, rest, ops.to_float(n)), x)
    value = ops.where(ops.less(ops.absolute(x), ops.constant(_SMALL)), x, value)
    below = ops.where(ops.less(total, zero), ops.constant(math.nan), ops.binary("sub", total, limit))
    return ops.where(ops.less(zero, total), value, below)


def _expm1(ops: _VectorOperations, x: str) -> str:
    """Return ``exp(x) - 1 = 2**n (exp(r) - 1) + (2**n - 1)``, with half of ``2**n``, which stays in the range."""
    lowest, highest = ops.constant(_EXPM1_LOWEST), ops.constant(_EXP_HIGHEST)
    bounded = ops.where(ops.less(x, lowest), lowest, x)
    moved, value = _reduce_range(ops, ops.where(ops.less(highest, bounded), highest, bounded))
    factor = ops.value(ops.whole("add", ops.whole("shl", ops.bits(moved), 23), 126 << 23))
    value = ops.multiply_add(value, factor, ops.binary("add", factor, ops.constant(-0.5)))
    is_small = ops.less(ops.absolute(x), ops.constant(_SMALL))
    return ops.where(is_small, x, ops.binary("add", value, value))


def _erf(ops: _VectorOperations, x: str) -> str:
    size = ops.absolute(x)
    square = ops.binary("mul", x, x)
    small = ops.multiply_add(_polynomial(ops, _ERF, square), x, x)
    high, low = (ops.multiply_add(ops.constant(_ERF_TAIL[at]), size, ops.constant(_ERF_TAIL[at + 1])) for at in (0, 2))
    tail = ops.multiply_add(high, square, low)
    for factor in _ERF_TAIL[4:]:
        tail = ops.multiply_add(tail, size, ops.constant(factor))
    tail = ops.multiply_add(tail, size, _negate(ops, size))
    large = ops.copy_sign(ops.binary("sub", ops.constant(1.0), exp(ops, tail)), x)
    return ops.where(ops.less(ops.constant(_ERF_SMALL), size), large, small)


def _tanh(ops: _VectorOperations, x: str) -> str:
    size = ops.absolute(x)
    square = ops.binary("mul", x, x)
    small = ops.multiply_add(ops.binary("mul", _polynomial(ops, _TANH, square), square), x, x)
    power = exp(ops, ops.binary("add", size, size))
    share = ops.binary("div", ops.constant(2.0), ops.binary("add", power, ops.constant(1.0)))
    large = ops.binary("sub", ops.constant(1.0), share)
    return ops.copy_sign(ops.where(ops.less(size, ops.constant(_TANH_SMALL)), small, large), x)


def _sigmoid(ops: _VectorOperations, x: str) -> str:
    """Return ``1 / (1 + exp(-x))``, for negative numbers as ``exp(x) / (1 + exp(x))``."""
    unit = ops.constant(1.0)
    power = exp(ops, _negate(ops, ops.absolute(x)))
    return ops.binary("div", ops.where(ops.less(x, ops.constant(0.0)), power, unit), ops.binary("add", power, unit))


def _divide_sigmoid(code: LlvmCode, x: str) -> tuple[str, str]:
    """Return `_sigmoid` as a dividend and a divisor; it is zero where it is no normal number."""
    ops, unit = _VectorOperations(code), code.constant(1.0)
    share = power(code, _negate(ops, ops.absolute(x)))
    return ops.where(ops.less(x, ops.constant(0.0)), share, unit), ops.binary("add", share, unit)


def _divide_tanh(code: LlvmCode, x: str) -> tuple[str, str]:
    """Return ``tanh(x) = (1 - exp(-2 x)) / (1 + exp(-2 x))``, x >= 0, as a dividend and a divisor, exact to 3 ulp.

    Both are at most 2, so that products with other dividends do not overflow.
    """
    ops, far = _VectorOperations(code), code.constant(_TANH_FAR)
    size = ops.absolute(x)
    size = ops.where(ops.less(far, size), far, size)
    moved, value = _reduce_range(ops, _negate(ops, ops.binary("add", size, size)))
    factor = ops.value(ops.whole("add", ops.whole("shl", ops.bits(moved), 23), _ONE_BITS))
    less = ops.multiply_add(value, factor, ops.binary("sub", factor, ops.constant(1.0)))
    return ops.copy_sign(less, x), ops.binary("add", less, ops.constant(2.0))


def _multiply_by_sigmoid(ops: _VectorOperations, x: str, exponent: str, low: str = "") -> str:
    """Return x times the sigmoid of a number with the sign of x and the magnitude ``-(exponent + low)``."""
    parts = _power_parts(ops, exponent, low, _PRODUCT_LOWEST)
    power = ops.where(parts.is_zero, ops.constant(0.0), parts.times(ops))
    share = ops.binary("div", x, ops.binary("add", power, ops.constant(1.0)))
    below = ops.where(parts.is_zero, ops.binary("mul", share, ops.constant(0.0)), parts.times(ops, share))
    return ops.where(ops.less(x, ops.constant(0.0)), below, share)


def _silu(ops: _VectorOperations, x: str) -> str:
    return _multiply_by_sigmoid(ops, x, _negate(ops, ops.absolute(x)))


def _mish(ops: _VectorOperations, x: str) -> str:
    """Return ``x tanh(log(1 + e^x))``; with ``q = e^-|x|`` it is ``x (1 + 2 q) / (1 + 2 q + 2 q**2)`` for positive x.

    For negative x it is ``x q (2 + q) / (2 + 2 q + q**2)``.
    """
    unit, two = ops.constant(1.0), ops.constant(2.0)
    parts = _power_parts(ops, _negate(ops, ops.absolute(x)), lowest=_PRODUCT_LOWEST)
    power = ops.where(parts.is_zero, ops.constant(0.0), parts.times(ops))
    is_below = ops.less(x, ops.constant(0.0))
    first, second = ops.where(is_below, two, unit), ops.where(is_below, unit, two)
    upper = ops.multiply_add(power, second, first)
    lower = ops.multiply_add(power, ops.multiply_add(power, second, two), first)
    share = ops.binary("mul", x, ops.binary("div", upper, lower))
    below = ops.where(parts.is_zero, ops.binary("mul", share, ops.constant(0.0)), parts.times(ops, share))
    return ops.where(is_below, below, share)


def _gelu(ops: _VectorOperations, x: str) -> str:
    """Return x times the normal distribution N: ``x N(-|x|)`` below 0, ``x - x N(-|x|)`` above; N is `NORMAL_TAIL`.

    The square in the exponent has two parts: the square of a number of 12 bits, which is exact, and the difference.
    """
    size = ops.absolute(x)
    divisor = ops.binary("add", size, ops.constant(MIDDLE))
    tail = _polynomial(ops, [MIDDLE * factor for factor in NORMAL_TAIL], ops.binary("div", size, divisor))
    high = ops.value(ops.whole("and", ops.bits(size), -4096))
    low = ops.binary("mul", ops.binary("sub", size, high), ops.binary("add", size, high))
    half = ops.constant(-0.5)
    parts = _power_parts(ops, ops.binary("mul", ops.binary("mul", high, high), half), ops.binary("mul", low, half))
    factor = ops.binary("div", ops.binary("mul", x, tail), divisor)
    below = ops.where(parts.is_zero, ops.binary("mul", factor, ops.constant(0.0)), parts.times(ops, factor))
    value = ops.where(ops.less(ops.constant(0.0), x), ops.binary("sub", x, below), below)
    return ops.where(ops.less(ops.constant(_GELU_FAR), x), x, value)


def _gelu_tanh(ops: _VectorOperations, x: str) -> str:
    """Return ``x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u))`` with ``u = sqrt(2 / pi) (x + 0.044715 x**3)``.

    2 u is a sum of two numbers, because an error in its last place would become a hundred in that of its power.
    """
    size, far = ops.absolute(x), ops.constant(_GELU_TANH_FAR)
    size = ops.where(ops.less(far, size), far, size)
    (linear, linear_low), (cubic, cubic_low) = (map(ops.constant, _split_float(factor)) for factor in _GELU_TANH)
    square, square_low = _exact_product(ops, size, size)
    scaled, lost = _exact_product(ops, square, cubic)
    factor = ops.binary("add", scaled, linear)
    part = ops.binary("sub", factor, scaled)
    lost = ops.binary("add", lost, ops.binary("sub", scaled, ops.binary("sub", factor, part)))
    lost = ops.binary("add", lost, ops.binary("sub", linear, part))
    lost = ops.multiply_add(square_low, cubic, ops.multiply_add(square, cubic_low, ops.binary("add", lost, linear_low)))
    exponent, low = _exact_product(ops, size, factor)
    low = ops.multiply_add(size, lost, low)
    return _multiply_by_sigmoid(ops, x, _negate(ops, exponent), _negate(ops, low))


def _exact_product(ops: _VectorOperations, first: str, second: str) -> tuple[str, str]:
    """Return a product and its rounding error."""
    value = ops.binary("mul", first, second)
    return value, ops.multiply_add(first, second, _negate(ops, value))


def _split_float(number: float) -> tuple[float, float]:
    """Return a number as the sum of two float32 numbers."""
    high = float(np.float32(number))
    return high, number - high


def _relu(code: LlvmCode, x: str) -> str:
    return code.maximum(x, code.constant(0.0))


def _relu6(code: LlvmCode, x: str) -> str:
    ops = _VectorOperations(code)
    zero, six = ops.constant(0.0), ops.constant(6.0)
    x = ops.where(ops.less(x, zero), zero, x)
    return ops.where(ops.less(six, x), six, x)


FORMULAS: dict[str, Callable[[_VectorOperations, str], str]] = {
    "exp": exp,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "mish": _mish,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
"""Name -> function of a `_VectorOperations` and a vector."""


def _on_vectors(formula: Callable[[_VectorOperations, str], str]) -> Callable[[LlvmCode, str], str]:
    return lambda code, x: formula(_VectorOperations(code), x)


FUNCTIONS: dict[str, Callable[[LlvmCode, str], str]] = {
    **{name: _on_vectors(formula) for name, formula in FORMULAS.items()},
    "relu": _relu,
    "relu6": _relu6,
}
"""Name -> function of an `LlvmCode` and a vector of type `LlvmCode.vector`."""

QUOTIENTS: dict[str, Callable[[LlvmCode, str], tuple[str, str]]] = {
    "tanh": _divide_tanh,
    "sigmoid": _divide_sigmoid,
    "relu": lambda code, x: (_relu(code, x), code.constant(1.0)),
}
"""Name -> function that returns a dividend and a divisor: a product of two functions then takes one division.

They have less than half of the instructions of `FUNCTIONS`.
"""


def _polynomial(ops: _VectorOperations, factors: Sequence[float], x: str) -> str:
    value = ops.constant(factors[0])
    for factor in factors[1:]:
        value = ops.multiply_add(value, x, ops.constant(factor))
    return value


def _negate(ops: _VectorOperations, x: str) -> str:
    return ops.binary("mul", x, ops.constant(-1.0))
