"""Implicit GEMM: a workload as one matrix product for each batch entry, derived from its access maps alone.

Notation -------- m, n, k : fused axes. m is used by the left operand and the result only, n by the right operand and
the result only, k by
    both operands but not the result. Axes that all three use are the batch.
run : consecutive values of a fused index that are consecutive elements of a tensor.
left, right : the right operand is the one that moves along the innermost dimension of the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from anatune.core.workload.nest import DTYPE_BYTES, Access, Workload
from anatune.errors import SpaceError

VECTOR_BYTES = 16
"""Widest load, store or asynchronous copy of a thread, bytes."""
_WARP = 32
_SECTOR_BYTES = 32


class GemmOperand(NamedTuple):
    """A factor of the product, and how the kernel fetches it.

    Attributes
    ----------
    access : Access
    rows : str
        "m" (left) or "n" (right): the fused index other than k.
    along_k : bool
        Whether elements of a fetched vector, and of a row of the staged tile, follow k; otherwise they follow `rows`.
    width : int
        Largest number of elements that one fetch can take, a power of two: aligned, and completely inside or outside
        the tensor.
    guarded : tuple of bool
        For each dimension, whether positions may lie outside the tensor (padding).
    """

    access: Access
    rows: str
    along_k: bool
    width: int
    guarded: tuple[bool, ...]


class ImplicitGemm(NamedTuple):
    """The matrix product behind a workload; axis names are listed from the outermost to the innermost.

    Attributes
    ----------
    batch, m, n, k : tuple of str
        Axes of each fused index.
    left, right : Operand
    extents : dict of str to int
        Fused index ("batch", "m", "n", "k") -> number of iterations.
    """

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    left: GemmOperand
    right: GemmOperand
    extents: dict[str, int]

    @property
    def operands(self) -> tuple[GemmOperand, GemmOperand]:
        """The left and the right operand."""
        return self.left, self.right

    def axes(self, index: str) -> tuple[str, ...]:
        """Return the axes of a fused index, from the outermost to the innermost."""
        return {"batch": self.batch, "m": self.m, "n": self.n, "k": self.k}[index]


def strides_of(access: Access) -> dict[str, int]:
    """Return the stride of each axis: axis -> elements of the tensor that one iteration moves."""
    strides: dict[str, int] = {}
    size = 1
    for terms, extent in zip(reversed(access.indices), reversed(access.shape), strict=True):
        for term in terms:
            strides[term.axis] = strides.get(term.axis, 0) + term.coefficient * size
        size *= extent
    return strides


def vector_width(access: Access, fused: tuple[str, ...], workload: Workload, most: int) -> int:
    """Return how many consecutive values of a fused index form one aligned vector of the tensor.

    Parameters
    ----------
    fused : tuple of str
        Axes of the index, from the outermost to the innermost.
    most : int
        Largest allowed answer, a power of two.
    """
    extents, strides = workload.extents, strides_of(access)
    outside = {
        term.axis  # a vector along such an axis could lie partly outside the tensor
        for terms, guarded in zip(access.indices, guarded_dimensions(access, workload), strict=True)
        for term in terms
        if guarded
    }
    run, inside = 1, set()
    for axis in reversed(fused):
        if extents[axis] == 1:
            continue
        if strides.get(axis, 0) != run or axis in outside:
            break
        run *= extents[axis]
        inside.add(axis)
    origin = _origin(access)
    width = most
    while width > 1:
        others = (stride for axis, stride in strides.items() if axis not in inside and extents[axis] > 1)
        if run % width == 0 and origin % width == 0 and all(stride % width == 0 for stride in others):
            break
        width //= 2
    return width


@lru_cache(maxsize=64)  # schedules of a list are checked one after the other
def implicit_gemm(workload: Workload) -> ImplicitGemm:
    """Return the matrix product behind `workload`.

    Raises
    ------
    SpaceError
        The workload is no matrix product: it has another body or number of operands, or an operand without an own
        index.
    """
    if workload.body != "multiply_add" or len(workload.reads) != 2 or not workload.reduction_axes:
        raise SpaceError(
            f"{workload.operator} is not a sum of products of two tensors, as tensor cores need; use another template"
        )
    first, second = workload.reads
    shared = [axis.name for axis in workload.reduction_axes]
    if not all(first.uses(axis) and second.uses(axis) for axis in shared):
        raise SpaceError(
            f"{workload.operator}: a reduction axis indexes only one operand, expected both; use another template"
        )
    order = workload.output_axes
    axes_of = {read.tensor: tuple(a for a in order if read.uses(a)) for read in workload.reads}
    batch = tuple(axis for axis in order if axis in axes_of[first.tensor] and axis in axes_of[second.tensor])
    own_axes = [tuple(axis for axis in axes_of[read.tensor] if axis not in batch) for read in workload.reads]
    extents = workload.extents
    sizes = [math.prod(extents[axis] for axis in axes) for axes in own_axes]
    if max(sizes) == 1 or not all(own_axes):
        raise SpaceError(
            f"{workload.operator}: an operand has no separate index besides {', '.join(batch) or 'none'}, so it "
            "is no matrix product, as tensor cores need; use another template"
        )
    moving = [axis for axis in order if axis not in batch and extents[axis] > 1]
    is_first = moving[-1] in axes_of[first.tensor]
    left, right = (second, first) if is_first else (first, second)
    m, n = (own_axes[1], own_axes[0]) if is_first else (own_axes[0], own_axes[1])
    k = min(reduction_orders(shared, extents), key=lambda k: _fetch_order(workload, (left, m), (right, n), k))
    fused = {
        name: math.prod(extents[axis] for axis in axes)
        for name, axes in (("batch", batch), ("m", m), ("n", n), ("k", k))
    }
    return ImplicitGemm(
        batch, m, n, k, _operand(workload, left, "m", m, k), _operand(workload, right, "n", n, k), fused
    )


def reduction_orders(axes: list[str], extents: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return the candidate orders of the reduction axes: the given one, and each with one axis moved innermost."""
    moved = [(*(a for a in axes if a != axis), axis) for axis in reversed(axes) if extents[axis] > 1]
    return [tuple(axes), *moved]


def _fetch_order(
    workload: Workload, left: tuple[Access, tuple[str, ...]], right: tuple[Access, tuple[str, ...]], k: tuple[str, ...]
) -> tuple[int, float]:
    """Return the cost of an order: first minus the vector widths, then the bytes that a warp's elements touch."""
    width, touched = 0, 0.0
    for access, rows in (left, right):
        width += max(vector_width(access, axes, workload, _widest(access)) for axes in (rows, k))
        touched += min(touched_bytes(access, axes, workload) for axes in (rows, k))
    return -width, touched


def _widest(access: Access) -> int:
    """Return the number of elements in the widest load of an operand."""
    return VECTOR_BYTES // DTYPE_BYTES[access.dtype]


def _operand(workload: Workload, access: Access, name: str, rows: tuple[str, ...], k: tuple[str, ...]) -> GemmOperand:
    by_rows, by_k = (vector_width(access, axes, workload, _widest(access)) for axes in (rows, k))
    along_k = by_k > by_rows
    if by_k == by_rows:
        along_k = touched_bytes(access, k, workload) < touched_bytes(access, rows, workload)
    return GemmOperand(access, name, along_k, max(by_rows, by_k), guarded_dimensions(access, workload))


class FetchPattern(NamedTuple):
    """The memory layout of a row of the staged tile: `run` elements, each `step` elements after the previous one."""

    run: int
    step: int


def pattern_of(access: Access, fused: tuple[str, ...], workload: Workload) -> FetchPattern:
    """Return how neighbours along a fused index lie in a tensor."""
    strides = strides_of(access)
    run, step = 1, 0
    for axis in reversed(fused):
        extent, stride = workload.extents[axis], strides.get(axis, 0)
        if extent == 1:
            continue
        if step and stride != run * step:
            break
        step = step or stride
        run *= extent
    return FetchPattern(run, step)


def touched_bytes(access: Access, fused: tuple[str, ...], workload: Workload) -> float:
    """Return the average bytes of the sectors that contain 32 neighbouring elements along a fused index."""
    run, step = pattern_of(access, fused, workload)
    run = min(run, _WARP)
    return _WARP / run * max(float(_SECTOR_BYTES), run * step * DTYPE_BYTES[access.dtype])


def guarded_dimensions(access: Access, workload: Workload) -> tuple[bool, ...]:
    """Return for each dimension whether the nest reads positions outside the tensor (padding)."""
    flags = []
    for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True):
        last = offset + sum(term.coefficient * (workload.extents[term.axis] - 1) for term in terms)
        flags.append(offset < 0 or last >= size)
    return tuple(flags)


def _origin(access: Access) -> int:
    """Return the number of the element that the first iteration reads; padding may make it negative."""
    element, size = 0, 1
    for offset, extent in zip(reversed(access.offsets), reversed(access.shape), strict=True):
        element += offset * size
        size *= extent
    return element
