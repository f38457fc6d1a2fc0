"""Predicted times of 3x3 convolutions by Winograd's transforms, point by point.

Phases. A core works on blocks of tiles in three phases (`winograd.space` shows the loops). Input transforms write V.
Products read V and the transformed weights U, and write M. Output transforms read M.

Core cycles. Products are those of any microkernel (`cpu.times.microkernel`). Transforms follow from the loads,
operations, shuffles and stores of a vector.

Transfers. A phase reads data from the smallest cache that holds all that is touched between two uses of the data. The
time is bytes over the bandwidth of each level that they cross. Kernels run again and again, so operands that fit into
the last cache stay there. Data from beyond L2 are prefetched early, so levels overlap like core and memory do, except
for a share of the shorter time. Source: 512 to 512 channels on 7x7, Emerald Rapids: 0.86 ms, as long as L3 takes for
the weights, 0.85; L2 0.24.

Sum. A phase ends before the next one begins, so transfers of one phase do not overlap with work of another: ``sum over
phases of max(core, memory) + exposed * min(core, memory)``, and parallel starts.

Notation
--------
unit : a vector of one tile: `lanes` channels of it. sliver : the output channels of a microkernel call.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from anatune.numerics._jit import jit, jit_helper, jit_inline
from anatune.numerics.columns import Floats, Ints
from anatune.templates.cpu.times.microkernel import call_one, step_one
from anatune.templates.cpu.times.nest import CpuCore, CpuMachine, combine
from anatune.templates.winograd.times.columns import WinogradCol, WinogradPoint, WinogradTiling

__all__ = ["WinogradRule", "run_points"]

WinogradRule = IntEnum("WinogradRule", "microkernel_registers microkernel_code block_size parallel_cores")
"""Id of a rule -> its code, which `run_points` returns for points that break it."""

_SUM_BYTES = 4.0
_CHECK = 0
_INPUT, _PRODUCT, _OUTPUT = 0, 1, 2


@jit_inline
def _unit_cycles(
    cpu: CpuCore, tiling: WinogradTiling, loads: float, operations: float, shuffles: float, stores: float
) -> float:
    """Return the cycles of straight-line vector code: ports work in parallel, shuffles use the ports of additions."""
    busy = max(loads / cpu.loads, (operations + shuffles) / tiling.operations)
    issue = (loads + operations + shuffles + stores) / cpu.issue_width
    return max(busy, stores / cpu.stores, issue)


@jit_helper
def _input_cycles(cpu: CpuCore, tiling: WinogradTiling, s: int) -> float:
    """Return the cycles of one unit of the input transform, including the copy or transposition of its channels."""
    size = tiling.output_tiles[s]
    inputs = tiling.frequencies[s]
    cycles = _unit_cycles(cpu, tiling, inputs, tiling.data_operations[s], 0.0, inputs)
    if tiling.channels_last > 0.0:
        border: float = tiling.border_share[s]
        return cycles + border * _unit_cycles(cpu, tiling, inputs, 0.0, 0.0, inputs)
    moved = size * (size + 2.0)  # pixels of a tile in the band of its row of tiles
    return cycles + _unit_cycles(cpu, tiling, moved, 0.0, moved * math.log2(tiling.lanes), moved)


@jit_helper
def _output_cycles(cpu: CpuCore, tiling: WinogradTiling, s: int) -> float:
    """Return the cycles of one unit of the output transform with its epilogue and stores."""
    size = tiling.output_tiles[s]
    outputs = size * size
    loads = tiling.frequencies[s] + outputs * tiling.epilogue_loads
    stores, shuffles = outputs, 0.0
    if tiling.filters_last == 0.0:  # each lane stores its row separately
        stores = size * tiling.lanes
        shuffles = outputs * math.log2(size)
    operations = tiling.result_operations[s] + outputs * tiling.finish_operations
    return _unit_cycles(cpu, tiling, loads, operations, shuffles, stores)


@jit_inline
def _level(held: float, size: Floats) -> int:
    """Return the nearest cache level that holds `held` bytes; one past the last level if none does."""
    level = 0
    while level < size.shape[0] and held > size[level]:
        level += 1
    return level


@jit_inline
def _move(traffic: Floats, timed: Floats, phase: int, moved: float, written: float, held: float, size: Floats) -> None:
    """Add bytes that come from the nearest level that holds `held` bytes: they cross into all levels before it.

    `written` are bytes that are written back. Between caches they take no extra time; on the memory bus they do.
    """
    for level in range(_level(held, size)):
        traffic[level] += moved + written
        timed[phase, level] += moved + (written if level == size.shape[0] - 1 else 0.0)


@jit_inline
def _rule(cpu: CpuCore, registers: float, multiply_adds: float, largest: float, split: float, chunks: float) -> int:
    """Return 0, or the code of the first broken `WinogradRule`."""
    if registers > cpu.registers:
        return WinogradRule.microkernel_registers
    if multiply_adds > cpu.multiply_add_limit:
        return WinogradRule.microkernel_code
    if largest > 0.0:
        return WinogradRule.block_size
    return WinogradRule.parallel_cores if split > 0.0 and (chunks < 2.0 or cpu.num_cores < 2.0) else 0


def run_points(
    points: Ints, task: int, tiling: WinogradTiling, machine: CpuMachine, rules: Ints, times: Floats, columns: Floats
) -> None:
    """Check or predict `points`, (num_points, len(WinogradPoint)) int64.

    Points that break a rule are timed as if there were no limit.

    Parameters
    ----------
    task : int
        0: rules only; 1: times as well.
    rules : (num_points,) int64
        Filled with the code of the first broken rule, 0 if legal.
    times : (num_points,) float64
        Filled with seconds, unless `task` is 0.
    columns : (WinogradCol.COUNT, num_points) float64, or (0, 0)
        Filled with every quantity if it has rows.
    """
    work = np.empty((6, len(machine.size_bytes)))
    _run_points(points, task, tiling, machine, work[0], work[1], work[2], work[3:], rules, times, columns)


@jit
def _run_points(
    points: Ints, task: int, tiling: WinogradTiling, machine: CpuMachine, size: Floats, fill_s: Floats,
    traffic: Floats, timed: Floats, rules: Ints, times: Floats, columns: Floats,
) -> None:  # fmt: skip
    cpu = machine.core
    num_levels = machine.size_bytes.shape[0]
    for i in range(points.shape[0]):
        calls, rows = float(points[i, WinogradPoint.CALLS]), float(points[i, WinogradPoint.ROWS])
        slivers, vectors = float(points[i, WinogradPoint.SLIVERS]), float(points[i, WinogradPoint.VECTORS])
        unroll, split = float(points[i, WinogradPoint.UNROLL]), points[i, WinogradPoint.SPLIT]
        s = 0
        while tiling.output_tiles[s] != points[i, WinogradPoint.OUTPUT_TILE]:
            s += 1
        tiles, frequencies = tiling.num_tiles[s], tiling.frequencies[s]
        block = calls * rows
        blocks = math.ceil(tiles / block)
        width = vectors * tiling.lanes
        all_slivers = math.ceil(tiling.filters / width)
        chunks = math.ceil(all_slivers / slivers)
        depth = math.ceil(tiling.channels / unroll) * unroll
        data_lanes, steps = tiling.lanes * tiling.group, unroll / tiling.group
        padded = math.ceil(tiling.channels / data_lanes) * data_lanes
        # a block with a row more than needed, or slivers beyond the last channel, repeats a smaller block
        too_large = max(0.0, (calls - 1.0) * rows - tiles + 1.0) + max(0.0, slivers - all_slivers)
        step, registers, _, _, _, _ = step_one(cpu, rows * vectors, rows + vectors, vectors, rows, 0.0, steps, 1.0)
        parallel = blocks if split == 1 else chunks
        rules[i] = _rule(cpu, registers, rows * vectors * steps, too_large, float(split), parallel)
        if task == _CHECK:
            continue

        threads = min(cpu.num_cores, parallel) if split > 0 else 1.0
        share = math.ceil(parallel / threads) / parallel if split > 0 else 1.0
        for level in range(num_levels):
            size[level] = machine.size_bytes[level] / min(threads, machine.shared_by[level])
            fill_s[level] = 1.0 / (machine.fill_bytes_per_cycle[level] * cpu.clock_hz)
            traffic[level] = 0.0
            for phase in range(3):
                timed[phase, level] = 0.0
        fill_s[num_levels - 1] = 1.0 / min(cpu.dram_core_bytes_s, cpu.dram_socket_bytes_s / threads)

        all_calls = (blocks - 1.0) * calls + math.ceil((tiles - (blocks - 1.0) * block) / rows)
        num_products = frequencies * all_calls * all_slivers
        extra = num_products * call_one(cpu, rows * vectors, rows * vectors, 1.0, 0.0)
        product_s = (num_products * depth / tiling.group * step + extra) / cpu.clock_hz
        input_s = tiles * padded / data_lanes * _input_cycles(cpu, tiling, s) / cpu.clock_hz
        output_s = tiles * math.ceil(tiling.filters / tiling.lanes) * _output_cycles(cpu, tiling, s) / cpu.clock_hz

        used_block = min(block, math.ceil(tiles / rows) * rows)
        weights = frequencies * depth * all_slivers * width * tiling.operand_bytes
        data = frequencies * used_block * padded * tiling.operand_bytes
        products = frequencies * used_block * min(slivers, all_slivers) * width * _SUM_BYTES
        panel, sliver = used_block * depth * tiling.operand_bytes, depth * width * tiling.operand_bytes
        call_panel = rows * depth * tiling.operand_bytes
        operands = tiling.data_bytes + tiling.result_bytes + tiling.epilogue_bytes
        nest_bytes = operands + weights + data + products
        # weights: once for each block; again for each call of a block
        between = weights + data + products if blocks > 1.0 else nest_bytes
        _move(traffic, timed, _PRODUCT, blocks * weights, 0.0, between, size)
        _move(traffic, timed, _PRODUCT, (all_calls - blocks) * weights, 0.0, sliver + call_panel, size)
        # V: written, read once by each chunk, and again by each sliver of a chunk
        _move(traffic, timed, _INPUT, blocks * data, blocks * data, data, size)
        _move(traffic, timed, _PRODUCT, blocks * chunks * data, 0.0, data + products + weights / chunks, size)
        _move(traffic, timed, _PRODUCT, blocks * (all_slivers - chunks) * data, 0.0, panel + sliver, size)
        # M: written and read, by each chunk
        results, used = blocks * chunks * products, products + sliver + panel
        _move(traffic, timed, _PRODUCT, results, results, used, size)
        _move(traffic, timed, _OUTPUT, results, 0.0, used, size)
        # operands and result: once; bands of tile rows share two rows of the input
        reread = 1.0 if tiling.channels_last > 0.0 else 1.0 + 2.0 / tiling.output_tiles[s]
        _move(traffic, timed, _INPUT, reread * tiling.data_bytes, 0.0, nest_bytes, size)
        _move(traffic, timed, _OUTPUT, tiling.epilogue_bytes, 0.0, nest_bytes, size)
        _move(traffic, timed, _OUTPUT, tiling.result_bytes, tiling.result_bytes, nest_bytes, size)

        busy_s = memory_s = 0.0
        for phase in range(3):
            phase_s = 0.0
            for level in range(num_levels):
                phase_s = combine(phase_s, timed[phase, level] * fill_s[level], cpu.exposed_share)
            memory_s += phase_s
            work_s = product_s if phase == _PRODUCT else input_s if phase == _INPUT else output_s
            busy_s += combine(work_s, phase_s, cpu.exposed_share)
        starts = (1.0 if split == 1 else 2.0 * blocks) if split > 0 else 0.0
        core_s = share * (product_s + input_s + output_s)
        memory_s *= share
        start_s = starts * cpu.start_s
        times[i] = share * busy_s + start_s
        if columns.shape[0] == 0:
            continue

        columns[WinogradCol.TIME_S, i] = times[i]
        columns[WinogradCol.PRODUCT_S, i] = share * product_s
        columns[WinogradCol.INPUT_S, i] = share * input_s
        columns[WinogradCol.OUTPUT_S, i] = share * output_s
        columns[WinogradCol.OVERHEAD_S, i] = share * extra / cpu.clock_hz
        for level in range(3):
            has_level = level < num_levels
            level_bytes = timed[0, level] + timed[1, level] + timed[2, level] if has_level else 0.0
            columns[WinogradCol.L2_S + level, i] = share * level_bytes * fill_s[level] if has_level else 0.0
            columns[WinogradCol.L1_BYTES + level, i] = traffic[level] if has_level else 0.0
        columns[WinogradCol.START_S, i] = start_s
        columns[WinogradCol.CORE_S, i] = core_s
        columns[WinogradCol.MEMORY_S, i] = memory_s
        columns[WinogradCol.REGISTERS, i] = registers
        columns[WinogradCol.ACCUMULATORS, i] = rows * vectors
        columns[WinogradCol.UNROLLED_FMA, i] = rows * vectors * steps
        columns[WinogradCol.THREADS, i] = threads
        columns[WinogradCol.CHUNKS, i] = parallel if split > 0 else 1.0
        columns[WinogradCol.WEIGHT_BYTES, i] = weights
        columns[WinogradCol.DATA_BYTES, i] = data
        columns[WinogradCol.PRODUCT_BYTES, i] = products
        columns[WinogradCol.USEFUL, i] = (
            tiles * tiling.channels * tiling.filters / (all_calls * rows * depth * all_slivers * width)
        )
