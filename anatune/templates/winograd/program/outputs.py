"""The output transform with its epilogue and stores, as LLVM IR.

A vector holds one output of `lanes` channels. Where channels are neighbours in the result, it is stored as it is; where
columns are, a row of the tile is turned, and each channel's few columns are stored alone. Tiles that reach over the
edge of the image store what is inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.emit.elementary import FUNCTIONS
from anatune.emit.kernels import Function, finished
from anatune.emit.llvm import LlvmCode
from anatune.templates.winograd.minimal_filtering import Filtering
from anatune.templates.winograd.program.transforms import FLOAT, begun, loop, result_rows

__all__ = ["Outputs", "output_ir"]


@dataclass(frozen=True)
class Outputs:
    """Where results go.

    Attributes
    ----------
    pitches : (int, int, int)
        From one output channel, row and column to the next; of what is added likewise.
    pitch : int
        From one frequency of M to the next.
    epilogue : tuple of str
        "bias", "add", "relu", in order.
    used : int
        Channels of a vector that exist.
    """

    transform: Filtering
    lanes: int
    pitches: tuple[int, int, int]
    pitch: int
    epilogue: tuple[str, ...]
    used: int

    @property
    def operands(self) -> tuple[str, ...]:
        """The epilogue's steps that read a tensor."""
        return tuple(step for step in self.epilogue if STEP_OPERANDS[step] is not None)


def output_ir(name: str, outputs: Outputs) -> Function:
    """Return the function.

    It is ``void name(ptr m, i64 offset, ptr result, i64 offset, ptr and i64 of each epilogue operand, i64 count, i64
    rows, i64 columns)``: `count` vectors of output channels, of each so many rows and columns of the tile.
    """
    transform, lanes = outputs.transform, outputs.lanes
    code, bases = begun(name, lanes, 2 + len(outputs.operands), "count", "rows", "columns")
    strides = [lanes, lanes * outputs.pitches[0]]
    strides += [lanes if step == "bias" else lanes * outputs.pitches[0] for step in outputs.operands]
    size = transform.outputs

    def body(pointers: list[str]) -> None:
        products = [
            [
                code.load_vector(
                    code.address(pointers[0], FLOAT, (y * transform.inputs + x) * outputs.pitch), FLOAT, 1, lanes
                )
                for x in range(transform.inputs)
            ]
            for y in range(transform.inputs)
        ]
        values = result_rows(code, transform, products)
        # what is added lies as the result does: it is added where the result is stored
        first_add = outputs.epilogue.index("add") if "add" in outputs.epilogue else len(outputs.epilogue)
        place = dict(zip(outputs.operands, pointers[2:], strict=True))
        for step in outputs.epilogue[:first_add]:
            values = _finished(code, outputs, step, place.get(step, ""), values)
        writer = _Writer(code, outputs, outputs.epilogue[first_add:], place)
        code.line("  br i1 %is_whole, label %whole, label %part")
        code.line("whole:")
        writer.tile(values)
        code.line("  br label %latch")
        code.line("part:")
        writer.part(values)

    code.line(f"  %all_rows = icmp eq i64 %rows, {size}")
    code.line(f"  %all_columns = icmp eq i64 %columns, {size}")
    code.line("  %is_whole = and i1 %all_rows, %all_columns")
    code.line("  br label %head")
    loop(code, bases, strides, body)
    return finished(code)


def _finished(code: LlvmCode, outputs: Outputs, step: str, pointer: str, values: list[list[str]]) -> list[list[str]]:
    """Return outputs after a step that treats all of a channel's alike."""
    if STEP_OPERANDS[step] is None:
        return [[FUNCTIONS[step](code, value) for value in row] for row in values]
    bias = code.load_vector(pointer, FLOAT, 1, outputs.used)
    return [[code.binary("add", value, bias) for value in row] for row in values]


class _Writer:
    """Stores of a tile, with the steps of the epilogue from the first addition of a tensor on."""

    def __init__(self, code: LlvmCode, outputs: Outputs, steps: Sequence[str], place: dict[str, str]) -> None:
        self.code, self.outputs, self.steps, self.place = code, outputs, steps, place
        self.channel, self.row, self.column = outputs.pitches

    def tile(self, values: list[list[str]]) -> None:
        """Store all rows and columns."""
        for y, row in enumerate(values):
            if self.channel == 1:
                for x in range(len(row)):
                    self._vector(row[x], y, x)
            else:
                self._turned(row, y, None)

    def part(self, values: list[list[str]]) -> None:
        """Store rows and columns below ``%rows`` and ``%columns``."""
        code, size = self.code, self.outputs.transform.outputs
        mask = None
        if self.channel != 1:
            most = code.splat("%columns", "i64", size)
            places = ", ".join(f"i64 {x}" for x in range(size))
            mask = code.emit(f"icmp ugt <{size} x i64> {most}, <{places}>")
        for y, row in enumerate(values):
            inside = code.emit(f"icmp ugt i64 %rows, {y}")
            code.line(f"  br i1 {inside}, label %row{y}, label %rest{y}")
            code.line(f"row{y}:")
            if mask is not None:
                self._turned(row, y, mask)
            else:
                for x, value in enumerate(row):
                    inside = code.emit(f"icmp ugt i64 %columns, {x}")
                    code.line(f"  br i1 {inside}, label %at{y}_{x}, label %behind{y}_{x}")
                    code.line(f"at{y}_{x}:")
                    self._vector(value, y, x)
                    code.line(f"  br label %behind{y}_{x}")
                    code.line(f"behind{y}_{x}:")
            code.line(f"  br label %rest{y}")
            code.line(f"rest{y}:")

    def _vector(self, value: str, y: int, x: int) -> None:
        """Store one output of all channels."""
        code, offset = self.code, y * self.row + x * self.column
        for step in self.steps:
            if STEP_OPERANDS[step] is None:
                value = FUNCTIONS[step](code, value)
                continue
            at = 0 if step == "bias" else offset
            address = code.address(self.place[step], FLOAT, at)
            value = code.binary("add", value, code.load_vector(address, FLOAT, 1, self.outputs.used))
        code.store_vector(value, code.address("%w1", FLOAT, offset), FLOAT, self.outputs.used)

    def _turned(self, row: list[str], y: int, mask: str | None) -> None:
        """Store a row of each channel alone."""
        code, size = self.code, len(row)
        kind = f"<{size} x float>"
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
                    address = code.address(self.place[step], FLOAT, lane)  # it lies along the channels
                    added = code.splat(code.emit(f"load float, ptr {address}, align 4"), "float", size)
                    value = code.emit(f"fadd {kind} {value}, {added}")
                else:
                    address = code.address(self.place[step], FLOAT, offset)
                    value = code.emit(f"fadd {kind} {value}, {self._load(address, size, mask)}")
            self._store(value, code.address("%w1", FLOAT, offset), size, mask)

    def _load(self, address: str, size: int, mask: str | None) -> str:
        kind = f"<{size} x float>"
        if mask is None:
            return self.code.emit(f"load {kind}, ptr {address}, align 4")
        arguments = [("ptr", address), ("i32", "4"), (f"<{size} x i1>", mask), (kind, "zeroinitializer")]
        return self.code.call(kind, f"llvm.masked.load.v{size}f32.p0", arguments)

    def _store(self, value: str, address: str, size: int, mask: str | None) -> None:
        kind = f"<{size} x float>"
        if mask is None:
            self.code.line(f"  store {kind} {value}, ptr {address}, align 4")
            return
        arguments = [(kind, value), ("ptr", address), ("i32", "4"), (f"<{size} x i1>", mask)]
        self.code.call_void(f"llvm.masked.store.v{size}f32.p0", arguments)


def _pieces(code: LlvmCode, row: list[str]) -> list[tuple[str, int]]:
    """Return (vector, first element) of each lane: there its elements of all vectors of `row` are neighbours.

    Vectors are woven within 128 bits, as the processors' own instructions do.
    """
    lanes = code.lanes
    woven = [
        (_weave(code, row[i], row[i + 1], 0, 1), _weave(code, row[i], row[i + 1], 2, 1)) for i in range(0, len(row), 2)
    ]
    if len(row) == 2:
        return [(woven[0][lane % 4 // 2], lane // 4 * 4 + lane % 2 * 2) for lane in range(lanes)]
    (low, high), (other_low, other_high) = woven
    parts = [
        _weave(code, left, right, start, 2)
        for left, right in ((low, other_low), (high, other_high))
        for start in (0, 2)
    ]
    return [(parts[lane % 4], lane // 4 * 4) for lane in range(lanes)]


def _weave(code: LlvmCode, left: str, right: str, start: int, run: int) -> str:
    """Return in each group of 4: `run` elements of `left` from `start` on, as many of `right`, and so on, 4 in all."""
    order = []
    for group in range(0, code.lanes, 4):
        for step in range(2 // run):
            places = [group + start + step * run + i for i in range(run)]
            order += [*places, *(code.lanes + place for place in places)]
    mask = ", ".join(f"i32 {place}" for place in order)
    return code.emit(f"shufflevector {code.vector} {left}, {code.vector} {right}, <{code.lanes} x i32> <{mask}>")
