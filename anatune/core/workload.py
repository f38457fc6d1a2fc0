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

from anatune.errors import UnknownNameError, WorkloadError

__all__ = ["ACCUMULATOR_DTYPE", "BODIES", "DTYPE_BYTES", "Access", "Attribute", "Axis", "Term", "Workload"]

DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4}
"""Element sizes in bytes of the dtypes that tensors may have (int32 only as the result of int8 products)."""

ACCUMULATOR_DTYPE: dict[str, str] = {
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
}
"""Element dtype -> dtype in which sums of products are kept."""

BODIES: tuple[str, ...] = ("multiply_add", "add", "max", "average", "multiply", "copy", "relu")
"""Statements that a nest may hold, see `Workload.body`."""

_MAX_MARKS = 1 << 24
"""Positions of one dimension that are marked one by one when strided reads are counted."""

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

    def __post_init__(self) -> None:
        if self.coefficient < 1:
            raise WorkloadError(
                f"index term of axis {self.axis!r}: coefficient is {self.coefficient}, expected >= 1; "
                "leave out terms that do not move the index"
            )


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as the nest reads or writes it.

    ``shape`` is row-major (last dimension contiguous), elements. ``indices`` holds the terms of each
    dimension, ``offsets`` the constant of each dimension (negative: padding). Reads outside ``shape`` give
    the neutral element of the body: zero for sums, the lowest value for "max".
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
            1 + sum(term.coefficient * (tile.get(term.axis, 1) - 1) for term in terms) for terms in self.indices
        )

    def touched_elements(self, extents: Mapping[str, int]) -> int:
        """Return the number of distinct elements of the tensor that the whole nest touches, padding left out.

        A 1x1 convolution of stride 2, for example, touches a quarter of its data. Exact where no axis is in
        two dimensions and a strided one has at most 2**24 positions; otherwise at most the true count.

        Parameters
        ----------
        extents : mapping of str to int
            Axis -> iterations of the whole nest.
        """
        return math.prod(
            _touched_positions(size, [(term.coefficient, extents[term.axis]) for term in terms], offset)
            for size, terms, offset in zip(self.shape, self.indices, self.offsets, strict=True)
        )


def _touched_positions(size: int, terms: list[tuple[int, int]], offset: int) -> int:
    """Return how many positions in [0, size) equal ``offset + sum(coefficient * i)``, i in [0, extent)."""
    moving = sorted((coefficient, extent) for coefficient, extent in terms if extent > 1)
    last = 0  # of the positions from 0 that are reached without a gap
    for coefficient, extent in moving:
        if coefficient > last + 1:
            break
        last += coefficient * (extent - 1)
    else:
        return max(0, min(size - 1, offset + last) - max(0, offset) + 1)
    if len(moving) == 1 or size - offset > _MAX_MARKS:
        # One term alone: a lower bound of the union over the others.
        coefficient, extent = max(moving, key=lambda term: term[1])
        first = max(0, -(offset // coefficient)) if offset < 0 else 0
        final = min(extent - 1, (size - 1 - offset) // coefficient)
        return max(0, final - first + 1)
    marks = 1
    window = (1 << (size - offset)) - 1
    for coefficient, extent in moving:
        reached, done = marks, 1
        while done < extent and done * coefficient < size - offset:
            step = min(done, extent - done)
            reached |= (reached << (step * coefficient)) & window
            done += step
        marks = reached & window
    return (marks >> -offset if offset < 0 else marks << offset).bit_count()


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A perfectly nested affine loop nest: one statement ``write <- combine(write, f(reads))``, an epilogue.

    Guarantees: every axis of an access exists, every access has one index per dimension, the spatial axes are
    those of `write` and come before the reduction axes. Immutable, hashable; JSON both ways.

    Attributes
    ----------
    operator : str
        Name of the constructor ("matmul", "conv2d", ...): for people and code generators, not for models.
    axes : tuple of Axis
        Loop order of the reference program.
    reads, write : Access
        Operands and result of the reduction. Epilogue operands are in `epilogue_reads`.
    body : str
        Statement inside the nest: "multiply_add" (product of all reads, summed), "add" (one read: summed;
        two: their sum), "max" (largest, likewise), "average" (sum over the reduction axes, divided by their
        iterations; padding counts as zeros), "multiply", "copy", "relu".
    flop_per_point : int
        Floating-point (or integer) operations of one iteration: 2 for the multiply-add of two reads (n for
        n), 1 for the others, 0 for a copy.
    epilogue : tuple of str
        Fused element-wise steps on the result, in order: "bias", "add", "relu".
    epilogue_reads : tuple of Access
        Operands of the epilogue's steps that need one, in order: "bias" along the channels or columns,
        "residual" of the result's shape for "add".
    attributes : tuple of (str, value)
        The constructor's own arguments, in order (stride, padding, layout, ...), all in one normal form:
        ``CONSTRUCTORS[operator](**dict(attributes))`` of `anatune.core.operators` builds an equal workload.
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
        if self.body not in BODIES:
            raise WorkloadError(f"{self.operator}: body is {self.body!r}, expected one of {', '.join(BODIES)}")
        if not self.reads:
            raise WorkloadError(f"{self.operator}: reads is empty, expected at least one operand")
        for access in (*self.reads, self.write, *self.epilogue_reads):
            self._check_access(access, set(names))
        kinds = [axis.kind for axis in self.axes]
        if kinds != sorted(kinds, reverse=True):
            raise WorkloadError(f"{self.operator}: axes {names} mix kinds, expected spatial before reduction axes")
        written = {term.axis for terms in self.write.indices for term in terms}
        spatial = {axis.name for axis in self.axes if axis.kind == "spatial"}
        if written != spatial:
            raise WorkloadError(
                f"{self.operator}: spatial axes are {sorted(spatial)}, expected those that index "
                f"{self.write.tensor}: {sorted(written)}"
            )

    def _check_access(self, access: Access, names: set[str]) -> None:
        """Raise WorkloadError unless `access` fits the axes."""
        label = f"{self.operator}: tensor {access.tensor!r}"
        if access.dtype not in DTYPE_BYTES:
            raise WorkloadError(f"{label} has dtype {access.dtype!r}, expected one of {', '.join(DTYPE_BYTES)}")
        if not len(access.shape) == len(access.indices) == len(access.offsets):
            raise WorkloadError(f"{label} has shape {access.shape}, expected one index and one offset per dimension")
        if any(extent < 1 for extent in access.shape):
            raise WorkloadError(f"{label} has shape {access.shape}, expected extents >= 1; give the real sizes")
        unknown = {term.axis for terms in access.indices for term in terms} - names
        if unknown:
            raise WorkloadError(f"{label} uses unknown axes {sorted(unknown)}, expected some of {sorted(names)}")

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
    def output_axes(self) -> tuple[str, ...]:
        """Spatial axis names in the order of the result's memory: the last one is contiguous."""
        return tuple(term.axis for terms in self.write.indices for term in terms)

    @property
    def dtype(self) -> str:
        """Element dtype of the operands."""
        return self.reads[0].dtype

    @property
    def dtypes(self) -> frozenset[str]:
        """Element dtypes of all tensors, the epilogue's included."""
        return frozenset(access.dtype for access in (*self.reads, *self.epilogue_reads, self.write))

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
        """Bytes that must cross the DRAM boundary once: every touched element read, the result written."""
        reads = {
            access.tensor: access.touched_elements(self.extents) * DTYPE_BYTES[access.dtype]
            for access in (*self.reads, *self.epilogue_reads)
        }
        return sum(reads.values()) + self.write.num_bytes

    @property
    def attribute(self) -> dict[str, Attribute]:
        """The constructor's arguments by name."""
        return dict(self.attributes)

    def tensor(self, name: str) -> Access:
        """Return the access of an operand, an epilogue's operand or the result by its tensor's name.

        Raises
        ------
        UnknownNameError
            If no tensor of the workload has that name.
        """
        accesses = {access.tensor: access for access in (*self.reads, self.write, *self.epilogue_reads)}
        if name not in accesses:
            raise UnknownNameError(f"{self.operator} has no tensor {name!r}, expected one of {', '.join(accesses)}")
        return accesses[name]

    def to_json(self) -> str:
        """Return the workload as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Workload:
        """Return the workload that `to_json` wrote.

        Raises
        ------
        WorkloadError
            If `text` is not JSON, or not that of a workload.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except WorkloadError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WorkloadError(f"workload JSON: {error}; expected the text that Workload.to_json writes") from error

    @cached_property
    def key(self) -> str:
        """Stable content hash (16 hexadecimal digits) of everything that defines the computation."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def describe(self) -> str:
        """One line: operator, axes with extents, dtype, GFLOP."""
        loops = " ".join(f"{axis.name}={axis.extent}" for axis in self.axes)
        tail = "".join(f"+{step}" for step in self.epilogue)
        return f"{self.operator}{tail} {loops} {self.dtype} ({self.flop / 1e9:.4g} GFLOP)"
