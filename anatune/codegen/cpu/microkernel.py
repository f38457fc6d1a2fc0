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
group : neighbours along the reduction whose products one instruction sums in a step (see `core.rules.cpu_dot`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from anatune.codegen.cpu.llvm import LLVM_TYPE, LlvmCode
from anatune.codegen.cpu.prefetch import LINE_BYTES, LINES_AT_ONCE, Spread, prefetch_some
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.core.workload.number_formats import FACTOR_STEPS
from anatune.errors import BuildError

__all__ = ["EpilogueOperand", "Microkernel", "Operand", "Result", "microkernel_ir", "module_ir"]


_SHORT_STEPS = 8
"""Unrolled steps up to which LLVM keeps to the order of the loads by itself where registers are free."""
_HOISTED_ROWS = 7
"""Rows whose elements LLVM loads ahead of the products they feed: where fewer registers are free it spills elements,
so that no more rows than there are free registers stand between two fences. Without, a 14x2 tile of 16 steps loads and
stores 470 vectors (Zen 4, LLVM of TVM 0.27)."""
_LEAST_ACCUMULATORS = 8
"""Tiles of fewer products have no room for a prefetch in each step."""
_PRODUCTS_A_PREFETCH = 16
"""Multiply-adds beside which a prefetch (and the load of its place) costs nothing that could be measured."""
_MOST_PREFETCHES = 64
"""Lines of the result that a call asks for: more do not fit the buffers for misses anyway."""

Tile = dict[tuple[int, int], str]
"""(row, vector) -> name of its accumulator."""


@dataclass(frozen=True)
class Ahead:
    """Where the next call's rows lie: the hardware follows a row, but not many rows that are read side by side.

    Attributes
    ----------
    distance : int
        From the address of this call to that of the next one.
    pitch, num_rows : int
        Rows that are equally far apart; 0 rows: neighbours in memory, one line a step holds them.
    group_pitch : int
        From one such group of rows to the next.
    """

    distance: int
    pitch: int = 0
    num_rows: int = 0
    group_pitch: int = 0


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
    group: int = 1
    """Elements of a step that are read together: a vector has so many for each lane (then `lane_stride` is `group`), a
    broadcast so many for all lanes."""
    flips: bool = False
    """The highest bit of each 8-bit element is flipped."""
    used: tuple[int, ...] = ()
    """How many of each step's group exist, where that differs; zeros take the place of the others."""
    zero_point: int = 0
    """Stored number that means zero."""
    ahead: Ahead | None = None
    """Rows of the next call to ask for while this one computes."""
    fresh: tuple[int, ...] = ()
    """Lines of the next call that this one does not read, from this call's address (see `prefetch.new_lines`)."""


@dataclass(frozen=True)
class Result:
    """How the result is written (see `_store`)."""

    dtype: str
    lane_stride: int
    rows: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    """Rows that are neighbours in memory, for a transposed store; empty: element by element."""
    zero_point: int = 0
    """Stored number that means zero."""


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
    start: tuple[int, ...] | None = None
    """Address of each row's int32 numbers that accumulators start from, bytes; None: they start from zero."""
    dot: str = ""
    """Instruction that sums the products of a group; empty: groups have one element."""
    registers: str = ""
    """Letter of the vector registers in inline assembly ("v", "x", "w"): keeps accumulators in registers between
    unrolled steps. Empty: they may not fit."""
    num_registers: int = 0
    """Vector registers of the processor."""
    attributes: str = field(default="", compare=False)

    @property
    def keeps_sums(self) -> bool:
        """Whether partial sums are kept in a buffer of the accumulator's dtype instead of the narrower result."""
        return self.is_partial and self.result.dtype != self.accumulator

    @property
    def num_vectors(self) -> int:
        """Vectors of the tile along the SIMD axis."""
        return 1 if self.simd_reduction else -(-self.size // self.lanes)


def microkernel_ir(kernel: Microkernel) -> tuple[str, set[str]]:
    """Return (the function, the declarations it needs).

    The function is ``void name(ptr operand, i64 offset, ..., ptr result, i64 offset, ptr epilogue operand, i64 offset,
    ..., i32 flags)``; offsets in elements; flags: 1 the sums go on from the result, 2 more calls will follow. Where
    there is a `start`, its pointer and offset follow the epilogue's; where `keeps_sums`, those of the partial sums. For
    each loop in `moving`, two i64 follow the flags: its first iteration and the one past its last.
    """
    code = LlvmCode(kernel.lanes, kernel.accumulator, kernel.body)
    count = len(kernel.operands)
    extra = [operand for _, operand in kernel.epilogue if operand is not None]
    dtypes = [*(operand.dtype for operand in kernel.operands), kernel.result.dtype, *(e.dtype for e in extra)]
    if kernel.start is not None:
        dtypes.append("int8")
    if kernel.keeps_sums:
        dtypes.append(kernel.accumulator)
    arguments = [f"ptr noalias %p{i}, i64 %o{i}" for i in range(len(dtypes))]
    arguments.append("i32 %flags")
    arguments += [f"i64 %first{level}, i64 %end{level}" for level in kernel.moving]
    code.line(f"define internal void @{kernel.name}({', '.join(arguments)}) noinline nounwind {kernel.attributes} {{")
    code.line("entry:")
    code.align_frame(kernel.lanes * DTYPE_BYTES[kernel.accumulator])
    bases = [code.emit(f"getelementptr {LLVM_TYPE[dtype]}, ptr %p{i}, i64 %o{i}") for i, dtype in enumerate(dtypes)]
    tiles = [(row, vector) for row in range(len(kernel.result.rows)) for vector in range(kernel.num_vectors)]
    spreads = _spreads(kernel, bases)
    if kernel.reduces and not kernel.simd_reduction and not any(spread.to_write for spread in spreads):
        base, result = _sums(kernel, bases)
        for offset in _result_lines(kernel, result):
            code.prefetch(code.address(base, result.dtype, offset), to_write=True)
    first: Tile = dict.fromkeys(tiles, code.neutral()) if kernel.reduces else {}
    if kernel.start is not None:
        first = _started(code, kernel, bases[count + 1 + len(extra)], first)
    if any(operand.flips for operand in kernel.operands):
        code.highest = code.highest_bits()
    final = _loops(code, kernel, bases[:count], first, spreads)
    if kernel.is_partial and kernel.reduces and not kernel.simd_reduction:
        final = _added(code, kernel, bases, final)
    _finish(code, kernel, bases, final)
    code.line("  ret void")
    code.line("}")
    return "\n".join(code.lines), code.declared


def _started(code: LlvmCode, kernel: Microkernel, base: str, neutral: Tile) -> Tile:
    """Return what the accumulators of the first call start from, and `neutral` in the others."""
    assert kernel.start is not None
    goes_on = ""
    if kernel.is_partial:
        goes_on = code.emit(f"icmp ne i32 {code.emit('and i32 %flags, 1')}, 0")
    loaded: dict[int, str] = {}
    first: Tile = {}
    for (row, vector), zero in neutral.items():
        place = kernel.start[row] + vector * kernel.lanes * DTYPE_BYTES["int32"]
        if place not in loaded:
            value = code.load_vector(code.address(base, "int8", place), "int32", 1, kernel.lanes)
            if goes_on:
                value = code.emit(f"select i1 {goes_on}, {code.vector} {zero}, {code.vector} {value}")
            loaded[place] = value
        first[row, vector] = loaded[place]
    return first


def _added(code: LlvmCode, kernel: Microkernel, bases: list[str], final: Tile) -> Tile:
    """Add what earlier calls left behind, if this call is not the first one.

    Behind the reduction: sums that it starts from would have to come in before the first product, from as far away as
    the result lies; here they were asked for that long ago.
    """
    before = "done" if kernel.trips else "entry"
    code.line("  %bit = and i32 %flags, 1")
    code.line("  %goes_on = icmp ne i32 %bit, 0")
    code.line("  br i1 %goes_on, label %reload, label %added")
    code.line("reload:")
    loaded = _load_result(code, kernel, *_sums(kernel, bases))
    join = code.maximum if kernel.body == "max" else partial(code.binary, "add")
    joined = {tile: join(loaded[tile], value) for tile, value in final.items()}
    code.line("  br label %added")
    code.line("added:")
    return {
        tile: code.emit(f"phi {code.vector} [{value}, %{before}], [{joined[tile]}, %reload]")
        for tile, value in final.items()
    }


def _loops(code: LlvmCode, kernel: Microkernel, bases: list[str], first: Tile, spreads: Sequence[Spread]) -> Tile:
    """Emit the reduction loops and return the accumulators behind them."""
    depth = len(kernel.trips)
    tiles = list(first) or [
        (row, vector) for row in range(len(kernel.result.rows)) for vector in range(kernel.num_vectors)
    ]
    if depth == 0:
        return _steps(code, kernel, bases, first, tiles, "0")
    if 0 in kernel.moving:
        bases = _advance(code, kernel, bases, 0)
    code.line("  br label %head0")
    pointers = bases
    before = first
    for level in range(depth):
        came_from = "entry" if level == 0 else f"head{level - 1}"
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
            pointers = _advance(code, kernel, pointers, level + 1)
        if level < depth - 1:
            code.line(f"  br label %head{level + 1}")
    place = "%i0"
    for level in range(1, depth) if spreads else ():
        place = code.emit(f"add i64 {code.emit(f'mul i64 {place}, {kernel.trips[level]}')}, %i{level}")
    done = _steps(code, kernel, pointers, before, tiles, f"%i{depth - 1}", spreads, place)
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
                f"  %r{level}_{i} = getelementptr {LLVM_TYPE[operand.dtype]}, ptr %q{level}_{i}, "
                f"i64 {operand.loops[level]}"
            )
        end = f"%end{level}" if level in kernel.moving else str(kernel.trips[level])
        code.line(f"  %last{level} = icmp eq i64 %next{level}, {end}")
        out = f"latch{level - 1}" if level else "done"
        code.line(f"  br i1 %last{level}, label %{out}, label %head{level}, !llvm.loop !{level}")
    code.line("done:")
    return {(row, vector): f"%d0_{row}_{vector}" for row, vector in tiles}


def _advance(code: LlvmCode, kernel: Microkernel, pointers: list[str], level: int) -> list[str]:
    """Return the operands' addresses at the first iteration of a moving loop."""
    moved = []
    for pointer, operand in zip(pointers, kernel.operands, strict=True):
        distance = code.emit(f"mul i64 %first{level}, {operand.loops[level]}")
        moved.append(code.emit(f"getelementptr {LLVM_TYPE[operand.dtype]}, ptr {pointer}, i64 {distance}"))
    return moved


def _steps(
    code: LlvmCode,
    kernel: Microkernel,
    pointers: list[str],
    accumulators: Tile,
    tiles: list[tuple[int, int]],
    iteration: str,
    spreads: Sequence[Spread] = (),
    place: str = "0",
) -> Tile:
    """Emit the straight-line body: every unrolled step for every row and vector."""
    current: dict[tuple[int, int], str | None] = {tile: accumulators.get(tile) for tile in tiles}
    mask = _tail_mask(code, kernel, iteration) if kernel.tail else None
    fenced_rows = _fenced_rows(kernel)
    recent: list[tuple[int, int]] = []
    start = pointers
    for step in range(kernel.num_steps):
        _prefetch_ahead(code, kernel, start, iteration, step)
        for spread in spreads:
            prefetch_some(code, spread, place, step, kernel.num_steps)
        if step:
            pointers = _fenced(code, kernel, pointers, current, recent)
        loaded: dict[tuple[int, int, int], str] = {}

        for row, vector in tiles:
            if (row, step) in kernel.skipped:
                continue
            if fenced_rows and row and vector == 0 and row % fenced_rows == 0:
                pointers = _fenced(code, kernel, pointers, current, recent)
            recent.append((row, vector))
            values = [
                _loaded(code, kernel, i, pointers[i], row, vector, step, mask, loaded)
                for i in range(len(kernel.operands))
            ]
            if mask and kernel.body == "max":
                kept = code.emit(
                    f"select <{kernel.lanes} x i1> {mask}, {code.vector} {values[0]}, {code.vector} {code.neutral()}"
                )
                values[0] = kept
            sums = current[row, vector]
            if kernel.dot and sums is not None:  # the unsigned operand comes first
                places = sorted(range(len(values)), key=lambda i: kernel.operands[i].dtype != "uint8")
                current[row, vector] = code.dot(kernel.dot, sums, [values[i] for i in places])
            else:
                current[row, vector] = code.combine(sums, values)
    return {tile: name for tile, name in current.items() if name is not None}


def _prefetch_ahead(code: LlvmCode, kernel: Microkernel, pointers: list[str], iteration: str, step: int) -> None:
    """Ask for one line of the next call's rows in each step: row ``step % 16`` of the lines that begin at this step.

    Source: 1x1 convolution of 136x136x128 on a Zen 4 machine: tiles of 14 rows, 512 bytes apart and read side by side,
    reached 63 % of the peak while the data came from the L3 cache, tiles of 2 + 2 rows 91 %.
    """
    if len(kernel.trips) != 1 or kernel.moving or kernel.num_vectors * len(kernel.result.rows) < _LEAST_ACCUMULATORS:
        return
    for operand, pointer in zip(kernel.operands, pointers, strict=True):
        ahead = operand.ahead
        if ahead is None:
            continue
        per_line = LINE_BYTES // (DTYPE_BYTES[operand.dtype] * operand.group)
        if ahead.num_rows == 0:
            address = code.address(pointer, operand.dtype, operand.steps[step] + ahead.distance)
            code.prefetch(address, to_write=False)
            continue
        slots = 1 << (ahead.num_rows - 1).bit_length()
        first = code.emit(f"mul i64 {iteration}, {kernel.num_steps}")
        place = code.emit(f"add i64 {first}, {step}")
        row = code.emit(f"and i64 {place}, {slots - 1}")
        offset = code.emit(f"mul i64 {row}, {ahead.pitch}")
        if slots < per_line and ahead.group_pitch:
            rest = code.emit(f"and i64 {place}, {per_line - slots}")
            group = code.emit(f"lshr i64 {rest}, {slots.bit_length() - 1}")
            offset = code.emit(f"add i64 {offset}, {code.emit(f'mul i64 {group}, {ahead.group_pitch}')}")
        line = code.emit(f"and i64 {place}, {-per_line}")
        moved = code.emit(f"sub i64 {line}, {first}")
        if operand.group > 1:
            moved = code.emit(f"mul i64 {moved}, {operand.group}")
        total = code.emit(f"add i64 {code.emit(f'add i64 {offset}, {moved}')}, {ahead.distance}")
        code.prefetch(
            code.emit(f"getelementptr {LLVM_TYPE[operand.dtype]}, ptr {pointer}, i64 {total}"), to_write=False
        )


def _fenced_rows(kernel: Microkernel) -> int:
    """Return the rows of a step after which a fence stands, 0: none."""
    if not kernel.registers or not kernel.reduces:
        return 0
    rows = len(kernel.result.rows)
    held = sum(kernel.num_vectors for operand in kernel.operands if operand.lane_stride and len(set(operand.rows)) == 1)
    free = kernel.num_registers - rows * kernel.num_vectors - held
    return max(1, free) if free < min(rows, _HOISTED_ROWS) else 0


def _fenced(
    code: LlvmCode,
    kernel: Microkernel,
    pointers: list[str],
    current: dict[tuple[int, int], str | None],
    recent: list[tuple[int, int]],
) -> list[str]:
    """Return the operands' addresses, such that nothing is loaded through them before what came so far.

    In long bodies and full registers that includes the products `recent`, which it forgets: left alone, LLVM orders
    all loads before the products they feed.
    """
    is_held = bool(kernel.registers) and (kernel.num_steps > _SHORT_STEPS or _fenced_rows(kernel) > 0)
    tiles = [tile for tile in recent if is_held and current[tile] is not None]
    recent.clear()
    pointers, values = code.fence(pointers, [str(current[tile]) for tile in tiles], kernel.registers)
    current.update(zip(tiles, values, strict=True))
    return pointers


def _loaded(
    code: LlvmCode,
    kernel: Microkernel,
    i: int,
    pointer: str,
    row: int,
    vector: int,
    step: int,
    mask: str | None,
    loaded: dict[tuple[int, int, int], str],
) -> str:
    """Return operand `i` for one row and vector of a step; what the step has loaded already is in `loaded`."""
    operand = kernel.operands[i]
    offset = operand.rows[row] + operand.steps[step]
    place = vector if operand.lane_stride else 0
    key = (i, offset, place)
    if key not in loaded:
        if operand.group > 1:
            address = code.address(pointer, operand.dtype, offset + place * kernel.lanes * operand.lane_stride)
            used = operand.used[step] if operand.used else operand.group
            value = code.load_groups(address, operand.dtype, operand.group, used, is_vector=operand.lane_stride > 0)
            loaded[key] = code.flip(value, code.highest) if operand.flips else value
            return loaded[key]
        partly = operand.masked and not kernel.simd_reduction  # a reduction's lanes are cut by `mask` alone
        used = _used(kernel, vector) if partly else kernel.lanes
        address = code.address(pointer, operand.dtype, offset + place * kernel.lanes * operand.lane_stride)
        masked = mask if operand.lane_stride else None
        value = code.load_vector(address, operand.dtype, operand.lane_stride, used, masked)
        if operand.zero_point:
            value = code.binary("add", value, code.constant(-operand.zero_point))
        loaded[key] = value
    return loaded[key]


def _tail_mask(code: LlvmCode, kernel: Microkernel, iteration: str) -> str:
    """Return which lanes of a SIMD reduction lie before its end; each trip is one vector (see `Nest.tail`)."""
    lanes = kernel.lanes
    start = code.emit(f"mul i64 {iteration}, {lanes}") if kernel.tail_loops else "0"
    first = code.splat(start, "i64")
    places = ", ".join(f"i64 {lane}" for lane in range(lanes))
    place = code.emit(f"add <{lanes} x i64> {first}, <{places}>")
    end = ", ".join(f"i64 {kernel.tail}" for _ in range(lanes))
    return code.emit(f"icmp ult <{lanes} x i64> {place}, <{end}>")


def _used(kernel: Microkernel, vector: int) -> int:
    return min(kernel.lanes, kernel.size - vector * kernel.lanes)


def _result_lines(kernel: Microkernel, result: Result) -> tuple[int, ...]:
    """Return the result's lines: asked for before its stores, these find them in the cache."""
    per_line = LINE_BYTES // DTYPE_BYTES[result.dtype]
    lines: set[int] = set()
    if result.lane_stride == 1:
        for offset in result.rows:
            lines.update(range(offset, offset + kernel.size, per_line))
    elif result.groups:
        for group in result.groups:
            lines.update(result.rows[group[0]] + lane * result.lane_stride for lane in range(kernel.size))
    return tuple(sorted(lines)[:_MOST_PREFETCHES])


def _spreads(kernel: Microkernel, bases: list[str]) -> list[Spread]:
    """Return what to ask for in the course of the reduction, rather than at its start or not at all."""
    iterations = math.prod(kernel.trips)
    if not kernel.reduces or kernel.simd_reduction or iterations < 2:
        return []
    products = len(kernel.result.rows) * kernel.num_vectors * kernel.num_steps
    found = []
    for i, operand in enumerate(kernel.operands):
        each = -(-len(operand.fresh) // iterations)
        if 0 < each * _PRODUCTS_A_PREFETCH <= products:
            table = f"{kernel.name}_fresh{i}"
            found.append(Spread(bases[i], table, operand.dtype, operand.fresh, each, to_write=False))
    base, result = _sums(kernel, bases)
    lines = _result_lines(kernel, result)
    if len(lines) > LINES_AT_ONCE:  # in the first half, so that the last ones come in time
        each = -(-len(lines) // (iterations // 2))
        found.append(Spread(base, f"{kernel.name}_result", result.dtype, lines, each, to_write=True))
    return found


def _sums(kernel: Microkernel, bases: list[str]) -> tuple[str, Result]:
    """Return where partial sums are kept: the result, or a buffer of the accumulator's dtype with its addresses."""
    if kernel.keeps_sums:
        return bases[-1], replace(kernel.result, dtype=kernel.accumulator)
    return bases[len(kernel.operands)], kernel.result


def _load_result(code: LlvmCode, kernel: Microkernel, base: str, result: Result) -> Tile:
    """Load the tile that earlier calls left behind."""
    loaded: Tile = {}
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


def _finish(code: LlvmCode, kernel: Microkernel, bases: list[str], final: Tile) -> None:
    """Divide and apply the epilogue (after the last call only), and store."""
    result = kernel.result
    base, extra = bases[len(kernel.operands)], bases[len(kernel.operands) + 1 :]
    if kernel.simd_reduction:
        _finish_scalar(code, kernel, bases, final)
        return
    has_end = kernel.count != 1 or kernel.epilogue or kernel.keeps_sums
    if has_end and kernel.is_partial:
        code.line("  %more_bit = and i32 %flags, 2")
        code.line("  %more = icmp ne i32 %more_bit, 0")
        code.line("  br i1 %more, label %keep, label %finish")
        code.line("finish:")
        _store(*_epilogue(code, kernel, extra, final), base, result, kernel)
        code.line("  ret void")
        code.line("keep:")
        _store(code, final, *_sums(kernel, bases), kernel)
        return
    code, final = _epilogue(code, kernel, extra, final) if has_end else (code, final)
    _store(code, final, base, result, kernel)


def _epilogue(code: LlvmCode, kernel: Microkernel, extra: list[str], final: Tile) -> tuple[LlvmCode, Tile]:
    """Apply the fused steps; the code that comes back computes in the dtype of their values."""
    pointers = iter(extra)
    values = dict(final)
    if kernel.count != 1:
        values = {tile: code.divide(v, kernel.count) for tile, v in values.items()}
    for step, operand in kernel.epilogue:
        if operand is None:
            values = {tile: code.maximum(v, code.constant(0.0)) for tile, v in values.items()}
            continue
        if step in FACTOR_STEPS:
            values = {tile: code.to_float(v) for tile, v in values.items()}
            code = code.of("float32")
        pointer = next(pointers)
        loaded: Tile = {}
        for (row, vector), value in values.items():
            place = vector * kernel.lanes * operand.lane_stride
            key = (operand.rows[row], place)
            if key not in loaded:
                address = code.address(pointer, operand.dtype, operand.rows[row] + place)
                loaded[key] = code.load_vector(address, operand.dtype, operand.lane_stride, _used(kernel, vector))
            if step in FACTOR_STEPS:
                values[row, vector] = code.rounded(code.binary("mul", value, loaded[key]))
            else:
                values[row, vector] = code.binary("add", value, loaded[key])
        if step == "requantize":
            result = kernel.result
            values = {tile: code.quantised(v, result.dtype, result.zero_point) for tile, v in values.items()}
            code = code.of("int32")
    return code, values


def _store(code: LlvmCode, values: Tile, base: str, result: Result, kernel: Microkernel) -> None:
    """Store the tile: whole vectors, transposed groups of rows, or element by element."""
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


def _finish_scalar(code: LlvmCode, kernel: Microkernel, bases: list[str], final: Tile) -> None:
    """Reduce each accumulator to one element; go on from, divide, finish and store it as lane 0 of a vector."""
    result = kernel.result
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
        end, finished = _epilogue(code, replace(kernel, count=1), extra, {(row, 0): done})
        done = finished[row, 0]
        if kernel.is_partial and not kernel.keeps_sums:  # else the sums are in their own buffer
            code.line("  %more_bit" + str(row) + " = and i32 %flags, 2")
            more = code.emit(f"icmp ne i32 %more_bit{row}, 0")
            done = code.emit(f"select i1 {more}, {code.vector} {total}, {code.vector} {done}")
        address = code.address(base, result.dtype, result.rows[row])
        end.store_lanes(end.narrow(done, result.dtype, kernel.lanes), address, result.dtype, 1, 1)


def module_ir(functions: Sequence[tuple[str, set[str]]], num_loops: int = 8) -> str:
    """Return one LLVM module of functions, their declarations and the loop metadata."""
    if not functions:
        raise BuildError("no microkernel to build: the schedule has no calls")
    declared = sorted(set().union(*(needs for _, needs in functions)))
    text = [body for body, _ in functions] + declared
    text += [f"!{level} = distinct !{{!{level}, !{num_loops}}}" for level in range(num_loops)]
    text.append(f'!{num_loops} = !{{!"llvm.loop.unroll.disable"}}')
    return "\n".join(text) + "\n"
