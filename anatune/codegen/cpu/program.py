"""A CPU schedule as TVMScript: copies and packing, loop nests, and the calls of microkernels."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anatune.codegen.cpu.layout import Layout, Slivers, Strided, SumsOfSlivers, layout_of
from anatune.codegen.cpu.microkernel import microkernel_ir, module_ir
from anatune.codegen.cpu.nest import Loop, LoopNest, Part, nest_of
from anatune.codegen.cpu.padding import Skip, border_parts, skipped_products, skips_of
from anatune.codegen.cpu.prefetch import LINE_BYTES, LINES_FURTHER, MOST_LINES, new_lines
from anatune.codegen.cpu.register_tile import Ahead, EpilogueOperand, Microkernel, Operand, Result
from anatune.codegen.script import Script, affine, buffer_type, open_function, whole_region
from anatune.core.generation import MOST_ELEMENTS, too_large_text
from anatune.core.hardware.spec import CpuCompute
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES, Access, Workload
from anatune.errors import BuildError

__all__ = ["CpuProgram", "program_of"]

_LOWEST = {
    "float32": 'T.reinterpret("float32", T.uint32(0xFF800000))',
    "float16": 'T.reinterpret("float16", T.uint16(0xFC00))',
    "bfloat16": 'T.reinterpret("bfloat16", T.uint16(0xFF80))',
    "int8": "T.int8(-128)",
}
"""Neutral element of the largest value."""


@dataclass(frozen=True)
class CpuProgram:
    """TVMScript functions and the LLVM IR that they call.

    Attributes
    ----------
    main : str
        The kernel: operands, epilogue operands, result.
    packing : dict of str to str
        Tensor -> function that packs it ahead of the run.
    packed_sizes : dict of str to int
        Tensor -> elements of its packed form.
    llvm : str
        The microkernels.
    kernels : tuple of Microkernel
    packing_llvm : str
        What the packing functions call.
    """

    main: str
    packing: dict[str, str]
    packed_sizes: dict[str, int]
    llvm: str
    kernels: tuple[Microkernel, ...]
    packing_llvm: str = ""

    @property
    def workspace_bytes(self) -> int:
        """Memory that a call of ``main`` allocates and releases again."""
        found = re.findall(r'= T\.sblock_alloc_buffer\(\((\d+),\), "(\w+)"\)', self.main)
        return sum(int(size) * DTYPE_BYTES[dtype] for size, dtype in found)


_MANY_ROWS = 4
"""Rows that are read side by side from which on the hardware needs help to see what comes next."""


class _Lowering:
    """Shared state while one schedule is written down."""

    def __init__(self, schedule: Schedule, *, threads: int, prepacked: bool) -> None:
        self.schedule = schedule
        self.workload: Workload = schedule.workload
        self.nest: LoopNest = nest_of(schedule)
        self.parallel = bool(schedule.options.get("parallel", False)) and threads > 1
        packed, ahead = (schedule.options.get(name, ()) for name in ("packed", "packed_ahead"))
        self.packed: frozenset[str] = frozenset(packed)  # type: ignore[arg-type]
        self.ahead: frozenset[str] = frozenset(ahead if prepacked else ())  # type: ignore[arg-type]
        group = self.nest.group
        skips = [
            () if group is not None and group.shift else skips_of(read, self.nest, self.workload)
            for read in self.workload.reads
        ]
        self.skips: tuple[Skip, ...] = tuple(itertools.chain.from_iterable(skips))
        self.layouts: list[Strided | Slivers] = [
            layout_of(
                read,
                self.nest,
                self.workload,
                packed=read.tensor in self.packed,
                skipped=[skip.dimension for skip in found],
            )
            for read, found in zip(self.workload.reads, skips, strict=True)
        ]
        self.start: SumsOfSlivers | None = None
        if group is not None and group.shift:
            vectors = next(own for own in self.layouts if own.access.tensor == group.vectors)
            assert isinstance(vectors, Slivers)
            self.start = SumsOfSlivers(vectors)
        self.result = layout_of(self.workload.write, self.nest, self.workload, packed=False)
        sizes = {access.tensor: layout.size for access, layout in zip(self.workload.reads, self.layouts, strict=True)}
        for access in self.workload.tensors:
            elements = max(sizes.get(access.tensor, 0), access.num_elements)
            if elements > MOST_ELEMENTS:
                raise BuildError(too_large_text(access.tensor, elements))

    # -- microkernels ------------------------------------------------------------------------------------------

    def tiles(self) -> list[dict[str, Part]]:
        """Return every combination of parts: each is one microkernel and the loops of its calls."""
        axes = list(self.nest.parts)
        parts = dict(self.nest.parts)
        for skip in self.skips:
            if skip.is_static:
                parts[skip.axis] = border_parts(skip, parts[skip.axis], self.workload.extents[skip.window])
        return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*(parts[axis] for axis in axes))]

    @property
    def moving(self) -> tuple[tuple[int, Skip], ...]:
        """Inner loops of the microkernel that leave out padding: (place, skip), outer to inner."""
        axes = [loop.axis for loop in self.nest.inner]
        return tuple(sorted((axes.index(skip.window), skip) for skip in self.skips if not skip.is_static))

    def kernel(self, name: str, parts: Mapping[str, Part]) -> Microkernel:
        """Return the microkernel of the register tile that `parts` are made of."""
        nest, workload = self.nest, self.workload
        sizes = {axis: part.size for axis, part in parts.items()}
        rows_axes = self._row_axes(sizes)
        rows = list(itertools.product(*(range(sizes[axis]) for axis in rows_axes)))
        steps = list(itertools.product(*(range(loop.extent) for loop in nest.unroll)))

        def addresses(layout: Layout) -> tuple[int, ...]:
            strides = [layout.register_stride(axis, sizes) for axis in rows_axes]
            return tuple(sum(i * s for i, s in zip(row, strides, strict=True)) for row in rows)

        operands = tuple(
            Operand(
                dtype=access.dtype,
                lane_stride=layout.register_stride(nest.simd_axis, sizes),
                rows=addresses(layout),
                loops=tuple(layout.loop_stride(loop, sizes) for loop in nest.inner),
                steps=tuple(
                    sum(i * layout.loop_stride(loop, sizes) for i, loop in zip(step, nest.unroll, strict=True))
                    for step in steps
                ),
                zero_point=access.zero_point,
                masked=not layout.is_copy or layout.register_stride(nest.simd_axis, sizes) > 1,
                group=nest.group.size if nest.group is not None else 1,
                flips=self._flips(access) and not layout.is_copy,
                used=self._used(layout, steps),
                ahead=self._ahead(layout, parts, rows_axes, sizes),
                fresh=self._fresh(layout, parts, addresses(layout), sizes),
            )
            for access, layout in zip(workload.reads, self.layouts, strict=True)
        )
        result_rows = addresses(self.result)
        lane_stride = 0 if nest.simd_reduction else self.result.register_stride(nest.simd_axis, sizes)
        extra = iter(workload.epilogue_reads)
        epilogue: list[tuple[str, EpilogueOperand | None]] = []
        for step in workload.epilogue:
            if step == "relu":
                epilogue.append((step, None))
                continue
            access = next(extra)
            layout = layout_of(access, nest, workload, packed=False)
            epilogue.append(
                (
                    step,
                    EpilogueOperand(
                        access.dtype,
                        0 if nest.simd_reduction else layout.register_stride(nest.simd_axis, sizes),
                        addresses(layout),
                    ),
                )
            )
        bits = nest.lanes * 32
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
                result_rows,
                self._groups(rows_axes, rows, sizes, lane_stride),
                workload.write.zero_point,
            ),
            trips=tuple(loop.extent for loop in nest.inner),
            moving=tuple(level for level, _ in self.moving),
            skipped=skipped_products(self.skips, parts, rows_axes, rows, [loop.axis for loop in nest.unroll], steps),
            num_steps=len(steps),
            is_partial=nest.is_partial,
            reduces=bool(workload.reduction_axes),
            simd_reduction=nest.simd_reduction,
            tail=nest.tail,
            tail_loops=bool(nest.inner) and nest.inner[-1].axis == nest.simd_axis,
            count=math.prod(a.extent for a in workload.reduction_axes) if workload.body == "average" else 1,
            epilogue=tuple(epilogue),
            start=addresses(self.start) if self.start is not None else None,
            dot=nest.group.instruction if nest.group is not None else "",
            registers=_register_letter(self.schedule, len(rows) * -(-sizes.get(nest.simd_axis, 1) // nest.lanes)),
            num_registers=_num_registers(self.schedule),
            attributes=f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"',
        )

    def _flips(self, access: Access) -> bool:
        """Whether an operand is read with its highest bit flipped; copies hold it so."""
        group = self.nest.group
        return group is not None and group.flips and access.tensor == group.broadcast

    def _used(self, layout: Strided | Slivers, steps: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return how many elements of each step's group exist; empty: all, or zeros lie in the others' place."""
        group = self.nest.group
        if group is None or group.last == group.size or layout.whole_groups:
            return ()
        axes = [loop.axis for loop in self.nest.unroll]
        if group.axis not in axes:
            return (group.last,) * len(steps)
        place = axes.index(group.axis)
        end = self.nest.unroll[place].extent - 1
        return tuple(group.last if step[place] == end else group.size for step in steps)

    def _ahead(
        self, layout: Strided | Slivers, parts: Mapping[str, Part], rows_axes: Sequence[str], sizes: Mapping[str, int]
    ) -> Ahead | None:
        """Return what to prefetch for the next call that reads other rows of an operand; None: nothing."""
        nest = self.nest
        if isinstance(layout, Slivers) or layout.register_stride(nest.simd_axis, sizes) or len(nest.inner) != 1:
            return None  # a sliver is read line after line: the hardware sees that
        distance = self._distance(layout, parts, sizes)
        own = [(layout.register_stride(axis, sizes), sizes[axis]) for axis in rows_axes if sizes[axis] > 1]
        own = [(pitch, count) for pitch, count in own if pitch]
        if not distance or math.prod(count for _, count in own) < _MANY_ROWS:
            return None
        step = math.prod(nest.unroll[0][-2:]) if len(nest.unroll) == 1 else nest.group.size if nest.group else 1
        if layout.loop_stride(nest.inner[0], sizes) == step and len(nest.unroll) <= 1:
            per_line = LINE_BYTES // DTYPE_BYTES[layout.access.dtype]
            if math.prod(count for _, count in own) * nest.inner[0].extent * step > MOST_LINES * per_line:
                distance = LINES_FURTHER * per_line  # the next call's lines would be gone before it comes
            (pitch, count), *groups = own[::-1]
            return Ahead(distance, pitch, count, groups[0][0] if groups else 0)
        return Ahead(distance) if own[-1][0] == 1 and len(own) == 1 else None

    def _distance(self, layout: Strided | Slivers, parts: Mapping[str, Part], sizes: Mapping[str, int]) -> int:
        """Return how far the next call that reads other rows of an operand is from this one, 0: there is none."""
        nest = self.nest
        strides = [
            layout.call_stride(axis, sizes[axis], sizes) for axis in reversed(nest.calls) if parts[axis].count > 1
        ]
        spatial = (loop for loop in reversed(nest.cache) if loop.axis in nest.parts)
        strides += [layout.loop_stride(loop, sizes) for loop in spatial]
        return next((stride for stride in strides if stride), 0)

    def _fresh(
        self, layout: Strided | Slivers, parts: Mapping[str, Part], rows: Sequence[int], sizes: Mapping[str, int]
    ) -> tuple[int, ...]:
        """Return the lines of an operand that the next call reads and this one does not, where `_ahead` says nothing.

        One reduction loop reads them side by side, which `_ahead` is for; windows read them in several places.
        """
        nest = self.nest
        is_read_in_order = isinstance(layout, Slivers) or layout.register_stride(nest.simd_axis, sizes) != 0
        if is_read_in_order or len({loop.axis for loop in (*nest.inner, *nest.unroll)}) < 2:
            return ()
        loops = [(loop.extent, layout.loop_stride(loop, sizes)) for loop in (*nest.inner, *nest.unroll)]
        return new_lines(rows, loops, self._distance(layout, parts, sizes), DTYPE_BYTES[layout.access.dtype])

    def _row_axes(self, sizes: Mapping[str, int]) -> list[str]:
        """Row axes, the result's contiguous one last."""
        axes = [axis for axis in sizes if axis != self.nest.simd_axis]
        return sorted(axes, key=lambda axis: self.result.register_stride(axis, sizes) == 1)

    def _groups(
        self, axes: list[str], rows: list[tuple[int, ...]], sizes: Mapping[str, int], lane_stride: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return rows that are neighbours in the result's memory, in groups of at most a vector."""
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

    # -- the program -------------------------------------------------------------------------------------------

    def parameters(self) -> list[tuple[str, str]]:
        """Return (tensor, TVMScript buffer) of every argument of the kernel."""
        found = []
        for access, layout in zip(self.workload.reads, self.layouts, strict=True):
            shape = (layout.size,) if access.tensor in self.ahead else access.shape
            found.append((access.tensor, buffer_type(shape, access.dtype)))
        for access in (*self.workload.epilogue_reads, self.workload.write):
            found.append((access.tensor, buffer_type(access.shape, access.dtype)))
        return found

    def main(self, kernels: Sequence[tuple[dict[str, Part], Microkernel]]) -> str:
        text = Script()
        open_function(text, "main", self.parameters())
        pointers: list[str] = []
        for access, layout in zip(self.workload.reads, self.layouts, strict=True):
            if layout.is_copy and access.tensor not in self.ahead:
                pointers.append(f"{access.tensor}_copy")
                text.line(f'{access.tensor}_copy = T.sblock_alloc_buffer(({layout.size},), "{access.dtype}")')
            else:
                pointers.append(access.tensor)
        for access, layout, pointer in zip(self.workload.reads, self.layouts, pointers, strict=True):
            if pointer != access.tensor:
                self.copy(text, access, layout, pointer)
        shapes = dict(self.parameters())
        keeps_sums = any(kernel.keeps_sums for _, kernel in kernels)
        if keeps_sums:
            write = self.workload.write
            dtype = ACCUMULATOR_DTYPE[self.workload.dtype]
            text.line(f'{write.tensor}_sums = T.sblock_alloc_buffer(({write.num_elements},), "{dtype}")')
        text.open('with T.sblock("nest"):')
        names = [*pointers, *(access.tensor for access in self.workload.epilogue_reads)]
        regions = [f"{name}[{whole_region(_shape_of(shapes, name, self.workload, self.layouts))}]" for name in names]
        text.line(f"T.reads({', '.join(regions)})")
        written = self.workload.write
        regions = [f"{written.tensor}[{whole_region(written.shape)}]"]
        starts = [pointers[self.layouts.index(self.start.slivers)]] if self.start is not None else []
        pointers = [*pointers, written.tensor, *names[len(pointers) :], *starts]
        if keeps_sums:
            regions.append(f"{written.tensor}_sums[0:{written.num_elements}]")
            pointers.append(f"{written.tensor}_sums")
        text.line(f"T.writes({', '.join(regions)})")
        self._loops(text, kernels, pointers)
        text.close()
        return str(text)

    def _loops(self, text: Script, kernels: Sequence[tuple[dict[str, Part], Microkernel]], pointers: list[str]) -> None:
        nest = self.nest
        outer, cache = nest.cache[: nest.num_outer], nest.cache[nest.num_outer :]
        depth = text.depth
        annotation = ', annotations={"pragma_import_llvm": LL}'
        total = math.prod(loop.extent for loop in outer)
        text.open(f"for _ in T.serial(1{annotation}):")  # TVM loses a pragma of a parallel loop with 64-bit bounds
        if self.parallel and total > 1:
            text.open(f"for chunk in T.parallel({total}):")
            variables = _digits("chunk", outer)
        else:
            variables = {}
            for number, loop in enumerate(outer):
                text.open(f"for o{number} in range({loop.extent}):")
                variables[loop] = f"o{number}"
        for number, loop in enumerate(cache):
            text.open(f"for t{number} in range({loop.extent}):")
            variables[loop] = f"t{number}"
        sums = [(variables[loop], loop) for loop in nest.cache if loop.axis not in nest.parts]
        flags = "0"
        if nest.is_partial:
            position = " + ".join(name for name, _ in sums)
            end = sum(loop.extent - 1 for _, loop in sums)
            flags = f'T.Cast("int32", T.Select({position} > 0, 1, 0) + T.Select({position} < {end}, 2, 0))'
        layouts: list[Layout] = [*self.layouts, self.result]
        layouts += [layout_of(access, nest, self.workload, packed=False) for access in self.workload.epilogue_reads]
        if self.start is not None:
            layouts.append(self.start)
        if len(pointers) > len(layouts):
            layouts.append(self.result)  # partial sums lie as the result does
        for parts, kernel in kernels:
            sizes = {axis: part.size for axis, part in parts.items()}
            inside = 0
            calls: list[tuple[str, str]] = []
            for axis in nest.calls:
                if parts[axis].count > 1:
                    text.open(f"for c_{axis} in range({parts[axis].count}):")
                    inside += 1
                    calls.append((axis, f"c_{axis}"))
            arguments = []
            for layout, pointer in zip(layouts, pointers, strict=True):
                constant = layout.base
                terms = [(variables[loop], layout.loop_stride(loop, sizes)) for loop in nest.cache]
                for axis, part in parts.items():
                    constant += layout.call_stride(axis, part.start, sizes)
                for axis, variable in calls:
                    terms.append((variable, layout.call_stride(axis, sizes[axis], sizes)))
                arguments.append(f"{pointer}.data, {_wide(affine(terms, constant))}")
            arguments.append(flags)
            for _, skip in self.moving:
                arguments += self._taps(skip, variables, parts[skip.axis], dict(calls))
            text.line(f'T.evaluate(T.call_extern("void", "{kernel.name}", {", ".join(arguments)}))')
            text.close(inside)
        text.close(text.depth - depth)

    def _taps(self, skip: Skip, variables: Mapping[Loop, str], part: Part, calls: Mapping[str, str]) -> tuple[str, str]:
        """Return the first tap inside the tensor and one past the last, as expressions."""
        terms = [(variables[loop], loop.step * skip.stride) for loop in self.nest.cache if loop.axis == skip.axis]
        if skip.axis in calls:
            terms.append((calls[skip.axis], part.size * skip.stride))
        low = affine(terms, part.start * skip.stride + skip.offset)
        step = skip.dilation
        first = f"T.max(0, ({step - 1} - ({low})) // {step})"
        end = f"T.min({self.workload.extents[skip.window]}, ({skip.size + step - 1} - ({low})) // {step})"
        return _wide(first), _wide(end)

    # -- copies ------------------------------------------------------------------------------------------------

    def packing(self, access: Access, layout: Layout) -> str:
        """Return the function that packs `access` ahead of the run."""
        text = Script()
        open_function(
            text,
            f"pack_{access.tensor}",
            [
                (access.tensor, buffer_type(access.shape, access.dtype)),
                ("packed", buffer_type((layout.size,), access.dtype)),
            ],
        )
        self.copy(text, access, layout, "packed")
        return str(text)

    def copy(self, text: Script, access: Access, layout: Layout, target: str) -> None:
        """Write the loops that fill `target` with `access` in `layout`."""
        if isinstance(layout, Slivers):
            if layout.size > layout.sums_at:
                text.line(f'{target}_sum = T.sblock_alloc_buffer((1,), "int32")')
            self._copy_slivers(text, access, layout, target)
            if layout.size > layout.sums_at:
                self._sum_slivers(text, access, SumsOfSlivers(layout), target)
        elif isinstance(layout, Strided):
            self._copy_strided(text, access, layout, target)

    def _block(self, text: Script, access: Access, size: int, target: str) -> None:
        text.open(f'with T.sblock("{target}_fill"):')
        text.line(f"T.reads({access.tensor}[{whole_region(access.shape)}])")
        text.line(f"T.writes({target}[0:{size}])")

    def _fill(self, access: Access) -> str:
        """Value outside the tensor: the neutral element of the body."""
        if self._flips(access):
            return f"T.int8({access.zero_point ^ -128})"
        if self.workload.body != "max":
            return f'T.Cast("{access.dtype}", {access.zero_point})'
        return _LOWEST[access.dtype]

    def _element(self, access: Access, indices: Sequence[str]) -> str:
        """Return an element as copies hold it."""
        element = f"{access.tensor}[{', '.join(indices)}]"
        return f"T.bitwise_xor({element}, T.int8(-128))" if self._flips(access) else element

    def _copy_strided(self, text: Script, access: Access, layout: Strided, target: str) -> None:
        """Fill the part that the tensor has, then the borders, slab by slab."""
        self._block(text, access, layout.size, target)
        bounds = []
        for dimension in layout.dimensions:
            start = max(0, -dimension.low)
            stop = min(dimension.size, access.shape[dimension.index] - dimension.low)
            bounds.append((start, max(start, stop)))
        boxes = [(list(bounds), False)]
        for place, (start, stop) in enumerate(bounds):
            size = layout.dimensions[place].size
            full = [(0, other.size) for other in layout.dimensions[place + 1 :]]
            for slab in ((0, start), (stop, size)):
                if slab[1] > slab[0]:
                    boxes.append(([*bounds[:place], slab, *full], True))
        for box, is_border in boxes:
            self._copy_box(text, access, layout, target, box, is_border)
        text.close()

    def _copy_box(
        self,
        text: Script,
        access: Access,
        layout: Strided,
        target: str,
        box: Sequence[tuple[int, int]],
        is_border: bool,
    ) -> None:
        depth = text.depth
        terms: list[tuple[str, int]] = []
        constant = 0
        indices = ["0"] * len(access.shape)
        parallel = self.parallel
        for number, ((start, stop), dimension) in enumerate(zip(box, layout.dimensions, strict=True)):
            constant += start * dimension.pitch
            position = str(start + dimension.low)
            if stop - start > 1:
                kind = "T.parallel" if parallel else "range"
                parallel = False
                text.open(f"for d{number} in {kind}({stop - start}):")
                terms.append((f"d{number}", dimension.pitch))
                position = affine([(f"d{number}", 1)], start + dimension.low)
            indices[dimension.index] = position
        value = self._fill(access) if is_border else self._element(access, indices)
        if all(stop > start for start, stop in box):
            text.line(f"{target}[{affine(terms, constant)}] = {value}")
        else:
            text.line("T.evaluate(0)")
        text.close(text.depth - depth)

    def _copy_slivers(self, text: Script, access: Access, layout: Slivers, target: str) -> None:
        """Walk the packed form in its own order, so that writes are contiguous."""
        nest = self.nest
        self._block(text, access, layout.size, target)
        axes = [axis for axis in nest.parts if access.uses(axis)]
        depth = text.depth
        parallel = self.parallel and target != "packed"
        variables: dict[Loop, str] = {}
        for number, loop in enumerate(loop for loop in nest.cache if loop.axis in axes):
            kind = "T.parallel" if parallel and number == 0 else "range"
            text.open(f"for o{number} in {kind}({loop.extent}):")
            variables[loop] = f"o{number}"
        inside = text.depth
        for parts in itertools.product(*(nest.parts[axis] for axis in axes)):
            self._copy_sliver(text, access, layout, target, dict(zip(axes, parts, strict=True)), variables)
            text.close(text.depth - inside)
        text.close(text.depth - depth)
        text.close()

    def _copy_sliver(
        self,
        text: Script,
        access: Access,
        layout: Slivers,
        target: str,
        parts: dict[str, Part],
        variables: dict[Loop, str],
    ) -> None:
        nest = self.nest
        sizes = {axis: options[0].size for axis, options in nest.parts.items()}
        sizes.update({axis: part.size for axis, part in parts.items()})
        terms = [(name, layout.loop_stride(loop, sizes)) for loop, name in variables.items()]
        constant = sum(layout.call_stride(axis, part.start, sizes) for axis, part in parts.items())
        position: dict[str, list[tuple[str, int]]] = {axis: [] for axis in self.workload.extents}
        start = dict.fromkeys(self.workload.extents, 0)
        for loop, name in variables.items():
            position[loop.axis].append((name, loop.step))
        for axis, part in parts.items():
            start[axis] = part.start
            if part.count > 1:
                text.open(f"for c_{axis} in range({part.count}):")
                terms.append((f"c_{axis}", layout.call_stride(axis, part.size, sizes)))
                position[axis].append((f"c_{axis}", part.size))
        for number, loop in enumerate(layout.walk):
            text.open(f"for k{number} in range({loop.extent}):")
            terms.append((f"k{number}", layout.loop_stride(loop, sizes)))
            position[loop.axis].append((f"k{number}", loop.step))
        for axis in layout.rows:
            if sizes[axis] > 1:
                text.open(f"for r_{axis} in range({sizes[axis]}):")
                terms.append((f"r_{axis}", layout.register_stride(axis, sizes)))
                position[axis].append((f"r_{axis}", 1))
        conditions = []
        if layout.has_lanes:
            width = layout.padded_lanes(sizes)
            text.open(f"for lane in range({width}):")
            terms.append(("lane", layout.group))
            position[nest.simd_axis].append(("lane", 1))
            if width > sizes[nest.simd_axis]:
                conditions.append(f"lane < {sizes[nest.simd_axis]}")
        group = nest.group
        if group is not None and layout.group > 1:
            text.open(f"for g in range({layout.group}):")
            terms.append(("g", 1))
            position[group.axis].append(("g", 1))
            if group.last < group.size:
                unrolled = [
                    (f"k{n}", loop.step) for n, loop in enumerate(layout.walk) if loop[:2] == (group.axis, "unroll")
                ]
                conditions.append(f"{affine([*unrolled, ('g', 1)])} < {group.unroll}")
        indices = []
        for index, factors in enumerate(access.indices):
            words = [(name, factor * term.coefficient) for term in factors for name, factor in position[term.axis]]
            constant_index = access.offsets[index] + sum(start[t.axis] * t.coefficient for t in factors)
            expression = affine(words, constant_index)
            reach = access.offsets[index] + sum(t.coefficient * (self.workload.extents[t.axis] - 1) for t in factors)
            if access.offsets[index] < 0:
                conditions.append(f"0 <= {expression}")
            if reach >= access.shape[index]:
                conditions.append(f"{expression} < {access.shape[index]}")
            indices.append(expression)
        value = self._element(access, indices)
        if conditions:
            joined = " and ".join(f"({condition})" for condition in conditions)
            value = f"T.if_then_else({joined}, {value}, {self._fill(access)})"
        text.line(f"{target}[{affine(terms, constant)}] = {value}")

    def _sum_slivers(self, text: Script, access: Access, layout: SumsOfSlivers, target: str) -> None:
        """Write the sums along the reduction, times minus the shift, behind the slivers, byte by byte."""
        nest, slivers = self.nest, layout.slivers
        assert nest.group is not None
        axes = [axis for axis in nest.parts if access.uses(axis)]
        text.open(f'with T.sblock("{target}_sums"):')
        text.line(f"T.reads({access.tensor}[{whole_region(access.shape)}])")
        text.line(f"T.writes({target}[0:{slivers.size}], {target}_sum[0:1])")
        depth = text.depth
        for parts in itertools.product(*(nest.parts[axis] for axis in axes)):
            self._sum_columns(text, access, layout, target, dict(zip(axes, parts, strict=True)))
            text.close(text.depth - depth)
        text.close()

    def _sum_columns(
        self, text: Script, access: Access, layout: SumsOfSlivers, target: str, parts: dict[str, Part]
    ) -> None:
        """Write the sums of the columns of one combination of parts."""
        nest, group = self.nest, self.nest.group
        assert group is not None
        sizes = {axis: options[0].size for axis, options in nest.parts.items()}
        sizes.update({axis: part.size for axis, part in parts.items()})
        loops = [
            (f"o{number}", loop.extent, layout.loop_stride(loop, sizes), loop.axis, loop.step)
            for number, loop in enumerate(loop for loop in nest.cache if loop.axis in parts)
        ]
        for axis, part in parts.items():
            loops.append((f"c_{axis}", part.count, layout.call_stride(axis, part.size, sizes), axis, part.size))
            loops.append((f"r_{axis}", part.size, layout.register_stride(axis, sizes), axis, 1))
        for name, extent, *_ in loops:
            text.open(f"for {name} in range({extent}):")
        text.line(f"{target}_sum[0] = 0")
        inside = text.depth
        position = {axis: [(name, step) for name, _, _, own, step in loops if own == axis] for axis in parts}
        for reduced in self.workload.reduction_axes:
            if access.uses(reduced.name):
                text.open(f"for e_{reduced.name} in range({reduced.extent}):")
                position[reduced.name] = [(f"e_{reduced.name}", 1)]
        indices = []
        for terms, offset in zip(access.indices, access.offsets, strict=True):
            words = [(name, step * term.coefficient) for term in terms for name, step in position[term.axis]]
            start = sum(term.coefficient * parts[term.axis].start for term in terms if term.axis in parts)
            indices.append(affine(words, offset + start))
        element = f'T.Cast("int32", {access.tensor}[{", ".join(indices)}])'
        text.line(f"{target}_sum[0] = {target}_sum[0] + {element}")
        text.close(text.depth - inside)
        base = layout.base + sum(layout.call_stride(axis, part.start, sizes) for axis, part in parts.items())
        address = affine([(name, stride) for name, _, stride, _, _ in loops], base)
        for byte in range(DTYPE_BYTES["int32"]):
            moved = f"T.shift_right({target}_sum[0] * {-group.shift}, {8 * byte})"
            text.line(f'{target}[{address} + {byte}] = T.Cast("int8", {moved})')


def _register_letter(schedule: Schedule, accumulators: int) -> str:
    """Return LLVM's constraint letter for the processor's vector registers, if all accumulators fit into them."""
    compute = schedule.hardware.compute
    if not isinstance(compute, CpuCompute) or accumulators > compute.num_vector_registers - 2:
        return ""
    return {"avx512": "v", "neon": "w", "sve": "w"}.get(compute.isa, "x")


def _num_registers(schedule: Schedule) -> int:
    compute = schedule.hardware.compute
    return compute.num_vector_registers if isinstance(compute, CpuCompute) else 0


def _wide(index: str) -> str:
    """Return an index as the 64 bits that a microkernel takes; TVM narrows what was never cast to 32."""
    return f'T.Cast("int64", T.Cast("int32", {index}))'


def _shape_of(
    parameters: Mapping[str, str], name: str, workload: Workload, layouts: Sequence[Layout]
) -> tuple[int, ...]:
    """Return the shape of a parameter or copy."""
    for access, layout in zip(workload.reads, layouts, strict=True):
        if name == f"{access.tensor}_copy":
            return (layout.size,)
        if name == access.tensor:
            return (layout.size,) if f"(({layout.size},)" in parameters[name] else access.shape
    return workload.tensor(name).shape


def _digits(variable: str, loops: Sequence[Loop]) -> dict[Loop, str]:
    """Return the mixed-radix digits of one fused variable, outer loop first."""
    digits: dict[Loop, str] = {}
    below = 1
    for loop in reversed(loops):
        quotient = f"{variable} // {below}" if below > 1 else variable
        digits[loop] = f"({quotient}) % {loop.extent}"
        below *= loop.extent
    return {loop: f"({digits[loop]})" for loop in loops}


def program_of(
    schedule: Schedule, *, threads: int = 1, prepacked: bool = True, prefix: str = "microkernel"
) -> CpuProgram:
    """Write a schedule of the CPU template as TVMScript and LLVM IR.

    Parameters
    ----------
    threads : int
        1 makes the parallel loop serial.
    prepacked : bool
        Operands that are packed ahead are taken in packed form; otherwise the kernel packs them in every run.
    prefix : str
        Of the microkernels' names: they are global in a library.

    Raises
    ------
    SpaceError
        Another template, or options that contradict the tiles.
    BuildError
        A tensor is too large for 32-bit indices.
    """
    lowering = _Lowering(schedule, threads=threads, prepacked=prepacked)
    kernels = []
    for number, parts in enumerate(lowering.tiles()):
        kernels.append((parts, lowering.kernel(f"{prefix}_{number}", parts)))
    packing = {}
    sizes_ahead = {}
    for access, layout in zip(lowering.workload.reads, lowering.layouts, strict=True):
        if access.tensor in lowering.ahead:
            packing[access.tensor] = lowering.packing(access, layout)
            sizes_ahead[access.tensor] = layout.size
    return CpuProgram(
        main=lowering.main(kernels),
        packing=packing,
        packed_sizes=sizes_ahead,
        llvm=module_ir([microkernel_ir(kernel) for _, kernel in kernels]),
        kernels=tuple(kernel for _, kernel in kernels),
    )
