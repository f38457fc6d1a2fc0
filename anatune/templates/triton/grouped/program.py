"""Products with scales and products of experts as kernels of tiles, written as people write Triton."""

from __future__ import annotations

from anatune.core.schedule import Schedule
from anatune.core.workload.scaling import SIDE
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.grouped.problem import ScaledProblem, most_blocks, scaled_problem_of
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from anatune.templates.triton.program.lines import folded
from anatune.templates.triton.program.module import module_text, write_walk
from anatune.templates.triton.program.parts import PARTS_NAME, write_parts
from anatune.templates.triton.program.sizes import PARTS_BLOCK, TileSizes
from anatune.templates.triton.program.steps import TRITON_TYPES

__all__ = ["scaled_program"]

_NARROW = 2**31
_PROMOTED_DEPTH = 128
"""Products after which sums of 8-bit floats leave the tensor core's own accumulators. Source: [DeepSeek-V3] 3.3.2."""


def scaled_program(schedule: Schedule) -> TritonProgram:
    """Return the Triton module of a schedule.

    Raises
    ------
    SpaceError
        The schedule contradicts itself.
    """
    return _Writer(schedule.check()).program()


class _Writer:
    """Writes the module of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.workload, self.hardware = schedule, schedule.workload, gpu_of(schedule)
        self.problem: ScaledProblem = scaled_problem_of(self.workload)
        self.format, self.text = self.problem.format, Script()
        self.described = bool(schedule.options.get("descriptors"))
        self.sizes = self._sizes()
        self.workspace: Buffer | None = None
        if self.sizes.split > 1:
            self.workspace = Buffer("parts", "float32", (self.sizes.split, *self.workload.write.shape))
        p, block_k = self.problem, self.sizes.blocks["k"]
        self.wide = max(self.workload.tensor("data").num_elements, p.columns * p.k) >= _NARROW
        self.sums_are_whole = self.format.data == "int8"
        self.step_scaled = p.scales == "blocks"
        self.row_mask = "" if p.experts else "(row[:, None] < M)" if p.rows % self.sizes.blocks["m"] else ""
        self.col_mask = "(col[:, None] < COLUMNS)" if p.columns % self.sizes.blocks["n"] else ""
        self.ragged_k = p.k % block_k > 0
        self.packed = [
            block_k // 2 if bits == 4 else block_k for bits in (self.format.data_bits, self.format.weight_bits)
        ]

    def program(self) -> TritonProgram:
        """Return it."""
        reads, result = tuple(Buffer.of(access) for access in self.workload.reads), Buffer.of(self.workload.write)
        options: dict[str, bool | int | str] = {"enable_fp_fusion": True}
        launched = {**options, **({"waves_per_eu": w} if (w := self._option("waves_per_eu")) else {})}
        warps, stages = self._option("num_warps"), self._option("num_stages")
        name = "experts" if self.problem.experts else "product"
        parameters = (*reads, self.workspace or result)
        kernels = [TritonKernel(name, parameters, self.sizes.grid, warps, stages, launched)]
        self._write_kernel(kernels[0])
        if self.workspace is not None:
            both = (self.workspace, result)
            kernels.append(TritonKernel(PARTS_NAME, both, -(-self.sizes.results // PARTS_BLOCK), 4, 1, options))
            self.text.line("\n")
            write_parts(self.text, self.workload, "parts_ptr", ["parts_ptr", f"{result.tensor}_ptr"], self.wide)
        between = None if self.workspace is None else (self.workspace, "parts of sums")
        title = (
            "output = data weight^T, each row with its expert's" if self.problem.experts else "output = data weight^T"
        )
        source = folded(module_text(self.schedule, title, kernels, self._constants(), str(self.text), between))
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
        steps = -(-tiles["k"] // split)
        return TileSizes(
            extents, blocks, tiles, 1, self._option("group_m"), split, steps, programs, programs, False, False,
            self.workload.write.num_elements,
        )  # fmt: skip

    def _constants(self) -> dict[str, int | float]:
        p = self.problem
        return {
            **self.sizes.constants(self.sizes.blocks),
            "COLUMNS": p.columns,
            "WIDTH": p.result_columns,
            "EXPERTS": p.experts,
            "LANES": max(2, 1 << (p.experts - 1).bit_length()) if p.experts else 0,
            "TOP_K": p.top_k,
            "DATA_ROW": p.k // 2 if self.format.data_bits == 4 else p.k,
            "WEIGHT_ROW": p.k // 2 if self.format.weight_bits == 4 else p.k,
            "DATA_STEP": self.packed[0],
            "WEIGHT_STEP": self.packed[1],
            "RUN": p.run,
            "RUNS": -(-p.k // p.run) if p.run else 1,
            "SIDE": SIDE,
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
            kind = "int32" if self.sums_are_whole and not self.step_scaled else "float32"
            text.line(f"sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.{kind})")
            first, stop = "0", "K"
            if self.sizes.split > 1:
                text.line("first_part = part * PART_K")
                first, stop = "first_part", "first_part + PART_K"
                stop = f"tl.minimum({stop}, K)" if self.sizes.ragged else stop
            with text.scope(f"for first_k in range({first}, {stop}, BLOCK_K):"):
                self._write_step()
            self._write_scales()
            self._write_result()

    def _write_rows(self) -> None:
        """Write which rows a program takes; of experts: whose they are."""
        text, p = self.text, self.problem
        if not p.experts:
            text.line("row = first_m + tl.arange(0, BLOCK_M)")
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
        text.line("row = tl.load(order_ptr + place, mask=place < end, other=0)")

    def _write_columns(self) -> None:
        text = self.text
        if self.problem.activation:
            text.line("# columns of the gate and of what it lets through in turn: their sums are side by side")
            text.line("pair = first_n + tl.arange(0, BLOCK_N)")
            text.line("col = pair // 2 + pair % 2 * WIDTH")
            if self.col_mask:
                self.col_mask = "(pair[:, None] < COLUMNS)"
        else:
            text.line("col = first_n + tl.arange(0, BLOCK_N)")

    def _write_operands(self) -> None:
        """Write where operands lie: what the steps of k leave alone."""
        text, p = self.text, self.problem
        wide = ".to(tl.int64)" if self.wide else ""
        source = "row // TOP_K" if p.experts and not p.expanded and p.top_k > 1 else "row"
        text.line(f"source = {source}")
        if self.described:
            for tensor, rows, block in (("data", "M", "M"), ("weight", "COLUMNS", "N")):
                name = tensor.upper()
                text.line(f"{tensor}_tiles = tl.make_tensor_descriptor(")
                text.line(f"    {tensor}_ptr, shape=[{rows}, {name}_ROW], strides=[{name}_ROW, 1],")
                text.line(f"    block_shape=[BLOCK_{block}, {name}_STEP],")
                text.line(")")
            return
        if p.experts:
            text.line("weight_ptr += expert.to(tl.int64) * (COLUMNS * WEIGHT_ROW)")
        for tensor, rows in (("data", "source"), ("weight", "col")):
            name = tensor.upper()
            text.line(f"at_{tensor} = {rows}{wide}[:, None] * {name}_ROW + tl.arange(0, {name}_STEP)[None, :]")

    def _load(self, tensor: str, mask: str, step: int) -> str:
        """Return the expression of an operand's tile of a step, (rows, elements in memory along k)."""
        packs = self.sizes.blocks["k"] // step
        first = "first_k" if packs == 1 else f"first_k // {packs}"
        if self.described:
            row = "first_m" if tensor == "data" else "first_n"
            return f"{tensor}_tiles.load([{row}, {first}])"
        masks = [mask] if mask else []
        if self.ragged_k:
            masks.append(f"(tl.arange(0, {tensor.upper()}_STEP)[None, :] < {tensor.upper()}_ROW - {first})")
        other = ("0" if self.workload.tensor(tensor).dtype in ("int8", "uint8") else "0.0") if masks else ""
        guarded = f", mask={' & '.join(masks)}, other={other}" if masks else ""
        return f"tl.load({tensor}_ptr + at_{tensor} + {first}{guarded})"

    def _write_step(self) -> None:
        text, found = self.text, self.format
        text.line(f"data = {self._load('data', self.row_mask, self.packed[0])}")
        text.line(f"weight = {self._load('weight', self.col_mask, self.packed[1])}")
        if found.run:
            for tensor, rows, mask in (("data", "source", self.row_mask), ("weight", "col", self.col_mask)):
                text.line(f"{tensor}_scale = {self._runs(tensor + '_scales', rows, mask)}")
            kind = '"e2m1"' if found.data_bits == 4 else '"e4m3"'
            text.line(f"sums = tl.dot_scaled(data, data_scale, {kind}, weight.T, weight_scale, {kind}, sums)")
            return
        if found.converts:
            self._write_conversion()
        if not self.step_scaled:
            text.line(f"sums = tl.dot(data, weight.T, sums{self._dot_options()})")
            return
        self._write_block_scales()
        kind = ", out_dtype=tl.int32).to(tl.float32)" if self.sums_are_whole else ")"
        columns = "weight_scale[None, :]" if self._has_scale_vector() else "weight_scale"
        text.line(f"sums += tl.dot(data, weight.T{kind} * data_scale[:, None] * {columns}")

    def _dot_options(self) -> str:
        if self.sums_are_whole:
            return ", out_dtype=tl.int32"
        depth = min(_PROMOTED_DEPTH, self.sizes.blocks["k"])
        return f", max_num_imprecise_acc={depth}" if self.format.data.startswith("float8") else ""

    def _runs(self, tensor: str, rows: str, mask: str) -> str:
        """Return the scales of a step, (rows, runs of a step)."""
        base = f"{tensor}_ptr + {self._expert('COLUMNS * RUNS') if rows == 'col' else ''}"
        masks = [mask] if mask else []
        lanes = "tl.arange(0, BLOCK_K // RUN)[None, :]"
        if self.ragged_k:
            masks.append(f"({lanes} < RUNS - first_k // RUN)")
        kind = self.workload.tensor(tensor).dtype
        other = f", mask={' & '.join(masks)}, other={0 if kind == 'uint8' else 0.0}" if masks else ""
        return f"tl.load({base}{rows}[:, None] * RUNS + first_k // RUN + {lanes}{other})"

    def _expert(self, size: str) -> str:
        """Return what an expert's weights are behind the first one's, elements."""
        return f"expert * ({size}) + " if self.problem.experts else ""

    def _write_conversion(self) -> None:
        """Write how stored weights become numbers of the data's type."""
        text, p, kind = self.text, self.problem, TRITON_TYPES[self.format.data]
        if self.format.weight_bits == 4:
            text.line("# two numbers a byte, the one of even k in the low bits")
            text.line("weight = tl.join(weight & 15, weight >> 4).reshape(BLOCK_N, BLOCK_K)")
            if not p.zero_points:
                text.line("weight = weight.to(tl.int8) - 8")
        factors = [("weight_zeros", "-")] * p.zero_points + [("weight_scales", "*")] * (p.run > 0)
        if factors:
            text.line("weight = weight.to(tl.float32)")
        deep = bool(p.run) and self.sizes.blocks["k"] > p.run
        for tensor, operator in factors:
            text.line(f"factor = {self._of_runs(tensor)}.to(tl.float32)")
            if deep:
                text.line(f"weight = weight.reshape(BLOCK_N, BLOCK_K // RUN, RUN) {operator} factor[:, :, None]")
                text.line("weight = weight.reshape(BLOCK_N, BLOCK_K)")
            else:
                text.line(f"weight = weight {operator} factor[:, None]")
        text.line(f"weight = weight.to(tl.{kind})")

    def _of_runs(self, tensor: str) -> str:
        """Return scales or zero points of a step's weights: (columns,), or (columns, runs of a step)."""
        p = self.problem
        if p.run and self.sizes.blocks["k"] > p.run:
            return self._runs(tensor, "col", self.col_mask)
        mask = self.col_mask.replace("[:, None]", "").strip("()")
        guard = f", mask={mask}, other=0" if mask else ""
        step = " + first_k // RUN" if p.run else ""
        return f"tl.load({tensor}_ptr + {self._expert('COLUMNS * RUNS')}col * RUNS{step}{guard})"

    def _has_scale_vector(self) -> bool:
        """Whether columns of a tile have several scales."""
        return self.problem.activation or SIDE % self.sizes.blocks["n"] > 0

    def _write_block_scales(self) -> None:
        text, p = self.text, self.problem
        guard = ", mask=row < M, other=0.0" if self.row_mask else ""
        text.line(f"data_scale = tl.load(data_scales_ptr + source * RUNS + first_k // SIDE{guard})")
        blocks = -(-p.columns // SIDE)
        base = f"weight_scales_ptr + {self._expert(f'{blocks} * RUNS')}"
        if not self._has_scale_vector():
            text.line(f"weight_scale = tl.load({base}first_n // SIDE * RUNS + first_k // SIDE)")
            return
        mask = self.col_mask.replace("[:, None]", "").strip("()")
        guard = f", mask={mask}, other=0.0" if mask else ""
        text.line(f"weight_scale = tl.load({base}col // SIDE * RUNS + first_k // SIDE{guard})")

    # ---- behind the last step ----

    def _write_scales(self) -> None:
        """Write what sums are multiplied with."""
        text, p, found = self.text, self.problem, self.format
        mask = self.col_mask.replace("[:, None]", "").strip("()")
        columns, rows = (f", mask={condition}, other=0.0" if condition else "" for condition in (
            mask, "row < M" if self.row_mask else ""))  # fmt: skip
        if found.run == 16:
            text.line("sums *= tl.load(factor_ptr)")
        if found.converts and not p.run:
            text.line(f"scale = tl.load(weight_scales_ptr + {self._expert('COLUMNS')}col{columns})")
            text.line("sums *= scale.to(tl.float32)[None, :]")
        elif p.scales == "tensor":
            expert = " + expert" if p.experts else ""
            text.line(f"scale = tl.load(data_scales_ptr) * tl.load(weight_scales_ptr{expert})")
            text.line(f"sums = sums{'.to(tl.float32)' if self.sums_are_whole else ''} * scale")
        elif p.scales == "rows":
            text.line(f"scale = tl.load(data_scales_ptr + source{rows})")
            text.line(f"sums = sums{'.to(tl.float32)' if self.sums_are_whole else ''} * scale[:, None]")
            text.line(f"scale = tl.load(weight_scales_ptr + {self._expert('COLUMNS')}col{columns})")
            text.line("sums *= scale[None, :]")

    def _write_result(self) -> None:
        text, p = self.text, self.problem
        out = "col"
        if p.activation:
            text.line("gate, up = tl.split(sums.reshape(BLOCK_M, BLOCK_N // 2, 2))")
            text.line("sums = gate / (1.0 + tl.exp(-gate)) * up")
            text.line("out = first_n // 2 + tl.arange(0, BLOCK_N // 2)")
            out = "out"
        masks = ["(place[:, None] < end)"] if p.experts else [self.row_mask] if self.row_mask else []
        masks += [f"({out}[None, :] < WIDTH)"] if self.col_mask else []
        mask = f", mask={' & '.join(masks)}" if masks else ""
        reach = self.sizes.results * self.sizes.split >= _NARROW
        wide = ".to(tl.int64)" if reach or self.wide else ""
        start = f"parts_ptr + part{wide} * RESULTS" if self.workspace is not None else "output_ptr"
        value = "sums" if self.workspace is not None else f"sums.to(tl.{TRITON_TYPES[self.workload.write.dtype]})"
        text.line(f"tl.store({start} + (row{wide}[:, None] * WIDTH + {out}[None, :]), {value}{mask})")
