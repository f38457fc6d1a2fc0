"""Kernels of windows over images with the channels last: depthwise convolutions, largest elements, means.

Channels are the lanes, so that nothing is summed across them. One call of a function in LLVM IR writes some pixels
next to each other of one row, vector by vector of a block of channels: sums in registers, each element of the input
loaded once a row of the window. Borders have functions of their own that leave out the taps in the padding, so that
nothing is compared with a border while it runs. The loops around the calls, in TVMScript, go down an image within a
part of its width and channels of which the first cache holds the rows of a window; an image that the second cache
cannot hold is read row by row as it lies, for what fetches it ahead to follow (96 channels of 112x112, stride 2, on an
Emerald Rapids: 0.30 -> 0.22 ms).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anatune.core.sizes import at_run_time, fewest
from anatune.emit.elementary import FUNCTIONS
from anatune.emit.kernels import call, finished, open_kernel, spread_over, start_function, starts_of
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.emit.script import Script, affine
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["WindowKernel", "window_program"]

_FLOAT, _BYTES = "float32", 4
_PARALLEL_FROM = 1 << 13
"""Multiply-adds from which on an image is spread over threads: a parallel loop costs some microseconds."""
_CHUNKS = 4
"""Parts for each thread: rows at borders are shorter."""
_PIXELS = 14
"""Of a tile at most: from there on what a row of the window loads hardly falls, and code grows."""
_SHARE = 0.5
"""Of a cache, that the rows of a window may take: results, weights and what is fetched ahead need the rest."""

_Taps = tuple[int, int]
"""The first tap of a window in one dimension that lies inside the image, and one past the last."""


@dataclass(frozen=True)
class WindowKernel:
    """What is computed of each window.

    Attributes
    ----------
    kind : str
        "depthwise": each channel's sum of products with weights of its own; "max": the largest element, NaN if there
        is one; "mean".
    batch, blocks, channels : int
        Blocks of so many channels lie behind each other in each element of the batch; 1: channels come last. The
        batch may be known at run time alone (`core.sizes`), the other sizes may not.
    sizes, outputs : tuple of int
        Height and width of the images and of the results.
    window, strides, dilation : tuple of int
        Of height and width.
    before : tuple of int
        Padding above and on the left; what is behind follows from `outputs`.
    counts_padding : bool
        "mean": padding counts as zeros; otherwise only elements of the image count.
    epilogue : tuple of str
        Steps of what is stored, as `Workload.epilogue`.
    dtypes : tuple of str
        Of the parameters; (): float32. What is computed is float32 in any case.
    """

    kind: str
    batch: int
    blocks: int
    channels: int
    sizes: tuple[int, int]
    outputs: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]
    counts_padding: bool = False
    epilogue: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameters in order: the data, weights, what the steps take, the result."""
        image = (self.batch, self.blocks, *self.outputs, self.channels)
        shapes: dict[str, tuple[int, ...]] = {"data": (self.batch, self.blocks, *self.sizes, self.channels)}
        if self.kind == "depthwise":
            shapes["weight"] = (self.blocks, *self.window, self.channels)
        for step in self.epilogue:
            if step in ("bias", "add"):
                shapes[step] = (self.blocks, self.channels) if step == "bias" else image
        return {**shapes, "result": image}

    @property
    def dtype(self) -> dict[str, str]:
        """Dtypes of the parameters."""
        return dict(zip(self.shapes, self.dtypes or [_FLOAT] * len(self.shapes), strict=True))

    def taps(self, dimension: int) -> list[_Taps]:
        """Return the taps inside the image for each place of the result in one dimension (0: height, 1: width)."""
        size, step = self.sizes[dimension], self.dilation[dimension]
        taps = []
        for place in range(self.outputs[dimension]):
            start = place * self.strides[dimension] - self.before[dimension]
            first = min(max(0, -(start // step)), self.window[dimension])
            end = max(first, min(self.window[dimension], -((start - size) // step)))
            taps.append((first, end))
        return taps


class _Run(NamedTuple):
    """Tiles of one row next to each other that have the same taps."""

    first: int
    tiles: int
    taps: tuple[_Taps, ...]
    """Of each pixel of a tile."""


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
    """Return (the function in TVMScript, the LLVM IR it calls); its parameters are `WindowKernel.shapes`.

    Parameters
    ----------
    lanes : int
        float32 elements of a vector.
    registers : int
        Vector registers.
    caches : tuple of int
        Bytes of the first and second cache.
    rounds : bool
        As `LlvmCode`.
    """
    return _Program(kernel, name, threads, lanes, registers, caches, rounds=rounds).written()


class _Program:
    """The loops around the calls."""

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
        self.functions: dict[tuple[_Taps, tuple[_Taps, ...], int], str] = {}
        columns = kernel.taps(1)
        # a sum for each pixel, a row of weights, the element that is read, two to finish with
        most = max(1, min(_PIXELS, registers - kernel.window[1] - 3))
        count = -(-len(columns) // most)
        size = -(-len(columns) // count)
        tiles = [tuple(columns[at : at + size]) for at in range(0, len(columns), size)]
        vectors = kernel.channels // lanes
        is_large = _BYTES * math.prod(kernel.shapes["data"][2:]) > caches[1]
        room = int(_SHARE * caches[is_large]) // (_BYTES * kernel.window[0])
        self.vectors = max(
            (v for v in range(1, vectors + 1) if vectors % v == 0 and self._width(size) * v * lanes <= room), default=1
        )
        self.tail = kernel.channels % lanes
        together = next(
            n for n in range(len(tiles), 0, -1) if n == 1 or self._width(n * size) * self.vectors * lanes <= room
        )
        self.segments = [
            self._runs(tiles[at : at + together], at * size, size) for at in range(0, len(tiles), together)
        ]
        self.parts = max(1, vectors // self.vectors)
        self.has_vectors = vectors > 0

    def _width(self, pixels: int) -> int:
        """Return how much of a row of the image so many pixels read."""
        kernel = self.kernel
        return (pixels - 1) * kernel.strides[1] + (kernel.window[1] - 1) * kernel.dilation[1] + 1

    @staticmethod
    def _runs(tiles: Sequence[tuple[_Taps, ...]], first: int, size: int) -> list[_Run]:
        """Return tiles from the pixel `first` on, equal neighbours together."""
        runs = []
        for taps, group in itertools.groupby(tiles):
            count = len(list(group))
            runs.append(_Run(first, count, taps))
            first += count * size
        return runs

    def written(self) -> tuple[str, str]:
        """Return the function and what it calls."""
        kernel, text = self.kernel, Script()
        shapes = kernel.shapes
        open_kernel(text, self.name, "windows", shapes, dtypes=kernel.dtype)
        work = math.prod(shapes["result"]) * math.prod(kernel.window)
        height = kernel.outputs[0]
        images = kernel.batch * kernel.blocks
        chunks = _CHUNKS * self.threads if self.threads > 1 and (at_run_time(work) or work >= _PARALLEL_FROM) else 1
        bands = min(height, -(-chunks // (fewest(images) * self.parts)))
        total = images * self.parts * bands
        image, part, band = f"chunk // {self.parts * bands}", f"chunk // {bands} % {self.parts}", f"chunk % {bands}"
        if total == 1:
            image, part, band = "0", "0", "0"

        def one() -> None:
            for segment in self.segments:
                rows = f"{band} * {height} // {bands}, ({band} + 1) * {height} // {bands}"
                with text.scope(f"for y in T.serial({rows}):"):
                    self._row(text, segment, image, part)

        spread_over(text, "chunk", total, one, threads=self.threads, work=work, least=_PARALLEL_FROM)
        return str(text), module_ir(
            [
                _Function(kernel, name, self.lanes, rows, taps, used, rounds=self.rounds).function
                for (rows, taps, used), name in self.functions.items()
            ]
        )

    def _row(self, text: Script, segment: Sequence[_Run], image: str, part: str) -> None:
        """Write the calls of one row: which taps it has is asked once a row."""
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

    def _call(self, text: Script, run: _Run, rows: _Taps, used: int, image: str, part: str) -> None:
        kernel = self.kernel
        name = self.functions.setdefault((rows, run.taps, used), f"{self.name}_{len(self.functions)}")
        height, width = kernel.sizes
        channels = kernel.channels
        is_tail = used < self.lanes
        start = [(f"({part})", self.vectors * self.lanes)] if not is_tail and self.parts > 1 else []
        base = channels - self.tail if is_tail else 0
        line, row = width * channels, kernel.outputs[1] * channels
        corner = -kernel.before[0] * line + (run.first * kernel.strides[1] - kernel.before[1]) * channels
        places = {
            "data": affine([(f"({image})", height * line), ("y", kernel.strides[0] * line), *start], corner + base),
            "result": affine(
                [(f"({image})", kernel.outputs[0] * row), ("y", row), *start], run.first * channels + base
            ),
        }
        places["add"] = places["result"]
        own = [(f"({image} % {kernel.blocks})", channels)] if kernel.blocks > 1 else []
        places["bias"] = affine([*own, *start], base)
        places["weight"] = affine([*((axis, size * math.prod(kernel.window)) for axis, size in own), *start], base)
        offsets = [(tensor, places[tensor]) for tensor in kernel.shapes]
        call(text, name, offsets, str(run.tiles), str(1 if is_tail else self.vectors))


class _Function:
    """Writes the function of one kind of tiles: ``void name(ptr, i64 offset, ..., i64 tiles, i64 vectors)``."""

    def __init__(
        self,
        kernel: WindowKernel,
        name: str,
        lanes: int,
        rows: _Taps,
        taps: tuple[_Taps, ...],
        used: int,
        *,
        rounds: bool,
    ) -> None:
        self.kernel, self.rows, self.taps, self.used = kernel, rows, taps, used
        self.code = code = LlvmCode(lanes, _FLOAT, "max" if kernel.kind == "max" else "add", rounds=rounds)
        names = list(kernel.shapes)
        start_function(code, name, len(names), "tiles", "vectors")
        self.dtype = kernel.dtype
        types = [LLVM_TYPE[dtype] for dtype in self.dtype.values()]
        bases = starts_of(code, types)
        channels = kernel.channels
        along = {"data": len(taps) * kernel.strides[1] * channels}  # elements from one tile to the next
        along.update(dict.fromkeys(("result", "add"), len(taps) * channels))
        code.line("  br label %tile")
        code.line("tile:")
        code.line("  %t = phi i64 [0, %entry], [%t1, %tile_end]")
        for i, base in enumerate(bases):
            code.line(f"  %a{i} = phi ptr [{base}, %entry], [%a{i}_1, %tile_end]")
        code.line("  br label %part")
        code.line("part:")
        code.line("  %vector = phi i64 [0, %tile], [%following, %part]")
        for i in range(len(names)):
            code.line(f"  %b{i} = phi ptr [%a{i}, %tile], [%b{i}_1, %part]")
        self.pointers = {tensor: f"%b{i}" for i, tensor in enumerate(names)}
        self.body()
        for i, kind in enumerate(types):
            code.line(f"  %b{i}_1 = getelementptr {kind}, ptr %b{i}, i64 {lanes}")
        code.line("  %following = add nuw nsw i64 %vector, 1")
        code.line("  %is_last = icmp eq i64 %following, %vectors")
        code.line("  br i1 %is_last, label %tile_end, label %part, !llvm.loop !0")
        code.line("tile_end:")
        for i, tensor in enumerate(names):
            code.line(f"  %a{i}_1 = getelementptr {types[i]}, ptr %a{i}, i64 {along.get(tensor, 0)}")
        code.line("  %t1 = add nuw nsw i64 %t, 1")
        code.line("  %is_end = icmp eq i64 %t1, %tiles")
        code.line("  br i1 %is_end, label %done, label %tile, !llvm.loop !1")
        code.line("done:")
        self.function = finished(code)

    def load(self, tensor: str, offset: int) -> str:
        """Return a vector of channels."""
        code, dtype = self.code, self.dtype[tensor]
        return code.load_vector(code.address(self.pointers[tensor], dtype, offset), dtype, 1, self.used)

    def body(self) -> None:
        """Write one vector of the pixels of a tile."""
        code, kernel, channels = self.code, self.kernel, self.kernel.channels
        sums: list[str | None] = [None] * len(self.taps)
        steps = list(kernel.epilogue)
        if steps[:1] == ["bias"] and kernel.kind == "depthwise":
            sums = [self.load("bias", 0)] * len(self.taps)
            steps.pop(0)
        for r in range(*self.rows):
            weights: dict[int, str] = {}
            for column, users in self.columns().items():
                place = (r * kernel.dilation[0] * kernel.sizes[1] + column) * channels
                element = self.load("data", place)
                for pixel, tap in users:
                    if kernel.kind == "depthwise" and tap not in weights:
                        weights[tap] = self.load("weight", (r * kernel.window[1] + tap) * channels)
                    sums[pixel] = self.joined(sums[pixel], element, weights.get(tap))
        for pixel, total in enumerate(sums):
            value = total if total is not None else code.neutral()
            if kernel.kind == "mean":
                value = code.binary("mul", value, code.constant(1.0 / max(1, self.count(pixel))))
            for step in steps:
                if step in ("bias", "add"):
                    place = 0 if step == "bias" else pixel * channels
                    value = code.binary("add", value, self.load(step, place))
                else:
                    value = FUNCTIONS[step](code, value)
            dtype = self.dtype["result"]
            code.store_vector(value, code.address(self.pointers["result"], dtype, pixel * channels), dtype, self.used)

    def columns(self) -> dict[int, list[tuple[int, int]]]:
        """Return which (pixel, tap) read each column of the image, columns in order."""
        kernel = self.kernel
        readers: dict[int, list[tuple[int, int]]] = {}
        for pixel, taps in enumerate(self.taps):
            for tap in range(*taps):
                readers.setdefault(pixel * kernel.strides[1] + tap * kernel.dilation[1], []).append((pixel, tap))
        return dict(sorted(readers.items()))

    def count(self, pixel: int) -> int:
        """Return how many elements a mean is of."""
        if self.kernel.counts_padding:
            return math.prod(self.kernel.window)
        first, end = self.taps[pixel]
        return (self.rows[1] - self.rows[0]) * (end - first)

    def joined(self, total: str | None, element: str, weight: str | None) -> str:
        """Return what a sum is with one more element."""
        code = self.code
        if weight is not None:
            if total is None:
                return code.binary("mul", element, weight)
            return code.multiply_add(element, weight, total)
        if total is None:
            return element
        return code.maximum(total, element) if self.kernel.kind == "max" else code.binary("add", total, element)
