"""Register tiles: what a microkernel reads, sums, fuses and writes, as numbers.

Notation
--------
row : one combination of the register factors of the spatial axes that are not vectorised.
vector : `lanes` neighbours along the SIMD axis; the last one of a tile may be partly used.
step : one unrolled iteration of the reduction.
group : neighbours along the reduction whose products one instruction sums in a step (see `cpu.dot`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

__all__ = [
    "Ahead",
    "Bases",
    "EpilogueOperand",
    "Microkernel",
    "Operand",
    "Result",
    "Stream",
    "Tile",
]

Tile = dict[tuple[int, int], str]
"""(row, vector) -> name of its accumulator."""


@dataclass(frozen=True)
class Ahead:
    """Where the next call's rows lie: the hardware follows a row, but not many rows that are read side by side.

    Attributes
    ----------
    distance : int
        From the address of this call to that of the next one.
    pitch, num_rows : int
        Rows that are equally far apart; 0 rows: neighbours in memory, one line a step holds them.
    group_pitch : int
        From one such group of rows to the next.
    """

    distance: int
    pitch: int = 0
    num_rows: int = 0
    group_pitch: int = 0


@dataclass(frozen=True)
class Stream:
    """A share of the block that later calls will read, asked for by each call that reads the present one.

    Attributes
    ----------
    num_lines : int
        Lines that one call asks for.
    distance : int
        From this call's address to the lines of the first call that reads the same block, elements.
    shares : dict
        Cache loop, or axis of a loop of calls, whose iterations read the same block -> elements from one iteration's
        lines to the next one's.
    """

    num_lines: int
    distance: int
    shares: dict[Hashable, int] = field(compare=False)


@dataclass(frozen=True)
class Operand:
    """How one operand is read.

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
        Lanes that are not used may lie outside the buffer.
    group : int
        Elements of a step that are read together: a vector has so many for each lane (then `lane_stride` is `group`), a
        broadcast so many for all lanes.
    flips : bool
        The highest bit of each 8-bit element is flipped.
    used : tuple of int
        How many of each step's group exist, where that differs; zeros take the place of the others.
    zero_point : int
        Stored number that means zero.
    ahead : Ahead, optional
        Rows of the next call to ask for while this one computes.
    fresh : tuple of int
        Lines of the next call that this one does not read, from this call's address (see `prefetch.new_lines`).
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
    ahead: Ahead | None = None
    fresh: tuple[int, ...] = ()
    stream: Stream | None = None


@dataclass(frozen=True)
class Result:
    """How the result is written (see `epilogue`).

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
    """Operand of a fused step: lane stride (0: one element for all lanes) and the address of each row."""

    dtype: str
    lane_stride: int
    rows: tuple[int, ...]


class Bases(NamedTuple):
    """LLVM's names of the addresses where a microkernel's tensors begin in a call.

    Attributes
    ----------
    operands, epilogue : list of str
        Of the operands, and of those of fused steps.
    result : str
    start : str
        Of the numbers that accumulators start from, if any.
    sums : str
        Of partial sums, where they have a buffer of their own.
    """

    operands: list[str]
    result: str
    epilogue: list[str]
    start: str
    sums: str


@dataclass(frozen=True)
class Microkernel:
    """Everything that the code of one microkernel depends on.

    Attributes
    ----------
    name : str
    lanes : int
        Elements of a vector.
    size : int
        Elements along the SIMD axis, of which the last vector may be partly used (1 or more).
    body : str
        The workload's statement, see `Workload.body`.
    accumulator : str
        Dtype of the sums.
    operands : tuple of Operand
    result : Result
    trips : tuple of int
        Iterations of each inner loop, outer to inner.
    moving : tuple of int
        Inner loops whose first and last iteration are arguments (padding is left out).
    skipped : frozenset of (int, int)
        (row, step) pairs that are left out: they meet nothing but padding.
    num_steps : int
        Unrolled steps.
    is_partial : bool
        Sums go on from what the result holds, unless the call is the first one (flag bit 0).
    reduces : bool
        Whether there is a reduction.
    simd_reduction : bool
        Whether the SIMD axis is summed over.
    tail : int
        SIMD reductions: lanes at and past this position of the SIMD loop are left out; 0: none.
    tail_loops : bool
        Whether the innermost loop runs along the SIMD axis (else that loop has one iteration).
    count : int
        Divisor of the sums ("average").
    epilogue : tuple of (str, EpilogueOperand or None)
        Fused steps.
    start : tuple of int, optional
        Address of each row's int32 numbers that accumulators start from, bytes; None: they start from zero.
    dot : str
        Instruction that sums the products of a group; empty: groups have one element.
    tile_rows : (int, int)
        On AMX's tiles: rows of the largest microkernel beside it, whose tiles have the same shape (see `program.amx`),
        and elements from one row of the broadcast operand to the next.
    registers : str
        Letter of the vector registers in inline assembly ("v", "x", "w"): keeps accumulators in registers between
        unrolled steps. Empty: they may not fit.
    num_registers : int
        Vector registers of the processor.
    chains : int
        Accumulators of each element in turn, where a tile has too few for the latency of an addition; they are added
        up behind the unrolled steps.
    numbers : tuple of str
        Symbols of addresses, strides and trips that are known at run time (`Size`).
    attributes : str
        Of its function, see `emit.kernels.vector_attributes`.
    """

    name: str
    lanes: int
    size: int
    body: str
    accumulator: str
    operands: tuple[Operand, ...]
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
        """Whether partial sums are kept in a buffer of the accumulator's dtype instead of the narrower result."""
        return self.is_partial and self.result.dtype != self.accumulator

    @property
    def num_vectors(self) -> int:
        """Vectors of the tile along the SIMD axis."""
        return 1 if self.simd_reduction else -(-self.size // self.lanes)

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """Every row and vector."""
        return [(row, vector) for row in range(len(self.result.rows)) for vector in range(self.num_vectors)]

    def used_lanes(self, vector: int) -> int:
        """Return how many lanes of a vector hold elements of the tile."""
        return min(self.lanes, self.size - vector * self.lanes)

    def sums(self, bases: Bases) -> tuple[str, Result]:
        """Return where partial sums are kept: the result, or a buffer of the accumulator's dtype with its addresses."""
        if self.keeps_sums:
            return bases.sums, replace(self.result, dtype=self.accumulator)
        return bases.result, self.result
