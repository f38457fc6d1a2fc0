"""Predicted time of kernels on rows: latency and work of a block, then waves of blocks, and limits of the memories.

Kernels on rows compute little. They are bound by their bytes if enough loads are in flight: the loads of all blocks of
an SM are in flight together, and the rate is their bytes over the latency of one load (Source: [Little]). Blocks that
wait for reductions across warps have no loads in flight. All functions take whole batches as NumPy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.access import DTYPE_BYTES, Access
from anatune.core.workload.nest import Workload
from anatune.templates.base.model import Rule
from anatune.templates.base.rules import Limit, find_first_broken
from anatune.templates.gpu.rules import GRID_RULE, block_rules
from anatune.templates.gpu.times.waves import cycles_in_waves, norm
from anatune.templates.triton.constants import CONSTANTS
from anatune.templates.triton.instructions import DotUnit
from anatune.templates.triton.memory import Traffic
from anatune.templates.triton.resources import Resources, register_cap, residency
from anatune.templates.triton.rows.rules import BODIES, RowShape, rows_of
from anatune.templates.triton.times import TileScores

__all__ = ["MOST_ELEMENTS", "PARTS", "Moved", "moved_of", "row_rules", "score_rows"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARTS = ("issue_s", "functions_s", "l2_s", "dram_s", "latency_s", "tail_s", "launch_s")
_VECTOR_BYTES = 16
_SECTOR = 32.0
_FUNCTIONS_PER_CYCLE = 16.0
"""Results of an SM's special function units per cycle. Source: [CUDA-guide] arithmetic throughput, sm_75 to sm_100."""
_SHUFFLE_CYCLES = 30.0
"""Cycles of a shuffle and the addition that depends on it. Assumed: the latency of shared memory."""
_BARRIER_CYCLES = 40.0
"""Cycles of a barrier. Source: `CONSTANTS.step_cycles`, barrier and drain."""
MOST_ELEMENTS = 2048
"""Most elements of a warp's tile. With more, the compiler no longer issues all loads ahead, and spills sums. Tested
with Triton 3.9 on sm_80, sm_90, sm_100 and gfx942, on tiles of 1 to 256 elements per thread."""
_ELEMENTS_RULE = Rule("warp_elements", "elements of a tile for each warp", float(MOST_ELEMENTS))
_REGISTER_BYTES = 4.0
_FIXED_REGISTERS = {"nvidia": 16.0, "amd": 24.0}
_STEP_REGISTERS = 10.0
_ARRIVING_WHOLE, _ARRIVING = {"nvidia": 0.7, "amd": 1.0}, {"nvidia": 0.55, "amd": 1.0}
"""Registers of a thread for addresses, indices and constants; registers of a loop; shares of operands that are in
registers at the same time, in kernels that keep a row and in others. Fitted to kernels that Triton 3.9 compiled for
sm_90 and gfx942."""
_PARTITIONED = ("sm_80", "sm_90", "sm_100", "sm_103")
"""Architectures whose L2 has two partitions, each of which keeps what its SMs read. Source: NVIDIA A100 white paper."""
_STREAMED = 0.6
"""Share of the nominal rate of such an L2 for lines that are read once. Fitted to kernels that move 4 to 30 MB
(``bench.replay.tensorcores_rows``, odd half): H100 0.58, B200 0.7."""
_KEPT = {False: (0.8, 1.2), True: (0.5, 1.0)}
"""Sizes relative to L2 up to which all is kept, and from which nothing is kept. Fitted likewise: L40S; H100, B200."""
_OVERLAP = 4.0
"""Exponent of the norm over SMs, L2 and DRAM; the same as in `gpu.times.waves.norm4`."""
_ROW_INSTRUCTIONS = 60.0
"""Instructions of a warp before and after its elements: indices, masks, scalars. Counted in compiled kernels."""


@dataclass(frozen=True)
class Moved:
    """The bytes that a workload on rows moves.

    Attributes
    ----------
    row_reads : tuple of (float, int)
        Elements per column, and bytes of an element, for each operand that differs by row.
    shared_reads : tuple of (float, int)
        The same for operands that all rows share: weights, angles.
    writes : tuple of (float, int)
        The same for results.
    read_bytes, written_bytes, shared_bytes : int
        Bytes of the whole tensors that rows read, write and share.
    """

    row_reads: tuple[tuple[float, int], ...]
    shared_reads: tuple[tuple[float, int], ...]
    writes: tuple[tuple[float, int], ...]
    read_bytes: int
    written_bytes: int
    shared_bytes: int

    @property
    def row_bytes(self) -> float:
        """Bytes that are read for one column of a row."""
        return sum(count * size for count, size in self.row_reads)


def moved_of(workload: Workload, rows: RowShape) -> Moved:
    """Return the bytes that a workload on rows moves."""
    elements = rows.rows * rows.cols

    def of(accesses: list[Access]) -> tuple[tuple[float, int], ...]:
        return tuple((float(access.num_elements // elements), DTYPE_BYTES[access.dtype]) for access in accesses)

    row_operands = [access for access in workload.reads if access.num_elements >= elements and rows.rows > 1]
    row_operands = row_operands or [workload.reads[0]]
    shared = [access for access in workload.reads if access not in row_operands and access.num_elements > 1]
    results = [workload.write, *(access for access in workload.further if access.num_elements >= elements)]
    return Moved(
        row_reads=of(row_operands),
        shared_reads=tuple((1.0, DTYPE_BYTES[access.dtype]) for access in shared),
        writes=of(results),
        read_bytes=sum(access.num_bytes for access in row_operands),
        written_bytes=workload.write.num_bytes + sum(access.num_bytes for access in workload.further),
        shared_bytes=sum(access.num_bytes for access in shared),
    )


@dataclass(frozen=True)
class _RowTile:
    """Sizes of tiles, and the arrangement of lanes on them, (num_tiles,) each."""

    rows: Floats
    cols: Floats
    warps: Floats
    steps: Floats
    """Steps of a pass over a row."""
    blocks: Floats
    elements: Floats
    """Elements of a thread in a step, including those beyond the row."""
    vector: Floats
    """Elements of a load."""
    warps_across: Floats
    lanes_across: Floats

    @classmethod
    def of(cls, sizes: RowShape, points: Ints, moved: Moved, spec: GpuSpec) -> _RowTile:
        rows, cols, warps = (column.astype(np.float64) for column in points.T)
        warp = float(spec.compute.warp_size)
        elements = np.maximum(1.0, rows * cols / (warps * warp))
        smallest = min(size for _, size in (*moved.row_reads, *moved.writes))
        # rows whose length is not a multiple of a vector begin at any element
        aligned = float(sizes.cols & -sizes.cols)
        vector = np.minimum(np.minimum(elements, cols), min(_VECTOR_BYTES / smallest, aligned))
        # Triton arranges lanes, then warps, along columns first
        lanes = np.minimum(warp, np.maximum(1.0, cols / vector))
        across = np.minimum(warps, np.maximum(1.0, cols / (vector * lanes)))
        col_blocks = np.ceil(sizes.cols / cols)
        blocks = np.ceil(sizes.rows / rows) * (1.0 if sizes.is_whole else col_blocks)
        steps = col_blocks if sizes.is_whole else np.ones_like(cols)
        return cls(rows, cols, warps, steps, blocks, elements, vector, across, lanes)


def score_rows(
    workload: Workload, points: Ints, spec: GpuSpec, *, warm: bool = False, compiled: Floats | None = None
) -> TileScores:
    """Predict the time of every tile.

    Parameters
    ----------
    points : (num_tiles, 3) int64
        Rows and columns of a tile, warps.
    warm : bool
        Whether the kernel is repeated without a break, so that L2 holds what fits. Otherwise operands come from DRAM.
    compiled : (3, num_tiles), optional
        A compiler's numbers: registers of a thread, shared bytes of a block, spilled registers of a thread.
    """
    sizes = rows_of(workload)
    moved = moved_of(workload, sizes)
    tile = _RowTile.of(sizes, points, moved, spec)
    compute = spec.compute
    need = _resources(sizes, tile, moved, points[:, 2], spec, compiled)
    resident = need.resident.astype(np.float64)
    held = np.minimum(resident, np.ceil(tile.blocks / compute.num_sms))

    kept = _kept_share(moved, spec) if warm else 0.0
    l2_bytes, dram_bytes = _traffic(sizes, tile, moved, held, spec, kept)
    issue, functions = _work(sizes, tile, moved, spec)
    alone = _cycles_alone(sizes, tile, moved, issue, functions, spec, kept)
    clock, num_sms = compute.clock_hz, float(compute.num_sms)
    port = l2_bytes / tile.blocks / CONSTANTS.l2_port_bytes
    busy = norm(_OVERLAP, issue, functions, port)

    def wave(at_once: Floats) -> Floats:
        return norm(_OVERLAP, alone, at_once * busy)

    full, cycles = cycles_in_waves(tile.blocks, resident, num_sms, wave, 0.0, CONSTANTS.tail_overlap)
    l2_s = l2_bytes / _streamed_bytes_per_s(spec)
    dram_s = dram_bytes / (spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction)
    launch_s = np.full(len(points), spec.launch.overhead_s)
    waves = tile.blocks / (num_sms * resident)
    each = tile.blocks / num_sms / clock
    parts = {
        "issue_s": issue * each,
        "functions_s": functions * each,
        "l2_s": l2_s,
        "dram_s": dram_s,
        "latency_s": np.maximum(0.0, waves * alone / clock - np.maximum(issue, functions) * each),
        "tail_s": np.maximum(0.0, cycles - waves * full) / clock,
        "launch_s": launch_s,
    }
    # bytes from DRAM pass through L2 at the same time
    time_s = norm(_OVERLAP, cycles / clock, np.maximum(l2_s, dram_s)) + launch_s
    traffic = Traffic(l2_bytes / tile.blocks, l2_bytes, dram_bytes, kept)
    return TileScores(time_s, need, parts, waves, traffic)


@lru_cache(maxsize=64)
def row_rules(spec: GpuSpec) -> tuple[Rule, ...]:
    """Return the rules for tiles on a device in the order in which they are tested. All bodies have the same."""
    sizes, points = RowShape(1, 1, BODIES["softmax"]), np.empty((0, 3), dtype=np.int64)
    moved = Moved(((1.0, 4),), (), ((1.0, 4),), 0, 0, 0)
    return _resources(sizes, _RowTile.of(sizes, points, moved, spec), moved, points[:, 2], spec, None).rules


def _resources(
    sizes: RowShape, tile: _RowTile, moved: Moved, warps: Ints, spec: GpuSpec, compiled: Floats | None
) -> Resources:
    """Return the resources of blocks, and the first rule that each breaks; `compiled`: see `score_rows`."""
    threads = warps * spec.compute.warp_size
    needed, cap = _registers(sizes, tile, moved, spec.vendor), register_cap(warps, spec)
    registers, shared = np.minimum(needed, cap).astype(np.int64), _shared_bytes(sizes, tile)
    if compiled is not None:
        registers, shared = compiled[:2].astype(np.int64)
    part, held = tile.rows * tile.cols, "elements of a row and addresses of a thread"
    threads_rule, shared_rule, registers_rule = block_rules(spec, "bytes that warps exchange", held)
    table = (
        Limit(_ELEMENTS_RULE, part / warps, part > MOST_ELEMENTS * warps),
        Limit(threads_rule, threads),
        Limit(shared_rule, shared),
        Limit(registers_rule, needed, needed > cap),
        Limit(GRID_RULE, tile.blocks),
    )
    resident, limiter = residency(spec, threads, registers, shared)
    unit, spilled = np.full(len(warps), DotUnit.FMA), np.maximum(0.0, needed - cap)
    return Resources(
        unit, threads, tile.elements, registers, spilled, shared, tile.blocks, resident, limiter,
        *find_first_broken(table),
    )  # fmt: skip


def _registers(sizes: RowShape, tile: _RowTile, moved: Moved, vendor: str) -> Floats:
    """Return the registers that the compiler would use: for elements that are kept, and for others as they arrive."""
    shared = sum(count * size for count, size in moved.shared_reads) / _REGISTER_BYTES
    if sizes.is_whole:
        live = 1.0 + _ARRIVING_WHOLE[vendor] * shared
    else:
        live = _ARRIVING[vendor] * (shared + moved.row_bytes / _REGISTER_BYTES)
    more = np.where(tile.steps > 1, _STEP_REGISTERS + sizes.body.sums * tile.elements, 0.0)
    total: Floats = np.ceil(_FIXED_REGISTERS[vendor] + more + live * tile.elements)
    return total


def _shared_bytes(sizes: RowShape, tile: _RowTile) -> Ints:
    """Return the bytes that the warps of a row exchange."""
    needed = np.where((tile.warps_across > 1) & sizes.is_whole, tile.rows * tile.warps_across * 4.0, 0.0)
    return needed.astype(np.int64)


def _row_sectors(sizes: RowShape, count: float, size: int) -> float:
    """Return the bytes of the sectors of a row's elements. Half of the unaligned rows touch one sector more."""
    row = count * sizes.cols * size
    return row if row % _SECTOR == 0 else row + _SECTOR / 2


def _traffic(
    sizes: RowShape, tile: _RowTile, moved: Moved, held: Floats, spec: GpuSpec, kept: float
) -> tuple[Floats, Floats]:
    """Return (bytes between SMs and L2, bytes between L2 and DRAM).

    A row that is read again comes from L1 if the rows of all resident blocks fit there, else from L2. It comes from
    DRAM if the rows of all SMs do not fit in half of L2.
    """
    in_flight = held * tile.rows * sizes.cols * moved.row_bytes
    again = np.where(tile.steps > 1, sizes.body.passes - 1.0, 0.0)
    in_l1 = in_flight <= spec.l1.size_bytes / 2.0
    in_l2 = in_flight * spec.compute.num_sms <= spec.l2.size_bytes / 2.0
    rows_read = sizes.rows * sum(_row_sectors(sizes, count, size) for count, size in moved.row_reads)
    written = sizes.rows * sum(_row_sectors(sizes, count, size) for count, size in moved.writes)
    # shared operands stay in the L1 of an SM if they fill only a small part of it
    shared = sum(sizes.cols * size for _, size in moved.shared_reads)
    askers = spec.compute.num_sms if shared <= spec.l1.size_bytes / 4.0 else np.inf
    shared = np.maximum(moved.shared_bytes, shared * np.minimum(np.ceil(sizes.rows / tile.rows), askers))
    l2 = rows_read * (1.0 + np.where(in_l1, 0.0, again)) + written + shared
    once = moved.read_bytes + moved.shared_bytes + moved.written_bytes
    dram = once * (1.0 - kept) + np.where(in_l2, 0.0, again * moved.read_bytes)
    return l2, dram


def _streamed_bytes_per_s(spec: GpuSpec) -> float:
    """Return the bytes per second that SMs take from L2 for lines that are read once. It is at least DRAM's rate."""
    share = _STREAMED if spec.arch in _PARTITIONED else 1.0
    return max(share * spec.l2.bandwidth_bytes_per_s, spec.dram.bandwidth_bytes_per_s)


def _kept_share(moved: Moved, spec: GpuSpec) -> float:
    """Return the share of the tensors that L2 still holds when a kernel is repeated.

    Rows come in the same order each time, so that L2 loses first what is needed next. Little beyond its size nothing is
    kept.
    """
    all_kept, none_kept = _KEPT[spec.arch in _PARTITIONED]
    size = (moved.read_bytes + moved.shared_bytes + moved.written_bytes) / spec.l2.size_bytes
    return float(np.clip((none_kept - size) / (none_kept - all_kept), 0.0, 1.0))


def _work(sizes: RowShape, tile: _RowTile, moved: Moved, spec: GpuSpec) -> tuple[Floats, Floats]:
    """Return the cycles in which an SM issues a block's instructions, and those in which its function units work."""
    body, compute = sizes.body, spec.compute
    passes = np.where(tile.steps > 1, float(body.passes), 1.0)
    reads = sum(count for count, _ in (*moved.row_reads, *moved.shared_reads))
    writes = sum(count for count, _ in moved.writes)
    narrow = sum(count for count, size in (*moved.row_reads, *moved.shared_reads) if size < 4)
    packed = sum(0.5 * count for count, size in moved.writes if size < 4)
    element = (
        (reads / tile.vector + narrow) * passes
        + writes / tile.vector
        + packed
        + body.arithmetic * (1.0 + (passes - 1) / 2)
    )
    per_reduction = np.log2(np.maximum(tile.lanes_across, 1.0)) * 2.0 * np.maximum(1.0, tile.rows / tile.warps)
    instructions = tile.warps * (
        _ROW_INSTRUCTIONS + tile.elements * tile.steps * element + body.reductions * per_reduction
    )
    functions = body.functions * passes * tile.elements * tile.steps * tile.warps * compute.warp_size
    return instructions / compute.issue_per_cycle_per_sm, functions / _FUNCTIONS_PER_CYCLE


def _cycles_alone(
    sizes: RowShape, tile: _RowTile, moved: Moved, issue: Floats, functions: Floats, spec: GpuSpec, kept: float
) -> Floats:
    """Return the cycles of a block that has its SM to itself: loads, arithmetic and reductions, one after the other."""
    body = sizes.body
    missing = 1.0 - kept
    first = CONSTANTS.queue * (spec.l2.latency_cycles + missing * (spec.dram.latency_cycles - spec.l2.latency_cycles))
    again = np.where(tile.steps > 1, (body.passes - 1.0) * tile.steps, 0.0)
    loads = tile.steps * first + again * spec.l2.latency_cycles
    meets = np.where(tile.warps_across > 1, _BARRIER_CYCLES + 2.0 * spec.shared_memory.latency_cycles, 0.0)
    depth = np.log2(np.maximum(tile.lanes_across, 1.0)) + np.log2(np.maximum(tile.warps_across, 1.0))
    reductions = body.reductions * (depth * _SHUFFLE_CYCLES + meets)
    few = spec.registers.num_sub_partitions / np.minimum(spec.registers.num_sub_partitions, tile.warps)
    return CONSTANTS.block_cycles + loads + reductions + np.maximum(issue, functions) * few
