"""Kernels of products and convolutions in Triton."""

from __future__ import annotations

import re
from collections.abc import Sequence

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.access import ACCUMULATOR_DTYPE, DTYPE_BYTES, Access
from anatune.core.workload.implicit_gemm import GemmOperand, implicit_gemm
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script
from anatune.errors import BuildError
from anatune.templates.gpu.ranged import Ranged, check_ranged
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.program.descriptors import Descriptor, descriptor_of
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram
from anatune.templates.triton.program.lines import TensorOffsets, TileLines, fold_lines, join_terms, spread
from anatune.templates.triton.program.module import module_text, write_walk
from anatune.templates.triton.program.parts import PARTS_NAME, write_parts
from anatune.templates.triton.program.sizes import PARTS_BLOCK, TileSizes, sizes_of
from anatune.templates.triton.program.steps import TRITON_TYPES, write_steps

__all__ = ["triton_program"]

_PARTS = "parts"
_LINE = 60
"""Most letters of an address and a condition that fit in one line."""


def triton_program(schedule: Schedule, ranged: Ranged | None = None) -> TritonProgram:
    """Return the Triton module of a schedule, or with `ranged` that of a range with the schedule's largest extent.

    Raises
    ------
    SpaceError
        The schedule is not legal, or addresses depend on the extent that varies.
    BuildError
        A step of the epilogue has no Triton source, or the schedule splits sums of a result with gaps.
    """
    if ranged is not None:
        check_ranged(schedule.workload, ranged)
    return _ProductWriter(schedule.check(), ranged).program()


class _ProductWriter:
    """Writes the module of one schedule."""

    def __init__(self, schedule: Schedule, ranged: Ranged | None) -> None:
        self.schedule, self.workload, self.ranged = schedule, schedule.workload, ranged
        self.scalars = () if ranged is None else (ranged.parameter,)
        self.hardware: GpuSpec = gpu_of(schedule)
        self.gemm = implicit_gemm(self.workload)
        self.sizes: TileSizes = sizes_of(schedule, self.gemm, ranged)
        self.text = Script()
        self.lines = TileLines(self.text, self.workload, self.gemm, self.sizes.blocks, wide=self.sizes.wide)
        write = self.workload.write
        self.workspace: Buffer | None = None
        if self.sizes.split > 1:
            if write.num_elements != self.gemm.extents["batch"] * self.gemm.extents["m"] * self.gemm.extents["n"]:
                raise BuildError(f"{write.tensor} has elements that no sum writes, so k cannot be split; set split_k=1")
            dtype = ACCUMULATOR_DTYPE.get(self.workload.dtype, "float32")
            self.workspace = Buffer(_PARTS, dtype, (self.sizes.split, *write.shape))
        self.descriptors = self._descriptors()
        # steps after sums of integers are rounded one by one: `core.workload.number_formats`
        is_exact = ACCUMULATOR_DTYPE.get(self.workload.dtype) == "int32"
        self.options: dict[str, bool | int | str] = {"enable_fp_fusion": not is_exact}

    def program(self) -> TritonProgram:
        """Write the module and return it with its launches."""
        axis = "" if self.ranged is None else self.ranged.axis
        reads = tuple(Buffer.of(access, axis) for access in (self.gemm.left.access, self.gemm.right.access))
        more = tuple(Buffer.of(access, axis) for access in self.workload.epilogue_reads)
        result = Buffer.of(self.workload.write, axis)
        name = "convolution" if any(any(operand.guarded) for operand in self.gemm.operands) else "product"
        first = (*reads, *more, result) if self.workspace is None else (*reads, self.workspace)
        kernels = [self._kernel(name, first)]
        self._write_kernel(kernels[0])
        if self.workspace is not None:
            second = (self.workspace, *more, result)
            grid = -(-self.workload.write.num_elements // PARTS_BLOCK)
            growth = self.sizes.growth(grid, "results")
            kernels.append(TritonKernel(PARTS_NAME, second, grid, 4, 1, self.options, growth))
            self.text.line("\n")
            write_parts(self.text, self.workload, _pointer(_PARTS), self._parameters(second), self.sizes)
        operands = " x ".join(operand.access.tensor for operand in self.gemm.operands)
        constants = {**self.sizes.constants(self.lines.blocks), **self.lines.constants}
        between = None if self.workspace is None else (self.workspace, "parts of sums")
        title = f"{result.tensor} = {operands}"
        source = fold_lines(module_text(self.schedule, title, kernels, constants, str(self.text), between, self.ranged))
        return TritonProgram(
            self.schedule.key, source, tuple(kernels), result.tensor, self.workspace, ranged=self.ranged
        )

    def _kernel(self, name: str, parameters: tuple[Buffer, ...]) -> TritonKernel:
        options = dict(self.options)
        for option in ("waves_per_eu", "matrix_instr_nonkdim"):
            if value := self.schedule.options.get(option, 0):
                options[option] = value  # type: ignore[assignment]
        num_warps, num_stages = (int(self.schedule.options[o]) for o in ("num_warps", "num_stages"))  # type: ignore[arg-type]
        growth = None if self.sizes.persistent else self.sizes.growth(self.sizes.grid, self.sizes.varies)
        return TritonKernel(name, parameters, self.sizes.grid, num_warps, num_stages, options, growth)

    def _parameters(self, buffers: Sequence[Buffer]) -> list[str]:
        """Return the names of a kernel's parameters."""
        return [*(_pointer(buffer.tensor) for buffer in buffers), *self.scalars]

    # ---- the principal kernel ----

    def _write_kernel(self, kernel: TritonKernel) -> None:
        text, sizes = self.text, self.sizes
        text.line("@triton.jit")
        with text.scope(f"def {kernel.name}({', '.join(self._parameters(kernel.parameters))}):"):
            start = len(text.lines)
            for descriptor in self.descriptors.values():
                descriptor.write(text)
            if sizes.persistent:
                text.line("# one program a multiprocessor, which takes several tiles in turn")
                how = "flatten=True"
                if self.schedule.options.get("warp_specialize"):
                    text.line("# warps of their own copy operands and start products; the others store the tile before")
                    how += ", warp_specialize=True"
                loop = f"for program in tl.range(tl.program_id(0), PROGRAMS, tl.num_programs(0), {how}):"
            else:
                text.line("program = tl.program_id(0)")
                loop = ""
            with text.scope(loop):
                self._write_tile()
            for value, expression in reversed(self.sizes.varying.items()):
                if re.search(rf"\b{value}\b", "\n".join(text.lines[start:])):
                    text.lines.insert(start, f"    {value} = {expression}")

    def _write_tile(self) -> None:
        text = self.text
        write_walk(text, self.sizes, self.hardware.vendor)
        if any(operand.access.tensor not in self.descriptors for operand in self.gemm.operands):
            text.line("# what addresses have in common in all steps of k")
        rows = {operand.rows: self._rows(operand) for operand in self.gemm.operands}
        accumulator = ACCUMULATOR_DTYPE.get(self.workload.dtype, "float32")
        text.line(f"sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.{accumulator})")
        first, stop = "0", "K"
        if self.sizes.split > 1:
            first, stop = "first_part", "first_part + PART_K"
            text.line("first_part = part * PART_K")
            if self.sizes.is_ragged:
                stop = f"tl.minimum({stop}, K)"
        self._steps_condition(("m", "k"))
        with text.scope(f"for first_k in range({first}, {stop}, BLOCK_K):"):
            names = [self._load(operand, rows[operand.rows]) for operand in self.gemm.operands]
            text.line(f"sums = tl.dot({', '.join(names)}, sums{self._dot_options()})")
        self._write_result()

    def _tile_of(self, operand: GemmOperand) -> tuple[str, str]:
        return ("m", "k") if operand.rows == "m" else ("k", "n")

    def _rows(self, operand: GemmOperand) -> tuple[TensorOffsets, bool] | None:
        """Write the part of an operand's addresses that is the same in all steps of k.

        Returns
        -------
        tuple or None
            The positions of its rows, and whether they include the lanes of k. None: the operand has a descriptor.
        """
        access, lines, tile = operand.access, self.lines, self._tile_of(operand)
        if access.tensor in self.descriptors:
            return None
        rows = lines.offsets_of(access, ("batch", operand.rows), "row", origin=True)
        self._inside_condition(operand.rows, tile)
        lanes = lines.steady_terms(access)
        if lanes is None:
            lines.element("", f"at_{access.tensor}", (rows,), tile)  # before the loop
            return rows, False
        vectors = {kind: terms for kind, terms in rows.offsets.items() if kind} | {"k": lanes}
        vector_offset = lines.element("", f"at_{access.tensor}", (TensorOffsets(vectors, {}),), tile)
        numbers = rows.offsets.get("", [])
        return TensorOffsets({"": [*numbers, lines.define(f"at_{access.tensor}", vector_offset)]}, rows.positions), True

    def _load(self, operand: GemmOperand, rows: tuple[TensorOffsets, bool] | None) -> str:
        """Write the load of an operand's tile in a step, and return its name."""
        name = "left" if operand.rows == "m" else "right"
        cast = ""
        other = self.gemm.left if operand.rows == "n" else self.gemm.right
        if DTYPE_BYTES[operand.access.dtype] < DTYPE_BYTES[other.access.dtype]:
            cast = f".to(tl.{TRITON_TYPES[other.access.dtype]})"
        loaded = self._load_expression(operand, *rows) if rows else self.descriptors[operand.access.tensor].load()
        self.text.line(f"{name} = {loaded}{cast}")
        return name

    def _load_expression(self, operand: GemmOperand, rows: TensorOffsets, steady: bool) -> str:
        access, tile = operand.access, self._tile_of(operand)
        steps = self.lines.offsets_of(access, ("k",), "step", origin=False, steady=steady)
        conditions = [self._inside_condition(operand.rows, tile), self._steps_condition(tile)]
        guarded = sorted({*rows.positions, *steps.positions})
        if guarded:
            self.text.line("# windows reach beyond their image, where zeros are")
        for d in guarded:
            conditions += self._guards(access, d, [p.positions[d] for p in (rows, steps) if d in p.positions], tile)
        mask = " & ".join(condition for condition in conditions if condition)
        places = (steps, rows) if steady else (rows, steps)
        address = self.lines.element(_pointer(access.tensor), f"at_{access.tensor}", places, tile)
        if not mask:
            return f"tl.load({address})"
        if len(address) + len(mask) > _LINE:
            mask = self.lines.define(f"inside_{access.tensor}", mask)
        zero = "0" if ACCUMULATOR_DTYPE.get(access.dtype) == "int32" else "0.0"
        return f"tl.load({address}, mask={mask}, other={zero})"

    def _steps_condition(self, tile: tuple[str, ...]) -> str:
        """Return the condition that iterations of k are left for a step, or "" if tiles divide k."""
        if self.gemm.extents["k"] % self.lines.blocks["k"] == 0:
            return ""
        return f"({spread(self.lines.lane_k, 'k', tile)} < K - first_k)"

    def _inside_condition(self, index: str, tile: tuple[str, ...]) -> str:
        """Return the condition that an index is inside its extent, or "" if tiles divide it."""
        if self.sizes.divisor(index) % self.lines.blocks[index] == 0:
            return ""
        return f"({spread(self.lines.whole(index), index, tile)} < {index.upper()})"

    def _guards(self, access: Access, d: int, parts: Sequence[tuple[str, str]], tile: tuple[str, ...]) -> list[str]:
        """Return those conditions that can fail of positions in a dimension lying inside the tensor."""
        last = access.offsets[d] + sum(t.coefficient * (self.workload.extents[t.axis] - 1) for t in access.indices[d])
        kinds = [kind for _, kind in parts if kind]
        if len(parts) == 1:
            position = spread(*parts[0], tile)
        elif len(kinds) < 2:
            name = self.lines.define(f"place{d}_{access.tensor}", join_terms([name for name, _ in parts]))
            position = spread(name, kinds[0] if kinds else "", tile)
        else:
            name = join_terms([spread(name, kind, tile) for name, kind in parts])
            position = self.lines.define(f"place{d}_{access.tensor}", name)
        low = [f"({position} >= 0)"] if access.offsets[d] < 0 else []
        return low + ([f"({position} < {access.shape[d]})"] if last >= access.shape[d] else [])

    def _dot_options(self) -> str:
        dtype = self.workload.dtype
        if dtype == "float32":
            return ', input_precision="tf32"'
        if ACCUMULATOR_DTYPE.get(dtype) == "int32":
            return ", out_dtype=tl.int32"
        promote = min(int(self.schedule.options.get("promote", 0)), self.sizes.blocks["k"])  # type: ignore[arg-type]
        return f", max_num_imprecise_acc={promote}" if dtype.startswith("float8") and promote else ""

    # ---- results ----

    def _write_result(self) -> None:
        text, write = self.text, self.workload.write
        if self.workspace is not None:
            parts = Access(_PARTS, write.dtype, write.shape, write.indices, write.offsets)
            text.line("# each part of k has a place of its own; add_parts adds them up")
            start = "part.to(tl.int64) * RESULTS" if self.sizes.wide else "part * RESULTS"
            text.line(f"tl.store({self._result(parts, start)}, sums{self._result_mask(', mask=')})")
            return
        if self.workload.epilogue:
            text.line(f"# fused steps: {', '.join(self.workload.epilogue)}")
        value = write_steps(text, self.workload, "sums", self._step_operand)
        if write.tensor in self.descriptors:
            text.line(self.descriptors[write.tensor].store(value))
        else:
            text.line(f"tl.store({self._result(write)}, {value}{self._result_mask(', mask=')})")

    def _result(self, access: Access, start: str = "") -> str:
        places = [
            self.lines.offsets_of(access, (index,), "result", origin=index == "m") for index in ("batch", "m", "n")
        ]
        if start:
            places.insert(0, TensorOffsets({"": [start]}, {}))
        return self.lines.element(_pointer(access.tensor), f"at_{access.tensor}", places, ("m", "n"))

    def _result_mask(self, word: str, kinds: tuple[str, ...] = ("m", "n")) -> str:
        tile = ("m", "n") if len(kinds) == 2 else kinds
        conditions = [condition for kind in kinds if (condition := self._inside_condition(kind, tile))]
        text = " & ".join(conditions)
        text = text[1:-1] if len(conditions) == 1 else text
        return f"{word}{text}" if conditions else ""

    def _step_operand(self, access: Access) -> str:
        """Write the load of an epilogue operand, and return it spread over the tile."""
        places = [
            self.lines.offsets_of(access, (index,), "result", origin=index == "m") for index in ("batch", "m", "n")
        ]
        kinds = tuple(kind for kind in ("m", "n") if any(kind in place.offsets for place in places))
        mask = self._result_mask(", mask=", kinds)
        element = self.lines.element(_pointer(access.tensor), f"at_{access.tensor}", places, kinds)
        name = f"{access.tensor}_tile"
        self.text.line(f"{name} = tl.load({element}{mask})")
        return spread(name, kinds[0], ("m", "n")) if len(kinds) == 1 else name

    def _descriptors(self) -> dict[str, Descriptor]:
        """Return the descriptors of the operands and the result that are copied with them."""
        if not self.schedule.options.get("descriptors"):
            return {}
        tiled = [(o.access, self._tile_of(o)) for o in self.gemm.operands]
        if self.workspace is None:
            tiled.append((self.workload.write, ("m", "n")))
        axis = "" if self.ranged is None else self.ranged.axis
        descriptors = (
            descriptor_of(access, tile, self.gemm, self.workload, self.sizes.blocks) for access, tile in tiled
        )
        varying = {access.tensor for access, _ in tiled if any(term.axis == axis for term in access.indices[0])}
        return {
            descriptor.tensor: descriptor._replace(shape=(self.sizes.varies.upper(), *descriptor.shape[1:]))
            if descriptor.tensor in varying
            else descriptor
            for descriptor in descriptors
            if descriptor is not None
        }


def _pointer(tensor: str) -> str:
    return f"{tensor}_ptr"
