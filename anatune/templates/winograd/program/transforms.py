"""Transforms of inputs and weights as LLVM IR: vectors of channels, straight-line code with the fewest operations.

A transform of two dimensions is one of each column, then one of each row. Points come in pairs (a, -a), whose rows
differ in the signs of odd terms: even and odd sums are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anatune.emit.llvm import LlvmCode
from anatune.templates.winograd.minimal_filtering import Filtering

__all__ = ["FLOAT", "FLOAT_BYTES", "function_head", "input_ir", "result_rows", "weight_ir"]

FLOAT, FLOAT_BYTES = "float32", 4
Vectors = list[str]
Transform = Callable[[Sequence[str]], Vectors]


def function_head(name: str, arguments: Sequence[str], lanes: int) -> str:
    """Return the first line of a function that main calls."""
    bits = 32 * lanes
    attributes = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    return f"define internal void @{name}({', '.join(arguments)}) noinline nounwind {attributes} {{"


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
        found = [_scaled(code, middle, x[2], _scaled(code, low, x[0], x[4]))]
        for pair, point in enumerate(transform.points):
            other = float(matrix[1 + 2 * pair, 2])
            even = _scaled(code, other, x[2], x[4])
            odd = _scaled(code, other, x[1], x[3])
            found += [_scaled(code, point, odd, even), _scaled(code, -point, odd, even)]
        return [*found, _scaled(code, middle, x[3], _scaled(code, low, x[1], x[5]))]

    return apply


def _kernel(code: LlvmCode, transform: Filtering) -> Transform:
    """Return G of one dimension."""

    def apply(g: Sequence[str]) -> Vectors:
        found = []
        for row in transform.kernel.tolist():
            terms = [(factor, value) for factor, value in zip(row, g, strict=True) if factor]
            (factor, value), *others = terms
            total = value if factor == 1.0 else code.binary("mul", value, code.constant(factor))
            for factor, value in others:
                total = _scaled(code, factor, value, total)
            found.append(total)
        return found

    return apply


def _result(code: LlvmCode, transform: Filtering) -> Transform:
    """Return A^T of one dimension."""

    def apply(x: Sequence[str]) -> Vectors:
        sums = [code.binary("add", x[1 + 2 * i], x[2 + 2 * i]) for i in range(len(transform.points))]
        differences = [code.binary("sub", x[1 + 2 * i], x[2 + 2 * i]) for i in range(len(transform.points))]
        first = x[0]
        for value in sums:
            first = code.binary("add", first, value)
        found = [first]
        for power in range(1, transform.outputs):
            total = x[-1] if power == transform.outputs - 1 else None
            for point, value in zip(transform.points, sums if power % 2 == 0 else differences, strict=True):
                factor = point**power
                if total is None:
                    total = value if factor == 1.0 else code.binary("mul", value, code.constant(factor))
                else:
                    total = _scaled(code, factor, value, total)
            assert total is not None
            found.append(total)
        return found

    return apply


def _both(values: list[Vectors], transform: Transform) -> list[Vectors]:
    """Return a transform of columns, then of rows; ``values[row][column]``."""
    columns = [transform(column) for column in zip(*values, strict=True)]
    return [transform(row) for row in zip(*columns, strict=True)]


def result_rows(code: LlvmCode, transform: Filtering, values: list[Vectors]) -> list[Vectors]:
    """Return the outputs of a tile, row by row, of its products ``values[row][column]``."""
    return _both(values, _result(code, transform))


def _loop(
    code: LlvmCode, count: str, pointers: Sequence[str], strides: Sequence[int], body: Callable[..., None]
) -> None:
    """Emit a loop of `count` iterations (0 or more) whose pointers to floats advance by `strides`."""
    code.line(f"  %none = icmp eq i64 {count}, 0")
    code.line("  br i1 %none, label %done, label %head")
    code.line("head:")
    code.line("  %i = phi i64 [0, %entry], [%next, %latch]")
    inside = []
    for number, pointer in enumerate(pointers):
        code.line(f"  %w{number} = phi ptr [{pointer}, %entry], [%x{number}, %latch]")
        inside.append(f"%w{number}")
    body(*inside)
    code.line("  br label %latch")
    code.line("latch:")
    for number, stride in enumerate(strides):
        code.line(f"  %x{number} = getelementptr float, ptr %w{number}, i64 {stride}")
    code.line("  %next = add nuw nsw i64 %i, 1")
    code.line(f"  %last = icmp eq i64 %next, {count}")
    code.line("  br i1 %last, label %done, label %head, !llvm.loop !0")
    code.line("done:")


def input_ir(
    name: str,
    transform: Filtering,
    lanes: int,
    *,
    row: int,
    column: int,
    pitch: int,
    strides: tuple[int, int],
    used: int,
) -> tuple[str, set[str]]:
    """Return ``void name(ptr data, i64 offset, ptr v, i64 offset, i64 count)`` and the declarations it needs.

    Parameters
    ----------
    row, column : int
        From one row and one column of a tile's inputs to the next.
    pitch : int
        From one frequency of V to the next.
    strides : (int, int)
        How far an iteration moves in the inputs and in V.
    used : int
        Channels of a vector that exist; the others become zeros.
    """
    code = LlvmCode(lanes, FLOAT, "multiply_add")
    code.line(function_head(name, ["ptr noalias %p0, i64 %o0, ptr noalias %p1, i64 %o1, i64 %count"], lanes))
    code.line("entry:")
    code.align_frame(FLOAT_BYTES * lanes)
    bases = [code.emit(f"getelementptr float, ptr %p{i}, i64 %o{i}") for i in range(2)]
    apply = _data(code, transform)

    def body(source: str, target: str) -> None:
        columns = []
        for x in range(transform.inputs):
            loaded = [
                code.load_vector(code.address(source, FLOAT, y * row + x * column), FLOAT, 1, used)
                for y in range(transform.inputs)
            ]
            columns.append(apply(loaded))
        for y in range(transform.inputs):
            for x, value in enumerate(apply([column_of[y] for column_of in columns])):
                place = (y * transform.inputs + x) * pitch
                code.store_vector(value, code.address(target, FLOAT, place), FLOAT, lanes)

    _loop(code, "%count", bases, strides, body)
    code.line("  ret void")
    code.line("}")
    return "\n".join(code.lines), code.declared


def weight_ir(
    name: str, transform: Filtering, lanes: int, *, pitches: tuple[int, int, int], pitch: int, used: int
) -> tuple[str, set[str]]:
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
    code = LlvmCode(lanes, FLOAT, "multiply_add")
    code.line(function_head(name, ["ptr noalias %p0, i64 %o0, ptr noalias %p1, i64 %o1"], lanes))
    code.line("entry:")
    code.align_frame(FLOAT_BYTES * lanes)
    source, target = (code.emit(f"getelementptr float, ptr %p{i}, i64 %o{i}") for i in range(2))
    lane, row, column = pitches
    taps = [
        [code.load_vector(code.address(source, FLOAT, y * row + x * column), FLOAT, lane, used) for x in range(3)]
        for y in range(3)
    ]
    for y, values in enumerate(_both(taps, _kernel(code, transform))):
        for x, value in enumerate(values):
            place = (y * transform.inputs + x) * pitch
            code.store_vector(value, code.address(target, FLOAT, place), FLOAT, lanes)
    code.line("  ret void")
    code.line("}")
    return "\n".join(code.lines), code.declared
