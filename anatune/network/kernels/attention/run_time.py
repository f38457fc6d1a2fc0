"""Attention over blocks of queries whose number of queries or keys is known only at run time.

A block has a fixed number of rows or fewer. There is a microkernel for each number of rows of a register tile, and a
function that selects one. Transposed keys lie in panels as wide as the widest tile; narrower tiles with more rows
handle the remaining vectors. A row of scores has space for all keys. The product with the values loops over
the keys one by one. If there are only a few queries, keys are not transposed. With a single query, the heads that share
keys and values are the rows of a block, so that these are read from memory once, in the order in which they lie there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from anatune.core.schedule import Schedule
from anatune.core.sizes import Size, is_run_time, symbols_of
from anatune.emit.kernels import emit_call, widen_index
from anatune.emit.script import write_affine
from anatune.network.kernels.attention.kernel import AttentionKernel, pitch, tile_rows, tile_schedule
from anatune.network.kernels.attention.keys import write_dots
from anatune.network.kernels.attention.writer import AttentionWriter, HeadExpressions, kernel_function, scale_step
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.microkernel import choice_ir, shares
from anatune.templates.cpu.program.register_tile import Microkernel
from anatune.templates.cpu.range_space import sizes_of_calls

__all__ = ["RunTimeWriter"]

_FEW = 3
"""The most queries for which keys are not transposed. Transposing moves each number of a vector of keys ``log2(lanes)``
times; a product with one query without it moves only its sums. Source: Zen 3, 16 to 600 keys of 64: one query takes
0.63 to 0.67 of the time, three 0.87 to 0.96, four 0.92 to 1.02, six 1.04 to 1.14."""


class RunTimeWriter(AttentionWriter):
    """Writes a kernel whose number of queries or keys is known only at run time."""

    def __init__(self, kernel: AttentionKernel, name: str, lanes: int, threads: int) -> None:
        (blocks,) = kernel.blocks
        self.blocks, self.columns = blocks, blocks.scores.workload.extents["j"]
        self.score_pitch = pitch(kernel.keys, lanes)
        padded = (kernel.keys + self.columns - 1) // self.columns * self.columns
        groups = [layout[4] for layout in kernel.places]
        share = groups[1] if groups[0] == 1 and groups[1] == groups[2] else 1
        self.group = share if kernel.batch * kernel.heads >= share * threads else 1
        """Heads that share keys and values, if their groups are enough for all threads."""
        rows = max(blocks.rows, self.group)
        sizes = {"turned": kernel.dim * padded, "scores": rows * self.score_pitch, "factors": rows}
        super().__init__(kernel, name, lanes, threads, sizes)
        is_fixed = not is_run_time(kernel.queries)
        self.sizes_of_blocks = sizes_of_calls(kernel.queries, blocks.rows) if is_fixed else range(1, blocks.rows + 1)
        self.score_stride = self.stride("score_pitch", self.score_pitch)
        self.visible_keys = kernel.keys
        if is_run_time((kernel.keys, kernel.causal)):
            self.visible_keys = Size.symbol("seen", int(kernel.keys))
            self.numbers["seen"] = "seen"

    def write_loops(self) -> None:
        """Write the loops over heads, or over parts of their queries, and others for a single query."""
        kernel, groups = self.kernel, self.kernel.batch * self.kernel.heads // self.group
        is_run_time_size = is_run_time(kernel.queries)
        if is_run_time_size or kernel.queries == 1:
            with self.text.scope(f"if {kernel.queries} == 1:" if is_run_time_size else ""):
                self.spread(groups, self.write_group)
        if is_run_time_size or kernel.queries > 1:
            with self.text.scope("else:" if is_run_time_size else ""):
                super().write_loops()

    def write_group(self, task: str) -> None:
        """Write the computation of the only query of heads that share keys and values."""
        kernel, rows = self.kernel, str(self.group)
        head = HeadExpressions(kernel, write_affine([(task, self.group)]))
        if "seen" in self.numbers:
            keys, causal = kernel.keys, kernel.causal
            self.write_variable("seen", str(keys) if causal is None else f"T.min({keys}, 1 + {causal})")
        self.write_dots(head, "0", self.group, kernel.places[0][2])
        self.write_powers(rows, "0", self.visible_keys, head, *(["seen"] if "seen" in self.numbers else []))
        widths = [width for width in (1, 2, 4, 8) if tile_rows(self.blocks.values, width) >= self.group]
        self.write_values(head, min(max(widths, default=1) * self.lanes, kernel.value_dim), "0", rows)

    def write(self, head: HeadExpressions) -> None:
        """Write the computation of one head, or of a part of its queries."""
        kernel, text = self.kernel, self.text
        queries, parts, count = kernel.queries, kernel.parts, self.blocks.count
        is_run_time_size = is_run_time(queries)
        if is_run_time_size or queries > _FEW:
            with text.scope(f"if {queries} > {_FEW}:" if is_run_time_size else ""):
                self.transpose_keys(head.starts[1], self.columns, self.panel_offset)
        with text.scope(f"for turn_of_part in range(({count} + {parts - 1} - {head.part}) // {parts}):"):
            self.write_variable("block", f"turn_of_part * {parts} + {head.part}")
            self.write_variable("first", f"block * {queries} // {count}")
            self.write_variable("rows", f"(block + 1) * {queries} // {count} - first")
            if "seen" in self.numbers:
                keys, causal = kernel.keys, kernel.causal
                self.write_variable("seen", str(keys) if causal is None else f"T.min({keys}, first + rows + {causal})")
            if is_run_time_size or queries <= _FEW:
                with text.scope(f"if {queries} <= {_FEW}:" if is_run_time_size else "", f"for r in range({queries}):"):
                    self.write_dots(head, "r", 1, kernel.places[0][3])
            if is_run_time_size or queries > _FEW:
                with text.scope("else:" if is_run_time_size else ""):
                    self.write_scores(head)
            self.write_powers("rows", "first", self.visible_keys, head, *(["seen"] if "seen" in self.numbers else []))
            self.write_values(head, self.blocks.values.workload.extents["j"])

    def write_variable(self, name: str, value: str) -> None:
        """Write a variable that TVM cannot look into, so that it does not substitute and simplify the value."""
        function_name = self.function(
            "same", lambda name: (f"define internal i32 @{name}(i32 %n) {{\n  ret i32 %n\n}}", set())
        )
        self.text.line(f'{name}: T.let[T.int32] = T.call_extern("int32", "{function_name}", T.Cast("int32", {value}))')

    def panel_offset(self, vector: str) -> str:
        """Return the offset of a vector of transposed keys."""
        across, lanes = self.columns // self.lanes, self.lanes
        whole = f"{self.offset('turned')} + {vector} // {across} * {self.kernel.dim * self.columns}"
        return f"{whole} + {vector} % {across} * {lanes}"

    def write_dots(self, head: HeadExpressions, first: str, rows: int, distance: int) -> None:
        """Write the scores of some rows of a head from `first` on, whose queries are `distance` elements apart."""
        distances = (self.key_row, self.score_stride, self.stride(f"distance{rows}", distance))
        numbers = [self.numbers[number] for number in sorted(symbols_of(distances))]
        for start in range(0, rows, self.lanes):
            count = min(self.lanes, rows - start)
            name = self.function(
                ("dots", count, distances), partial(write_dots, self.lanes, self.kernel.dim, distances, count)
            )
            row = f"({first} + {start})"
            places = [
                ("key", head.starts[1]),
                ("scores", write_affine([(self.offset("scores"), 1), (row, self.score_pitch)])),
                ("query", write_affine([(head.starts[0], 1), (row, distance)])),
            ]
            emit_call(self.text, name, places, str(self.visible_keys), *numbers)

    def write_scores(self, head: HeadExpressions) -> None:
        """Write the scores of a block of queries: whole tiles of the visible keys, then the remaining vectors."""
        lanes, across = self.lanes, self.columns // self.lanes
        vectors = f"(({self.visible_keys} + {lanes - 1}) // {lanes})"
        query_row, strides = self.kernel.places[0][3], {"A": self.query_row, "B": self.columns, "C": self.score_stride}
        remaining = vectors
        for width in range(across, 0, -1):
            vector = f"(({vectors} - {remaining}) + v * {width})" if remaining != vectors else f"(v * {width})"
            tensors = [
                ("query", write_affine([(head.starts[0], 1), ("first", query_row)]), self.query_row),
                ("turned", self.panel_offset(vector), 0),
                ("scores", f"{self.offset('scores')} + {vector} * {lanes}", self.score_stride),
            ]
            with self.text.scope(f"for v in range({remaining} // {width}):"):
                self.write_product(self.blocks.scores, width * lanes, strides, tensors)
            remaining = f"({remaining} % {width})"

    def write_values(self, head: HeadExpressions, columns: int, first: str = "first", rows: str = "rows") -> None:
        """Write the products of a block's powers with the values, in tiles of some columns.

        Rows are queries from `first` on; if `rows` is a number, they are heads.
        """
        count, remainder = divmod(self.kernel.value_dim, columns)
        distance = self.kernel.value_dim if rows.isdigit() else self.width
        strides = {"A": self.score_stride, "B": self.value_row, "C": distance}
        for tiles, width, column in ((count, columns, f"v * {columns}"), (1, remainder, f"{count * columns}")):
            tensors = [
                ("scores", self.offset("scores"), self.score_stride),
                ("value", f"{head.starts[2]} + {column}", 0),
                ("result", f"{self.result_offset(first, head)} + {column}", distance),
                ("factors", self.offset("factors"), 1),
            ]
            if width:
                with self.text.scope(f"for v in range({tiles}):"):
                    self.write_product(self.blocks.values, width, strides, tensors, trips=self.visible_keys, rows=rows)

    def write_product(
        self,
        schedule: Schedule,
        columns: int,
        strides: Mapping[str, int],
        tensors: list[tuple[str, str, int]],
        *,
        trips: int = 0,
        rows: str = "rows",
    ) -> None:
        """Write the call that computes `rows` rows and some columns of a product.

        Parameters
        ----------
        strides : mapping of str to int
            The stride of rows of each tensor, in elements.
        tensors : list of (str, str, int)
            The tensors, their offsets, and the stride of rows of the block.
        trips : int
            Iterations of the loop of products, after which rows are scaled; 0: those of the schedule, without scaling.
        """
        numbers = tuple(sorted(symbols_of((*strides.values(), trips))))
        loops, unroll = schedule.tiles["k"][-2:]
        most = tile_rows(schedule, -(-columns // self.lanes))
        sizes = (int(rows),) if rows.isdigit() else self.sizes_of_blocks
        tiles: dict[int, Microkernel] = {}
        for count in sorted({share for size in sizes for share in shares(size, most)}):
            schedule_of_tile = tile_schedule(schedule, count, columns, loops * unroll, unroll)
            kernels = Kernels(schedule_of_tile, strides, scale_step(count) if trips else [])
            kernel = dataclasses.replace(kernels.microkernel("", kernels.tiles()[0]), numbers=numbers)
            if trips:
                kernel = dataclasses.replace(kernel, trips=(trips,))
            tiles[count] = dataclasses.replace(kernel, name=self.function(kernel, partial(kernel_function, kernel)))
        pitches = [row for _, _, row in tensors]
        choice = self.function(
            (*tiles.values(), *sizes, *pitches), lambda name: (choice_ir(name, tiles, sizes, pitches), set())
        )  # fmt: skip
        words = [f"{tensor}.data, {widen_index(offset)}" for tensor, offset, _ in tensors]
        words += ["0", *(widen_index(self.numbers[number]) for number in numbers), widen_index(rows)]
        self.text.line(f'T.evaluate(T.call_extern("void", "{choice}", {", ".join(words)}))')
