"""Kernels that work on the rows of a matrix one by one: softmax, layer norm.

One call of a function in LLVM IR computes one row. The loops around it, in TVMScript, run in several threads. A row is
read two or three times, mostly from the first cache. A length that is known only at run time is an argument of the
function, which runs whole steps, then single vectors, then the remaining elements under a mask.

The error of a softmax relative to float64 is at most ``2**-21`` of the row's largest result (measured: half of that),
and 3 ulp for rows of two elements. Results below the smallest normal number are 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from anatune.core.sizes import is_run_time
from anatune.emit.elementary import power
from anatune.emit.kernels import (
    Function,
    Loops,
    element_addresses,
    emit_call,
    finish_function,
    mask_lanes_below,
    open_kernel,
    select_lanes,
    start_function,
    write_reciprocal,
    write_spread_loop,
)
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.emit.script import Script
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["RowKernel", "mask_row", "row_function", "row_program"]

_FLOAT = "float32"
_CHAINS = 4
"""The number of vectors in a step: enough independent sums for the latency of an addition."""
_BLOCK = 64
"""The number of steps summed in a row before sums are combined, for rows of more than twice as many (less rounding)."""
_PARALLEL_FROM = 1 << 13
"""The least elements of a matrix whose rows run in several threads: a parallel loop costs some microseconds."""

Values = dict[int, str]
"""Index of a vector in a step -> LLVM's name of its value."""
_Used = int | str
"""The number of valid lanes of a vector, or a mask of them."""
_Step = Callable[[str, int, _Used, list[Values]], list[Values]]
"""The function of a step, as `_RowWriter.loop_over_row` calls it."""


@dataclass(frozen=True)
class RowKernel:
    """The computation of each row.

    Attributes
    ----------
    kind : str
        "softmax", "layer_norm", or "powers": a softmax before its division; the factor that replaces the division is
        stored as well.
    rows, length : int
        The sizes of the matrix. These, `mask_rows` and `block` may be known only at run time (`core.sizes`).
    scale : float
        "softmax": the factor that elements are multiplied by first.
    mask_rows, block : int
        "softmax": the rows of a matrix that is added (0: none), and how its rows are assigned to rows: see `mask_row`.
    zero_rows : bool
        "softmax": whether a row of only ``-inf`` gives zeros instead of NaN.
    epsilon : float
        "layer_norm": the term that is added to the variance.
    operands : int
        "layer_norm": the number of vectors after the data: 0, or 2 for a factor and a term.
    dtype : str
        "layer_norm": the dtype of the result.
    """

    kind: str
    rows: int
    length: int
    scale: float = 1.0
    mask_rows: int = 0
    zero_rows: bool = False
    epsilon: float = 0.0
    operands: int = 0
    block: int = 0
    dtype: str = _FLOAT


def row_program(kernel: RowKernel, name: str, lanes: int, threads: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR that it calls).

    Parameters: the data (rows, length), the mask (mask_rows, length) or factor and term (length,), the result.
    """
    whole, row = (kernel.rows, kernel.length), f"r * {kernel.length}"
    operands: dict[str, tuple[int, ...]] = {f"operand{number}": (kernel.length,) for number in range(kernel.operands)}
    offsets = dict.fromkeys(operands, "0") | {"data": row, "result": row}
    if kernel.mask_rows:
        operands = {"operand0": (kernel.mask_rows, kernel.length)}
        offsets["operand0"] = f"{mask_row('r', kernel.rows, kernel.mask_rows, kernel.block)} * {kernel.length}"
    shapes = {"data": whole, **operands, "result": whole}
    text = Script()
    open_kernel(text, name, "rows", shapes, dtypes={"result": kernel.dtype})
    length = [str(kernel.length)] if is_run_time(kernel.length) else []
    write_call = partial(emit_call, text, f"{name}_row", [(tensor, offsets[tensor]) for tensor in shapes], *length)
    work = kernel.rows * kernel.length
    write_spread_loop(text, "r", kernel.rows, write_call, threads=threads, work=work, least=_PARALLEL_FROM)
    return str(text), module_ir([row_function(kernel, f"{name}_row", lanes)])


def mask_row(row: str, rows: int, mask_rows: int, block: int) -> str:
    """Return the row of a mask that belongs to a row of the data, as TVMScript.

    Parameters
    ----------
    rows, mask_rows : int
        The number of rows of the data and of the mask.
    block : int
        The number of rows of the data that cycle through the same rows of the mask; 0: all rows.
    """
    rows_of_block = mask_rows // (rows // (block or rows))
    repeated = f"({row}) % {rows_of_block}" if is_run_time(rows_of_block) or rows_of_block > 1 else "0"
    return f"({repeated})" if rows_of_block == mask_rows else f"(({row}) // {block} * {rows_of_block} + {repeated})"


def row_function(kernel: RowKernel, name: str, lanes: int) -> Function:
    """Return (the function of one row in LLVM IR, the declarations that it needs).

    Parameters: for each tensor a pointer and an offset in elements. Tensors are the data, the mask or factor and term,
    and the result; for "powers" the data, which become the powers, the mask, and the factor. The last parameter is the
    length, if it is known only at run time; the data of "powers" then consist of whole vectors.
    """
    return _RowKernelWriter(kernel, name, lanes, 2 + (1 if kernel.mask_rows else kernel.operands)).function


class _RowKernelWriter:
    """Writes the function of one row."""

    def __init__(self, kernel: RowKernel, name: str, lanes: int, tensors: int) -> None:
        self.kernel, self.lanes = kernel, lanes
        self.result = 0 if kernel.kind == "powers" else tensors - 1
        self.code = code = LlvmCode(lanes, _FLOAT, "max" if kernel.kind in ("softmax", "powers") else "add")
        self.loops = Loops(code)
        self.is_open = is_run_time(kernel.length)
        self.padded = 0 if self.is_open and kernel.kind == "powers" else None  # the tensor of whole vectors
        start_function(code, name, tensors, *(["length"] if self.is_open else []))
        self.bases = element_addresses(code, ["float"] * (tensors - 1) + [LLVM_TYPE[kernel.dtype]])
        {"softmax": self.softmax, "powers": self.powers, "layer_norm": self.layer_norm}[kernel.kind]()
        self.function = finish_function(code)

    def total(self, step: _Step) -> str:
        """Write a loop over the row and return a vector of the sums that a step carries.

        A long row of known length is summed in blocks, with the rounding errors of the additions of blocks.
        """
        code, width = self.code, self.lanes * _CHAINS
        zero = code.constant(0.0)
        if self.is_open or self.kernel.length <= 2 * _BLOCK * width:
            return self.loop_over_row([zero], step)[0]

        def add(sums: list[str], part: str) -> list[str]:
            total, lost = sums
            new_total = code.binary("add", total, part)
            rounded_part = code.binary("sub", new_total, total)
            rounded_total = code.binary("sub", new_total, rounded_part)
            error = code.binary("add", code.binary("sub", total, rounded_total), code.binary("sub", part, rounded_part))
            return [new_total, code.binary("add", lost, error)]

        def block(start: str, state: list[str]) -> list[str]:
            end = code.emit(f"add i64 {start}, {_BLOCK * width}")
            chains = dict.fromkeys(range(_CHAINS), zero)
            (sums,) = self.loop(start, end, _CHAINS, self.lanes, step, [chains])
            return add(state, functools.reduce(self.combine, sums.values()))

        end_of_blocks = self.kernel.length // (_BLOCK * width) * _BLOCK * width
        state = self.loops.over("0", str(end_of_blocks), str(_BLOCK * width), [zero, zero], block)
        if end_of_blocks < self.kernel.length:
            state = add(state, self.loop_over_row([zero], step, end_of_blocks)[0])
        return code.binary("add", *state)

    def loop_over_row(self, carried: Sequence[str], step: _Step, start: int = 0) -> list[str]:
        """Write a loop over the row from `start` on, and return the carried values, combined over vectors.

        Parameters
        ----------
        carried : sequence of str
            The initial values; `_CHAINS` copies of each are carried.
        step : callable
            Takes the index of the first element (LLVM's name), the number of vectors in the step, the valid lanes of
            the last one, and the values so far, by carried value and vector. Returns the new values.
        """
        width = self.lanes * _CHAINS
        state: list[Values] = [dict.fromkeys(range(_CHAINS), first) for first in carried]
        if self.is_open:
            code = self.code
            whole, single = (code.emit(f"and i64 %length, {-size}") for size in (width, self.lanes))
            state = self.loop("0", whole, _CHAINS, self.lanes, step, state)
            state = self.loop(whole, single, 1, self.lanes, step, state)
            mask = mask_lanes_below(code, code.emit(f"sub i64 %length, {single}"))
            state = self.loop(single, "%length", 1, mask, step, state)  # at most one iteration
        else:
            steps, remainder = divmod(self.kernel.length - start, width)
            end = start + steps * width
            if steps:
                state = self.loop(str(start), str(end), _CHAINS, self.lanes, step, state)
            if remainder:
                vectors = -(-remainder // self.lanes)
                used = remainder - (vectors - 1) * self.lanes
                new = step(str(end), vectors, used, state)
                state = [{**old, **more} for old, more in zip(state, new, strict=True)]
        results = []
        for values, first in zip(state, carried, strict=True):
            distinct = [value for value in values.values() if value != first] or [first]
            results.append(distinct[0])
            for other in distinct[1:]:
                results[-1] = self.combine(results[-1], other)
        return results

    def loop(self, start: str, end: str, vectors: int, used: _Used, step: _Step, state: list[Values]) -> list[Values]:
        """Write a loop over a part of the row in steps of some vectors; return the values that it carries."""

        def parts(flat: list[str]) -> list[Values]:
            return [dict(enumerate(flat[i : i + vectors])) for i in range(0, len(flat), vectors)]

        def flat(values: list[Values]) -> list[str]:
            return [vectors_of_value[vector] for vectors_of_value in values for vector in range(vectors)]

        carried = self.loops.over(
            start,
            end,
            str(vectors * self.lanes),
            flat(state),
            lambda place, now: flat(step(place, vectors, used, parts(now))),
        )
        return [{**old, **new} for old, new in zip(state, parts(carried), strict=True)]

    def combine(self, left: str, right: str) -> str:
        """Return the combination of two parts of a carried value: the sum or the maximum, which drops NaN on the right.

        This is one instruction, unlike LlvmCode.maximum. A row with NaN has NaN powers in any case.
        """
        code = self.code
        if code.body != "max":
            return code.binary("add", left, right)
        is_more = code.emit(f"fcmp ogt {code.vector} {right}, {left}")
        return code.emit(f"select <{self.lanes} x i1> {is_more}, {code.vector} {right}, {code.vector} {left}")

    def load(self, tensor: int, index: str, vector: int, used: _Used) -> str:
        """Return a vector of a row; elements after the end are 0."""
        code = self.code
        if tensor == self.padded:
            used = self.lanes
        pointer = code.emit(f"getelementptr float, ptr {self.bases[tensor]}, i64 {index}")
        return code.load_vector(code.address(pointer, _FLOAT, vector * self.lanes), _FLOAT, 1, used)

    def store(self, value: str, index: str, vector: int, used: _Used) -> None:
        """Store a vector of the result's row."""
        code = self.code
        if self.result == self.padded:
            used = self.lanes
        dtype = self.kernel.dtype
        pointer = code.emit(f"getelementptr {LLVM_TYPE[dtype]}, ptr {self.bases[self.result]}, i64 {index}")
        code.store_vector(value, code.address(pointer, dtype, vector * self.lanes), dtype, used)

    def each(self, vectors: int, used: _Used) -> list[tuple[int, _Used]]:
        """Return (vector, its valid lanes) for the vectors of a step."""
        return [(vector, self.lanes if vector < vectors - 1 else used) for vector in range(vectors)]

    def softmax(self) -> None:
        """Write the loops that compute the powers, and the loop that divides them by their sum."""
        code, factor = self.code, self.code.splat(self.factor())

        def quotients(index: str, vectors: int, used: _Used, _: list[Values]) -> list[Values]:
            for vector, lanes in self.each(vectors, used):
                value = code.binary("mul", self.load(self.result, index, vector, lanes), factor)
                self.store(value, index, vector, lanes)
            return []

        self.loop_over_row([], quotients)

    def powers(self) -> None:
        """Write the loops that compute the powers, and store the factor that replaces the division."""
        self.code.line(f"  store float {self.factor()}, ptr {self.bases[-1]}, align 4")

    def factor(self) -> str:
        """Write the loops that compute the maximum and the powers; return the reciprocal of the powers' sum, a scalar.

        With a mask the first loop stores the masked elements. A positive scale alone is a part of the second loop.
        """
        code, kernel = self.code, self.kernel
        lowest, scale = code.constant(-math.inf), code.constant(kernel.scale)
        is_stored = kernel.mask_rows > 0 or kernel.scale <= 0.0

        def largest(index: str, vectors: int, used: _Used, state: list[Values]) -> list[Values]:
            maxima = {}
            for vector, lanes in self.each(vectors, used):
                value = self.load(0, index, vector, lanes)
                if kernel.mask_rows:
                    mask = self.load(1, index, vector, lanes)
                    value = code.multiply_add(value, scale, mask) if kernel.scale != 1.0 else code.binary(
                        "add", value, mask)  # fmt: skip
                elif is_stored:
                    value = code.binary("mul", value, scale)
                if is_stored:
                    self.store(value, index, vector, lanes)
                maxima[vector] = self.combine(state[0][vector], select_lanes(code, value, lanes, lowest))
            return [maxima]

        source = self.result if is_stored else 0
        maximum = self.reduce_max(self.loop_over_row([lowest], largest)[0])
        if kernel.zero_rows:  # -inf minus a finite number is -inf, whose power is 0
            is_empty = code.emit(f"fcmp oeq float {maximum}, {code.number(-math.inf)}")
            maximum = code.emit(f"select i1 {is_empty}, float 0.0, float {maximum}")
        is_scaled = not is_stored and kernel.scale != 1.0
        shift = code.splat(code.emit(f"fneg float {maximum}"))
        code.body = "add"

        def powers(index: str, vectors: int, used: _Used, state: list[Values]) -> list[Values]:
            sums = {}
            for vector, lanes in self.each(vectors, used):
                value = self.load(source, index, vector, lanes)
                value = code.binary("add", value, shift)
                if is_scaled:  # scale the difference, which is never positive, not the elements: those would be rounded
                    value = code.binary("mul", value, scale)
                value = power(code, value)
                self.store(value, index, vector, lanes)
                sums[vector] = code.binary(
                    "add", state[0][vector], select_lanes(code, value, lanes, code.constant(0.0))
                )
            return [sums]

        total = code.horizontal(self.total(powers))
        if kernel.zero_rows:
            is_zero = code.emit(f"fcmp oeq float {total}, 0.0")
            total = code.emit(f"select i1 {is_zero}, float 1.0, float {total}")
        return code.emit(f"fdiv float 1.0, {total}")

    def reduce_max(self, value: str) -> str:
        """Return the largest lane of a vector without NaN."""
        kind, name = self.code.vector, f"llvm.vector.reduce.fmax.v{self.lanes}f32"
        self.code.declared.add(f"declare float @{name}({kind})")
        return self.code.emit(f"call nnan float @{name}({kind} {value})")

    def layer_norm(self) -> None:
        """Write the loops that compute the mean, the squared differences from it, and the results."""
        code, kernel = self.code, self.kernel
        zero, share = code.constant(0.0), write_reciprocal(code, kernel.length, "length")

        def sums(index: str, vectors: int, used: _Used, state: list[Values]) -> list[Values]:
            return [
                {
                    vector: code.binary("add", state[0][vector], self.load(0, index, vector, lanes))
                    for vector, lanes in self.each(vectors, used)
                }
            ]

        mean = code.binary("mul", code.splat(code.horizontal(self.total(sums))), share)

        def squares(index: str, vectors: int, used: _Used, state: list[Values]) -> list[Values]:
            sums = {}
            for vector, lanes in self.each(vectors, used):
                difference = select_lanes(
                    code, code.binary("sub", self.load(0, index, vector, lanes), mean), lanes, zero
                )
                sums[vector] = code.multiply_add(difference, difference, state[0][vector])
            return [sums]

        variance = code.binary("mul", code.splat(code.horizontal(self.total(squares))), share)
        root = code.call(
            code.vector,
            f"llvm.sqrt.v{self.lanes}f32",
            [(code.vector, code.binary("add", variance, code.constant(kernel.epsilon)))],
        )
        factor = code.binary("div", code.constant(1.0), root)

        def results(index: str, vectors: int, used: _Used, _: list[Values]) -> list[Values]:
            for vector, lanes in self.each(vectors, used):
                value = code.binary("sub", self.load(0, index, vector, lanes), mean)
                value = code.binary("mul", value, factor)
                if kernel.operands:
                    scale, term = (self.load(operand, index, vector, lanes) for operand in (1, 2))
                    value = code.multiply_add(value, scale, term)
                self.store(value, index, vector, lanes)
            return []

        self.loop_over_row([], results)
