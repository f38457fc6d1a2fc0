"""Attention over blocks of queries of known sizes; both products of a block are schedules of the template "cpu"."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from anatune.core.schedule import Schedule
from anatune.emit.script import write_affine
from anatune.network.kernels.attention.kernel import AttentionKernel, QueryBlocks, pitch
from anatune.network.kernels.attention.writer import AttentionWriter, HeadExpressions, kernel_function, scale_step
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.nest import CallGroup
from anatune.templates.cpu.program.program import write_calls
from anatune.templates.cpu.program.register_tile import Microkernel

__all__ = ["PlannedWriter"]


class PlannedWriter(AttentionWriter):
    """Writes a kernel whose numbers of queries and keys are known."""

    def __init__(self, kernel: AttentionKernel, name: str, lanes: int, threads: int) -> None:
        self.key_pitch = pitch(kernel.keys, lanes)
        self.score_pitch = pitch(max(blocks.keys for blocks in kernel.blocks), lanes)
        most = max(blocks.rows for blocks in kernel.blocks)
        sizes = {"turned": kernel.dim * self.key_pitch, "scores": most * self.score_pitch, "factors": most}
        super().__init__(kernel, name, lanes, threads, sizes)

    def write(self, head: HeadExpressions) -> None:
        """Write the computation of one head, or of a part of its queries."""
        parts = self.kernel.parts
        self.transpose_keys(
            head.starts[1], self.key_pitch,
            lambda vector: write_affine([(self.offset("turned"), 1), (vector, self.lanes)]),
        )  # fmt: skip
        number = 0
        for blocks in self.kernel.blocks:
            count, block = str(blocks.count), "block"
            if parts > 1:
                skipped = f"({head.part} + {(-number) % parts}) % {parts}"
                count = f"({blocks.count + parts - 1} - {skipped}) // {parts}"
                block = f"({skipped} + block * {parts})"
            number += blocks.count
            with self.text.scope(f"for block in range({count}):"):
                self.write_block(blocks, head, write_affine([(block, blocks.rows)], blocks.first))

    def write_block(self, blocks: QueryBlocks, head: HeadExpressions, first: str) -> None:
        """Write the scores, powers, and products with the values, of one block of queries from `first` on."""
        scores = self.offset("scores")
        self.write_product(
            blocks.scores,
            {"A": self.query_row, "B": self.key_pitch, "C": self.score_pitch},
            ["query", "turned", "scores"],
            [
                write_affine([(head.starts[0], 1), (f"({first})", self.kernel.places[0][3])]),
                self.offset("turned"),
                scores,
            ],
        )
        self.write_powers(str(blocks.rows), first, blocks.keys, head)
        self.write_product(
            blocks.values,
            {"A": self.score_pitch, "B": self.value_row, "C": self.width},
            ["scores", "value", "result", "factors"],
            [scores, head.starts[2], self.result_offset(first, head), self.offset("factors")],
            is_scaled=True,
        )

    def write_product(
        self,
        schedule: Schedule,
        rows: Mapping[str, int],
        pointers: list[str],
        origins: list[str],
        *,
        is_scaled: bool = False,
    ) -> None:
        """Write a product; if `is_scaled`, each row is multiplied by its factor."""
        kernels = Kernels(schedule, rows, scale_step(schedule.workload.extents["i"]) if is_scaled else [])
        tiles: list[tuple[dict[str, CallGroup], Microkernel]] = []
        for parts in kernels.tiles():
            microkernel = kernels.microkernel("", parts)
            name = self.function(microkernel, partial(kernel_function, microkernel))
            tiles.append((parts, dataclasses.replace(microkernel, name=name)))
        write_calls(self.text, kernels, tiles, pointers, origins)
