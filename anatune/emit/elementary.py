"""Elementary functions of float32 vectors as LLVM IR without branches: exp, erf, tanh, and the activations of them.

Errors beside float64, over all float32 numbers (`tests/unit/codegen/cpu/test_rows.py`): exp, erf, tanh at most
2 ulp, denormal results included; sigmoid 3 ulp where it is no denormal; silu and both forms of gelu ``2**-22 |x|``. NaN
stays NaN, infinities have their limits; ``-inf`` gives NaN where PyTorch's formula does (``-inf * 0``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anatune.emit.llvm import LlvmCode

__all__ = ["FUNCTIONS", "exp", "power"]

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts; products of the first with whole numbers below 2**15 are exact. Source: Cephes, expf.c."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""(exp(r) - 1 - r) / r**2 for \\|r\\| <= ln(2) / 2, highest power first. Source: Cephes, expf.c."""
_EXP_LOWEST, _EXP_HIGHEST = -104.0, 89.0
"""Beyond them results are 0 and infinite."""
_POWER_LOWEST = -87.33654
"""Below it e to the power of x is no normal number: ``-126 ln 2``."""
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


def exp(code: LlvmCode, x: str) -> str:
    """Return e to the power of a vector.

    What is below `_EXP_LOWEST` takes no part: a product that underflows costs x86 processors 150 to 200 cycles, and of
    a causal mask's elements half do.
    """
    lowest, zero = code.constant(_EXP_LOWEST), code.constant(0.0)
    is_zero = code.emit(f"fcmp olt {code.vector} {x}, {lowest}")
    x = _where(code, is_zero, zero, x)
    x = _select(code, "ogt", x, code.constant(_EXP_HIGHEST), code.constant(_EXP_HIGHEST), x)
    moved, value = _reduced(code, x)
    value = code.binary("add", value, code.constant(1.0))
    # 2**n in two factors: n is -150 to 128, one would leave the range
    integers = code.of("int32")
    bits = code.emit(f"bitcast {code.vector} {moved} to {integers.vector}")
    power = integers.binary("sub", bits, integers.constant(_WHOLE_BITS))
    half = code.emit(f"ashr {integers.vector} {power}, {integers.constant(1)}")
    for part in (half, integers.binary("sub", power, half)):
        raised = integers.binary("add", part, integers.constant(127))
        shifted = code.emit(f"shl {integers.vector} {raised}, {integers.constant(23)}")
        value = code.binary("mul", value, code.emit(f"bitcast {integers.vector} {shifted} to {code.vector}"))
    return _where(code, is_zero, zero, value)


def power(code: LlvmCode, x: str) -> str:
    """Return e to the power of a vector of numbers below 88, zeros for results that are no normal numbers.

    Two thirds of the instructions of `exp`.
    """
    is_zero = code.emit(f"fcmp olt {code.vector} {x}, {code.constant(_POWER_LOWEST)}")
    moved, value = _reduced(code, x)
    integers = code.of("int32")
    bits = code.emit(f"bitcast {code.vector} {moved} to {integers.vector}")
    shifted = code.emit(f"shl {integers.vector} {bits}, {integers.constant(23)}")  # n alone: what is above it is lost
    raised = integers.binary("add", shifted, integers.constant(_ONE_BITS))
    factor = code.emit(f"bitcast {integers.vector} {raised} to {code.vector}")
    return _where(code, is_zero, code.constant(0.0), code.multiply_add(value, factor, factor))


def _reduced(code: LlvmCode, x: str) -> tuple[str, str]:
    """Return n with `_WHOLE` added and ``exp(r) - 1`` for ``x = n ln 2 + r``."""
    moved = code.multiply_add(x, code.constant(_LOG2_E), code.constant(_WHOLE))
    whole = code.binary("sub", moved, code.constant(_WHOLE))
    rest = code.multiply_add(whole, code.constant(-_LN2_HIGH), x)
    rest = code.multiply_add(whole, code.constant(-_LN2_LOW), rest)
    return moved, code.multiply_add(_polynomial(code, _EXP, rest), code.binary("mul", rest, rest), rest)


def _erf(code: LlvmCode, x: str) -> str:
    size = _absolute(code, x)
    square = code.binary("mul", x, x)
    small = code.multiply_add(_polynomial(code, _ERF, square), x, x)
    high, low = (
        code.multiply_add(code.constant(_ERF_TAIL[at]), size, code.constant(_ERF_TAIL[at + 1])) for at in (0, 2)
    )
    tail = code.multiply_add(high, square, low)
    for factor in _ERF_TAIL[4:]:
        tail = code.multiply_add(tail, size, code.constant(factor))
    tail = code.multiply_add(tail, size, _negated(code, size))
    large = _signed(code, code.binary("sub", code.constant(1.0), exp(code, tail)), x)
    return _select(code, "ogt", size, code.constant(_ERF_SMALL), large, small)


def _tanh(code: LlvmCode, x: str) -> str:
    size = _absolute(code, x)
    square = code.binary("mul", x, x)
    small = code.multiply_add(code.binary("mul", _polynomial(code, _TANH, square), square), x, x)
    power = exp(code, code.binary("add", size, size))
    share = code.binary("div", code.constant(2.0), code.binary("add", power, code.constant(1.0)))
    large = _signed(code, code.binary("sub", code.constant(1.0), share), x)
    return _select(code, "oge", size, code.constant(_TANH_SMALL), large, small)


def _sigmoid(code: LlvmCode, x: str) -> str:
    return code.binary("div", code.constant(1.0), _one_and_power(code, x))


def _silu(code: LlvmCode, x: str) -> str:
    return code.binary("div", x, _one_and_power(code, x))


def _gelu(code: LlvmCode, x: str) -> str:
    """Return ``x (1 + erf(x / sqrt(2))) / 2``."""
    half = code.binary("mul", x, code.constant(0.5))
    return code.multiply_add(half, _erf(code, code.binary("mul", x, code.constant(math.sqrt(0.5)))), half)


def _gelu_tanh(code: LlvmCode, x: str) -> str:
    """Return ``x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u))`` with ``u = sqrt(2 / pi) (x + 0.044715 x**3)``."""
    scale = 2.0 * math.sqrt(2.0 / math.pi)
    square = code.binary("mul", x, x)
    factor = code.multiply_add(square, code.constant(0.044715 * scale), code.constant(scale))
    return code.binary("div", x, _one_and_power(code, code.binary("mul", factor, x)))


def _relu(code: LlvmCode, x: str) -> str:
    return code.maximum(x, code.constant(0.0))


def _relu6(code: LlvmCode, x: str) -> str:
    for relation, bound in (("olt", 0.0), ("ogt", 6.0)):
        x = _select(code, relation, x, code.constant(bound), code.constant(bound), x)
    return x


FUNCTIONS: dict[str, Callable[[LlvmCode, str], str]] = {
    "exp": exp,
    "erf": _erf,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu6": _relu6,
}
"""Name -> the function of a vector of `LlvmCode.vector`."""


def _one_and_power(code: LlvmCode, x: str) -> str:
    return code.binary("add", exp(code, _negated(code, x)), code.constant(1.0))


def _polynomial(code: LlvmCode, factors: Sequence[float], x: str) -> str:
    value = code.constant(factors[0])
    for factor in factors[1:]:
        value = code.multiply_add(value, x, code.constant(factor))
    return value


def _select(code: LlvmCode, relation: str, left: str, right: str, yes: str, no: str) -> str:
    """Return `yes` where left is `relation` to right; a NaN is in no relation."""
    return _where(code, code.emit(f"fcmp {relation} {code.vector} {left}, {right}"), yes, no)


def _where(code: LlvmCode, holds: str, yes: str, no: str) -> str:
    return code.emit(f"select <{code.lanes} x i1> {holds}, {code.vector} {yes}, {code.vector} {no}")


def _negated(code: LlvmCode, x: str) -> str:
    return code.emit(f"fneg {code.vector} {x}")


def _absolute(code: LlvmCode, x: str) -> str:
    return code.call(code.vector, f"llvm.fabs.v{code.lanes}f32", [(code.vector, x)])


def _signed(code: LlvmCode, size: str, sign: str) -> str:
    return code.call(code.vector, f"llvm.copysign.v{code.lanes}f32", [(code.vector, size), (code.vector, sign)])
