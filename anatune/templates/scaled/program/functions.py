"""The functions of products with 8-bit or 4-bit weights, as LLVM IR: activations to digits, and the microkernel.

Weights of a tile of columns are stored word by word. For each word along k there are those of all columns of the tile,
so that a lane is a column. A word of 4-bit weights holds k, k + 2, .. in the low halves of its bytes and k + 1, k + 3,
.. in the high halves. Digits are stored in the order in which they are multiplied.

Source: integer products as in llama.cpp's ggml (VPMADDUBSW of 4-bit weights with int8 activations). Powers of two for
each run, and several digits, are additions of this project.
"""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.workload.number_formats import STEP_OPERANDS
from anatune.emit.elementary import FUNCTIONS
from anatune.emit.kernels import Function, Loops, finish_function, start_function
from anatune.emit.llvm import LlvmCode
from anatune.emit.llvm_types import same_integers
from anatune.templates.scaled.rules import ScaledProduct

__all__ = ["ProductKernel", "digits_function", "store_finished"]

_LEAST = 2.0**-100
"""Threshold below which all activations of a run count as zero. Their powers would not fit in float32."""
_BIAS = 0x8080
"""128 in each of the two lower digits, so that cutting off bits rounds to nearest."""
_POWER = {("bytes", 3): 21, ("words", 2): 13, ("words", 1): 13}
"""Digits -> power of two that scales numbers between 1 and 2 to integers of as many bits."""
_SHIFT = 15
"""Number of bits of the second 16-bit digit."""
_EXPONENT = 0x7F800000

_LINE_BYTES = 64
_MOST_WAITING = 6
"""Most vector operations on a line of weights for which nothing is prefetched: about 128 operations wait for operands
(Zen 4; Golden Cove: 97), which are those of as many lines as a core fetches at once (24; 16). Prefetches only take
places of such loads, and the hardware follows the rows of weights.

Source: Zen 4, shares of the reading rate with prefetches and without: one row with one digit, 4-bit weights 81 to 92 %,
94 to 101 %; 8-bit weights 83 to 101 %, 92 to 114 %; but four rows, 4 bits: 80 %, 61 %.
"""
_FENCED = 3
"""Least number of sums for which LLVM must not reorder additions. It would hold more numbers than there are
registers."""
_REGISTER = "v"
"""Letter of vector registers in constraints of inline assembly."""


def _power(product: ScaledProduct, digits: int) -> int | None:
    return _POWER.get(("words" if product.digit_bits == 16 else "bytes", digits))


def digits_function(name: str, product: ScaledProduct, digits: int) -> Function:
    """Return the function that makes digits of a row.

    Its arguments are activations (k,) and words (`ScaledProduct.row_words`). It writes for each run its digits, highest
    first, the power as float32, and the sum of its activations. Without zero points the sum is multiplied by minus the
    offset of the weights.
    """
    lanes = product.lanes
    code = LlvmCode(lanes, "float32", "max")
    start_function(code, name, 2, spills=False)
    source = code.emit("getelementptr float, ptr %p0, i64 %o0")
    target = code.emit("getelementptr i32, ptr %p1, i64 %o1")
    words = digits * product.digit_words + 2

    def run(number: str, _: list[str]) -> list[str]:
        data = code.emit(f"getelementptr float, ptr {source}, i64 {code.emit(f'mul i64 {number}, {product.run}')}")
        out = code.emit(f"getelementptr i32, ptr {target}, i64 {code.emit(f'mul i64 {number}, {words}')}")
        _RunDigits(code, product, digits, data, out).write()
        return []

    Loops(code).over("0", str(product.runs), "1", [], run)
    return finish_function(code)


class _RunDigits:
    """Writes the digits of one run."""

    def __init__(self, code: LlvmCode, product: ScaledProduct, digits: int, source: str, target: str) -> None:
        self.code, self.product, self.digits, self.source, self.target = code, product, digits, source, target
        self.integers = f"<{code.lanes} x i32>"

    def write(self) -> None:
        code, product, digits = self.code, self.product, self.digits
        vectors = [
            code.load_vector(code.address(self.source, "float32", at), "float32", 1, code.lanes)
            for at in range(0, product.run, code.lanes)
        ]
        largest = ""
        for vector in vectors:
            size = code.call(code.vector, f"llvm.fabs.v{code.lanes}f32", [(code.vector, vector)])
            largest = size if not largest else code.maximum(largest, size)
        most = code.horizontal(largest)
        bounded = code.call("float", "llvm.maximum.f32", [("float", most), ("float", code.number(_LEAST))])
        power = _power(product, digits)
        if power is None:
            factor = code.emit(f"fdiv float {code.number(127.0)}, {bounded}")
            scale = code.emit(f"fmul float {bounded}, {code.number(1.0 / 127.0)}")
        else:
            exponent = code.emit(f"and i32 {code.emit(f'bitcast float {bounded} to i32')}, {_EXPONENT}")
            scale = code.emit(f"bitcast i32 {code.emit(f'sub i32 {exponent}, {power << 23}')} to float")
            factor = code.emit(f"bitcast i32 {code.emit(f'sub i32 {(254 + power) << 23}, {exponent}')} to float")
        # A NaN makes results that are NaN.
        scale = code.emit(f"fadd float {scale}, {code.emit(f'fsub float {most}, {most}')}")
        sums = ["zeroinitializer"] * (2 if product.digit_bits == 16 else 1)
        for position, vector in enumerate(vectors):
            scaled = code.binary("mul", vector, code.splat(factor))
            parts = self._word_digits(scaled) if product.digit_bits == 16 else self._byte_digits(scaled)
            for number, value in enumerate(parts[0]):
                sums[number] = code.emit(f"add {self.integers} {sums[number]}, {value}")
            for digit, value in enumerate(parts[1]):
                self._store(digit, position, value)
        total = self._total(sums)
        total = code.emit(f"fmul float {total}, {scale}")
        if not product.has_zeros:
            total = code.emit(f"fmul float {total}, {code.number(-float(product.offset))}")
        for position, value in enumerate((scale, total)):
            pointer = code.address(self.target, "float32", digits * product.digit_words + position)
            code.line(f"  store float {value}, ptr {pointer}, align 4")

    def _round(self, value: str) -> tuple[str, str]:
        """Return numbers rounded to integers, as float32 and as integers."""
        code = self.code
        whole = code.call(code.vector, f"llvm.rint.v{code.lanes}f32", [(code.vector, value)])
        return whole, code.emit(f"fptosi {code.vector} {whole} to {self.integers}")

    def _byte_digits(self, scaled: str) -> tuple[list[str], list[str]]:
        """Return the integers to sum, and 8-bit digits in 32 bits."""
        code, integers = self.code, self.integers
        _, whole = self._round(scaled)
        if self.digits == 1:
            return [whole], [whole]
        biased = code.emit(f"add {integers} {whole}, {same_integers(_BIAS, code.lanes)}")
        digits = [code.emit(f"ashr {integers} {biased}, {same_integers(16, code.lanes)}")]
        for shift in (8, 0):
            part = code.emit(f"lshr {integers} {biased}, {same_integers(shift, code.lanes)}") if shift else biased
            digits.append(code.emit(f"xor {integers} {part}, {same_integers(128, code.lanes)}"))
        return [whole], digits

    def _word_digits(self, scaled: str) -> tuple[list[str], list[str]]:
        """Return the integers to sum, and 16-bit digits in 32 bits."""
        code = self.code
        whole, high = self._round(scaled)
        if self.digits == 1:
            return [high], [high]
        residual = code.binary("mul", code.binary("sub", scaled, whole), code.constant(float(1 << _SHIFT)))
        low = self._round(residual)[1]
        return [high, low], [high, low]

    def _store(self, digit: int, position: int, value: str) -> None:
        """Store a vector of digits in the order in which they are multiplied."""
        code, product = self.code, self.product
        bits, lanes = product.digit_bits, code.lanes
        small = code.emit(f"trunc {self.integers} {value} to <{lanes} x i{bits}>")
        if bits == 16:
            order = [at + one for at in range(0, lanes, 4) for one in (0, 2, 1, 3)]
        elif product.bits == 4:
            order = [at + one for at in range(0, lanes, 8) for one in (0, 2, 4, 6, 1, 3, 5, 7)]
        else:
            order = list(range(lanes))
        vector_type = f"<{lanes} x i{bits}>"
        small = code.holding(vector_type).shuffle(small, "poison", order)
        offset = digit * product.digit_words + position * lanes * bits // 32
        code.line(f"  store {vector_type} {small}, ptr {code.address(self.target, 'float32', offset)}, align 4")

    def _total(self, sums: Sequence[str]) -> str:
        """Return the sum of a run's integers as a float32 number."""
        code, total = self.code, ""
        for number, value in enumerate(sums):
            whole = code.call("i32", f"llvm.vector.reduce.add.v{code.lanes}i32", [(self.integers, value)])
            part = code.emit(f"sitofp i32 {whole} to float")
            if number:
                part = code.emit(f"fmul float {part}, {code.number(2.0**-_SHIFT)}")
            total = code.emit(f"fadd float {total}, {part}") if total else part
        return total


def store_finished(
    code: LlvmCode, steps: Sequence[str], operands: list[str], value: str, column: int, index: int, out: str, used: int
) -> None:
    """Store a vector of results after the epilogue.

    Operands of the epilogue that lie along the columns are read at `column`, others at `at`.
    """
    pointers = iter(operands)
    for step in steps:
        if STEP_OPERANDS[step] is None:
            value = FUNCTIONS[step](code, value)
            continue
        pointer = code.address(next(pointers), "float32", column if step == "bias" else index)
        value = code.binary("add", value, code.load_vector(pointer, "float32", 1, used))
    code.store_vector(value, out, "float32", used)


class ProductKernel:
    """The microkernel of some rows and columns of a tile.

    Its arguments are the weights of a tile, its scales, its zero points (if there are any), digits of the rows,
    operands of the epilogue, and the result.

    Parameters
    ----------
    rows : int
    vectors : sequence of int
        Numbers of the vectors of the tile.
    width : int
        Vectors of a tile.
    used : sequence of int
        For each vector, the number of columns that exist.
    steps : sequence of str
        Steps of the epilogue.
    """

    def __init__(
        self,
        name: str,
        product: ScaledProduct,
        digits: int,
        rows: int,
        vectors: Sequence[int],
        width: int,
        used: Sequence[int],
        steps: Sequence[str] = (),
    ) -> None:
        self.product, self.digits, self.rows, self.vectors, self.width = product, digits, rows, vectors, width
        lanes = product.lanes
        self.code = code = LlvmCode(lanes, "float32", "add")
        self.bytes, self.shorts, self.integers = (f"<{lanes * 4} x i8>", f"<{lanes * 2} x i16>", f"<{lanes} x i32>")
        more = [step for step in steps if STEP_OPERANDS[step] is not None]
        start_function(code, name, 4 + product.has_zeros + len(more), spills=False)
        kinds = ["i8", "float", *["i8"] * product.has_zeros, "i32", *["float"] * (1 + len(more))]
        bases = [code.emit(f"getelementptr {kind}, ptr %p{at}, i64 %o{at}") for at, kind in enumerate(kinds)]
        self.weights, self.scales = bases[:2]
        self.zeros = bases[2] if product.has_zeros else ""
        self.words, *operands, self.result = bases[2 + product.has_zeros :]
        self.tiles = [(row, vector) for row in range(rows) for vector in vectors]
        parts, is_dot = product.digit_words // product.words, product.instruction == "vpdpbusd"
        unpacked, joined = 1 if is_dot and product.bits == 8 else 3, rows * (2 * digits + 1) / product.words
        operations = unpacked + parts * rows * digits * (1 if is_dot else 2) + joined
        self.prefetches = operations * _LINE_BYTES / (4 * lanes) > _MOST_WAITING
        # A scale of a whole column is applied after the loop.
        runs = product.group // product.run if product.group < product.depth or product.group == product.run else 1
        self.is_whole = product.group == product.depth and product.group > product.run
        start = ["zeroinitializer"] * len(self.tiles)
        trips = product.runs // runs
        sums = Loops(code).over("0", str(trips), "1", start, lambda place, state: self._group(place, state, runs))
        if self.is_whole:
            scaled = []
            for (_, vector), value in zip(self.tiles, sums, strict=True):
                scaled.append(code.binary("mul", value, self._scale("0", vector)))
            sums = scaled
        for (row, vector), value in zip(self.tiles, sums, strict=True):
            offset = row * product.columns + vector * lanes
            pointer = code.address(self.result, "float32", offset)
            store_finished(code, steps, operands, value, vector * lanes, offset, pointer, used[vector])
        self.function = finish_function(code)

    def _scale(self, group: str, vector: int) -> str:
        """Return the scales of a vector of columns in a group."""
        code = self.code
        start = code.emit(f"mul i64 {group}, {self.width * code.lanes}")
        base = code.emit(f"getelementptr float, ptr {self.scales}, i64 {start}")
        offset = 4 * vector * code.lanes
        if self.prefetches and offset % _LINE_BYTES == 0 and not self.is_whole:
            ahead_bytes = self.product.ahead_bytes // 4
            code.prefetch(code.address(base, "int8", offset + ahead_bytes), to_write=False)
        return code.load_vector(code.address(base, "float32", vector * code.lanes), "float32", 1, code.lanes)

    def _zero(self, group: str, vector: int) -> str:
        """Return minus the number that is subtracted from weights, for a vector of columns in a group."""
        code, product = self.code, self.product
        start = code.emit(f"mul i64 {group}, {self.width * code.lanes}")
        base = code.emit(f"getelementptr i8, ptr {self.zeros}, i64 {start}")
        dtype = "uint8" if product.bits == 4 else "int8"
        zero = code.load_vector(code.address(base, "int8", vector * code.lanes), dtype, 1, code.lanes)
        if product.offset:
            zero = code.binary("add", zero, code.constant(float(product.offset)))
        return code.binary("sub", code.constant(0.0), zero)

    def _group(self, group: str, state: list[str], runs: int) -> list[str]:
        """Write some runs that share scales. Return the sums after them."""
        code, product = self.code, self.product
        first = code.emit(f"mul i64 {group}, {runs}") if runs > 1 else group
        sums = list(state) if self.is_whole else [""] * len(self.tiles)
        row_words, run_words = product.row_words(self.digits), self.digits * product.digit_words + 2
        run_bytes = product.words * 4 * code.lanes * self.width
        words = code.emit(f"getelementptr i32, ptr {self.words}, i64 {code.emit(f'mul i64 {first}, {run_words}')}")
        weights = code.emit(f"getelementptr i8, ptr {self.weights}, i64 {code.emit(f'mul i64 {first}, {run_bytes}')}")
        zeros = [self._zero("0" if self.is_whole else group, v) for v in self.vectors] if product.has_zeros else []
        for run in range(runs):
            row_starts = [row * row_words + run * run_words for row in range(self.rows)]
            numbers = self._run(weights, run * run_bytes, words, row_starts)
            behind = self.digits * product.digit_words
            for row in range(self.rows):
                power = self._element(words, row_starts[row] + behind)
                more = self._element(words, row_starts[row] + behind + 1) if product.offset or product.has_zeros else ""
                for number, vector in enumerate(self.vectors):
                    tile = self.tiles.index((row, vector))
                    total = sums[tile]
                    if more and product.has_zeros:
                        total = (
                            code.multiply_add(zeros[number], more, total)
                            if total
                            else code.binary("mul", zeros[number], more)
                        )
                    elif more:
                        total = code.binary("add", total, more) if total else more
                    dot = numbers[tile]
                    sums[tile] = code.multiply_add(dot, power, total) if total else code.binary("mul", dot, power)
        if self.is_whole:
            return sums
        scales = {vector: self._scale(group, vector) for vector in self.vectors}
        return [
            code.multiply_add(sums[tile], scales[vector], state[tile]) for tile, (_, vector) in enumerate(self.tiles)
        ]

    def _element(self, words: str, index: int) -> str:
        return self.code.load_vector(self.code.address(words, "float32", index), "float32", 0, self.code.lanes)

    def _digit(self, words: str, index: int, kind: str) -> str:
        """Return a word of digits in all lanes."""
        code = self.code
        word = code.emit(f"load i32, ptr {code.address(words, 'float32', index)}, align 4")
        return code.emit(f"bitcast {self.integers} {code.splat(word, 'i32')} to {kind}")

    def _run(self, weights: str, start: int, words: str, row_starts: Sequence[int]) -> list[str]:
        """Return the products of a run by tile, as float32 numbers with integer values."""
        code, product = self.code, self.product
        sums: dict[tuple[int, int], str] = {}  # by tile and digit
        pitch = 4 * code.lanes * self.width
        for word in range(product.words):
            packed = {}
            for vector in self.vectors:
                offset = start + word * pitch + vector * 4 * code.lanes
                pointer = code.address(weights, "int8", offset)
                packed[vector] = code.emit(f"load {self.bytes}, ptr {pointer}, align 1")
                if self.prefetches and offset % _LINE_BYTES == 0:
                    code.prefetch(code.address(pointer, "int8", product.ahead_bytes), to_write=False)
            parts = product.digit_words // product.words
            for part in range(parts):
                if len(self.tiles) * self.digits > _FENCED and sums:
                    held = self.shorts if product.instruction == "maddubs" else self.integers
                    if len(sums) <= product.registers - 2:
                        (words,), kept = code.holding(held).fence([words], [*sums.values()], _REGISTER)
                        sums = dict(zip(sums, kept, strict=True))
                values = {vector: self._unpack(one, part) for vector, one in packed.items()}
                for digit in range(self.digits):
                    for row in range(self.rows):
                        kind = self.shorts if product.digit_bits == 16 else self.bytes
                        index = row_starts[row] + digit * product.digit_words + word * parts + part
                        digit_word = self._digit(words, index, kind)
                        for vector in self.vectors:
                            key = self.tiles.index((row, vector)), digit
                            sums[key] = self._multiply(values[vector], digit_word, sums.get(key, ""))
        return [self._join([sums[tile, digit] for digit in range(self.digits)]) for tile in range(len(self.tiles))]

    def _splat(self, number: int, bits: int) -> str:
        return same_integers(number, self.code.lanes * 32 // bits, bits)

    def _unpack(self, packed: str, part: int) -> str:
        """Return a part of a vector of words in the form that the product uses. Lower halves come first."""
        code, product = self.code, self.product
        if product.bits == 8 and product.digit_bits == 8:
            return code.emit(f"xor {self.bytes} {packed}, {self._splat(-128, 8)}")
        pairs = code.emit(f"bitcast {self.bytes} {packed} to {self.shorts}")
        if product.bits == 8:
            pairs = pairs if part else code.emit(f"shl {self.shorts} {pairs}, {self._splat(8, 16)}")
            return code.emit(f"ashr {self.shorts} {pairs}, {self._splat(8, 16)}")
        if part:
            shifted = code.emit(f"lshr {self.shorts} {pairs}, {self._splat(4, 16)}")
            packed = code.emit(f"bitcast {self.shorts} {shifted} to {self.bytes}")
        return code.emit(f"and {self.bytes} {packed}, {self._splat(15, 8)}")

    def _multiply(self, weights: str, digits: str, sums: str) -> str:
        """Return sums plus the products of a word of each column, in the integers of the instruction."""
        code, product = self.code, self.product
        bits = 32 * code.lanes
        if product.instruction == "vpdpbusd":
            arguments = [(self.integers, sums or "zeroinitializer"), (self.bytes, weights), (self.bytes, digits)]
            return code.call(self.integers, f"llvm.x86.avx512.vpdpbusd.{bits}", arguments)
        if product.instruction == "maddwd":
            products = self._pairs(weights, digits)
            return code.emit(f"add {self.integers} {sums}, {products}") if sums else products
        name = {128: "ssse3.pmadd.ub.sw.128", 256: "avx2.pmadd.ub.sw", 512: "avx512.pmaddubs.w.512"}[bits]
        products = code.call(self.shorts, f"llvm.x86.{name}", [(self.bytes, weights), (self.bytes, digits)])
        return code.emit(f"add {self.shorts} {sums}, {products}") if sums else products

    def _pairs(self, left: str, right: str) -> str:
        """Return sums of two 16-bit products each."""
        bits = 32 * self.code.lanes
        name = {128: "sse2.pmadd.wd", 256: "avx2.pmadd.wd", 512: "avx512.pmaddw.d.512"}[bits]
        return self.code.call(self.integers, f"llvm.x86.{name}", [(self.shorts, left), (self.shorts, right)])

    def _join(self, digits: list[str]) -> str:
        """Return the sums of digits as float32 numbers."""
        code, product = self.code, self.product

        def number(value: str) -> str:
            return code.emit(f"sitofp {self.integers} {value} to {code.vector}")

        if product.digit_bits == 16:
            total = number(digits[0])
            if len(digits) == 1:
                return total
            return code.multiply_add(number(digits[1]), code.constant(2.0**-_SHIFT), total)
        is_short = product.instruction == "maddubs"
        if is_short:
            factors = [1, 256, 1][: len(digits)]
            digits = [self._pairs(one, self._splat(by, 16)) for one, by in zip(digits, factors, strict=True)]
        if len(digits) == 1:
            return number(digits[0])
        middle = digits[1] if is_short else code.emit(f"shl {self.integers} {digits[1]}, {self._splat(8, 32)}")
        low = number(code.emit(f"add {self.integers} {middle}, {digits[2]}"))
        return code.multiply_add(number(digits[0]), code.constant(65536.0), low)
