"""Arguments of a kernel: aligned memory between guard zones that NumPy and TVM both see."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.compat import import_tvm
from anatune.measure.run.correctness import array_dtype

__all__ = ["Block", "same_bytes", "tensor_of"]

ALIGNMENT_BYTES = 64
"""Alignment that built kernels rely on."""

GUARD_BYTES = 4096
"""Memory on both sides of a guarded block."""

_GUARD = 0xFF
"""Fill of the guard zones: NaN in every floating-point dtype, so that a value read from there shows."""


class Block:
    """One argument: `array` and `tensor` share 64-byte aligned memory.

    Parameters
    ----------
    dtype : str
        Workload dtype.
    shape : tuple of int
        Row-major.
    guarded : bool
        Put guard zones around it, which `intact` looks at.

    Attributes
    ----------
    array : ndarray
        The memory as NumPy sees it (bfloat16: the dtype of ml_dtypes).
    """

    def __init__(self, dtype: str, shape: tuple[int, ...], *, guarded: bool = False) -> None:
        kind = array_dtype(dtype)
        self.dtype, self.shape = dtype, tuple(shape)
        self._size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        guard = GUARD_BYTES if guarded else 0
        self._raw = np.empty(self._size + 2 * guard + ALIGNMENT_BYTES, np.uint8)
        self._start = (-(self._raw.ctypes.data + guard)) % ALIGNMENT_BYTES + guard
        self._guarded = guarded
        if guarded:
            self._raw[: self._start] = _GUARD
            self._raw[self._start + self._size :] = _GUARD
        self.array: NDArray[Any] = self.bytes.view(kind).reshape(self.shape)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The block's own bytes, without the guard zones."""
        return self._raw[self._start : self._start + self._size]

    @property
    def tensor(self) -> Any:
        """The block as a TVM tensor on the same memory; it keeps the memory alive."""
        return tensor_of(self.array)

    @property
    def intact(self) -> bool:
        """Whether nothing wrote into the guard zones."""
        if not self._guarded:
            return True
        before, after = self._raw[: self._start], self._raw[self._start + self._size :]
        return bool((before == _GUARD).all() and (after == _GUARD).all())


def tensor_of(array: NDArray[Any]) -> Any:
    """Return a TVM tensor on the memory of `array`, or on an aligned copy where a kernel or DLPack refuses that."""
    tvm = import_tvm()
    flags = array.flags
    if not (flags.c_contiguous and flags.writeable and array.ctypes.data % ALIGNMENT_BYTES == 0):
        block = Block(array.dtype.name, array.shape)
        block.array[...] = array
        array = block.array
    if array.dtype.name != "bfloat16":
        return tvm.runtime.from_dlpack(array)
    words = tvm.runtime.from_dlpack(array.view(np.uint16))  # NumPy cannot export bfloat16
    return words._create_view(array.shape, "bfloat16")


def same_bytes(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two C-contiguous arrays hold the same bytes, whatever they mean (a NaN equals itself)."""
    if one.nbytes != other.nbytes:
        return False
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in (one, other))
    return bool(first == second)  # compared as memory, without temporaries
