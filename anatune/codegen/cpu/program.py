"""A CPU schedule as TVMScript: the loop nest and its calls of microkernels."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from anatune.codegen.cpu.copies import copy_function, write_copy
from anatune.codegen.cpu.kernels import Kernels
from anatune.codegen.cpu.layout import Layout
from anatune.codegen.cpu.microkernel import microkernel_ir, module_ir
from anatune.codegen.cpu.nest import Loop, Part
from anatune.codegen.cpu.padding import Skip
from anatune.codegen.cpu.register_tile import Microkernel
from anatune.codegen.script import Script, affine, buffer_type, open_function, whole_region
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES, Workload

__all__ = ["CpuProgram", "program_of", "wide", "write_calls"]


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


_Tile = tuple[Mapping[str, Part], Microkernel]
"""The parts of each axis that a register tile is made of, and its microkernel."""


class _Writer:
    """One program while it is written down."""

    def __init__(self, kernels: Kernels, ahead: frozenset[str], *, parallel: bool) -> None:
        self.workload, self.nest, self.layouts = kernels.workload, kernels.nest, kernels.layouts
        self.kernels = kernels
        self.ahead = ahead
        self.parallel = parallel

    def parameters(self) -> list[tuple[str, str]]:
        """Return (tensor, TVMScript buffer) of every argument of the kernel."""
        found = []
        for access, layout in zip(self.workload.reads, self.layouts, strict=True):
            shape = (layout.size,) if access.tensor in self.ahead else access.shape
            found.append((access.tensor, buffer_type(shape, access.dtype)))
        for access in (*self.workload.epilogue_reads, self.workload.write):
            found.append((access.tensor, buffer_type(access.shape, access.dtype)))
        return found

    def main(self, tiles: Sequence[_Tile]) -> str:
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
                write_copy(text, self.nest, self.workload, access, layout, pointer, parallel=self.parallel)
        shapes = dict(self.parameters())
        keeps_sums = any(kernel.keeps_sums for _, kernel in tiles)
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
        starts = [pointers[self.layouts.index(self.kernels.start.slivers)]] if self.kernels.start is not None else []
        pointers = [*pointers, written.tensor, *names[len(pointers) :], *starts]
        if keeps_sums:
            regions.append(f"{written.tensor}_sums[0:{written.num_elements}]")
            pointers.append(f"{written.tensor}_sums")
        text.line(f"T.writes({', '.join(regions)})")
        self._loops(text, tiles, pointers)
        text.close()
        return str(text)

    def _loops(self, text: Script, tiles: Sequence[_Tile], pointers: list[str]) -> None:
        # TVM loses a pragma of a parallel loop with 64-bit bounds
        with text.scope('for _ in T.serial(1, annotations={"pragma_import_llvm": LL}):'):
            write_calls(text, self.kernels, tiles, pointers, parallel=self.parallel)


def write_calls(
    text: Script,
    kernels: Kernels,
    tiles: Sequence[_Tile],
    pointers: Sequence[str],
    origins: Sequence[str] = (),
    *,
    parallel: bool = False,
) -> None:
    """Write the loops of a schedule and its calls of microkernels.

    Parameters
    ----------
    pointers : sequence of str
        Buffers of the operands, the result, the operands of fused steps, what accumulators start from, partial sums.
    origins : sequence of str
        For each buffer an index that its tensor begins at; none: 0.
    parallel : bool
        Spread the outermost loops over threads.
    """
    nest = kernels.nest
    outer, cache = nest.cache[: nest.num_outer], nest.cache[nest.num_outer :]
    depth = text.depth
    if parallel and math.prod(loop.extent for loop in outer) > 1:
        text.open(f"for chunk in T.parallel({math.prod(loop.extent for loop in outer)}):")
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
    layouts: list[Layout] = [*kernels.layouts, kernels.result]
    layouts += [layout for _, layout in kernels.steps if layout is not None]
    if kernels.start is not None:
        layouts.append(kernels.start)
    if len(pointers) > len(layouts):
        layouts.append(kernels.result)  # partial sums lie as the result does
    begins = origins or [""] * len(pointers)

    def call(parts: Mapping[str, Part], kernel: Microkernel) -> None:
        sizes = {axis: part.size for axis, part in parts.items()}
        calls = {axis: f"c_{axis}" for axis in nest.calls if parts[axis].count > 1}
        arguments: list[str] = []
        addresses: list[tuple[list[tuple[str, int]], int]] = []
        for layout, pointer, origin in zip(layouts, pointers, begins, strict=True):
            constant = layout.base
            terms = [(origin, 1)] if origin else []
            terms += [(variables[loop], layout.loop_stride(loop, sizes)) for loop in nest.cache]
            for axis, part in parts.items():
                constant += layout.call_stride(axis, part.start, sizes)
            for axis, variable in calls.items():
                terms.append((variable, layout.call_stride(axis, sizes[axis], sizes)))
            arguments.append(f"{pointer}.data, {wide(affine(terms, constant))}")
            addresses.append((terms, constant))
        arguments.append(flags)
        for _, skip in kernels.moving:
            arguments += _taps(kernels, skip, variables, parts[skip.axis], calls)
        names: dict[Hashable, str] = dict([*variables.items(), *calls.items()])
        for operand, (terms, constant) in zip(kernel.operands, addresses, strict=False):
            if operand.stream is not None:
                shares = [(names[loop], share) for loop, share in operand.stream.shares.items() if loop in names]
                arguments.append(wide(affine([*terms, *shares], constant + operand.stream.distance)))
        text.line(f'T.evaluate(T.call_extern("void", "{kernel.name}", {", ".join(arguments)}))')

    _calls(text, tiles, nest.calls, call)
    text.close(text.depth - depth)


def _calls(
    text: Script,
    tiles: Iterable[_Tile],
    axes: Sequence[str],
    call: Callable[[Mapping[str, Part], Microkernel], None],
) -> None:
    """Write the loops of calls: all parts of an inner axis before an outer one's next, so that operands are reused.

    `tiles` are in the order of their calls.
    """
    if not axes:
        for parts, kernel in tiles:
            call(parts, kernel)
        return
    for part, own in itertools.groupby(tiles, key=lambda tile: tile[0][axes[0]]):
        if part.count > 1:
            text.open(f"for c_{axes[0]} in range({part.count}):")
        _calls(text, list(own), axes[1:], call)
        text.close(int(part.count > 1))


def _taps(
    kernels: Kernels, skip: Skip, variables: Mapping[Loop, str], part: Part, calls: Mapping[str, str]
) -> tuple[str, str]:
    """Return the first tap inside the tensor and one past the last, as expressions."""
    terms = [(variables[loop], loop.step * skip.stride) for loop in kernels.nest.cache if loop.axis == skip.axis]
    if skip.axis in calls:
        terms.append((calls[skip.axis], part.size * skip.stride))
    low = affine(terms, part.start * skip.stride + skip.offset)
    step = skip.dilation
    first = f"T.max(0, ({step - 1} - ({low})) // {step})"
    end = f"T.min({kernels.workload.extents[skip.window]}, ({skip.size + step - 1} - ({low})) // {step})"
    return wide(first), wide(end)


def wide(index: str) -> str:
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
    kernels = Kernels(schedule)
    names: tuple[str, ...] = schedule.options.get("packed_ahead", ())  # type: ignore[assignment]
    ahead = frozenset(names if prepacked else ())
    parallel = bool(schedule.options.get("parallel", False)) and threads > 1
    tiles = [(parts, kernels.microkernel(f"{prefix}_{number}", parts)) for number, parts in enumerate(kernels.tiles())]
    packed = [
        (access, layout)
        for access, layout in zip(kernels.workload.reads, kernels.layouts, strict=True)
        if access.tensor in ahead
    ]
    return CpuProgram(
        main=_Writer(kernels, ahead, parallel=parallel).main(tiles),
        packing={
            access.tensor: copy_function(kernels.nest, kernels.workload, access, layout, parallel=parallel)
            for access, layout in packed
        },
        packed_sizes={access.tensor: layout.size for access, layout in packed},
        llvm=module_ir([microkernel_ir(kernel) for _, kernel in tiles]),
        kernels=tuple(kernel for _, kernel in tiles),
    )
