"""What generated kernels take."""

from __future__ import annotations

import math

import msgspec

from anatune.core.workload.nest import DTYPE_BYTES, Access

_OTHER_BYTES = {"bool": 1, "int16": 2, "uint16": 2, "uint32": 4, "int64": 8, "uint64": 8, "float64": 8}
"""Of elements that no workload has, but models."""


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One argument as the built kernel takes it: row-major, 64-byte aligned.

    Attributes
    ----------
    tensor, dtype : str
    shape : tuple of int
        Of a kernel for a range, at the largest extent.
    varying : tuple of int
        Dimensions that have the length that the kernel is told when it is launched.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    varying: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * (DTYPE_BYTES.get(self.dtype) or _OTHER_BYTES[self.dtype])

    @classmethod
    def of(cls, access: Access, axis: str = "") -> Buffer:
        """Return a tensor in the workload's own layout; `axis`, if any, is the one whose extent varies."""
        varying = (d for d, terms in enumerate(access.indices) if any(term.axis == axis for term in terms))
        return cls(access.tensor, access.dtype, access.shape, tuple(varying))

    def at(self, extent: int) -> Buffer:
        """Return the argument where dimensions that vary have a length."""
        shape = tuple(extent if d in self.varying else length for d, length in enumerate(self.shape))
        return msgspec.structs.replace(self, shape=shape)
