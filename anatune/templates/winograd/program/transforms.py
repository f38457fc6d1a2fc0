"""Transforms of inputs and weights as LLVM IR: vectors of channels, straight-line code with the fewest operations.

A transform of two dimensions is one of each column, then one of each row. Points come in pairs (a, -a), whose rows
differ in the signs of odd terms: even and odd sums are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anatune.emit.kernels import Function, finished, start_function, starts_of
from anatune.emit.llvm import LlvmCode
from anatune.templates.winograd.minimal_filtering import Filtering

__all__ = ["FLOAT", "begun", "input_ir", "loop", "result_rows", "weight_ir"]

FLOAT = "float32"
Vectors = list[str]
Transform = Callable[[Sequence[str]], Vectors]


def begun(name: str, lanes: int, tensors: int, *numbers: str) -> tuple[LlvmCode, list[str]]:
    """Return the code of a function of tensors and numbers, entered, and where its tensors begin."""
    code = LlvmCode(lanes, FLOAT, "multiply_add")
    start_function(code, name, tensors, *numbers)
    return code, starts_of(code, ["float"] * tensors)


def _scaled(code: LlvmCode, factor: float, value: str, added: str) -> str:
    """Return ``factor * value + added``."""
    if factor == 1.0:
        return code.binary("add", added, value)
    if factor == -1.0:
        return code.binary("sub", added, value)
    return code.multiply_add(value, code.constant(factor), added)


def _data(code: LlvmCode, transform: Filtering) -> Transform:
    """Return B^T of one dimension."""
    matrix = transform.data

    def apply(x: Sequence[str]) -> Vectors:
        if len(transform.points) == 1:
            return [
                code.binary("sub", x[2], x[0]),
                code.binary("add", x[1], x[2]),
                code.binary("sub", x[2], x[1]),
                code.binary("sub", x[3], x[1]),
            ]
        low, middle = float(matrix[0, 0]), float(matrix[0, 2])
        rows = [_scaled(code, middle, x[2], _scaled(code, low, x[0], x[4]))]
        for pair, point in enumerate(transform.points):
            other = float(matrix[1 + 2 * pair, 2])
            even = _scaled(code, other, x[2], x[4])
            odd = _scaled(code, other, x[1], x[3])
            rows += [_scaled(code, point, odd, even), _scaled(code, -point, odd, even)]
        return [*rows, _scaled(code, middle, x[3], _scaled(code, low, x[1], x[5]))]

    return apply


def _kernel(code: LlvmCode, transform: Filtering) -> Transform:
    """Return G of one dimension."""

    def apply(g: Sequence[str]) -> Vectors:
        rows = []
        for row in transform.kernel.tolist():
            terms = [(factor, value) for factor, value in zip(row, g, strict=True) if factor]
            (factor, value), *others = terms
            total = value if factor == 1.0 else code.binary("mul", value, code.constant(factor))
            for factor, value in others:
                total = _scaled(code, factor, value, total)
            rows.append(total)
        return rows

    return apply


def _result(code: LlvmCode, transform: Filtering) -> Transform:
    """Return A^T of one dimension."""

    def apply(x: Sequence[str]) -> Vectors:
        sums = [code.binary("add", x[1 + 2 * i], x[2 + 2 * i]) for i in range(len(transform.points))]
        differences = [code.binary("sub", x[1 + 2 * i], x[2 + 2 * i]) for i in range(len(transform.points))]
        first = x[0]
        for value in sums:
            first = code.binary("add", first, value)
        rows = [first]
        for power in range(1, transform.outputs):
            total = x[-1] if power == transform.outputs - 1 else None
            for point, value in zip(transform.points, sums if power % 2 == 0 else differences, strict=True):
                factor = point**power
                if total is None:
                    total = value if factor == 1.0 else code.binary("mul", value, code.constant(factor))
                else:
                    total = _scaled(code, factor, value, total)
            assert total is not None
            rows.append(total)
        return rows

    return apply


def _both(values: list[Vectors], transform: Transform) -> list[Vectors]:
    """Return a transform of columns, then of rows; ``values[row][column]``."""
    columns = [transform(column) for column in zip(*values, strict=True)]
    return [transform(row) for row in zip(*columns, strict=True)]


def result_rows(code: LlvmCode, transform: Filtering, values: list[Vectors]) -> list[Vectors]:
    """Return the outputs of a tile, row by row, of its products ``values[row][column]``."""
    return _both(values, _result(code, transform))


def loop(code: LlvmCode, pointers: Sequence[str], strides: Sequence[int], body: Callable[[list[str]], None]) -> None:
    """Emit a loop of ``%count`` iterations, 1 or more, whose pointers to floats advance by `strides`."""
    code.line("head:")
    code.line("  %i = phi i64 [0, %entry], [%next, %latch]")
    inside = [f"%w{number}" for number in range(len(pointers))]
    for number, pointer in enumerate(pointers):
        code.line(f"  {inside[number]} = phi ptr [{pointer}, %entry], [%x{number}, %latch]")
    body(inside)
    code.line("  br label %latch")
    code.line("latch:")
    for number, stride in enumerate(strides):
        code.line(f"  %x{number} = getelementptr float, ptr {inside[number]}, i64 {stride}")
    code.line("  %next = add nuw nsw i64 %i, 1")
    code.line("  %last = icmp eq i64 %next, %count")
    code.line("  br i1 %last, label %done, label %head, !llvm.loop !0")
    code.line("done:")


def _store_row(code: LlvmCode, target: str, y: int, values: Vectors, pitch: int) -> None:
    """Store row `y` of the frequencies of a tile, which are `pitch` elements apart."""
    for x, value in enumerate(values):
        code.store_vector(value, code.address(target, FLOAT, (y * len(values) + x) * pitch), FLOAT, code.lanes)


def input_ir(
    name: str,
    transform: Filtering,
    lanes: int,
    *,
    pitches: tuple[int, int],
    pitch: int,
    strides: tuple[int, int],
    used: int,
) -> Function:
    """Return ``void name(ptr data, i64 offset, ptr v, i64 offset, i64 count)``; `count` may be 0.

    Parameters
    ----------
    pitches : (int, int)
        From one row and one column of a tile's inputs to the next.
    pitch : int
        From one frequency of V to the next.
    strides : (int, int)
        How far an iteration moves in the inputs and in V.
    used : int
        Channels of a vector that exist; the others become zeros.
    """
    code, bases = begun(name, lanes, 2, "count")
    apply = _data(code, transform)
    row, column = pitches

    def body(pointers: list[str]) -> None:
        source, target = pointers
        columns = []
        for x in range(transform.inputs):
            loaded = [
                code.load_vector(code.address(source, FLOAT, y * row + x * column), FLOAT, 1, used)
                for y in range(transform.inputs)
            ]
            columns.append(apply(loaded))
        for y in range(transform.inputs):  # a row is stored before the next one is transformed
            _store_row(code, target, y, apply([column_of[y] for column_of in columns]), pitch)

    code.line("  %none = icmp eq i64 %count, 0")
    code.line("  br i1 %none, label %done, label %head")
    loop(code, bases, strides, body)
    return finished(code)


def weight_ir(
    name: str, transform: Filtering, lanes: int, *, pitches: tuple[int, int, int], pitch: int, used: int
) -> Function:
    """Return ``void name(ptr weight, i64 offset, ptr u, i64 offset)``: a vector of output channels, one input channel.

    Parameters
    ----------
    pitches : (int, int, int)
        From one output channel, row and column of the weight to the next.
    pitch : int
        From one frequency of U to the next.
    used : int
        Output channels of the vector that exist; the others become zeros.
    """
    code, (source, target) = begun(name, lanes, 2)
    lane, row, column = pitches
    taps = [
        [code.load_vector(code.address(source, FLOAT, y * row + x * column), FLOAT, lane, used) for x in range(3)]
        for y in range(3)
    ]
    for y, values in enumerate(_both(taps, _kernel(code, transform))):
        _store_row(code, target, y, values, pitch)
    return finished(code)
