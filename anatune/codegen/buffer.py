"""What generated kernels take."""

from __future__ import annotations

import math

import msgspec

from anatune.core.workload.nest import DTYPE_BYTES, Access

__all__ = ["Buffer"]


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One argument as the built kernel takes it: row-major, 64-byte aligned."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @classmethod
    def of(cls, access: Access) -> Buffer:
        """Return a tensor in the workload's own layout."""
        return cls(access.tensor, access.dtype, access.shape)
