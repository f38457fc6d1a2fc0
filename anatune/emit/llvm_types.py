"""Types, constants and sizes in LLVM IR."""

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
"""Dtype -> type of its elements in LLVM IR's loads and stores."""


def suffix(dtype: str) -> str:
    """Return the name of a dtype in intrinsics of vectors."""
    kind = LLVM_TYPE[dtype]
    return {"float": "f32", "half": "f16"}.get(kind, kind)


def same_integers(number: int, lanes: int, bits: int = 32) -> str:
    """Return a vector of equal numbers."""
    return "<" + ", ".join([f"i{bits} {number}"] * lanes) + ">"


def lane_mask(used: int | str, lanes: int) -> str:
    """Return a mask of the first `used` lanes; a text is returned unchanged."""
    return used if isinstance(used, str) else "<" + ", ".join(f"i1 {int(lane < used)}" for lane in range(lanes)) + ">"


def float_text(value: float) -> str:
    """Return a float constant in LLVM's syntax: the bits of the double with the same value."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return "0x" + struct.pack(">d", single).hex().upper()


def write_size(size: int, emit: Callable[[str], str]) -> str:
    """Return a 64-bit size; symbols of a size known only at run time are parameters of the function.

    Parameters
    ----------
    emit : callable
        Function that appends an instruction and returns the name of its value: `LlvmCode.emit`.
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
