"""What is computed: a perfectly nested affine loop nest with its tensor accesses.

Footprints, traffic and bounds follow from the access maps, never from the operator's name.

Notation
--------
axis : a loop, spatial (it indexes the output) or reduction (it is summed over).
access : one tensor and, for each of its dimensions, an affine index ``sum(coefficient * axis) + offset``.
tile : axis name -> number of consecutive iterations; a missing axis counts as 1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import msgspec

from anatune.errors import WorkloadError

__all__ = ["ACCUMULATOR_DTYPE", "DTYPE_BYTES", "Access", "Axis", "Term", "Workload"]

DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4}
"""Element sizes in bytes of the dtypes that tensors may have (int32 only as the result of int8 products)."""

ACCUMULATOR_DTYPE: dict[str, str] = {
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
}
"""Element dtype -> dtype in which sums of products are kept."""

Attribute = int | str | bool | tuple[int | str | tuple[int, ...], ...]


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One loop of the nest: its name, extent (iterations, >= 1) and kind."""

    name: str
    extent: int
    kind: Literal["spatial", "reduction"]

    def __post_init__(self) -> None:
        if not isinstance(self.extent, int) or isinstance(self.extent, bool) or self.extent < 1:
            raise WorkloadError(
                f"axis {self.name!r}: extent is {self.extent!r}, expected an integer >= 1; give the real size"
            )


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``coefficient * axis`` inside an affine index; coefficient >= 1."""

    axis: str
    coefficient: int = 1


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as the nest reads or writes it.

    ``shape`` is row-major (last dimension contiguous), elements. ``indices`` holds the terms of each dimension,
    ``offsets`` the constant of each dimension (negative: padding; reads outside ``shape`` are zero).
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    indices: tuple[tuple[Term, ...], ...]
    offsets: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.num_elements * DTYPE_BYTES[self.dtype]

    def uses(self, axis: str) -> bool:
        """Whether any index of the access depends on `axis`."""
        return any(term.axis == axis for terms in self.indices for term in terms)

    def footprint(self, tile: Mapping[str, int]) -> int:
        """Return the number of elements of the bounding box that `tile` touches (padding positions included).

        Parameters
        ----------
        tile : mapping of str to int
            Axis -> consecutive iterations (>= 1); axes that are missing count as 1.
        """
        return math.prod(
            1 + sum(term.coefficient * (tile.get(term.axis, 1) - 1) for term in terms)
            for terms in self.indices
        )


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A perfectly nested affine loop nest: one statement ``write <- combine(write, f(reads))`` and an epilogue.

    Guarantees: every axis of an access exists, every access has one index per dimension, spatial axes are those of
    `write` and come before the reduction axes. Immutable, hashable; JSON both ways through msgspec.

    Attributes
    ----------
    operator : str
        Name of the constructor ("matmul", "conv2d", "einsum", ...): for people and code generators, not for models.
    axes : tuple of Axis
        Loop order of the reference program.
    reads, write : Access
        Operands and result of the reduction. Epilogue operands are in `epilogue_reads`.
    body : str
        Statement inside the nest, one of "multiply_add", "add", "max", "multiply", "copy", "relu", "average".
    flop_per_point : int
        Floating-point (or integer) operations of one iteration: 2 for multiply-add, 1 for the others, 0 for a copy.
    epilogue : tuple of str
        Fused element-wise steps on the result, in order: "bias", "add", "relu".
    epilogue_reads : tuple of Access
        Operands of the epilogue's steps that need one, in order.
    attributes : tuple of (str, value)
        The constructor's own arguments, in order (stride, padding, layout, ...).
    """

    operator: str
    axes: tuple[Axis, ...]
    reads: tuple[Access, ...]
    write: Access
    body: str
    flop_per_point: int
    epilogue: tuple[str, ...] = ()
    epilogue_reads: tuple[Access, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise WorkloadError(f"{self.operator}: axis names {names} repeat; give every loop its own name")
        for access in (*self.reads, self.write, *self.epilogue_reads):
            if access.dtype not in DTYPE_BYTES:
                raise WorkloadError(
                    f"{self.operator}: tensor {access.tensor!r} has dtype {access.dtype!r}, "
                    f"expected one of {', '.join(DTYPE_BYTES)}"
                )
            if not len(access.shape) == len(access.indices) == len(access.offsets):
                raise WorkloadError(
                    f"{self.operator}: tensor {access.tensor!r} needs one index and one offset per dimension"
                )
            unknown = {term.axis for terms in access.indices for term in terms} - set(names)
            if unknown:
                raise WorkloadError(
                    f"{self.operator}: tensor {access.tensor!r} uses unknown axes {sorted(unknown)}"
                )

    @cached_property
    def extents(self) -> dict[str, int]:
        """Axis name -> extent, in loop order."""
        return {axis.name: axis.extent for axis in self.axes}

    @property
    def spatial_axes(self) -> tuple[Axis, ...]:
        """The loops that index the output."""
        return tuple(axis for axis in self.axes if axis.kind == "spatial")

    @property
    def reduction_axes(self) -> tuple[Axis, ...]:
        """The loops that are summed (or maximised) over."""
        return tuple(axis for axis in self.axes if axis.kind == "reduction")

    @property
    def dtype(self) -> str:
        """Element dtype of the operands."""
        return self.reads[0].dtype

    @property
    def num_points(self) -> int:
        """Iterations of the whole nest."""
        return math.prod(axis.extent for axis in self.axes)

    @property
    def flop(self) -> int:
        """Operations of the whole nest (a multiply-add is two), epilogue left out."""
        return self.num_points * self.flop_per_point

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must cross the DRAM boundary once: all operands read, the result written."""
        reads = {access.tensor: access.num_bytes for access in (*self.reads, *self.epilogue_reads)}
        return sum(reads.values()) + self.write.num_bytes

    @property
    def attribute(self) -> dict[str, Attribute]:
        """The constructor's arguments by name."""
        return dict(self.attributes)

    @cached_property
    def key(self) -> str:
        """Stable content hash (16 hexadecimal digits) of everything that defines the computation."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def describe(self) -> str:
        """One line: operator, axes with extents, dtype, GFLOP."""
        loops = " ".join(f"{axis.name}={axis.extent}" for axis in self.axes)
        tail = "".join(f"+{step}" for step in self.epilogue)
        return f"{self.operator}{tail} {loops} {self.dtype} ({self.flop / 1e9:.4g} GFLOP)"
