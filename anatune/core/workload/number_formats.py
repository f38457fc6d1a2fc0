"""Which dtypes a nest's tensors may have together, what is computed in which, and the word that says it.

Notation
--------
word : ``operands[:result]`` as people type it: "float32", "uint8xint8" (first operand x second), "bfloat16:float32".
sums : dtype in which products are summed (`ACCUMULATOR_DTYPE`): float32, or int32 of 8-bit operands.
stage : dtype of the value that a fused step receives.

Steps of sums of 8-bit operands, all element-wise and each rounded on its own (no fused multiply-add):

- "bias", "add" : an operand of the stage's dtype is added (int32 before "scale", float32 behind it).
- "scale" : the int32 value becomes float32 (to nearest even) and is multiplied by a float32 for each output channel:
  what oneDNN does with ``scale_src * scale_weights[channel]``, and what follows ONNX's ConvInteger or MatMulInteger.
- "requantize" : the value as float32 times a float32 for each output channel, rounded to the nearest integer (ties to
  even), plus the result's zero point, saturated to int8 or uint8. That is ONNX's QLinearConv and QLinearMatMul with
  multiplier ``x_scale * w_scale[channel] / y_scale`` and PyTorch's quantisation. oneDNN rounds after it has added the
  zero point: at ties, with odd zero points, its result differs by 1.

A first operand with a zero point (`Access.zero_point`) enters as ``stored - zero_point``, as in all three libraries.
Sums that leave int32 wrap around, as the processors' instructions do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anatune.core.workload.access import ACCUMULATOR_DTYPE

__all__ = [
    "BYTE_DTYPES",
    "FACTOR_STEPS",
    "FUNCTION_STEPS",
    "STEP_OPERANDS",
    "Formats",
    "accumulated_dtype",
    "format_word",
    "formats_of",
    "result_dtypes",
    "stage_dtypes",
]

BYTE_DTYPES = ("int8", "uint8")

STEP_OPERANDS: dict[str, str | None] = {
    "bias": "bias",
    "add": "residual",
    "relu": None,
    "relu6": None,
    "silu": None,
    "gelu": None,
    "gelu_tanh": None,
    "scale": "scale",
    "requantize": "multiplier",
}
"""Fused step -> the tensor it takes, if any."""

FUNCTION_STEPS = ("relu6", "silu", "gelu", "gelu_tanh")
"""Steps that are functions of floating-point sums, computed in float32 (`anatune.core.activations`)."""

FACTOR_STEPS = ("scale", "requantize")
"""Steps that multiply, as float32."""

_OPERANDS = ("float32", "float16", "bfloat16", "int8", "uint8xint8")
_WIDENED = ("float16", "bfloat16")


class Formats(NamedTuple):
    """Dtypes of a product's operands and of its result."""

    left: str
    right: str
    result: str


def accumulated_dtype(dtype: str) -> str:
    """Return the dtype of a result that is a sum: int32 for 8-bit operands, otherwise the operands' own."""
    return "int32" if dtype in BYTE_DTYPES else dtype


def stage_dtypes(dtype: str, result: str, epilogue: Sequence[str]) -> tuple[str, ...]:
    """Return the dtype of the operand of each step ("" for a step without), and the last stage's dtype behind them.

    Parameters
    ----------
    dtype, result : str
        Of the first operand, and of the result.
    """
    dtypes = []
    stage = "int32" if dtype in BYTE_DTYPES else result
    for step in epilogue:
        if step in FACTOR_STEPS:
            dtypes.append("float32")
            stage = "float32"
        else:
            dtypes.append(stage if STEP_OPERANDS[step] else "")
    return (*dtypes, stage)


def result_dtypes(dtype: str, epilogue: Sequence[str]) -> tuple[str, ...]:
    """Return the dtypes that the result of a sum of products may have, the default first; none: the steps do not fit.

    8-bit operands: int32, behind "scale" float32, behind "requantize" (the last step) int8 or uint8. float16 and
    bfloat16: their own, or float32 (sums as they are). Others: their own.
    """
    steps = [step for step in epilogue if step in FACTOR_STEPS]
    if dtype in BYTE_DTYPES and any(step in FUNCTION_STEPS for step in epilogue):
        return ()
    if dtype not in BYTE_DTYPES:
        return () if steps else (dtype, "float32") if dtype in _WIDENED else (dtype,)
    if "requantize" in steps:
        return (dtype, *(other for other in BYTE_DTYPES if other != dtype)) if epilogue[-1] == "requantize" else ()
    return ("float32",) if steps else ("int32",)


def formats_of(word: str, epilogue: Sequence[str]) -> Formats | str:
    """Return what a word means behind `epilogue`, or what was expected instead, in words."""
    operands, colon, result = word.partition(":")
    if operands == "int8xint8":
        operands = "int8"
    if operands not in _OPERANDS:
        return f"one of {', '.join(_OPERANDS)}, with a ':' and the result's dtype where it is another"
    left, _, right = operands.partition("x")
    allowed = result_dtypes(left, epilogue)
    if not allowed and left in BYTE_DTYPES and any(step in FUNCTION_STEPS for step in epilogue):
        return f"a floating-point dtype with the steps {', '.join(FUNCTION_STEPS)}"
    if not allowed:
        return (
            "int8 or uint8xint8 with the steps scale and requantize, the latter as the last one"
            if left not in BYTE_DTYPES
            else "requantize as the last step"
        )
    if colon and result not in allowed:
        return f"a result of {' or '.join(allowed)} behind {operands} and the steps ({', '.join(epilogue)})"
    return Formats(left, right or left, result if colon else allowed[0])


def format_word(dtypes: Sequence[str], result: str, epilogue: Sequence[str]) -> str:
    """Return the shortest word for operands of `dtypes` and a result; `formats_of` understands it."""
    word = dtypes[0] if len(set(dtypes)) == 1 else "x".join(dtypes)
    default = result_dtypes(dtypes[0], epilogue) if dtypes[0] in ACCUMULATOR_DTYPE else ()
    return word if default and default[0] == result else f"{word}:{result}"
