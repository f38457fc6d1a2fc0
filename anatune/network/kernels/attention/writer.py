"""The loops of an attention kernel over heads, and the parts that all blocks of queries have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from anatune.core.sizes import Size, is_run_time
from anatune.core.workload.access import Access, Term
from anatune.emit.kernels import Function, emit_call, open_kernel, write_loop_head
from anatune.emit.script import Script, write_affine
from anatune.network.kernels.attention.kernel import AttentionKernel
from anatune.network.kernels.attention.keys import write_transpose
from anatune.network.kernels.rows import RowKernel, mask_row, row_function
from anatune.templates.cpu.program.microkernel import microkernel_ir, module_ir
from anatune.templates.cpu.program.register_tile import Microkernel

__all__ = ["AttentionWriter", "HeadExpressions", "kernel_function", "scale_step"]


class HeadExpressions:
    """Expressions for one head, or for a part of its queries.

    Attributes
    ----------
    whole, batch, head : str
        The index of the head among all batches, the index of the batch, and the index of the head in the batch.
    part : str
        The index of the part of the queries, "0" if there is only one.
    starts : list of str
        The offsets of the queries, keys and values of the head.
    """

    def __init__(self, kernel: AttentionKernel, task: str, parts: int = 1) -> None:
        heads = kernel.heads
        self.whole = f"({task} // {parts})" if parts > 1 else task
        self.part = f"({task} % {parts})" if parts > 1 else "0"
        self.batch, self.head = f"({self.whole} // {heads})", f"({self.whole} % {heads})"
        self.starts = [
            write_affine([(self.batch, layout[1]), (f"({self.head} // {layout[4]})", layout[2])], layout[0])
            for layout in kernel.places
        ]  # fmt: skip


class AttentionWriter:
    """Writes one attention kernel.

    Attributes
    ----------
    score_pitch : int
        The stride of the scores of neighbouring queries, in elements.
    numbers : dict of str to str
        The expressions in the program for the symbols of microkernels.
    """

    score_pitch: int

    def __init__(self, kernel: AttentionKernel, name: str, lanes: int, threads: int, sizes: dict[str, int]) -> None:
        self.kernel, self.name, self.lanes, self.sizes = kernel, name, lanes, sizes
        self.tasks = kernel.batch * kernel.heads * kernel.parts
        self.workers = threads if is_run_time(self.tasks) else min(threads, self.tasks)
        self.width = kernel.heads * kernel.value_dim
        self.text = Script()
        self.functions: list[Function] = []
        self.names: dict[object, str] = {}
        self.numbers: dict[str, str] = {}
        self.query_row, self.key_row, self.value_row = (
            self.stride(f"{tensor}_row", layout[3])
            for tensor, layout in zip(("query", "key", "value"), kernel.places, strict=True)
        )

    def stride(self, name: str, size: int) -> int:
        """Return a size for microkernels; a size that is known only at run time becomes a symbol."""
        if not isinstance(size, Size):
            return size
        self.numbers[name] = str(size)
        return Size.symbol(name, int(size))

    def program(self) -> tuple[str, str]:
        """Return the function in TVMScript and its LLVM IR."""
        kernel, text = self.kernel, self.text
        shapes = dict(zip(("query", "key", "value"), kernel.shapes, strict=True))
        if kernel.mask_rows:
            shapes["mask"] = (kernel.mask_rows, kernel.keys)
        shapes["result"] = (kernel.batch * kernel.queries, self.width)
        open_kernel(
            text, self.name, "attention", shapes, {name: self.workers * size for name, size in self.sizes.items()}
        )
        self.write_loops()
        return str(text), module_ir(self.functions)

    def write_loops(self) -> None:
        """Write the loops over heads, or over parts of their queries."""
        self.spread(self.tasks, lambda task: self.write(HeadExpressions(self.kernel, task, self.kernel.parts)))

    def spread(self, tasks: int, write: Callable[[str], None]) -> None:
        """Write loops over tasks, which the workers share; `write` writes the one of an index."""
        share = (tasks + self.workers - 1) // self.workers
        is_uneven = is_run_time(share) or self.workers * share > tasks
        with self.text.scope(
            write_loop_head("worker", self.workers, parallel=self.workers > 1),
            f"for turn in range({share}):",
            f"if worker * {share} + turn < {tasks}:" if is_uneven else "",
        ):
            write(f"(worker * {share} + turn)")

    def write(self, head: HeadExpressions) -> None:
        """Write the computation of one head, or of a part of its queries."""
        raise NotImplementedError

    def offset(self, buffer: str) -> str:
        """Return the offset of a worker's part of a buffer."""
        return write_affine([("worker", self.sizes[buffer])])

    def transpose_keys(self, start: str, turned_row: int, offset_of: Callable[[str], str]) -> None:
        """Write the transposition of a head's keys (keys, dim) to (dim, keys); `offset_of` maps vectors to offsets."""
        keys, lanes = self.kernel.keys, self.lanes
        name = self.function(
            ("turning", turned_row), partial(write_transpose, lanes, self.kernel.dim, self.key_row, turned_row)
        )
        numbers = [self.numbers["key_row"]] if "key_row" in self.numbers else []
        with self.text.scope(f"for v in range({(keys + lanes - 1) // lanes}):"):
            offset = write_affine([(start, 1), (f"v * {lanes}", self.kernel.places[1][3])])
            places = [("key", offset), ("turned", offset_of("v"))]
            emit_call(self.text, name, places, f"T.min({lanes}, {keys} - v * {lanes})", *numbers)

    def write_powers(self, rows: str, first: str, keys: int, head: HeadExpressions, *length: str) -> None:
        """Write the computation of powers, and of the factor of each row, from the scores of queries from `first` on.

        Parameters
        ----------
        keys : int
            The keys of a row; if this is a symbol, `length` is its value.
        """
        kernel, factors = self.kernel, self.offset("factors")
        powers = RowKernel("powers", 1, keys, kernel.scale, int(kernel.mask_rows > 0), kernel.zero_rows)
        name = self.function(powers, lambda name: row_function(powers, name, self.lanes))
        with self.text.scope(f"for r in range({rows}):"):
            scores = write_affine([(self.offset("scores"), 1), ("r", self.score_pitch)])
            arguments = [("scores", scores), ("factors", f"{factors} + r")]
            if kernel.mask_rows:
                all_rows = kernel.batch * kernel.heads * kernel.queries
                row = mask_row(
                    f"{head.whole} * {kernel.queries} + {first} + r", all_rows, kernel.mask_rows, kernel.block
                )  # fmt: skip
                arguments.insert(1, ("mask", write_affine([(row, kernel.keys)])))
            emit_call(self.text, name, arguments, *length)

    def result_offset(self, first: str, head: HeadExpressions) -> str:
        """Return the offset of the result of a query of a head."""
        kernel = self.kernel
        return f"(({head.batch} * {kernel.queries} + {first}) * {self.width} + {head.head} * {kernel.value_dim})"

    def function(self, key: object, write: Callable[[str], Function]) -> str:
        """Return the name of a function, which is written only once."""
        if key not in self.names:
            self.names[key] = f"{self.name}_{len(self.names)}"
            self.functions.append(write(self.names[key]))
        return self.names[key]


def scale_step(rows: int) -> list[tuple[str, Access]]:
    """Return the fused step that multiplies each row of a product by its factor."""
    return [("scale", Access("factor", "float32", (rows,), ((Term("i"),),), (0,)))]


def kernel_function(kernel: Microkernel, name: str) -> Function:
    """Return the function of a microkernel under another name."""
    return microkernel_ir(dataclasses.replace(kernel, name=name))
