"""Layouts of tensors while the kernel runs: as in the workload, copied with padding, or packed.

There are two kinds. `Strided` has the dimensions of the tensor in some order, each with its pitch, so that affine
accesses stay affine. `Slivers` has one contiguous block for each register tile, in the order in which the microkernel
reads it (the packed panels of BLIS). It is only for tensors without sliding windows.

Both have the same methods. They return the number of elements by which an iteration of a loop, a call, a row or a
lane moves the address.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from anatune.core.workload.nest import Access, Workload
from anatune.templates.cpu.program.nest import LoopNest, NestLoop

__all__ = ["PITCH_ELEMENTS", "Dimension", "Slivers", "Strided", "SumsOfSlivers", "TensorLayout", "layout_of"]

PITCH_ELEMENTS = 256
"""Rows at a multiple of this distance (1 KiB in float32) share few sets of the L1 cache, so a gap separates them."""


_SUM_BYTES = 4


class TensorLayout(Protocol):
    """Address arithmetic of one tensor, in elements."""

    @property
    def size(self) -> int:
        """Elements of the buffer."""
        ...

    @property
    def dtype(self) -> str:
        """Dtype of the buffer."""
        ...

    @property
    def base(self) -> int:
        """Address of iteration 0 of all axes."""
        ...

    def loop_stride(self, loop: NestLoop, sizes: Mapping[str, int]) -> int:
        """Return the distance by which one iteration of `loop` moves the address, for a kernel of `sizes`."""
        ...

    def call_stride(self, axis: str, elements: int, sizes: Mapping[str, int]) -> int:
        """Return the distance that `elements` along `axis` move the address in an l2 tile, for a kernel of `sizes`."""
        ...

    def register_stride(self, axis: str, sizes: Mapping[str, int]) -> int:
        """Return the distance of neighbours along `axis` inside a register tile of `sizes`."""
        ...


@dataclass(frozen=True)
class Dimension:
    """A dimension of a strided buffer.

    Attributes
    ----------
    index : int
        Number of the dimension in the tensor.
    size : int
        Positions in the buffer.
    low : int
        Tensor index of position 0 (negative: padding).
    pitch : int
        Elements from one position to the next.
    """

    index: int
    size: int
    low: int
    pitch: int


class Strided:
    """A buffer of dimensions with pitches: the tensor itself (`is_copy` False), or a padded or reordered copy of it."""

    def __init__(
        self,
        access: Access,
        dimensions: tuple[Dimension, ...],
        *,
        is_copy: bool,
        slack: int = 0,
        whole_groups: bool = False,
        dtype: str = "",
    ) -> None:
        self.access = access
        self.dtype = dtype or access.dtype
        self.dimensions = dimensions
        self.is_copy = is_copy
        self.whole_groups = whole_groups
        """True if zeros fill up the last group of neighbours (see `DotGroup`)."""
        outermost = max(dimensions, key=lambda d: d.pitch * d.size, default=None)
        self.size = (outermost.pitch * outermost.size if outermost else 1) + slack
        self._per_axis: dict[str, int] = {}
        self.base = 0
        for dimension in dimensions:
            self.base += (access.offsets[dimension.index] - dimension.low) * dimension.pitch
            for term in access.indices[dimension.index]:
                stride = term.coefficient * dimension.pitch
                self._per_axis[term.axis] = self._per_axis.get(term.axis, 0) + stride

    def loop_stride(self, loop: NestLoop, sizes: Mapping[str, int]) -> int:
        """Return the distance by which one iteration of a loop moves the address, see `TensorLayout`."""
        return self._per_axis.get(loop.axis, 0) * loop.step

    def call_stride(self, axis: str, elements: int, sizes: Mapping[str, int]) -> int:
        """Return the distance by which elements along an axis move the address, see `TensorLayout`."""
        return self._per_axis.get(axis, 0) * elements

    def register_stride(self, axis: str, sizes: Mapping[str, int]) -> int:
        """Return the distance of neighbours inside a register tile, see `TensorLayout`."""
        return self._per_axis.get(axis, 0)


class Slivers:
    """A buffer of contiguous blocks: spatial tiles outside, then the reduction in order, then the register tile.

    Blocks of rows are stored without gaps, the SIMD axis in whole vectors. Rows inside a block come before lanes.
    Grouped elements (see `DotGroup`) come last; zeros fill the last group.
    """

    is_copy = True
    whole_groups = True
    base = 0

    def __init__(self, access: Access, nest: LoopNest, extents: Mapping[str, int]) -> None:
        self.access = access
        self.dtype = nest.copied_dtypes.get(access.tensor, access.dtype)
        self.nest = nest
        axes = [axis for axis in nest.parts if access.uses(axis)]
        # axes with tiles of different sizes come last: sizes of earlier axes are factors of later strides
        rows = sorted((axis for axis in axes if axis != nest.simd_axis), key=lambda axis: len(nest.parts[axis]) > 1)
        self.rows = tuple(rows)
        self.has_lanes = nest.simd_axis in axes
        segment = nest.segment(nest.simd_axis) if self.has_lanes else 1
        self._segment = segment
        self._padded = -(-segment // nest.lanes) * nest.lanes if self.has_lanes else 1
        self.width = extents[nest.simd_axis] // segment * self._padded if self.has_lanes else 1
        self._extents = dict(extents)
        self.group = nest.group.size if nest.group is not None and access.uses(nest.group.axis) else 1
        walk = [loop for loop in (*nest.cache, *nest.inner, *nest.unroll) if loop.axis not in nest.parts]
        walk = [loop for loop in walk if access.uses(loop.axis)]
        self._reduction: dict[tuple[str, str], int] = {}
        self.depth = 1
        for loop in reversed(walk):
            self._reduction[loop.axis, loop.level] = self.depth
            self.depth *= loop.extent
        self.walk = tuple(walk)
        columns = math.prod(extents[axis] for axis in rows) * self.width
        self.sums_at = self.group * self.depth * columns
        """Offset of the sums along the reduction, if there are any (see `SumsOfSlivers`)."""
        has_sums = nest.group is not None and nest.group.shift != 0 and access.tensor == nest.group.vectors
        self.size = self.sums_at + (_SUM_BYTES * columns if has_sums else 0)

    @staticmethod
    def fits(access: Access, nest: LoopNest) -> bool:
        """Return whether blocks can hold `access`: no sliding window, at most one axis with tiles of several sizes."""
        several = [axis for axis, parts in nest.parts.items() if access.uses(axis) and len(parts) > 1]
        return not nest.simd_reduction and len(several) <= 1

    def _tile(self, axis: str, sizes: Mapping[str, int]) -> int:
        """Return the stride of `axis` at the start of a tile, given the register sizes."""
        before = math.prod(sizes[other] for other in self.rows[: self._row_number(axis)])
        after = math.prod(self._extents[other] for other in self.rows[self._row_number(axis) + 1 :])
        return self.group * before * after * self.depth * (self.width if axis in self.rows else 1)

    def _row_number(self, axis: str) -> int:
        return self.rows.index(axis) if axis in self.rows else len(self.rows)

    def tile_size(self, sizes: Mapping[str, int]) -> int:
        """Return the elements of one step of the reduction in a register tile of `sizes`."""
        return self.group * math.prod(sizes[axis] for axis in self.rows) * self.padded_lanes(sizes)

    def padded_lanes(self, sizes: Mapping[str, int]) -> int:
        """Return the lanes of a register tile in whole vectors; 1 if the SIMD axis is not used."""
        if not self.has_lanes:
            return 1
        return -(-sizes[self.nest.simd_axis] // self.nest.lanes) * self.nest.lanes

    def loop_stride(self, loop: NestLoop, sizes: Mapping[str, int]) -> int:
        """Return the distance by which one iteration of a loop moves the address, see `TensorLayout`."""
        if loop.axis in self.nest.parts:
            return self.call_stride(loop.axis, loop.step, sizes)
        return self._reduction.get((loop.axis, loop.level), 0) * self.tile_size(sizes)

    def call_stride(self, axis: str, elements: int, sizes: Mapping[str, int]) -> int:
        """Return the distance by which elements along an axis move the address, see `TensorLayout`."""
        if axis == self.nest.simd_axis and self.has_lanes:
            elements = elements // self._segment * self._padded + elements % self._segment
        elif axis not in self.rows:
            return 0
        return elements * self._tile(axis, sizes)

    def register_stride(self, axis: str, sizes: Mapping[str, int]) -> int:
        """Return the distance of neighbours inside a register tile, see `TensorLayout`."""
        if axis == self.nest.simd_axis:
            return self.group if self.has_lanes else 0
        if axis not in self.rows:
            return 0
        after = math.prod(sizes[other] for other in self.rows[self._row_number(axis) + 1 :])
        return self.group * after * self.padded_lanes(sizes)


class SumsOfSlivers:
    """The initial values of accumulators: one int32 for each column of slivers of 8-bit elements, stored after them.

    They are in the order that slivers without a reduction would have. Addresses are in elements of the slivers, which
    are bytes.
    """

    def __init__(self, slivers: Slivers) -> None:
        self.slivers = slivers
        self.size, self.dtype = slivers.size, slivers.dtype
        self.base = slivers.sums_at
        self._unit = slivers.depth * slivers.group

    def loop_stride(self, loop: NestLoop, sizes: Mapping[str, int]) -> int:
        """Return the distance by which one iteration of a loop moves the address, see `TensorLayout`."""
        return self.call_stride(loop.axis, loop.step, sizes) if loop.axis in self.slivers.nest.parts else 0

    def call_stride(self, axis: str, elements: int, sizes: Mapping[str, int]) -> int:
        """Return the distance by which elements along an axis move the address, see `TensorLayout`."""
        return self.slivers.call_stride(axis, elements, sizes) // self._unit * _SUM_BYTES

    def register_stride(self, axis: str, sizes: Mapping[str, int]) -> int:
        """Return the distance of neighbours inside a register tile, see `TensorLayout`."""
        return self.slivers.register_stride(axis, sizes) // self.slivers.group * _SUM_BYTES


def _original_layout(access: Access, row: int | None = None) -> Strided:
    pitch, dimensions = 1, []
    for index in reversed(range(len(access.shape))):
        dimensions.append(Dimension(index, access.shape[index], 0, pitch))
        pitch = row if row is not None and pitch == 1 else pitch * access.shape[index]
    return Strided(access, tuple(reversed(dimensions)), is_copy=False)


def _span(access: Access, index: int, extents: Mapping[str, int], skipped: Collection[int]) -> tuple[int, int]:
    """Return (lowest index, number of indices) that the nest reads along one dimension."""
    if index in skipped:
        return 0, access.shape[index]
    reach = sum(term.coefficient * (extents[term.axis] - 1) for term in access.indices[index])
    return access.offsets[index], reach + 1


def _needs_padding(access: Access, extents: Mapping[str, int], skipped: Collection[int]) -> bool:
    for index, size in enumerate(access.shape):
        low, count = _span(access, index, extents, skipped)
        if low < 0 or low + count > size:
            return True
    return False


def _copy_layout(
    access: Access, nest: LoopNest, workload: Workload, skipped: Collection[int], *, reorder: bool
) -> Strided:
    extents = workload.extents
    order = list(range(len(access.shape)))
    if reorder:
        order.sort(key=lambda index: _inner_rank(access, index, nest))
    dimensions: list[Dimension] = []
    pitch = 1
    group, fills_group = nest.group, False
    for index in reversed(order):
        low, count = _span(access, index, extents, skipped)
        if pitch == 1 and _is_grouped(access, index, nest) and group is not None and group.unroll == count:
            count, fills_group = -(-count // group.size) * group.size, True
        dimensions.append(Dimension(index, count, low, pitch))
        pitch *= count
        if reorder and pitch > 1 and pitch % PITCH_ELEMENTS == 0:
            pitch += nest.lanes
    dtype = nest.copied_dtypes.get(access.tensor, access.dtype)
    return Strided(
        access, tuple(reversed(dimensions)), is_copy=True, slack=nest.lanes, whole_groups=fills_group, dtype=dtype
    )


def _is_grouped(access: Access, index: int, nest: LoopNest) -> bool:
    """Return whether neighbours along a dimension form the groups of the microkernel."""
    return nest.group is not None and any(term.axis == nest.group.axis for term in access.indices[index])


def _inner_rank(access: Access, index: int, nest: LoopNest) -> tuple[int, int]:
    """Return the sort key of a copied dimension: groups innermost, or the SIMD axis, else the innermost reduction."""
    if _is_grouped(access, index, nest):
        return (3, index)
    axes = {term.axis for term in access.indices[index]}
    if nest.simd_axis in axes:
        return (2, index)
    spatial = axes & set(nest.parts)
    return (1 if axes and not spatial else 0, index)


def _has_window(access: Access, extents: Mapping[str, int]) -> bool:
    return any(sum(extents[term.axis] > 1 for term in terms) > 1 for terms in access.indices)


def layout_of(
    access: Access,
    nest: LoopNest,
    workload: Workload,
    *,
    packed: bool,
    skipped: Collection[int] = (),
    row: int | None = None,
) -> Strided | Slivers:
    """Return the layout of an operand.

    It is slivers or a reordered copy if `packed`, a padded copy if padding is needed, else the tensor itself.
    Dimensions in `skipped` need no padding: the kernel skips what is outside. `row` is the distance of rows of the
    tensor if it is part of a wider one. Such a tensor is not copied, so it is read in place.

    If the microkernel reads along the SIMD axis with a stride other than 1, only packing makes its loads contiguous.
    """
    if packed:
        if not _has_window(access, workload.extents) and Slivers.fits(access, nest):
            return Slivers(access, nest, workload.extents)
        return _copy_layout(access, nest, workload, skipped, reorder=True)
    if _needs_padding(access, workload.extents, skipped) or (access.tensor in nest.copied_dtypes and row is None):
        return _copy_layout(access, nest, workload, skipped, reorder=False)
    return _original_layout(access, row)
