"""The microkernels of a schedule: their register tiles, and the addresses that they read, sum and write."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence

from anatune.core.frozen import EMPTY
from anatune.core.generation import MOST_ELEMENTS, too_large_text
from anatune.core.hardware.cpu_groups import CpuCompute
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES, Access, Workload
from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.emit.kernels import vector_attributes
from anatune.errors import BuildError
from anatune.templates.cpu.program.layout import Slivers, Strided, SumsOfSlivers, TensorLayout, layout_of
from anatune.templates.cpu.program.nest import CallGroup, LoopNest, nest_of
from anatune.templates.cpu.program.padding import Skip, border_parts, skipped_products, skips_of
from anatune.templates.cpu.program.prefetch import FAR_BYTES, FEWEST_REPEATS, LINE_BYTES, PRODUCTS_A_FAR_LINE, new_lines
from anatune.templates.cpu.program.register_tile import (
    EpilogueOperand,
    Microkernel,
    Result,
    RowsAhead,
    Stream,
    TileOperand,
)
from anatune.templates.cpu.rules import cpu_of, words_of

__all__ = ["Kernels", "register_letter"]

_MANY_ROWS = 4
"""Rows read side by side from which on the hardware prefetcher needs help."""


class Kernels:
    """Loops and layouts of one schedule, and the microkernels that follow from them.

    Parameters
    ----------
    schedule : Schedule
    rows : mapping of str to int
        Tensor -> elements from one of its rows to the next, for tensors that are parts of wider ones.
    steps : sequence of (str, Access)
        Fused steps with an operand each, after those of the workload.

    Attributes
    ----------
    workload : Workload
    nest : LoopNest
    parts : dict of str to tuple of CallGroup
        The parts of the nest, split so that calls at a border are separate.
    layouts : list of TensorLayout
        Layout of each operand.
    result : TensorLayout
    start : TensorLayout, optional
        Layout of the initial values of accumulators; None: they start from zero.
    steps : list of (str, TensorLayout or None)
        Fused steps, with the layout of the operand if the step has one.
    run_time_axis : str
        Axis whose extent is known at run time; "": none. A call does not prefetch for a next one along it, which may
        not exist.

    Raises
    ------
    SpaceError
        The template is another one, or options contradict the tiles.
    BuildError
        A tensor is too large for 32-bit indices.
    """

    def __init__(
        self, schedule: Schedule, rows: Mapping[str, int] = EMPTY, steps: Sequence[tuple[str, Access]] = ()
    ) -> None:
        self._hardware = cpu_of(schedule)
        self.workload: Workload = schedule.workload
        self.nest: LoopNest = nest_of(schedule)
        packed, self._packed_ahead = words_of(schedule, "packed"), words_of(schedule, "packed_ahead")
        group = self.nest.group
        skips = [
            () if group is not None and group.shift else skips_of(read, self.nest, self.workload)
            for read in self.workload.reads
        ]
        self._skips: tuple[Skip, ...] = tuple(itertools.chain.from_iterable(skips))
        self.layouts: list[Strided | Slivers] = [
            layout_of(
                read,
                self.nest,
                self.workload,
                packed=read.tensor in packed,
                skipped=[skip.dimension for skip in read_skips],
                row=rows.get(read.tensor),
            )
            for read, read_skips in zip(self.workload.reads, skips, strict=True)
        ]
        self.start: SumsOfSlivers | None = None
        if group is not None and group.shift:
            vectors = next(layout for layout in self.layouts if layout.access.tensor == group.vectors)
            assert isinstance(vectors, Slivers)
            self.start = SumsOfSlivers(vectors)
        write = self.workload.write
        self.result = layout_of(write, self.nest, self.workload, packed=False, row=rows.get(write.tensor))
        extra = iter(self.workload.epilogue_reads)
        first_steps = [(step, next(extra) if STEP_OPERANDS[step] else None) for step in self.workload.epilogue]
        self.steps: list[tuple[str, Strided | Slivers | None]] = [
            (step, None if read is None else layout_of(read, self.nest, self.workload, packed=False))
            for step, read in (*first_steps, *steps)
        ]
        sizes = {layout.access.tensor: layout.size for layout in self.layouts}
        for access in self.workload.tensors:
            elements = max(sizes.get(access.tensor, 0), access.num_elements)
            if elements > MOST_ELEMENTS:
                raise BuildError(too_large_text(access.tensor, elements))

        self.run_time_axis = ""
        self.parts: dict[str, tuple[CallGroup, ...]] = dict(self.nest.parts)
        for skip in self._skips:
            if skip.is_static:
                self.parts[skip.axis] = tuple(
                    border_parts(skip, self.parts[skip.axis], self.workload.extents[skip.window])
                )

    def tiles(self) -> list[dict[str, CallGroup]]:
        """Return every combination of parts in the order of their calls. Each is one microkernel."""
        axes = self.nest.calls
        return [dict(zip(axes, parts, strict=True)) for parts in itertools.product(*(self.parts[a] for a in axes))]

    @property
    def moving(self) -> tuple[tuple[int, Skip], ...]:
        """Inner loops of the microkernel that skip padding: (number of the loop, skip), outer to inner."""
        axes = [loop.axis for loop in self.nest.inner]
        return tuple(sorted((axes.index(skip.window), skip) for skip in self._skips if not skip.is_static))

    def list_rereading_axes(self) -> set[str]:
        """Return the axes whose loops read constants from beyond L2 again; all axes if there are no such constants."""
        packed = [layout for layout in self.layouts if layout.access.tensor in self._packed_ahead]
        slivers = [layout for layout in packed if isinstance(layout, Slivers)]
        beyond = [layout.access for layout in slivers if self._is_beyond_l2(layout.size, layout.dtype)]
        looped = {loop.axis for loop in self.nest.cache}
        looped |= {axis for axis, parts in self.parts.items() if sum(part.count for part in parts) > 1}
        return {axis for axis in looped if not all(access.uses(axis) for access in beyond)} if beyond else {*self.parts}

    def _is_beyond_l2(self, elements: int, dtype: str) -> bool:
        """Return whether elements of a packed operand do not stay in L2."""
        return elements * DTYPE_BYTES[dtype] >= self._hardware.l2.size_bytes / 2

    def microkernel(self, name: str, parts: Mapping[str, CallGroup]) -> Microkernel:
        """Return the microkernel of the register tile of some parts."""
        nest, workload = self.nest, self.workload
        sizes = {axis: part.size for axis, part in parts.items()}
        rows_axes = self._row_axes(sizes)
        rows = list(itertools.product(*(range(sizes[axis]) for axis in rows_axes)))
        steps = list(itertools.product(*(range(loop.extent) for loop in nest.unroll)))

        def addresses(layout: TensorLayout) -> tuple[int, ...]:
            strides = [layout.register_stride(axis, sizes) for axis in rows_axes]
            return tuple(sum(i * s for i, s in zip(row, strides, strict=True)) for row in rows)

        operands = tuple(
            TileOperand(
                dtype=layout.dtype,
                lane_stride=layout.register_stride(nest.simd_axis, sizes),
                rows=addresses(layout),
                loops=tuple(layout.loop_stride(loop, sizes) for loop in nest.inner),
                steps=tuple(
                    sum(i * layout.loop_stride(loop, sizes) for i, loop in zip(step, nest.unroll, strict=True))
                    for step in steps
                ),
                zero_point=layout.access.zero_point if layout.dtype == layout.access.dtype else 0,
                masked=not layout.is_copy or layout.register_stride(nest.simd_axis, sizes) > 1,
                group=nest.group.size if nest.group is not None else 1,
                flips=nest.flips(layout.access) and not layout.is_copy,
                used=self._used_elements(layout, steps),
                ahead=self._rows_ahead(layout, parts, rows_axes, addresses(layout), sizes),
                fresh=self._new_lines(layout, parts, addresses(layout), sizes),
                stream=self._stream(layout, parts, sizes),
            )
            for layout in self.layouts
        )
        lane_stride = 0 if nest.simd_reduction else self.result.register_stride(nest.simd_axis, sizes)
        epilogue = tuple(
            (
                step,
                None
                if layout is None
                else EpilogueOperand(
                    layout.access.dtype,
                    0 if nest.simd_reduction else layout.register_stride(nest.simd_axis, sizes),
                    addresses(layout),
                ),
            )
            for step, layout in self.steps
        )
        compute = self._hardware.compute
        return Microkernel(
            name=name,
            lanes=nest.lanes,
            size=1 if nest.simd_reduction else sizes[nest.simd_axis],
            body=workload.body,
            accumulator=ACCUMULATOR_DTYPE.get(workload.dtype, workload.dtype),
            operands=operands,
            result=Result(
                workload.write.dtype,
                lane_stride,
                addresses(self.result),
                self._groups(rows_axes, rows, sizes, lane_stride),
                workload.write.zero_point,
            ),
            trips=tuple(loop.extent for loop in nest.inner),
            moving=tuple(level for level, _ in self.moving),
            skipped=skipped_products(self._skips, parts, rows_axes, rows, [loop.axis for loop in nest.unroll], steps),
            num_steps=len(steps),
            is_partial=nest.is_partial,
            reduces=bool(workload.reduction_axes),
            simd_reduction=nest.simd_reduction,
            tail=nest.tail,
            tail_loops=bool(nest.inner) and nest.inner[-1].axis == nest.simd_axis,
            count=math.prod(a.extent for a in workload.reduction_axes) if workload.body == "average" else 1,
            epilogue=epilogue,
            start=addresses(self.start) if self.start is not None else None,
            dot=nest.group.instruction if nest.group is not None else "",
            tile_rows=self._tile_rows(rows_axes, sizes),
            registers=register_letter(compute, len(rows) * -(-sizes.get(nest.simd_axis, 1) // nest.lanes)),
            num_registers=compute.num_vector_registers,
            attributes=vector_attributes(nest.lanes),
        )

    def _tile_rows(self, rows_axes: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the rows of a microkernel on AMX tiles, and the distance between them. They run along one axis."""
        most = {axis: max(part.size for part in self.nest.parts[axis]) for axis in rows_axes}
        several, group = [axis for axis, size in most.items() if size > 1], self.nest.group
        pitches = [
            layout.register_stride(several[0], sizes)
            for layout in self.layouts
            if len(several) == 1 and group is not None and layout.access.tensor == group.broadcast
        ]
        return math.prod(most.values()), pitches[0] if pitches else 0

    def _used_elements(self, layout: Strided | Slivers, steps: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return how many elements of the group of each step exist; empty if all do or zeros fill the group."""
        group = self.nest.group
        if group is None or group.last == group.size or layout.whole_groups:
            return ()
        axes = [loop.axis for loop in self.nest.unroll]
        if group.axis not in axes:
            return (group.last,) * len(steps)
        number = axes.index(group.axis)
        end = self.nest.unroll[number].extent - 1
        return tuple(group.last if step[number] == end else group.size for step in steps)

    def _rows_ahead(
        self,
        layout: Strided | Slivers,
        parts: Mapping[str, CallGroup],
        rows_axes: Sequence[str],
        rows: Sequence[int],
        sizes: Mapping[str, int],
    ) -> RowsAhead | None:
        """Return the rows to prefetch for the next call that reads other rows of an operand; None if there are none."""
        nest = self.nest
        if isinstance(layout, Slivers) or layout.register_stride(nest.simd_axis, sizes) or len(nest.inner) != 1:
            return None  # the hardware prefetches the lines of a sliver, which are read in order
        distance = self._distance(layout, parts, sizes)
        pitches = [(layout.register_stride(axis, sizes), sizes[axis]) for axis in rows_axes if sizes[axis] > 1]
        pitches = [(pitch, count) for pitch, count in pitches if pitch]
        if not distance or math.prod(count for _, count in pitches) < _MANY_ROWS:
            return None
        step = math.prod(nest.unroll[0][-2:]) if len(nest.unroll) == 1 else nest.group.size if nest.group else 1
        if layout.loop_stride(nest.inner[0], sizes) == step and len(nest.unroll) <= 1:
            return RowsAhead(distance, tuple(sorted(set(rows))), level=2)
        return RowsAhead(distance) if pitches[-1][0] == 1 and len(pitches) == 1 else None

    def _distance(self, layout: Strided | Slivers, parts: Mapping[str, CallGroup], sizes: Mapping[str, int]) -> int:
        """Return the distance to the next call that reads other rows of an operand; 0 if there is none."""
        nest = self.nest
        axes = [axis for axis in reversed(nest.calls) if parts[axis].count > 1 and axis != self.run_time_axis]
        strides = [layout.call_stride(axis, sizes[axis], sizes) for axis in axes]
        spatial = (loop for loop in reversed(nest.cache) if loop.axis in nest.parts)
        strides += [layout.loop_stride(loop, sizes) for loop in spatial]
        return next((stride for stride in strides if stride), 0)

    def _new_lines(
        self, layout: Strided | Slivers, parts: Mapping[str, CallGroup], rows: Sequence[int], sizes: Mapping[str, int]
    ) -> tuple[int, ...]:
        """Return the lines of an operand that the next call reads and this one does not.

        There are none if `_rows_ahead` covers the operand: a single reduction loop reads rows side by side. Windows
        read them in several places.
        """
        nest = self.nest
        is_read_in_order = isinstance(layout, Slivers) or layout.register_stride(nest.simd_axis, sizes) != 0
        if is_read_in_order or len({loop.axis for loop in (*nest.inner, *nest.unroll)}) < 2:
            return ()
        loops = [(loop.extent, layout.loop_stride(loop, sizes)) for loop in (*nest.inner, *nest.unroll)]
        return new_lines(rows, loops, self._distance(layout, parts, sizes), DTYPE_BYTES[layout.dtype])

    def _stream(
        self, layout: Strided | Slivers, parts: Mapping[str, CallGroup], sizes: Mapping[str, int]
    ) -> Stream | None:
        """Return the part of the next block of packed elements that each call prefetches.

        A block is a sliver for one pass of the reduction, which several calls read. Without prefetches, the whole next
        block is fetched from beyond L2 during the first of its calls, which waits for it, and nothing is fetched during
        the other calls. If each block is read once, in order, a call prefetches its own block and the next one, far
        ahead. None: the hardware fetches such blocks well enough, or all blocks stay in L2.
        """
        nest = self.nest
        if not isinstance(layout, Slivers):
            return None
        loops: list[tuple[Hashable, int, int]] = [
            (loop, loop.extent, layout.loop_stride(loop, sizes)) for loop in nest.cache
        ]
        loops += [
            (axis, sum(part.count for part in self.parts[axis]), layout.call_stride(axis, sizes[axis], sizes))
            for axis in nest.calls
        ]
        loops = [loop for loop in loops if loop[1] > 1]
        moving = [number for number, (_, _, stride) in enumerate(loops) if stride]
        if not moving:
            return None
        block = layout.tile_size(sizes) * math.prod(loop.extent for loop in (*nest.inner, *nest.unroll))
        again = [number for number, (_, _, stride) in enumerate(loops) if not stride and number < moving[-1]]
        between = loops[again[-1] + 1 if again else 0 :]
        element = DTYPE_BYTES[layout.dtype]
        if not self._is_beyond_l2(block * math.prod(extent for _, extent, stride in between if stride), layout.dtype):
            return None
        repeating = loops[moving[-1] + 1 :]
        count = math.prod(extent for _, extent, _ in repeating)
        vectors_a_line = LINE_BYTES / (nest.lanes * layout.group * element)
        rows = math.prod(sizes[axis] for axis in sizes if not layout.access.uses(axis))
        if count < FEWEST_REPEATS:
            if self.list_rereading_axes() or rows * vectors_a_line < PRODUCTS_A_FAR_LINE:
                return None
            return Stream(-(-block * element // LINE_BYTES), FAR_BYTES // element, {})
        lines = -(-block * element // (LINE_BYTES * count))
        distance, share = loops[moving[-1]][2], lines * LINE_BYTES // element
        shares: dict[Hashable, int] = {}
        for name, extent, _ in reversed(repeating):
            shares[name] = share
            if isinstance(name, str):
                parts_of_axis = self.parts[name]
                distance += share * sum(part.count for part in parts_of_axis[: parts_of_axis.index(parts[name])])
            share *= extent
        far_rows = math.ceil(PRODUCTS_A_FAR_LINE / vectors_a_line) if self.run_time_axis else 0
        return Stream(lines, distance, shares, far_rows)

    def _row_axes(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the axes of the rows in order.

        The contiguous axis of the result is last. Before it are axes whose rows read the same broadcast elements.
        """
        axes = [axis for axis in sizes if axis != self.nest.simd_axis]
        broadcast = [access for access in self.workload.reads if not access.uses(self.nest.simd_axis)]
        return sorted(
            axes,
            key=lambda axis: (
                self.result.register_stride(axis, sizes) == 1,
                not any(access.uses(axis) for access in broadcast),
            ),
        )

    def _groups(
        self, axes: list[str], rows: list[tuple[int, ...]], sizes: Mapping[str, int], lane_stride: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return groups of rows that are neighbours in the memory of the result, of at most one vector each."""
        if lane_stride in (0, 1) or not axes or self.result.register_stride(axes[-1], sizes) != 1:
            return ()
        width = sizes[axes[-1]]
        if width < 2:
            return ()
        groups = []
        for start in range(0, len(rows), width):
            for first in range(0, width, self.nest.lanes):
                stop = min(first + self.nest.lanes, width)
                groups.append(tuple(range(start + first, start + stop)))
        return tuple(groups)


def register_letter(compute: CpuCompute, accumulators: int) -> str:
    """Return the constraint letter of LLVM for vector registers; "" if not all accumulators fit into them."""
    if accumulators > compute.num_vector_registers - 2:
        return ""
    return {"avx512": "v", "neon": "w", "sve": "w"}.get(compute.isa, "x")
