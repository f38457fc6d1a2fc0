"""Number formats of products with scaled operands, and the positions of the scales.

Notation
--------
run : neighbouring elements along k that share a scale. A byte holds two 4-bit numbers, that of even k in its low bits.
e8m0 : a byte b that means 2^(b - 127); e2m1: 4 bits that mean 0, .5, 1, 1.5, 2, 3, 4 or 6, and a sign.
Source: OCP Microscaling Formats (MX) 1.0, 2023 (mxfp8, mxfp4); NVIDIA PTX ISA, block scaling (nvfp4).
"""

from __future__ import annotations

from typing import NamedTuple

from anatune.core.workload.access import FLOAT8_DTYPES

SIDE = 128
"""Rows, columns and elements along k of a weight block that has one scale. Source: [DeepSeek-V3] Sec. 3.3.2."""
SCALES = ("tensor", "rows", "blocks")
"""Positions of the scales of 8-bit operands. "tensor": one scale each; "rows": one for each row of the data and each
column of the result; "blocks": one for each row and SIDE elements along k of the data, and for each block of SIDE x
SIDE weights."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Value of the low three bits of a 4-bit float."""
_HALVES = ("float16", "bfloat16")


class ScaledFormat(NamedTuple):
    """The formats of the operands of a product.

    Attributes
    ----------
    data, weight : str
        Dtypes in memory; "uint8" stands for two 4-bit numbers in a byte.
    scale : str
        Dtype of the scales; "": there are none; "uint8": e8m0.
    run : int
        Elements that share a scale, for block-scaled formats that matrix units multiply directly; otherwise 0.
    result : str
        Default dtype of the result.
    """

    data: str
    weight: str
    scale: str = ""
    run: int = 0
    result: str = "bfloat16"

    @property
    def data_bits(self) -> int:
        """Number of bits of an element of the data."""
        return 32 if self.data == "float32" else 16 if self.data in _HALVES else 4 if self.data == "uint8" else 8

    @property
    def weight_bits(self) -> int:
        """Number of bits of a weight."""
        return 16 if self.weight in _HALVES else 4 if self.weight == "uint8" else 8

    @property
    def converts(self) -> bool:
        """True if weights are converted to the data's dtype before they are multiplied."""
        return self.data_bits > self.weight_bits


SCALED_FORMATS: dict[str, ScaledFormat] = {
    **{dtype: ScaledFormat(dtype, dtype, result=dtype) for dtype in _HALVES},
    **{dtype: ScaledFormat(dtype, dtype, "float32") for dtype in (*FLOAT8_DTYPES, "int8")},
    **{f"{half}xint8": ScaledFormat(half, "int8", half, result=half) for half in _HALVES},
    **{f"{half}xint4": ScaledFormat(half, "uint8", half, result=half) for half in _HALVES},
    "float32xint8": ScaledFormat("float32", "int8", "float32", result="float32"),
    "float32xint4": ScaledFormat("float32", "uint8", "float32", result="float32"),
    "mxfp8": ScaledFormat("float8_e4m3fn", "float8_e4m3fn", "uint8", 32),
    "mxfp4": ScaledFormat("uint8", "uint8", "uint8", 32),
    "nvfp4": ScaledFormat("uint8", "uint8", "float8_e4m3fn", 16),
}
"""Word -> formats. "bfloat16xint4": weights are 4-bit numbers with the meaning (number - 8) x scale, or with zero
points (number - zero) x scale; "bfloat16xint8": number x scale. "nvfp4" has a float32 factor in addition, one for each
expert."""
