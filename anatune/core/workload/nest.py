"""Workloads: perfectly nested affine loop nests with tensor accesses.

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
    """A computation with all its sizes, number formats and fused steps: a perfectly nested affine loop nest.

    One statement ``write <- combine(write, f(reads))`` runs for each iteration; an epilogue follows. Make workloads
    with `anatune.matmul`, `anatune.conv2d` and the other constructors, or from text with `anatune.parse_workload`.
    Immutable and hashable; JSON both ways. Every axis of an access exists, every access has one index for each
    dimension, and the spatial axes, which come first, are those of `write`.

    Attributes
    ----------
    operator : str
        Name of the constructor ("matmul", "conv2d", ...); models do not depend on it.
    axes : tuple of Axis
        The loops, in the order of the reference program.
    reads, write : Access
        Operands and result of the nest. Operands of the epilogue are in `epilogue_reads`.
    body : str
        Statement inside the nest: "multiply_add" (product of all reads, summed), "add" (one read: summed; two: their
        sum), "max" (largest, in the same two forms), "average" (sum over the reduction axes, divided by their
        iterations; padding counts as zeros), "multiply", "copy", "relu", or a name in `kernels.KERNELS`.
    flop_per_point : int
        Floating-point (or integer) operations of one iteration: 2 for the multiply-add of two reads (n for n reads), 1
        for most others, 0 for a copy.
    epilogue : tuple of str
        Fused element-wise steps on the result, in order: "bias", "add", "relu", ...; 8-bit operands also "scale" and
        "requantize" (see `anatune.core.workload.number_formats`).
    epilogue_reads : tuple of Access
        Operands of those steps that have one, in order: "bias" along the channels or columns, "residual" of the
        result's shape for "add", "scale" and "multiplier" (of "requantize") like the bias.
    attributes : tuple of (str, value)
        Arguments of the constructor, in order (stride, padding, layout, ...), in one normal form:
        ``CONSTRUCTORS[operator](**dict(attributes))`` of `anatune.core.workload.operators` builds an equal workload.

    Examples
    --------
    >>> import anatune
    >>> workload = anatune.matmul(512, 4096, 1024, epilogue=("bias", "relu"))
    >>> workload.flop, workload.compulsory_bytes
    (4294967296, 27279360)
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
        """Names of the spatial axes in the order of the result's memory; the last one is contiguous."""
        return tuple(term.axis for terms in self.write.indices for term in terms)

    @property
    def dtype(self) -> str:
        """Element dtype of the operands; that of the first operand if they differ."""
        return self.reads[0].dtype

    @property
    def dtypes(self) -> frozenset[str]:
        """Element dtypes of all tensors, the epilogue's included."""
        return frozenset(access.dtype for access in self.tensors)

    @property
    def formats(self) -> str:
        """Dtypes of the operands and the result as one word that `--dtype` accepts: "uint8xint8:float32"."""
        if self.is_kernel and KERNELS[self.body].exact:  # the first part names the format of the operands
            return f"{str(self.attribute['dtype']).partition(':')[0]}:{self.write.dtype}"
        if self.body != "multiply_add":
            narrows = self.is_kernel and self.write.dtype != self.dtype
            return f"{self.dtype}:{self.write.dtype}" if narrows else self.dtype
        return format_word([read.dtype for read in self.reads], self.write.dtype, self.epilogue)

    @property
    def is_quantised(self) -> bool:
        """True if integers with scales or zero points are computed: uint8 x int8, zero points, or scaling steps."""
        return (
            "uint8" in self.dtypes
            or any(access.zero_point for access in self.tensors)
            or any(step in FACTOR_STEPS for step in self.epilogue)
        )

    @property
    def is_kernel(self) -> bool:
        """True if the body is one of `kernels.KERNELS`; only templates that know the body have code for it."""
        return self.body in KERNELS

    @property
    def needs_matrix_units(self) -> bool:
        """True if only matrix units have code for its number formats; see `number_formats.needs_matrix_units`."""
        return needs_matrix_units([read.dtype for read in self.reads], self.write.dtype)

    @property
    def operands(self) -> tuple[Access, ...]:
        """All tensors that are read: the nest's operands, then the epilogue's."""
        return (*self.reads, *self.epilogue_reads)

    @property
    def tensors(self) -> tuple[Access, ...]:
        """All tensors: the operands, then the result."""
        return (*self.operands, self.write)

    @property
    def further(self) -> tuple[Access, ...]:
        """Results in addition to `write`, for bodies that have some: scales of quantised results, or a sum."""
        kernel = KERNELS.get(self.body)
        return () if kernel is None or kernel.further is None else kernel.further(self.write, self.extents)

    @property
    def multiplies(self) -> bool:
        """True if matrix units, if the device has them, multiply its operands."""
        kernel = KERNELS.get(self.body)
        return kernel is None or kernel.multiplies

    @property
    def num_reduced(self) -> int:
        """Number of iterations of the reduction axes."""
        return math.prod(axis.extent for axis in self.reduction_axes)

    @property
    def num_points(self) -> int:
        """Number of iterations of the whole nest."""
        return math.prod(axis.extent for axis in self.axes)

    @property
    def flop(self) -> int:
        """Number of operations of the whole nest without the epilogue; a multiply-add counts as two."""
        kernel = KERNELS.get(self.body)
        if kernel is not None and kernel.iterations is not None:
            return kernel.iterations(self.extents, self.attribute) * self.flop_per_point
        return self.num_points * self.flop_per_point

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that cross the DRAM boundary at least once: every touched element is read, the result is written."""
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
        """Arguments of the constructor by name."""
        return dict(self.attributes)

    def tensor(self, name: str) -> Access:
        """Return the access to an operand, an operand of the epilogue, or the result, by the tensor's name.

        Raises
        ------
        UnknownNameError
            No tensor of the workload has this name.
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
        """Read a workload from the JSON that `to_json` wrote.

        Raises
        ------
        WorkloadError
            The text is not the JSON of a workload.
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
        """Hash (16 hexadecimal digits) of everything that defines the computation; equal in every process."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def describe(self) -> str:
        """Return one line: operator, axes with extents, dtypes and GFLOP."""
        loops = " ".join(f"{axis.name}={axis.extent}" for axis in self.axes)
        tail = "".join(f"+{step}" for step in self.epilogue)
        return f"{self.operator}{tail} {loops} {self.formats} ({self.flop / 1e9:.4g} GFLOP)"
