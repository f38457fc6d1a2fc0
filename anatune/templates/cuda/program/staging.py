"""Copies of tiles from global to shared memory as TVMScript: directly, through registers, or with cp.async."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from anatune.core.workload.nest import DTYPE_BYTES
from anatune.emit.script import Script, write_affine
from anatune.templates.cuda.program.fetch import Guard, StagedTile
from anatune.templates.cuda.program.nest import CudaNest
from anatune.templates.gpu.index import join_conditions
from anatune.templates.gpu.ranged import product
from anatune.templates.gpu.writer import neutral

__all__ = ["Staging", "Terms", "digits", "inside_conditions", "origin"]

_MOST_UNROLLED_COPIES = 32
"""Most copies of a thread that are all unrolled, so that their loads overlap."""
_UNROLLED_COPIES = 16
"""Number of copies that are unrolled if there are more."""

Terms = list[tuple[str, int]]


class _Copies(NamedTuple):
    """Copies of a thread that share their conditions.

    Attributes
    ----------
    heads : list of str
        Conditions and loops around the copies.
    positions : dict of int to (Terms, int)
        Dimension -> position in the tile at which the current copy begins, as terms and a constant.
    place : str
        Number of the current copy among the copies of the thread.
    """

    heads: list[str]
    positions: dict[int, tuple[Terms, int]]
    place: str


class Staging:
    """Writes the copies of the tiles of one schedule."""

    def __init__(self, nest: CudaNest, text: Script) -> None:
        self.nest = nest
        self.text = text
        self.dtype = nest.workload.dtype

    def write_step(self, step: str, copy: Callable[[StagedTile, Sequence[Guard]], None]) -> None:
        """Write the copies of all tiles for a step. `copy` writes those of one tile, with tests for its guards.

        If axes are guarded, the copies are written twice: for blocks and steps that end inside all axes, which test for
        padding only, and for those at an edge. All threads of a block take the same branch.
        """
        tiles, inside = self.nest.tiles, inside_conditions(self.nest, step)
        if inside:
            with self.text.scope(f"if {join_conditions(inside)}:"):
                for tile in tiles:
                    copy(tile, tile.padding)
        with self.text.scope("else:" if inside else ""):
            for tile in tiles:
                copy(tile, tile.guards)

    def fetch(
        self, tile: StagedTile, step: str, guards: Sequence[Guard], *, target: str = "", offset: str = ""
    ) -> None:
        """Copy a tile of a step from global memory into shared memory, or into the array `target` of the thread."""
        lane = " + v" if tile.fetch > 1 else ""
        for piece in self._pieces(tile):
            if target:
                destination = f"{target}[{write_affine([(piece.place, tile.fetch)])}{lane}]"
            else:
                destination = f"smem[{offset}{self._shared_index(tile, piece)}{lane}]"
            element, conditions = self._element(tile, step, piece, guards, lane)
            if conditions:
                outside = neutral(self.nest.workload.body, tile.access.dtype)
                element = f"T.if_then_else({join_conditions(conditions)}, {element}, {outside})"
            with self.text.scope(*piece.heads, _vector(tile)):
                self.text.line(f"{destination} = {element}")

    def put(self, tile: StagedTile, source: str, offset: str = "") -> None:
        """Copy a tile from the array `source` of the thread into shared memory."""
        lane = " + v" if tile.fetch > 1 else ""
        for piece in self._pieces(tile):
            with self.text.scope(*piece.heads, _vector(tile)):
                index = f"{offset}{self._shared_index(tile, piece)}{lane}"
                self.text.line(f"smem[{index}] = {source}[{write_affine([(piece.place, tile.fetch)])}{lane}]")

    def copy_async(self, tile: StagedTile, step: str, guards: Sequence[Guard], offset: str) -> None:
        """Start the asynchronous copies of a tile of a step. Positions outside the tensor become zeros.

        Zero is not neutral to a maximum. Then there is no padding, and positions beyond the ends of guarded axes get
        the last elements before the end, which do not change a maximum.
        """
        num_bytes = tile.fetch * DTYPE_BYTES[self.dtype]
        name = f"cp.async.{'cg' if num_bytes == 16 else 'ca'}.shared.global"
        for piece in self._pieces(tile):
            repeats = self.nest.workload.body == "max"
            element, conditions = self._element(tile, step, piece, guards, "", repeats=repeats)
            slot = f"T.address_of(smem[{offset}{self._shared_index(tile, piece)}])"
            size = ""
            if conditions:
                size = f", T.Select({join_conditions(conditions)}, T.uint32({num_bytes}), T.uint32(0))"
            with self.text.scope(*piece.heads):
                self.text.line(f'T.evaluate(T.ptx["{name}"]({slot}, T.address_of({element}), {num_bytes}{size}))')

    # -- elements of a copy ------------------------------------------------------------------------------------

    def _pieces(self, tile: StagedTile) -> Iterator[_Copies]:
        """Yield the copies of a thread: along each side those that all threads have, then those that only some have."""
        walk = tile.walk
        is_unrolled = walk.copies <= _MOST_UNROLLED_COPIES
        parts = []
        for side_number, box in enumerate(walk.box):
            whole, partial = divmod(walk.positions(side_number), box)
            parts.append([(0, whole, 0)] * (whole > 0) + [(whole, 1, partial)] * (partial > 0))
        first = 0
        for chosen in itertools.product(*parts):
            conditions = [f"if tx < {walk.threads}:"] if walk.threads < self.nest.num_threads else []
            loops: list[str] = []
            positions: dict[int, tuple[Terms, int]] = {}
            number_terms: Terms = []
            size, budget = 1, _UNROLLED_COPIES
            for side_number in reversed(range(len(chosen))):
                start, count, partial = chosen[side_number]
                side, box = walk.sides[side_number], walk.box[side_number]
                scale = walk.width if side_number == len(chosen) - 1 else 1
                thread = _digit("tx", math.prod(walk.box[side_number + 1 :]), box, math.prod(walk.box[:side_number]))
                if partial:
                    conditions.append(f"if {thread} < {partial}:")
                terms: Terms = [] if thread == "0" else [(thread, scale)]
                inner = count if is_unrolled else max(n for n in range(1, budget + 1) if count % n == 0)
                budget //= inner if inner > 1 or count == 1 else budget
                for name, kind, extent, apart in (
                    (f"f{side_number}", "unroll", inner, 1),
                    (f"g{side_number}", "serial", count // inner, inner),
                ):
                    if extent > 1:
                        loops.insert(0, f"for {name} in T.{kind}({extent}):")
                        terms.append((name, apart * box * scale))
                        number_terms.append((name, apart * size))
                positions[side.last] = (terms, start * box * scale)
                size *= count
            yield _Copies(conditions + loops, positions, f"({write_affine(number_terms, first)})")
            first += size

    def _shared_index(self, tile: StagedTile, piece: _Copies) -> str:
        """Return the index in shared memory to which the current copy goes."""
        constant = tile.base
        index_terms: Terms = []
        for dimension, (terms, start) in piece.positions.items():
            pitch = tile.pitches[dimension]
            index_terms += [(name, size * pitch) for name, size in terms]
            constant += start * pitch
        return write_affine(index_terms, constant)

    def _element(
        self, tile: StagedTile, step: str, piece: _Copies, guards: Sequence[Guard], lane: str, *, repeats: bool = False
    ) -> tuple[str, list[str]]:
        """Return the tensor's element at which the current copy begins, and the conditions for being inside.

        With `repeats`, copies beyond an end read the last elements before it instead. Positions of joined dimensions
        count along the last of them, whose index may pass its end: addresses are linear.
        """
        access, shape = tile.access, self.nest.shape(tile.access)
        indices, conditions = [], []
        for d, (terms, offset) in enumerate(zip(access.indices, access.offsets, strict=True)):
            parts: Terms = []
            for term in terms:
                parts += [(name, term.coefficient * size) for name, size in origin(self.nest, term.axis, step)]
            inside, start = piece.positions.get(d, ([], 0))
            index = write_affine(parts + inside, offset + start)
            if guards[d].behind and repeats:
                width = tile.fetch if d == len(access.indices) - 1 else 1
                index = f"T.min({index}, {shape[d]} - {width})"
            elif guards[d].behind:
                conditions.append(f"{index} < {shape[d]}")
            if guards[d].before:
                conditions.append(f"0 <= {index}")
            indices.append(index + (lane if d == len(access.indices) - 1 else ""))
        return f"{access.tensor}[{', '.join(indices) or '()'}]", conditions


def origin(nest: CudaNest, axis: str, step: str) -> Terms:
    """Return the position along `axis` at which the tile of a block and a staging step begins."""
    if axis in nest.spatial:
        return digits(nest, "bx", nest.spatial, "block", axis)
    return digits(nest, step, nest.reduction, "k0", axis)


def digits(nest: CudaNest, name: str, axes: Sequence[str], level: str, axis: str) -> Terms:
    """Return the part of a fused loop variable that belongs to one level of `axis`, with its stride."""
    digit = _digit_of(nest, name, axes, level, axis)
    return [] if digit == "0" else [(digit, nest.stride(axis, level))]


def inside_conditions(nest: CudaNest, step: str = "") -> list[str] | None:
    """Return the conditions that a block (and a step, if given) ends inside all guarded axes.

    None: no block or no step does.
    """
    tests = []
    for axis in nest.guarded_axes:
        is_spatial = axis in nest.spatial
        if not is_spatial and not step:
            continue
        level, name, axes = ("block", "bx", nest.spatial) if is_spatial else ("k0", step, nest.reduction)
        last = nest.extent(axis, level) - 1
        if last == 0:
            return None
        digit = _digit_of(nest, name, axes, level, axis)
        varies = nest.is_varying(axis)
        tests.append(f"({digit} + 1) * {nest.tile_extent(axis)} <= {nest.end(axis)}" if varies else f"{digit} < {last}")
    return tests


def _vector(tile: StagedTile) -> str:
    return f"for v in T.vectorized({tile.fetch}):" if tile.fetch > 1 else ""


def _digit_of(nest: CudaNest, name: str, axes: Sequence[str], level: str, axis: str) -> str:
    """Return the digit of one level of `axis` in a fused loop variable."""
    position = axes.index(axis)
    inner = product(*(nest.loop_extent(other_axis, level) for other_axis in axes[position + 1 :]))
    outer = product(*(nest.loop_extent(other_axis, level) for other_axis in axes[:position]))
    return _digit(name, inner, nest.loop_extent(axis, level), outer)


def _digit(name: str, inner: int | str, extent: int | str, outer: int | str) -> str:
    """Return the expression of one digit of a mixed-radix number, "0" if it has only one value."""
    if extent == 1 or name == "0":
        return "0"
    shifted = name if inner == 1 else f"{name} // {inner}"
    if isinstance(inner, str):  # no value is negative, but TVM does not know this of an extent
        shifted = f"T.truncdiv({name}, {inner})"
    if outer == 1:
        return f"({shifted})"
    return f"T.truncmod({shifted}, {extent})" if isinstance(extent, str) else f"({shifted} % {extent})"
