"""The output transform with its epilogue and stores, as LLVM IR.

A vector holds one output of `lanes` channels. If channels are neighbours in the result, the vector is stored unchanged.
If columns are, a row of the tile is transposed, and the few columns of each channel are stored separately. Tiles that
exceed the edge of the image store only the elements inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anatune.core.workload.number_formats import FACTOR_STEPS, STEP_OPERANDS
from anatune.emit.elementary import FUNCTIONS
from anatune.emit.kernels import Function, finish_function
from anatune.emit.llvm import LlvmCode
from anatune.templates.cpu.program.epilogue import apply_step
from anatune.templates.cpu.program.register_tile import Result
from anatune.templates.winograd.program.layout import WinogradLayout
from anatune.templates.winograd.program.transforms import FLOAT, Vectors, begin_function, emit_loop, result_rows

__all__ = ["OutputTransform", "output_ir"]


@dataclass(frozen=True)
class OutputTransform:
    """The results of an output transform.

    Attributes
    ----------
    epilogue : tuple of (str, str)
        Steps in order, each with the dtype of the tensor that it reads, if any.
    used : int
        Channels of a vector that exist.
    result : Result
        Dtype and zero point of the result.
    """

    layout: WinogradLayout
    epilogue: tuple[tuple[str, str], ...]
    used: int
    result: Result

    @property
    def operands(self) -> dict[str, str]:
        """The steps of the epilogue that read a tensor -> its dtype."""
        return {step: dtype for step, dtype in self.epilogue if dtype}

    def apply_step(
        self, code: LlvmCode, step: str, pointer: str, values: Vectors, offset: int
    ) -> tuple[LlvmCode, Vectors]:
        """Return vectors after a step whose operand is at an offset, and code that computes in their dtype."""
        operand, dtype = "", self.operands.get(step)
        if dtype:
            view = code.of(FLOAT) if step in FACTOR_STEPS else code
            operand = view.load_vector(code.address(pointer, dtype, offset), dtype, 1, self.used)
        done = [apply_step(code, step, value, operand, self.result) for value in values]
        return done[0][0], [value for _, value in done]


def output_ir(name: str, outputs: OutputTransform) -> Function:
    """Return the function of an output transform.

    It is ``void name(ptr m, i64 offset, ptr result, i64 offset, ptr and i64 of each epilogue operand, i64 count, i64
    rows, i64 columns)``. It stores `count` vectors of output channels, and so many rows and columns of the tile for
    each.
    """
    layout, pitch = outputs.layout, outputs.layout.convolution.output
    transform, lanes, dtype = layout.transform, layout.lanes, layout.convolution.summed
    dtypes = (dtype, outputs.result.dtype, *outputs.operands.values())
    code, bases = begin_function(name, lanes, dtypes, "count", "rows", "columns", dtype=dtype)
    strides = [lanes, lanes * pitch["f"]]
    strides += [lanes * pitch["f"] if step == "add" else lanes for step in outputs.operands]
    size = transform.outputs

    def body(pointers: list[str]) -> None:
        products = [
            [
                code.load_vector(
                    code.address(pointers[0], dtype, (y * transform.inputs + x) * layout.product_pitch), dtype, 1, lanes
                )
                for x in range(transform.inputs)
            ]
            for y in range(transform.inputs)
        ]
        rows = result_rows(code, transform, products)
        values = [value for row in rows for value in row]
        if code.is_integer:  # each of the two weight transforms doubled them
            values = [code.binary("ashr", value, code.constant(2)) for value in values]
        # an added tensor has the layout of the result, so it is added in the store
        steps = [step for step, _ in outputs.epilogue]
        first_add = steps.index("add") if "add" in steps else len(steps)
        pointer_of, step_code = dict(zip(outputs.operands, pointers[2:], strict=True)), code
        for step in steps[:first_add]:
            step_code, values = outputs.apply_step(step_code, step, pointer_of.get(step, ""), values, 0)
        writer = _StoreWriter(step_code, outputs, steps[first_add:], pointer_of)
        code.line("  br i1 %is_whole, label %whole, label %part")
        code.line("whole:")
        tile = [values[y * size : (y + 1) * size] for y in range(size)]
        writer.tile(tile)
        code.line("  br label %latch")
        code.line("part:")
        writer.part(tile)

    code.line(f"  %all_rows = icmp eq i64 %rows, {size}")
    code.line(f"  %all_columns = icmp eq i64 %columns, {size}")
    code.line("  %is_whole = and i1 %all_rows, %all_columns")
    code.line("  br label %head")
    emit_loop(code, dict(zip(bases, dtypes, strict=True)), strides, body)
    return finish_function(code)


class _StoreWriter:
    """The writer of the stores of a tile, with the steps of the epilogue from the first added tensor on."""

    def __init__(
        self, code: LlvmCode, outputs: OutputTransform, steps: Sequence[str], pointer_of: dict[str, str]
    ) -> None:
        self.code, self.outputs, self.steps, self.pointer_of = code, outputs, steps, pointer_of
        self.channel, self.row, self.column = (outputs.layout.convolution.output[index] for index in "fyx")

    def tile(self, values: list[list[str]]) -> None:
        """Store all rows and columns."""
        for y, row in enumerate(values):
            if self.channel == 1:
                for x in range(len(row)):
                    self._vector(row[x], y, x)
            else:
                self._transposed_row(row, y, None)

    def part(self, values: list[list[str]]) -> None:
        """Store rows and columns below ``%rows`` and ``%columns``."""
        code, size = self.code, self.outputs.layout.transform.outputs
        mask = None
        if self.channel != 1:
            most = code.splat("%columns", "i64", size)
            places = ", ".join(f"i64 {x}" for x in range(size))
            mask = code.emit(f"icmp ugt <{size} x i64> {most}, <{places}>")
        for y, row in enumerate(values):
            is_inside = code.emit(f"icmp ugt i64 %rows, {y}")
            code.line(f"  br i1 {is_inside}, label %row{y}, label %rest{y}")
            code.line(f"row{y}:")
            if mask is not None:
                self._transposed_row(row, y, mask)
            else:
                for x, value in enumerate(row):
                    is_inside = code.emit(f"icmp ugt i64 %columns, {x}")
                    code.line(f"  br i1 {is_inside}, label %at{y}_{x}, label %behind{y}_{x}")
                    code.line(f"at{y}_{x}:")
                    self._vector(value, y, x)
                    code.line(f"  br label %behind{y}_{x}")
                    code.line(f"behind{y}_{x}:")
            code.line(f"  br label %rest{y}")
            code.line(f"rest{y}:")

    def _vector(self, value: str, y: int, x: int) -> None:
        """Store one output of all channels."""
        code, offset, outputs = self.code, y * self.row + x * self.column, self.outputs
        for step in self.steps:
            operand_offset = offset if step == "add" else 0
            code, (value,) = outputs.apply_step(code, step, self.pointer_of.get(step, ""), [value], operand_offset)
        dtype = outputs.result.dtype
        code.store_vector(value, code.address("%w1", dtype, offset), dtype, outputs.used)

    def _transposed_row(self, row: list[str], y: int, mask: str | None) -> None:
        """Store a row for each channel separately."""
        code, size = self.code, len(row)
        vector_type = f"<{size} x float>"
        for lane, (vector, first) in enumerate(_pieces(code, row)):
            if lane >= self.outputs.used:
                break
            places = ", ".join(f"i32 {first + x}" for x in range(size))
            value = code.emit(f"shufflevector {code.vector} {vector}, {code.vector} poison, <{size} x i32> <{places}>")
            offset = lane * self.channel + y * self.row
            for step in self.steps:
                if STEP_OPERANDS[step] is None:
                    value = FUNCTIONS[step](code.short(size), value)
                elif step == "bias":
                    address = code.address(self.pointer_of[step], FLOAT, lane)  # one bias for each channel
                    added = code.splat(code.emit(f"load float, ptr {address}, align 4"), "float", size)
                    value = code.emit(f"fadd {vector_type} {value}, {added}")
                else:
                    address = code.address(self.pointer_of[step], FLOAT, offset)
                    value = code.emit(f"fadd {vector_type} {value}, {self._load(address, size, mask)}")
            self._store(value, code.address("%w1", FLOAT, offset), size, mask)

    def _load(self, address: str, size: int, mask: str | None) -> str:
        vector_type = f"<{size} x float>"
        if mask is None:
            return self.code.emit(f"load {vector_type}, ptr {address}, align 4")
        arguments = [("ptr", address), ("i32", "4"), (f"<{size} x i1>", mask), (vector_type, "zeroinitializer")]
        return self.code.call(vector_type, f"llvm.masked.load.v{size}f32.p0", arguments)

    def _store(self, value: str, address: str, size: int, mask: str | None) -> None:
        vector_type = f"<{size} x float>"
        if mask is None:
            self.code.line(f"  store {vector_type} {value}, ptr {address}, align 4")
            return
        arguments = [(vector_type, value), ("ptr", address), ("i32", "4"), (f"<{size} x i1>", mask)]
        self.code.call_void(f"llvm.masked.store.v{size}f32.p0", arguments)


def _pieces(code: LlvmCode, row: list[str]) -> list[tuple[str, int]]:
    """Return (vector, first element) for each lane: from there, its elements of all vectors of `row` are neighbours.

    Vectors are interleaved within 128 bits, as the instructions of the processors do.
    """
    lanes = code.lanes
    interleaved = [
        (_interleave(code, row[i], row[i + 1], 0, 1), _interleave(code, row[i], row[i + 1], 2, 1))
        for i in range(0, len(row), 2)
    ]
    if len(row) == 2:
        return [(interleaved[0][lane % 4 // 2], lane // 4 * 4 + lane % 2 * 2) for lane in range(lanes)]
    (low, high), (other_low, other_high) = interleaved
    parts = [
        _interleave(code, left, right, start, 2)
        for left, right in ((low, other_low), (high, other_high))
        for start in (0, 2)
    ]
    return [(parts[lane % 4], lane // 4 * 4) for lane in range(lanes)]


def _interleave(code: LlvmCode, left: str, right: str, start: int, run: int) -> str:
    """Return in each group of 4 lanes `run` elements of `left` from `start` on, as many of `right`, and so on."""
    order = []
    for group in range(0, code.lanes, 4):
        for step in range(2 // run):
            places = [group + start + step * run + i for i in range(run)]
            order += [*places, *(code.lanes + place for place in places)]
    mask = ", ".join(f"i32 {place}" for place in order)
    return code.emit(f"shufflevector {code.vector} {left}, {code.vector} {right}, <{code.lanes} x i32> <{mask}>")
