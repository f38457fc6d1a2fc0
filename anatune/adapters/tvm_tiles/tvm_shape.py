"""The shape of a nest that MetaSchedule tiles for CPUs: its loops, and its operands in the compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.implicit_gemm import guarded_dimensions
from anatune.core.workload.nest import Access, Workload
from anatune.templates.cpu.microkernels import vector_stride

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NO_PRODUCER = -3
"""The value of `TiledNests.producer_depth` for operands without padding; -1 means padded before the nest."""
INLINED = -2
"""The value of `TiledNests.producer_depth` for operands that are padded in the statement itself."""


class TiledNests(NamedTuple):
    """A batch of nests.

    Attributes
    ----------
    factors : (num_nests, 4 * spatial + 2 * reduction axes) int64
        The factors of each axis in the workload's order: S0 S1 S2 S3, or R0 R1.
    unroll, vectorize, parallel : (num_nests,) int64
        The most statements that are unrolled, the most iterations of a vector, and the most iterations of the parallel
        loop before the next loop is fused into it.
    write_depth : (num_nests,) int64
        The loop in which results are copied from a separate buffer, -1 if none.
    producer_depth : (num_nests,) int64
        The loop in which padded operands are computed, or `NO_PRODUCER`, `INLINED`, -1.
    """

    factors: Integers
    unroll: Integers
    vectorize: Integers
    parallel: Integers
    write_depth: Integers
    producer_depth: Integers


@dataclass(frozen=True)
class NestShape:
    """The loops ``S0 S1 R0 S2 R1 S3`` (S: all spatial axes, R: all reduction axes) around one statement.

    Parameters
    ----------
    workload : Workload
        A sum of products.
    lanes : int
        The number of elements in a vector register.
    """

    workload: Workload
    lanes: int

    @cached_property
    def padded(self) -> tuple[bool, ...]:
        """True if each operand is read from a padded copy."""
        return tuple(any(guarded_dimensions(access, self.workload)) for access in self.workload.reads)

    @cached_property
    def plain(self) -> Workload:
        """The workload on padded copies, so that every read is inside its tensor."""
        reads = tuple(_pad_access(access, self.workload) for access in self.workload.reads)
        return msgspec.structs.replace(self.workload, reads=reads, epilogue=(), epilogue_reads=())

    @cached_property
    def spatial(self) -> list[str]:
        """The names of the spatial axes; the last one is vectorised."""
        return [axis.name for axis in self.workload.spatial_axes]

    @cached_property
    def reduction(self) -> list[str]:
        """The names of the reduction axes."""
        return [axis.name for axis in self.workload.reduction_axes]

    @property
    def simd(self) -> str:
        """The vectorised axis."""
        return self.spatial[-1]

    @cached_property
    def loops(self) -> list[tuple[str, str]]:
        """The axis and level of each loop, from the outermost to the innermost."""
        levels = ("S0", "S1", "R0", "S2", "R1", "S3")
        return [(axis, level) for level in levels for axis in (self.spatial if level[0] == "S" else self.reduction)]

    @cached_property
    def columns(self) -> dict[tuple[str, str], int]:
        """The column of `TiledNests.factors` for each axis and level."""
        names = [
            (axis.name, level)
            for axis in self.workload.axes
            for level in (("S0", "S1", "S2", "S3") if axis.kind == "spatial" else ("R0", "R1"))
        ]
        return {name: at for at, name in enumerate(names)}

    @cached_property
    def reduces(self) -> NDArray[np.bool_]:
        """True if each loop runs over a reduction axis, (loops,)."""
        return np.array([axis in self.reduction for axis, _ in self.loops])

    @cached_property
    def has_windows(self) -> bool:
        """True if vectors of an operand overlap; LLVM then does not vectorise short loops."""
        return any(len(access.indices[-1]) > 1 for access in self.plain.reads if access.uses(self.simd))

    @cached_property
    def is_contiguous(self) -> bool:
        """True if neighbours along the vectorised axis are adjacent in memory, or equal, in every tensor."""
        return all(vector_stride(a, self.simd) in (0, 1) for a in (*self.plain.reads, self.plain.write))

    def trips(self, nests: TiledNests) -> Floats:
        """Return the extent of each loop, (num_nests, loops)."""
        return np.stack([nests.factors[:, self.columns[loop]] for loop in self.loops], axis=1).astype(np.float64)


def distinct_vectors(access: Access, counts: dict[str, Floats], simd: str) -> Floats:
    """Return the number of different vectors (or elements) of a tensor in tiles of the extents `counts`."""
    result: Floats = np.ones(len(next(iter(counts.values()))))
    for terms in access.indices:
        many = np.ones_like(result)
        for term in terms:
            many = many * counts[term.axis]
        if all(term.axis != simd for term in terms):
            span = 1.0 + sum(term.coefficient * (counts[term.axis] - 1.0) for term in terms)
            many = np.minimum(many, span)
        result = result * many
    return result


def _pad_access(access: Access, workload: Workload) -> Access:
    """Return the access to a padded copy, in which every read is inside the tensor."""
    shape = []
    for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True):
        last = offset + sum(term.coefficient * (workload.extents[term.axis] - 1) for term in terms)
        shape.append(size + max(0, -offset) + max(0, last + 1 - size))
    offsets = tuple(max(0, offset) for offset in access.offsets)
    return msgspec.structs.replace(access, shape=tuple(shape), offsets=offsets)
