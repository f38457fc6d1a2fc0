"""Predicted time of CPU points, chunk by chunk. One compiled entry, so that it compiles once.

Time: ``max(core, memory) + exposed * min(core, memory) + copies + parallel start`` on the busiest core, where memory is
the sum over the levels (transfers through the hierarchy are serialised: [ECM] Sec. 2.2).
"""

from __future__ import annotations

import math
from typing import Any

from anatune.numerics._jit import jit, jit_helper
from anatune.numerics.cpu_columns import CHUNK_SIZE, CpuChunk, CpuCol
from anatune.numerics.cpu_kernels import core_columns, load_points
from anatune.numerics.cpu_nest import CpuMachine, CpuNest, combine
from anatune.numerics.cpu_traffic import traffic

__all__ = ["CHECK", "PREDICT", "run_points"]

CHECK, PREDICT = 0, 1
"""What `run_points` does: rules only; predict."""

_N = CHUNK_SIZE
_TIME = int(CpuCol.TIME_S) * _N
_FMA = int(CpuCol.FMA_S) * _N
_CORE = int(CpuCol.CORE_S) * _N
_MEMORY = int(CpuCol.MEMORY_S) * _N
_PACKING = int(CpuCol.PACKING_S) * _N
_START = int(CpuCol.START_S) * _N
_L2 = int(CpuCol.L2_S) * _N
_L1_BYTES = int(CpuCol.L1_BYTES) * _N
_THREADS = int(CpuCol.THREADS) * _N
_SHARE = int(CpuCol.SHARE) * _N
_CHUNKS = int(CpuCol.CHUNKS) * _N
_RULE = int(CpuCol.RULE) * _N
_PARALLEL = int(CpuCol.PARALLEL) * _N
_CYCLES = int(CpuCol.CYCLES) * _N


@jit_helper
def _threads(machine: CpuMachine, c: CpuChunk) -> None:
    """Fill THREADS, SHARE, and what one of the threads has of each cache."""
    v = c.values
    cpu = machine.core
    for i in range(_N):
        threads = min(cpu.num_cores, v[_CHUNKS + i]) if v[_PARALLEL + i] > 0.0 else 1.0
        share = math.ceil(v[_CHUNKS + i] / threads) / v[_CHUNKS + i]
        v[_THREADS + i] = threads
        v[_SHARE + i] = share if v[_PARALLEL + i] > 0.0 else 1.0
    last = c.size.shape[0] - 1
    for level in range(last + 1):
        size, fill_s = c.size[level], c.fill_s[level]
        size_bytes, shared_by = machine.size_bytes[level], machine.shared_by[level]
        seconds = 1.0 / (machine.fill_bytes_per_cycle[level] * cpu.clock_hz)
        for i in range(_N):
            size[i] = size_bytes / min(v[_THREADS + i], shared_by)
            fill_s[i] = seconds
    fill_s = c.fill_s[last]
    for i in range(_N):
        fill_s[i] = 1.0 / min(cpu.dram_core_bytes_s, cpu.dram_socket_bytes_s / v[_THREADS + i])


@jit_helper
def _copies(nest: CpuNest, machine: CpuMachine, c: CpuChunk) -> None:
    """Fill PACKING_S: packing and padding copies, made once around the nest by all threads."""
    v = c.values
    last = c.size.shape[0] - 1
    least_s = 1.0 / (machine.core.copy_bytes_cycle * machine.core.clock_hz)
    for i in range(_N):
        v[_PACKING + i] = 0.0
    for x in range(nest.copy_bytes.shape[0]):
        plain, repacked = nest.copy_bytes[x, 0], nest.copy_bytes[x, 1]
        if max(plain, repacked) == 0.0:
            continue
        packed = c.packed[x]
        for i in range(_N):
            moved = repacked if packed[i] > 0.0 else plain
            seconds = c.fill_s[0, i]
            for level in range(1, last + 1):  # of the first cache that holds it
                if moved <= c.size[level, i] * v[_THREADS + i]:
                    break
                seconds = c.fill_s[level, i]
            v[_PACKING + i] += moved * max(seconds, least_s)
    for i in range(_N):
        v[_PACKING + i] /= v[_THREADS + i]


@jit_helper
def _times(machine: CpuMachine, c: CpuChunk) -> None:
    """Fill TIME_S and its parts, after all others; cycles of the microkernel's parts become seconds."""
    v = c.values
    cpu = machine.core
    for i in range(_N):
        v[_MEMORY + i] = 0.0
    for level in range(3):
        seconds = v[_L2 + level * _N : _L2 + (level + 1) * _N]
        moved = v[_L1_BYTES + level * _N : _L1_BYTES + (level + 1) * _N]
        if level < c.traffic.shape[0]:
            traffic, fill_s = c.traffic[level], c.fill_s[level]
            for i in range(_N):
                each = traffic[i] * fill_s[i]
                v[_MEMORY + i] += each
                seconds[i] = each * v[_SHARE + i]
                moved[i] = traffic[i]
        else:
            for i in range(_N):
                seconds[i] = 0.0
                moved[i] = 0.0
    for i in range(_N):
        core_s = v[_SHARE + i] * v[_CYCLES + i] / cpu.clock_hz
        memory_s = v[_SHARE + i] * v[_MEMORY + i]
        start_s = cpu.start_s if v[_PARALLEL + i] > 0.0 else 0.0
        v[_CORE + i] = core_s
        v[_MEMORY + i] = memory_s
        v[_START + i] = start_s
        v[_TIME + i] = combine(core_s, memory_s, cpu.exposed_share) + v[_PACKING + i] + start_s
    for part in range(5):
        column = v[_FMA + part * _N : _FMA + (part + 1) * _N]
        for i in range(_N):
            column[i] *= v[_SHARE + i] / cpu.clock_hz


@jit
def run_points(
    points: Any, task: int, nest: CpuNest, machine: CpuMachine, c: CpuChunk, rules: Any, times: Any, columns: Any
) -> None:
    """Check or predict `points` (num_points, columns of the space) int64.

    Points that break a rule are timed as if the limit were not there.

    Parameters
    ----------
    task : int
        CHECK or PREDICT.
    rules : (num_points,) int64
        Filled with the code of the first broken rule, 0 where legal.
    times : (num_points,) float64
        Filled with seconds, unless `task` is CHECK.
    columns : (CpuCol.NUM_RESULTS, num_points) float64, or (0, 0)
        Filled with every quantity if it has rows.
    """
    line = machine.core.line_bytes
    v = c.values
    for start in range(0, points.shape[0], _N):
        n = min(_N, points.shape[0] - start)
        load_points(points, start, n, nest, c)
        core_columns(nest, machine.core, c)
        for i in range(n):
            rules[start + i] = int(v[_RULE + i])
        if task == CHECK:
            continue
        _threads(machine, c)
        traffic(nest, line, c)
        _copies(nest, machine, c)
        _times(machine, c)
        for i in range(n):
            times[start + i] = v[_TIME + i]
        for row in range(columns.shape[0]):
            for i in range(n):
                columns[row, start + i] = v[row * _N + i]
