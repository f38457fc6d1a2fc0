"""Kernels of products with scales and of products of experts in Triton."""

from __future__ import annotations

from anatune.core.schedule import Schedule
from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.scaling import SIDE
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.grouped.problem import most_blocks, scaled_problem_of
from anatune.templates.triton.grouped.rules import PROMOTED_DEPTH, crosses_blocks
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from anatune.templates.triton.program.lines import fold_lines
from anatune.templates.triton.program.module import module_text, write_walk
from anatune.templates.triton.program.parts import PARTS_NAME, write_parts
from anatune.templates.triton.program.sizes import PARTS_BLOCK, TileSizes
from anatune.templates.triton.program.steps import TRITON_TYPES
from anatune.templates.triton.rules import loses_sums_of

__all__ = ["scaled_program"]

_NARROW = 2**31


def scaled_program(schedule: Schedule) -> TritonProgram:
    """Return the Triton module of a schedule.

    Raises
    ------
    SpaceError
        The schedule is not legal.
    """
    return _GroupedWriter(schedule.check()).program()


class _GroupedWriter:
    """Writes the module of one schedule.

    `rows_left` and `columns_left` are the conditions that indices of rows of the data and of the weights are inside
    their extents. They are "" if tiles divide the extents.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.workload, self.hardware = schedule, schedule.workload, gpu_of(schedule)
        p = self.problem = scaled_problem_of(self.workload)
        self.format, self.text = p.format, Script()
        self.described = bool(self._option("descriptors"))
        self.sizes = self._sizes()
        blocks, write = self.sizes.blocks, self.workload.write
        self.workspace: Buffer | None = None
        if self.sizes.split > 1:
            self.workspace = Buffer("parts", "float32", (self.sizes.split, *write.shape))
        # pointers of weights are moved to their expert before offsets are added
        parts = dict.fromkeys(("weight", "weight_scales", "weight_zeros"), p.experts or 1)
        largest = max(read.num_elements // parts.get(read.tensor, 1) for read in self.workload.reads)
        self.wide = max(largest, write.num_elements * self.sizes.split) >= _NARROW
        self.sums_are_whole = self.format.data == "int8"
        self.rows_left = "place < end" if p.experts else "row < M" if p.rows % blocks["m"] else ""
        self.columns_left = ""
        if p.columns % blocks["n"]:
            self.columns_left = "pair < COLUMNS" if p.activation else "col < COLUMNS"
        self.data_row = "token" if p.experts and not p.expanded and p.top_k > 1 else "row"
        self.packs = {
            "data": 2 if self.format.data_bits == 4 else 1,
            "weight": 2 if self.format.weight_bits == 4 else 1,
        }

    def program(self) -> TritonProgram:
        """Write the module and return it with its launches."""
        reads, result = tuple(Buffer.of(access) for access in self.workload.reads), Buffer.of(self.workload.write)
        options: dict[str, bool | int | str] = {"enable_fp_fusion": True}
        launched = {**options, **({"waves_per_eu": w} if (w := self._option("waves_per_eu")) else {})}
        warps, stages = self._option("num_warps"), self._option("num_stages")
        name = "experts" if self.problem.experts else "product"
        kernels = [TritonKernel(name, (*reads, self.workspace or result), self.sizes.grid, warps, stages, launched)]
        self._write_kernel(kernels[0])
        if self.workspace is not None:
            both, sizes = (self.workspace, result), self.sizes._replace(wide=self.wide)
            kernels.append(TritonKernel(PARTS_NAME, both, -(-self.sizes.results // PARTS_BLOCK), 4, 1, options))
            self.text.line("\n")
            write_parts(self.text, self.workload, "parts_ptr", ["parts_ptr", f"{result.tensor}_ptr"], sizes)
        between = None if self.workspace is None else (self.workspace, "parts of sums")
        formula = "silu(gate) up, both data weight^T" if self.problem.activation else "data weight^T"
        title = f"output = {formula}" + (", each row with its expert's" if self.problem.experts else "")
        source = fold_lines(module_text(self.schedule, title, kernels, self._constants(), str(self.text), between))
        return TritonProgram(self.schedule.key, source, tuple(kernels), result.tensor, self.workspace)

    def _option(self, name: str) -> int:
        return int(str(self.schedule.options.get(name, 0)))

    def _sizes(self) -> TileSizes:
        p, split = self.problem, max(1, self._option("split_k"))
        blocks = {index: self.schedule.tiles[index][-1] for index in "mnk"}
        extents = {"m": p.rows, "n": p.columns, "k": p.k}
        tiles = {index: -(-extents[index] // blocks[index]) for index in "mnk"}
        if p.experts:
            tiles["m"] = most_blocks(p, blocks["m"])
        programs = tiles["m"] * tiles["n"] * split
        return TileSizes(
            extents, blocks, tiles, batch=1, group=self._option("group_m"), split=split,
            steps=-(-tiles["k"] // split), programs=programs, grid=programs, persistent=False, wide=False,
            results=self.workload.write.num_elements,
        )  # fmt: skip

    def _constants(self) -> dict[str, int | float]:
        p, block_k = self.problem, self.sizes.blocks["k"]
        rows = {f"{tensor.upper()}_ROW": p.k // packs for tensor, packs in self.packs.items()}
        steps = {f"{tensor.upper()}_STEP": block_k // packs for tensor, packs in self.packs.items()}
        return {
            **self.sizes.constants(self.sizes.blocks),
            "COLUMNS": p.columns,
            "WIDTH": p.result_columns,
            "EXPERTS": p.experts,
            "LANES": max(2, 1 << (p.experts - 1).bit_length()) if p.experts else 0,
            "TOP_K": p.top_k,
            **rows,
            **steps,
            "RUN": p.run,
            "RUNS": -(-p.k // p.run) if p.run else 1,
            "SIDE": SIDE,
            "SCALE_ROWS": -(-p.columns // SIDE),
        }

    # ---- the principal kernel ----

    def _write_kernel(self, kernel: TritonKernel) -> None:
        text, p = self.text, self.problem
        text.line("@triton.jit")
        with text.scope(f"def {kernel.name}({', '.join(f'{buffer.tensor}_ptr' for buffer in kernel.parameters)}):"):
            text.line("program = tl.program_id(0)")
            write_walk(text, self.sizes, self.hardware.vendor, "block" if p.experts else "first_m")
            self._write_rows()
            self._write_columns()
            self._write_operands()
            sum_type = "int32" if self.sums_are_whole and p.scales != "blocks" else "float32"
            text.line(f"sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.{sum_type})")
            first, stop = "0", "K"
            if self.sizes.split > 1:
                text.line("first_part = part * PART_K")
                first, stop = "first_part", "first_part + PART_K"
                stop = f"tl.minimum({stop}, K)" if self.sizes.is_ragged else stop
            with text.scope(f"for first_k in range({first}, {stop}, BLOCK_K):"):
                self._write_step()
            self._write_scales()
            self._write_result()

    def _write_rows(self) -> None:
        """Write the rows of a program, and for experts the expert."""
        text, p = self.text, self.problem
        if not p.experts:
            text.line(f"row = {_cast('first_m + tl.arange(0, BLOCK_M)', wide=self.wide)}")
            return
        text.line("# rows of an expert follow each other in `order`; each expert has blocks of its own")
        text.line("lane = tl.arange(0, LANES)")
        text.line("ends = tl.load(ends_ptr + lane, mask=lane < EXPERTS, other=M)")
        text.line("starts = tl.load(ends_ptr + lane - 1, mask=(lane > 0) & (lane < EXPERTS), other=0)")
        text.line("blocks = tl.where(lane < EXPERTS, (ends - starts + BLOCK_M - 1) // BLOCK_M, 0)")
        text.line("after = tl.cumsum(blocks, 0)")
        text.line("expert = tl.sum((after <= block).to(tl.int32), 0)")
        text.line("if expert >= EXPERTS:")
        text.line("    return  # as many blocks are launched as any routing needs")
        text.line("mine = lane == expert")
        text.line("first = tl.sum(tl.where(mine, starts + (block - after + blocks) * BLOCK_M, 0), 0)")
        text.line("end = tl.sum(tl.where(mine, ends, 0), 0)")
        text.line("place = first + tl.arange(0, BLOCK_M)")
        text.line(f"row = tl.load(order_ptr + place, mask=place < end, other=0){'.to(tl.int64)' if self.wide else ''}")
        if self.data_row == "token":
            text.line("token = row // TOP_K")
        for tensor, size in self._sizes_of_experts().items():
            text.line(f"{tensor}_ptr += expert.to(tl.int64) * ({size})" if size else f"{tensor}_ptr += expert")

    def _sizes_of_experts(self) -> dict[str, str]:
        """Return tensor -> its elements per expert, as an expression; "" for one element."""
        p, formats = self.problem, self.format
        each = "COLUMNS * RUNS" if p.run else "COLUMNS" if formats.converts or p.scales == "rows" else ""
        each = "SCALE_ROWS * RUNS" if p.scales == "blocks" else each
        sizes = {
            "weight": "COLUMNS * WEIGHT_ROW",
            "weight_scales": each,
            "weight_zeros": "COLUMNS * RUNS",
            "factor": "",
        }
        tensors = [access.tensor for access in self.workload.reads]
        return {tensor: size for tensor, size in sizes.items() if tensor in tensors}

    def _write_columns(self) -> None:
        """Write the columns of a program, which are rows of the weights."""
        text = self.text
        if self.problem.activation:
            text.line("# columns of the gate and of what it lets through in turn: their sums are side by side")
            text.line("pair = first_n + tl.arange(0, BLOCK_N)")
            text.line(f"col = {_cast('pair // 2 + pair % 2 * WIDTH', wide=self.wide)}")
        else:
            text.line(f"col = {_cast('first_n + tl.arange(0, BLOCK_N)', wide=self.wide)}")

    def _write_operands(self) -> None:
        """Write the part of the operands' addresses that is the same in all steps of k."""
        text = self.text
        if self._has_runs():
            for tensor, rows in (("data", self.data_row),) * (self.format.run > 0) + (("weight", "col"),):
                text.line(f"at_{tensor}_runs = {rows}[:, None] * RUNS + tl.arange(0, BLOCK_K // RUN)[None, :]")
        if self.described:
            for tensor, rows, block in (("data", "M", "M"), ("weight", "COLUMNS", "N")):
                name = tensor.upper()
                text.line(f"{tensor}_tiles = tl.make_tensor_descriptor(")
                text.line(f"    {tensor}_ptr, shape=[{rows}, {name}_ROW], strides=[{name}_ROW, 1],")
                text.line(f"    block_shape=[BLOCK_{block}, {name}_STEP],")
                text.line(")")
            return
        for tensor, rows in (("data", self.data_row), ("weight", "col")):
            name = tensor.upper()
            text.line(f"at_{tensor} = {rows}[:, None] * {name}_ROW + tl.arange(0, {name}_STEP)[None, :]")

    # ---- a step of k ----

    def _write_step(self) -> None:
        text, formats, p = self.text, self.format, self.problem
        for tensor, left in (("data", self.rows_left), ("weight", self.columns_left)):
            text.line(f"{tensor} = {self._tile_of(tensor, left)}")
        if formats.run:
            for tensor, left in (("data", self.rows_left), ("weight", self.columns_left)):
                text.line(f"{tensor}_scale = {self._run_scales(f'{tensor}_scales', tensor, left)}")
            word = '"e2m1"' if formats.data_bits == 4 else '"e4m3"'
            text.line(f"sums = tl.dot_scaled(data, data_scale, {word}, weight.T, weight_scale, {word}, sums)")
            return
        if formats.converts:
            self._write_conversion()
        if p.scales != "blocks":
            text.line(f"sums = tl.dot(data, weight.T, sums{self._dot_options()})")
            return
        for tensor, scales in (("data", self._row_scales()), ("weight", self._block_scales())):
            text.line(f"{tensor}_scale = {scales}")
        product = "tl.dot(data, weight.T)"
        if self.sums_are_whole:
            product = "tl.dot(data, weight.T, out_dtype=tl.int32).to(tl.float32)"
        columns = "weight_scale[None, :]" if crosses_blocks(p, self.sizes.blocks["n"]) else "weight_scale"
        text.line(f"sums += {product} * data_scale[:, None] * {columns}")

    def _tile_of(self, tensor: str, left: str) -> str:
        """Return the expression of an operand's tile of a step, (rows, elements in memory along k)."""
        packs, name = self.packs[tensor], tensor.upper()
        first = "first_k" if packs == 1 else f"first_k // {packs}"
        if self.described:
            return f"{tensor}_tiles.load([{'first_m' if tensor == 'data' else 'first_n'}, {first}])"
        masks = [f"({left})[:, None]"] if left else []
        if self.problem.k % self.sizes.blocks["k"]:
            masks.append(f"(tl.arange(0, {name}_STEP) < {name}_ROW - {first})[None, :]")
        return self._load(tensor, f"at_{tensor} + {first}", *masks)

    def _load(self, tensor: str, index: str, *masks: str) -> str:
        """Return the expression of a load. Masked elements are zero."""
        zero = "0" if self.workload.tensor(tensor).dtype in INTEGER_RANGE else "0.0"
        conditions = [mask for mask in masks if mask]
        guarded = f", mask={' & '.join(conditions)}, other={zero}" if conditions else ""
        return f"tl.load({tensor}_ptr + {index}{guarded})"

    def _dot_options(self) -> str:
        if self.sums_are_whole:
            return ", out_dtype=tl.int32"
        depth = min(PROMOTED_DEPTH, self.sizes.blocks["k"])
        return f", max_num_imprecise_acc={depth}" if loses_sums_of(self.format.data, self.hardware) else ""

    def _run_scales(self, tensor: str, operand: str, left: str) -> str:
        """Return the expression of the scales of a step, (rows, runs of a step)."""
        masks = [f"({left})[:, None]"] if left else []
        if self.problem.k % self.sizes.blocks["k"]:
            masks.append("(tl.arange(0, BLOCK_K // RUN) < RUNS - first_k // RUN)[None, :]")
        return self._load(tensor, f"at_{operand}_runs + first_k // RUN", *masks)

    def _write_conversion(self) -> None:
        """Write the conversion of stored weights to the data's type."""
        text, p = self.text, self.problem
        if self.packs["weight"] == 2:
            text.line("# two numbers a byte, the one of even k in the low bits")
            text.line("weight = tl.join(weight & 15, weight >> 4).reshape(BLOCK_N, BLOCK_K)")
            if not p.zero_points:
                text.line("weight = weight.to(tl.int8) - 8")
        factors = [("zeros", "-")] * p.zero_points + [("scales", "*")] * (p.run > 0)
        several = self._has_runs()
        if factors:
            text.line("weight = weight.to(tl.float32)" + (".reshape(BLOCK_N, BLOCK_K // RUN, RUN)" if several else ""))
        for name, operator in factors:
            if several:
                loaded = self._run_scales(f"weight_{name}", "weight", self.columns_left)
            else:
                step = "col * RUNS + first_k // RUN" if p.run else "col"
                loaded = self._load(f"weight_{name}", step, self.columns_left)
            text.line(f"{name} = {loaded}")
            text.line(f"weight = weight {operator} {name}.to(tl.float32)[:, {':, ' if several else ''}None]")
        whole = ".reshape(BLOCK_N, BLOCK_K)" if several else ""
        text.line(f"weight = weight{whole}.to(tl.{TRITON_TYPES[self.format.data]})")

    def _has_runs(self) -> bool:
        """Return whether a row has several scales in a step. They then have separate addresses."""
        return self.format.run > 0 or (self.format.converts and 0 < self.problem.run < self.sizes.blocks["k"])

    def _row_scales(self) -> str:
        """Return the expression of a step's scales of the data, one for each row."""
        return self._load("data_scales", f"{self.data_row} * RUNS + first_k // SIDE", self.rows_left)

    def _block_scales(self) -> str:
        """Return the expression of a step's scale of the weights: one, or one for each column."""
        if not crosses_blocks(self.problem, self.sizes.blocks["n"]):
            return self._load("weight_scales", "first_n // SIDE * RUNS + first_k // SIDE")
        return self._load("weight_scales", "col // SIDE * RUNS + first_k // SIDE", self.columns_left)

    # ---- after the last step ----

    def _write_scales(self) -> None:
        """Write the multiplication of the sums with scales."""
        text, p, formats = self.text, self.problem, self.format
        if formats.run == 16:
            text.line("sums *= tl.load(factor_ptr)")
        if formats.converts and not p.run:
            text.line(f"scale = {self._load('weight_scales', 'col', self.columns_left)}")
            text.line("sums *= scale.to(tl.float32)[None, :]")
        if p.scales in ("tensor", "rows") and self.sums_are_whole:
            text.line("sums = sums.to(tl.float32)")
        if p.scales == "tensor":
            text.line("sums *= tl.load(data_scales_ptr) * tl.load(weight_scales_ptr)")
        elif p.scales == "rows":
            text.line(f"sums *= {self._load('data_scales', self.data_row, self.rows_left)}[:, None]")
            text.line(f"sums *= {self._load('weight_scales', 'col', self.columns_left)}[None, :]")

    def _write_result(self) -> None:
        text, p = self.text, self.problem
        column, columns_left = "col", self.columns_left
        if p.activation:
            text.line("gate, up = tl.split(sums.reshape(BLOCK_M, BLOCK_N // 2, 2))")
            text.line("sums = gate / (1.0 + tl.exp(-gate)) * up")
            text.line("out = first_n // 2 + tl.arange(0, BLOCK_N // 2)")
            column, columns_left = "out", "out < WIDTH" if columns_left else ""
        masks = [f"({left})[{at}]" for left, at in ((self.rows_left, ":, None"), (columns_left, "None, :")) if left]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        value = f"sums.to(tl.{TRITON_TYPES[self.workload.write.dtype]})"
        start = "output_ptr"
        if self.workspace is not None:
            text.line("# each part of k has a place of its own; add_parts adds them up")
            start, value = f"parts_ptr + part{'.to(tl.int64)' if self.wide else ''} * RESULTS", "sums"
        text.line(f"tl.store({start} + (row[:, None] * WIDTH + {column}[None, :]), {value}{mask})")


def _cast(index: str, *, wide: bool) -> str:
    """Return an index in 64 bits if elements are counted in 64 bits."""
    return f"({index}).to(tl.int64)" if wide else index
