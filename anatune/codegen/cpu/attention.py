"""Attention as one kernel: what is left of the scores is a block of rows in a cache.

For each batch and head, spread over threads: the keys are turned once, so that the microkernels read them as vectors;
then, for each block of queries, its scores go into a buffer, `rows` makes powers of them there, and their product with
the values, in place where those lie, goes to the result, each row times one over the sum of its powers. Both products
are schedules of the template "cpu" with their usual microkernels.

Float32; errors beside float64: those of the sums of products (``dim`` and ``keys`` terms), and a few ulp of the powers,
as the same steps have one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from anatune.codegen.cpu.rows import RowKernel, mask_row, row_function
from anatune.core.schedule import Schedule
from anatune.core.workload.access import Access, Term
from anatune.emit.kernels import Function, call, finished, loop_over, open_kernel, start_function, starts_of
from anatune.emit.llvm import LlvmCode
from anatune.emit.script import Script, affine
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.layout import PITCH_ELEMENTS
from anatune.templates.cpu.program.microkernel import microkernel_ir, module_ir
from anatune.templates.cpu.program.nest import Part
from anatune.templates.cpu.program.program import write_calls
from anatune.templates.cpu.program.register_tile import Microkernel

__all__ = ["AttentionKernel", "Blocks", "attention_program", "pitch"]

_FLOAT = "float32"


@dataclass(frozen=True)
class Blocks:
    """Blocks of queries that are treated alike.

    Attributes
    ----------
    first, count, rows : int
        First query, blocks, queries of a block.
    keys : int
        Keys that the queries may see: the first ones.
    scores, values : Schedule
        "matmul" of the template "cpu": (rows, keys, dim) and (rows, value_dim, keys), nothing packed.
    """

    first: int
    count: int
    rows: int
    keys: int
    scores: Schedule
    values: Schedule


@dataclass(frozen=True)
class AttentionKernel:
    """An attention and how it is computed; names as of `anatune.graph.operators.ATTENTION`.

    Attributes
    ----------
    shapes : tuple of tuple of int
        Of the tensors of queries, keys and values.
    places : tuple of (offset, batch, head, row)
        Where an element lies in each of them.
    mask_rows, block : int
        Of the mask, 0: there is none; which is that of row ``(b * heads + head) * queries + query``: `rows.mask_row`.
    blocks : tuple of Blocks
        All queries, in order.
    parts : int
        Threads that share a head.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    shapes: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int, int, int, int], ...]
    scale: float
    mask_rows: int
    zero_rows: bool
    blocks: tuple[Blocks, ...]
    parts: int = 1
    block: int = 0


def pitch(length: int, lanes: int) -> int:
    """Return the elements from one row of a buffer to the next for rows of `length`: whole vectors, no power of 2."""
    padded = -(-length // lanes) * lanes
    return padded + lanes if padded % PITCH_ELEMENTS == 0 else padded


def attention_program(kernel: AttentionKernel, name: str, lanes: int, threads: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR it calls).

    Its parameters: the tensors of queries, keys and values, the mask (mask_rows, keys), the result
    (batch * queries, heads * value_dim).
    """
    return _Writer(kernel, name, lanes, threads).program()


class _Writer:
    """One kernel while it is written down."""

    def __init__(self, kernel: AttentionKernel, name: str, lanes: int, threads: int) -> None:
        self.kernel, self.name, self.lanes = kernel, name, lanes
        self.tasks = kernel.batch * kernel.heads * kernel.parts
        self.workers = min(threads, self.tasks)
        self.key_pitch = pitch(kernel.keys, lanes)
        self.score_pitch = pitch(max(blocks.keys for blocks in kernel.blocks), lanes)
        most = max(blocks.rows for blocks in kernel.blocks)
        self.sizes = {"turned": kernel.dim * self.key_pitch, "scores": most * self.score_pitch, "factors": most}
        self.width = kernel.heads * kernel.value_dim
        self.text = Script()
        self.functions: list[Function] = []
        self.known: dict[object, str] = {}

    def program(self) -> tuple[str, str]:
        kernel, text = self.kernel, self.text
        shapes = dict(zip(("query", "key", "value"), kernel.shapes, strict=True))
        if kernel.mask_rows:
            shapes["mask"] = (kernel.mask_rows, kernel.keys)
        shapes["result"] = (kernel.batch * kernel.queries, self.width)
        buffers = {buffer: self.workers * size for buffer, size in self.sizes.items()}
        open_kernel(text, self.name, "attention", shapes, buffers)
        share = -(-self.tasks // self.workers)
        with text.scope(
            loop_over("worker", self.workers, parallel=self.workers > 1),
            f"for turn in range({share}):",
            f"if worker * {share} + turn < {self.tasks}:" if self.workers * share > self.tasks else "",
        ):
            self.task(f"(worker * {share} + turn)")
        return str(text), module_ir(self.functions)

    def own(self, buffer: str) -> str:
        """Return where a worker's part of a buffer begins."""
        return affine([("worker", self.sizes[buffer])])

    def task(self, task: str) -> None:
        """Write what is done for one head, or a part of its queries."""
        kernel = self.kernel
        whole = f"({task} // {kernel.parts})" if kernel.parts > 1 else task
        part = f"({task} % {kernel.parts})" if kernel.parts > 1 else ""
        batch, head = f"({whole} // {kernel.heads})", f"({whole} % {kernel.heads})"
        starts = [
            affine([(batch, place[1]), (head, place[2])], place[0]) for place in kernel.places
        ]  # fmt: skip
        self.turn_keys(starts[1])
        number = 0
        for blocks in kernel.blocks:
            count, block = str(blocks.count), "block"
            if kernel.parts > 1:
                skipped = f"({part} + {(-number) % kernel.parts}) % {kernel.parts}"
                count = f"({blocks.count + kernel.parts - 1} - {skipped}) // {kernel.parts}"
                block = f"({skipped} + block * {kernel.parts})"
            number += blocks.count
            with self.text.scope(f"for block in range({count}):"):
                first = affine([(block, blocks.rows)], blocks.first)
                self.block(blocks, starts, first, whole, batch, head)

    def turn_keys(self, start: str) -> None:
        """Write how the keys (keys, dim) of a head become (dim, keys)."""
        kernel, lanes = self.kernel, self.lanes
        row = kernel.places[1][3]
        for keys in _pieces(kernel.keys, lanes):
            for dims in _pieces(kernel.dim, lanes):
                sizes = (lanes, keys[2], dims[2], row, self.key_pitch)
                name = self.function(sizes, partial(_turning, sizes))
                with self.text.scope(f"for k in range({keys[1]}):", f"for d in range({dims[1]}):"):
                    here = affine([(start, 1), ("k", lanes * row), ("d", lanes)], keys[0] * row + dims[0])
                    there = affine(
                        [(self.own("turned"), 1), ("k", lanes), ("d", lanes * self.key_pitch)],
                        keys[0] + dims[0] * self.key_pitch,
                    )
                    call(self.text, name, [("key", here), ("turned", there)])

    def block(self, blocks: Blocks, starts: list[str], first: str, whole: str, batch: str, head: str) -> None:
        """Write scores, powers, and their product with the values, of one block of queries from `first`."""
        kernel, text = self.kernel, self.text
        query_row, value_row = kernel.places[0][3], kernel.places[2][3]
        scores, factors = self.own("scores"), self.own("factors")
        self.product(
            blocks.scores,
            {"A": query_row, "B": self.key_pitch, "C": self.score_pitch},
            ["query", "turned", "scores"],
            [affine([(starts[0], 1), (f"({first})", query_row)]), self.own("turned"), scores],
        )
        powers = RowKernel("powers", 1, blocks.keys, kernel.scale, kernel.mask_rows, kernel.zero_rows)
        name = self.function(powers, lambda name: row_function(powers, name, self.lanes))
        with text.scope(f"for r in range({blocks.rows}):"):
            arguments = [("scores", affine([(scores, 1), ("r", self.score_pitch)])), ("factors", f"{factors} + r")]
            if kernel.mask_rows:
                rows = kernel.batch * kernel.heads * kernel.queries
                row = mask_row(
                    f"{whole} * {kernel.queries} + {first} + r", rows, kernel.mask_rows, kernel.block
                )  # fmt: skip
                arguments.insert(1, ("mask", affine([(row, kernel.keys)])))
            call(self.text, name, arguments)
        result = f"(({batch} * {kernel.queries} + {first}) * {self.width} + {head} * {kernel.value_dim})"
        self.product(
            blocks.values,
            {"A": self.score_pitch, "B": value_row, "C": self.width},
            ["scores", "value", "result", "factors"],
            [scores, starts[2], result, factors],
            is_scaled=True,
        )

    def product(
        self,
        schedule: Schedule,
        rows: Mapping[str, int],
        pointers: list[str],
        origins: list[str],
        *,
        is_scaled: bool = False,
    ) -> None:
        """Write a product; `is_scaled`: each row times its factor."""
        factor = Access("factor", _FLOAT, (schedule.workload.extents["i"],), ((Term("i"),),), (0,))
        kernels = Kernels(schedule, rows, [("scale", factor)] if is_scaled else [])
        tiles: list[tuple[dict[str, Part], Microkernel]] = []
        for parts in kernels.tiles():
            microkernel = kernels.microkernel("", parts)
            name = self.function(microkernel, partial(_named, microkernel))
            tiles.append((parts, dataclasses.replace(microkernel, name=name)))
        write_calls(self.text, kernels, tiles, pointers, origins)

    def function(self, key: object, write: Callable[[str], Function]) -> str:
        """Return the name of a function, which is written once."""
        if key not in self.known:
            self.known[key] = f"{self.name}_{len(self.known)}"
            self.functions.append(write(self.known[key]))
        return self.known[key]


def _pieces(extent: int, size: int) -> list[tuple[int, int, int]]:
    """Return (start, count, size) of whole pieces of an extent and of the rest."""
    count, rest = divmod(extent, size)
    whole = [(0, count, size)] if count else []
    return [*whole, (count * size, 1, rest)] if rest else whole


def _named(kernel: Microkernel, name: str) -> Function:
    return microkernel_ir(dataclasses.replace(kernel, name=name))


def _turning(sizes: tuple[int, int, int, int, int], name: str) -> Function:
    """Return the function that turns (keys, dims), both up to a vector, into (dims, keys).

    Parameters
    ----------
    sizes : tuple of int
        Lanes; keys; dims; elements from one row to the next before, and behind.
    """
    lanes, keys, dims, row, turned_row = sizes
    code = LlvmCode(lanes, _FLOAT, "multiply_add")
    start_function(code, name, 2, spills=False)
    source, target = starts_of(code, 2)
    rows = [code.load_vector(code.address(source, _FLOAT, key * row), _FLOAT, 1, dims) for key in range(keys)]
    for place, column in enumerate(code.transpose(rows)[:dims]):
        code.store_vector(column, code.address(target, _FLOAT, place * turned_row), _FLOAT, keys)
    return finished(code)
