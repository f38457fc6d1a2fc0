"""Kernels that treat the rows of a matrix one by one: softmax, layer norm.

One call of a function in LLVM IR treats one row; the loops around it, in TVMScript, are spread over threads. A row is
read two or three times, which the first cache serves. A length that is known at run time is an argument of the
function: as many whole steps as there are, then single vectors, then what is left under a mask.

A softmax errs by at most ``2**-21`` of its row's largest result beside float64 (measured: half of that), results of
rows of two elements by 3 ulp; what is below the smallest normal number is 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from anatune.core.sizes import at_run_time
from anatune.emit.elementary import power
from anatune.emit.kernels import (
    Function,
    Loops,
    call,
    finished,
    lanes_below,
    one_over,
    only_lanes,
    open_kernel,
    spread_over,
    start_function,
    starts_of,
)
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.emit.script import Script
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["RowKernel", "mask_row", "row_function", "row_program"]

_FLOAT = "float32"
_CHAINS = 4
"""Vectors of a step: enough sums next to each other for the latency of an addition."""
_BLOCK = 64
"""Steps whose terms are added one after the other where rows have more than twice as many: further rounding adds up."""
_PARALLEL_FROM = 1 << 13
"""Elements from which on rows are spread over threads: a parallel loop costs some microseconds."""

Values = dict[int, str]
"""By the place of a vector in a step."""
_Used = int | str
"""How many lanes of a vector exist, or a mask of them."""
_Step = Callable[[str, int, _Used, list[Values]], list[Values]]
"""As `_Row.over` takes."""


@dataclass(frozen=True)
class RowKernel:
    """What is done to each row.

    Attributes
    ----------
    kind : str
        "softmax", "layer_norm". "powers": what a softmax is before its division; the row's factor for that is stored
        besides.
    rows, length : int
        Each, and those below, may be known at run time alone (`core.sizes`).
    scale : float
        "softmax": what elements are multiplied by first.
    mask_rows, block : int
        "softmax": rows of the matrix that is added to the products, 0: none is; which ones: `mask_row`.
    zero_rows : bool
        "softmax": a row of nothing but ``-inf`` gives zeros, not NaN.
    epsilon : float
        "layer_norm".
    operands : int
        "layer_norm": vectors of the row's length behind the data, a factor and a term.
    dtype : str
        "layer_norm": of the result.
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
    """Return (the function in TVMScript, the LLVM IR it calls).

    Its parameters: the data (rows, length), the mask (mask_rows, length) or factor and term (length,), the result.
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
    length = [str(kernel.length)] if at_run_time(kernel.length) else []
    one = partial(call, text, f"{name}_row", [(tensor, offsets[tensor]) for tensor in shapes], *length)
    work = kernel.rows * kernel.length
    spread_over(text, "r", kernel.rows, one, threads=threads, work=work, least=_PARALLEL_FROM)
    return str(text), module_ir([row_function(kernel, f"{name}_row", lanes)])


def mask_row(row: str, rows: int, mask_rows: int, block: int) -> str:
    """Return which row of a mask belongs to a row of the data, as TVMScript.

    Parameters
    ----------
    rows, mask_rows : int
        Of the data and of the mask.
    block : int
        Rows of the data that have the same rows of the mask, again and again; 0: all.
    """
    own = mask_rows // (rows // (block or rows))
    again = f"({row}) % {own}" if at_run_time(own) or own > 1 else "0"
    return f"({again})" if own == mask_rows else f"(({row}) // {block} * {own} + {again})"


def row_function(kernel: RowKernel, name: str, lanes: int) -> Function:
    """Return (the function of one row in LLVM IR, the declarations it needs).

    Its parameters: a pointer and an offset in elements of the data, the mask or factor and term, the result; of
    "powers": of the data, which become the powers, the mask, the factor. Then the length, if it is known at run time:
    then data of "powers" are whole vectors.
    """
    return _Row(kernel, name, lanes, 2 + (1 if kernel.mask_rows else kernel.operands)).function


class _Row:
    """Writes the function of one row."""

    def __init__(self, kernel: RowKernel, name: str, lanes: int, tensors: int) -> None:
        self.kernel, self.lanes = kernel, lanes
        self.result = 0 if kernel.kind == "powers" else tensors - 1
        self.code = code = LlvmCode(lanes, _FLOAT, "max" if kernel.kind in ("softmax", "powers") else "add")
        self.loops = Loops(code)
        self.is_open = at_run_time(kernel.length)
        self.padded = 0 if self.is_open and kernel.kind == "powers" else None  # a tensor of whole vectors
        start_function(code, name, tensors, *(["length"] if self.is_open else []))
        self.bases = starts_of(code, ["float"] * (tensors - 1) + [LLVM_TYPE[kernel.dtype]])
        {"softmax": self.softmax, "powers": self.powers, "layer_norm": self.layer_norm}[kernel.kind]()
        self.function = finished(code)

    def total(self, step: _Step) -> str:
        """Go through the row and return a vector of sums, which a step carries.

        Those of a long row of known length are sums of blocks; what each addition of a block rounds away is kept.
        """
        code, width = self.code, self.lanes * _CHAINS
        zero = code.constant(0.0)
        if self.is_open or self.kernel.length <= 2 * _BLOCK * width:
            return self.over([zero], step)[0]

        def add(sums: list[str], part: str) -> list[str]:
            total, lost = sums
            found = code.binary("add", total, part)
            added = code.binary("sub", found, total)
            kept = code.binary("sub", found, added)
            more = code.binary("add", code.binary("sub", total, kept), code.binary("sub", part, added))
            return [found, code.binary("add", lost, more)]

        def block(place: str, state: list[str]) -> list[str]:
            end = code.emit(f"add i64 {place}, {_BLOCK * width}")
            chains = dict.fromkeys(range(_CHAINS), zero)
            (sums,) = self.loop(place, end, _CHAINS, self.lanes, step, [chains])
            return add(state, functools.reduce(self.joined, sums.values()))

        behind = self.kernel.length // (_BLOCK * width) * _BLOCK * width
        state = self.loops.over("0", str(behind), str(_BLOCK * width), [zero, zero], block)
        if behind < self.kernel.length:
            state = add(state, self.over([zero], step, behind)[0])
        return code.binary("add", *state)

    def over(self, carried: Sequence[str], step: _Step, start: int = 0) -> list[str]:
        """Go through the row from a place on and return what is carried, joined.

        Parameters
        ----------
        carried : sequence of str
            What each of the values starts from; `_CHAINS` of each are carried.
        step : callable
            Takes the place of the first element (LLVM's name), the vectors of the step, how many lanes of the last one
            exist, and by the carried value and vector what it is so far; returns what it is behind the step.
        """
        width = self.lanes * _CHAINS
        state: list[Values] = [dict.fromkeys(range(_CHAINS), first) for first in carried]
        if self.is_open:
            code = self.code
            whole, single = (code.emit(f"and i64 %length, {-size}") for size in (width, self.lanes))
            state = self.loop("0", whole, _CHAINS, self.lanes, step, state)
            state = self.loop(whole, single, 1, self.lanes, step, state)
            mask = lanes_below(code, code.emit(f"sub i64 %length, {single}"))
            state = self.loop(single, "%length", 1, mask, step, state)  # once at most
        else:
            steps, rest = divmod(self.kernel.length - start, width)
            behind = start + steps * width
            if steps:
                state = self.loop(str(start), str(behind), _CHAINS, self.lanes, step, state)
            if rest:
                vectors = -(-rest // self.lanes)
                used = rest - (vectors - 1) * self.lanes
                new = step(str(behind), vectors, used, state)
                state = [{**old, **more} for old, more in zip(state, new, strict=True)]
        results = []
        for values, first in zip(state, carried, strict=True):
            distinct = [value for value in values.values() if value != first] or [first]
            results.append(distinct[0])
            for other in distinct[1:]:
                results[-1] = self.joined(results[-1], other)
        return results

    def loop(self, start: str, end: str, vectors: int, used: _Used, step: _Step, state: list[Values]) -> list[Values]:
        """Go from one place of the row to another in steps of so many vectors; return what is carried behind that."""

        def parts(flat: list[str]) -> list[Values]:
            return [dict(enumerate(flat[at : at + vectors])) for at in range(0, len(flat), vectors)]

        def flat(values: list[Values]) -> list[str]:
            return [own[vector] for own in values for vector in range(vectors)]

        behind = self.loops.over(
            start,
            end,
            str(vectors * self.lanes),
            flat(state),
            lambda place, now: flat(step(place, vectors, used, parts(now))),
        )
        return [{**old, **new} for old, new in zip(state, parts(behind), strict=True)]

    def joined(self, left: str, right: str) -> str:
        """Return what two parts of a carried value are together: the sum, or the largest; NaN on the right is left out.

        One instruction, unlike LlvmCode.maximum. A row with NaN has powers that are NaN, whatever is its largest.
        """
        code = self.code
        if code.body != "max":
            return code.binary("add", left, right)
        is_more = code.emit(f"fcmp ogt {code.vector} {right}, {left}")
        return code.emit(f"select <{self.lanes} x i1> {is_more}, {code.vector} {right}, {code.vector} {left}")

    def load(self, tensor: int, place: str, vector: int, used: _Used) -> str:
        """Return a vector of a row; what is beyond the end is 0."""
        code = self.code
        if tensor == self.padded:
            used = self.lanes
        pointer = code.emit(f"getelementptr float, ptr {self.bases[tensor]}, i64 {place}")
        return code.load_vector(code.address(pointer, _FLOAT, vector * self.lanes), _FLOAT, 1, used)

    def store(self, value: str, place: str, vector: int, used: _Used) -> None:
        """Store a vector of the result's row."""
        code = self.code
        if self.result == self.padded:
            used = self.lanes
        dtype = self.kernel.dtype
        pointer = code.emit(f"getelementptr {LLVM_TYPE[dtype]}, ptr {self.bases[self.result]}, i64 {place}")
        code.store_vector(value, code.address(pointer, dtype, vector * self.lanes), dtype, used)

    def each(self, vectors: int, used: _Used) -> list[tuple[int, _Used]]:
        """Return (vector, lanes of it that exist)."""
        return [(vector, self.lanes if vector < vectors - 1 else used) for vector in range(vectors)]

    def softmax(self) -> None:
        """Write the passes of the powers, and that of the quotients."""
        code, factor = self.code, self.code.splat(self.factor())

        def quotients(place: str, vectors: int, used: _Used, _: list[Values]) -> list[Values]:
            for vector, lanes in self.each(vectors, used):
                value = code.binary("mul", self.load(self.result, place, vector, lanes), factor)
                self.store(value, place, vector, lanes)
            return []

        self.over([], quotients)

    def powers(self) -> None:
        """Write the passes of the powers, and store what they are to be multiplied by."""
        self.code.line(f"  store float {self.factor()}, ptr {self.bases[-1]}, align 4")

    def factor(self) -> str:
        """Write the largest element's pass, that of the powers and their sum, and return one over the sum, a number.

        A mask's sums are stored by the first pass; a positive scale alone is part of the second.
        """
        code, kernel = self.code, self.kernel
        lowest, scale = code.constant(-math.inf), code.constant(kernel.scale)
        is_stored = kernel.mask_rows > 0 or kernel.scale <= 0.0

        def largest(place: str, vectors: int, used: _Used, state: list[Values]) -> list[Values]:
            maxima = {}
            for vector, lanes in self.each(vectors, used):
                value = self.load(0, place, vector, lanes)
                if kernel.mask_rows:
                    mask = self.load(1, place, vector, lanes)
                    value = code.multiply_add(value, scale, mask) if kernel.scale != 1.0 else code.binary(
                        "add", value, mask)  # fmt: skip
                elif is_stored:
                    value = code.binary("mul", value, scale)
                if is_stored:
                    self.store(value, place, vector, lanes)
                maxima[vector] = self.joined(state[0][vector], only_lanes(code, value, lanes, lowest))
            return [maxima]

        source = self.result if is_stored else 0
        most = self.most(self.over([lowest], largest)[0])
        if kernel.zero_rows:  # -inf less anything finite is -inf, whose power is 0
            is_empty = code.emit(f"fcmp oeq float {most}, {code.number(-math.inf)}")
            most = code.emit(f"select i1 {is_empty}, float 0.0, float {most}")
        is_scaled = not is_stored and kernel.scale != 1.0
        shift = code.splat(code.emit(f"fneg float {most}"))
        code.body = "add"

        def powers(place: str, vectors: int, used: _Used, state: list[Values]) -> list[Values]:
            sums = {}
            for vector, lanes in self.each(vectors, used):
                value = self.load(source, place, vector, lanes)
                value = code.binary("add", value, shift)
                if is_scaled:  # the difference, which is never above 0: two scaled elements are rounded unlike
                    value = code.binary("mul", value, scale)
                value = power(code, value)
                self.store(value, place, vector, lanes)
                sums[vector] = code.binary("add", state[0][vector], only_lanes(code, value, lanes, code.constant(0.0)))
            return [sums]

        total = code.horizontal(self.total(powers))
        if kernel.zero_rows:
            is_zero = code.emit(f"fcmp oeq float {total}, 0.0")
            total = code.emit(f"select i1 {is_zero}, float 1.0, float {total}")
        return code.emit(f"fdiv float 1.0, {total}")

    def most(self, value: str) -> str:
        """Return the largest lane of a vector without NaN, which `joined` leaves out."""
        kind, name = self.code.vector, f"llvm.vector.reduce.fmax.v{self.lanes}f32"
        self.code.declared.add(f"declare float @{name}({kind})")
        return self.code.emit(f"call nnan float @{name}({kind} {value})")

    def layer_norm(self) -> None:
        """Write the mean's pass, that of the squares of what differs from it, and that of the results."""
        code, kernel = self.code, self.kernel
        zero, share = code.constant(0.0), one_over(code, kernel.length, "length")

        def sums(place: str, vectors: int, used: _Used, state: list[Values]) -> list[Values]:
            return [
                {
                    vector: code.binary("add", state[0][vector], self.load(0, place, vector, lanes))
                    for vector, lanes in self.each(vectors, used)
                }
            ]

        mean = code.binary("mul", code.splat(code.horizontal(self.total(sums))), share)

        def squares(place: str, vectors: int, used: _Used, state: list[Values]) -> list[Values]:
            sums = {}
            for vector, lanes in self.each(vectors, used):
                off = only_lanes(code, code.binary("sub", self.load(0, place, vector, lanes), mean), lanes, zero)
                sums[vector] = code.multiply_add(off, off, state[0][vector])
            return [sums]

        variance = code.binary("mul", code.splat(code.horizontal(self.total(squares))), share)
        root = code.call(
            code.vector,
            f"llvm.sqrt.v{self.lanes}f32",
            [(code.vector, code.binary("add", variance, code.constant(kernel.epsilon)))],
        )
        factor = code.binary("div", code.constant(1.0), root)

        def results(place: str, vectors: int, used: _Used, _: list[Values]) -> list[Values]:
            for vector, lanes in self.each(vectors, used):
                value = code.binary("sub", self.load(0, place, vector, lanes), mean)
                value = code.binary("mul", value, factor)
                if kernel.operands:
                    own, term = (self.load(operand, place, vector, lanes) for operand in (1, 2))
                    value = code.multiply_add(value, own, term)
                self.store(value, place, vector, lanes)
            return []

        self.over([], results)
