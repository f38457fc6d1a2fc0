"""The order in which the threads of a block copy a staged tile, chosen so that addresses cost almost nothing.

A tile is a box. Dimensions that follow each other without gaps, both in the tensor and in shared memory, are joined;
the results are the *sides* of the tile. The threads form a smaller box that steps along the sides. All that depends on
the thread is computed once. From one copy to the next an address changes by a constant, which fits in the offset of a
load. If threads numbered the elements instead, every element would need divisions, and its own conditions for padding:
about 9 instructions each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.core.workload.nest import DTYPE_BYTES, Access
from anatune.templates.cuda.rules import MAX_FETCH_BYTES

__all__ = ["CopyWalk", "Guard", "Level", "Side", "StagedTile", "fetch_width", "guards_of", "sides_of", "walk_of"]

Level = tuple[str, str]
"""A pair (axis, level)."""

_COPY_COST = 4.0
"""Issue slots of a copy: load, store, and the remaining instructions for addresses and conditions."""
_BRANCH_COST = 1.0
"""Issue slots of a condition on the thread, for a whole tile."""
_LINE_BYTES = 128
"""Bytes of a cache line. A load of a warp takes a cycle for each line that it touches. Source: [Accel-Sim] L1."""
_WARP = 32


class Guard(NamedTuple):
    """The ends of a dimension where positions may lie outside the tensor: before the first one, behind the last one."""

    before: bool
    behind: bool


class Side(NamedTuple):
    """Dimensions of a tensor that a tile covers without gaps, joined to one.

    Attributes
    ----------
    first, last : int
        The first and last of these dimensions. Positions count along `last`.
    span : int
        Number of positions.
    pitch : int
        Elements from one position to the next in shared memory.
    """

    first: int
    last: int
    span: int
    pitch: int


class CopyWalk(NamedTuple):
    """The copies of a tile by the threads of a block.

    Attributes
    ----------
    sides : tuple of Side
        Sides of the tile, outer to inner. Sides with one position are left out.
    width : int
        Elements of a copy, along the last side.
    box : tuple of int
        Threads along each side.
    counts : tuple of int
        Copies of a thread along each side. The last of them may lie beyond the end of the side for some threads.
    """

    sides: tuple[Side, ...]
    width: int
    box: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def threads(self) -> int:
        """Number of threads that copy. They are the first ones of the block."""
        return math.prod(self.box)

    @property
    def copies(self) -> int:
        """Largest number of copies of a thread."""
        return math.prod(self.counts)

    def positions(self, side: int) -> int:
        """Return the number of copies along a side."""
        return self.sides[side].span // (self.width if side == len(self.sides) - 1 else 1)


class StagedTile(NamedTuple):
    """A tensor's tile in shared memory.

    Attributes
    ----------
    access : Access
    spans : tuple of int
        Positions along each dimension.
    pitches : tuple of int
        Elements in shared memory from one position to the next, for each dimension.
    base : int
        First element in the shared memory of the block.
    size : int
        Elements in shared memory, including gaps.
    sides : tuple of Side
        Dimensions of the tile, joined if there are no gaps between them.
    fetch : int
        Elements that a thread copies at once.
    threads : int
        Threads of the block.
    padding : tuple of Guard
        Ends of each dimension where positions lie outside the tensor although all axes stay inside their extents.
    guards : tuple of Guard
        Ends of each dimension where positions may lie outside, including the loops beyond the ends of guarded axes.
    load : int
        Elements that a thread reads from the tile at once.
    load_level : (axis, level) or None
        The register loop along which these elements follow each other. None: a thread reads one at a time.
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
    def walk(self) -> CopyWalk:
        """The copies of the tile by the threads of the block."""
        return walk_of(self.sides, self.fetch, self.threads, DTYPE_BYTES[self.access.dtype])

    @property
    def along_reduction(self) -> bool:
        """True if the elements that a thread reads at once belong to consecutive iterations of the reduction."""
        return self.load_level is not None and self.load_level[1] == "k2"

    def stride(self, axis: str) -> int:
        """Return the number of elements of the tile by which one iteration of `axis` moves the address."""
        return sum(
            term.coefficient * pitch
            for terms, pitch in zip(self.access.indices, self.pitches, strict=True)
            for term in terms
            if term.axis == axis
        )


def guards_of(access: Access, extents: Mapping[str, int]) -> tuple[Guard, ...]:
    """Return the ends of each dimension where positions lie outside the tensor, given the iterations of each axis."""
    guards = []
    for terms, offset, extent in zip(access.indices, access.offsets, access.shape, strict=True):
        last = offset + sum(term.coefficient * (extents[term.axis] - 1) for term in terms)
        guards.append(Guard(offset < 0, last >= extent))
    return tuple(guards)


def sides_of(access: Access, spans: Sequence[int], pitches: Sequence[int], guarded: Sequence[bool]) -> list[Side]:
    """Return all sides of a tile, outer to inner, including those with one position. Arguments: see `StagedTile`."""
    sides: list[Side] = []
    whole = False  # whether the innermost side so far covers its dimensions
    for d in range(len(spans) - 1, -1, -1):
        covers = spans[d] == access.shape[d] and not guarded[d]
        inner = sides[-1] if sides else None
        if inner and whole and not guarded[d] and pitches[d] == inner.pitch * inner.span:
            sides[-1] = Side(d, inner.last, spans[d] * inner.span, inner.pitch)
        else:
            sides.append(Side(d, d, spans[d], pitches[d]))
        whole = covers
    return sides[::-1]


def fetch_width(
    requested: int, access: Access, sides: Sequence[Side], steps: Sequence[int], guarded: Sequence[bool]
) -> int:
    """Return the elements of a copy: the requested number, or 1 if vectors would be cut or misaligned.

    Parameters
    ----------
    requested : int
    access : Access
    sides : sequence of Side
        Sides from `sides_of`.
    steps : sequence of int
        For each dimension, a divisor of the positions at which tiles begin; 0 if all begin at the same position.
    guarded : sequence of bool
        Whether positions of a dimension may lie outside the tensor.
    """
    width = requested
    if width <= 1 or width & (width - 1) or width * DTYPE_BYTES[access.dtype] > MAX_FETCH_BYTES or not sides:
        return 1
    if access.dtype == "int8" and any(guarded):
        width = min(width, 4)  # TVM 0.27 cannot print a vector of eight zeros of one byte
    row = sides[-1]
    inner = math.prod(access.shape[row.first + 1 :])
    aligned = row.span % width == 0 and access.shape[row.first] * inner % width == 0
    aligned = aligned and access.offsets[row.first] * inner % width == 0 and steps[row.first] * inner % width == 0
    return width if aligned and all(side.pitch % width == 0 for side in sides[:-1]) else 1


def walk_of(sides: Sequence[Side], width: int, threads: int, element_bytes: int) -> CopyWalk:
    """Return the copies of a tile with these sides by `threads` threads, in vectors of `width` elements."""
    row = sides[-1] if sides else None
    long = tuple(side for side in sides if side.span > 1)
    is_dense = bool(long) and long[-1] is row
    spans = [side.span for side in long]
    if is_dense:
        spans[-1] //= width
    box = _best_box(tuple(spans), threads, width * element_bytes if is_dense else 0)
    return CopyWalk(long, width, box, tuple(-(-span // count) for span, count in zip(spans, box, strict=True)))


@functools.lru_cache(maxsize=4096)
def _best_box(spans: tuple[int, ...], threads: int, copy_bytes: int) -> tuple[int, ...]:
    """Return the threads along each side for which copying is cheapest.

    `copy_bytes` is 0 if neighbours along the last side are not neighbours in memory.
    """
    boxes = [(_cost(spans, box, threads, copy_bytes), box) for box in _boxes(spans, threads)]
    # among equal boxes, prefer the one with the most threads along inner sides
    return min(boxes, key=lambda entry: (entry[0], [-count for count in entry[1][::-1]]))[1]


def _boxes(spans: tuple[int, ...], threads: int) -> list[tuple[int, ...]]:
    """Return the boxes of at most `threads` threads. For each number of copies along a side, take the smallest box."""
    if not spans:
        return [()]
    if len(spans) == 1:
        copies = -(-spans[0] // min(threads, spans[0]))
        return [(-(-spans[0] // copies),)]
    counts = {-(-spans[-1] // copies) for copies in range(1, spans[-1] + 1)}
    return [(*outer, count) for count in counts if count <= threads for outer in _boxes(spans[:-1], threads // count)]


def _cost(spans: tuple[int, ...], box: tuple[int, ...], threads: int, copy_bytes: int) -> float:
    """Return an estimate of the issue slots and cycles in which a warp copies a tile."""
    if not spans:
        return 0.0
    copies = math.prod(-(-span // count) for span, count in zip(spans, box, strict=True))
    lanes = min(_WARP, math.prod(box))
    lines = max(lanes * copy_bytes / _LINE_BYTES, lanes / box[-1]) if copy_bytes else float(lanes)
    branches = (math.prod(box) < threads) + sum(span % count > 0 for span, count in zip(spans, box, strict=True))
    return copies * (_COPY_COST + lines) + branches * _BRANCH_COST
