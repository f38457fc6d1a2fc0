"""Code generation of a CPU schedule as TVMScript: the loop nest and its calls of microkernels."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES
from anatune.emit.kernels import widen_index
from anatune.emit.script import Script, buffer_type, open_function, shape_tuple, whole_region, write_affine
from anatune.templates.cpu.program.copies import copy_function, write_copy
from anatune.templates.cpu.program.extents import ALWAYS, EXTENT, FIXED, NEVER, Extents
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.layout import Slivers, Strided, TensorLayout
from anatune.templates.cpu.program.microkernel import microkernel_ir, module_ir
from anatune.templates.cpu.program.nest import CallGroup, NestLoop
from anatune.templates.cpu.program.padding import Skip
from anatune.templates.cpu.program.prefetch import FAR_BYTES, FEWEST_REPEATS
from anatune.templates.cpu.program.register_tile import Microkernel
from anatune.templates.cpu.rules import words_of

__all__ = [
    "CpuProgram",
    "Tile",
    "main_function",
    "open_program",
    "packings_of",
    "program_of",
    "widen_index",
    "write_calls",
]


@dataclass(frozen=True)
class CpuProgram:
    """The TVMScript functions of a schedule, and the LLVM IR that they call.

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
        LLVM IR that the packing functions call.
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
        buffers = re.findall(r'= T\.sblock_alloc_buffer\(\((\w+ \* )?(\d+),\), "(\w+)"\)', self.main)
        return sum((self.largest if name else 1) * int(size) * DTYPE_BYTES[dtype] for name, size, dtype in buffers)


Tile = tuple[Mapping[str, CallGroup], Microkernel]
"""The parts of each axis that a register tile covers, and its microkernel."""


def open_program(
    text: Script, name: str, shapes: Mapping[str, tuple[int | str, ...]], dtypes: Mapping[str, str]
) -> None:
    """Write the head of a function. Arguments with a shape known at run time only are handles, matched to buffers."""
    unknown = [tensor for tensor, shape in shapes.items() if EXTENT in shape]
    parameters = [
        (f"{tensor}_argument", "T.handle") if tensor in unknown else (tensor, buffer_type(shape, dtypes[tensor]))
        for tensor, shape in shapes.items()
    ]
    open_function(text, name, parameters)
    if unknown:
        text.line(f"{EXTENT} = T.int32()")
    for tensor in unknown:
        text.line(f'{tensor} = T.match_buffer({tensor}_argument, {shape_tuple(shapes[tensor])}, "{dtypes[tensor]}")')


def main_function(
    kernels: Kernels,
    tiles: Sequence[Tile],
    ahead: frozenset[str],
    *,
    parallel: bool,
    extents: Extents = FIXED,
    name: str = "main",
) -> str:
    """Return the function of the whole nest.

    Parameters
    ----------
    kernels
        Loops and layouts.
    tiles
        Register tiles in the order of their calls.
    ahead : frozenset of str
        Operands that are passed in packed form.
    parallel : bool
        Distribute the outermost loops over threads.
    extents : Extents
        A subclass of `Extents` if the extent of an axis follows from the shapes of the arguments.
    """
    text, workload, write = Script(), kernels.workload, kernels.workload.write
    shapes = {
        layout.access.tensor: (layout.size,) if layout.access.tensor in ahead else extents.shape(layout.access)
        for layout in kernels.layouts
    }
    shapes |= {access.tensor: extents.shape(access) for access in (*workload.epilogue_reads, write)}
    open_program(text, name, shapes, {access.tensor: access.dtype for access in workload.tensors})
    pointers: list[str] = []
    copies: list[tuple[str, Strided | Slivers]] = []
    for layout in kernels.layouts:
        pointers.append(layout.access.tensor)
        if layout.is_copy and layout.access.tensor not in ahead:
            pointers[-1] = copy = f"{layout.access.tensor}_copy"
            copies.append((copy, layout))
            shapes[copy] = (extents.count(layout),)
            text.line(f'{copy} = T.sblock_alloc_buffer({shape_tuple(shapes[copy])}, "{layout.dtype}")')
    regions = [f"{write.tensor}[{whole_region(shapes[write.tensor])}]"]
    sums = []
    if any(kernel.keeps_sums for _, kernel in tiles):
        sums = [f"{write.tensor}_sums"]
        regions.append(f"{write.tensor}_sums[0:{write.num_elements}]")
        dtype = ACCUMULATOR_DTYPE[workload.dtype]
        text.line(f'{write.tensor}_sums = T.sblock_alloc_buffer(({write.num_elements},), "{dtype}")')
    if extents.whole:
        text.open(extents.whole)
    for copy, layout in copies:
        write_copy(text, kernels, layout, copy, parallel=parallel, extents=extents)
    text.open('with T.sblock("nest"):')
    added = [access.tensor for access in workload.epilogue_reads]
    read = [f"{buffer}[{whole_region(shapes[buffer])}]" for buffer in (*pointers, *added)]
    text.line(f"T.reads({', '.join(read)})")
    text.line(f"T.writes({', '.join(regions)})")
    starts = [pointers[kernels.layouts.index(kernels.start.slivers)]] if kernels.start is not None else []
    # TVM loses a pragma of a parallel loop with 64-bit bounds
    with text.scope('for _ in T.serial(1, annotations={"pragma_import_llvm": LL}):', extents.pieces):
        for definition in extents.definitions:
            text.line(definition)
        buffers = [*pointers, write.tensor, *added, *starts, *sums]
        tensors = {access.tensor: access for access in workload.tensors}
        origins = [extents.origin(tensors[buffer]) if buffer in tensors else "" for buffer in buffers]
        write_calls(text, kernels, tiles, buffers, origins, parallel=parallel, extents=extents)
    text.close()
    return str(text)


def write_calls(
    text: Script,
    kernels: Kernels,
    tiles: Sequence[Tile],
    pointers: Sequence[str],
    origins: Sequence[str] = (),
    *,
    parallel: bool = False,
    extents: Extents = FIXED,
) -> None:
    """Write the loops of a schedule and its calls of microkernels.

    If packed elements from beyond L2 are read once, sums have the innermost loops: elements are then read in the order
    in which they are stored. Source: Zen 4, blocks of 12 KB that are 192 KB apart come from memory at 11 GB/s (18 with
    prefetches), elements in order at 28 GB/s. Prefetches of what the hardware fetches in order cost a fourth.

    Parameters
    ----------
    pointers : sequence of str
        Buffers of the operands, the result, the operands of fused steps, the initial values of accumulators, partial
        sums.
    origins : sequence of str
        For each buffer the index at which its tensor begins; none: 0.
    parallel : bool
        Distribute the outermost loops over threads.
    extents : Extents
        A subclass of `Extents` if the extent of an axis is a variable. The tiles then have one part along the axis, and
        microkernels of several sizes take the number of elements of a call as their last argument.
    """
    nest = kernels.nest
    outer, cache = nest.cache[: nest.num_outer], nest.cache[nest.num_outer :]
    depth = text.depth
    variables: dict[NestLoop, str] = {}
    if parallel and math.prod(loop.extent for loop in outer) > 1:
        text.open(f"for chunk in T.parallel({extents.product(outer)}):")
        variables.update(_digits("chunk", outer, extents))
        outer = ()
    variables |= {loop: f"o{number}" for number, loop in enumerate(outer)}
    variables |= {loop: f"t{number}" for number, loop in enumerate(cache)}
    loops: tuple[NestLoop | str, ...] = (*outer, *cache, *nest.calls)
    layouts: list[TensorLayout] = [*kernels.layouts, kernels.result]
    layouts += [layout for _, layout in kernels.steps if layout is not None]
    if kernels.start is not None:
        layouts.append(kernels.start)
    if len(pointers) > len(layouts):
        layouts.append(kernels.result)  # partial sums have the layout of the result
    buffers = tuple(zip(layouts, pointers, origins or [""] * len(pointers), strict=True))
    writer = _CallWriter(text, kernels, buffers, variables, extents)
    has_streams = any(operand.stream is not None for _, kernel in tiles for operand in kernel.operands)
    condition = extents.one_pass(kernels.list_rereading_axes()) if nest.is_partial or has_streams else NEVER
    if condition != NEVER:
        with text.scope(f"if {condition}:" if condition != ALWAYS else ""):
            sequential = sorted(loops, key=lambda loop: isinstance(loop, NestLoop) and loop.axis not in nest.parts)
            replace(writer, is_one_call=True).write(tiles, sequential)
    if condition != ALWAYS:
        with text.scope("else:" if condition != NEVER else ""):
            writer.write(tiles, loops)
    text.close(text.depth - depth)


@dataclass(frozen=True)
class _CallWriter:
    """The writer of the microkernel calls inside the cache loops of a schedule.

    Attributes
    ----------
    buffers : tuple of (TensorLayout, str, str)
        Layout, pointer and origin of each tensor that microkernels take.
    variables : dict of NestLoop to str
        Variables of the cache loops.
    is_one_call : bool
        One call computes all elements of an axis whose extent is known at run time. If there are enough of them, the
        call prefetches lines far ahead. Otherwise it prefetches its own lines again, which costs nothing.
    """

    text: Script
    kernels: Kernels
    buffers: tuple[tuple[TensorLayout, str, str], ...]
    variables: dict[NestLoop, str]
    extents: Extents
    is_one_call: bool = False

    def write(self, tiles: Iterable[Tile], loops: Sequence[NestLoop | str]) -> None:
        """Write cache loops, and loops of calls along axes. All parts of an inner axis come before the next outer part.

        That order reuses operands. `tiles` are in the order of their calls.
        """
        if not loops:
            for parts, kernel in tiles:
                self._call(parts, kernel)
            return
        loop, *inner = loops
        if isinstance(loop, NestLoop):
            with self.text.scope(f"for {self.variables[loop]} in range({self.extents.trips(loop)}):"):
                self.write(tiles, inner)
            return
        for part, tiles_of_part in itertools.groupby(tiles, key=lambda tile: tile[0][loop]):
            count = self.extents.calls(loop, part)
            with self.text.scope(f"for c_{loop} in range({count}):" if count else ""):
                self.write(list(tiles_of_part), inner)

    def _call(self, parts: Mapping[str, CallGroup], kernel: Microkernel) -> None:
        """Write the call of one microkernel."""
        extents, variables = self.extents, self.variables
        calls = {axis: f"c_{axis}" for axis in self.kernels.nest.calls if extents.calls(axis, parts[axis])}
        addresses = [self._address(layout, origin, parts, calls) for layout, _, origin in self.buffers]
        arguments = [
            f"{pointer}.data, {widen_index(write_affine(*address))}"
            for (_, pointer, _), address in zip(self.buffers, addresses, strict=True)
        ]
        arguments.append(self._flags())
        for _, skip in self.kernels.moving:
            arguments += self._taps(skip, parts[skip.axis], calls)
        call_shares = [(axis, extents.share(axis, call)) for axis, call in calls.items()]
        names: dict[Hashable, str] = dict([*variables.items(), *call_shares])
        for operand, (terms, constant) in zip(kernel.operands, addresses, strict=False):
            if operand.stream is not None:
                shares = [(names[loop], share) for loop, share in operand.stream.shares.items() if loop in names]
                distance, pace = operand.stream.distance, "1"
                if self.is_one_call and operand.stream.far_rows:
                    (rows,) = extents.arguments(calls) or ["1"]
                    is_far = f"T.Select({rows} >= {operand.stream.far_rows}, 1, 0)"
                    shares, distance = [(is_far, FAR_BYTES // DTYPE_BYTES[operand.dtype])], 0
                    pace = str(FEWEST_REPEATS)
                arguments.append(widen_index(write_affine([*terms, *shares], constant + distance)))
                if operand.stream.far_rows:
                    arguments.append(widen_index(pace))
        arguments += [widen_index(argument) for argument in extents.arguments(calls)]
        self.text.line(f'T.evaluate(T.call_extern("void", "{kernel.name}", {", ".join(arguments)}))')

    def _address(
        self, layout: TensorLayout, origin: str, parts: Mapping[str, CallGroup], calls: Mapping[str, str]
    ) -> tuple[list[tuple[str, int]], int]:
        """Return the terms of the address of a tensor, and its constant part."""
        sizes = {axis: part.size for axis, part in parts.items()}
        terms = [(origin, 1)] if origin else []
        terms += [self.extents.loop_term(name, calls, layout, loop, sizes) for loop, name in self.variables.items()]
        for axis, variable in calls.items():
            first, elements = self.extents.start(axis, variable, sizes[axis])
            terms.append((first, layout.call_stride(axis, elements, sizes)))
        return terms, layout.base + sum(layout.call_stride(axis, part.start, sizes) for axis, part in parts.items())

    def _flags(self) -> str:
        """Return the flags of a call of a sum: bit 0, not the first one; bit 1, not the last one."""
        nest = self.kernels.nest
        sums = [(name, loop) for loop, name in self.variables.items() if loop.axis not in nest.parts]
        if not sums:
            return "0"
        position, end = " + ".join(name for name, _ in sums), sum(loop.extent - 1 for _, loop in sums)
        return f'T.Cast("int32", T.Select({position} > 0, 1, 0) + T.Select({position} < {end}, 2, 0))'

    def _taps(self, skip: Skip, part: CallGroup, calls: Mapping[str, str]) -> tuple[str, str]:
        """Return the first tap inside the tensor and one past the last, as expressions."""
        terms = [(name, loop.step * skip.stride) for loop, name in self.variables.items() if loop.axis == skip.axis]
        if skip.axis in calls:
            terms.append((calls[skip.axis], part.size * skip.stride))
        low = write_affine(terms, part.start * skip.stride + skip.offset)
        step = skip.dilation
        first = f"T.max(0, ({step - 1} - ({low})) // {step})"
        taps = self.kernels.workload.extents[skip.window]
        return widen_index(first), widen_index(f"T.min({taps}, ({skip.size + step - 1} - ({low})) // {step})")


def _digits(variable: str, loops: Sequence[NestLoop], extents: Extents) -> dict[NestLoop, str]:
    """Return the mixed-radix digits of one fused variable, outer loop first."""
    digits: dict[NestLoop, str] = {}
    for number, loop in enumerate(loops):
        below = extents.product(loops[number + 1 :])
        quotient = (
            variable if below == "1" else f"{variable} // ({below})" if "*" in below else f"{variable} // {below}"
        )
        digits[loop] = f"(({quotient}) % {extents.trips(loop)})"
    return digits


def packings_of(kernels: Kernels, ahead: frozenset[str], *, parallel: bool) -> tuple[dict[str, str], dict[str, int]]:
    """Return the functions that pack operands `ahead` of the run, and the sizes of the packed forms, by tensor."""
    packed = [layout for layout in kernels.layouts if layout.access.tensor in ahead]
    functions = {layout.access.tensor: copy_function(kernels, layout, parallel=parallel) for layout in packed}
    return functions, {layout.access.tensor: layout.size for layout in packed}


def program_of(
    schedule: Schedule,
    *,
    threads: int = 1,
    prepacked: bool = True,
    prefix: str = "microkernel",
    extents: Extents = FIXED,
) -> CpuProgram:
    """Write a schedule of the CPU template as TVMScript and LLVM IR.

    Parameters
    ----------
    threads : int
        1 makes the parallel loop serial.
    prepacked : bool
        Operands that are packed ahead are passed in packed form; otherwise the kernel packs them in every run.
    prefix : str
        Prefix of the names of the microkernels, which are global in a library.
    extents : Extents
        `OneByOne` if an axis of extent 1 has more elements at run time.

    Raises
    ------
    SpaceError
        The template is another one, or options contradict the tiles.
    BuildError
        A tensor is too large for 32-bit indices.
    """
    kernels = Kernels(schedule)
    ahead = frozenset(words_of(schedule, "packed_ahead") if prepacked else ())
    parallel = bool(schedule.options.get("parallel", False)) and threads > 1
    tiles = [(parts, kernels.microkernel(f"{prefix}_{number}", parts)) for number, parts in enumerate(kernels.tiles())]
    packing, packed_sizes = packings_of(kernels, ahead, parallel=parallel)
    return CpuProgram(
        main=main_function(kernels, tiles, ahead, parallel=parallel, extents=extents),
        packing=packing,
        packed_sizes=packed_sizes,
        llvm=module_ir([microkernel_ir(kernel) for _, kernel in tiles]),
        kernels=tuple(kernel for _, kernel in tiles),
    )
