"""Kernels of windows over images with channels last or in blocks: convolutions of small groups, maxima, means.

Channels are the lanes, so that nothing is summed across lanes. One call of a function in LLVM IR writes some adjacent
pixels of a row, vector by vector of a block of channels. Sums stay in registers, and each element of the input is
loaded once for each row of the window. Border pixels have their own functions without the taps in the padding, so that
no code compares positions at run time. The loops around the calls, in TVMScript, go down an image within a part of its
width and channels for which the rows of a window fit into the first cache. An image that does not fit into the second
cache is read row by row, as the prefetcher expects (96 channels of 112x112, stride 2, on an Emerald Rapids: 0.30 ->
0.22 ms).

Lanes of one group multiply the same element, so each input channel of a group takes a shuffle of the loaded vector, or
the broadcast of an element if a group fills a vector. One shuffle serves all pixels whose windows contain its column.
Groups larger than a vector have several vectors of sums for each pixel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from anatune.core.sizes import is_run_time, least_size
from anatune.emit.elementary import FUNCTIONS
from anatune.emit.kernels import (
    Loops,
    element_addresses,
    emit_call,
    finish_function,
    open_kernel,
    start_function,
    write_spread_loop,
)
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.emit.script import Script, write_affine
from anatune.network.kernels.window_kernel import BYTES, FLOAT, Taps, WindowKernel, tile_size
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["window_program"]

_PARALLEL_FROM = 1 << 13
"""The least multiply-adds of an image that runs in several threads: a parallel loop costs some microseconds."""
_CHUNKS = 4
"""The number of parts for each thread; several, because rows at borders take less time."""
_SHARE = 0.5
"""The share of a cache for the rows of a window; results, weights and prefetched data need the rest."""


class _TileRun(NamedTuple):
    """Adjacent tiles of a row that have the same taps."""

    first: int
    tiles: int
    taps: tuple[Taps, ...]
    """The taps of each pixel of a tile."""


def window_program(
    kernel: WindowKernel,
    name: str,
    threads: int,
    *,
    lanes: int,
    registers: int,
    caches: tuple[int, int],
    rounds: bool = False,
) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR that it calls); parameters are `WindowKernel.shapes`.

    Parameters
    ----------
    lanes : int
        The number of float32 elements in a vector.
    registers : int
        The number of vector registers.
    caches : tuple of int
        Bytes of the first and second cache.
    rounds : bool
        See `LlvmCode`.
    """
    return _WindowProgram(kernel, name, threads, lanes, registers, caches, rounds=rounds).write()


class _WindowProgram:
    """Writes the loops around the calls."""

    def __init__(
        self,
        kernel: WindowKernel,
        name: str,
        threads: int,
        lanes: int,
        registers: int,
        caches: tuple[int, int],
        *,
        rounds: bool,
    ) -> None:
        self.kernel, self.name, self.lanes, self.threads, self.rounds = kernel, name, lanes, threads, rounds
        self.functions: dict[tuple[Taps, tuple[Taps, ...], int], str] = {}
        columns = kernel.taps(1)
        self.step = max(lanes, kernel.unit)
        size = tile_size(kernel, lanes, registers)
        tiles = [tuple(columns[i : i + size]) for i in range(0, len(columns), size)]
        vectors = kernel.channels // self.step
        is_large = BYTES * math.prod(kernel.shapes["data"][2:]) > caches[1]
        limit = int(_SHARE * caches[is_large]) // (BYTES * kernel.window[0])
        self.vectors = max(
            (v for v in range(1, vectors + 1) if vectors % v == 0 and self._width(size) * v * self.step <= limit),
            default=1,
        )
        self.tail = kernel.channels % lanes
        step = next(
            n for n in range(len(tiles), 0, -1) if n == 1 or self._width(n * size) * self.vectors * self.step <= limit
        )
        self.segments = [self._runs(tiles[i : i + step], i * size, size) for i in range(0, len(tiles), step)]
        self.parts = max(1, vectors // self.vectors)
        self.has_vectors = vectors > 0

    def _width(self, pixels: int) -> int:
        """Return the number of elements in a row of the image that some adjacent pixels read."""
        kernel = self.kernel
        return (pixels - 1) * kernel.strides[1] + (kernel.window[1] - 1) * kernel.dilation[1] + 1

    @staticmethod
    def _runs(tiles: Sequence[tuple[Taps, ...]], first: int, size: int) -> list[_TileRun]:
        """Return tiles from the pixel `first` on, with equal neighbours grouped."""
        runs = []
        for taps, group in itertools.groupby(tiles):
            count = len(list(group))
            runs.append(_TileRun(first, count, taps))
            first += count * size
        return runs

    def write(self) -> tuple[str, str]:
        """Return the function and the functions that it calls."""
        kernel, text = self.kernel, Script()
        shapes = kernel.shapes
        open_kernel(text, self.name, "windows", shapes, dtypes=kernel.dtype)
        work = math.prod(shapes["result"]) * math.prod(kernel.window)
        height = kernel.outputs[0]
        images = kernel.batch * kernel.blocks
        chunks = _CHUNKS * self.threads if self.threads > 1 and (is_run_time(work) or work >= _PARALLEL_FROM) else 1
        bands = min(height, -(-chunks // (least_size(images) * self.parts)))
        total = images * self.parts * bands
        image, part, band = f"chunk // {self.parts * bands}", f"chunk // {bands} % {self.parts}", f"chunk % {bands}"
        if total == 1:
            image, part, band = "0", "0", "0"

        def write_rows() -> None:
            for segment in self.segments:
                rows = f"{band} * {height} // {bands}, ({band} + 1) * {height} // {bands}"
                with text.scope(f"for y in T.serial({rows}):"):
                    self._row(text, segment, image, part)

        write_spread_loop(text, "chunk", total, write_rows, threads=self.threads, work=work, least=_PARALLEL_FROM)
        return str(text), module_ir(
            [
                _WindowFunction(kernel, name, self.lanes, rows, taps, used, rounds=self.rounds).function
                for (rows, taps, used), name in self.functions.items()
            ]
        )

    def _row(self, text: Script, segment: Sequence[_TileRun], image: str, part: str) -> None:
        """Write the calls of one row; the taps of the row are selected once for each row."""
        depth = text.depth
        groups = [(taps, len(list(group))) for taps, group in itertools.groupby(self.kernel.taps(0))]
        end = 0
        for number, (taps, count) in enumerate(groups):
            end += count
            is_last = number == len(groups) - 1
            if not is_last:
                text.open(f"if y < {end}:")
            for run in segment:
                if self.has_vectors:
                    self._call(text, run, taps, self.lanes, image, part)
                if self.tail:
                    guard = f"if {part} == {self.parts - 1}:" if self.parts > 1 else ""
                    with text.scope(guard):
                        self._call(text, run, taps, self.tail, image, part)
            if not is_last:
                text.close()
                text.open("else:")
        text.close(text.depth - depth)

    def _call(self, text: Script, run: _TileRun, rows: Taps, used: int, image: str, part: str) -> None:
        kernel = self.kernel
        name = self.functions.setdefault((rows, run.taps, used), f"{self.name}_{len(self.functions)}")
        height, width = kernel.sizes
        channels = kernel.channels
        is_tail = used < self.lanes
        start = [(f"({part})", self.vectors * self.step)] if not is_tail and self.parts > 1 else []
        base = channels - self.tail if is_tail else 0
        line, row = width * channels, kernel.outputs[1] * channels
        corner = -kernel.before[0] * line + (run.first * kernel.strides[1] - kernel.before[1]) * channels
        starts = {
            "data": write_affine(
                [(f"({image})", height * line), ("y", kernel.strides[0] * line), *start], corner + base
            ),
            "result": write_affine(
                [(f"({image})", kernel.outputs[0] * row), ("y", row), *start], run.first * channels + base
            ),
        }
        starts["add"] = starts["result"]
        block = [(f"({image} % {kernel.blocks})", channels)] if kernel.blocks > 1 else []
        starts["bias"] = write_affine([*block, *start], base)
        each, size = kernel.weights_apart, math.prod(kernel.shapes.get("weight", ())[1:])
        weights = [*((axis, size) for axis, _ in block), *((axis, step * each) for axis, step in start)]
        starts["weight"] = write_affine(weights, base * each)
        offsets = [(tensor, starts[tensor]) for tensor in kernel.shapes]
        emit_call(text, name, offsets, str(run.tiles), str(1 if is_tail else self.vectors))


class _WindowFunction:
    """Writes the function for tiles with the same taps: ``void name(ptr, i64 offset, ..., i64 tiles, i64 vectors)``."""

    def __init__(
        self,
        kernel: WindowKernel,
        name: str,
        lanes: int,
        rows: Taps,
        taps: tuple[Taps, ...],
        used: int,
        *,
        rounds: bool,
    ) -> None:
        self.kernel, self.rows, self.taps, self.used = kernel, rows, taps, used
        self.vectors = max(1, kernel.unit // lanes)
        self.code = code = LlvmCode(lanes, FLOAT, "max" if kernel.kind == "max" else "add", rounds=rounds)
        names = list(kernel.shapes)
        start_function(code, name, len(names), "tiles", "vectors")
        self.dtype = kernel.dtype
        types = [LLVM_TYPE[dtype] for dtype in self.dtype.values()]
        bases = element_addresses(code, types)
        channels = kernel.channels
        tile_strides = {"data": len(taps) * kernel.strides[1] * channels}  # elements from one tile to the next
        tile_strides.update(dict.fromkeys(("result", "add"), len(taps) * channels))
        code.line("  br label %tile")
        code.line("tile:")
        code.line("  %t = phi i64 [0, %entry], [%t1, %tile_end]")
        for i, base in enumerate(bases):
            code.line(f"  %a{i} = phi ptr [{base}, %entry], [%a{i}_1, %tile_end]")
        code.line("  br label %part")
        code.line("part:")
        code.line("  %vector = phi i64 [0, %tile], [%following, %part_end]")
        for i in range(len(names)):
            code.line(f"  %b{i} = phi ptr [%a{i}, %tile], [%b{i}_1, %part_end]")
        self.pointers = {tensor: f"%b{i}" for i, tensor in enumerate(names)}
        self.body()
        code.line("  br label %part_end")
        code.line("part_end:")
        for i, kind in enumerate(types):
            step = self.vectors * lanes * (kernel.weights_apart if names[i] == "weight" else 1)
            code.line(f"  %b{i}_1 = getelementptr {kind}, ptr %b{i}, i64 {step}")
        code.line("  %following = add nuw nsw i64 %vector, 1")
        code.line("  %is_last = icmp eq i64 %following, %vectors")
        code.line("  br i1 %is_last, label %tile_end, label %part, !llvm.loop !0")
        code.line("tile_end:")
        for i, tensor in enumerate(names):
            code.line(f"  %a{i}_1 = getelementptr {types[i]}, ptr %a{i}, i64 {tile_strides.get(tensor, 0)}")
        code.line("  %t1 = add nuw nsw i64 %t, 1")
        code.line("  %is_end = icmp eq i64 %t1, %tiles")
        code.line("  br i1 %is_end, label %done, label %tile, !llvm.loop !1")
        code.line("done:")
        self.function = finish_function(code)

    def load(self, tensor: str, offset: int) -> str:
        """Return a vector of channels."""
        code, dtype = self.code, self.dtype[tensor]
        return code.load_vector(code.address(self.pointers[tensor], dtype, offset), dtype, 1, self.used)

    def body(self) -> None:
        """Write the computation of one vector of the pixels of a tile."""
        code, kernel, channels = self.code, self.kernel, self.kernel.channels
        steps = list(kernel.epilogue)
        places = [(pixel, vector) for pixel in range(len(self.taps)) for vector in range(self.vectors)]
        sums: dict[tuple[int, int], str] = {}
        if steps[:1] == ["bias"] and kernel.kind in ("depthwise", "grouped"):
            biases = [self.load("bias", vector * code.lanes) for vector in range(self.vectors)]
            sums = {(pixel, vector): biases[vector] for pixel, vector in places}
            steps.pop(0)
        if kernel.kind == "grouped":
            before = [sums.get(key, code.neutral()) for key in places]
            first, end = map(str, self.rows)
            sums = dict(zip(places, Loops(code, "part").over(first, end, "1", before, self.add_row), strict=True))
        else:
            self.add_rows(sums)
        for pixel, vector in places:
            value = sums.get((pixel, vector)) or code.neutral()
            if kernel.kind == "mean":
                value = code.binary("mul", value, code.constant(1.0 / max(1, self.count(pixel))))
            start = vector * code.lanes
            for step in steps:
                if step in ("bias", "add"):
                    offset = start if step == "bias" else pixel * channels + start
                    value = code.binary("add", value, self.load(step, offset))
                else:
                    value = FUNCTIONS[step](code, value)
            dtype = self.dtype["result"]
            address = code.address(self.pointers["result"], dtype, pixel * channels + start)
            code.store_vector(value, address, dtype, self.used)

    def add_rows(self, sums: dict[tuple[int, int], str]) -> None:
        """Add all rows of the window to the sums of each pixel, a vector each."""
        kernel, channels = self.kernel, self.kernel.channels
        for r in range(*self.rows):
            weights: dict[int, str] = {}
            for column, users in self.columns().items():
                offset = (r * kernel.dilation[0] * kernel.sizes[1] + column) * channels
                element = self.load("data", offset)
                for pixel, tap in users:
                    if kernel.kind == "depthwise" and tap not in weights:
                        weights[tap] = self.load("weight", (r * kernel.window[1] + tap) * channels)
                    sums[pixel, 0] = self.accumulate(sums.get((pixel, 0)), element, weights.get(tap))

    def add_row(self, row: str, before: Sequence[str]) -> list[str]:
        """Return the sums of each pixel and vector with the products of a row of the window of groups."""
        code, kernel, sums = self.code, self.kernel, list(before)
        line, size = kernel.sizes[1] * kernel.channels, kernel.group * kernel.window[1] * kernel.unit
        pointers = [self.advance("data", row, kernel.dilation[0] * line), self.advance("weight", row, size)]
        for channel in range(kernel.group):
            pointers, _ = code.fence(pointers, [], "")  # the vectors of the row's other channels need no registers
            weights: dict[tuple[int, int], str] = {}
            for column, users in self.columns().items():
                element = self.spread(pointers[0], column * kernel.channels, channel)
                for (pixel, tap), vector in itertools.product(users, range(self.vectors)):
                    if (tap, vector) not in weights:
                        offset = (channel * kernel.window[1] + tap) * kernel.unit + vector * code.lanes
                        address = code.address(pointers[1], FLOAT, offset)
                        weights[tap, vector] = code.load_vector(address, FLOAT, 1, code.lanes)
                    number = pixel * self.vectors + vector
                    sums[number] = code.multiply_add(element, weights[tap, vector], sums[number])
        return sums

    def advance(self, tensor: str, row: str, distance: int) -> str:
        """Return the address of a tensor's elements for a row of the window."""
        elements = self.code.emit(f"mul i64 {row}, {distance}")
        kind = LLVM_TYPE[self.dtype[tensor]]
        return self.code.emit(f"getelementptr {kind}, ptr {self.pointers[tensor]}, i64 {elements}")

    def spread(self, pointer: str, offset: int, channel: int) -> str:
        """Return a vector in which the lanes of each group hold one channel of the group."""
        code, group, dtype = self.code, self.kernel.group, self.dtype["data"]
        if group >= code.lanes:
            return code.load_vector(code.address(pointer, dtype, offset + channel), dtype, 0, code.lanes)
        loaded = code.load_vector(code.address(pointer, dtype, offset), dtype, 1, self.used)
        lanes = ", ".join(f"i32 {lane // group * group + channel}" for lane in range(code.lanes))
        return code.emit(f"shufflevector {code.vector} {loaded}, {code.vector} poison, <{code.lanes} x i32> <{lanes}>")

    def columns(self) -> dict[int, list[tuple[int, int]]]:
        """Return the (pixel, tap) pairs that read each column of the image, in the order of columns."""
        kernel = self.kernel
        readers: dict[int, list[tuple[int, int]]] = {}
        for pixel, taps in enumerate(self.taps):
            for tap in range(*taps):
                readers.setdefault(pixel * kernel.strides[1] + tap * kernel.dilation[1], []).append((pixel, tap))
        return dict(sorted(readers.items()))

    def count(self, pixel: int) -> int:
        """Return the number of elements that a mean divides by."""
        if self.kernel.counts_padding:
            return math.prod(self.kernel.window)
        first, end = self.taps[pixel]
        return (self.rows[1] - self.rows[0]) * (end - first)

    def accumulate(self, total: str | None, element: str, weight: str | None) -> str:
        """Return a sum, or a maximum, with one more element."""
        code = self.code
        if weight is not None:
            if total is None:
                return code.binary("mul", element, weight)
            return code.multiply_add(element, weight, total)
        if total is None:
            return element
        return code.maximum(total, element) if self.kernel.kind == "max" else code.binary("add", total, element)
