"""Elementary functions of float32 vectors as LLVM IR without branches: exp, log, erf, tanh, and activations of them.

Errors beside float64, over all float32 numbers (`tests/unit/codegen/cpu/test_rows.py`): exp, log, erf, tanh at most
2 ulp, denormal results included; sigmoid 3 ulp where it is no denormal; silu and both forms of gelu ``2**-22 |x|``. NaN
stays NaN, infinities have their limits; ``-inf`` gives NaN where PyTorch's formula does (``-inf * 0``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anatune.emit.llvm import LlvmCode

__all__ = ["FORMULAS", "FUNCTIONS", "power"]

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts; products of the first with whole numbers below 2**15 are exact. Source: Cephes, expf.c."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""(exp(r) - 1 - r) / r**2 for \\|r\\| <= ln(2) / 2, highest power first. Source: Cephes, expf.c."""
_EXP_LOWEST, _EXP_HIGHEST = -104.0, 89.0
"""Beyond them results are 0 and infinite."""
_POWER_LOWEST = -87.33654
"""Below it e to the power of x is no normal number: ``-126 ln 2``."""
_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
"""(log(1 + r) - r + r**2 / 2) / r**3 for 1 + r between the roots of 1/2 and 2. Source: Cephes, logf.c."""
_ROOT_HALF_BITS = 0x3F3504F3
_TINY = 2.0**-126
"""The smallest normal number."""
_ONE_BITS = 0x3F800000
_WHOLE = 1.5 * 2.0**23
"""Added to a float32 below 2**22 it leaves the nearest whole number in the lowest bits."""
_WHOLE_BITS = 0x4B400000
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
"""(tanh(x) - x) / x**3 in x**2 for \\|x\\| < 0.625. Source: Cephes, tanhf.c."""
_TANH_SMALL = 0.625
_ERF_SMALL = 0.927734375
_ERF = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
"""(erf(x) - x) / x in x**2 below `_ERF_SMALL`. Source: N. Juffa, answer 35148199 on stackoverflow.com."""
_ERF_TAIL = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1,
             -1.28717512e-1)  # fmt: skip
"""(log(1 - erf(x)) + x) / x above it. Source: the same."""


class _Vectors:
    """Vectors in LLVM IR."""

    def __init__(self, code: LlvmCode) -> None:
        self.code, self.integers = code, code.of("int32")
        self.constant, self.binary, self.multiply_add = code.constant, code.binary, code.multiply_add

    def absolute(self, x: str) -> str:
        return self.code.call(self.code.vector, f"llvm.fabs.v{self.code.lanes}f32", [(self.code.vector, x)])

    def signed(self, size: str, sign: str) -> str:
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

    def converted(self, whole: str) -> str:
        return self.code.emit(f"sitofp {self.integers.vector} {whole} to {self.code.vector}")

    def whole(self, operation: str, left: str, right: int | str) -> str:
        other = self.integers.constant(right) if isinstance(right, int) else right
        return self.code.emit(f"{operation} {self.integers.vector} {left}, {other}")


def exp(ops: _Vectors, x: str) -> str:
    """Return e to the power of a vector.

    What is below `_EXP_LOWEST` takes no part: a product that underflows costs x86 processors 150 to 200 cycles, and of
    a causal mask's elements half do.
    """
    zero, highest = ops.constant(0.0), ops.constant(_EXP_HIGHEST)
    is_zero = ops.less(x, ops.constant(_EXP_LOWEST))
    x = ops.where(is_zero, zero, x)
    x = ops.where(ops.less(highest, x), highest, x)
    moved, value = _reduced(ops, x)
    value = ops.binary("add", value, ops.constant(1.0))
    # 2**n in two factors: n is -150 to 128, one would leave the range
    power = ops.whole("sub", ops.bits(moved), _WHOLE_BITS)
    half = ops.whole("ashr", power, 1)
    for part in (half, ops.whole("sub", power, half)):
        value = ops.binary("mul", value, ops.value(ops.whole("shl", ops.whole("add", part, 127), 23)))
    return ops.where(is_zero, zero, value)


def power(code: LlvmCode, x: str) -> str:
    """Return e to the power of a vector of numbers below 88, zeros for results that are no normal numbers.

    Two thirds of the instructions of `exp`.
    """
    ops = _Vectors(code)
    is_zero = ops.less(x, ops.constant(_POWER_LOWEST))
    moved, value = _reduced(ops, x)
    shifted = ops.whole("shl", ops.bits(moved), 23)  # n alone: what is above it is lost
    factor = ops.value(ops.whole("add", shifted, _ONE_BITS))
    return ops.where(is_zero, ops.constant(0.0), ops.multiply_add(value, factor, factor))


def _reduced(ops: _Vectors, x: str) -> tuple[str, str]:
    """Return n with `_WHOLE` added and ``exp(r) - 1`` for ``x = n ln 2 + r``."""
    moved = ops.multiply_add(x, ops.constant(_LOG2_E), ops.constant(_WHOLE))
    whole = ops.binary("sub", moved, ops.constant(_WHOLE))
    rest = ops.multiply_add(whole, ops.constant(-_LN2_HIGH), x)
    rest = ops.multiply_add(whole, ops.constant(-_LN2_LOW), rest)
    return moved, ops.multiply_add(_polynomial(ops, _EXP, rest), ops.binary("mul", rest, rest), rest)


def _log(ops: _Vectors, x: str) -> str:
    zero, limit = ops.constant(0.0), ops.constant(math.inf)
    is_tiny = ops.less(x, ops.constant(_TINY))
    own = ops.where(is_tiny, ops.binary("mul", x, ops.constant(2.0**23)), x)
    bits = ops.bits(own)
    n = ops.whole("ashr", ops.whole("sub", bits, _ROOT_HALF_BITS), 23)
    rest = ops.binary("sub", ops.value(ops.whole("sub", bits, ops.whole("shl", n, 23))), ops.constant(1.0))
    times = ops.binary("sub", ops.converted(n), ops.where(is_tiny, ops.constant(23.0), zero))
    square = ops.binary("mul", rest, rest)
    value = ops.binary("mul", ops.binary("mul", _polynomial(ops, _LOG, rest), rest), square)
    value = ops.multiply_add(times, ops.constant(_LN2_LOW), value)
    value = ops.multiply_add(square, ops.constant(-0.5), value)
    value = ops.multiply_add(times, ops.constant(_LN2_HIGH), ops.binary("add", rest, value))
    value = ops.where(ops.less(x, limit), value, x)
    below = ops.where(ops.less(x, zero), ops.constant(math.nan), ops.binary("sub", x, limit))
    return ops.where(ops.less(zero, x), value, below)


def _erf(ops: _Vectors, x: str) -> str:
    size = ops.absolute(x)
    square = ops.binary("mul", x, x)
    small = ops.multiply_add(_polynomial(ops, _ERF, square), x, x)
    high, low = (ops.multiply_add(ops.constant(_ERF_TAIL[at]), size, ops.constant(_ERF_TAIL[at + 1])) for at in (0, 2))
    tail = ops.multiply_add(high, square, low)
    for factor in _ERF_TAIL[4:]:
        tail = ops.multiply_add(tail, size, ops.constant(factor))
    tail = ops.multiply_add(tail, size, _negated(ops, size))
    large = ops.signed(ops.binary("sub", ops.constant(1.0), exp(ops, tail)), x)
    return ops.where(ops.less(ops.constant(_ERF_SMALL), size), large, small)


def _tanh(ops: _Vectors, x: str) -> str:
    size = ops.absolute(x)
    square = ops.binary("mul", x, x)
    small = ops.multiply_add(ops.binary("mul", _polynomial(ops, _TANH, square), square), x, x)
    power = exp(ops, ops.binary("add", size, size))
    share = ops.binary("div", ops.constant(2.0), ops.binary("add", power, ops.constant(1.0)))
    large = ops.signed(ops.binary("sub", ops.constant(1.0), share), x)
    return ops.where(ops.less(size, ops.constant(_TANH_SMALL)), small, large)


def _sigmoid(ops: _Vectors, x: str) -> str:
    return ops.binary("div", ops.constant(1.0), _one_and_power(ops, x))


def _silu(ops: _Vectors, x: str) -> str:
    return ops.binary("div", x, _one_and_power(ops, x))


def _gelu(ops: _Vectors, x: str) -> str:
    """Return ``x (1 + erf(x / sqrt(2))) / 2``."""
    half = ops.binary("mul", x, ops.constant(0.5))
    return ops.multiply_add(half, _erf(ops, ops.binary("mul", x, ops.constant(math.sqrt(0.5)))), half)


def _gelu_tanh(ops: _Vectors, x: str) -> str:
    """Return ``x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u))`` with ``u = sqrt(2 / pi) (x + 0.044715 x**3)``."""
    scale = 2.0 * math.sqrt(2.0 / math.pi)
    square = ops.binary("mul", x, x)
    factor = ops.multiply_add(square, ops.constant(0.044715 * scale), ops.constant(scale))
    return ops.binary("div", x, _one_and_power(ops, ops.binary("mul", factor, x)))


def _relu(code: LlvmCode, x: str) -> str:
    return code.maximum(x, code.constant(0.0))


def _relu6(code: LlvmCode, x: str) -> str:
    ops = _Vectors(code)
    zero, six = ops.constant(0.0), ops.constant(6.0)
    x = ops.where(ops.less(x, zero), zero, x)
    return ops.where(ops.less(six, x), six, x)


FORMULAS: dict[str, Callable[[_Vectors, str], str]] = {
    "exp": exp,
    "log": _log,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
"""Name -> the function of what `_Vectors` writes."""


def _on_vectors(formula: Callable[[_Vectors, str], str]) -> Callable[[LlvmCode, str], str]:
    return lambda code, x: formula(_Vectors(code), x)


FUNCTIONS: dict[str, Callable[[LlvmCode, str], str]] = {
    **{name: _on_vectors(formula) for name, formula in FORMULAS.items()},
    "relu": _relu,
    "relu6": _relu6,
}
"""Name -> the function of a vector of `LlvmCode.vector`."""


def _one_and_power(ops: _Vectors, x: str) -> str:
    return ops.binary("add", exp(ops, _negated(ops, x)), ops.constant(1.0))


def _polynomial(ops: _Vectors, factors: Sequence[float], x: str) -> str:
    value = ops.constant(factors[0])
    for factor in factors[1:]:
        value = ops.multiply_add(value, x, ops.constant(factor))
    return value


def _negated(ops: _Vectors, x: str) -> str:
    return ops.binary("mul", x, ops.constant(-1.0))
