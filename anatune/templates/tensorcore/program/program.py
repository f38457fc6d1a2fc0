"""A schedule of the tensor-core template as TVMScript text.

A block computes one block tile. Stages of both operands go through a ring of buffers in shared memory, by cp.async
where vectors have at least 4 bytes, else through registers; positions outside a tensor or its extents become zeros.
Warps read fragments with ldmatrix, one step ahead of the instruction that uses them, and multiply with mma.sync into
float32 accumulators. Results pass through shared memory once more (`tensorcore.program.results`).

All instructions are TVM's own PTX intrinsics: each prints as a small function around one line of inline assembly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from anatune.core.schedule import Schedule
from anatune.templates.gpu.index import all_of, axis_values, element, inside_tests, sum_of
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.gpu.splitting import Part
from anatune.templates.gpu.writer import KernelWriter
from anatune.templates.tensorcore.program.layout import OperandTile, TileLayout
from anatune.templates.tensorcore.program.results import RESULT_ARRAYS, write_results

__all__ = ["TensorCoreWriter"]

_WARP = 32
_PTX_TYPE = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}
_LOAD_16 = """__device__ __forceinline__ void anatune_load_u16(unsigned short& d, const void* p, bool inside) {
  d = inside ? *(const unsigned short*)p : (unsigned short)0;
}
"""


class TensorCoreWriter(KernelWriter[TileLayout]):
    """Writes the kernel of one schedule; parameters and errors as `KernelLayout` and `KernelWriter`."""

    def __init__(self, schedule: Schedule, ranged: Ranged | None = None) -> None:
        super().__init__(TileLayout(schedule, ranged))

    def _principal(self, part: Part) -> None:
        """Write the kernel that multiplies."""
        text, layout, self.part = self.text, self.layout, part
        self._allocate_results(layout.shared_bytes)
        self._allocate("frag_m", 2 * layout.mma["m"] * 4, "uint32")
        self._allocate("frag_n", 2 * layout.mma["n"] * 2, "uint32")
        for tile in self._through_registers():
            self._allocate(f"stage_{tile.tensor}", -(-tile.copies // layout.num_threads), "uint16")
        self._place()
        with text.scope(f"for r in T.unroll({layout.num_accumulators}):"):
            text.line("acc[r] = T.float32(0)")
        if layout.stages == 1:
            self._one_stage()
        else:
            self._pipeline()
            text.line('T.tvm_storage_sync("shared")')
        self.reduction.store(text, "unroll", self._store, lambda: self._store(adds=True))

    def _sum_of_parts(self) -> None:
        """Write the kernel that stores sums of parts."""
        self._allocate_results(self.layout.result_bytes)
        self._place()
        self.reduction.add_up(self.text, "unroll", self._combined)
        self._store()

    def _store(self, *, adds: bool = False) -> None:
        write_results(self.text, self.layout, self._origin, adds=adds)

    def _allocate_results(self, shared_bytes: int) -> None:
        """Allocate shared memory, accumulators, and what results need on their way."""
        element = "uint16" if self.layout.element_bytes == 2 else "uint32"
        self._allocate_shared(shared_bytes // self.layout.element_bytes, element, shared_bytes)
        self._allocate("acc", self.layout.num_accumulators, "float32")
        for name, size, dtype in RESULT_ARRAYS:
            self._allocate(name, size, dtype)

    def _place(self) -> None:
        """Set where the block's tile lies: batch entry, first row, first column."""
        layout, text = self.layout, self.text
        rows, columns = layout.grid["m"], layout.grid["n"]
        group = min(layout.group, rows)
        block = "bx" if layout.gemm.extents["batch"] == 1 else f"(bx % {rows * columns})"
        batch = "0" if layout.gemm.extents["batch"] == 1 else f"(bx // {rows * columns})"
        if rows % group == 0:
            row = f"({block} // {group * columns} * {group} + {block} % {group})"
            column = f"({block} % {group * columns} // {group})"
        else:  # the last group has fewer rows
            text.line(f"group_rows: T.int32 = T.min({rows} - {block} // {group * columns} * {group}, {group})")
            inside = f"{block} % {group * columns}"
            text.line(f"row: T.int32 = {block} // {group * columns} * {group} + T.truncmod({inside}, group_rows)")
            text.line(f"column: T.int32 = T.truncdiv({inside}, group_rows)")
            row, column = "row", "column"
        self._origin = {
            "batch": batch,
            "m": f"{row} * {layout.block['m']}" if rows > 1 else "0",
            "n": f"{column} * {layout.block['n']}" if columns > 1 else "0",
        }

    # -- global memory to shared memory ------------------------------------------------------------------------

    @property
    def _tiles(self) -> tuple[OperandTile, OperandTile]:
        return self.layout.left, self.layout.right

    def _through_registers(self) -> list[OperandTile]:
        return [tile for tile in self._tiles if not tile.asynchronous]

    def _slot(self, step: str) -> str:
        """Return the first element of the buffer of a stage."""
        if self.layout.stages == 1:
            return "0"
        return f"({step}) % {self.layout.stages} * {self.layout.stage_elements}"

    @contextmanager
    def _copies(self, tile: OperandTile) -> Iterator[tuple[str, str]]:
        """Write the loop over a thread's copies, with what is written inside; yield row and first column of a copy."""
        threads = self.layout.num_threads
        number, per_row = f"(f * {threads} + tx)", tile.row // tile.width
        column = f"({number} % {per_row} * {tile.width})" if tile.width > 1 else f"({number} % {per_row})"
        guard = f"if {number} < {tile.copies}:" if tile.copies % threads else ""
        with self.text.scope(f"for f in T.unroll({-(-tile.copies // threads)}):", guard):
            yield f"({number} // {per_row})", column

    def _shared_place(self, tile: OperandTile, row: str, column: str, step: str) -> str:
        within = "0" if tile.width == tile.chunk else f"{column} % {tile.chunk}"
        return f"{self._slot(step)} + {tile.address(row, f'{column} // {tile.chunk}', within)}"

    def _source(self, tile: OperandTile, row: str, column: str, step: str) -> tuple[str, str]:
        """Return the element that a copy starts at, and the condition that it lies inside ("" if it always does)."""
        layout, operand = self.layout, tile.operand
        along_rows, along_k = (row, column) if operand.along_k else (column, row)
        places = {
            "batch": self._origin["batch"],
            operand.rows: sum_of(self._origin[operand.rows], along_rows),
            "k": sum_of(f"({self.part.step(step)}) * {layout.block['k']}" if layout.grid["k"] > 1 else "0", along_k),
        }
        values = axis_values(layout.gemm, self.workload, places)
        conditions = [
            f"{places[index]} < {layout.gemm.extents[index]}"
            for index in (operand.rows, "k")
            if layout.grid[index] * layout.block[index] > layout.gemm.extents[index]
        ]
        conditions += inside_tests(operand.access, operand.guarded, self.workload, values)
        return element(operand.access, values), all_of(conditions)

    def _fetch(self, step: str, *, store: bool) -> None:
        """Start the copies of one stage; what goes through registers is stored at once if `store`."""
        for tile in self._tiles:
            with self._copies(tile) as (row, column):
                source, inside = self._source(tile, row, column, step)
                if tile.asynchronous:
                    size = tile.width * tile.element_bytes
                    kind = "cg" if size == 16 else "ca"
                    target = f"T.address_of(smem[{self._shared_place(tile, row, column, step)}])"
                    valid = f', T.Cast("uint32", T.Select({inside}, {size}, 0))' if inside else ""
                    self.text.line(
                        f'T.ptx["cp.async.{kind}.shared.global"]({target}, T.address_of({source}), {size}{valid})'
                    )
                else:
                    call = f'"anatune_load_u16", stage_{tile.tensor}[f], T.address_of({source}), {inside or "True"}'
                    self.text.line(f"T.evaluate(T.cuda.func_call({call}, source_code={_LOAD_16!r}))")
        if store:
            self._store_stage(step)

    def _store_stage(self, step: str) -> None:
        for tile in self._through_registers():
            with self._copies(tile) as (row, column):
                self.text.line(f"smem[{self._shared_place(tile, row, column, step)}] = stage_{tile.tensor}[f]")

    def _commit(self) -> None:
        if len(self._through_registers()) < 2:
            self.text.line('T.ptx["cp.async.commit_group"]()')

    def _arrived(self, pending: int) -> None:
        """Wait until all but the last `pending` stages have arrived, for all threads."""
        if len(self._through_registers()) < 2:
            self.text.line(f'T.ptx["cp.async.wait_group"]({pending})')
        self.text.line('T.tvm_storage_sync("shared")')

    # -- loops over stages -------------------------------------------------------------------------------------

    def _one_stage(self) -> None:
        layout, text = self.layout, self.text
        with text.scope(f"for k0 in T.serial({self.part.turns}):"):
            self._fetch("k0", store=True)
            self._commit()
            self._arrived(0)
            for step in range(layout.mma["k"]):
                self._fragments("k0", step, 0)
                self._multiply(0)
            text.line('T.tvm_storage_sync("shared")')

    def _pipeline(self) -> None:
        """Write the loop whose fragments are read one step ahead, the first of a stage at the end of the one before."""
        layout, text, part = self.layout, self.text, self.part
        ahead, depth = layout.stages - 1, layout.mma["k"]
        early = depth % 2 == 0  # fragment buffers alternate: their number must not depend on the stage
        for stage in range(ahead):
            condition = part.has(stage)
            if condition is not None:
                with text.scope(condition):
                    self._fetch(str(stage), store=True)
            self._commit()
        if early:
            self._arrived(ahead - 1)
            self._fragments("0", 0, 0)
        text.open(f"for k0 in T.serial({part.turns}):")
        if not early:
            self._arrived(ahead - 1)
            self._fragments("k0", 0, 0)
        for step in range(depth):
            if step == 0:
                self._later_stage(lambda: self._fetch(f"k0 + {ahead}", store=False))
                self._commit()
            if step == depth - 1:
                self._later_stage(lambda: self._store_stage(f"k0 + {ahead}"))
            if step < depth - 1:
                self._fragments("k0", step + 1, (step + 1) % 2)
            elif early:
                self._arrived(ahead - 1)
                self._fragments(f"T.min(k0 + 1, {part.turns_less(1)})", 0, 0)  # the last stage reads what nobody uses
            self._multiply(step % 2)
        text.close()

    def _later_stage(self, write: Callable[[], None]) -> None:
        """Write what concerns a stage ahead, for as long as there is one."""
        ahead = self.layout.stages - 1
        if self.part.most <= ahead:
            return
        self.text.open(f"if k0 < {self.part.turns_less(ahead)}:")
        before = len(self.text.lines)
        write()
        if len(self.text.lines) == before:
            self.text.lines.pop()
        self.text.close()

    # -- fragments and arithmetic ------------------------------------------------------------------------------

    def _fragments(self, stage: str, step: int, buffer: int) -> None:
        """Read the fragments of both operands for instruction `step` of a stage."""
        layout = self.layout
        slot = self._slot(stage)
        self._left_fragments(layout.left, slot, step, buffer * layout.mma["m"] * 4)
        self._right_fragments(layout.right, slot, step, buffer * layout.mma["n"] * 2)
        if layout.element_bytes == 4:
            for name, count in (("frag_m", layout.mma["m"] * 4), ("frag_n", layout.mma["n"] * 2)):
                with self.text.scope(f"for r in T.unroll({count}):"):
                    place = f"{name}[{buffer * count} + r]"
                    self.text.line(f'T.ptx["cvt.rna.tf32.f32"]({place}, T.reinterpret("float32", {place}))')

    def _left_fragments(self, tile: OperandTile, slot: str, step: int, base: int) -> None:
        """16 x 32 bytes a fragment: quarters (rows 0-7, 8-15) x (k low, k high)."""
        layout, text = self.layout, self.text
        rows = layout.block["m"] // layout.warps["m"]
        first = sum_of(f"(tx // {_WARP * layout.warps['n']}) * {rows}" if layout.warps["m"] > 1 else "0", "mi * 16")
        with text.scope(f"for mi in T.unroll({layout.mma['m']}):"):
            if not tile.matrix:
                target, across = f"{base} + mi * 4", ("0", "8", "0", "8")
                self._elements(tile, "frag_m", target, slot, step, first, across, (0, 0, 4, 4))
                return
            if tile.operand.along_k:
                place = tile.address(f"{first} + tx % 16", f"{2 * step} + tx % 32 // 16")
            else:
                row = f"{16 * step} + tx % 32 // 16 * 8 + tx % 8"
                place = tile.address(row, f"({first}) // 8 + tx % 16 // 8")
            self._matrix("frag_m", f"{base} + mi * 4", 4, slot, place, transposed=not tile.operand.along_k)

    def _right_fragments(self, tile: OperandTile, slot: str, step: int, base: int) -> None:
        """8 x 32 bytes a fragment: k low, k high; two fragments are read at once."""
        layout, text = self.layout, self.text
        count, columns = layout.mma["n"], layout.warp_columns
        warp = "tx // 32" if layout.warps["m"] == 1 else f"tx // 32 % {layout.warps['n']}"
        origin = f"({warp}) * {columns}" if layout.warps["n"] > 1 else "0"
        if not tile.matrix:
            with text.scope(f"for ni in T.unroll({count}):"):
                first = sum_of(origin, "ni * 8")
                self._elements(tile, "frag_n", f"{base} + ni * 2", slot, step, first, ("0", "0"), (0, 4))
            return
        for start, pairs, size in ((0, count // 2, 2), (count - count % 2, count % 2, 1)):
            if not pairs:
                continue
            first = sum_of(origin, f"{8 * start} + ni * {8 * size}")
            second = "tx % 32 // 16" if size == 2 else "0"
            if tile.operand.along_k:
                place = tile.address(f"{first} + {second} * 8 + tx % 8", f"{2 * step} + tx % 16 // 8")
            else:
                place = tile.address(f"{16 * step} + tx % 16", f"({first}) // 8 + {second}")
            target = f"{base + 2 * start} + ni * {2 * size}"
            with text.scope(f"for ni in T.unroll({pairs}):"):
                self._matrix("frag_n", target, 2 * size, slot, place, transposed=not tile.operand.along_k)

    def _matrix(self, name: str, target: str, count: int, slot: str, place: str, *, transposed: bool) -> None:
        registers = ", ".join(f"{name}[{target} + {r}]" for r in range(count))
        flip = ".trans" if transposed else ""
        self.text.line(
            f'T.ptx["ldmatrix.sync.aligned.m8n8.x{count}{flip}.shared.b16"]'
            f"({registers}, T.address_of(smem[{slot} + {place}]))"
        )

    def _elements(
        self,
        tile: OperandTile,
        name: str,
        target: str,
        slot: str,
        step: int,
        first: str,
        across: Iterable[str],
        along: Iterable[int],
    ) -> None:
        """Read a fragment of 32-bit elements one by one: its registers are `across` columns and `along` k apart."""
        for register, (column, row) in enumerate(zip(across, along, strict=True)):
            chunk = f"({first} + {column} + tx % 32 // 4) // 4"
            place = tile.address(f"{8 * step + row} + tx % 4", chunk, "tx % 32 // 4 % 4")
            self.text.line(f"{name}[{target} + {register}] = smem[{slot} + {place}]")

    def _multiply(self, buffer: int) -> None:
        layout, text = self.layout, self.text
        kind = _PTX_TYPE[self.workload.dtype]
        size = 16 if layout.element_bytes == 2 else 8
        sums = ", ".join(f"acc[(mi * {layout.mma['n']} + ni) * 4 + {r}]" for r in range(4))
        left = ", ".join(f"frag_m[{buffer * layout.mma['m'] * 4} + mi * 4 + {r}]" for r in range(4))
        right = ", ".join(f"frag_n[{buffer * layout.mma['n'] * 2} + ni * 2 + {r}]" for r in range(2))
        instruction = f"mma.sync.aligned.m16n8k{size}.row.col.f32.{kind}.{kind}.f32"
        with text.scope(*(f"for {name}i in T.unroll({layout.mma[name]}):" for name in ("m", "n"))):
            text.line(f'T.ptx["{instruction}"]({sums}, {left}, {right}, {sums})')
