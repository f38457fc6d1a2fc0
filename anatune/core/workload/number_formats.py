"""Number formats: which dtypes the tensors of a nest may have together, and the words that name them.

Notation
--------
word : ``operands[:result]`` as users write it: "float32", "uint8xint8" (first x second operand), "bfloat16:float32".
sums : the dtype in which products are summed (`ACCUMULATOR_DTYPE`): float32, or int32 for 8-bit integers.
input : the dtype of the value that a fused step receives.

Two operands may differ: two 8-bit floats of one standard, uint8 and int8, and a 16-bit float times an 8-bit number
("weights only": every 8-bit number is exact in 16 bits, so that the conversion rounds nothing). The default result of
8-bit floats is bfloat16: callers of ``torch._scaled_mm`` request it; that function's own default, the operands' dtype,
needs another scale for the result.

Floating-point sums have one step that multiplies, "scale", for operands of 8 bits: by a float32 for each output channel
(all equal if the scale belongs to a whole tensor). Steps are computed in float32 and rounded once, to the result;
operands of "bias" and "add" have the result's dtype, or float32 before a "scale".

Sums of 8-bit integers have these steps, all element-wise, each rounded separately (no fused multiply-add):

- "bias", "add" : an operand of the step's input dtype is added: int32 before "scale", the result's dtype after it.
- "scale" : the int32 value becomes float32 (rounded to nearest even) and is multiplied by a float32 for each output
  channel. That is oneDNN's ``scale_src * scale_weights[channel]``, and the step after ONNX's ConvInteger or
  MatMulInteger. A float16 or bfloat16 result is the last step's value, rounded: the int8 products of vLLM and torchao.
- "requantize" : the value as float32 times a float32 for each output channel, rounded to the nearest integer (ties to
  even), plus the result's zero point, saturated to int8 or uint8. That is ONNX's QLinearConv and QLinearMatMul with
  multiplier ``x_scale * w_scale[channel] / y_scale``, and PyTorch's quantisation. oneDNN rounds after it has added the
  zero point: at ties, with odd zero points, its result differs by 1.

A first operand with a zero point (`Access.zero_point`) enters as ``stored - zero_point``, as in all three libraries.
Sums beyond int32 wrap around, as the processors' instructions do.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from anatune.core.workload.access import DTYPE_BYTES, FLOAT8_DTYPES

BYTE_DTYPES = ("int8", "uint8")
PLAIN_DTYPES = ("float32", "float16", "bfloat16", "int8")
"""Dtypes that all operands of any operator may have together."""

_HALVES = ("float16", "bfloat16")
_STANDARDS = (FLOAT8_DTYPES[:2], FLOAT8_DTYPES[2:])
"""Groups of 8-bit floats that can be multiplied with each other."""

OPERAND_PAIRS: frozenset[tuple[str, str]] = frozenset(
    [
        *((dtype, dtype) for dtype in PLAIN_DTYPES),
        ("uint8", "int8"),
        *(pair for dtypes in _STANDARDS for pair in itertools.product(dtypes, dtypes)),
        *itertools.product(_HALVES, ("int8", *FLOAT8_DTYPES)),
    ]
)
"""Allowed dtypes of the first and the second operand of a product."""

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
"""Fused step -> the tensor that it reads, or None."""

FUNCTION_STEPS = ("relu6", "silu", "gelu", "gelu_tanh")
"""Steps that apply a function to floating-point sums, in float32 (`anatune.core.activations`)."""

FACTOR_STEPS = ("scale", "requantize")
"""Steps that multiply, in float32."""

_SPELLINGS = {
    "fp32": "float32",
    "f32": "float32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "i8": "int8",
    "s8": "int8",
    "u8": "uint8",
    **dict.fromkeys(("fp8", "float8", "e4m3", "e4m3fn", "float8_e4m3", "fp8e4nv"), "float8_e4m3fn"),
    **dict.fromkeys(("e5m2", "fp8e5"), "float8_e5m2"),
}
"""Other common names of dtypes -> the names used here."""


class Formats(NamedTuple):
    """Dtypes of a product's operands and of its result."""

    left: str
    right: str
    result: str


def accumulated_dtype(dtype: str) -> str:
    """Return the dtype of a result that is a sum: int32 for 8-bit integers, otherwise the operands' own."""
    return "int32" if dtype in BYTE_DTYPES else dtype


def dtype_hint(word: object, allowed: Collection[str] | None = None) -> str:
    """Return "; did you mean float16?" for a word with other names of dtypes, otherwise "".

    Parameters
    ----------
    allowed : collection of str, optional
        Allowed suggestions; by default all.
    """
    if not isinstance(word, str):
        return ""
    parts = [[_SPELLINGS.get(name.lower(), name) for name in part.split("x")] for part in word.split(":")]
    meant = ":".join("x".join(part) for part in parts)
    return "" if meant == word or (allowed is not None and meant not in allowed) else f"; did you mean {meant}?"


def step_dtypes(operands: Sequence[str], result: str, epilogue: Sequence[str]) -> tuple[str, ...]:
    """Return the dtype of the operand of each step ("" for a step without operand), then that of the final value.

    Parameters
    ----------
    operands, result : (sequence of) str
        Dtypes of the product's operands and of the result.
    """
    dtypes = []
    current = "int32" if operands[0] in BYTE_DTYPES else "float32" if "scale" in epilogue else result
    for step in epilogue:
        if step in FACTOR_STEPS:
            dtypes.append("float32")
            current = result if result in _HALVES else "float32"
        else:
            dtypes.append(current if STEP_OPERANDS[step] else "")
    return (*dtypes, current)


def result_dtypes(operands: Sequence[str], epilogue: Sequence[str]) -> tuple[str, ...]:
    """Return the dtypes that the result of a sum of products may have, the default first; () if the steps do not fit.

    8-bit integers: int32; after "scale" float32, float16 or bfloat16; after "requantize" (the last step) int8 or uint8.
    8-bit floats: bfloat16, float16 or float32. float16 and bfloat16: their own, or float32 (the sums themselves).
    float32: its own.

    Parameters
    ----------
    operands : sequence of str
        Dtypes of the operands, in order.
    """
    left, right = operands[0], operands[-1]
    factors = [step for step in epilogue if step in FACTOR_STEPS]
    if left in BYTE_DTYPES:
        if any(step in FUNCTION_STEPS for step in epilogue):
            return ()
        if "requantize" in factors:
            return (left, *(other for other in BYTE_DTYPES if other != left)) if epilogue[-1] == "requantize" else ()
        return ("float32", *_HALVES) if factors else ("int32",)
    if "requantize" in factors or (factors and DTYPE_BYTES[right] > 1):
        return ()
    if left in FLOAT8_DTYPES:
        return ("bfloat16", "float16", "float32")
    return (left, "float32") if left in _HALVES else (left,)


def parse_formats(word: str, epilogue: Sequence[str]) -> Formats | str:
    """Return the formats that a word means together with `epilogue`, or a text with the expected words."""
    operand_word, colon, result = word.partition(":")
    left, _, right = operand_word.partition("x")
    operands = (left, right or left)
    if operands not in OPERAND_PAIRS:
        return (
            f"one of {', '.join((*PLAIN_DTYPES, *FLOAT8_DTYPES))}, or two of them, for example uint8xint8, "
            "float8_e4m3fnxfloat8_e5m2 or bfloat16xint8, followed by ':' and another dtype for the result if wanted"
            f"{dtype_hint(word)}"
        )
    allowed = result_dtypes(operands, epilogue)
    if not allowed and left in BYTE_DTYPES and any(step in FUNCTION_STEPS for step in epilogue):
        return f"a floating-point dtype with the steps {', '.join(FUNCTION_STEPS)}"
    if not allowed:
        return (
            "8-bit operands for the step scale; int8 or uint8xint8 for requantize, as the last step"
            if left not in BYTE_DTYPES
            else "requantize as the last step"
        )
    if colon and result not in allowed:
        context = f"{operand_word} and the steps ({', '.join(epilogue)})"
        return f"a result of {' or '.join(allowed)} behind {context}{dtype_hint(word)}"
    return Formats(*operands, result if colon else allowed[0])


def format_word(dtypes: Sequence[str], result: str, epilogue: Sequence[str]) -> str:
    """Return the shortest word for operands of `dtypes` and a result, as `parse_formats` reads it."""
    word = dtypes[0] if len(set(dtypes)) == 1 else "x".join(dtypes)
    default = result_dtypes(dtypes, epilogue) if (dtypes[0], dtypes[-1]) in OPERAND_PAIRS else ()
    return word if default and default[0] == result else f"{word}:{result}"


def needs_matrix_units(operands: Sequence[str], result: str) -> bool:
    """Return whether only matrix units have code: 8-bit floats, 16-bit times 8-bit numbers, integer sums as 16 bits."""
    if any(dtype in FLOAT8_DTYPES for dtype in operands):
        return True
    return (operands[0] in _HALVES and operands[-1] == "int8") or (operands[0] in BYTE_DTYPES and result in _HALVES)
