"""Arguments of generated kernels."""

from __future__ import annotations

import math

import msgspec

from anatune.core.workload.nest import DTYPE_BYTES, Access

_OTHER_BYTES = {"bool": 1, "int16": 2, "uint16": 2, "uint32": 4, "int64": 8, "uint64": 8, "float64": 8}
"""Bytes of an element, for dtypes that occur only in networks."""


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An argument of a built kernel: row-major, 64-byte aligned.

    Attributes
    ----------
    tensor, dtype : str
        Name of the tensor, and its element type.
    shape : tuple of int
        Its shape; for a kernel for a range, at the largest extent.
    varying : tuple of int
        Dimensions whose length is the extent that the kernel receives when it is launched.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    varying: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * (DTYPE_BYTES.get(self.dtype) or _OTHER_BYTES[self.dtype])

    @classmethod
    def of(cls, access: Access, axis: str = "") -> Buffer:
        """Return a tensor in the workload's own layout; `axis` is the one whose extent varies, if any."""
        varying = (d for d, terms in enumerate(access.indices) if any(term.axis == axis for term in terms))
        return cls(access.tensor, access.dtype, access.shape, tuple(varying))

    def at(self, extent: int) -> Buffer:
        """Return the argument with a given length of its varying dimensions."""
        shape = tuple(extent if d in self.varying else length for d, length in enumerate(self.shape))
        return msgspec.structs.replace(self, shape=shape)
