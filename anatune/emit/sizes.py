"""Sizes as numbers of LLVM IR."""

from __future__ import annotations

from collections.abc import Callable

from anatune.core.sizes import Size

__all__ = ["number_of"]


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
