"""Decomposition of the fused indices of a product into pieces that move through a tensor.

Notation
--------
piece : neighbouring axes of a fused index that move through a tensor with one stride, ``index // below % extent``.
kind : the index along which an expression varies within a tile: "m", "n" or "k" for a vector, "" for a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from anatune.core.workload.access import Access
from anatune.core.workload.implicit_gemm import ImplicitGemm, guarded_dimensions
from anatune.core.workload.nest import Workload

__all__ = ["IndexWalk", "Piece", "dimension_strides", "pieces_of", "walk_of"]


class Piece(NamedTuple):
    """Neighbouring axes of a fused index.

    Attributes
    ----------
    fused : str
        "m", "n", "k" or "batch".
    axes : tuple of str
        Axes, outer to inner.
    below : int
        Iterations of the axes of the index that are inside of them.
    extent : int
        Iterations of these axes.
    is_outermost : bool
        Whether there is no axis outside of them.
    """

    fused: str
    axes: tuple[str, ...]
    below: int
    extent: int
    is_outermost: bool

    @property
    def is_whole(self) -> bool:
        """True if the piece is the whole index."""
        return self.below == 1 and self.is_outermost

    @property
    def name(self) -> str:
        """The name of the piece in programs."""
        return self.fused if self.is_whole else f"{self.fused}_{'_'.join(self.axes)}"


class IndexWalk(NamedTuple):
    """The movement of one fused index through a tensor.

    Attributes
    ----------
    pieces : tuple of (Piece, int)
        Pieces with their strides in elements, for dimensions in which positions always lie inside.
    guarded : dict of int to tuple of (Piece, int)
        Dimension in which positions may lie outside (padding) -> pieces with their coefficients in its index.
    """

    pieces: tuple[tuple[Piece, int], ...]
    guarded: dict[int, tuple[tuple[Piece, int], ...]]


def dimension_strides(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the elements between neighbours along each dimension of a row-major tensor."""
    sizes = [*tuple(shape)[1:], 1]
    return tuple(math.prod(sizes[d:]) for d in range(len(sizes)))


def pieces_of(
    gemm: ImplicitGemm, index: str, extents: Mapping[str, int], strides: Mapping[str, int], alone: Collection[str] = ()
) -> tuple[tuple[Piece, int], ...]:
    """Return the pieces of a fused index that move through a tensor, with their strides, inner to outer.

    Parameters
    ----------
    extents, strides : mapping of str to int
        Axis -> iterations; axis -> elements that one iteration moves, 0 or missing if it moves nothing.
    alone : collection of str
        Axes that are not joined with others: those of a dimension in which positions may lie outside.
    """
    axes = gemm.axes(index)
    if gemm.extents[index] == 1 and index != "batch" and not alone and any(axis in strides for axis in axes):
        return ((Piece(index, axes, 1, 1, True), 1),)  # other positions of the tile exist, too, and are masked
    pieces: list[tuple[Piece, int]] = []
    below, total, is_next = 1, gemm.extents[index], False
    for axis in reversed(axes):
        extent, stride = extents[axis], strides.get(axis, 0)
        if extent == 1:
            continue
        if stride:
            last, step = pieces[-1] if pieces else (None, 0)
            joins = last is not None and is_next and axis not in alone and last.axes[0] not in alone
            if last is not None and joins and stride == step * last.extent:
                last = last._replace(axes=(axis, *last.axes), extent=last.extent * extent)
                pieces[-1] = last, step
            else:
                pieces.append((Piece(index, (axis,), below, extent, False), stride))
        is_next = bool(stride)
        below *= extent
    return tuple((piece._replace(is_outermost=piece.below * piece.extent == total), stride) for piece, stride in pieces)


def walk_of(access: Access, index: str, gemm: ImplicitGemm, workload: Workload) -> IndexWalk:
    """Return the movement of a fused index through a tensor."""
    extents, sizes = workload.extents, dimension_strides(access.shape)
    guards = guarded_dimensions(access, workload)
    strides: dict[str, int] = {}
    for terms, size, guarded in zip(access.indices, sizes, guards, strict=True):
        for term in terms if not guarded else ():
            strides[term.axis] = strides.get(term.axis, 0) + term.coefficient * size
    guarded_pieces = {}
    for d, (terms, guarded) in enumerate(zip(access.indices, guards, strict=True)):
        if guarded:
            coefficients = {term.axis: term.coefficient for term in terms}
            guarded_pieces[d] = pieces_of(gemm, index, extents, coefficients, tuple(coefficients))
    return IndexWalk(pieces_of(gemm, index, extents, strides), guarded_pieces)
