"""Transforms of inputs and weights as LLVM IR: vectors of channels, straight-line code with the fewest operations.

A transform of two dimensions transforms each column, then each row. Points come in pairs (a, -a), whose rows differ in
the signs of odd terms, so that even and odd sums are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anatune.emit.kernels import Function, element_addresses, finish_function, start_function
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.templates.winograd.minimal_filtering import Filtering
from anatune.templates.winograd.program.layout import WinogradLayout

__all__ = ["FLOAT", "Vectors", "begin_function", "emit_loop", "input_ir", "result_rows", "weight_ir"]

FLOAT = "float32"
Vectors = list[str]
Transform = Callable[[Sequence[str]], Vectors]


def begin_function(
    name: str, lanes: int, dtypes: Sequence[str], *numbers: str, dtype: str = FLOAT
) -> tuple[LlvmCode, list[str]]:
    """Begin a function of tensors and numbers; return its code and the addresses of its tensors.

    Parameters
    ----------
    dtypes : sequence of str
        Dtypes of the tensors.
    dtype : str
        Dtype of the computation.
    """
    code = LlvmCode(lanes, dtype, "multiply_add")
    start_function(code, name, len(dtypes), *numbers)
    return code, element_addresses(code, [LLVM_TYPE[tensor_dtype] for tensor_dtype in dtypes])


def _multiply_add(code: LlvmCode, factor: float, value: str, added: str) -> str:
    """Return ``factor * value + added``."""
    if factor == 1.0:
        return code.binary("add", added, value)
    if factor == -1.0:
        return code.binary("sub", added, value)
    return code.multiply_add(value, code.constant(factor), added)


def _data_transform(code: LlvmCode, transform: Filtering) -> Transform:
    """Return the function that applies B^T in one dimension."""
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
        rows = [_multiply_add(code, middle, x[2], _multiply_add(code, low, x[0], x[4]))]
        for pair, point in enumerate(transform.points):
            other = float(matrix[1 + 2 * pair, 2])
            even = _multiply_add(code, other, x[2], x[4])
            odd = _multiply_add(code, other, x[1], x[3])
            rows += [_multiply_add(code, point, odd, even), _multiply_add(code, -point, odd, even)]
        return [*rows, _multiply_add(code, middle, x[3], _multiply_add(code, low, x[1], x[5]))]

    return apply


def _kernel_transform(code: LlvmCode, transform: Filtering) -> Transform:
    """Return the function that applies G in one dimension, or 2 G for integers."""
    kernel = transform.kernel if code.accumulator == FLOAT else 2 * transform.kernel

    def apply(g: Sequence[str]) -> Vectors:
        rows = []
        for row in kernel.tolist():
            terms = [(factor, value) for factor, value in zip(row, g, strict=True) if factor]
            (factor, value), *others = terms
            total = value if factor == 1.0 else code.binary("mul", value, code.constant(factor))
            for factor, value in others:
                total = _multiply_add(code, factor, value, total)
            rows.append(total)
        return rows

    return apply


def _result_transform(code: LlvmCode, transform: Filtering) -> Transform:
    """Return the function that applies A^T in one dimension."""

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
                    total = _multiply_add(code, factor, value, total)
            assert total is not None
            rows.append(total)
        return rows

    return apply


def _transform_both(values: list[Vectors], transform: Transform) -> list[Vectors]:
    """Apply a transform to the columns, then to the rows of ``values[row][column]``."""
    columns = [transform(column) for column in zip(*values, strict=True)]
    return [transform(row) for row in zip(*columns, strict=True)]


def result_rows(code: LlvmCode, transform: Filtering, values: list[Vectors]) -> list[Vectors]:
    """Return the outputs of a tile, row by row, from its products ``values[row][column]``."""
    return _transform_both(values, _result_transform(code, transform))


def emit_loop(
    code: LlvmCode, pointers: Mapping[str, str], strides: Sequence[int], body: Callable[[list[str]], None]
) -> None:
    """Emit a loop of ``%count`` >= 1 iterations; `strides` are added to its pointers (name -> dtype)."""
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
        address = code.address(target, code.accumulator, (y * len(values) + x) * pitch)
        code.store_vector(value, address, code.accumulator, code.lanes)


def input_ir(
    name: str, layout: WinogradLayout, dtype: str, *, pitches: tuple[int, int], strides: tuple[int, int], used: int
) -> Function:
    """Return ``void name(ptr data, i64 offset, ptr v, i64 offset, i64 count)``; `count` can be 0.

    The zero point, which all stored inputs contain, is subtracted from the few frequencies that it reaches.

    Parameters
    ----------
    dtype : str
        Dtype of the inputs.
    pitches : (int, int)
        Elements from one row and from one column of the inputs of a tile to the next.
    strides : (int, int)
        Elements by which an iteration moves in the inputs and in V.
    used : int
        Channels of a vector that exist; the others become zeros.
    """
    transform, dtypes = layout.transform, (dtype, layout.convolution.transformed)
    code, bases = begin_function(name, layout.data_lanes, dtypes, "count", dtype=dtypes[1])
    apply, ones = _data_transform(code, transform), transform.data.sum(axis=1)
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
        for y in range(transform.inputs):  # store a row before transforming the next one
            values = apply([column_of[y] for column_of in columns])
            for x, more in enumerate(layout.convolution.zero_point * ones[y] * ones):
                if more:
                    values[x] = code.binary("sub", values[x], code.constant(more))
            _store_row(code, target, y, values, layout.data_pitch)

    code.line("  %none = icmp eq i64 %count, 0")
    code.line("  br i1 %none, label %done, label %head")
    emit_loop(code, dict(zip(bases, dtypes, strict=True)), strides, body)
    return finish_function(code)


def weight_ir(name: str, layout: WinogradLayout, dtype: str, used: int) -> Function:
    """Return ``void name(ptr weight, i64 offset, ptr u, i64 offset)``: a vector of output channels, one input channel.

    The weights have `dtype`. `used` output channels of the vector exist; the others become zeros.
    """
    lanes, convolution = layout.lanes, layout.convolution
    weight_dtype, pitch, stride = convolution.transformed, convolution.weight, convolution.group
    code, (source, target) = begin_function(name, lanes, (dtype, weight_dtype), dtype=weight_dtype)
    taps = [
        [
            code.load_vector(code.address(source, dtype, y * pitch["ry"] + x * pitch["rx"]), dtype, pitch["f"], used)
            for x in range(3)
        ]
        for y in range(3)
    ]
    for y, values in enumerate(_transform_both(taps, _kernel_transform(code, layout.transform))):
        if stride == 1:
            _store_row(code, target, y, values, layout.weight_pitch)
            continue
        for x, value in enumerate(values):
            address = code.address(target, weight_dtype, (y * len(values) + x) * layout.weight_pitch)
            code.store_lanes(value, address, weight_dtype, stride, lanes)
    return finish_function(code)
