"""Code generation of a Winograd schedule as TVMScript and LLVM IR: the loops around transforms and microkernels.

`winograd.space` shows the loops, and `layout` describes the buffers. If channels of the inputs are neighbours in
memory, each tile is transformed in place or, at the edge of the image, from a copy with zeros. If columns are
neighbours, a row of tiles is transposed first, one vector of channels at a time (`bands`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anatune.core.generation import MOST_ELEMENTS, too_large_text
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.emit.kernels import CARRIER, emit_call, widen_index
from anatune.emit.script import Script, buffer_type, open_function, whole_region, write_affine
from anatune.errors import BuildError
from anatune.templates.cpu.program.extents import EXTENT, FIXED, Extents
from anatune.templates.cpu.program.microkernel import microkernel_ir, module_ir
from anatune.templates.cpu.program.program import CpuProgram, open_program
from anatune.templates.cpu.rules import cpu_of
from anatune.templates.winograd.program.functions import (
    input_functions,
    output_functions,
    product_kernel,
    weight_functions,
)
from anatune.templates.winograd.program.layout import WinogradLayout

__all__ = ["program_of"]


class _WinogradWriter:
    """The writer of the program of one schedule."""

    def __init__(self, schedule: Schedule, threads: int, prepacked: bool, prefix: str, extents: Extents) -> None:
        self.workload: Workload = schedule.workload
        self.extents = extents
        self.layout = WinogradLayout(schedule)
        self.kernel = product_kernel(f"{prefix}_product", self.layout, cpu_of(schedule))
        self.prepacked, self.prefix = prepacked, prefix
        self.split = schedule.options.get("split") if threads > 1 else None
        layout = self.layout
        parallel = {"tiles": layout.blocks, "channels": layout.chunks}.get(str(self.split), 1)
        self.workers = min(threads, parallel) if extents is FIXED else threads
        self.data, self.weight = self.workload.reads
        self.output = self.workload.write
        convolution = layout.convolution
        self.dtypes = {"v": convolution.transformed, "m": convolution.summed, "gathered": self.data.dtype}
        self.sizes = {"v": layout.data_size, "m": layout.product_size, "gathered": layout.gathered_size}
        # transformed weights are stored in a buffer of the dtype of the weights
        self.packed_size = layout.weight_size * DTYPE_BYTES[convolution.transformed] // DTYPE_BYTES[self.weight.dtype]
        many = self.workers if self.split else 1
        self.copies = {"v": many if self.split == "tiles" else 1, "m": many, "gathered": many}
        for name, size in (*self.sizes.items(), (self.weight.tensor, self.packed_size)):
            if size * self.copies.get(name, 1) > MOST_ELEMENTS:
                raise BuildError(too_large_text(name, size * self.copies.get(name, 1)))

    def main(self) -> str:
        """Return the kernel."""
        text = Script()
        arguments = (self.data, self.weight, *self.workload.epilogue_reads, self.output)
        shapes = {access.tensor: self.extents.shape(access) for access in arguments}
        if self.prepacked:
            shapes[self.weight.tensor] = (self.packed_size,)
        open_program(text, "main", shapes, {access.tensor: access.dtype for access in arguments})
        weights = self.weight.tensor
        if not self.prepacked:
            weights = f"{self.weight.tensor}_copy"
            text.line(f'{weights} = T.sblock_alloc_buffer(({self.packed_size},), "{self.weight.dtype}")')
        for name, size in self.sizes.items():
            text.line(f'{name}_copy = T.sblock_alloc_buffer(({size * self.copies[name]},), "{self.dtypes[name]}")')
        if not self.prepacked:
            self.transform_weights(text, weights)
        text.open('with T.sblock("nest"):')
        reads = [self.data, *self.workload.epilogue_reads]
        regions = [f"{access.tensor}[{whole_region(shapes[access.tensor])}]" for access in reads]
        text.line(f"T.reads({', '.join([*regions, f'{weights}[0:{self.packed_size}]'])})")
        regions = [f"{name}_copy[0:{size * self.copies[name]}]" for name, size in self.sizes.items()]
        text.line(
            f"T.writes({', '.join([f'{self.output.tensor}[{whole_region(shapes[self.output.tensor])}]', *regions])})"
        )
        with text.scope(CARRIER):
            layout = self.layout
            blocks, tiles = str(layout.blocks), str(layout.num_tiles)
            if self.extents is not FIXED:
                tiles = f"{EXTENT} * {layout.tile_rows * layout.tile_columns}"
                blocks = f"T.truncdiv({tiles} + {layout.block - 1}, {layout.block})"
            with self._spread(text, "block", blocks, "tiles", "0") as (block, worker):
                first = f"{block} * {layout.block}"
                count = str(layout.block)
                if self.extents is not FIXED or layout.num_tiles < layout.blocks * layout.block:
                    count = f"T.min({count}, {tiles} - {first})"
                self._inputs(text, first, count, worker)
                with self._spread(text, "chunk", str(layout.chunks), "channels", worker) as (chunk, own_worker):
                    self._products(text, chunk, count, weights, (worker, own_worker))
                    self._outputs(text, chunk, first, count, own_worker)
        text.close()
        return str(text)

    @contextmanager
    def _spread(self, text: Script, name: str, count: str, split: str, worker: str) -> Iterator[tuple[str, str]]:
        """Open a loop, distributed over the workers if that is the split; yield its index and the number of the worker.

        `worker` is the number for the loops around.
        """
        if self.split != split or self.workers < 2:
            with text.scope(f"for {name} in range({count}):"):
                yield name, worker
            return
        number = self.workers
        with text.scope(
            f"for {name}_worker in T.parallel({number}):",
            f"for {name}_turn in range(({count} - {name}_worker + {number - 1}) // {number}):",
        ):
            yield f"({name}_turn * {number} + {name}_worker)", f"{name}_worker"

    def _call(self, text: Script, function: str, buffers: list[tuple[str, str]], *numbers: str) -> None:
        """Write a call with buffers and offsets, then numbers."""
        emit_call(text, f"{self.prefix}_{function}", buffers, *numbers)

    def _buffer(self, name: str, worker: str, *terms: tuple[str, int]) -> tuple[str, str]:
        """Return a work buffer, and an offset in the part of it that belongs to a worker."""
        first = [(worker, self.sizes[name])] if worker != "0" else []
        return f"{name}_copy", write_affine([*first, *terms])

    def _inputs(self, text: Script, first: str, count: str, worker: str) -> None:
        """Write the input transforms of a block."""
        if self.layout.convolution.channels_last:
            with self._spread(text, "tile", count, "channels", worker) as (tile, own_worker):
                self._tile(text, tile, first, (worker, own_worker))
            return
        with self._spread(text, "vector", str(self.layout.channel_vectors), "channels", worker) as (vector, own_worker):
            self._bands(text, vector, first, count, (worker, own_worker))

    def _tile(self, text: Script, tile: str, first: str, workers: tuple[str, str]) -> None:
        """Write the transform of a tile whose channels are neighbours in memory."""
        layout, convolution = self.layout, self.layout.convolution
        size, inputs = layout.transform.outputs, layout.transform.inputs
        padded, zero = layout.channel_vectors * layout.data_lanes, f"T.{self.data.dtype}({convolution.zero_point})"
        image, row, column = self._tile_position(f"({first} + {tile})")
        y, x = write_affine([(row, size)], -convolution.top), write_affine([(column, size)], -convolution.left)
        pitch = convolution.data
        target = self._buffer("v", workers[0], (tile, layout.data_row))
        conditions = [f"0 <= {y}", f"{y} <= {convolution.height - inputs}"]
        conditions += [f"0 <= {x}", f"{x} <= {convolution.width - inputs}"]
        terms = [(image, pitch["n"]), (f"({y})", pitch["y"]), (f"({x})", pitch["x"])]
        vectors, num_rest = divmod(convolution.channels, layout.data_lanes)
        with text.scope(f"if {' and '.join(f'({condition})' for condition in conditions)}:"):
            self._call(text, "input", [(self.data.tensor, write_affine(terms)), target], str(vectors))
            if num_rest:
                done = vectors * layout.data_lanes
                buffers = [(self.data.tensor, write_affine(terms, done)), (target[0], f"{target[1]} + {done}")]
                self._call(text, "input_rest", buffers, "1")
        source = self._buffer("gathered", workers[1])
        with text.scope("else:"):
            with text.scope(f"for r in range({inputs}):", f"for s in range({inputs}):"):
                target_offset = write_affine([(source[1], 1), ("r", inputs * padded), ("s", padded), ("c", 1)])
                bounds = f"(0 <= {y} + r) and ({y} + r < {convolution.height})"
                bounds += f" and (0 <= {x} + s) and ({x} + s < {convolution.width})"
                index = self._index(image, f"{y} + r", f"{x} + s", "c")
                with text.scope(f"if {bounds}:"):
                    with text.scope(f"for c in range({convolution.channels}):"):
                        text.line(f"gathered_copy[{target_offset}] = {self.data.tensor}[{index}]")
                    if num_rest:
                        with text.scope(f"for c in range({convolution.channels}, {padded}):"):
                            text.line(f"gathered_copy[{target_offset}] = {zero}")
                with text.scope("else:", f"for c in range({padded}):"):
                    text.line(f"gathered_copy[{target_offset}] = {zero}")
            self._call(text, "gathered", [source, target], str(layout.channel_vectors))

    def _index(self, *parts: str) -> str:
        """Return the index of an element of the data, given its image, row, column and channel."""
        pitch = self.layout.convolution.data
        order = sorted(zip(("n", "y", "x", "c"), parts, strict=True), key=lambda part: -pitch[part[0]])
        return ", ".join(part for _, part in order)

    def _bands(self, text: Script, vector: str, first: str, count: str, workers: tuple[str, str]) -> None:
        """Write the transforms of a vector of channels, one row of tiles after another."""
        layout, convolution = self.layout, self.layout.convolution
        size, columns = layout.transform.outputs, layout.tile_columns
        num_whole, num_rest = divmod(convolution.channels, layout.lanes)
        start = f"({first}) // {columns}"
        text.open(f"for line in range(({first} + {count} - 1) // {columns} - {start} + 1):")
        line = f"({start} + line)"
        low = f"T.max(0, {first} - {line} * {columns})"
        high = f"T.min({columns}, {first} + {count} - {line} * {columns})"
        image, row = f"({line} // {layout.tile_rows})", f"({line} % {layout.tile_rows})"
        source = self._buffer("gathered", workers[1])
        offset = write_affine([(image, convolution.data["n"]), (vector, layout.lanes * convolution.data["c"])])
        numbers = (
            write_affine([(row, size)], -convolution.top),
            write_affine([(low, size)], -convolution.left),
            write_affine([(f"({high} - {low})", size)], 2),
        )
        for name, condition in (("band", f"{vector} < {num_whole}"), ("band_rest", f"{vector} >= {num_whole}")):
            if (name == "band_rest" and not num_rest) or (name == "band" and not num_whole):
                continue
            with text.scope(f"if {condition}:" if num_rest and num_whole else ""):
                self._call(text, name, [(self.data.tensor, offset), source], *numbers)
        tile = f"({line} * {columns} + {low} - {first})"
        target = self._buffer("v", workers[0], (tile, layout.data_row), (vector, layout.lanes))
        self._call(text, "gathered", [source, target], f"{high} - {low}")
        text.close()

    def _products(self, text: Script, chunk: str, count: str, weights: str, workers: tuple[str, str]) -> None:
        """Write the products of a block and a chunk of the output channels."""
        layout = self.layout
        slivers = f"T.min({layout.slivers}, {layout.all_slivers} - {chunk} * {layout.slivers})"
        calls = f"({count} + {layout.rows - 1}) // {layout.rows}"
        with text.scope(
            f"for t in range({layout.transform.frequencies}):",
            f"for sliver in range({slivers if layout.all_slivers % layout.slivers else layout.slivers}):",
            f"for call in range({calls}):",
        ):
            data = ("t", layout.data_pitch), ("call", layout.rows * layout.data_row)
            weight_terms = (chunk, layout.weight_chunk), ("t", layout.weight_pitch), ("sliver", layout.weight_sliver)
            target = ("t", layout.product_pitch), ("call", layout.rows * layout.product_row), ("sliver", layout.width)
            buffers = [self._buffer("v", workers[0], *data), (weights, write_affine(weight_terms))]
            buffers.append(self._buffer("m", workers[1], *target))
            arguments = [*(f"{name}.data, {widen_index(offset)}" for name, offset in buffers), "0"]
            if (stream := self.kernel.operands[1].stream) is not None:
                arguments.append(
                    widen_index(write_affine([*weight_terms, ("call", stream.shares["call"])], stream.distance))
                )
            text.line(f'T.evaluate(T.call_extern("void", "{self.prefix}_product", {", ".join(arguments)}))')

    def _outputs(self, text: Script, chunk: str, first: str, count: str, worker: str) -> None:
        """Write the output transforms of a block and a chunk of the output channels."""
        layout, convolution = self.layout, self.layout.convolution
        size, pitch, lanes = layout.transform.outputs, convolution.output, layout.lanes
        width = layout.product_row
        image, row, column = self._tile_position(f"({first} + tile)")
        terms = [(image, pitch["n"]), (row, size * pitch["y"]), (column, size * pitch["x"])]
        num_whole, num_rest = divmod(convolution.filters, lanes)
        vectors = f"T.min({width // lanes}, {num_whole} - {chunk} * {width // lanes})"
        num_rows = f"T.min({size}, {convolution.rows} - {row} * {size})"
        num_columns = f"T.min({size}, {convolution.columns} - {column} * {size})"
        reading = [step for step in self.workload.epilogue if STEP_OPERANDS[step] is not None]
        extra = list(zip(reading, (access.tensor for access in self.workload.epilogue_reads), strict=True))

        def buffers_at(done: int) -> list[tuple[str, str]]:
            """Return the buffers of a call, for vectors that start `done` channels after the first one of the chunk."""
            channel = f"({chunk} * {width} + {done})" if done >= 0 else f"{num_whole * lanes}"
            inside = [("tile", width), (f"({channel} - {chunk} * {width})", 1)]
            result_offset = write_affine([*terms, (channel, pitch["f"])])
            buffers = [self._buffer("m", worker, *inside), (self.output.tensor, result_offset)]
            return buffers + [(tensor, result_offset if step == "add" else channel) for step, tensor in extra]

        with text.scope(f"for tile in range({count}):"):
            if num_whole:
                with text.scope(f"if {vectors} > 0:" if num_rest else ""):
                    self._call(text, "output", buffers_at(0), vectors, num_rows, num_columns)
            if num_rest:
                with text.scope(f"if {chunk} == {layout.chunks - 1}:" if layout.chunks > 1 else ""):
                    self._call(text, "output_rest", buffers_at(-1), "1", num_rows, num_columns)

    def _tile_position(self, tile: str) -> tuple[str, str, str]:
        """Return the image of a tile, and its row and column among the tiles of the image."""
        layout = self.layout
        image = f"({tile} // {layout.tile_rows * layout.tile_columns})"
        return image, f"({tile} // {layout.tile_columns} % {layout.tile_rows})", f"({tile} % {layout.tile_columns})"

    # -- weights -----------------------------------------------------------------------------------------------

    def packing(self) -> str:
        """Return the function that transforms the weights ahead of the run."""
        text = Script()
        name, dtype = self.weight.tensor, self.weight.dtype
        packed = ("packed", buffer_type((self.packed_size,), dtype))
        open_function(text, f"pack_{name}", [(name, buffer_type(self.weight.shape, dtype)), packed])
        self.transform_weights(text, "packed")
        return str(text)

    def transform_weights(self, text: Script, target: str) -> None:
        """Write the loops that fill `target` with the transformed weights, and with zeros for missing channels."""
        layout, convolution = self.layout, self.layout.convolution
        lanes, source = layout.lanes, convolution.weight
        num_whole, num_rest = divmod(convolution.filters, lanes)
        text.open(f'with T.sblock("{target}_fill"):')
        text.line(f"T.reads({self.weight.tensor}[{whole_region(self.weight.shape)}])")
        text.line(f"T.writes({target}[0:{self.packed_size}])")
        if layout.weight_size > layout.transform.frequencies * convolution.channels * convolution.filters:
            with text.scope(f"for i in range({self.packed_size}):"):
                text.line(f"{target}[i] = T.{self.weight.dtype}(0)")
        chunk_vectors, group = layout.slivers * layout.vectors, convolution.group
        with text.scope(CARRIER):
            for name, vectors, start in (("weights", num_whole, 0), ("weights_rest", min(num_rest, 1), num_whole)):
                if not vectors:
                    continue
                with text.scope(
                    f"for f in range({start}, {start + vectors}):", f"for c in range({convolution.channels}):"
                ):
                    source_offset = write_affine([("f", lanes * source["f"]), ("c", source["c"])])
                    chunk, sliver = f"(f // {chunk_vectors})", f"(f % {chunk_vectors} // {layout.vectors})"
                    target_terms = [(chunk, layout.weight_chunk), (sliver, layout.weight_sliver)]
                    target_terms += [(f"(c // {group})", group * layout.width)] if group > 1 else [("c", layout.width)]
                    target_terms += [(f"(c % {group})", 1)] if group > 1 else []
                    target_terms.append((f"(f % {layout.vectors})", lanes * group))
                    self._call(text, name, [(self.weight.tensor, source_offset), (target, write_affine(target_terms))])
        text.close()


def program_of(
    schedule: Schedule, *, threads: int = 1, prepacked: bool = True, prefix: str = "winograd", extents: Extents = FIXED
) -> CpuProgram:
    """Write a schedule of the template "winograd" as TVMScript and LLVM IR.

    Parameters
    ----------
    threads : int
        1 makes the parallel loop serial.
    prepacked : bool
        The weights are passed in transformed form; otherwise the kernel transforms them in every run.
    prefix : str
        Prefix of the names of the functions.
    extents : Extents
        A subclass of `Extents` if the number of images is known at run time only.

    Raises
    ------
    BuildError
        A buffer is too large for 32-bit indices.
    """
    writer = _WinogradWriter(schedule, threads, prepacked, prefix, extents)
    layout, kernel, name = writer.layout, writer.kernel, writer.weight.tensor
    functions = [*input_functions(prefix, layout, writer.data.dtype), microkernel_ir(kernel)]
    functions += output_functions(prefix, layout, schedule.workload)
    weights = weight_functions(prefix, layout, writer.weight.dtype)
    return CpuProgram(
        main=writer.main(),
        packing={name: writer.packing()} if prepacked else {},
        packed_sizes={name: writer.packed_size} if prepacked else {},
        llvm=module_ir(functions if prepacked else [*functions, *weights]),
        kernels=(kernel,),
        packing_llvm=module_ir(weights) if prepacked else "",
    )
