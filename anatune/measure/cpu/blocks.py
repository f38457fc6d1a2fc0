"""Arguments of a kernel: aligned memory between guard zones, shared by NumPy and TVM."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.compat import import_tvm
from anatune.measure.run.correctness import GUARD_BYTES, GUARD_FILL, Array, array_dtype
from anatune.untyped import tvm

__all__ = ["ArgumentBlock", "tensor_of"]

ALIGNMENT_BYTES = 64
"""Alignment that built kernels rely on."""


class ArgumentBlock:
    """An argument of a kernel, whose `array` and `tensor` share 64-byte aligned memory.

    Parameters
    ----------
    dtype : str
        Workload dtype.
    shape : tuple of int
        Shape in row-major order.
    guarded : bool
        Whether there are guard zones around it, which `intact` checks.

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
            self._raw[: self._start] = GUARD_FILL
            self._raw[self._start + self._size :] = GUARD_FILL
        self.array: Array = self.bytes.view(kind).reshape(self.shape)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The bytes of the block, without the guard zones."""
        return self._raw[self._start : self._start + self._size]

    def copy_in(self, memory: NDArray[np.uint8]) -> ArgumentBlock:
        """Return a copy of the block that lies in `memory`, as many bytes at an aligned address."""
        copy = ArgumentBlock.__new__(ArgumentBlock)
        copy.dtype, copy.shape, copy._size, copy._guarded = self.dtype, self.shape, self._size, False
        copy._raw, copy._start = memory, 0
        copy.array = copy.bytes.view(self.array.dtype).reshape(self.shape)
        copy.bytes[:] = self.bytes
        return copy

    @property
    def tensor(self) -> tvm.runtime.Tensor:
        """The block as a TVM tensor on the same memory; it keeps the memory alive."""
        return tensor_of(self.array)

    @property
    def intact(self) -> bool:
        """True if nothing wrote into the guard zones."""
        if not self._guarded:
            return True
        before, after = self._raw[: self._start], self._raw[self._start + self._size :]
        return bool((before == GUARD_FILL).all() and (after == GUARD_FILL).all())


def tensor_of(array: Array) -> tvm.runtime.Tensor:
    """Return a TVM tensor on the memory of `array`, or on an aligned copy if a kernel or DLPack needs one."""
    tvm = import_tvm()
    flags = array.flags
    if not array.size:
        return tvm.runtime.empty(array.shape, array.dtype.name)  # DLPack wants an aligned place of no elements, too
    if not (flags.c_contiguous and flags.writeable and _place(array) % ALIGNMENT_BYTES == 0):
        raw = np.empty(array.nbytes + ALIGNMENT_BYTES, np.uint8)
        block: Array = np.ndarray(array.shape, array.dtype, raw, -_place(raw) % ALIGNMENT_BYTES)
        block[...] = array
        array = block
    if array.dtype.kind != "V" or array.dtype.name != "bfloat16":  # names take as long as all the rest
        return tvm.runtime.from_dlpack(array)
    words = tvm.runtime.from_dlpack(array.view(np.uint16))  # NumPy cannot export bfloat16
    return words._create_view(array.shape, "bfloat16")


def _place(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
