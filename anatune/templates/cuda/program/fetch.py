"""Which elements of a staged tile each thread of a block copies, so that addresses cost next to nothing.

A tile is a box. Its dimensions are joined where they follow each other without gaps both in the tensor and in shared
memory; what remains are its *sides*. The threads form a box of their own that steps along the sides: all that depends
on the thread is computed once, and from one copy to the next an address moves by a constant, which fits the offset of
a load. Threads that number elements through need divisions for every element instead, and conditions (padding) that
differ from one to the next: about 9 instructions each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.core.workload.nest import DTYPE_BYTES, Access
from anatune.templates.cuda.rules import MAX_FETCH_BYTES

__all__ = ["Guard", "Level", "Side", "StagedTile", "Walk", "fetch_width", "guards_of", "sides_of", "walk_of"]

Level = tuple[str, str]
"""(axis, level)."""

_COPY_COST = 4.0
"""Issue slots of a copy: load, store, what is left of addresses and conditions."""
_BRANCH_COST = 1.0
"""Of a condition on the thread, for a whole tile."""
_LINE_BYTES = 128
"""A warp's load takes a cycle for each line that it touches. Source: [Accel-Sim] L1."""
_WARP = 32


class Guard(NamedTuple):
    """On which sides of a dimension positions may lie outside the tensor: before its first one, behind its last one."""

    before: bool
    behind: bool


class Side(NamedTuple):
    """Dimensions of a tensor that a tile's elements follow without gaps, as one.

    Attributes
    ----------
    first, last : int
        The dimensions; positions count along `last`.
    span : int
        Positions.
    pitch : int
        Elements from one position to the next in shared memory.
    """

    first: int
    last: int
    span: int
    pitch: int


class Walk(NamedTuple):
    """How the threads of a block copy a tile.

    Attributes
    ----------
    sides : tuple of Side
        Outer to inner; those with one position are left out.
    width : int
        Elements of a copy, along the last side.
    box : tuple of int
        Threads along each side.
    counts : tuple of int
        Copies of a thread along each side; behind the side's end in the last of them, it may have none.
    """

    sides: tuple[Side, ...]
    width: int
    box: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def threads(self) -> int:
        """Threads that copy, the first ones of the block."""
        return math.prod(self.box)

    @property
    def copies(self) -> int:
        """Most copies of one thread."""
        return math.prod(self.counts)

    def positions(self, at: int) -> int:
        """Return the positions of side number `at`, in copies."""
        return self.sides[at].span // (self.width if at == len(self.sides) - 1 else 1)


class StagedTile(NamedTuple):
    """One staged tensor.

    Attributes
    ----------
    access : Access
    spans : tuple of int
        Positions of each dimension.
    pitches : tuple of int
        Elements from one position of a dimension to the next, in shared memory.
    base : int
        First element in the block's shared memory.
    size : int
        Elements that it takes there, gaps included.
    sides : tuple of Side
        Its dimensions, joined where there are no gaps.
    fetch : int
        Elements that a thread copies at once.
    threads : int
        Threads of the block.
    padding : tuple of Guard
        On which sides of a dimension positions lie outside the tensor although no loop passes its axis's end.
    guards : tuple of Guard
        On which sides they may lie outside at all: where loops pass the ends of guarded axes, too.
    load : int
        Elements that a thread reads from the tile at once.
    load_level : (axis, level) or None
        The register loop along which they follow each other; None: one by one.
    """

    access: Access
    spans: tuple[int, ...]
    pitches: tuple[int, ...]
    base: int
    size: int
    sides: tuple[Side, ...]
    fetch: int
    threads: int
    padding: tuple[Guard, ...]
    guards: tuple[Guard, ...]
    load: int
    load_level: Level | None

    @property
    def walk(self) -> Walk:
        """How the block's threads copy it."""
        return walk_of(self.sides, self.fetch, self.threads, DTYPE_BYTES[self.access.dtype])

    @property
    def along_reduction(self) -> bool:
        """Whether the elements that a thread reads at once belong to consecutive reduction steps."""
        return self.load_level is not None and self.load_level[1] == "k2"

    def stride(self, axis: str) -> int:
        """Return how far one iteration of `axis` moves the address in the tile, elements."""
        return sum(
            term.coefficient * pitch
            for terms, pitch in zip(self.access.indices, self.pitches, strict=True)
            for term in terms
            if term.axis == axis
        )


def guards_of(access: Access, extents: Mapping[str, int]) -> tuple[Guard, ...]:
    """Return on which sides of each dimension positions lie outside, for so many iterations of each axis."""
    found = []
    for terms, offset, extent in zip(access.indices, access.offsets, access.shape, strict=True):
        last = offset + sum(term.coefficient * (extents[term.axis] - 1) for term in terms)
        found.append(Guard(offset < 0, last >= extent))
    return tuple(found)


def sides_of(access: Access, spans: Sequence[int], pitches: Sequence[int], guarded: Sequence[bool]) -> list[Side]:
    """Return the sides of a tile, outer to inner, those with one position too; arguments as `StagedTile`'s."""
    found: list[Side] = []
    whole = False  # the innermost side so far covers its dimensions
    for d in range(len(spans) - 1, -1, -1):
        covers = spans[d] == access.shape[d] and not guarded[d]
        inner = found[-1] if found else None
        if inner and whole and not guarded[d] and pitches[d] == inner.pitch * inner.span:
            found[-1] = Side(d, inner.last, spans[d] * inner.span, inner.pitch)
        else:
            found.append(Side(d, d, spans[d], pitches[d]))
        whole = covers
    return found[::-1]


def fetch_width(
    asked: int, access: Access, sides: Sequence[Side], steps: Sequence[int], guarded: Sequence[bool]
) -> int:
    """Return the elements of a copy: what is asked for, or 1 where vectors would be broken or misaligned.

    Parameters
    ----------
    asked : int
    access : Access
    sides : sequence of Side
        As `sides_of` returns them.
    steps : sequence of int
        For each dimension, what divides the positions at which tiles begin; 0 if all begin at the same one.
    guarded : sequence of bool
        Whether positions of a dimension may lie outside the tensor.
    """
    width = asked
    if width <= 1 or width & (width - 1) or width * DTYPE_BYTES[access.dtype] > MAX_FETCH_BYTES or not sides:
        return 1
    if access.dtype == "int8" and any(guarded):
        width = min(width, 4)  # TVM 0.27 cannot print a vector of eight zeros of one byte
    row = sides[-1]
    inner = math.prod(access.shape[row.first + 1 :])
    aligned = row.span % width == 0 and access.shape[row.first] * inner % width == 0
    aligned = aligned and access.offsets[row.first] * inner % width == 0 and steps[row.first] * inner % width == 0
    return width if aligned and all(side.pitch % width == 0 for side in sides[:-1]) else 1


def walk_of(sides: Sequence[Side], width: int, threads: int, element_bytes: int) -> Walk:
    """Return how `threads` threads copy a tile with these sides in vectors of `width` elements."""
    row = sides[-1] if sides else None
    long = tuple(side for side in sides if side.span > 1)
    is_dense = bool(long) and long[-1] is row
    spans = [side.span for side in long]
    if is_dense:
        spans[-1] //= width
    box = _best_box(tuple(spans), threads, width * element_bytes if is_dense else 0)
    return Walk(long, width, box, tuple(-(-span // count) for span, count in zip(spans, box, strict=True)))


@functools.lru_cache(maxsize=4096)
def _best_box(spans: tuple[int, ...], threads: int, copy_bytes: int) -> tuple[int, ...]:
    """Return the threads along each side that make copying cheapest.

    `copy_bytes` is 0 where neighbours along the last side are no neighbours in memory.
    """
    found = [(_cost(spans, box, threads, copy_bytes), box) for box in _boxes(spans, threads)]
    # among equals, threads follow each other along the inner sides
    return min(found, key=lambda entry: (entry[0], [-count for count in entry[1][::-1]]))[1]


def _boxes(spans: tuple[int, ...], threads: int) -> list[tuple[int, ...]]:
    """Return the boxes of at most `threads` threads: for each number of copies along a side the smallest one."""
    if not spans:
        return [()]
    if len(spans) == 1:
        copies = -(-spans[0] // min(threads, spans[0]))
        return [(-(-spans[0] // copies),)]
    counts = {-(-spans[-1] // copies) for copies in range(1, spans[-1] + 1)}
    return [(*outer, count) for count in counts if count <= threads for outer in _boxes(spans[:-1], threads // count)]


def _cost(spans: tuple[int, ...], box: tuple[int, ...], threads: int, copy_bytes: int) -> float:
    """Return about the issue slots and cycles of a warp that copies a tile."""
    if not spans:
        return 0.0
    copies = math.prod(-(-span // count) for span, count in zip(spans, box, strict=True))
    lanes = min(_WARP, math.prod(box))
    lines = max(lanes * copy_bytes / _LINE_BYTES, lanes / box[-1]) if copy_bytes else float(lanes)
    branches = (math.prod(box) < threads) + sum(span % count > 0 for span, count in zip(spans, box, strict=True))
    return copies * (_COPY_COST + lines) + branches * _BRANCH_COST
