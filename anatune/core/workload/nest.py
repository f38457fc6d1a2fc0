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

import msgspec

from anatune.core.frozen import FrozenDict
from anatune.core.workload.access import ACCUMULATOR_DTYPE, DTYPE_BYTES, Access, Axis, Term
from anatune.core.workload.kernels import KERNELS
from anatune.core.workload.nest_rules import BODIES, check_nest
from anatune.core.workload.number_formats import FACTOR_STEPS, format_word, needs_matrix_units
from anatune.decoding import from_json
from anatune.errors import UnknownNameError, WorkloadError

__all__ = ["ACCUMULATOR_DTYPE", "BODIES", "DTYPE_BYTES", "Access", "Attribute", "Axis", "Term", "Workload"]

Attribute = int | str | bool | tuple[int | str | tuple[int, ...], ...]


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, cache_hash=True):
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
        iterations; padding counts as zeros), "multiply", "copy", "relu"; or one of `kernels.KERNELS`.
    flop_per_point : int
        Floating-point (or integer) operations of one iteration: 2 for the multiply-add of two reads (n for
        n), 1 for the others, 0 for a copy.
    epilogue : tuple of str
        Fused element-wise steps on the result, in order: "bias", "add", "relu"; of 8-bit operands "scale" and
        "requantize" (see `anatune.core.workload.number_formats`).
    epilogue_reads : tuple of Access
        Operands of the epilogue's steps that need one, in order: "bias" along the channels or columns,
        "residual" of the result's shape for "add", "scale" and "multiplier" (of "requantize") like the bias.
    attributes : tuple of (str, value)
        The constructor's own arguments, in order (stride, padding, layout, ...), all in one normal form:
        ``CONSTRUCTORS[operator](**dict(attributes))`` of `anatune.core.workload.operators` builds an equal workload.
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
        check_nest(
            self.operator,
            self.axes,
            self.reads,
            self.write,
            self.body,
            self.flop_per_point,
            self.epilogue,
            self.epilogue_reads,
        )

    def __repr__(self) -> str:
        return f"Workload({self.describe()})"

    @cached_property
    def extents(self) -> Mapping[str, int]:
        """Axis name -> extent, in loop order."""
        return FrozenDict({axis.name: axis.extent for axis in self.axes})

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
        """Element dtype of the operands; of two different ones the first one's."""
        return self.reads[0].dtype

    @property
    def dtypes(self) -> frozenset[str]:
        """Element dtypes of all tensors, the epilogue's included."""
        return frozenset(access.dtype for access in self.tensors)

    @property
    def formats(self) -> str:
        """Dtypes of the operands and the result in one word, "uint8xint8:float32", as `--dtype` takes them."""
        if self.is_kernel and KERNELS[self.body].exact:  # operands of one word, which says what bytes mean
            return f"{str(self.attribute['dtype']).partition(':')[0]}:{self.write.dtype}"
        if self.body != "multiply_add":
            narrows = self.is_kernel and self.write.dtype != self.dtype
            return f"{self.dtype}:{self.write.dtype}" if narrows else self.dtype
        return format_word([read.dtype for read in self.reads], self.write.dtype, self.epilogue)

    @property
    def is_quantised(self) -> bool:
        """Whether there is more than sums of one dtype's products: uint8 x int8, zero points, factors."""
        return (
            "uint8" in self.dtypes
            or any(access.zero_point for access in self.tensors)
            or any(step in FACTOR_STEPS for step in self.epilogue)
        )

    @property
    def is_kernel(self) -> bool:
        """Whether its body is one of `kernels.KERNELS`, which only templates that know it have code for."""
        return self.body in KERNELS

    @property
    def needs_matrix_units(self) -> bool:
        """Whether its number formats are for matrix units alone: see `number_formats.needs_matrix_units`."""
        return needs_matrix_units([read.dtype for read in self.reads], self.write.dtype)

    @property
    def operands(self) -> tuple[Access, ...]:
        """What is read: the nest's operands, then the epilogue's."""
        return (*self.reads, *self.epilogue_reads)

    @property
    def tensors(self) -> tuple[Access, ...]:
        """The operands, the result last."""
        return (*self.operands, self.write)

    @property
    def further(self) -> tuple[Access, ...]:
        """Results beside `write`, of bodies that have some: factors of what is quantised, a sum."""
        kernel = KERNELS.get(self.body)
        return () if kernel is None or kernel.further is None else kernel.further(self.write, self.extents)

    @property
    def multiplies(self) -> bool:
        """Whether matrix units, where there are some, multiply its operands: kernels say so in their table."""
        kernel = KERNELS.get(self.body)
        return kernel is None or kernel.multiplies

    @property
    def num_reduced(self) -> int:
        """Iterations of the reduction axes."""
        return math.prod(axis.extent for axis in self.reduction_axes)

    @property
    def num_points(self) -> int:
        """Iterations of the whole nest."""
        return math.prod(axis.extent for axis in self.axes)

    @property
    def flop(self) -> int:
        """Operations of the whole nest (a multiply-add is two), epilogue left out."""
        kernel = KERNELS.get(self.body)
        if kernel is not None and kernel.iterations is not None:
            return kernel.iterations(self.extents, self.attribute) * self.flop_per_point
        return self.num_points * self.flop_per_point

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must cross the DRAM boundary once: every touched element read, the result written."""
        kernel = KERNELS.get(self.body)
        written = self.write.num_bytes + sum(access.num_bytes for access in self.further)
        if kernel is not None and kernel.read_bytes is not None:
            return kernel.read_bytes(self.reads, self.extents, self.attribute) + written
        reads = {
            access.tensor: access.touched_elements(self.extents) * DTYPE_BYTES[access.dtype] for access in self.operands
        }
        return sum(reads.values()) + written

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
            return from_json(text, cls)
        except WorkloadError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WorkloadError(
                f"workload JSON: {error!s:.300}; expected the text that Workload.to_json writes"
            ) from error

    @cached_property
    def key(self) -> str:
        """Stable content hash (16 hexadecimal digits) of everything that defines the computation."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def describe(self) -> str:
        """One line: operator, axes with extents, dtypes, GFLOP."""
        loops = " ".join(f"{axis.name}={axis.extent}" for axis in self.axes)
        tail = "".join(f"+{step}" for step in self.epilogue)
        return f"{self.operator}{tail} {loops} {self.formats} ({self.flop / 1e9:.4g} GFLOP)"
