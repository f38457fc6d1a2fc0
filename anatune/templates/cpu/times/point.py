"""Predicted times of CPU points. There is only one compiled entry function, so that it is compiled once.

The time is ``max(core, memory) + exposed * min(core, memory) + copies + parallel start`` on the busiest core. Memory is
the sum over the levels, because transfers through the hierarchy are serialised ([ECM] Sec. 2.2). The time is that of a
call after other calls like it: a cache that holds the whole nest needs no transfers.
"""

from __future__ import annotations

import math

from anatune.numerics._jit import jit, jit_helper
from anatune.numerics.columns import CHUNK_SIZE, Floats, Ints
from anatune.templates.cpu.times.columns import CpuChunk, CpuCol
from anatune.templates.cpu.times.kernels import core_columns, load_points
from anatune.templates.cpu.times.nest import CpuMachine, CpuNest, combine, slowdown
from anatune.templates.cpu.times.traffic import traffic

__all__ = ["CHECK", "PREDICT", "run_points"]

CHECK, PREDICT = 0, 1
"""Tasks of `run_points`: check rules only; predict times as well."""

_N = CHUNK_SIZE


@jit_helper
def _threads(machine: CpuMachine, c: CpuChunk) -> None:
    """Fill THREADS, SHARE (larger if threads slow each other down), and each cache's size and rate for one thread."""
    v = c.values
    cpu = machine.core
    for i in range(_N):
        threads = min(cpu.num_cores, v[CpuCol.CHUNKS + i]) if v[CpuCol.PARALLEL + i] > 0.0 else 1.0
        share = math.ceil(v[CpuCol.CHUNKS + i] / threads) / v[CpuCol.CHUNKS + i]
        v[CpuCol.THREADS + i] = threads
        share *= slowdown(cpu, threads)
        v[CpuCol.SHARE + i] = share if v[CpuCol.PARALLEL + i] > 0.0 else 1.0
    last = c.size.shape[0] - 1
    for level in range(last + 1):
        size, fill_s = c.size[level], c.fill_s[level]
        size_bytes, shared_by = machine.size_bytes[level], machine.shared_by[level]
        seconds = 1.0 / (machine.fill_bytes_per_cycle[level] * cpu.clock_hz)
        for i in range(_N):
            size[i] = size_bytes / min(v[CpuCol.THREADS + i], shared_by)
            fill_s[i] = seconds
    fill_s = c.fill_s[last]
    for i in range(_N):
        threads = v[CpuCol.THREADS + i]  # the share of DRAM bandwidth does not shrink with the share of a core
        fill_s[i] = 1.0 / (min(cpu.dram_core_bytes_s, cpu.dram_socket_bytes_s / threads) * slowdown(cpu, threads))


@jit_helper
def _copies(nest: CpuNest, machine: CpuMachine, c: CpuChunk) -> None:
    """Fill PACKING_S: all threads copy the packed tensors once before the nest."""
    v = c.values
    last = c.size.shape[0] - 1
    for i in range(_N):
        v[CpuCol.PACKING_S + i] = 0.0
    for x in range(nest.copy_bytes.shape[0]):
        copied = nest.copy_bytes[x]
        if copied == 0.0:
            continue
        least_s = 1.0 / (nest.copy_rate[x] * machine.core.clock_hz)
        for i in range(_N):
            v[CpuCol.COPY_S + i] = c.fill_s[0, i]
            v[CpuCol.COPY_BYTES + i] = copied if c.packed[x, i] > 0.0 else 0.0
            v[CpuCol.IS_BEYOND + i] = 1.0
        for level in range(1, last + 1):  # from the nearest cache that holds the copy
            for i in range(_N):
                holds = v[CpuCol.COPY_BYTES + i] <= c.size[level, i] * v[CpuCol.THREADS + i]
                is_beyond = v[CpuCol.IS_BEYOND + i] > 0.0 and not holds
                v[CpuCol.COPY_S + i] = c.fill_s[level, i] if is_beyond else v[CpuCol.COPY_S + i]
                v[CpuCol.IS_BEYOND + i] = 1.0 if is_beyond else 0.0
        for i in range(_N):
            v[CpuCol.PACKING_S + i] += v[CpuCol.COPY_BYTES + i] * max(v[CpuCol.COPY_S + i], least_s)
    for i in range(_N):
        v[CpuCol.PACKING_S + i] *= slowdown(machine.core, v[CpuCol.THREADS + i]) / v[CpuCol.THREADS + i]


@jit_helper
def _times(machine: CpuMachine, c: CpuChunk) -> None:
    """Fill TIME_S and its parts, after all others; convert the cycles of the microkernel to seconds."""
    v = c.values
    cpu = machine.core
    for i in range(_N):
        v[CpuCol.MEMORY_S + i] = 0.0
    for level in range(c.traffic.shape[0]):
        for i in range(_N):
            v[CpuCol.MEMORY_S + i] += c.timed[level, i] * c.fill_s[level, i]
    for i in range(_N):
        share = v[CpuCol.SHARE + i]
        core_s = share * v[CpuCol.CYCLES + i] / cpu.clock_hz
        memory_s = share * v[CpuCol.MEMORY_S + i]
        start_s = cpu.start_s if v[CpuCol.PARALLEL + i] > 0.0 else 0.0
        v[CpuCol.CORE_S + i] = core_s
        v[CpuCol.MEMORY_S + i] = memory_s
        v[CpuCol.START_S + i] = start_s
        v[CpuCol.TIME_S + i] = combine(core_s, memory_s, cpu.exposed_share) + v[CpuCol.PACKING_S + i] + start_s
    cycle_s = 1.0 / cpu.clock_hz
    for i in range(_N):
        each_s = v[CpuCol.SHARE + i] * cycle_s
        v[CpuCol.FMA_S + i] *= each_s
        v[CpuCol.LOAD_S + i] *= each_s
        v[CpuCol.LATENCY_S + i] *= each_s
        v[CpuCol.ISSUE_S + i] *= each_s
        v[CpuCol.OVERHEAD_S + i] *= each_s


@jit_helper
def _results(start: int, n: int, c: CpuChunk, columns: Floats) -> None:
    """Write the columns of the first `n` points of the chunk from column `start` on."""
    v = c.values
    for row in range(columns.shape[0]):
        for i in range(n):
            columns[row, start + i] = v[row * _N + i]
    for level in range(c.traffic.shape[0]):
        for i in range(n):
            seconds = c.timed[level, i] * c.fill_s[level, i]
            columns[CpuCol.L2_S // _N + level, start + i] = v[CpuCol.SHARE + i] * seconds
            columns[CpuCol.L1_BYTES // _N + level, start + i] = c.traffic[level, i]
    for level in range(3):
        for i in range(n):
            columns[CpuCol.L1_TILE_BYTES // _N + level, start + i] = c.held[level, i]


@jit
def run_points(
    points: Ints,
    task: int,
    nest: CpuNest,
    machine: CpuMachine,
    c: CpuChunk,
    rules: Ints,
    times: Floats,
    columns: Floats,
) -> None:
    """Check or predict `points` (num_points, columns of the space) int64.

    Points that break a rule are timed as if there were no limit.

    Parameters
    ----------
    task : int
        CHECK or PREDICT.
    rules : (num_points,) int64
        Filled with the code of the first broken rule, 0 if legal.
    times : (num_points,) float64
        Filled with seconds, unless `task` is CHECK.
    columns : (NUM_RESULTS, num_points) float64, or (0, 0)
        Filled with every quantity of `CpuCol`, unless it is empty.
    """
    line = machine.core.line_bytes
    v = c.values
    for start in range(0, points.shape[0], _N):
        n = min(_N, points.shape[0] - start)
        load_points(points, start, n, nest, c)
        core_columns(nest, machine.core, c)
        for i in range(n):
            rules[start + i] = int(v[CpuCol.RULE + i])
        if task == CHECK:
            continue
        _threads(machine, c)
        traffic(nest, line, c)
        _copies(nest, machine, c)
        _times(machine, c)
        for i in range(n):
            times[start + i] = v[CpuCol.TIME_S + i]
        if columns.shape[0] > 0:
            _results(start, n, c, columns)
