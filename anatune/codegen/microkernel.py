"""Microkernels as LLVM IR: a register tile of accumulators and the reduction loops next to it.

The accumulators are phi nodes, so that LLVM keeps them in registers; loops carry `llvm.loop.unroll.disable`, so that
it cannot unroll what was chosen on purpose. One vector operand row is loaded for each accumulated row, or shared by
all; broadcast operands are loaded once a row and step.
Source: facts of TVM 0.27 (textual LLVM IR through the loop annotation ``pragma_import_llvm``); [BLIS] Sec. 3.

Notation
--------
row : one combination of the register factors of the spatial axes that are not vectorised.
vector : `lanes` neighbours along the SIMD axis; the last one of a tile may be partly used.
step : one unrolled iteration of the reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anatune.errors import BuildError

__all__ = ["EpilogueOperand", "Microkernel", "Operand", "Result", "microkernel_ir", "module_ir"]

_LLVM_TYPE = {"float32": "float", "float16": "half", "bfloat16": "i16", "int8": "i8", "int32": "i32"}
_ALIGNED = 4


@dataclass(frozen=True)
class Operand:
    """How one operand is read.

    Attributes
    ----------
    dtype : str
    lane_stride : int
        Elements between lanes: 0 broadcasts one element, 1 loads a vector, others gather.
    rows : tuple of int
        Address of each row.
    loops : tuple of int
        Stride of each inner loop, outer to inner.
    steps : tuple of int
        Address of each unrolled step.
    masked : bool
        Lanes that are not used may lie outside the buffer.
    """

    dtype: str
    lane_stride: int
    rows: tuple[int, ...]
    loops: tuple[int, ...]
    steps: tuple[int, ...]
    masked: bool


@dataclass(frozen=True)
class Result:
    """How the result is written; `contiguous` rows lie next to each other in memory, in groups (see `_store`)."""

    dtype: str
    lane_stride: int
    rows: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    """Rows that are neighbours in memory, for a transposed store; empty: element by element."""


@dataclass(frozen=True)
class EpilogueOperand:
    """Operand of a fused step: lane stride (0: one element for all lanes) and the address of each row."""

    dtype: str
    lane_stride: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Microkernel:
    """Everything that the code of one microkernel depends on."""

    name: str
    lanes: int
    size: int
    """Elements along the SIMD axis, of which the last vector may be partly used (1 or more)."""
    body: str
    accumulator: str
    operands: tuple[Operand, ...]
    result: Result
    trips: tuple[int, ...]
    """Iterations of each inner loop, outer to inner."""
    moving: tuple[int, ...] = ()
    """Inner loops whose first and last iteration are arguments (padding is left out)."""
    skipped: frozenset[tuple[int, int]] = frozenset()
    """(row, step) pairs that are left out: they meet nothing but padding."""
    num_steps: int = 1
    is_partial: bool = False
    """Sums go on from what the result holds, unless the call is the first one (flag bit 0)."""
    reduces: bool = True
    simd_reduction: bool = False
    tail: int = 0
    """SIMD reductions: lanes at and past this position of the SIMD loop are left out; 0: none."""
    tail_loops: bool = False
    """Whether the innermost loop runs along the SIMD axis (else that loop has one iteration)."""
    count: int = 1
    """Divisor of the sums ("average")."""
    epilogue: tuple[tuple[str, EpilogueOperand | None], ...] = ()
    attributes: str = field(default="", compare=False)

    @property
    def keeps_sums(self) -> bool:
        """Whether partial sums are kept in a buffer of the accumulator's dtype instead of the narrower result."""
        return self.is_partial and self.result.dtype != self.accumulator

    @property
    def num_vectors(self) -> int:
        """Vectors of the tile along the SIMD axis."""
        return 1 if self.simd_reduction else -(-self.size // self.lanes)


class _Code:
    """Lines of one function, fresh names, and the intrinsics it needs."""

    def __init__(self, kernel: Microkernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self._count = 0
        self.scalar = _LLVM_TYPE[kernel.accumulator]
        self.vector = f"<{kernel.lanes} x {self.scalar}>"

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def emit(self, text: str) -> str:
        """Append ``%name = text`` and return the name."""
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        self.lines.append(text)

    def call(self, result: str, function: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Append a call of an intrinsic and return its value's name."""
        types = ", ".join(kind for kind, _ in arguments)
        self.declared.add(f"declare {result} @{function}({types})")
        return self.emit(f"call {result} @{function}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    def call_void(self, function: str, arguments: Sequence[tuple[str, str]]) -> None:
        types = ", ".join(kind for kind, _ in arguments)
        self.declared.add(f"declare void @{function}({types})")
        self.line(f"  call void @{function}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    def opaque(self, pointer: str) -> str:
        """Return the same address in a way that LLVM cannot see through.

        It then neither moves loads of later steps forward nor keeps elements that several steps read: both would take
        registers that the accumulators need, and spill.
        """
        return self.emit(f'call ptr asm sideeffect "", "=r,0,~{{memory}}"(ptr {pointer})')

    def address(self, pointer: str, dtype: str, offset: int) -> str:
        if offset == 0:
            return pointer
        return self.emit(f"getelementptr {_LLVM_TYPE[dtype]}, ptr {pointer}, i64 {offset}")

    def splat(self, value: str, scalar: str | None = None, lanes: int | None = None) -> str:
        scalar, lanes = scalar or self.scalar, lanes or self.kernel.lanes
        kind = f"<{lanes} x {scalar}>"
        first = self.emit(f"insertelement {kind} poison, {scalar} {value}, i64 0")
        return self.emit(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def constant(self, value: float) -> str:
        """Return a splat constant of the accumulator's type."""
        text = str(int(value)) if self.scalar == "i32" else _float_text(value)
        return "<" + ", ".join(f"{self.scalar} {text}" for _ in range(self.kernel.lanes)) + ">"

    # -- memory ----------------------------------------------------------------------------------------------

    def convert(self, value: str, dtype: str, lanes: int) -> str:
        """Return loaded elements in the accumulator's type."""
        source, target = _LLVM_TYPE[dtype], self.scalar
        if source == target and dtype != "bfloat16":
            return value
        many = lanes > 1

        def kind(scalar: str) -> str:
            return f"<{lanes} x {scalar}>" if many else scalar

        if dtype == "float16":
            return self.emit(f"fpext {kind('half')} {value} to {kind('float')}")
        if dtype == "bfloat16":
            wide = self.emit(f"zext {kind('i16')} {value} to {kind('i32')}")
            sixteen = "<" + ", ".join(["i32 16"] * lanes) + ">" if many else "16"
            shifted = self.emit(f"shl {kind('i32')} {wide}, {sixteen}")
            return self.emit(f"bitcast {kind('i32')} {shifted} to {kind('float')}")
        wide = self.emit(f"sext {kind('i8')} {value} to {kind('i32')}")
        return wide if target == "i32" else self.emit(f"sitofp {kind('i32')} {wide} to {kind(target)}")

    def narrow(self, value: str, dtype: str, lanes: int) -> str:
        """Return accumulated values in the result's type."""
        if _LLVM_TYPE[dtype] == self.scalar:
            return value
        wide, small = f"<{lanes} x {self.scalar}>", f"<{lanes} x {_LLVM_TYPE[dtype]}>"
        if dtype == "float16":
            return self.emit(f"fptrunc {wide} {value} to {small}")
        if dtype == "bfloat16":  # round to nearest even; a NaN keeps its sign and becomes quiet

            def many(number: int) -> str:
                return "<" + ", ".join([f"i32 {number}"] * lanes) + ">"

            integers = f"<{lanes} x i32>"
            bits = self.emit(f"bitcast {wide} {value} to {integers}")
            high = self.emit(f"lshr {integers} {bits}, {many(16)}")
            odd = self.emit(f"and {integers} {high}, {many(1)}")
            bias = self.emit(f"add {integers} {odd}, {many(0x7FFF)}")
            rounded = self.emit(f"add {integers} {bits}, {bias}")
            shifted = self.emit(f"lshr {integers} {rounded}, {many(16)}")
            quiet = self.emit(f"or {integers} {high}, {many(0x40)}")
            is_nan = self.emit(f"fcmp uno {wide} {value}, {value}")
            chosen = self.emit(f"select <{lanes} x i1> {is_nan}, {integers} {quiet}, {integers} {shifted}")
            return self.emit(f"trunc {integers} {chosen} to {small}")
        if self.scalar == "float":
            integer = self.emit(f"fptosi {wide} {value} to <{lanes} x i32>")
            return self.emit(f"trunc <{lanes} x i32> {integer} to {small}")
        return self.emit(f"trunc {wide} {value} to {small}")

    def load_vector(self, pointer: str, dtype: str, stride: int, used: int, mask: str | None = None) -> str:
        """Load `lanes` elements that are `stride` apart, of which the first `used` exist; or under `mask`."""
        lanes = self.kernel.lanes
        scalar = _LLVM_TYPE[dtype]
        kind = f"<{lanes} x {scalar}>"
        if stride == 0:
            element = self.emit(f"load {scalar}, ptr {pointer}, align {_align(dtype)}")
            return self.splat(self.convert(element, dtype, 1))
        if stride == 1 and used == lanes and mask is None:
            value = self.emit(f"load {kind}, ptr {pointer}, align {_align(dtype)}")
        elif stride == 1:
            value = self.call(
                kind,
                f"llvm.masked.load.v{lanes}{_suffix(dtype)}.p0",
                [
                    ("ptr", pointer),
                    ("i32", str(_align(dtype))),
                    (f"<{lanes} x i1>", mask or _lane_mask(used, lanes)),
                    (kind, "zeroinitializer"),
                ],
            )
        else:
            value = "zeroinitializer"
            for lane in range(used):
                element = self.emit(
                    f"load {scalar}, ptr {self.address(pointer, dtype, lane * stride)}, align {_align(dtype)}"
                )
                value = self.emit(f"insertelement {kind} {value}, {scalar} {element}, i64 {lane}")
        return self.convert(value, dtype, lanes)

    def store_vector(self, value: str, pointer: str, dtype: str, used: int) -> None:
        """Store the first `used` lanes of an accumulator next to each other."""
        lanes = self.kernel.lanes
        kind = f"<{lanes} x {_LLVM_TYPE[dtype]}>"
        value = self.narrow(value, dtype, lanes)
        if used == lanes:
            self.line(f"  store {kind} {value}, ptr {pointer}, align {_align(dtype)}")
        elif _LLVM_TYPE[dtype] != self.scalar:
            # LLVM 20 turns a masked store of one truncated lane into a store of the untruncated one
            self.store_lanes(value, pointer, dtype, 1, used)
        else:
            self.call_void(
                f"llvm.masked.store.v{lanes}{_suffix(dtype)}.p0",
                [
                    (kind, value),
                    ("ptr", pointer),
                    ("i32", str(_align(dtype))),
                    (f"<{lanes} x i1>", _lane_mask(used, lanes)),
                ],
            )

    def store_lanes(self, value: str, pointer: str, dtype: str, stride: int, used: int) -> None:
        """Store the first `used` elements of a vector of `dtype`, `stride` elements apart."""
        kind = _LLVM_TYPE[dtype]
        for lane in range(used):
            element = self.emit(f"extractelement <{self.kernel.lanes} x {kind}> {value}, i64 {lane}")
            address = self.address(pointer, dtype, lane * stride)
            self.line(f"  store {kind} {element}, ptr {address}, align {_align(dtype)}")

    def transpose(self, rows: list[str]) -> list[str]:
        """Return the columns of up to `lanes` vectors: column l holds lane l of every row."""
        lanes = self.kernel.lanes
        values = rows + ["poison"] * (lanes - len(rows))
        distance = lanes // 2
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
                following[i] = self._shuffle(low, high, first)
                following[i + distance] = self._shuffle(low, high, second)
            values = following
            distance //= 2
        return values

    def _shuffle(self, low: str, high: str, order: Sequence[int]) -> str:
        mask = ", ".join(f"i32 {place}" for place in order)
        return self.emit(f"shufflevector {self.vector} {low}, {self.vector} {high}, <{len(order)} x i32> <{mask}>")

    # -- arithmetic ------------------------------------------------------------------------------------------

    def binary(self, operation: str, left: str, right: str) -> str:
        prefix = "" if self.scalar == "i32" else "f"
        return self.emit(f"{prefix}{operation} {self.vector} {left}, {right}")

    def divide(self, value: str, count: int) -> str:
        """Return sums over `count` as a mean (integers: towards zero)."""
        if self.scalar == "i32":
            return self.emit(f"sdiv {self.vector} {value}, {self.constant(count)}")
        return self.binary("mul", value, self.constant(1.0 / count))

    def maximum(self, left: str, right: str) -> str:
        name = f"llvm.smax.v{self.kernel.lanes}i32" if self.scalar == "i32" else f"llvm.maxnum.v{self.kernel.lanes}f32"
        return self.call(self.vector, name, [(self.vector, left), (self.vector, right)])

    def combine(self, accumulator: str | None, values: list[str]) -> str:
        """Return one statement of the body; the accumulator is None where nothing is reduced."""
        body = self.kernel.body
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

    def multiply_add(self, left: str, right: str, accumulator: str) -> str:
        if self.scalar == "i32":
            return self.binary("add", self.binary("mul", left, right), accumulator)
        arguments = [(self.vector, left), (self.vector, right), (self.vector, accumulator)]
        return self.call(self.vector, f"llvm.fmuladd.v{self.kernel.lanes}f32", arguments)

    def neutral(self) -> str:
        if self.kernel.body != "max":
            return "zeroinitializer"
        return self.constant(-(2**31) if self.scalar == "i32" else float("-inf"))

    def horizontal(self, value: str) -> str:
        """Return the sum (or largest) of all lanes."""
        lanes = self.kernel.lanes
        if self.scalar == "i32":
            which = "smax" if self.kernel.body == "max" else "add"
            return self.call("i32", f"llvm.vector.reduce.{which}.v{lanes}i32", [(self.vector, value)])
        if self.kernel.body == "max":
            return self.call("float", f"llvm.vector.reduce.fmax.v{lanes}f32", [(self.vector, value)])
        self.declared.add(f"declare float @llvm.vector.reduce.fadd.v{lanes}f32(float, {self.vector})")
        return self.emit(f"call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(float 0.0, {self.vector} {value})")


def _align(dtype: str) -> int:
    return {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int8": 1}[dtype]


def _suffix(dtype: str) -> str:
    return {"float32": "f32", "int32": "i32", "float16": "f16", "bfloat16": "i16", "int8": "i8"}[dtype]


def _lane_mask(used: int, lanes: int) -> str:
    return "<" + ", ".join(f"i1 {int(lane < used)}" for lane in range(lanes)) + ">"


def _float_text(value: float) -> str:
    """Return a float constant as LLVM reads it: the bits of the double of the same value."""
    import struct

    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return "0x" + struct.pack(">d", single).hex().upper()


def microkernel_ir(kernel: Microkernel) -> tuple[str, set[str]]:
    """Return (the function, the declarations it needs).

    The function is ``void name(ptr operand, i64 offset, ..., ptr result, i64 offset, ptr epilogue operand, i64 offset,
    ..., i32 flags)``; offsets in elements; flags: 1 the sums go on from the result, 2 more calls will follow. Where
    `keeps_sums`, a pointer and offset of the partial sums follow the epilogue's. For each loop in `moving`, two i64
    follow the flags: its first iteration and the one past its last.
    """
    code = _Code(kernel)
    count = len(kernel.operands)
    extra = [operand for _, operand in kernel.epilogue if operand is not None]
    dtypes = [operand.dtype for operand in (*kernel.operands, kernel.result, *extra)]
    if kernel.keeps_sums:
        dtypes.append(kernel.accumulator)
    arguments = [f"ptr noalias %p{i}, i64 %o{i}" for i in range(len(dtypes))]
    arguments.append("i32 %flags")
    arguments += [f"i64 %first{level}, i64 %end{level}" for level in kernel.moving]
    code.line(f"define internal void @{kernel.name}({', '.join(arguments)}) noinline nounwind {kernel.attributes} {{")
    code.line("entry:")
    bases = [code.emit(f"getelementptr {_LLVM_TYPE[dtype]}, ptr %p{i}, i64 %o{i}") for i, dtype in enumerate(dtypes)]
    tiles = [(row, vector) for row in range(len(kernel.result.rows)) for vector in range(kernel.num_vectors)]
    start = "entry"
    first: dict[tuple[int, int], str] = {}
    if kernel.reduces:
        first = dict.fromkeys(tiles, code.neutral())
        if kernel.is_partial and not kernel.simd_reduction:
            code.line("  %bit = and i32 %flags, 1")
            code.line("  %goes_on = icmp ne i32 %bit, 0")
            code.line("  br i1 %goes_on, label %reload, label %begin")
            code.line("reload:")
            loaded = _load_result(code, *_sums(kernel, bases))
            code.line("  br label %begin")
            code.line("begin:")
            for tile in tiles:
                merged = code.emit(f"phi {code.vector} [{first[tile]}, %entry], [{loaded[tile]}, %reload]")
                first[tile] = merged
            start = "begin"
    final = _loops(code, bases[:count], first, start)
    _finish(code, bases, final)
    code.line("  ret void")
    code.line("}")
    return "\n".join(code.lines), code.declared


def _loops(code: _Code, bases: list[str], first: dict[tuple[int, int], str], start: str) -> dict[tuple[int, int], str]:
    """Emit the reduction loops and return the accumulators behind them."""
    kernel = code.kernel
    depth = len(kernel.trips)
    tiles = list(first) or [
        (row, vector) for row in range(len(kernel.result.rows)) for vector in range(kernel.num_vectors)
    ]
    if depth == 0:
        return _steps(code, bases, first, tiles, "0")
    if 0 in kernel.moving:
        bases = _advance(code, bases, 0)
    code.line("  br label %head0")
    pointers = bases
    before = first
    for level in range(depth):
        came_from = start if level == 0 else f"head{level - 1}"
        code.line(f"head{level}:")
        begin = f"%first{level}" if level in kernel.moving else "0"
        code.line(f"  %i{level} = phi i64 [{begin}, %{came_from}], [%next{level}, %latch{level}]")
        inner = []
        for i, pointer in enumerate(pointers):
            code.line(f"  %q{level}_{i} = phi ptr [{pointer}, %{came_from}], [%r{level}_{i}, %latch{level}]")
            inner.append(f"%q{level}_{i}")
        following = {}
        for row, vector in tiles:
            name = f"%c{level}_{row}_{vector}"
            code.line(
                f"  {name} = phi {code.vector} [{before[row, vector]}, %{came_from}], "
                f"[%d{level}_{row}_{vector}, %latch{level}]"
            )
            following[row, vector] = name
        pointers, before = inner, following
        if level + 1 in kernel.moving:
            pointers = _advance(code, pointers, level + 1)
        if level < depth - 1:
            code.line(f"  br label %head{level + 1}")
    done = _steps(code, pointers, before, tiles, f"%i{depth - 1}")
    code.line(f"  br label %latch{depth - 1}")
    for level in range(depth - 1, -1, -1):
        came_from = f"head{level}" if level == depth - 1 else f"latch{level + 1}"
        code.line(f"latch{level}:")
        for row, vector in tiles:
            value = done[row, vector] if level == depth - 1 else f"%d{level + 1}_{row}_{vector}"
            code.line(f"  %d{level}_{row}_{vector} = phi {code.vector} [{value}, %{came_from}]")
        code.line(f"  %next{level} = add nuw nsw i64 %i{level}, 1")
        for i, operand in enumerate(kernel.operands):
            code.line(
                f"  %r{level}_{i} = getelementptr {_LLVM_TYPE[operand.dtype]}, ptr %q{level}_{i}, "
                f"i64 {operand.loops[level]}"
            )
        end = f"%end{level}" if level in kernel.moving else str(kernel.trips[level])
        code.line(f"  %last{level} = icmp eq i64 %next{level}, {end}")
        out = f"latch{level - 1}" if level else "done"
        code.line(f"  br i1 %last{level}, label %{out}, label %head{level}, !llvm.loop !{level}")
    code.line("done:")
    return {(row, vector): f"%d0_{row}_{vector}" for row, vector in tiles}


def _advance(code: _Code, pointers: list[str], level: int) -> list[str]:
    """Return the operands' addresses at the first iteration of a moving loop."""
    moved = []
    for pointer, operand in zip(pointers, code.kernel.operands, strict=True):
        distance = code.emit(f"mul i64 %first{level}, {operand.loops[level]}")
        moved.append(code.emit(f"getelementptr {_LLVM_TYPE[operand.dtype]}, ptr {pointer}, i64 {distance}"))
    return moved


def _steps(
    code: _Code,
    pointers: list[str],
    accumulators: dict[tuple[int, int], str],
    tiles: list[tuple[int, int]],
    iteration: str,
) -> dict[tuple[int, int], str]:
    """Emit the straight-line body: every unrolled step for every row and vector."""
    kernel = code.kernel
    current: dict[tuple[int, int], str | None] = {tile: accumulators.get(tile) for tile in tiles}
    mask = _tail_mask(code, iteration) if kernel.tail else None
    for step in range(kernel.num_steps):
        if step:
            pointers = [code.opaque(pointer) for pointer in pointers]
        loaded: dict[tuple[int, int, int], str] = {}

        def value(
            i: int, row: int, vector: int, step: int = step, loaded: dict[tuple[int, int, int], str] = loaded
        ) -> str:
            operand = kernel.operands[i]
            offset = operand.rows[row] + operand.steps[step]
            place = vector if operand.lane_stride else 0
            key = (i, offset, place)
            if key not in loaded:
                used = min(kernel.lanes, kernel.size - vector * kernel.lanes) if operand.masked else kernel.lanes
                address = code.address(pointers[i], operand.dtype, offset + place * kernel.lanes * operand.lane_stride)
                masked = mask if operand.lane_stride else None
                loaded[key] = code.load_vector(address, operand.dtype, operand.lane_stride, used, masked)
            return loaded[key]

        for row, vector in tiles:
            if (row, step) in kernel.skipped:
                continue
            values = [value(i, row, vector) for i in range(len(kernel.operands))]
            if mask and kernel.body == "max":
                kept = code.emit(
                    f"select <{kernel.lanes} x i1> {mask}, {code.vector} {values[0]}, {code.vector} {code.neutral()}"
                )
                values[0] = kept
            current[row, vector] = code.combine(current[row, vector], values)
    return {tile: name for tile, name in current.items() if name is not None}


def _tail_mask(code: _Code, iteration: str) -> str:
    """Return which lanes of a SIMD reduction lie before its end; each trip is one vector (see `Nest.tail`)."""
    kernel = code.kernel
    lanes = kernel.lanes
    start = code.emit(f"mul i64 {iteration}, {lanes}") if kernel.tail_loops else "0"
    first = code.splat(start, "i64")
    places = ", ".join(f"i64 {lane}" for lane in range(lanes))
    place = code.emit(f"add <{lanes} x i64> {first}, <{places}>")
    end = ", ".join(f"i64 {kernel.tail}" for _ in range(lanes))
    return code.emit(f"icmp ult <{lanes} x i64> {place}, <{end}>")


def _used(kernel: Microkernel, vector: int) -> int:
    return min(kernel.lanes, kernel.size - vector * kernel.lanes)


def _sums(kernel: Microkernel, bases: list[str]) -> tuple[str, Result]:
    """Return where partial sums are kept: the result, or a buffer of the accumulator's dtype with its addresses."""
    if kernel.keeps_sums:
        return bases[-1], replace(kernel.result, dtype=kernel.accumulator)
    return bases[len(kernel.operands)], kernel.result


def _load_result(code: _Code, base: str, result: Result) -> dict[tuple[int, int], str]:
    """Load the tile that earlier calls left behind."""
    kernel = code.kernel
    loaded: dict[tuple[int, int], str] = {}
    for vector in range(kernel.num_vectors):
        used = _used(kernel, vector)
        start = vector * kernel.lanes * result.lane_stride
        if result.lane_stride == 1 or not result.groups:
            for row, offset in enumerate(result.rows):
                pointer = code.address(base, result.dtype, offset + start)
                loaded[row, vector] = code.load_vector(pointer, result.dtype, result.lane_stride, used)
            continue
        for group in result.groups:
            columns = []
            for lane in range(used):
                offset = result.rows[group[0]] + start + lane * result.lane_stride
                columns.append(code.load_vector(code.address(base, result.dtype, offset), result.dtype, 1, len(group)))
            rows = code.transpose(columns)
            for place, row in enumerate(group):
                loaded[row, vector] = rows[place]
    return loaded


def _finish(code: _Code, bases: list[str], final: dict[tuple[int, int], str]) -> None:
    """Divide and apply the epilogue (after the last call only), and store."""
    kernel, result = code.kernel, code.kernel.result
    base, extra = bases[len(kernel.operands)], bases[len(kernel.operands) + 1 :]
    if kernel.simd_reduction:
        _finish_scalar(code, bases, final)
        return
    has_end = kernel.count != 1 or kernel.epilogue or kernel.keeps_sums
    if has_end and kernel.is_partial:
        code.line("  %more_bit = and i32 %flags, 2")
        code.line("  %more = icmp ne i32 %more_bit, 0")
        code.line("  br i1 %more, label %keep, label %finish")
        code.line("finish:")
        _store(code, base, result, _epilogue(code, extra, final))
        code.line("  ret void")
        code.line("keep:")
        _store(code, *_sums(kernel, bases), final)
        return
    _store(code, base, result, _epilogue(code, extra, final) if has_end else final)


def _epilogue(code: _Code, extra: list[str], final: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    kernel = code.kernel
    pointers = iter(extra)
    values = dict(final)
    if kernel.count != 1:
        values = {tile: code.divide(v, kernel.count) for tile, v in values.items()}
    for _, operand in kernel.epilogue:
        if operand is None:
            values = {tile: code.maximum(v, code.constant(0.0)) for tile, v in values.items()}
            continue
        pointer = next(pointers)
        loaded: dict[tuple[int, int], str] = {}
        for (row, vector), value in values.items():
            place = vector * kernel.lanes * operand.lane_stride
            key = (operand.rows[row], place)
            if key not in loaded:
                address = code.address(pointer, operand.dtype, operand.rows[row] + place)
                loaded[key] = code.load_vector(address, operand.dtype, operand.lane_stride, _used(kernel, vector))
            values[row, vector] = code.binary("add", value, loaded[key])
    return values


def _store(code: _Code, base: str, result: Result, values: dict[tuple[int, int], str]) -> None:
    """Store the tile: whole vectors, transposed groups of rows, or element by element."""
    kernel = code.kernel
    for vector in range(kernel.num_vectors):
        used = _used(kernel, vector)
        start = vector * kernel.lanes * result.lane_stride
        if result.lane_stride == 1:
            for row, offset in enumerate(result.rows):
                pointer = code.address(base, result.dtype, offset + start)
                code.store_vector(values[row, vector], pointer, result.dtype, used)
        elif result.groups:
            for group in result.groups:
                columns = code.transpose([values[row, vector] for row in group])
                for lane in range(used):
                    offset = result.rows[group[0]] + start + lane * result.lane_stride
                    pointer = code.address(base, result.dtype, offset)
                    code.store_vector(columns[lane], pointer, result.dtype, len(group))
        else:
            for row, offset in enumerate(result.rows):
                narrowed = code.narrow(values[row, vector], result.dtype, kernel.lanes)
                pointer = code.address(base, result.dtype, offset + start)
                code.store_lanes(narrowed, pointer, result.dtype, result.lane_stride, used)


def _finish_scalar(code: _Code, bases: list[str], final: dict[tuple[int, int], str]) -> None:
    """Reduce each accumulator to one element; go on from, divide, finish and store it as lane 0 of a vector."""
    kernel, result = code.kernel, code.kernel.result
    base, extra = bases[len(kernel.operands)], bases[len(kernel.operands) + 1 :]
    sums_base, sums = _sums(kernel, bases)
    if kernel.is_partial:
        code.line("  %bit = and i32 %flags, 1")
        code.line("  %goes_on = icmp ne i32 %bit, 0")
    neutral = code.neutral() if kernel.body == "max" else code.constant(0.0)
    for (row, _), value in final.items():
        total = code.splat(code.horizontal(value))
        if kernel.is_partial:  # the element exists but may hold anything (NaN) before the first call
            address = code.address(sums_base, sums.dtype, sums.rows[row])
            old = code.load_vector(address, sums.dtype, 0, 1)
            old = code.emit(f"select i1 %goes_on, {code.vector} {old}, {code.vector} {neutral}")
            total = code.maximum(old, total) if kernel.body == "max" else code.binary("add", old, total)
            code.store_lanes(total, address, sums.dtype, 1, 1)
        done = code.divide(total, kernel.count) if kernel.count != 1 else total
        pointers = iter(extra)
        for _, operand in kernel.epilogue:
            if operand is None:
                done = code.maximum(done, code.constant(0.0))
                continue
            pointer = code.address(next(pointers), operand.dtype, operand.rows[row])
            done = code.binary("add", done, code.load_vector(pointer, operand.dtype, 0, 1))
        if kernel.is_partial:
            code.line("  %more_bit" + str(row) + " = and i32 %flags, 2")
            more = code.emit(f"icmp ne i32 %more_bit{row}, 0")
            done = code.emit(f"select i1 {more}, {code.vector} {total}, {code.vector} {done}")
        address = code.address(base, result.dtype, result.rows[row])
        code.store_lanes(code.narrow(done, result.dtype, kernel.lanes), address, result.dtype, 1, 1)


def module_ir(functions: Sequence[tuple[str, set[str]]], num_loops: int = 8) -> str:
    """Return one LLVM module of functions, their declarations and the loop metadata."""
    if not functions:
        raise BuildError("no microkernel to build: the schedule has no calls")
    declared = sorted(set().union(*(needs for _, needs in functions)))
    text = [body for body, _ in functions] + declared
    text += [f"!{level} = distinct !{{!{level}, !{num_loops}}}" for level in range(num_loops)]
    text.append(f'!{num_loops} = !{{!"llvm.loop.unroll.disable"}}')
    return "\n".join(text) + "\n"
