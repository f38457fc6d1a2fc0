"""How LLVM IR writes types, constants and sizes."""

from __future__ import annotations

import struct
from collections.abc import Callable

from anatune.core.sizes import Size

LLVM_TYPE = {
    "float32": "float",
    "float16": "half",
    "bfloat16": "i16",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "int32": "i32",
}
"""Dtype -> how LLVM IR loads and stores it."""


def suffix(dtype: str) -> str:
    """Return how names of intrinsics call the elements of vectors."""
    kind = LLVM_TYPE[dtype]
    return {"float": "f32", "half": "f16"}.get(kind, kind)


def same_integers(number: int, lanes: int, bits: int = 32) -> str:
    """Return a vector of equal numbers."""
    return "<" + ", ".join([f"i{bits} {number}"] * lanes) + ">"


def lane_mask(used: int | str, lanes: int) -> str:
    """Return a mask of the first `used` lanes; a text is one already."""
    return used if isinstance(used, str) else "<" + ", ".join(f"i1 {int(lane < used)}" for lane in range(lanes)) + ">"


def float_text(value: float) -> str:
    """Return a float constant as LLVM reads it: the bits of the double of the same value."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return "0x" + struct.pack(">d", single).hex().upper()


def number_of(size: int, emit: Callable[[str], str]) -> str:
    """Return a size of 64 bits; symbols of one that is known at run time are parameters of the function.

    Parameters
    ----------
    emit : callable
        Appends what computes a value, and returns its name: `LlvmCode.emit`.
    """
    if not isinstance(size, Size):
        return str(size)
    total = "0"
    for symbols, factor in size.polynomial:
        product = str(factor)
        for symbol in symbols:
            product = emit(f"mul nsw i64 {product}, %{symbol}")
        total = emit(f"add nsw i64 {total}, {product}")
    return total
