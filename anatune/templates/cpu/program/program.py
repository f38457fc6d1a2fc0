"""A CPU schedule as TVMScript: the loop nest and its calls of microkernels."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES, Access
from anatune.emit.script import Script, affine, buffer_type, open_function, shape_tuple, whole_region
from anatune.templates.cpu.program.copies import copy_function, write_copy
from anatune.templates.cpu.program.extents import RunTimeExtent, product_of_trips, repeats, trips
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.layout import Layout, Slivers, Strided
from anatune.templates.cpu.program.microkernel import microkernel_ir, module_ir
from anatune.templates.cpu.program.nest import Loop, Part
from anatune.templates.cpu.program.padding import Skip
from anatune.templates.cpu.program.register_tile import Microkernel

__all__ = ["CpuProgram", "ProgramWriter", "Tile", "packings_of", "program_of", "wide", "write_calls"]


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
    largest : int
        Largest extent of an axis whose extent is an argument.
    """

    main: str
    packing: dict[str, str]
    packed_sizes: dict[str, int]
    llvm: str
    kernels: tuple[Microkernel, ...]
    packing_llvm: str = ""
    largest: int = 1

    @property
    def workspace_bytes(self) -> int:
        """Most memory that a call of ``main`` allocates and releases again."""
        found = re.findall(r'= T\.sblock_alloc_buffer\(\((\w+ \* )?(\d+),\), "(\w+)"\)', self.main)
        return sum((self.largest if name else 1) * int(size) * DTYPE_BYTES[dtype] for name, size, dtype in found)


Tile = tuple[Mapping[str, Part], Microkernel]
"""The parts of each axis that a register tile is made of, and its microkernel."""


class ProgramWriter:
    """One program while it is written down.

    Parameters
    ----------
    kernels
        Loops and layouts.
    ahead : frozenset of str
        Operands that are taken in packed form.
    parallel : bool
        Spread the outermost loops over threads.
    moving : RunTimeExtent, optional
        The axis whose extent the shapes of the arguments say.
    """

    def __init__(
        self, kernels: Kernels, ahead: frozenset[str], *, parallel: bool, moving: RunTimeExtent | None = None
    ) -> None:
        self.workload, self.nest, self.layouts = kernels.workload, kernels.nest, kernels.layouts
        self.kernels = kernels
        self.ahead = ahead
        self.parallel = parallel
        self.moving = moving

    def _shapes(self) -> dict[str, tuple[int | str, ...]]:
        """Return the shape of every argument of the kernel."""
        found: dict[str, tuple[int | str, ...]] = {}
        for access, layout in zip(self.workload.reads, self.layouts, strict=True):
            found[access.tensor] = (layout.size,) if access.tensor in self.ahead else self._shape(access)
        for access in (*self.workload.epilogue_reads, self.workload.write):
            found[access.tensor] = self._shape(access)
        return found

    def _shape(self, access: Access) -> tuple[int | str, ...]:
        return access.shape if self.moving is None else self.moving.shape(access)

    def _count(self, layout: Strided | Slivers) -> int | str:
        """Return the elements of a copy."""
        return (
            layout.size if self.moving is None else self.moving.count(layout, self.workload.extents[self.moving.axis])
        )

    def _open(self, text: Script, name: str, shapes: Mapping[str, tuple[int | str, ...]]) -> None:
        """Write the head of the function; arguments of unknown shape are handles that a buffer is matched to."""
        dtypes = {access.tensor: access.dtype for access in self.workload.tensors}
        moving = self.moving
        unknown = [tensor for tensor, shape in shapes.items() if moving is not None and moving.name in shape]
        parameters = [
            (f"{tensor}_argument", "T.handle") if tensor in unknown else (tensor, buffer_type(shape, dtypes[tensor]))
            for tensor, shape in shapes.items()
        ]
        open_function(text, name, parameters)
        if moving is not None:
            text.line(f"{moving.name} = T.int32()")
        for tensor in unknown:
            text.line(
                f'{tensor} = T.match_buffer({tensor}_argument, {shape_tuple(shapes[tensor])}, "{dtypes[tensor]}")'
            )

    def main(self, tiles: Sequence[Tile], name: str = "main") -> str:
        """Return the function of the whole nest."""
        text = Script()
        shapes = self._shapes()
        self._open(text, name, shapes)
        pointers: list[str] = []
        for access, layout in zip(self.workload.reads, self.layouts, strict=True):
            if layout.is_copy and access.tensor not in self.ahead:
                pointers.append(f"{access.tensor}_copy")
                size = shape_tuple((self._count(layout),))
                text.line(f'{access.tensor}_copy = T.sblock_alloc_buffer({size}, "{access.dtype}")')
            else:
                pointers.append(access.tensor)
        for access, layout, pointer in zip(self.workload.reads, self.layouts, pointers, strict=True):
            if pointer != access.tensor:
                write_copy(
                    text, self.nest, self.workload, access, layout, pointer, parallel=self.parallel, moving=self.moving
                )
                shapes[pointer] = (self._count(layout),)
        keeps_sums = any(kernel.keeps_sums for _, kernel in tiles)
        if keeps_sums:
            write = self.workload.write
            dtype = ACCUMULATOR_DTYPE[self.workload.dtype]
            text.line(f'{write.tensor}_sums = T.sblock_alloc_buffer(({write.num_elements},), "{dtype}")')
        text.open('with T.sblock("nest"):')
        names = [*pointers, *(access.tensor for access in self.workload.epilogue_reads)]
        regions = [f"{name}[{whole_region(shapes[name])}]" for name in names]
        text.line(f"T.reads({', '.join(regions)})")
        written = self.workload.write
        regions = [f"{written.tensor}[{whole_region(shapes[written.tensor])}]"]
        starts = [pointers[self.layouts.index(self.kernels.start.slivers)]] if self.kernels.start is not None else []
        pointers = [*pointers, written.tensor, *names[len(pointers) :], *starts]
        if keeps_sums:
            regions.append(f"{written.tensor}_sums[0:{written.num_elements}]")
            pointers.append(f"{written.tensor}_sums")
        text.line(f"T.writes({', '.join(regions)})")
        for definition in self.moving.definitions if self.moving is not None else ():
            text.line(definition)
        self._loops(text, tiles, pointers)
        text.close()
        return str(text)

    def _loops(self, text: Script, tiles: Sequence[Tile], pointers: list[str]) -> None:
        # TVM loses a pragma of a parallel loop with 64-bit bounds
        with text.scope('for _ in T.serial(1, annotations={"pragma_import_llvm": LL}):'):
            write_calls(text, self.kernels, tiles, pointers, parallel=self.parallel, moving=self.moving)


def write_calls(
    text: Script,
    kernels: Kernels,
    tiles: Sequence[Tile],
    pointers: Sequence[str],
    origins: Sequence[str] = (),
    *,
    parallel: bool = False,
    moving: RunTimeExtent | None = None,
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
    moving : RunTimeExtent, optional
        An axis whose extent is a variable: its tiles have one part each, and microkernels of several sizes take the
        elements of a call as their last argument.
    """
    nest = kernels.nest
    outer, cache = nest.cache[: nest.num_outer], nest.cache[nest.num_outer :]
    depth = text.depth
    if parallel and math.prod(loop.extent for loop in outer) > 1:
        text.open(f"for chunk in T.parallel({product_of_trips(outer, moving)}):")
        variables = _digits("chunk", outer, moving)
    else:
        variables = {}
        for number, loop in enumerate(outer):
            text.open(f"for o{number} in range({trips(loop, moving)}):")
            variables[loop] = f"o{number}"
    for number, loop in enumerate(cache):
        text.open(f"for t{number} in range({trips(loop, moving)}):")
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
        calls = {axis: f"c_{axis}" for axis in nest.calls if repeats(axis, parts[axis], moving)}
        arguments: list[str] = []
        addresses: list[tuple[list[tuple[str, int]], int]] = []
        for layout, pointer, origin in zip(layouts, pointers, begins, strict=True):
            constant = layout.base
            terms = [(origin, 1)] if origin else []
            for loop in nest.cache:
                if moving is not None and moving.axis in calls:
                    terms.append(moving.moved(variables[loop], calls[moving.axis], layout, loop, sizes))
                else:
                    terms.append((variables[loop], layout.loop_stride(loop, sizes)))
            for axis, part in parts.items():
                constant += layout.call_stride(axis, part.start, sizes)
            for axis, variable in calls.items():
                if moving is not None and axis == moving.axis:
                    terms.append((moving.start(variable), layout.call_stride(axis, 1, sizes)))
                else:
                    terms.append((variable, layout.call_stride(axis, sizes[axis], sizes)))
            arguments.append(f"{pointer}.data, {wide(affine(terms, constant))}")
            addresses.append((terms, constant))
        arguments.append(flags)
        for _, skip in kernels.moving:
            arguments += _taps(kernels, skip, variables, parts[skip.axis], calls)
        names: dict[Hashable, str] = dict([*variables.items(), *calls.items()])
        if moving is not None and moving.axis in calls:
            names[moving.axis] = moving.share(calls[moving.axis])
        for operand, (terms, constant) in zip(kernel.operands, addresses, strict=False):
            if operand.stream is not None:
                shares = [(names[loop], share) for loop, share in operand.stream.shares.items() if loop in names]
                arguments.append(wide(affine([*terms, *shares], constant + operand.stream.distance)))
        if moving is not None and moving.axis in calls and moving.most > 1:
            arguments.append(wide(moving.size(calls[moving.axis])))
        text.line(f'T.evaluate(T.call_extern("void", "{kernel.name}", {", ".join(arguments)}))')

    _calls(text, tiles, nest.calls, call, moving)
    text.close(text.depth - depth)


def _calls(
    text: Script,
    tiles: Iterable[Tile],
    axes: Sequence[str],
    call: Callable[[Mapping[str, Part], Microkernel], None],
    moving: RunTimeExtent | None,
) -> None:
    """Write the loops of calls: all parts of an inner axis before an outer one's next, so that operands are reused.

    `tiles` are in the order of their calls.
    """
    if not axes:
        for parts, kernel in tiles:
            call(parts, kernel)
        return
    for part, own in itertools.groupby(tiles, key=lambda tile: tile[0][axes[0]]):
        count = repeats(axes[0], part, moving)
        if count:
            text.open(f"for c_{axes[0]} in range({count}):")
        _calls(text, list(own), axes[1:], call, moving)
        text.close(int(bool(count)))


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


def _digits(variable: str, loops: Sequence[Loop], moving: RunTimeExtent | None) -> dict[Loop, str]:
    """Return the mixed-radix digits of one fused variable, outer loop first."""
    digits: dict[Loop, str] = {}
    for place, loop in enumerate(loops):
        below = product_of_trips(loops[place + 1 :], moving)
        quotient = (
            variable if below == "1" else f"{variable} // ({below})" if "*" in below else f"{variable} // {below}"
        )
        digits[loop] = f"(({quotient}) % {trips(loop, moving)})"
    return digits


class Packings(NamedTuple):
    """Functions that pack operands ahead of the run, and the elements of what they make, by tensor."""

    packing: dict[str, str]
    packed_sizes: dict[str, int]


def packings_of(kernels: Kernels, ahead: frozenset[str], *, parallel: bool) -> Packings:
    """Return what packs the operands `ahead`."""
    packed = [
        (access, layout)
        for access, layout in zip(kernels.workload.reads, kernels.layouts, strict=True)
        if access.tensor in ahead
    ]
    return Packings(
        {
            access.tensor: copy_function(kernels.nest, kernels.workload, access, layout, parallel=parallel)
            for access, layout in packed
        },
        {access.tensor: layout.size for access, layout in packed},
    )


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
    return CpuProgram(
        main=ProgramWriter(kernels, ahead, parallel=parallel).main(tiles),
        **packings_of(kernels, ahead, parallel=parallel)._asdict(),
        llvm=module_ir([microkernel_ir(kernel) for _, kernel in tiles]),
        kernels=tuple(kernel for _, kernel in tiles),
    )
