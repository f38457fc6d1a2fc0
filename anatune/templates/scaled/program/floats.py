"""Products of many rows in float32, as LLVM IR. A part of a tile's weights is unpacked once for all rows of a piece.

With 4-bit weights and exact activations, digits take more instructions than float32 products do.
"""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.emit.kernels import Function, Loops, finish_function, start_function
from anatune.emit.llvm import LlvmCode
from anatune.emit.llvm_types import same_integers
from anatune.templates.scaled.program.functions import store_finished
from anatune.templates.scaled.rules import ScaledProduct

__all__ = ["float_function", "unpack_function"]

_UNROLL = 4


def unpack_function(name: str, product: ScaledProduct, width: int) -> Function:
    """Return the function that unpacks weights of a tile: for each k those of all columns.

    Its arguments are the weights, scales and (if there are any) zero points of a tile from the first element on, memory
    for float32 numbers, and the number of words along k.
    """
    lanes = product.lanes
    code = LlvmCode(lanes, "float32", "add")
    start_function(code, name, 3 + product.has_zeros, "words", spills=False)
    kinds = ["i8", "float", *["i8"] * product.has_zeros, "float"]
    bases = [code.emit(f"getelementptr {kind}, ptr %p{at}, i64 %o{at}") for at, kind in enumerate(kinds)]
    integers, each = f"<{lanes} x i32>", 32 // product.bits

    def word(word_number: str, _: list[str]) -> list[str]:
        group = code.emit(f"udiv i64 {word_number}, {product.group // each}")
        scale_offset = code.emit(f"mul i64 {group}, {width * lanes}")
        weights = code.emit(
            f"getelementptr i8, ptr {bases[0]}, i64 {code.emit(f'mul i64 {word_number}, {4 * width * lanes}')}"
        )
        target = code.emit(
            f"getelementptr float, ptr {bases[-1]}, i64 {code.emit(f'mul i64 {word_number}, {each * width * lanes}')}"
        )
        scales = code.emit(f"getelementptr float, ptr {bases[1]}, i64 {scale_offset}")
        for vector in range(width):
            packed = code.emit(f"load {integers}, ptr {code.address(weights, 'int8', vector * 4 * lanes)}, align 1")
            scale = code.load_vector(code.address(scales, "float32", vector * lanes), "float32", 1, lanes)
            less = code.constant(8.0) if product.bits == 4 else ""
            if product.has_zeros:
                zeros = code.emit(f"getelementptr i8, ptr {bases[2]}, i64 {scale_offset}")
                dtype = "uint8" if product.bits == 4 else "int8"
                less = code.load_vector(code.address(zeros, "int8", vector * lanes), dtype, 1, lanes)
            for number_in_word in range(each):
                if product.bits == 4:
                    down = same_integers(4 * number_in_word, lanes)
                    value = code.emit(f"lshr {integers} {packed}, {down}") if number_in_word else packed
                    value = code.emit(f"and {integers} {value}, {same_integers(15, lanes)}")
                else:
                    up = 24 - 8 * number_in_word
                    value = code.emit(f"shl {integers} {packed}, {same_integers(up, lanes)}") if up else packed
                    value = code.emit(f"ashr {integers} {value}, {same_integers(24, lanes)}")
                number = code.emit(f"sitofp {integers} {value} to {code.vector}")
                number = code.binary("mul", code.binary("sub", number, less) if less else number, scale)
                pointer = code.address(target, "float32", (number_in_word * width + vector) * lanes)
                code.store_vector(number, pointer, "float32", lanes)
        return []

    Loops(code).over("0", "%words", "1", [], word)
    return finish_function(code)


def float_function(
    name: str,
    product: ScaledProduct,
    *,
    rows: int,
    vectors: Sequence[int],
    width: int,
    used: Sequence[int],
    steps: Sequence[str],
    goes_on: bool,
) -> Function:
    """Return the microkernel of some rows and columns of a tile for a part of k.

    Its arguments are activations of the rows, unpacked weights, operands of the epilogue, the result, and the number of
    elements along k, a multiple of `_UNROLL`.

    Parameters
    ----------
    rows, vectors, width, used, steps
        See `functions.ProductKernel`. Only the last part of k has steps.
    goes_on : bool
        Whether the result already holds sums of earlier parts.
    """
    lanes = product.lanes
    code = LlvmCode(lanes, "float32", "add")
    operands = [step for step in steps if STEP_OPERANDS[step] is not None]
    start_function(code, name, 3 + len(operands), "depth", spills=False)
    bases = [code.emit(f"getelementptr float, ptr %p{at}, i64 %o{at}") for at in range(3 + len(operands))]
    tiles = [(row, vector) for row in range(rows) for vector in vectors]

    def step(position: str, state: list[str]) -> list[str]:
        data = code.emit(f"getelementptr float, ptr {bases[0]}, i64 {position}")
        start = code.emit(f"mul i64 {position}, {width * lanes}")
        weights = code.emit(f"getelementptr float, ptr {bases[1]}, i64 {start}")
        sums = dict(zip(tiles, state, strict=True))
        for k in range(_UNROLL):
            loaded = {
                vector: code.load_vector(
                    code.address(weights, "float32", (k * width + vector) * lanes), "float32", 1, lanes
                )
                for vector in vectors
            }
            for row in range(rows):
                datum = code.load_vector(code.address(data, "float32", row * product.depth + k), "float32", 0, lanes)
                for vector in vectors:
                    sums[row, vector] = code.multiply_add(datum, loaded[vector], sums[row, vector])
        return [sums[tile] for tile in tiles]

    sums = Loops(code).over("0", "%depth", str(_UNROLL), ["zeroinitializer"] * len(tiles), step)
    for (row, vector), total in zip(tiles, sums, strict=True):
        offset, value = row * product.columns + vector * lanes, total
        pointer = code.address(bases[-1], "float32", offset)
        if goes_on:
            value = code.binary("add", value, code.load_vector(pointer, "float32", 1, used[vector]))
        store_finished(code, steps, bases[2:-1], value, vector * lanes, offset, pointer, used[vector])
    return finish_function(code)
