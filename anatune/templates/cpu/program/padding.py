"""Padding that is never computed: window taps outside the tensor are skipped instead of multiplied by zeros.

A padded dimension is indexed by ``axis * stride + window * dilation - padding``. Its taps can be skipped in two ways:

- Statically, if the window is unrolled in the microkernel and the position of each call along `axis` is a constant.
  Tiles at the border have microkernels of their own, without the rows that a tap misses.
- Dynamically, if the window is a loop of the microkernel and its tile is one element wide along `axis`. The loop runs
  from the first to the last tap inside.

In both cases the tensor needs no padded copy along that dimension. On small images this saves much: 18 % of the
multiply-adds of a padded 3x3 convolution of 7x7. The kernels of oneDNN do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.core.workload.nest import Access, Workload
from anatune.templates.cpu.program.nest import CallGroup, LoopNest

__all__ = ["Skip", "border_parts", "first_tap", "last_tap", "skipped_products", "skips_of"]

_MOST_BORDER_TILES = 6
"""Most border tiles of one axis that have microkernels of their own; with more, the tensor is padded instead."""


class Skip(NamedTuple):
    """A dimension whose taps outside the tensor are skipped.

    Attributes
    ----------
    dimension, size : int
        Number of the dimension of the tensor, and its extent.
    axis, window : str
        The spatial axis and the window axis of its index.
    stride, dilation, offset : int
        ``index = axis * stride + window * dilation + offset``.
    is_static : bool
    """

    dimension: int
    size: int
    axis: str
    window: str
    stride: int
    dilation: int
    offset: int
    is_static: bool

    def is_inside(self, position: int, tap: int) -> bool:
        """Return whether a tap at a position of the axis is inside the tensor."""
        return 0 <= position * self.stride + tap * self.dilation + self.offset < self.size


def first_tap(skip: Skip, position: int) -> int:
    """Return the first tap inside the tensor at `position`."""
    low = position * skip.stride + skip.offset
    return max(0, -(low // skip.dilation))


def last_tap(skip: Skip, position: int, taps: int) -> int:
    """Return one past the last tap inside the tensor at `position`."""
    low = position * skip.stride + skip.offset
    return min(taps, -((low - skip.size) // skip.dilation))


def skips_of(access: Access, nest: LoopNest, workload: Workload) -> tuple[Skip, ...]:
    """Return the padded dimensions of an operand whose outside taps can be skipped."""
    skips = []
    extents = workload.extents
    inner = {loop.axis: loop.extent for loop in nest.inner}
    unrolled = {loop.axis: loop.extent for loop in nest.unroll}
    moved = {loop.axis for loop in nest.cache}
    for dimension, terms in enumerate(access.indices):
        spatial = [term for term in terms if term.axis in nest.parts]
        windows = [term for term in terms if term.axis not in nest.parts]
        if len(spatial) != 1 or len(windows) != 1 or spatial[0].axis == nest.simd_axis:
            continue
        axis, window = spatial[0], windows[0]
        skip = Skip(
            dimension,
            access.shape[dimension],
            axis.axis,
            window.axis,
            axis.coefficient,
            window.coefficient,
            access.offsets[dimension],
            unrolled.get(window.axis, 1) == extents[window.axis],
        )
        positions, taps = extents[axis.axis], extents[window.axis]
        if all(skip.is_inside(p, tap) for p in (0, positions - 1) for tap in (0, taps - 1)):
            continue
        if skip.is_static:
            parts = nest.parts[axis.axis]
            if axis.axis not in moved and len(border_parts(skip, parts, taps)) <= len(parts) + _MOST_BORDER_TILES:
                skips.append(skip)
            continue
        in_loop = inner.get(window.axis) == taps and all(part.size == 1 for part in nest.parts[axis.axis])
        if in_loop and all(first_tap(skip, p) < last_tap(skip, p, taps) for p in range(positions)):
            skips.append(skip)
    return tuple(skips)


def border_parts(skip: Skip, parts: Sequence[CallGroup], taps: int) -> tuple[CallGroup, ...]:
    """Split parts so that calls with outside taps are separate."""
    split: list[CallGroup] = []
    for part in parts:
        run = 0
        for call in range(part.count):
            start = part.start + call * part.size
            ends = (start, start + part.size - 1)
            if all(skip.is_inside(p, tap) for p in ends for tap in (0, taps - 1)):
                run += 1
                continue
            if run:
                split.append(CallGroup(start - run * part.size, run, part.size))
            split.append(CallGroup(start, 1, part.size))
            run = 0
        if run:
            split.append(CallGroup(part.start + (part.count - run) * part.size, run, part.size))
    return tuple(split)


def skipped_products(
    skips: Sequence[Skip],
    parts: Mapping[str, CallGroup],
    axes: Sequence[str],
    rows: Sequence[tuple[int, ...]],
    unroll: Sequence[str],
    steps: Sequence[tuple[int, ...]],
) -> frozenset[tuple[int, int]]:
    """Return the (row, step) pairs of a microkernel whose tap is outside, for static skips.

    Parameters
    ----------
    parts : mapping of str to CallGroup
        The parts that the microkernel covers. If it has several calls, all of them are inside.
    axes, rows
        Axes of the rows, and the index of each row along them.
    unroll, steps
        Axes of the unrolled steps, and the index of each step along them.
    """
    outside = set()
    for skip in skips:
        if not skip.is_static:
            continue
        start = parts[skip.axis].start
        axis_number = axes.index(skip.axis)
        window_number = unroll.index(skip.window) if skip.window in unroll else -1
        for r, row in enumerate(rows):
            for s, step in enumerate(steps):
                tap = step[window_number] if window_number >= 0 else 0
                if not skip.is_inside(start + row[axis_number], tap):
                    outside.add((r, s))
    return frozenset(outside)
