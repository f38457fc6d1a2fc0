"""Register tiles: the data that a microkernel reads, sums, fuses and writes, as numbers.

Notation
--------
row : one combination of the register factors of the spatial axes that are not vectorised.
vector : `lanes` neighbours along the SIMD axis; the last one of a tile can be partly used.
step : one unrolled iteration of the reduction.
group : neighbours along the reduction whose products one instruction sums in a step (see `cpu.dot`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

__all__ = ["Bases", "EpilogueOperand", "Microkernel", "Result", "RowsAhead", "Stream", "Tile", "TileOperand"]

Tile = dict[tuple[int, int], str]
"""(row, vector) -> name of its accumulator."""


@dataclass(frozen=True)
class RowsAhead:
    """Positions of the rows of the next call, for prefetches: the hardware follows one row, but not many side by side.

    Attributes
    ----------
    distance : int
        From the address of this call to that of the next one.
    rows : tuple of int
        Distance of each row from the first one; empty: neighbours in memory, one line for each step holds them.
    level : int
        Level of the cache that receives them, 1 or 2.
    """

    distance: int
    rows: tuple[int, ...] = ()
    level: int = 1


@dataclass(frozen=True)
class Stream:
    """A share of the next block, which each call that reads the present block prefetches.

    Attributes
    ----------
    num_lines : int
        Lines that one call prefetches.
    distance : int
        Elements from the address of this call to the lines of the first call that reads the same block.
    shares : dict
        Cache loop, or axis of a loop of calls, whose iterations read the same block -> elements from the lines of one
        iteration to those of the next.
    far_rows : int
        0, or for an extent that is known at run time: least rows of a call that reads blocks alone for which it
        prefetches far ahead. Microkernels then take how many halves of the block they prefetch as an argument.
    """

    num_lines: int
    distance: int
    shares: dict[Hashable, int] = field(compare=False)
    far_rows: int = 0


@dataclass(frozen=True)
class TileOperand:
    """The accesses of a microkernel to one operand.

    Attributes
    ----------
    dtype : str
    lane_stride : int
        Elements between lanes: 0 broadcasts one element, 1 loads a vector, others gather.
    rows : tuple of int
        Address of each row.
    loops : tuple of int
        Stride of each inner loop, outer to inner.
    steps : tuple of int
        Address of each unrolled step.
    masked : bool
        True if lanes that are not used can be outside the buffer.
    group : int
        Number of elements of a step that are read together: for each lane of a vector (`lane_stride` is then `group`),
        or in a broadcast to all lanes.
    flips : bool
        True if the highest bit of each 8-bit element is flipped.
    used : tuple of int
        Number of existing elements in the group of each step, if that differs; zeros replace the others.
    zero_point : int
        Stored number that means zero.
    ahead : RowsAhead, optional
        Rows of the next call to prefetch.
    fresh : tuple of int
        Lines of the next call that this one does not read, from the address of this call (see `prefetch.new_lines`).
    stream : Stream, optional
        Packed elements that come from beyond the L2 cache.
    """

    dtype: str
    lane_stride: int
    rows: tuple[int, ...]
    loops: tuple[int, ...]
    steps: tuple[int, ...]
    masked: bool
    group: int = 1
    flips: bool = False
    used: tuple[int, ...] = ()
    zero_point: int = 0
    ahead: RowsAhead | None = None
    fresh: tuple[int, ...] = ()
    stream: Stream | None = None


@dataclass(frozen=True)
class Result:
    """The stores of a microkernel to the result (see `epilogue`).

    Attributes
    ----------
    dtype : str
    lane_stride : int
        Elements between lanes.
    rows : tuple of int
        Address of each row.
    groups : tuple of tuple of int
        Rows that are neighbours in memory, for a transposed store; empty: element by element.
    zero_point : int
        Stored number that means zero.
    """

    dtype: str
    lane_stride: int
    rows: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    zero_point: int = 0


@dataclass(frozen=True)
class EpilogueOperand:
    """The operand of a fused step: lane stride (0: one element for all lanes) and the address of each row."""

    dtype: str
    lane_stride: int
    rows: tuple[int, ...]


class Bases(NamedTuple):
    """LLVM names of the addresses at which the tensors of a microkernel begin in a call.

    Attributes
    ----------
    operands, epilogue : list of str
        Addresses of the operands, and of those of fused steps.
    result : str
    start : str
        Address of the initial values of accumulators, if any.
    sums : str
        Address of partial sums, if they have a separate buffer.
    """

    operands: list[str]
    result: str
    epilogue: list[str]
    start: str
    sums: str


@dataclass(frozen=True)
class Microkernel:
    """All data on which the code of one microkernel depends.

    Attributes
    ----------
    name : str
    lanes : int
        Elements of a vector.
    size : int
        Elements along the SIMD axis, 1 or more; the last vector can be partly used.
    body : str
        The statement of the workload, see `Workload.body`.
    accumulator : str
        Dtype of the sums.
    operands : tuple of Operand
    result : Result
    trips : tuple of int
        Iterations of each inner loop, outer to inner.
    moving : tuple of int
        Inner loops whose first and last iteration are arguments (padding is skipped).
    skipped : frozenset of (int, int)
        (row, step) pairs that are skipped because they meet padding only.
    num_steps : int
        Unrolled steps.
    is_partial : bool
        True if sums are added to those in the result, unless the call is the first one (flag bit 0).
    reduces : bool
        True if there is a reduction.
    simd_reduction : bool
        True if the SIMD axis is summed over.
    tail : int
        In SIMD reductions, lanes from this position of the SIMD loop on are masked; 0: none.
    tail_loops : bool
        True if the innermost loop runs along the SIMD axis (else that loop has one iteration).
    count : int
        Divisor of the sums ("average").
    epilogue : tuple of (str, EpilogueOperand or None)
        Fused steps.
    start : tuple of int, optional
        Address of the int32 initial values of accumulators of each row, in bytes; None: they start from zero.
    dot : str
        Instruction that sums the products of a group; empty: groups have one element.
    tile_rows : (int, int)
        On AMX tiles: rows of the largest microkernel of the pair, whose tiles have the same shape (see `program.amx`),
        and elements from one row of the broadcast operand to the next.
    registers : str
        Letter of the vector registers in inline assembly ("v", "x", "w"), which keeps accumulators in registers between
        unrolled steps. Empty: they may not fit.
    num_registers : int
        Vector registers of the processor.
    chains : int
        Accumulators of each element that take turns, if a tile has too few for the latency of an addition. They are
        added after the unrolled steps.
    numbers : tuple of str
        Symbols of addresses, strides and trips that are known at run time only (`Size`).
    attributes : str
        Attributes of its function, see `emit.kernels.vector_attributes`.
    """

    name: str
    lanes: int
    size: int
    body: str
    accumulator: str
    operands: tuple[TileOperand, ...]
    result: Result
    trips: tuple[int, ...]
    moving: tuple[int, ...] = ()
    skipped: frozenset[tuple[int, int]] = frozenset()
    num_steps: int = 1
    is_partial: bool = False
    reduces: bool = True
    simd_reduction: bool = False
    tail: int = 0
    tail_loops: bool = False
    count: int = 1
    epilogue: tuple[tuple[str, EpilogueOperand | None], ...] = ()
    start: tuple[int, ...] | None = None
    dot: str = ""
    tile_rows: tuple[int, int] = (0, 0)
    registers: str = ""
    num_registers: int = 0
    chains: int = 1
    numbers: tuple[str, ...] = ()
    attributes: str = field(default="", compare=False)

    @property
    def keeps_sums(self) -> bool:
        """True if partial sums are in a buffer of the dtype of the accumulators instead of the narrower result."""
        return self.is_partial and self.result.dtype != self.accumulator

    @property
    def num_vectors(self) -> int:
        """Vectors of the tile along the SIMD axis."""
        return 1 if self.simd_reduction else -(-self.size // self.lanes)

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """Every pair of row and vector."""
        return [(row, vector) for row in range(len(self.result.rows)) for vector in range(self.num_vectors)]

    def used_lanes(self, vector: int) -> int:
        """Return the number of lanes of a vector that hold elements of the tile."""
        return min(self.lanes, self.size - vector * self.lanes)

    def sums(self, bases: Bases) -> tuple[str, Result]:
        """Return (address, layout) of partial sums: the result, or a buffer in the dtype of the accumulators."""
        if self.keeps_sums:
            return bases.sums, replace(self.result, dtype=self.accumulator)
        return bases.result, self.result
