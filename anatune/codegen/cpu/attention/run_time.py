"""Blocks of queries whose numbers of queries or keys are known at run time.

A block has as many rows as a register tile, or fewer: there is a microkernel for each number of them, and a function that
chooses. Keys that were turned lie in panels as wide as a tile, of which the last one may be one vector wide; scores lie
in rows as far apart as all keys need, and the product with the values goes through as many keys as there are, one by
one. A few queries take their products with the keys where those lie: turning is as much work as four of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from anatune.codegen.cpu.attention.kernel import AttentionKernel, pitch, tile_schedule
from anatune.codegen.cpu.attention.keys import dots
from anatune.codegen.cpu.attention.writer import Head, Writer, scaled
from anatune.core.schedule import Schedule
from anatune.core.sizes import Size, at_run_time, symbols_of
from anatune.emit.kernels import wide
from anatune.emit.script import affine
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.microkernel import choice_ir, microkernel_ir
from anatune.templates.cpu.range_space import sizes_of_calls

__all__ = ["RunTimeWriter"]

_FEW = 4
"""Queries up to which keys are not turned: turning a vector of keys moves each of its numbers ``log2(lanes)`` times."""


class RunTimeWriter(Writer):
    """Writes a kernel whose queries or keys are known at run time."""

    def __init__(self, kernel: AttentionKernel, name: str, lanes: int, threads: int) -> None:
        (blocks,) = kernel.blocks
        self.blocks, self.columns = blocks, blocks.scores.workload.extents["j"]
        self.score_pitch = pitch(kernel.keys, lanes)
        padded = (kernel.keys + self.columns - 1) // self.columns * self.columns
        sizes = {"turned": kernel.dim * padded, "scores": blocks.rows * self.score_pitch, "factors": blocks.rows}
        super().__init__(kernel, name, lanes, threads, sizes)
        self.apart = self.stride("score_pitch", self.score_pitch)
        self.seen = kernel.keys
        if at_run_time((kernel.keys, kernel.causal)):
            self.seen = Size.symbol("seen", int(kernel.keys))
            self.numbers["seen"] = "seen"

    def write(self, head: Head) -> None:
        """Write what is done for one head, or a part of its queries."""
        kernel, text, blocks = self.kernel, self.text, self.blocks
        queries, parts, lanes = kernel.queries, kernel.parts, self.lanes
        is_few = [f"{queries} <= {_FEW}"] if at_run_time(queries) else []
        if is_few or queries > _FEW:
            with text.scope(f"if {queries} > {_FEW}:" if is_few else ""):
                across = self.columns // lanes
                self.turn_keys(
                    head.starts[1],
                    self.columns,
                    lambda v: (
                        f"{self.own('turned')} + {v} // {across} * {kernel.dim * self.columns} + {v} % {across} * {lanes}"
                    ),
                )
        with text.scope(f"for turn_of_part in range(({blocks.count} + {parts - 1} - {head.part}) // {parts}):"):
            self.let("block", f"turn_of_part * {parts} + {head.part}")
            self.let("least", f"{queries} // {blocks.count}")
            self.let("small", f"{blocks.count} * (least + 1) - {queries}")
            self.let("first", "block * least + T.max(0, block - small)")
            self.let("rows", "least + T.Select(block >= small, 1, 0)")
            if at_run_time(self.seen):
                hidden = [] if kernel.causal is None else [f"first + rows + {kernel.causal}"]
                self.let("seen", f"T.min({', '.join([str(kernel.keys), *hidden])})" if hidden else str(kernel.keys))
            for word in is_few:
                with text.scope(f"if {word}:"):
                    self.dots(head)
                with text.scope("else:"):
                    self.scores(head)
            if not is_few:
                self.dots(head) if queries <= _FEW else self.scores(head)
            self.powers("rows", "first", self.seen, head, *(["seen"] if at_run_time(self.seen) else []))
            self.values(head)

    def let(self, name: str, value: str) -> None:
        """Write a variable."""
        self.text.line(f'{name}: T.let[T.int32] = T.Cast("int32", {value})')

    def dots(self, head: Head) -> None:
        """Write the scores of a few queries, key by key."""
        kernel = self.kernel
        name = self.function("dots", partial(dots, self.lanes, kernel.dim, self.key_row))
        with self.text.scope("for r in range(rows):"):
            query = affine([(head.starts[0], 1), ("(first + r)", kernel.places[0][3])])
            scores = affine([(self.own("scores"), 1), ("r", self.score_pitch)])
            self.over_keys(
                head.starts[1], name, lambda v: [("scores", f"{scores} + {v} * {self.lanes}"), ("query", query)]
            )  # fmt: skip

    def scores(self, head: Head) -> None:
        """Write the scores of a block of queries: whole tiles of the keys that it sees, and vectors of what is left."""
        kernel, lanes, columns = self.kernel, self.lanes, self.columns
        vectors, across = f"(({self.seen} + {lanes - 1}) // {lanes})", columns // lanes
        query = affine([(head.starts[0], 1), ("first", kernel.places[0][3])])
        strides = {"A": self.query_row, "B": columns, "C": self.apart}
        whole = f"{vectors} // {across}"
        parts = [(whole, columns, "0", columns)]
        parts += [(f"{vectors} % {across}", lanes, whole, lanes)] if across > 1 else []
        for count, width, done, step in parts:
            panel = f"{done} * {kernel.dim * columns} + tile * {kernel.dim * columns if done == '0' else lanes}"
            with self.text.scope(f"for tile in range({count}):"):
                self.product(
                    self.blocks.scores, width, strides,
                    [("query", query), ("turned", f"{self.own('turned')} + {panel}"),
                     ("scores", f"{self.own('scores')} + {done} * {columns} + tile * {step}")],
                )  # fmt: skip

    def values(self, head: Head) -> None:
        """Write the products of a block's powers with the values."""
        columns = self.blocks.values.workload.extents["j"]
        count, rest = divmod(self.kernel.value_dim, columns)
        strides = {"A": self.apart, "B": self.value_row, "C": self.width}
        for tiles, width, place in ((count, columns, f"tile * {columns}"), (1, rest, str(count * columns))):
            if not width:
                continue
            with self.text.scope(f"for tile in range({tiles}):"):
                self.product(
                    self.blocks.values, width, strides,
                    [("scores", self.own("scores")), ("value", f"{head.starts[2]} + {place}"),
                     ("result", f"{self.result('first', head)} + {place}"), ("factors", self.own("factors"))],
                    trips=self.seen,
                )  # fmt: skip

    def product(
        self,
        schedule: Schedule,
        columns: int,
        strides: Mapping[str, int],
        places: list[tuple[str, str]],
        *,
        trips: int = 0,
    ) -> None:
        """Write the call for a register tile of `rows` rows; `trips`: iterations of its loop, each row scaled behind."""
        queries, most = self.kernel.queries, self.blocks.rows
        numbers = tuple(sorted(symbols_of((*strides.values(), trips))))
        loops, unroll = schedule.tiles["k"][-2:]
        own = {}
        for rows in range(1, most + 1) if at_run_time(queries) else sizes_of_calls(queries, most):
            tile = tile_schedule(schedule, rows, columns, loops * unroll, unroll)
            kernels = Kernels(tile, strides, scaled(rows) if trips else [])
            (parts,) = kernels.tiles()
            kernel = dataclasses.replace(kernels.microkernel("", parts), numbers=numbers)
            kernel = dataclasses.replace(kernel, trips=(trips,)) if trips else kernel
            name = self.function(
                kernel, lambda name, kernel=kernel: microkernel_ir(dataclasses.replace(kernel, name=name))
            )
            own[rows] = dataclasses.replace(kernel, name=name)
        choice = self.function(tuple(own.values()), lambda name: (choice_ir(name, own), set()))
        words = [f"{tensor}.data, {wide(offset)}" for tensor, offset in places]
        words += ["0", *(wide(self.numbers[number]) for number in numbers), wide("rows")]
        self.text.line(f'T.evaluate(T.call_extern("void", "{choice}", {", ".join(words)}))')
