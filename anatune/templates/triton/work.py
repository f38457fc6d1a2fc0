"""The work of one stage of a block of Triton's tiles: products, instructions, bytes through shared memory, copies.

`KernelModel` describes how the blocks of a kernel cover its product. The class itself is for plain products; other
kinds of kernels have subclasses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton import cdna
from anatune.templates.triton.constants import Constants
from anatune.templates.triton.instructions import DotUnit, has_descriptors, instruction_of, instructions_of
from anatune.templates.triton.memory import Grid, Traffic, traffic
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import (
    LEAST_CAPABILITY,
    WARP,
    ExtraNeeds,
    Resources,
    most_registers,
    multiply_adds_per_cycle,
)
from anatune.templates.triton.tiles import Tiles

__all__ = ["PRODUCT", "KernelModel", "Work", "stage_work"]

Floats = NDArray[np.float64]

_CAPABILITY_OF_FP8 = 8.9
_COPY_BYTES = 16
_FLOAT8_SHARE = 0.375
"""Time to convert an 8-bit float to float16, relative to other conversions: 16 lanes of a quarter SM convert two
elements per cycle, and half as many instructions unpack them. Source: CUDA C++ Programming Guide, throughput of
conversions from 8 bits; the instructions of Triton 3.9's code for sm_90."""
_LINES = 64.0
"""Bytes of a copied row per cycle: two lines of 128 bytes are looked up per cycle. Assumed."""
_FMA_WINDOW = 1600.0
"""Values of a stage plus results of a thread that the compiler keeps without many spills. Fitted."""
_RELOADS = 0.2
"""Loads of spilled registers per value beyond that. Source: machine code of Triton 3.0 for sm_80, 128 x 128 x 64."""
_SPILL_BYTES = 64.0
"""Bytes of spilled registers that an SM moves per cycle. Assumed: half the width of its L1."""


@dataclass(frozen=True)
class Work:
    """The work of one stage of a block, (num_tiles,) each."""

    compute: Floats
    """Cycles of the multiplying unit, if the whole SM works for the block."""
    issue: Floats
    """Cycles in which the warps issue instructions."""
    shared: Floats
    """Cycles of the shared memory, including copies."""
    convert: Floats
    """Cycles to convert an operand."""
    chain: Floats
    """Cycles of dependent products."""
    asynchronous: NDArray[np.bool_]
    """True if copies run beside the products."""
    serial: Floats
    """Cycles of a stage that begin after its products, and that the next products wait for."""


@dataclass(frozen=True)
class _TileFloats:
    """The sizes of tiles as floats, and the bytes of their operands in shared memory."""

    m: Floats
    n: Floats
    k: Floats
    warps: Floats
    left: Floats
    right: Floats

    @classmethod
    def of(cls, problem: MatmulProblem, tiles: Tiles) -> _TileFloats:
        m, n, k = (t.astype(np.float64) for t in (tiles.block_m, tiles.block_n, tiles.block_k))
        left, right = m * k * problem.element_bytes, n * k * problem.right_element_bytes
        return cls(m, n, k, tiles.num_warps.astype(np.float64), left, right)


def stage_work(problem: MatmulProblem, tiles: Tiles, need: Resources, spec: GpuSpec, constants: Constants) -> Work:
    """Return the work of one stage of every tile."""
    t = _TileFloats.of(problem, tiles)
    unit = need.unit
    is_mma, is_fma = unit == DotUnit.MMA, unit == DotUnit.FMA
    # steps of k per tensor-core instruction
    deep = {4: 8.0, 2: 16.0, 1: 32.0}[problem.element_bytes]
    if problem.is_float8 and (spec.compute_capability or 0.0) < _CAPABILITY_OF_FP8:
        deep = 16.0  # converted to float16
    instructions = None if spec.arch.startswith("gfx") else instructions_of(spec.arch, problem.dtype)
    halves = (
        problem.is_float8 and instructions is not None and instructions[instructions[1].unit == DotUnit.MMA].emulated
    )
    repeated, mma_slots, mma_reads, mma_converted = _mma(problem, tiles, t, 16.0 if halves else deep)
    if spec.arch in cdna.ARCHS:
        is_mma = unit == DotUnit.MFMA
        instruction = instruction_of(spec, problem.dtype)
        deep = float(instruction.depth)
        repeated, mma_slots, mma_reads, mma_converted = cdna.products(problem, tiles, instruction)
    wide_reads, wide_converted = _wide(problem, t, unit)
    lanes = _fma(problem, t, spec)
    copy_slots, copied, asynchronous = _copies(problem, t, spec, constants)
    if has_descriptors(spec):
        copy_slots = np.where(tiles.descriptors > 0, constants.copy_instructions, copy_slots)

    rate = np.array([_rate(spec, problem.dtype, code, unit, constants) for code in DotUnit])[unit]
    compute = t.m * t.n * t.k * np.where(is_mma, repeated, 1.0) / rate
    unit_slots = np.where(is_fma, lanes.slots, np.where(is_mma, mma_slots, t.k / deep))
    issue = (unit_slots + copy_slots + t.warps * constants.step_instructions) / spec.compute.issue_per_cycle_per_sm
    moved = np.where(tiles.promote > 0, t.m * t.n / WARP * t.k / np.maximum(tiles.promote, 1), 0.0)
    issue = issue + moved / spec.compute.issue_per_cycle_per_sm
    reads = np.where(is_fma, lanes.reads, np.where(is_mma, mma_reads, wide_reads))
    needed = need.registers + need.spilled + _pointer_registers(problem, t)
    cap = np.minimum(most_registers(spec), spec.registers.per_block // need.threads)
    spilled = np.maximum(need.spilled, needed - cap)
    spilled = spilled * need.threads * 8.0 / _SPILL_BYTES
    shared = (reads + copied) / spec.shared_memory.bytes_per_cycle_per_sm + spilled
    latency = spec.tensor_cores.latency_cycles if spec.tensor_cores is not None else 33.0
    chain = np.where(is_fma, lanes.chain, t.k / deep * latency)
    converted = np.where(is_mma, mma_converted, np.where(is_fma, 0.0, wide_converted))
    convert = converted / (constants.converted_per_warp * spec.compute.issue_per_cycle_per_sm)
    return Work(compute, issue, shared, convert, chain, asynchronous, np.zeros(len(tiles)))


def _mma(problem: MatmulProblem, tiles: Tiles, t: _TileFloats, deep: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (repetition of products, instructions, bytes read, elements converted) of ``mma.sync``.

    Warps form a grid. If the tile is too small for the grid, warps repeat the work of others.
    """
    warps_m, warps_n = _warp_grid(tiles)
    repeated = np.maximum(1.0, 16.0 * warps_m / t.m) * np.maximum(1.0, 8.0 * warps_n / t.n)
    reads = t.left * warps_n + t.right * warps_m
    # 32-bit operands that do not run along k have no transposing loads: each lane loads a word at a time
    words = [4.0 if problem.element_bytes == 4 and not k else 1.0 for k in (problem.a_along_k, not problem.b_along_n)]
    slots = t.m * t.n * t.k * repeated / (128.0 * deep)
    slots = slots + (words[0] * t.left * warps_n + words[1] * t.right * warps_m) / 512.0
    if problem.is_float8:
        slots = slots + reads / (4.0 * WARP) * (1.0 if problem.b_along_n else 0.25)  # shuffles, conversions
    converted = t.n * t.k * warps_m if problem.converts else np.zeros(len(tiles))
    if problem.is_float8 and deep == 16.0:  # to float16, two elements per instruction
        converted = (t.m * t.k * warps_n + t.n * t.k * warps_m) * _FLOAT8_SHARE
    return repeated, slots, reads, converted


def _wide(problem: MatmulProblem, t: _TileFloats, unit: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return (bytes read, elements converted) of ``wgmma`` and ``tcgen05``, which read operands from shared memory.

    Each 64 rows (tcgen05: 128) of the left operand are multiplied by the whole right operand.
    """
    groups = np.maximum(1.0, t.warps / 4.0)
    groups_n = np.maximum(1.0, groups / np.maximum(1.0, t.m / 64.0))
    rows = np.where(unit == DotUnit.TCGEN05, 128.0, 64.0)
    right = t.n * t.k * problem.element_bytes
    reads = t.left * groups_n + right * np.maximum(1.0, t.m / rows)
    if not problem.converts:
        return reads, np.zeros(len(t.m))
    return reads + t.right + right, t.n * t.k  # the right operand is read, converted and written again


@dataclass(frozen=True)
class _Lanes:
    """The cost of one stage of products on CUDA cores, (num_tiles,) each."""

    slots: Floats
    """Instructions of a block."""
    reads: Floats
    """Cycles of the shared memory, times its width in bytes."""
    chain: Floats
    """Cycles of a thread that waits for each of its loads."""


def _fma(problem: MatmulProblem, t: _TileFloats, spec: GpuSpec) -> _Lanes:
    """Return the cost of one stage of products on CUDA cores.

    A thread has squares of up to 4 x 4 results, `side` wide. Lanes lie along n first. A thread loads 16 bytes of an
    operand that runs along k, else `side` values. Rows of shared memory are not swizzled: lanes along n that read the
    right operand along k all access the same bank, each in a cycle of its own. Lanes of a half-warp that read the same
    16 bytes take one cycle together; different lanes of a quarter warp take one each.

    Source: layouts and loads of Triton 3.0's and 3.9's machine code for sm_80 and sm_90, which agree. The cycles follow
    from recorded times of both, whose products are bound by them (32 for 16 bytes along k: 1.00 of the time).
    """
    results = np.maximum(1.0, t.m * t.n / (t.warps * WARP))
    side = np.where(results >= 16.0, 4.0, np.where(results >= 4.0, 2.0, 1.0))
    lanes = np.minimum(WARP, t.n / side)
    columns = t.n / np.minimum(t.n / side, lanes * t.warps)
    rows = np.maximum(1.0, results / columns)
    along = np.minimum(4.0, t.k)  # values of one load along k
    left = rows * t.k / (along if problem.a_along_k else side)
    right = columns * t.k / (side if problem.b_along_n else along)
    left_cycles = along * 8.0 / np.minimum(lanes, 16.0) if problem.a_along_k else np.maximum(1.0, side / 2.0)
    right_cycles = side if problem.b_along_n else along * np.minimum(8.0, lanes)
    width = spec.shared_memory.bytes_per_cycle_per_sm
    slots = t.m * t.n * t.k / WARP * np.maximum(1.0, t.warps * WARP / (t.m * t.n)) + t.warps * (left + right)
    reads = t.warps * (left * left_cycles + right * right_cycles) * width
    # the compiler loads the values of a whole stage before it multiplies, and spills those that it cannot keep
    over = np.maximum(0.0, (rows + columns) * t.k + results - _FMA_WINDOW)
    # 16 bytes of each lane arrive in 8 cycles; four values along m or k of each row are one wait
    waits = spec.shared_memory.latency_cycles + 8.0 + spec.compute.fma_latency_cycles
    return _Lanes(slots, reads, rows * t.k / 4.0 * waits + over * _RELOADS * spec.l2.latency_cycles)


def _copies(
    problem: MatmulProblem, t: _TileFloats, spec: GpuSpec, constants: Constants
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return (instructions of the copies of a stage, bytes that they write, whether they are asynchronous)."""
    run_m = (t.k if problem.a_along_k else t.m) * problem.element_bytes
    run_n = (t.n if problem.b_along_n else t.k) * problem.right_element_bytes
    first, second = problem.runs
    run_m = np.minimum(run_m, first * problem.element_bytes) if first else run_m
    run_n = np.minimum(run_n, second * problem.right_element_bytes) if second else run_n
    copied = t.left * np.maximum(1.0, _LINES / run_m) + t.right * np.maximum(1.0, _LINES / run_n)
    width_m = _copy_width(first or (problem.k if problem.a_along_k else problem.m), problem.element_bytes)
    width_n = _copy_width(second or (problem.n if problem.b_along_n else problem.k), problem.right_element_bytes)
    lanes = spec.compute.warp_size
    copies_m, copies_n = (np.maximum(t.warps, t.left / width_m / lanes), np.maximum(t.warps, t.right / width_n / lanes))
    copies = copies_m + copies_n
    guarded = constants.guard_instructions * (copies_m * problem.guards[0] + copies_n * problem.guards[1])
    capability = spec.compute_capability or 0.0
    by_engine = capability >= LEAST_CAPABILITY or spec.arch == cdna.DIRECT_ARCH
    direct = np.full(len(t.m), by_engine and min(width_m, width_n) >= 4)
    # before gfx950, CDNA keeps the next stage in registers (`cdna.registers`), and its waves store it
    asynchronous = direct | (spec.arch in cdna.ARCHS)
    slots = copies * (constants.copy_instructions + np.where(direct, 0.0, 2.0)) + guarded
    return slots, copied, asynchronous


def _pointer_registers(problem: MatmulProblem, t: _TileFloats) -> Floats:
    """Return the additional registers of a thread for operands whose rows are not aligned to 16 bytes.

    They hold addresses. Copies narrower than 4 bytes are not asynchronous, so that their values wait in registers, too.
    """
    total = np.zeros(len(t.m))
    for loaded, pitch, element in (
        (t.left, problem.runs[0] or (problem.k if problem.a_along_k else problem.m), problem.element_bytes),
        (t.right, problem.runs[1] or (problem.n if problem.b_along_n else problem.k), problem.right_element_bytes),
    ):
        width = _copy_width(pitch, element)
        each = 2.0 + (1.0 if width < 4 else 0.0)
        total += loaded / (t.warps * WARP) * (each / width - 2.0 / _COPY_BYTES)
    return total


def _rate(spec: GpuSpec, dtype: str, unit: DotUnit, used: NDArray[np.int64], constants: Constants) -> float:
    """Return the rate of a unit, or 1 if no tile uses it."""
    if not (used == unit).any():
        return 1.0
    alone = 1.0 / spec.compute.reachable_fraction  # the losses of FMA are counted separately
    by_registers = unit in (DotUnit.MMA, DotUnit.MFMA)
    reach = alone if unit == DotUnit.FMA else constants.reach_mma if by_registers else constants.reach_wide
    return multiply_adds_per_cycle(spec, dtype, unit) * reach


def _warp_grid(tiles: Tiles) -> tuple[Floats, Floats]:
    """Return the warps along m and n. Source: warpsPerTile of Triton's AcceleratedMatmul for mma.sync."""
    rows, columns = np.ones(len(tiles)), np.ones(len(tiles))
    while True:
        more = rows * columns < tiles.num_warps
        if not more.any():
            return rows, columns
        along_m = (tiles.block_m / 32.0 / rows >= tiles.block_n / 8.0 / columns) & (rows < tiles.block_m / 16.0)
        rows = np.where(more & along_m, 2.0 * rows, rows)
        columns = np.where(more & ~along_m, 2.0 * columns, columns)


def _copy_width(extent: int, element: float) -> float:
    """Return the bytes that one copy of a thread moves. Rows of the operand must start at multiples of it."""
    width = _COPY_BYTES
    while width > element and extent * element % width:
        width //= 2
    return float(width)


class KernelModel:
    """The parts of the time that depend on the kind of kernel, for `times.score_tiles`; here of a plain product."""

    def grid(self, problem: MatmulProblem, tiles: Tiles, need: Resources) -> Grid:
        """Return the blocks that cover the product."""
        return Grid.of(problem, tiles, need)

    def traffic(
        self, problem: MatmulProblem, tiles: Tiles, grid: Grid, spec: GpuSpec, *, warm: int, pieces: float
    ) -> Traffic:
        """Return the bytes that blocks take from L2 and DRAM."""
        return traffic(problem, tiles, grid, spec, warm=warm, pieces=pieces)

    def work(self, problem: MatmulProblem, tiles: Tiles, need: Resources, spec: GpuSpec, constants: Constants) -> Work:
        """Return the work of one stage of a block."""
        return stage_work(problem, tiles, need, spec, constants)

    def extra_needs(self) -> ExtraNeeds | None:
        """Return the resources of blocks in addition to operands and sums."""
        return None

    def idle_cycles(self, tiles: Tiles, grid: Grid, spec: GpuSpec, constants: Constants) -> Floats:
        """Return the cycles of blocks without work, of all SMs together."""
        return np.zeros(len(tiles))


PRODUCT = KernelModel()
