"""A writer of LLVM IR: names, constants, vector loads and stores, conversions, arithmetic."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

from anatune.core.hardware.dot import HALF_SUMS, WIDENED
from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.emit.llvm_types import LLVM_TYPE, float_text, lane_mask, same_integers, suffix, write_size

__all__ = ["LLVM_TYPE", "LlvmCode", "lane_mask"]

_STACK_ALIGNMENT = 16
"""Alignment of the stack that every caller guarantees, bytes. Source: System V ABI of x86-64; AAPCS64."""
_DOTS = {
    "vdpbf16ps": ("avx512bf16.dpbf16ps", "bfloat", 2),
    "vpdpbusd": ("avx512.vpdpbusd", "i8", 4),
    "vpdpbssd": ("avx2.vpdpbssd", "i8", 4),
    "vfmaddph": ("fmuladd", "half", 2),
    "vpmaddwd": ("avx2.pmadd.wd", "i16", 2),
}
"""Instruction -> (LLVM's name without the vector's bits, type of its operands' elements, number of them for each lane).
Source: LLVM 22, IntrinsicsX86.td (before, operands were <16 x i32>, which LLVM still reads). VFMADDPH has no intrinsic:
it is the multiply-add of halves. VPMADDWD's name contains the bits, and has another form for 512 of them."""


class LlvmCode:
    """The lines of one function, with fresh names, and the intrinsics that it needs.

    Parameters
    ----------
    lanes : int
        Number of elements of a vector.
    accumulator : str
        Dtype of all arithmetic: loads widen to it, stores narrow from it.
    body : str
        The workload's statement, see `Workload.body`.
    rounds : bool
        Whether the processor has an instruction (VCVTNEPS2BF16) that rounds to bfloat16; numbers below the smallest
        normal one become 0.
    """

    def __init__(self, lanes: int, accumulator: str, body: str, *, rounds: bool = False) -> None:
        self.lanes = lanes
        self.body = body
        self.rounds = rounds
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.highest = ""
        """Value of `highest_bits`, if the function has one."""
        self._names = itertools.count(1)
        self.accumulator = accumulator
        self.scalar = LLVM_TYPE[accumulator]
        self.vector = f"<{lanes} x {self.scalar}>"

    @property
    def is_integer(self) -> bool:
        """True if all arithmetic is on integers."""
        return self.scalar.startswith("i")

    def of(self, accumulator: str) -> LlvmCode:
        """Return a view of the same function with arithmetic in another dtype."""
        if accumulator == self.accumulator:
            return self
        other = LlvmCode(self.lanes, accumulator, self.body, rounds=self.rounds)
        other.lines, other.declared, other._names = self.lines, self.declared, self._names
        return other

    def holding(self, vector: str) -> LlvmCode:
        """Return a view of the same function with values of the LLVM type `vector`."""
        other = copy.copy(self)
        other.vector = vector
        return other

    def short(self, lanes: int) -> LlvmCode:
        """Return a view of the same function with vectors of `lanes` lanes."""
        other = self.holding(f"<{lanes} x {self.scalar}>")
        other.lanes = lanes
        return other

    def name(self) -> str:
        """Return a fresh name."""
        return f"%v{next(self._names)}"

    def emit(self, text: str) -> str:
        """Append ``%name = text`` and return the name."""
        name = self.name()
        self.line(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        """Append one line."""
        self.lines.append(text)

    def call(self, result: str, function: str, arguments: Sequence[tuple[str, str]], flags: str = "") -> str:
        """Append a call of an intrinsic, with fast-math flags, and return the name of its value."""
        types = ", ".join(kind for kind, _ in arguments)
        self.declared.add(f"declare {result} @{function}({types})")
        text = f"{flags} {result}" if flags else result
        return self.emit(f"call {text} @{function}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    def call_void(self, function: str, arguments: Sequence[tuple[str, str]]) -> None:
        """Append a call of an intrinsic without a value."""
        types = ", ".join(kind for kind, _ in arguments)
        self.declared.add(f"declare void @{function}({types})")
        self.line(f"  call void @{function}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    def align_frame(self, vector_bytes: int) -> None:
        """Align the function's stack frame to a vector, so that no spilled vector crosses a cache line or a page.

        LLVM aligns spills only if it knows before register allocation that the frame must be aligned. A vector on the
        stack that has to stay tells it so; the inline assembly that keeps it is empty. Source: a tile of 28
        accumulators and 18 steps that spills five took 1.92 ms, and up to 3.64 if one of them crossed a page; an 11x3
        tile of 26 spills ran at 82 or 38 GFLOP/s depending on the caller's stack pointer modulo 32 (Zen 4, AVX-512;
        LLVM of TVM 0.27).
        """
        if vector_bytes <= _STACK_ALIGNMENT:
            return
        kind = f"<{vector_bytes} x i8>"
        slot = self.emit(f"alloca {kind}, align {vector_bytes}")
        self.line(f'  call void asm sideeffect "", "=*m"(ptr elementtype({kind}) {slot})')

    def fence(self, pointers: Sequence[str], vectors: Sequence[str], register: str) -> tuple[list[str], list[str]]:
        """Return the same addresses and vectors in a form that LLVM cannot see through.

        LLVM then neither moves work from one step to another, nor keeps elements that several steps read: both would
        take registers that the accumulators need, and cause spills.

        Parameters
        ----------
        vectors : sequence of str
            Values that are in registers at this point.
        register : str
            Letter of the vector registers in constraints of inline assembly.
        """
        values = [*pointers, *vectors]
        types = ["ptr"] * len(pointers) + [self.vector] * len(vectors)
        outputs = ["=r"] * len(pointers) + [f"={register}"] * len(vectors)
        constraints = ",".join([*outputs, *(str(i) for i in range(len(values))), "~{memory}"])
        inputs = ", ".join(f"{kind} {value}" for kind, value in zip(types, values, strict=True))
        if len(values) == 1:
            return [self.emit(f'call ptr asm sideeffect "", "{constraints}"({inputs})')], []
        kind = "{ " + ", ".join(types) + " }"
        whole = self.emit(f'call {kind} asm sideeffect "", "{constraints}"({inputs})')
        parts = [self.emit(f"extractvalue {kind} {whole}, {i}") for i in range(len(values))]
        return parts[: len(pointers)], parts[len(pointers) :]

    def prefetch(self, pointer: str, *, to_write: bool, level: int = 1) -> None:
        """Prefetch a cache line into level `level` (1 or 2); harmless for any address."""
        flags = [("i32", str(int(to_write))), ("i32", str(4 - level)), ("i32", "1")]
        self.call_void("llvm.prefetch.p0", [("ptr", pointer), *flags])

    def address(self, pointer: str, dtype: str, offset: int) -> str:
        """Return the address that is `offset` elements further."""
        if offset == 0:
            return pointer
        return self.emit(f"getelementptr {LLVM_TYPE[dtype]}, ptr {pointer}, i64 {write_size(offset, self.emit)}")

    def splat(self, value: str, scalar: str | None = None, lanes: int | None = None) -> str:
        """Return a vector of equal elements."""
        scalar, lanes = scalar or self.scalar, lanes or self.lanes
        kind = f"<{lanes} x {scalar}>"
        first = self.emit(f"insertelement {kind} poison, {scalar} {value}, i64 0")
        return self.emit(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def constant(self, value: float) -> str:
        """Return a splat constant of the accumulator's type."""
        return "<" + ", ".join(f"{self.scalar} {self.number(value)}" for _ in range(self.lanes)) + ">"

    def number(self, value: float) -> str:
        """Return a number of the accumulator's type."""
        return str(int(value)) if self.is_integer else float_text(value)

    # -- memory ----------------------------------------------------------------------------------------------

    def convert(self, value: str, dtype: str, lanes: int) -> str:
        """Return loaded elements converted to the accumulator's type."""
        source, target = LLVM_TYPE[dtype], self.scalar
        if source == target and dtype != "bfloat16":
            return value

        def kind(scalar: str) -> str:
            return f"<{lanes} x {scalar}>" if lanes > 1 else scalar

        if dtype == "float16":
            return self.emit(f"fpext {kind('half')} {value} to {kind('float')}")
        if dtype == "bfloat16":
            wide = self.emit(f"zext {kind('i16')} {value} to {kind('i32')}")
            shifted = self.emit(f"shl {kind('i32')} {wide}, {same_integers(16, lanes) if lanes > 1 else '16'}")
            return self.emit(f"bitcast {kind('i32')} {shifted} to {kind('float')}")
        extend = "zext" if dtype == "uint8" else "sext"
        wide = self.emit(f"{extend} {kind('i8')} {value} to {kind(target if self.is_integer else 'i32')}")
        return wide if self.is_integer else self.emit(f"sitofp {kind('i32')} {wide} to {kind(target)}")

    def narrow(self, value: str, dtype: str, lanes: int) -> str:
        """Return accumulated values converted to the result's type."""
        if LLVM_TYPE[dtype] == self.scalar:
            return value
        wide, small = f"<{lanes} x {self.scalar}>", f"<{lanes} x {LLVM_TYPE[dtype]}>"
        if dtype == "float16":
            return self.emit(f"fptrunc {wide} {value} to {small}")
        if dtype == "bfloat16" and self.rounds:
            halves = f"<{lanes} x bfloat>"
            rounded = self.call(halves, f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}", [(wide, value)])
            return self.emit(f"bitcast {halves} {rounded} to {small}")
        if dtype == "bfloat16":  # round to nearest even; a NaN keeps its sign and becomes quiet
            integers = f"<{lanes} x i32>"
            bits = self.emit(f"bitcast {wide} {value} to {integers}")
            high = self.emit(f"lshr {integers} {bits}, {same_integers(16, lanes)}")
            odd = self.emit(f"and {integers} {high}, {same_integers(1, lanes)}")
            bias = self.emit(f"add {integers} {odd}, {same_integers(0x7FFF, lanes)}")
            rounded = self.emit(f"add {integers} {bits}, {bias}")
            shifted = self.emit(f"lshr {integers} {rounded}, {same_integers(16, lanes)}")
            quiet = self.emit(f"or {integers} {high}, {same_integers(0x40, lanes)}")
            is_nan = self.emit(f"fcmp uno {wide} {value}, {value}")
            chosen = self.emit(f"select <{lanes} x i1> {is_nan}, {integers} {quiet}, {integers} {shifted}")
            return self.emit(f"trunc {integers} {chosen} to {small}")
        if self.scalar == "float":
            value, wide = self.emit(f"fptosi {wide} {value} to <{lanes} x i32>"), f"<{lanes} x i32>"
        return self.emit(f"trunc {wide} {value} to {small}")

    def load_vector(self, pointer: str, dtype: str, stride: int, used: int | str) -> str:
        """Load `lanes` elements with a stride, of which the first `used` exist; a text is their mask."""
        lanes, scalar = self.lanes, LLVM_TYPE[dtype]
        kind = f"<{lanes} x {scalar}>"
        if stride == 0:
            element = self.emit(f"load {scalar}, ptr {pointer}, align {DTYPE_BYTES[dtype]}")
            return self.splat(self.convert(element, dtype, 1))
        if stride == 1 and used == lanes:
            value = self.emit(f"load {kind}, ptr {pointer}, align {DTYPE_BYTES[dtype]}")
        elif stride == 1 or isinstance(used, str):
            value = self._masked_load(pointer, dtype, stride, lane_mask(used, lanes))
        else:
            value = "zeroinitializer"
            for lane in range(used):
                address = self.address(pointer, dtype, lane * stride)
                element = self.emit(f"load {scalar}, ptr {address}, align {DTYPE_BYTES[dtype]}")
                value = self.emit(f"insertelement {kind} {value}, {scalar} {element}, i64 {lane}")
        return self.convert(value, dtype, lanes)

    def _masked_load(self, pointer: str, dtype: str, stride: int, mask: str) -> str:
        """Load elements with a stride in the lanes under `mask`; the other lanes are zero."""
        lanes, scalar = self.lanes, LLVM_TYPE[dtype]
        kind, function, places = f"<{lanes} x {scalar}>", f"load.v{lanes}{suffix(dtype)}.p0", ("ptr", pointer)
        if stride != 1:
            offsets = ", ".join(f"i64 {lane * stride}" for lane in range(lanes))
            pointers = self.emit(f"getelementptr {scalar}, ptr {pointer}, <{lanes} x i64> <{offsets}>")
            function, places = f"gather.v{lanes}{suffix(dtype)}.v{lanes}p0", (f"<{lanes} x ptr>", pointers)
        more = [("i32", str(DTYPE_BYTES[dtype])), (f"<{lanes} x i1>", mask), (kind, "zeroinitializer")]
        return self.call(kind, f"llvm.masked.{function}", [places, *more])

    def load_groups(self, pointer: str, dtype: str, group: int, used: int, *, is_vector: bool) -> str:
        """Load a group of neighbours for each lane, or one group for all lanes, of which the first `used` exist.

        The value is a vector of 32-bit lanes, see `dot`; pairs of 8-bit elements become 16 bits each.
        """
        if is_vector and group * DTYPE_BYTES[dtype] < DTYPE_BYTES["int32"]:
            kind, extend = f"<{self.lanes * group} x i8>", "zext" if dtype == "uint8" else "sext"
            value = self.emit(f"load {kind}, ptr {pointer}, align 1")
            value = self.emit(f"{extend} {kind} {value} to <{self.lanes * group} x i16>")
            return self.emit(f"bitcast <{self.lanes * group} x i16> {value} to <{self.lanes} x i32>")
        if is_vector:
            return self.emit(f"load <{self.lanes} x i32>, ptr {pointer}, align {DTYPE_BYTES[dtype]}")
        if used == group:
            return self.splat(self.emit(f"load i32, ptr {pointer}, align {DTYPE_BYTES[dtype]}"), "i32")
        bits, value = 8 * DTYPE_BYTES[dtype], "0"
        for index in range(used):
            element = self.emit(f"load i{bits}, ptr {self.address(pointer, dtype, index)}, align {DTYPE_BYTES[dtype]}")
            wide = self.emit(f"zext i{bits} {element} to i32")
            value = self.emit(f"or i32 {value}, {self.emit(f'shl i32 {wide}, {bits * index}')}") if index else wide
        return self.splat(value, "i32")

    def highest_bits(self) -> str:
        """Return groups of 8-bit elements with the highest bit of each set, in a form that LLVM cannot see through.

        LLVM 22 hangs in instruction selection for a known vector, a broadcast and `flip`.
        """
        kind = f"<{self.lanes} x i32>"
        return self.emit(f'call {kind} asm "", "=x,0"({kind} {same_integers(-2139062144, self.lanes)})')

    def flip(self, groups: str, highest: str) -> str:
        """Return groups of 8-bit elements with the bits `highest` flipped: signed elements plus 128, as unsigned."""
        return self.emit(f"xor <{self.lanes} x i32> {groups}, {highest}")

    def store_vector(self, value: str, pointer: str, dtype: str, used: int | str) -> None:
        """Store the first `used` lanes of an accumulator contiguously, or the lanes under a mask."""
        lanes, kind = self.lanes, f"<{self.lanes} x {LLVM_TYPE[dtype]}>"
        value = self.narrow(value, dtype, lanes)
        if used == lanes:
            self.line(f"  store {kind} {value}, ptr {pointer}, align {DTYPE_BYTES[dtype]}")
        elif isinstance(used, int) and LLVM_TYPE[dtype] != self.scalar:
            # LLVM 20 turns a masked store of one truncated lane into a store of the untruncated one
            self.store_lanes(value, pointer, dtype, 1, used)
        else:
            places = [(kind, value), ("ptr", pointer), ("i32", str(DTYPE_BYTES[dtype]))]
            places.append((f"<{lanes} x i1>", lane_mask(used, lanes)))
            self.call_void(f"llvm.masked.store.v{lanes}{suffix(dtype)}.p0", places)

    def store_lanes(self, value: str, pointer: str, dtype: str, stride: int, used: int) -> None:
        """Store the first `used` elements of a vector of `dtype`, `stride` elements apart."""
        kind = LLVM_TYPE[dtype]
        for lane in range(used):
            element = self.emit(f"extractelement <{self.lanes} x {kind}> {value}, i64 {lane}")
            address = self.address(pointer, dtype, lane * stride)
            self.line(f"  store {kind} {element}, ptr {address}, align {DTYPE_BYTES[dtype]}")

    def transpose(self, rows: list[str]) -> list[str]:
        """Return the columns of up to `lanes` vectors: column l holds lane l of every row."""
        lanes, distance = self.lanes, self.lanes // 2
        values = rows + ["poison"] * (lanes - len(rows))
        while distance:
            following = list(values)
            for i in range(lanes):
                if i & distance:
                    continue
                low, high = values[i], values[i + distance]
                if low == high == "poison":
                    continue
                first = [j if not j & distance else lanes + j - distance for j in range(lanes)]
                second = [j + distance if not j & distance else lanes + j for j in range(lanes)]
                following[i] = self.shuffle(low, high, first)
                following[i + distance] = self.shuffle(low, high, second)
            values = following
            distance //= 2
        return values

    def shuffle(self, low: str, high: str, order: Sequence[int]) -> str:
        """Return elements of two vectors, counted through both."""
        mask = ", ".join(f"i32 {place}" for place in order)
        return self.emit(f"shufflevector {self.vector} {low}, {self.vector} {high}, <{len(order)} x i32> <{mask}>")

    # -- arithmetic ------------------------------------------------------------------------------------------

    def binary(self, operation: str, left: str, right: str) -> str:
        """Append an element-wise operation ("add", "mul") of the accumulator's type."""
        return self.emit(f"{'' if self.is_integer else 'f'}{operation} {self.vector} {left}, {right}")

    def divide(self, value: str, count: int) -> str:
        """Return sums divided by `count`; integers are rounded towards zero."""
        if self.scalar == "i32":
            return self.emit(f"sdiv {self.vector} {value}, {self.constant(count)}")
        return self.binary("mul", value, self.constant(1.0 / count))

    def maximum(self, left: str, right: str) -> str:
        """Return the element-wise maximum, NaN if one is NaN, as in PyTorch; the sign of zero does not matter."""
        arguments = [(self.vector, left), (self.vector, right)]
        if self.scalar == "i32":
            return self.call(self.vector, f"llvm.smax.v{self.lanes}i32", arguments)
        return self.call(self.vector, f"llvm.maximum.v{self.lanes}f32", arguments, "nsz")

    def combine(self, accumulator: str | None, values: list[str]) -> str:
        """Return the value of one statement of the body; the accumulator is None without a reduction."""
        body = self.body
        if body == "multiply_add" and accumulator is not None and len(values) > 1:
            product = values[0]
            for value in values[1:-1]:
                product = self.binary("mul", product, value)
            return self.multiply_add(product, values[-1], accumulator)
        value = values[0]
        for other in values[1:]:
            if body in ("multiply_add", "multiply"):
                value = self.binary("mul", value, other)
            elif body == "max":
                value = self.maximum(value, other)
            else:
                value = self.binary("add", value, other)
        if body == "relu":
            value = self.maximum(value, self.constant(0.0))
        if accumulator is None:
            return value
        return self.maximum(accumulator, value) if body == "max" else self.binary("add", accumulator, value)

    def to_float(self, value: str) -> str:
        """Return int32 values as float32, rounded to nearest even; other accumulators are returned unchanged."""
        return self.emit(f"sitofp {self.vector} {value} to <{self.lanes} x float>") if self.scalar == "i32" else value

    def round_product(self, value: str) -> str:
        """Return a float32 product that is rounded before anything is added, because LLVM would fuse the two."""
        return self.call(self.vector, f"llvm.arithmetic.fence.v{self.lanes}f32", [(self.vector, value)])

    def quantise(self, value: str, dtype: str, zero_point: int) -> str:
        """Return float32 values rounded to integers (ties to even) plus `zero_point`, saturated to `dtype`, as int32.

        Values are clamped before they are rounded; the bounds are integers, so that the order does not matter.
        """
        floats, integers = f"<{self.lanes} x float>", f"<{self.lanes} x i32>"
        low, high = (bound - zero_point for bound in INTEGER_RANGE[dtype])
        for relation, bound in (("ogt", self.constant(low)), ("olt", self.constant(high))):
            inside = self.emit(f"fcmp {relation} {floats} {value}, {bound}")  # one instruction, unlike llvm.maxnum
            value = self.emit(f"select <{self.lanes} x i1> {inside}, {floats} {value}, {floats} {bound}")
        value = self.call(floats, f"llvm.rint.v{self.lanes}f32", [(floats, value)])
        value = self.emit(f"fptosi {floats} {value} to {integers}")
        return self.emit(f"add {integers} {value}, {self.of('int32').constant(zero_point)}") if zero_point else value

    def multiply_add(self, left: str, right: str, accumulator: str) -> str:
        """Return ``left * right + accumulator``, fused if the processor can."""
        if self.is_integer:
            return self.binary("add", self.binary("mul", left, right), accumulator)
        arguments = [(self.vector, left), (self.vector, right), (self.vector, accumulator)]
        return self.call(self.vector, f"llvm.fmuladd.v{self.lanes}f32", arguments)

    def dot(self, instruction: str, accumulator: str, values: Sequence[str]) -> str:
        """Return the accumulator plus the products of two vectors of groups (`load_groups`), summed in each lane."""
        name, element, group = _DOTS[instruction]
        bits = 32 * self.lanes
        kind = f"<{self.lanes * group} x {element}>"
        operands = [(kind, self.emit(f"bitcast <{self.lanes} x i32> {value} to {kind}")) for value in values]
        if instruction in HALF_SUMS:  # each lane of the accumulator is `group` sums
            sums = self.emit(f"bitcast {self.vector} {accumulator} to {kind}")
            added = self.call(kind, f"llvm.{name}.v{self.lanes * group}f16", [*operands, (kind, sums)])
            return self.emit(f"bitcast {kind} {added} to {self.vector}")
        if instruction in WIDENED:  # without an accumulator: the sums of the products are added to it
            name = name if bits == 256 else f"avx512.pmaddw.d.{bits}"
            return self.binary("add", accumulator, self.call(self.vector, f"llvm.x86.{name}", operands))
        return self.call(self.vector, f"llvm.x86.{name}.{bits}", [(self.vector, accumulator), *operands])

    def whole_sums(self, value: str) -> str:
        """Return float32 sums of the two halves in each lane of sums that `dot` keeps in half precision."""
        lanes = self.lanes
        integers, halves = f"<{lanes} x i32>", f"<{2 * lanes} x half>"
        both = self.emit(f"bitcast {self.vector} {value} to {integers}")
        upper = self.emit(f"lshr {integers} {both}, {same_integers(16, lanes)}")
        first, second = (self.emit(f"bitcast {integers} {bits} to {halves}") for bits in (both, upper))
        added = self.emit(f"bitcast {halves} {self.emit(f'fadd {halves} {first}, {second}')} to {integers}")
        lower = self.emit(f"trunc {integers} {added} to <{lanes} x i16>")
        return self.convert(self.emit(f"bitcast <{lanes} x i16> {lower} to <{lanes} x half>"), "float16", lanes)

    def neutral(self) -> str:
        """Return the initial value of accumulators."""
        if self.body != "max":
            return "zeroinitializer"
        return self.constant(-(2**31) if self.scalar == "i32" else float("-inf"))

    def horizontal(self, value: str) -> str:
        """Return the sum (or maximum) of all lanes."""
        lanes = self.lanes
        if self.scalar == "i32":
            which = "smax" if self.body == "max" else "add"
            return self.call("i32", f"llvm.vector.reduce.{which}.v{lanes}i32", [(self.vector, value)])
        if self.body == "max":
            return self.call("float", f"llvm.vector.reduce.fmaximum.v{lanes}f32", [(self.vector, value)], "nsz")
        self.declared.add(f"declare float @llvm.vector.reduce.fadd.v{lanes}f32(float, {self.vector})")
        return self.emit(f"call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(float 0.0, {self.vector} {value})")
