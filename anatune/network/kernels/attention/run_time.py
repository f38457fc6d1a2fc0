"""Blocks of queries whose numbers of queries or keys are known at run time.

A block has so many rows, or fewer: there is a microkernel for each number of rows of a register tile, and a function
that chooses. Keys that were turned lie in panels as wide as the widest tile; narrower ones, of more rows, take the
vectors that are left. Scores lie in rows as far apart as all keys need, and the product with the values goes through as
many keys as there are, one by one. A few queries take their products with the keys where those lie.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from anatune.core.schedule import Schedule
from anatune.core.sizes import Size, at_run_time, symbols_of
from anatune.emit.kernels import wide
from anatune.emit.script import affine
from anatune.network.kernels.attention.kernel import AttentionKernel, pitch, tile_rows, tile_schedule
from anatune.network.kernels.attention.keys import dots
from anatune.network.kernels.attention.writer import Head, Writer, named, scaled
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.microkernel import choice_ir, shares
from anatune.templates.cpu.program.register_tile import Microkernel
from anatune.templates.cpu.range_space import sizes_of_calls

__all__ = ["RunTimeWriter"]

_FEW = 3
"""Queries up to which keys are not turned: turning moves each number of a vector of keys ``log2(lanes)`` times, a
product with one query where they lie moves its sums alone. Source: Zen 3, 16 to 600 keys of 64: one query takes 0.63 to
0.67 of the time, three 0.87 to 0.96, four 0.92 to 1.02, six 1.04 to 1.14."""


class RunTimeWriter(Writer):
    """Writes a kernel whose queries or keys are known at run time."""

    def __init__(self, kernel: AttentionKernel, name: str, lanes: int, threads: int) -> None:
        (blocks,) = kernel.blocks
        self.blocks, self.columns = blocks, blocks.scores.workload.extents["j"]
        self.score_pitch = pitch(kernel.keys, lanes)
        padded = (kernel.keys + self.columns - 1) // self.columns * self.columns
        sizes = {"turned": kernel.dim * padded, "scores": blocks.rows * self.score_pitch, "factors": blocks.rows}
        super().__init__(kernel, name, lanes, threads, sizes)
        known = not at_run_time(kernel.queries)
        self.sizes_of_blocks = sizes_of_calls(kernel.queries, blocks.rows) if known else range(1, blocks.rows + 1)
        self.apart = self.stride("score_pitch", self.score_pitch)
        self.seen = kernel.keys
        if at_run_time((kernel.keys, kernel.causal)):
            self.seen = Size.symbol("seen", int(kernel.keys))
            self.numbers["seen"] = "seen"

    def write(self, head: Head) -> None:
        """Write what is done for one head, or a part of its queries."""
        kernel, text = self.kernel, self.text
        queries, parts, count = kernel.queries, kernel.parts, self.blocks.count
        asks = at_run_time(queries)
        if asks or queries > _FEW:
            with text.scope(f"if {queries} > {_FEW}:" if asks else ""):
                self.turn_keys(head.starts[1], self.columns, self.panel)
        with text.scope(f"for turn_of_part in range(({count} + {parts - 1} - {head.part}) // {parts}):"):
            self.let("block", f"turn_of_part * {parts} + {head.part}")
            self.let("first", f"block * {queries} // {count}")
            self.let("rows", f"(block + 1) * {queries} // {count} - first")
            if "seen" in self.numbers:
                keys, causal = kernel.keys, kernel.causal
                self.let("seen", str(keys) if causal is None else f"T.min({keys}, first + rows + {causal})")
            if asks or queries <= _FEW:
                with text.scope(f"if {queries} <= {_FEW}:" if asks else ""):
                    self.dots(head)
            if asks or queries > _FEW:
                with text.scope("else:" if asks else ""):
                    self.scores(head)
            self.powers("rows", "first", self.seen, head, *(["seen"] if "seen" in self.numbers else []))
            self.values(head)

    def let(self, name: str, value: str) -> None:
        """Write a variable that TVM cannot see through: it would put the value in each place, and simplify that."""
        own = self.function("same", lambda name: (f"define internal i32 @{name}(i32 %n) {{\n  ret i32 %n\n}}", set()))
        self.text.line(f'{name}: T.let[T.int32] = T.call_extern("int32", "{own}", T.Cast("int32", {value}))')

    def panel(self, vector: str) -> str:
        """Return where a vector of keys lies that were turned."""
        across, lanes = self.columns // self.lanes, self.lanes
        whole = f"{self.own('turned')} + {vector} // {across} * {self.kernel.dim * self.columns}"
        return f"{whole} + {vector} % {across} * {lanes}"

    def dots(self, head: Head) -> None:
        """Write the scores of a few queries, one by one."""
        name = self.function("dots", partial(dots, self.lanes, self.kernel.dim, self.key_row))
        with self.text.scope("for r in range(rows):"):
            query = affine([(head.starts[0], 1), ("(first + r)", self.kernel.places[0][3])])
            scores = affine([(self.own("scores"), 1), ("r", self.score_pitch)])
            self.over_keys(
                head.starts[1], name, lambda v: [("scores", f"{scores} + {v} * {self.lanes}"), ("query", query)]
            )  # fmt: skip

    def scores(self, head: Head) -> None:
        """Write the scores of a block of queries: whole tiles of the keys that it sees, and vectors of what is left."""
        lanes, across = self.lanes, self.columns // self.lanes
        vectors = f"(({self.seen} + {lanes - 1}) // {lanes})"
        query_row, strides = self.kernel.places[0][3], {"A": self.query_row, "B": self.columns, "C": self.apart}
        left = vectors
        for width in range(across, 0, -1):
            vector = f"(({vectors} - {left}) + v * {width})" if left != vectors else f"(v * {width})"
            places = [
                ("query", affine([(head.starts[0], 1), ("first", query_row)]), self.query_row),
                ("turned", self.panel(vector), 0),
                ("scores", f"{self.own('scores')} + {vector} * {lanes}", self.apart),
            ]
            with self.text.scope(f"for v in range({left} // {width}):"):
                self.product(self.blocks.scores, width * lanes, strides, places)
            left = f"({left} % {width})"

    def values(self, head: Head) -> None:
        """Write the products of a block's powers with the values."""
        schedule, extents = self.blocks.values, self.blocks.values.workload.extents
        count, rest = divmod(self.kernel.value_dim, extents["j"])
        strides = {"A": self.apart, "B": self.value_row, "C": self.width}
        for tiles, width, column in (
            (count, extents["j"], f"v * {extents['j']}"),
            (1, rest, f"{count * extents['j']}"),
        ):
            places = [
                ("scores", self.own("scores"), self.apart),
                ("value", f"{head.starts[2]} + {column}", 0),
                ("result", f"{self.result('first', head)} + {column}", self.width),
                ("factors", self.own("factors"), 1),
            ]
            if width:
                with self.text.scope(f"for v in range({tiles}):"):
                    self.product(schedule, width, strides, places, trips=self.seen)

    def product(
        self,
        schedule: Schedule,
        columns: int,
        strides: Mapping[str, int],
        places: list[tuple[str, str, int]],
        *,
        trips: int = 0,
    ) -> None:
        """Write the call for `rows` rows and some columns of a product.

        Parameters
        ----------
        strides : mapping of str to int
            Elements from one row of a tensor to the next.
        places : list of (str, str, int)
            The tensors, where they begin, and the elements from one row of the block to the next.
        trips : int
            Iterations of the loop of products, each row scaled behind; 0: those of the schedule, not scaled.
        """
        numbers = tuple(sorted(symbols_of((*strides.values(), trips))))
        loops, unroll = schedule.tiles["k"][-2:]
        most = tile_rows(schedule, -(-columns // self.lanes))
        own: dict[int, Microkernel] = {}
        for rows in sorted({share for size in self.sizes_of_blocks for share in shares(size, most)}):
            tile = tile_schedule(schedule, rows, columns, loops * unroll, unroll)
            kernels = Kernels(tile, strides, scaled(rows) if trips else [])
            kernel = dataclasses.replace(kernels.microkernel("", kernels.tiles()[0]), numbers=numbers)
            if trips:
                kernel = dataclasses.replace(kernel, trips=(trips,))
            own[rows] = dataclasses.replace(kernel, name=self.function(kernel, partial(named, kernel)))
        apart = [row for _, _, row in places]
        choice = self.function(
            (*own.values(), *apart), lambda name: (choice_ir(name, own, self.sizes_of_blocks, apart), set())
        )  # fmt: skip
        words = [f"{tensor}.data, {wide(at)}" for tensor, at, _ in places]
        words += ["0", *(wide(self.numbers[number]) for number in numbers), wide("rows")]
        self.text.line(f'T.evaluate(T.call_extern("void", "{choice}", {", ".join(words)}))')
