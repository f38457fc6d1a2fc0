"""Microkernels as LLVM IR: a register tile of accumulators, and the reduction loops inside the microkernel.

The accumulators are phi nodes, so that LLVM keeps them in registers. Loops carry `llvm.loop.unroll.disable`, so that
LLVM does not unroll them further. One row of the vector operand is loaded for each row of accumulators, or shared by
all. Broadcast operands are loaded once for each row and step. Source: facts of TVM 0.27 (textual LLVM IR through the
loop annotation ``pragma_import_llvm``); [BLIS] Sec. 3.

Notation: see `register_tile`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from anatune.core.hardware.dot import HALF_SUMS, TILES
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.emit.llvm_types import write_size
from anatune.errors import BuildError
from anatune.templates.cpu.program.amx import tile_steps, tile_sums
from anatune.templates.cpu.program.epilogue import add_earlier_sums, finish
from anatune.templates.cpu.program.prefetch import (
    Spread,
    prefetch_ahead,
    prefetch_some,
    prefetch_stream,
    result_lines,
    spreads_of,
)
from anatune.templates.cpu.program.register_tile import Bases, Microkernel, Tile

__all__ = ["choice_ir", "microkernel_ir", "module_ir", "shares"]

_SHORT_STEPS = 4
"""Unrolled steps up to which LLVM keeps the order of the loads without fences, if registers are free.

Source: tiles of 10x2 on an Emerald Rapids: with 8 steps, 184 spilled vectors and half the speed; none with 4 steps or
with fences.
"""
_HOISTED_ROWS = 7
"""Rows whose elements LLVM loads ahead of their products.

If fewer registers are free, it spills these elements. Then at most as many rows as there are free registers are between
two fences. Source: without fences, a 14x2 tile of 16 steps loads and stores 470 vectors (Zen 4, LLVM of TVM 0.27).
"""


def microkernel_ir(kernel: Microkernel) -> tuple[str, set[str]]:
    """Return (the function, the declarations it needs).

    The function is ``void name(ptr operand, i64 offset, ..., ptr result, i64 offset, ptr epilogue operand, i64 offset,
    ..., i32 flags)``. Offsets are in elements. Flag bit 1: add to the sums in the result. Flag bit 2: more calls will
    follow. With `start`, its pointer and offset follow the epilogue operands; with `keeps_sums`, those of the partial
    sums follow. For each loop in `moving`, two i64 follow the flags: its first iteration and the one past its last.
    `numbers` are last.
    """
    rounds = kernel.dot in ("vdpbf16ps", "tdpbf16ps")  # CPUs with these instructions round in hardware
    code = LlvmCode(kernel.lanes, kernel.accumulator, kernel.body, rounds=rounds)
    dtypes, arguments = _dtypes(kernel), _arguments(kernel)
    code.line(f"define internal void @{kernel.name}({', '.join(arguments)}) noinline nounwind {kernel.attributes} {{")
    code.line("entry:")
    code.align_frame(kernel.lanes * DTYPE_BYTES[kernel.accumulator])
    names = [code.emit(f"getelementptr {LLVM_TYPE[dtype]}, ptr %p{i}, i64 %o{i}") for i, dtype in enumerate(dtypes)]
    count = len(kernel.operands)
    end = count + 1 + sum(operand is not None for _, operand in kernel.epilogue)
    bases = Bases(names[:count], names[count], names[count + 1 : end], "".join(names[end : end + 1]), names[-1])
    for i, operand in enumerate(kernel.operands):
        if operand.stream is not None:
            code.line(f"  %later{i} = getelementptr {LLVM_TYPE[operand.dtype]}, ptr %p{i}, i64 %stream{i}")
    spreads = spreads_of(kernel, bases)
    if kernel.reduces and not kernel.simd_reduction and not any(spread.to_write for spread in spreads):
        base, result = kernel.sums(bases)
        for offset in result_lines(kernel, result):
            code.prefetch(code.address(base, result.dtype, offset), to_write=True)
    first: Tile = dict.fromkeys(kernel.tiles, code.neutral()) if kernel.reduces else {}
    if kernel.start is not None:
        first = _load_start(code, kernel, bases.start, first)
    if any(operand.flips for operand in kernel.operands):
        code.highest = code.highest_bits()
    if kernel.dot in TILES:
        final = tile_sums(code, kernel, first, lambda view, zeros: _loops(view, kernel, bases.operands, zeros, spreads))
    else:
        final = _loops(code, kernel, bases.operands, first, spreads)
    if kernel.dot in HALF_SUMS:
        final = {tile: code.whole_sums(value) for tile, value in final.items()}
    if kernel.is_partial and kernel.reduces and not kernel.simd_reduction:
        final = add_earlier_sums(code, kernel, bases, final)
    finish(code, kernel, bases, final)
    code.line("  ret void")
    code.line("}")
    return "\n".join(code.lines), code.declared


def _dtypes(kernel: Microkernel) -> list[str]:
    """Return the element dtype of each pointer argument."""
    extra = [operand for _, operand in kernel.epilogue if operand is not None]
    dtypes = [*(operand.dtype for operand in kernel.operands), kernel.result.dtype, *(e.dtype for e in extra)]
    if kernel.start is not None:
        dtypes.append("int8")
    if kernel.keeps_sums:
        dtypes.append(kernel.accumulator)
    return dtypes


def _arguments(kernel: Microkernel) -> list[str]:
    """Return the arguments of the function, types and names."""
    arguments = [f"ptr noalias %p{i}, i64 %o{i}" for i in range(len(_dtypes(kernel)))]
    arguments.append("i32 %flags")
    arguments += [f"i64 %first{level}, i64 %end{level}" for level in kernel.moving]
    for i, operand in enumerate(kernel.operands):
        if operand.stream is not None:
            arguments += [f"i64 %stream{i}", *([f"i64 %pace{i}"] if operand.stream.far_rows else [])]
    return [*arguments, *(f"i64 %{number}" for number in kernel.numbers)]


def choice_ir(
    name: str, kernels: Mapping[int, Microkernel], sizes: Iterable[int] = (), apart: Sequence[int] = ()
) -> str:
    """Return a function ``void name(arguments of the microkernels, i64 size)`` that calls the microkernel of that size.

    Parameters
    ----------
    kernels : mapping of int to Microkernel
        Size -> a microkernel; all take the same arguments.
    sizes : iterable of int
        All possible sizes, if they are not those of the microkernels. Larger ones become several calls (`shares`).
    apart : sequence of int
        For each tensor, the elements by which one element of the size moves its address.
    """
    sample, largest = next(iter(kernels.values())), max(kernels)
    arguments, sizes = _arguments(sample), tuple(sizes or kernels)
    cases = " ".join(f"i64 {size}, label %size{size}" for size in sizes)
    code = LlvmCode(sample.lanes, sample.accumulator, sample.body)
    code.line(
        f"define internal void @{name}({', '.join(arguments)}, i64 %size) noinline nounwind {sample.attributes} {{"
    )
    code.line("entry:")
    code.line(f"  switch i64 %size, label %none [ {cases} ]")
    for size in sizes:
        code.line(f"size{size}:")
        call_arguments, done = list(arguments), 0
        for share in shares(size, largest):
            for number, distance in enumerate(apart if done else ()):
                moved = code.emit(f"add i64 %o{number}, {write_size(done * distance, code.emit)}")
                call_arguments[number] = f"ptr noalias %p{number}, i64 {moved}"
            code.line(f"  tail call void @{kernels[share].name}({', '.join(call_arguments)})")
            done += share
        code.line("  ret void")
    return "\n".join([*code.lines, "none:", "  unreachable", "}"])


def shares(size: int, most: int) -> list[int]:
    """Return sizes up to `most`, as few and as equal as possible, whose sum is `size`."""
    count = -(-size // most)
    return [(size + number) // count for number in range(count)]


def _load_start(code: LlvmCode, kernel: Microkernel, base: str, neutral: Tile) -> Tile:
    """Return the initial values of accumulators: those of `start` in the first call, `neutral` in later ones."""
    assert kernel.start is not None
    goes_on = ""
    if kernel.is_partial:
        goes_on = code.emit(f"icmp ne i32 {code.emit('and i32 %flags, 1')}, 0")
    loaded: dict[int, str] = {}
    first: Tile = {}
    for (row, vector), zero in neutral.items():
        offset = kernel.start[row] + vector * kernel.lanes * DTYPE_BYTES["int32"]
        if offset not in loaded:
            value = code.load_vector(code.address(base, "int8", offset), "int32", 1, kernel.lanes)
            if goes_on:
                value = code.emit(f"select i1 {goes_on}, {code.vector} {zero}, {code.vector} {value}")
            loaded[offset] = value
        first[row, vector] = loaded[offset]
    return first


def _loops(code: LlvmCode, kernel: Microkernel, bases: list[str], first: Tile, spreads: Sequence[Spread]) -> Tile:
    """Emit the reduction loops and return the accumulators after them."""
    depth, tiles = len(kernel.trips), list(first) or kernel.tiles
    if depth == 0:
        return _steps(code, kernel, bases, first, "0")
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
    number = "%i0"
    for level in range(1, depth):
        number = code.emit(f"add i64 {code.emit(f'mul i64 {number}, {kernel.trips[level]}')}, %i{level}")
    done = _steps(code, kernel, pointers, before, f"%i{depth - 1}", spreads, number)
    code.line(f"  br label %latch{depth - 1}")
    for level in range(depth - 1, -1, -1):
        came_from = f"head{level}" if level == depth - 1 else f"latch{level + 1}"
        code.line(f"latch{level}:")
        for row, vector in tiles:
            value = done[row, vector] if level == depth - 1 else f"%d{level + 1}_{row}_{vector}"
            code.line(f"  %d{level}_{row}_{vector} = phi {code.vector} [{value}, %{came_from}]")
        code.line(f"  %next{level} = add nuw nsw i64 %i{level}, 1")
        for i, operand in enumerate(kernel.operands):
            stride = write_size(operand.loops[level], code.emit)
            code.line(f"  %r{level}_{i} = getelementptr {LLVM_TYPE[operand.dtype]}, ptr %q{level}_{i}, i64 {stride}")
        end = f"%end{level}" if level in kernel.moving else write_size(kernel.trips[level], code.emit)
        code.line(f"  %last{level} = icmp eq i64 %next{level}, {end}")
        out = f"latch{level - 1}" if level else "done"
        code.line(f"  br i1 %last{level}, label %{out}, label %head{level}, !llvm.loop !{level}")
    code.line("done:")
    return {(row, vector): f"%d0_{row}_{vector}" for row, vector in tiles}


def _advance(code: LlvmCode, kernel: Microkernel, pointers: list[str], level: int) -> list[str]:
    """Return the addresses of the operands at the first iteration of a moving loop."""
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
    iteration: str,
    spreads: Sequence[Spread] = (),
    number: str = "0",
) -> Tile:
    """Emit the straight-line body: every unrolled step for every row and vector."""
    body = None if kernel.dot in TILES else _BodyWriter(code, kernel, pointers, accumulators, iteration)
    for step in range(kernel.num_steps):
        prefetch_ahead(code, kernel, pointers, iteration, step)
        for spread in spreads:
            prefetch_some(code, spread, number, step, kernel.num_steps)
        for i, operand in enumerate(kernel.operands):
            if operand.stream is not None:
                prefetch_stream(code, kernel, i, f"%later{i}", number, step)
        if body is not None:
            body.step(step)
    return tile_steps(code, kernel, pointers, accumulators) if body is None else body.join_chains()


class _BodyWriter:
    """The writer of the products of the unrolled steps.

    Attributes
    ----------
    pointers : list of str
        Addresses of the operands.
    sums : dict
        (row, vector) -> name of the sum so far; missing if there is no reduction.
    """

    def __init__(
        self, code: LlvmCode, kernel: Microkernel, pointers: list[str], accumulators: Tile, iteration: str
    ) -> None:
        self.code, self.kernel, self.pointers, self.sums = code, kernel, pointers, dict(accumulators)
        self._mask = _tail_mask(code, kernel, iteration) if kernel.tail else None
        self._fenced_rows = self._rows_between_fences()
        self._recent: list[tuple[int, int]] = []
        """The products since the last fence."""
        self._others: list[dict[tuple[int, int], str]] = [{} for _ in range(kernel.chains - 1)]
        """The sums of further chains in these steps."""

    def _rows_between_fences(self) -> int:
        """Return the number of rows of a step after which there is a fence; 0: no fences."""
        kernel = self.kernel
        if not kernel.registers or not kernel.reduces:
            return 0
        rows = len(kernel.result.rows)
        vectors = [operand for operand in kernel.operands if operand.lane_stride]
        held = sum(kernel.num_vectors for operand in vectors if len(set(operand.rows)) == 1)
        free = kernel.num_registers - rows * kernel.num_vectors - held
        return max(1, free) if free < min(rows, _HOISTED_ROWS) else 0

    def step(self, step: int) -> None:
        """Emit one step for every row and vector."""
        code, kernel = self.code, self.kernel
        if step:
            self._fence()
        loaded: dict[tuple[int, int, int], str] = {}
        for row, vector in kernel.tiles:
            if (row, step) in kernel.skipped:
                continue
            if self._fenced_rows and row and vector == 0 and row % self._fenced_rows == 0:
                self._fence()
            self._recent.append((row, vector))
            values = [self._load(i, row, vector, step, loaded) for i in range(len(kernel.operands))]
            if self._mask and kernel.body == "max":
                kind = f"<{kernel.lanes} x i1> {self._mask}"
                values[0] = code.emit(f"select {kind}, {code.vector} {values[0]}, {code.vector} {code.neutral()}")
            chain = step % kernel.chains
            chain_sums = self._others[chain - 1] if chain else self.sums
            sums = chain_sums.get((row, vector))
            if kernel.dot and sums is not None:
                # instructions take the broadcast operand first, as the unsigned one, for every dtype
                places = sorted(range(len(values)), key=lambda i: kernel.operands[i].lane_stride)
                chain_sums[row, vector] = code.dot(kernel.dot, sums, [values[i] for i in places])
            else:
                chain_sums[row, vector] = code.combine(sums, values)

    def join_chains(self) -> Tile:
        """Add the sums of further chains and return the totals. These sums are added first: they wait for nothing."""
        for tile in self.sums:
            others = [chain[tile] for chain in self._others if tile in chain]
            if others:
                more = functools.reduce(lambda left, right: self.code.binary("add", left, right), others)
                self.sums[tile] = self.code.binary("add", self.sums[tile], more)
        return self.sums

    def _fence(self) -> None:
        """Keep LLVM from moving loads that follow before this point.

        In long bodies and with full registers the fence includes the products since the last one. Otherwise LLVM orders
        all loads before the products that use them.
        """
        kernel, tiles = self.kernel, []
        if kernel.registers and (kernel.num_steps > _SHORT_STEPS or self._fenced_rows > 0):
            tiles = [tile for tile in self._recent if tile in self.sums]
        self._recent.clear()
        sums = [self.sums[tile] for tile in tiles]
        self.pointers, values = self.code.fence(self.pointers, sums, kernel.registers)
        self.sums.update(zip(tiles, values, strict=True))

    def _load(self, i: int, row: int, vector: int, step: int, loaded: dict[tuple[int, int, int], str]) -> str:
        """Return operand `i` for one row and vector of a step; `loaded` caches the loads of the step."""
        code, kernel, operand = self.code, self.kernel, self.kernel.operands[i]
        offset = operand.rows[row] + operand.steps[step]
        column = vector if operand.lane_stride else 0
        key = (i, offset, column)
        if key in loaded:
            return loaded[key]
        start = offset + column * kernel.lanes * operand.lane_stride
        address = code.address(self.pointers[i], operand.dtype, start)
        if operand.group > 1:
            used = operand.used[step] if operand.used else operand.group
            value = code.load_groups(address, operand.dtype, operand.group, used, is_vector=operand.lane_stride > 0)
            value = code.flip(value, code.highest) if operand.flips else value
        else:
            partly = operand.masked and not kernel.simd_reduction  # lanes of a reduction are masked by `_mask`
            used = kernel.used_lanes(vector) if partly else kernel.lanes
            existing = self._mask if operand.lane_stride and self._mask else used
            value = code.load_vector(address, operand.dtype, operand.lane_stride, existing)
            if operand.zero_point:
                value = code.binary("add", value, code.constant(-operand.zero_point))
        loaded[key] = value
        return value


def _tail_mask(code: LlvmCode, kernel: Microkernel, iteration: str) -> str:
    """Return the mask of the lanes of a SIMD reduction before its end; a trip is one vector (see `LoopNest.tail`)."""
    lanes = kernel.lanes
    start = code.emit(f"mul i64 {iteration}, {lanes}") if kernel.tail_loops else "0"
    first = code.splat(start, "i64")
    places = ", ".join(f"i64 {lane}" for lane in range(lanes))
    lane_numbers = code.emit(f"add <{lanes} x i64> {first}, <{places}>")
    end = ", ".join(f"i64 {kernel.tail}" for _ in range(lanes))
    return code.emit(f"icmp ult <{lanes} x i64> {lane_numbers}, <{end}>")


def module_ir(functions: Sequence[tuple[str, set[str]]], num_loops: int = 8) -> str:
    """Return one LLVM module of functions, their declarations and the loop metadata."""
    if not functions:
        raise BuildError("no microkernel to build: the schedule has no calls")
    declared = sorted(set().union(*(needs for _, needs in functions)))
    text = [body for body, _ in functions] + declared
    text += [f"!{level} = distinct !{{!{level}, !{num_loops}}}" for level in range(num_loops)]
    text.append(f'!{num_loops} = !{{!"llvm.loop.unroll.disable"}}')
    return "\n".join(text) + "\n"
