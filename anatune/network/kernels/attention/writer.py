"""The loops of an attention kernel over heads, and what blocks of queries of all kinds need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from anatune.core.sizes import Size, at_run_time
from anatune.core.workload.access import Access, Term
from anatune.emit.kernels import Function, call, loop_over, open_kernel
from anatune.emit.script import Script, affine
from anatune.network.kernels.attention.kernel import AttentionKernel
from anatune.network.kernels.attention.keys import turning
from anatune.network.kernels.rows import RowKernel, mask_row, row_function
from anatune.templates.cpu.program.microkernel import microkernel_ir, module_ir
from anatune.templates.cpu.program.register_tile import Microkernel

__all__ = ["Head", "Writer", "named", "scaled"]


class Head:
    """Expressions of one head, or a part of its queries.

    Attributes
    ----------
    whole, batch, head : str
        Which head of all batches, which batch, which head of that.
    part : str
        Which of the parts of its queries, "0" where it has one.
    starts : list of str
        Where its queries, keys and values begin.
    """

    def __init__(self, kernel: AttentionKernel, task: str) -> None:
        parts, heads = kernel.parts, kernel.heads
        self.whole = f"({task} // {parts})" if parts > 1 else task
        self.part = f"({task} % {parts})" if parts > 1 else "0"
        self.batch, self.head = f"({self.whole} // {heads})", f"({self.whole} % {heads})"
        self.starts = [
            affine([(self.batch, place[1]), (f"({self.head} // {place[4]})", place[2])], place[0])
            for place in kernel.places
        ]  # fmt: skip


class Writer:
    """One kernel while it is written down.

    Attributes
    ----------
    score_pitch : int
        Elements from the scores of one query of a block to those of the next.
    numbers : dict of str to str
        What symbols of microkernels are in the program.
    """

    score_pitch: int

    def __init__(self, kernel: AttentionKernel, name: str, lanes: int, threads: int, sizes: dict[str, int]) -> None:
        self.kernel, self.name, self.lanes, self.sizes = kernel, name, lanes, sizes
        self.tasks = kernel.batch * kernel.heads * kernel.parts
        self.workers = threads if at_run_time(self.tasks) else min(threads, self.tasks)
        self.width = kernel.heads * kernel.value_dim
        self.text = Script()
        self.functions: list[Function] = []
        self.known: dict[object, str] = {}
        self.numbers: dict[str, str] = {}
        self.query_row, self.key_row, self.value_row = (
            self.stride(f"{tensor}_row", place[3])
            for tensor, place in zip(("query", "key", "value"), kernel.places, strict=True)
        )

    def stride(self, name: str, size: int) -> int:
        """Return a size as microkernels take it: those that are known at run time as a symbol of their own."""
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
        share = (self.tasks + self.workers - 1) // self.workers
        is_uneven = at_run_time(share) or self.workers * share > self.tasks
        with text.scope(
            loop_over("worker", self.workers, parallel=self.workers > 1),
            f"for turn in range({share}):",
            f"if worker * {share} + turn < {self.tasks}:" if is_uneven else "",
        ):
            self.write(Head(kernel, f"(worker * {share} + turn)"))
        return str(text), module_ir(self.functions)

    def write(self, head: Head) -> None:
        """Write what is done for one head, or a part of its queries."""
        raise NotImplementedError

    def own(self, buffer: str) -> str:
        """Return where a worker's part of a buffer begins."""
        return affine([("worker", self.sizes[buffer])])

    def turn_keys(self, start: str, turned_row: int, place: Callable[[str], str]) -> None:
        """Write how the keys (keys, dim) of a head become (dim, keys); `place`: where a vector of keys goes to."""
        name = self.function(
            ("turning", turned_row), partial(turning, self.lanes, self.kernel.dim, self.key_row, turned_row)
        )
        self.over_keys(start, name, lambda vector: [("turned", place(vector))])

    def over_keys(self, start: str, name: str, others: Callable[[str], list[tuple[str, str]]]) -> None:
        """Write the calls of a function of `keys` for the keys of a head; a vector's number tells its other tensors."""
        keys, lanes = self.kernel.keys, self.lanes
        numbers = [self.numbers["key_row"]] if "key_row" in self.numbers else []
        with self.text.scope(f"for v in range({(keys + lanes - 1) // lanes}):"):
            here = affine([(start, 1), (f"v * {lanes}", self.kernel.places[1][3])])
            call(self.text, name, [("key", here), *others("v")], f"T.min({lanes}, {keys} - v * {lanes})", *numbers)

    def powers(self, rows: str, first: str, keys: int, head: Head, *length: str) -> None:
        """Write how the scores of queries from `first` become powers, with the factor of each row.

        Parameters
        ----------
        keys : int
            Of a row; where that is a symbol, `length` is what it is.
        """
        kernel, factors = self.kernel, self.own("factors")
        powers = RowKernel("powers", 1, keys, kernel.scale, int(kernel.mask_rows > 0), kernel.zero_rows)
        name = self.function(powers, lambda name: row_function(powers, name, self.lanes))
        with self.text.scope(f"for r in range({rows}):"):
            scores = affine([(self.own("scores"), 1), ("r", self.score_pitch)])
            arguments = [("scores", scores), ("factors", f"{factors} + r")]
            if kernel.mask_rows:
                all_rows = kernel.batch * kernel.heads * kernel.queries
                row = mask_row(
                    f"{head.whole} * {kernel.queries} + {first} + r", all_rows, kernel.mask_rows, kernel.block
                )  # fmt: skip
                arguments.insert(1, ("mask", affine([(row, kernel.keys)])))
            call(self.text, name, arguments, *length)

    def result(self, first: str, head: Head) -> str:
        """Return where the result of a query of a head begins."""
        kernel = self.kernel
        return f"(({head.batch} * {kernel.queries} + {first}) * {self.width} + {head.head} * {kernel.value_dim})"

    def function(self, key: object, write: Callable[[str], Function]) -> str:
        """Return the name of a function, which is written once."""
        if key not in self.known:
            self.known[key] = f"{self.name}_{len(self.known)}"
            self.functions.append(write(self.known[key]))
        return self.known[key]


def scaled(rows: int) -> list[tuple[str, Access]]:
    """Return the fused step that multiplies each row of a product by its factor."""
    return [("scale", Access("factor", "float32", (rows,), ((Term("i"),),), (0,)))]


def named(kernel: Microkernel, name: str) -> Function:
    """Return the function of a microkernel under a name."""
    return microkernel_ir(dataclasses.replace(kernel, name=name))
