"""Conversion of a workload and a CPU to the arrays that `cpu.times` takes, and the constants of the model."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.cpu_groups import TileUnit
from anatune.core.hardware.dot import HALF_SUMS, TILES, WIDENED
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Access, Term, Workload
from anatune.templates.cpu.dot import TILE_REGISTERS, TILE_ROWS, TILE_STEPS, DotGroup, copied_dtypes
from anatune.templates.cpu.microkernels import vector_stride
from anatune.templates.cpu.space import CpuSpace
from anatune.templates.cpu.times.nest import CpuCore, CpuMachine, CpuNest

__all__ = ["COPY_BYTES_PER_CYCLE", "MULTIPLY_ADD_LIMIT", "REGISTER_LIMIT", "moving_cycles", "pack_machine", "pack_nest"]

CALL_CYCLES = 10.0
"""Cycles of entry to and exit from a microkernel call (address arithmetic, branches). Source: 14x32 tiles of [anchors],
K = 64.
"""
LOOP_INSTRUCTIONS = 2.0
"""Instructions of a loop iteration in addition to the loads and multiply-adds: increment, fused compare and branch.

Prefetch addresses add up to 18 more in code that anatune generates (Emerald Rapids, 8x2 tiles: 161 GFLOP/s with one
step an iteration, 177 with 32), but not in code of other compilers. If they were counted, AutoTVM tables of a Ryzen
3700X would be ranked worse (0.756 instead of 0.814). So they only decide ties (`UNROLLED`).
"""
HELD_SHARE = 0.5
"""Share of the registers that a spilling kernel still has for shared operands. Operands that need more are reloaded for
each row. Source: AutoTVM NCHWc table of a Ryzen 3700X (16 registers): 64 channels, 16 vectors, 1.4 times slower than
32.
"""
EXPOSED_SHARE = 0.1
"""Share of the shorter of core work and transfers that does not overlap with the longer one. Source: 14x32 fed from L2
reaches 91-97 % of the peak [anchors].
"""
PARALLEL_START_S = 5e-6
"""Seconds of fork and join of a thread pool. Not verified."""
COPY_BYTES_PER_CYCLE = 16.0
"""Most bytes that a copy of whole rows moves in a cycle, a cautious number. Source: 25 were measured for slivers of 64
lanes of a 4 MiB matrix on a Zen 4 machine; rows of padded copies are shorter.
"""
PACK_BYTES_PER_CYCLE = 6.0
"""Most bytes that packing into slivers moves in a cycle; it transposes element by element. Source: 2 cycles an element
for slivers of 14 rows, 2.5 to 3.7 for 28, from matmuls of 16 columns with and without packing on a Zen 4 machine.
"""
WHOLE_SUM_CYCLES = 3.0
"""Cycles to turn the two float16 sums of each lane of a vector into a float32 sum: VPMOVDW occupies the permute port
for two, VCVTPH2PSX for one. Counted from the code, not measured.
"""
REGISTER_LIMIT = 2.0
"""Limit of the rule microkernel_registers, relative to the registers. Beyond it nothing stays in registers."""
MULTIPLY_ADD_LIMIT = 1024.0
"""Limit of the rule microkernel_code: multiply-adds of the straight-line body. 8 KiB of code stay in L1I and are
decoded once. The limit is halved if a multiply-add is two instructions: 5x2 tiles of VPMADDWD on a Zen 3 reach 1.35
of the rate of float32 with 64 steps, 1.59 with 8.
"""
TILE_UNIT = TileUnit(
    product_cycles=16.0,
    latency_cycles=52.0,
    load_cycles=8.0,
    store_cycles=16.0,
    source="Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter 20 (Sapphire Rapids)",
)
"""Timing of AMX tiles if the spec has none."""
TILE_CONFIG_CYCLES = 204.0
"""Cycles of LDTILECFG. Source: that of `TILE_UNIT`."""
_PAGE_BYTES = 4096


def pack_machine(hardware: CpuSpec, dot: DotGroup | None = None, *, is_integer: bool = False) -> CpuMachine:
    """Return `hardware` as arrays; a CPU without L3 has two levels.

    Integers are multiplied by one instruction and added by another, unless a dot instruction sums the products of
    groups.

    A dot instruction replaces the multiply-add. Compilers do not fold a broadcast into it (LLVM 22): each broadcast
    fills a register, at the rate of whole vectors. Source: 12 VDPBF16PS take 12 cycles on a Zen 4, 16 with a broadcast
    instruction for each of them, and 12 with one for every other.
    """
    compute = hardware.compute
    fma_per_cycle, fma_latency = compute.fma_per_cycle, compute.fma_latency_cycles
    folds_broadcasts = compute.isa == "avx512"
    broadcasts = compute.broadcasts_per_cycle or compute.loads_per_cycle
    stores_per_cycle = compute.stores_per_cycle
    product_ops, product_registers = (2.0 if is_integer and dot is None else 1.0), 0.0
    instruction = hardware.dot_instruction(dot.instruction) if dot is not None else None
    if dot is not None and instruction is not None:
        fma_per_cycle *= instruction.rate / dot.size
        fma_latency = instruction.latency_cycles
        folds_broadcasts, broadcasts = False, compute.loads_per_cycle
        if dot.instruction in WIDENED:
            product_ops, product_registers = 2.0, 1.0
        if dot.instruction in HALF_SUMS:
            stores_per_cycle = 1.0 / (1.0 / stores_per_cycle + WHOLE_SUM_CYCLES)
    registers, register_limit, broadcasts_held = float(compute.num_vector_registers), REGISTER_LIMIT, 1.0
    call_cycles, loads = CALL_CYCLES, compute.loads_per_cycle
    if dot is not None and dot.instruction in TILES:
        registers, register_limit, broadcasts_held = float(TILE_REGISTERS), 1.0, float(TILE_REGISTERS)
        call_cycles += TILE_CONFIG_CYCLES
        # results go through the stack: a tile is stored there, and its vectors are loaded and stored
        unit = hardware.tiles or TILE_UNIT
        stores_per_cycle = 1.0 / (
            unit.store_cycles + TILE_ROWS * (1.0 / compute.loads_per_cycle + 1.0 / stores_per_cycle)
        )
        fma_per_cycle, fma_latency = 1.0 / unit.product_cycles, unit.latency_cycles
        loads = broadcasts = 1.0 / unit.load_cycles
        folds_broadcasts = False
    caches = [cache for cache in (hardware.l1, hardware.l2, hardware.l3) if cache is not None]
    core = CpuCore(
        fma_per_cycle=float(fma_per_cycle),
        product_ops=product_ops,
        product_registers=product_registers,
        vector_ops=float(compute.vector_ops_per_cycle or compute.issue_width),
        fma_latency=float(fma_latency),
        registers=registers,
        loads=float(loads),
        broadcasts=float(broadcasts),
        stores=float(stores_per_cycle),
        issue_width=float(compute.issue_width),
        clock_hz=float(compute.clock_hz),
        num_cores=float(compute.num_cores),
        usable_cores=compute.usable_cores,
        reachable=float(compute.reachable_fraction),
        line_bytes=float(hardware.l1.line_bytes),
        dram_core_bytes_s=float(hardware.dram.core_bandwidth_bytes_per_s),
        dram_socket_bytes_s=float(hardware.dram.bandwidth_bytes_per_s),
        broadcasts_held=broadcasts_held,
        folds_broadcasts=float(folds_broadcasts),
        call_cycles=call_cycles,
        loop_instructions=LOOP_INSTRUCTIONS,
        held_share=HELD_SHARE,
        exposed_share=EXPOSED_SHARE,
        start_s=float(hardware.launch.parallel_start_s) if hardware.launch else PARALLEL_START_S,
        register_limit=register_limit,
        multiply_add_limit=MULTIPLY_ADD_LIMIT / product_ops,
    )
    return CpuMachine(
        core=core,
        size_bytes=np.array([c.size_bytes * (1.0 - 1.0 / max(c.ways, 2)) for c in caches], dtype=np.float64),
        shared_by=np.array([c.shared_by_cores for c in caches], dtype=np.float64),
        fill_bytes_per_cycle=np.array([*(c.bandwidth_bytes_per_cycle for c in caches[1:]), 1.0], dtype=np.float64),
    )


def _set_gap(distance: int, cache_size: int, ways: int) -> int:
    """Return gcd(distance, bytes of a way): the distance in the sets of a cache of addresses `distance` bytes apart.

    Physical pages are placed at random, so strides of a page and more collide no further than within a page.
    """
    return math.gcd(distance, min(_PAGE_BYTES, max(1, cache_size // ways)))


def _row_set_gap(access: Access, element: int, cache_size: int, ways: int) -> float:
    """Return the distance in the sets of a cache of neighbouring rows of the last dimension."""
    return float(_set_gap(access.shape[-1] * element, cache_size, ways)) if len(access.shape) > 1 else 0.0


def _is_ragged(access: Access, element: int, line: int) -> bool:
    """Return whether rows of the last dimension can begin inside a cache line.

    Parts of such rows touch one line more.
    """
    return len(access.shape) > 1 and access.shape[-1] * element % line > 0


def _copy_bytes(access: Access, extents: dict[str, int], dtype: str) -> float:
    """Return the bytes that a copy of all touched elements moves: read, allocated, and written as `dtype`."""
    touched = access.footprint(extents)
    return float(DTYPE_BYTES[access.dtype] * min(access.num_elements, touched) + DTYPE_BYTES[dtype] * 2 * touched)


_CONVERSIONS = {"float16": 1.0, "bfloat16": 2.0, "int8": 1.0, "uint8": 1.0}
"""Number of vector instructions that convert a vector to the type of the accumulators.

They are VCVTPH2PS; VPMOVZXWD and a shift; VPMOVSXBD. Whole groups need none, except pairs of 8 bits (VPMOVSXBW).
"""


def _conversions(access: Access, dtype: str, dot: DotGroup | None) -> float:
    """Return the number of vector instructions between a load of an operand, held as `dtype`, and the multiply-add."""
    if dot is None:
        shifts = access.zero_point != 0 and dtype == access.dtype
        return _CONVERSIONS.get(dtype, 0.0) + float(shifts)
    if access.tensor == dot.vectors:
        return _CONVERSIONS[dtype] if dot.instruction in WIDENED else 0.0
    return float(dot.flips)


def moving_cycles(moved: float, rate: float, hardware: CpuSpec) -> float:
    """Return the core cycles of a copy from the nearest cache that holds its data.

    Parameters
    ----------
    moved : float
        Bytes: read, allocated and written.
    rate : float
        Most bytes in a cycle: `COPY_BYTES_PER_CYCLE` for whole rows, `PACK_BYTES_PER_CYCLE` element by element.
    """
    for inner, outer in ((hardware.l1, hardware.l2), (hardware.l2, hardware.l3)):
        if moved > inner.size_bytes and outer is not None:
            rate = min(rate, outer.bandwidth_bytes_per_cycle)
    last = hardware.l3 or hardware.l2
    if moved > last.size_bytes:
        rate = min(rate, hardware.dram.core_bandwidth_bytes_per_s / hardware.compute.clock_hz)
    return moved / rate


def _pack_padding(
    space: CpuSpace, number: dict[str, int], copied: Collection[str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return `CpuNest.padding` and `inside_share`. An operand that is always copied counts as padded."""
    workload, simd = space.workload, space.simd_axis
    counts_padding = space.dot is not None and space.dot.shift != 0  # see `DotGroup.shift`
    extents = workload.extents
    spatial = {axis.name for axis in workload.spatial_axes}
    rows: list[tuple[int, int, int]] = []
    shares: list[float] = []
    for x, access in enumerate(workload.reads):
        if access.tensor in copied:
            rows.append((x, -1, -1))
            shares.append(1.0)
        for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True):
            last = offset + sum(term.coefficient * (extents[term.axis] - 1) for term in terms)
            if offset >= 0 and last < size:
                continue
            axes = [term for term in terms if term.axis in spatial]
            windows = [term for term in terms if term.axis not in spatial]
            if len(axes) != 1 or len(windows) != 1 or axes[0].axis == simd or counts_padding:
                rows.append((x, -1, -1))
                shares.append(1.0)
                continue
            position = np.arange(extents[axes[0].axis]) * axes[0].coefficient + offset
            index = position[:, None] + np.arange(extents[windows[0].axis]) * windows[0].coefficient
            rows.append((x, number[axes[0].axis], number[windows[0].axis]))
            shares.append(float(((index >= 0) & (index < size)).mean()))
    return np.array(rows, dtype=np.int64).reshape(-1, 3), np.array(shares, dtype=np.float64)


def _group(dot: DotGroup | None, number: dict[str, int]) -> tuple[int, int, int]:
    """Return `CpuNest.group`."""
    if dot is None:
        return -1, 1, 1
    steps, rows = (TILE_STEPS, TILE_ROWS) if dot.instruction in TILES else (1, 1)
    return number[dot.axis], dot.size * steps, rows


def _result_row(workload: Workload, simd: str, number: dict[str, int]) -> int:
    """Return the axis along which a result that is strided along the SIMD axis is contiguous, or -1."""
    if vector_stride(workload.write, simd) >= 0:
        return -1
    terms = workload.write.indices[-1]
    return number[terms[0].axis] if len(terms) == 1 and terms[0].coefficient == 1 else -1


def _sums_wait(result: Access, hardware: CpuSpec) -> float:
    """Return the cycles in which a call waits for partial sums: the latency of what holds them, if that is beyond L2.

    All sums of a call are needed at once at its end, so its products do not hide them. Source: tiles of 6x2 (AVX2) on a
    Zen 4, 504x80x1200 and 512x3088x768 in 1 to 10 parts: 11 cycles a call for sums from L2, 140 for sums from L3.
    """
    size = result.num_elements * DTYPE_BYTES[result.dtype]
    if size <= hardware.l2.size_bytes * hardware.compute.num_cores:
        return 0.0
    memory = hardware.dram.latency_s * hardware.compute.clock_hz
    return l3.latency_cycles if (l3 := hardware.l3) and size <= l3.size_bytes else memory


def pack_nest(space: CpuSpace) -> CpuNest:
    """Return the workload of the space as arrays."""
    workload, axes = space.workload, space.axes
    number = {axis: index for index, axis in enumerate(axes)}
    column = {name: index for index, name in enumerate(space.columns)}
    accesses = (*workload.reads, workload.write)
    caches = [c for c in (space.hardware.l1, space.hardware.l2, space.hardware.l3) if c is not None]
    copied = copied_dtypes(workload, space.simd_axis, space.dot)
    held = {x.tensor: copied.get(x.tensor, x.dtype) for x in accesses}
    boxes: list[tuple[int, ...]] = []
    for x, access in enumerate(accesses):
        dims = list(zip(access.indices, access.shape, strict=True))[::-1] or [((), 1)]
        distance = DTYPE_BYTES[held[access.tensor]]
        for d, (terms, size) in enumerate(dims):
            end = 2 if d == len(dims) - 1 else 1
            widest = max(terms, key=lambda term: term.coefficient, default=Term(axes[0], 1))
            collides = d > 0 and x < len(workload.reads)  # see `tensors` below
            gaps = [_set_gap(distance * widest.coefficient, c.size_bytes, c.ways) if collides else 0 for c in caches]
            collider = (number[widest.axis], *gaps)
            for t, term in enumerate(terms):
                done = end if t == len(terms) - 1 else 0
                boxes.append((x, number[term.axis], term.coefficient, done, size, *collider))
            if not terms:
                boxes.append((x, 0, 0, end, size, 0, *(0 for _ in caches)))
            distance *= size
    reductions = {axis.name for axis in workload.reduction_axes}
    tables = space.loop_tables
    loads = []
    for access in accesses:
        stride = vector_stride(access, space.simd_axis)
        loads.append(float(space.lanes) if stride < 0 else float(min(stride, space.lanes)))
    line = space.hardware.l1.line_bytes
    tensors = [
        [size, 0.0, _is_ragged(x, size, line), *(_row_set_gap(x, size, c.size_bytes, c.ways) for c in caches)]
        for x, size in ((x, DTYPE_BYTES[held[x.tensor]]) for x in workload.reads)
    ]
    # accumulators stay in registers while operands are read, so rows of the result do not collide
    written = workload.write
    element = DTYPE_BYTES[written.dtype]
    tensors.append([element, 1.0, _is_ragged(written, element, line), *(0.0 for _ in caches)])
    has_reduction = any(space.extents[axis] > 1 for axis in reductions)
    padding, inside_share = _pack_padding(space, number, copied)
    padded = set(padding[:, 0].tolist())
    return CpuNest(
        extents=np.array([space.extents[a] for a in axes], dtype=np.int64),
        is_reduction=np.array([a in reductions for a in axes], dtype=np.int64),
        columns=tables.columns,
        order_columns=tables.order_columns,
        orders=tables.orders,
        pack_columns=np.array([column.get(f"pack.{x.tensor}", -1) for x in accesses], dtype=np.int64),
        pack_ties=np.array([-1 if x.tensor in space.packed_ahead else 1 for x in accesses], dtype=np.int64),
        boxes=np.array(boxes, dtype=np.int64).reshape(-1, 6 + len(caches)),
        uses=np.array([[x.uses(a) for a in axes] for x in accesses], dtype=np.int64),
        tensors=np.array(tensors, dtype=np.float64),
        vector_loads=np.array(loads),
        conversions=np.array([_conversions(x, held[x.tensor], space.dot) for x in accesses]),
        copy_bytes=np.array(
            [0.0 if x.tensor in space.packed_ahead else _copy_bytes(x, space.extents, held[x.tensor]) for x in accesses]
        ),
        # contiguous rows of lanes are copied whole, others element by element
        copy_rate=np.array(
            [COPY_BYTES_PER_CYCLE if vector_stride(x, space.simd_axis) == 1 else PACK_BYTES_PER_CYCLE for x in accesses]
        ),
        simd=np.array([number[space.simd_axis], space.lanes, column["parallel"], has_reduction], dtype=np.int64),
        padding=padding,
        inside_share=inside_share,
        pad_cycles=np.array(
            [
                moving_cycles(_copy_bytes(x, space.extents, held[x.tensor]), COPY_BYTES_PER_CYCLE, space.hardware)
                if i in padded
                else 0.0
                for i, x in enumerate(accesses)
            ]
        ),
        group=np.array(_group(space.dot, number), dtype=np.int64),
        sums_wait=_sums_wait(workload.write, space.hardware),
        result_row=_result_row(workload, space.simd_axis, number),
    )
