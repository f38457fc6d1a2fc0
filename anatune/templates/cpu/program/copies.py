"""Copies of operands as TVMScript (padded, reordered, or packed in slivers), with the loops that fill them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anatune.core.workload.nest import DTYPE_BYTES, Access, Workload
from anatune.emit.script import Script, buffer_type, open_function, whole_region, write_affine
from anatune.templates.cpu.program.extents import FIXED, Extents
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.layout import Slivers, Strided, SumsOfSlivers
from anatune.templates.cpu.program.nest import CallGroup, LoopNest, NestLoop

__all__ = ["copy_function", "write_copy"]

Terms = list[tuple[str, int]]
"""Variables and factors of an affine expression."""
_LOWEST = {
    "float32": 'T.reinterpret("float32", T.uint32(0xFF800000))',
    "float16": 'T.reinterpret("float16", T.uint16(0xFC00))',
    "bfloat16": 'T.reinterpret("bfloat16", T.uint16(0xFF80))',
    "int8": "T.int8(-128)",
}
"""Neutral elements of the maximum."""
_SHORT = 4
"""Most elements of a dimension that is written without a loop."""


def copy_function(kernels: Kernels, layout: Strided | Slivers, *, parallel: bool) -> str:
    """Return the function that packs an operand ahead of the run."""
    text, access = Script(), layout.access
    operand = (access.tensor, buffer_type(access.shape, access.dtype))
    open_function(text, f"pack_{access.tensor}", [operand, ("packed", buffer_type((layout.size,), layout.dtype))])
    write_copy(text, kernels, layout, "packed", parallel=parallel)
    return str(text)


def write_copy(
    text: Script, kernels: Kernels, layout: Strided | Slivers, target: str, *, parallel: bool, extents: Extents = FIXED
) -> None:
    """Write the loops that fill `target` with an operand in its layout."""
    copy = _CopyWriter(text, kernels.nest, kernels.workload, layout.access, layout.dtype, target, parallel, extents)
    if isinstance(layout, Strided):
        copy.write_strided(layout)
        return
    has_sums = layout.size > layout.sums_at
    if has_sums:
        text.line(f'{target}_sum = T.sblock_alloc_buffer((1,), "int32")')
    copy.write_slivers(layout)
    if has_sums:
        copy.write_sums(SumsOfSlivers(layout))


@dataclass(frozen=True)
class _CopyWriter:
    """The writer of one copy."""

    text: Script
    nest: LoopNest
    workload: Workload
    access: Access
    dtype: str
    """Dtype of the copy. If it differs from that of the tensor, the copy holds the elements minus the zero point."""
    target: str
    parallel: bool
    extents: Extents

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The shape of the tensor."""
        return self.extents.shape(self.access)

    def _block(self, size: int | str) -> None:
        self.text.open(f'with T.sblock("{self.target}_fill"):')
        self.text.line(f"T.reads({self.access.tensor}[{whole_region(self.shape)}])")
        self.text.line(f"T.writes({self.target}[0:{size}])")

    def _fill(self) -> str:
        """Return the element outside the tensor: the neutral element of the body."""
        if self.nest.flips(self.access):
            return f"T.int8({self.access.zero_point ^ -128})"
        if self.workload.body != "max":
            return f'T.Cast("{self.dtype}", {self.access.zero_point if self.dtype == self.access.dtype else 0})'
        return _LOWEST[self.access.dtype]

    def _element(self, indices: Sequence[str]) -> str:
        """Return an element in the form that the copy holds."""
        element = f"{self.access.tensor}[{', '.join(self.extents.indices(self.access, indices))}]"
        if self.dtype != self.access.dtype:
            zero_point = f' - T.Cast("{self.dtype}", {self.access.zero_point})' if self.access.zero_point else ""
            return f'T.Cast("{self.dtype}", {element}){zero_point}'
        return f"T.bitwise_xor({element}, T.int8(-128))" if self.nest.flips(self.access) else element

    def write_strided(self, layout: Strided) -> None:
        """Fill the part that the tensor has, then the borders, slab by slab.

        A short last dimension (groups of three channels that are filled up) is written at once, element by element:
        then LLVM vectorises the neighbours. Source: Zen 3, 224x224 pixels: 330 us if its border is separate.
        """
        self._block(layout.size)
        bounds: list[tuple[int, int]] = []
        for dimension in layout.dimensions:
            start = max(0, -dimension.low)
            stop = min(dimension.size, self.access.shape[dimension.index] - dimension.low)
            bounds.append((start, max(start, stop)))
        last = layout.dimensions[-1]
        is_short = last.pitch == 1 and bounds[-1][0] == 0 < bounds[-1][1] < last.size <= _SHORT
        boxes = [(list(bounds), False)]
        for number, (start, stop) in enumerate(bounds[:-1] if is_short else bounds):
            size = layout.dimensions[number].size
            full = [(0, other.size) for other in layout.dimensions[number + 1 :]]
            for slab in ((0, start), (stop, size)):
                if slab[1] > slab[0]:
                    boxes.append(([*bounds[:number], slab, *full], True))
        for box, is_border in boxes:
            self._box(layout, box, is_border, at_once=is_short and not is_border)
        self.text.close()

    def _box(self, layout: Strided, box: Sequence[tuple[int, int]], is_border: bool, *, at_once: bool) -> None:
        """Fill the elements between bounds of each dimension; with `at_once`, the last dimension without a loop."""
        depth = self.text.depth
        terms: Terms = []
        constant = 0
        indices = ["0"] * len(self.access.shape)
        parallel = self.parallel
        for number, ((start, stop), dimension) in enumerate(zip(box, layout.dimensions, strict=True)):
            constant += start * dimension.pitch
            position = str(start + dimension.low)
            if stop - start > 1 and not (at_once and number == len(box) - 1):
                loop_kind = "T.parallel" if parallel else "range"
                parallel = False
                size = self.shape[dimension.index]
                count = size if isinstance(size, str) and not self.extents.whole else stop - start
                self.text.open(f"for d{number} in {loop_kind}({count}):")
                terms.append((f"d{number}", dimension.pitch))
                position = write_affine([(f"d{number}", 1)], start + dimension.low)
            indices[dimension.index] = position
        if at_once:
            last = layout.dimensions[-1]
            for offset in range(last.size):
                indices[last.index] = str(offset + last.low)
                value = self._element(indices) if offset < box[-1][1] else self._fill()
                self.text.line(f"{self.target}[{write_affine(terms, constant + offset)}] = {value}")
        elif all(stop > start for start, stop in box):
            value = self._fill() if is_border else self._element(indices)
            self.text.line(f"{self.target}[{write_affine(terms, constant)}] = {value}")
        else:
            self.text.line("T.evaluate(0)")
        self.text.close(self.text.depth - depth)

    def write_slivers(self, layout: Slivers) -> None:
        """Fill the packed form in its own order, so that writes are contiguous."""
        nest, extents = self.nest, self.extents
        self._block(extents.count(layout))
        for definition in extents.definitions:
            self.text.line(definition)
        axes = [axis for axis in nest.parts if self.access.uses(axis)]
        depth = self.text.depth
        parallel = self.parallel and self.target != "packed"
        variables: dict[NestLoop, str] = {}
        for number, loop in enumerate(loop for loop in nest.cache if loop.axis in axes):
            loop_kind = "T.parallel" if parallel and number == 0 else "range"
            self.text.open(f"for o{number} in {loop_kind}({loop.extent}):")
            variables[loop] = f"o{number}"
        part_depth = self.text.depth
        for parts in itertools.product(*(extents.parts(axis, nest.parts[axis]) for axis in axes)):
            self._sliver(layout, dict(zip(axes, parts, strict=True)), variables)
            self.text.close(self.text.depth - part_depth)
        self.text.close(self.text.depth - depth)
        self.text.close()

    def _sliver(self, layout: Slivers, parts: dict[str, CallGroup], variables: dict[NestLoop, str]) -> None:
        nest, extents = self.nest, self.extents
        sizes = {axis: options[0].size for axis, options in nest.parts.items()}
        sizes.update({axis: part.size for axis, part in parts.items()})
        terms = [(name, layout.loop_stride(loop, sizes)) for loop, name in variables.items()]
        constant = sum(layout.call_stride(axis, part.start, sizes) for axis, part in parts.items())
        position: dict[str, Terms] = {axis: [] for axis in self.workload.extents}
        start = {axis: part.start for axis, part in parts.items()}
        calls: dict[str, str] = {}
        for loop, name in variables.items():
            position[loop.axis].append((name, loop.step))
        for axis, part in parts.items():
            if count := extents.calls(axis, part):
                calls[axis] = f"c_{axis}"
                self.text.open(f"for c_{axis} in range({count}):")
                first, elements = extents.start(axis, f"c_{axis}", part.size)
                terms.append((first, layout.call_stride(axis, elements, sizes)))
                position[axis].append((first, elements))
        for number, loop in enumerate(layout.walk):
            self.text.open(f"for k{number} in range({loop.extent}):")
            terms.append(extents.loop_term(f"k{number}", calls, layout, loop, sizes))
            position[loop.axis].append((f"k{number}", loop.step))
        for axis in layout.rows:
            if count := extents.rows(axis, f"c_{axis}", sizes[axis]):
                self.text.open(f"for r_{axis} in range({count}):")
                terms.append((f"r_{axis}", layout.register_stride(axis, sizes)))
                position[axis].append((f"r_{axis}", 1))
        conditions = []
        if layout.has_lanes:
            width = layout.padded_lanes(sizes)
            self.text.open(f"for lane in range({width}):")
            terms.append(("lane", layout.group))
            position[nest.simd_axis].append(("lane", 1))
            if width > sizes[nest.simd_axis]:
                conditions.append(f"lane < {sizes[nest.simd_axis]}")
        group = nest.group
        if group is not None and layout.group > 1:
            self.text.open(f"for g in range({layout.group}):")
            terms.append(("g", 1))
            position[group.axis].append(("g", 1))
            if group.last < group.size:
                unrolled = [
                    (f"k{n}", loop.step) for n, loop in enumerate(layout.walk) if loop[:2] == (group.axis, "unroll")
                ]
                conditions.append(f"{write_affine([*unrolled, ('g', 1)])} < {group.unroll}")
        indices = self._indices(position, start)
        for index, (expression, offset, size) in enumerate(
            zip(indices, self.access.offsets, self.access.shape, strict=True)
        ):
            moved = sum(t.coefficient * (self.workload.extents[t.axis] - 1) for t in self.access.indices[index])
            if offset < 0:
                conditions.append(f"0 <= {expression}")
            if offset + moved >= size:
                conditions.append(f"{expression} < {size}")
        value = self._element(indices)
        if conditions:
            joined = " and ".join(f"({condition})" for condition in conditions)
            value = f"T.if_then_else({joined}, {value}, {self._fill()})"
        self.text.line(f"{self.target}[{write_affine(terms, constant)}] = {value}")

    def _indices(self, position: Mapping[str, Terms], start: Mapping[str, int]) -> list[str]:
        """Return the index of an element along each dimension of the tensor.

        Parameters
        ----------
        position : mapping of str to list of (str, int)
            Axis -> variables, and the number of elements that each counts.
        start : mapping of str to int
            Axis -> first element; 0 if left out.
        """
        indices = []
        for terms, offset in zip(self.access.indices, self.access.offsets, strict=True):
            words = [(name, step * term.coefficient) for term in terms for name, step in position[term.axis]]
            indices.append(write_affine(words, offset + sum(start.get(t.axis, 0) * t.coefficient for t in terms)))
        return indices

    def write_sums(self, layout: SumsOfSlivers) -> None:
        """Write minus the shift times the sums along the reduction after the slivers, byte by byte."""
        nest, slivers = self.nest, layout.slivers
        assert nest.group is not None
        axes = [axis for axis in nest.parts if self.access.uses(axis)]
        self.text.open(f'with T.sblock("{self.target}_sums"):')
        self.text.line(f"T.reads({self.access.tensor}[{whole_region(self.shape)}])")
        self.text.line(f"T.writes({self.target}[0:{slivers.size}], {self.target}_sum[0:1])")
        depth = self.text.depth
        for parts in itertools.product(*(nest.parts[axis] for axis in axes)):
            self._columns(layout, dict(zip(axes, parts, strict=True)))
            self.text.close(self.text.depth - depth)
        self.text.close()

    def _columns(self, layout: SumsOfSlivers, parts: dict[str, CallGroup]) -> None:
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
            self.text.open(f"for {name} in range({extent}):")
        self.text.line(f"{self.target}_sum[0] = 0")
        column_depth = self.text.depth
        position = {axis: [(name, step) for name, _, _, moved, step in loops if moved == axis] for axis in parts}
        for reduced in self.workload.reduction_axes:
            if self.access.uses(reduced.name):
                self.text.open(f"for e_{reduced.name} in range({reduced.extent}):")
                position[reduced.name] = [(f"e_{reduced.name}", 1)]
        start = {axis: part.start for axis, part in parts.items()}
        indices = self._indices(position, start)
        element = f'T.Cast("int32", {self.access.tensor}[{", ".join(self.extents.indices(self.access, indices))}])'
        self.text.line(f"{self.target}_sum[0] = {self.target}_sum[0] + {element}")
        self.text.close(self.text.depth - column_depth)
        base = layout.base + sum(layout.call_stride(axis, part.start, sizes) for axis, part in parts.items())
        address = write_affine([(name, stride) for name, _, stride, _, _ in loops], base)
        for byte in range(DTYPE_BYTES["int32"]):
            moved = f"T.shift_right({self.target}_sum[0] * {-group.shift}, {8 * byte})"
            self.text.line(f'{self.target}[{address} + {byte}] = T.Cast("int8", {moved})')
