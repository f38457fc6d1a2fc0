"""Transforms of inputs and weights as LLVM IR: vectors of channels, straight-line code with the fewest operations.

A transform of two dimensions is one of each column, then one of each row. Points come in pairs (a, -a), whose rows
differ in the signs of odd terms: even and odd sums are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anatune.emit.kernels import Function, finished, start_function, starts_of
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.templates.winograd.minimal_filtering import Filtering
from anatune.templates.winograd.program.layout import WinogradLayout

__all__ = ["FLOAT", "Vectors", "begun", "input_ir", "loop", "result_rows", "weight_ir"]

FLOAT = "float32"
Vectors = list[str]
Transform = Callable[[Sequence[str]], Vectors]


def begun(
    name: str, lanes: int, dtypes: Sequence[str], *numbers: str, dtype: str = FLOAT
) -> tuple[LlvmCode, list[str]]:
    """Return the code of a function of tensors and numbers, entered, and where its tensors begin.

    Parameters
    ----------
    dtypes : sequence of str
        Of the tensors.
    dtype : str
        In which is computed.
    """
    code = LlvmCode(lanes, dtype, "multiply_add")
    start_function(code, name, len(dtypes), *numbers)
    return code, starts_of(code, [LLVM_TYPE[one] for one in dtypes])


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
    """Return G of one dimension, of integers 2 G."""
    kernel = transform.kernel if code.accumulator == FLOAT else 2 * transform.kernel

    def apply(g: Sequence[str]) -> Vectors:
        rows = []
        for row in kernel.tolist():
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


def loop(
    code: LlvmCode, pointers: Mapping[str, str], strides: Sequence[int], body: Callable[[list[str]], None]
) -> None:
    """Emit a loop of ``%count`` iterations, 1 or more, whose pointers (to elements of dtypes) advance by `strides`."""
    code.line("head:")
    code.line("  %i = phi i64 [0, %entry], [%next, %latch]")
    inside = [f"%w{number}" for number in range(len(pointers))]
    for number, pointer in enumerate(pointers):
        code.line(f"  {inside[number]} = phi ptr [{pointer}, %entry], [%x{number}, %latch]")
    body(inside)
    code.line("  br label %latch")
    code.line("latch:")
    for number, (dtype, stride) in enumerate(zip(pointers.values(), strides, strict=True)):
        code.line(f"  %x{number} = getelementptr {LLVM_TYPE[dtype]}, ptr {inside[number]}, i64 {stride}")
    code.line("  %next = add nuw nsw i64 %i, 1")
    code.line("  %last = icmp eq i64 %next, %count")
    code.line("  br i1 %last, label %done, label %head, !llvm.loop !0")
    code.line("done:")


def _store_row(code: LlvmCode, target: str, y: int, values: Vectors, pitch: int) -> None:
    """Store row `y` of the frequencies of a tile, which are `pitch` elements apart."""
    for x, value in enumerate(values):
        place = code.address(target, code.accumulator, (y * len(values) + x) * pitch)
        code.store_vector(value, place, code.accumulator, code.lanes)


def input_ir(
    name: str, layout: WinogradLayout, dtype: str, *, pitches: tuple[int, int], strides: tuple[int, int], used: int
) -> Function:
    """Return ``void name(ptr data, i64 offset, ptr v, i64 offset, i64 count)``; `count` may be 0.

    What all stored inputs have more than they mean (the zero point) comes out of few frequencies.

    Parameters
    ----------
    dtype : str
        Of the inputs.
    pitches : (int, int)
        From one row and one column of a tile's inputs to the next.
    strides : (int, int)
        How far an iteration moves in the inputs and in V.
    used : int
        Channels of a vector that exist; the others become zeros.
    """
    transform, dtypes = layout.transform, (dtype, layout.convolution.transformed)
    code, bases = begun(name, layout.data_lanes, dtypes, "count", dtype=dtypes[1])
    apply, ones = _data(code, transform), transform.data.sum(axis=1)
    row, column = pitches

    def body(pointers: list[str]) -> None:
        source, target = pointers
        columns = []
        for x in range(transform.inputs):
            loaded = [
                code.load_vector(code.address(source, dtype, y * row + x * column), dtype, 1, used)
                for y in range(transform.inputs)
            ]
            columns.append(apply(loaded))
        for y in range(transform.inputs):  # a row is stored before the next one is transformed
            values = apply([column_of[y] for column_of in columns])
            for x, more in enumerate(layout.convolution.zero_point * ones[y] * ones):
                if more:
                    values[x] = code.binary("sub", values[x], code.constant(more))
            _store_row(code, target, y, values, layout.data_pitch)

    code.line("  %none = icmp eq i64 %count, 0")
    code.line("  br i1 %none, label %done, label %head")
    loop(code, dict(zip(bases, dtypes, strict=True)), strides, body)
    return finished(code)


def weight_ir(name: str, layout: WinogradLayout, dtype: str, used: int) -> Function:
    """Return ``void name(ptr weight, i64 offset, ptr u, i64 offset)``: a vector of output channels, one input channel.

    Of a weight of a dtype. `used` of the vector's output channels exist; the others become zeros.
    """
    lanes, convolution = layout.lanes, layout.convolution
    kind, pitch, stride = convolution.transformed, convolution.weight, convolution.group
    code, (source, target) = begun(name, lanes, (dtype, kind), dtype=kind)
    taps = [
        [
            code.load_vector(code.address(source, dtype, y * pitch["ry"] + x * pitch["rx"]), dtype, pitch["f"], used)
            for x in range(3)
        ]
        for y in range(3)
    ]
    for y, values in enumerate(_both(taps, _kernel(code, layout.transform))):
        if stride == 1:
            _store_row(code, target, y, values, layout.weight_pitch)
            continue
        for x, value in enumerate(values):
            place = code.address(target, kind, (y * len(values) + x) * layout.weight_pitch)
            code.store_lanes(value, place, kind, stride, lanes)
    return finished(code)
