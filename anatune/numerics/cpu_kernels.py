"""Core cycles of chunks of points: which microkernels cover the L1 tile, what each of them costs."""

from __future__ import annotations

import math
from typing import Any

from anatune.numerics._jit import jit_helper, jit_sequence
from anatune.numerics.cpu_columns import CHUNK_SIZE, CpuChunk, CpuCol
from anatune.numerics.cpu_microkernel import call_one, rule_one, step_one
from anatune.numerics.cpu_nest import CpuCore, CpuNest

__all__ = ["core_columns", "load_points"]

_N = CHUNK_SIZE
_FMA = int(CpuCol.FMA_S) * _N
_LOAD = int(CpuCol.LOAD_S) * _N
_LATENCY = int(CpuCol.LATENCY_S) * _N
_ISSUE = int(CpuCol.ISSUE_S) * _N
_OVERHEAD = int(CpuCol.OVERHEAD_S) * _N
_CHUNKS = int(CpuCol.CHUNKS) * _N
_ACCUMULATORS = int(CpuCol.ACCUMULATORS) * _N
_REGISTERS = int(CpuCol.REGISTERS) * _N
_STEPS = int(CpuCol.STEPS) * _N
_UNROLLED = int(CpuCol.UNROLLED_FMA) * _N
_RULE = int(CpuCol.RULE) * _N
_PARALLEL = int(CpuCol.PARALLEL) * _N
_PAIRS = int(CpuCol.PAIRS) * _N
_PAIR_AXIS = int(CpuCol.PAIR_AXIS) * _N
_UNROLL = int(CpuCol.UNROLL) * _N
_TILES = int(CpuCol.TILES) * _N
_PARTIAL = int(CpuCol.PARTIAL) * _N
_SMALL_ROWS_CALLS = int(CpuCol.SMALL_ROWS_CALLS) * _N
_LARGE_ROWS_CALLS = int(CpuCol.LARGE_ROWS_CALLS) * _N
_SMALL_VECTORS = int(CpuCol.SMALL_VECTORS) * _N
_SMALL_VECTORS_CALLS = int(CpuCol.SMALL_VECTORS_CALLS) * _N
_LARGE_VECTORS_CALLS = int(CpuCol.LARGE_VECTORS_CALLS) * _N
_ROWS = int(CpuCol.ROWS) * _N
_OWN = int(CpuCol.OWN) * _N
_VECTOR_LOADS = int(CpuCol.VECTOR_LOADS) * _N
_VECTORS_HELD = int(CpuCol.VECTORS_HELD) * _N
_HELD = int(CpuCol.HELD) * _N
_BROADCAST = int(CpuCol.BROADCAST) * _N
_RELOADED = int(CpuCol.RELOADED) * _N
_CYCLES = int(CpuCol.CYCLES) * _N


@jit_helper
def load_points(points: Any, start: int, n: int, nest: CpuNest, c: CpuChunk) -> None:
    """Read points[start : start + n] (rows in the order of CpuSpace.columns) into the chunk; the last one fills it."""
    v = c.values
    for column in range(points.shape[1]):
        raw = c.raw[column]
        for i in range(_N):
            raw[i] = points[start + min(i, n - 1), column]
    parallel = c.raw[nest.simd[2]]
    for i in range(_N):
        v[_CHUNKS + i] = 1.0
        v[_PARALLEL + i] = parallel[i]
        v[_PAIRS + i] = 0.0
        v[_PAIR_AXIS + i] = -1.0
    lanes = float(nest.simd[1])
    for a in range(nest.extents.shape[0]):
        calls, inner, is_pair, small = c.calls[a], c.inner[a], c.is_pair[a], c.small[a]
        l1, kernel = c.raw[nest.factor_columns[a, 3]], c.raw[nest.factor_columns[a, 4]]
        for i in range(_N):
            calls[i] = l1[i]
            inner[i] = l1[i] * kernel[i]
        if nest.pair_columns[a] >= 0:
            pair = c.raw[nest.pair_columns[a]]
            for i in range(_N):
                is_pair[i] = 1.0 if pair[i] > 0.0 else 0.0
                calls[i] = pair[i] if pair[i] > 0.0 else calls[i]
            if a != nest.simd[0]:
                for i in range(_N):
                    v[_PAIRS + i] += is_pair[i]
                    v[_PAIR_AXIS + i] = float(a) if is_pair[i] > 0.0 else v[_PAIR_AXIS + i]
        else:
            for i in range(_N):
                is_pair[i] = 0.0
        if a == nest.simd[0]:
            for i in range(_N):
                vectors = math.ceil(inner[i] / lanes)
                small[i] = math.floor(vectors / calls[i]) if is_pair[i] > 0.0 else math.ceil(kernel[i] / lanes)
        else:
            for i in range(_N):
                small[i] = math.floor(inner[i] / calls[i])
        if nest.factor_columns[a, 0] >= 0:
            outer = c.raw[nest.factor_columns[a, 0]]
            for i in range(_N):
                v[_CHUNKS + i] *= outer[i]
    for x in range(nest.uses.shape[0]):
        packed = c.packed[x]
        if nest.pack_columns[x] >= 0:
            flag = c.raw[nest.pack_columns[x]]
            for i in range(_N):
                packed[i] = flag[i]
        else:
            for i in range(_N):
                packed[i] = 0.0


@jit_helper
def _calls(nest: CpuNest, c: CpuChunk) -> None:
    """Fill the number of steps, tiles and calls of each kind of microkernel."""
    v = c.values
    axis = nest.simd[0]
    for i in range(_N):
        v[_STEPS + i] = 1.0
        v[_UNROLL + i] = 1.0
        v[_TILES + i] = 1.0
        v[_PARTIAL + i] = 0.0
        v[_SMALL_ROWS_CALLS + i] = 1.0
        v[_LARGE_ROWS_CALLS + i] = 0.0
    for a in range(nest.extents.shape[0]):
        inner, calls, is_pair, small = c.inner[a], c.calls[a], c.is_pair[a], c.small[a]
        extent = float(nest.extents[a])
        for i in range(_N):
            v[_TILES + i] *= extent / inner[i]
        if nest.is_reduction[a]:
            for i in range(_N):
                v[_PARTIAL + i] = 1.0 if inner[i] < extent else v[_PARTIAL + i]
            if a == axis:
                for i in range(_N):
                    v[_STEPS + i] *= calls[i]
            else:
                for i in range(_N):
                    v[_STEPS + i] *= inner[i]
                    v[_UNROLL + i] *= small[i]
        elif a != axis:
            for i in range(_N):
                larger = inner[i] - small[i] * calls[i]
                is_last = is_pair[i] > 0.0 and v[_PAIR_AXIS + i] == a
                v[_SMALL_ROWS_CALLS + i] = calls[i] - larger if is_last else v[_SMALL_ROWS_CALLS + i]
                v[_LARGE_ROWS_CALLS + i] = larger if is_last else v[_LARGE_ROWS_CALLS + i]
                v[_TILES + i] *= 1.0 if is_last else calls[i]
    inner, calls, is_pair, small = c.inner[axis], c.calls[axis], c.is_pair[axis], c.small[axis]
    lanes = float(nest.simd[1])
    is_reduction = nest.is_reduction[axis] == 1
    for i in range(_N):
        larger = (math.ceil(inner[i] / lanes) - small[i] * calls[i]) * is_pair[i]
        # calls along a summed SIMD axis are steps of one kernel
        v[_SMALL_VECTORS + i] = small[i] + (1.0 if larger > 0.0 and is_reduction else 0.0)
        v[_SMALL_VECTORS_CALLS + i] = 1.0 if is_reduction else calls[i] - larger
        v[_LARGE_VECTORS_CALLS + i] = 0.0 if is_reduction else larger


@jit_helper
def _rows(large: float, nest: CpuNest, c: CpuChunk) -> None:
    """Fill what the operands need in the microkernels with fewer (`large` 0) or more rows (1) of a pair."""
    v = c.values
    axis = nest.simd[0]
    for i in range(_N):
        v[_ROWS + i] = 1.0
        v[_VECTOR_LOADS + i] = 0.0
        v[_VECTORS_HELD + i] = 0.0
        v[_HELD + i] = 0.0
        v[_BROADCAST + i] = 0.0
    for a in range(nest.extents.shape[0]):
        if nest.is_reduction[a] or a == axis:
            continue
        small = c.small[a]
        for i in range(_N):
            v[_ROWS + i] *= small[i] + (large if v[_PAIR_AXIS + i] == a else 0.0)
    result = nest.vector_loads.shape[0] - 1
    for x in range(result):
        for i in range(_N):
            v[_OWN + i] = 1.0
        for a in range(nest.extents.shape[0]):
            if nest.is_reduction[a] or a == axis or not nest.uses[x, a]:
                continue
            small = c.small[a]
            for i in range(_N):
                v[_OWN + i] *= small[i] + (large if v[_PAIR_AXIS + i] == a else 0.0)
        if nest.uses[x, axis]:
            packed = c.packed[x]
            each = nest.vector_loads[x]
            for i in range(_N):
                own = v[_OWN + i]
                v[_VECTOR_LOADS + i] += own if packed[i] > 0.0 else own * each
                v[_VECTORS_HELD + i] += own if own < v[_ROWS + i] else 0.0
                v[_HELD + i] += 0.0 if own < v[_ROWS + i] else 1.0
        else:
            for i in range(_N):
                v[_BROADCAST + i] += v[_OWN + i]
    each = nest.vector_loads[result]
    packed = c.packed[result]
    for i in range(_N):
        v[_RELOADED + i] = 1.0 if packed[i] > 0.0 else each


@jit_helper
def _kinds(large: float, nest: CpuNest, cpu: CpuCore, c: CpuChunk) -> None:
    """Add the cycles of the microkernels with fewer (`large` 0) or more vectors (1) of a pair, after `_rows`."""
    v = c.values
    reduces = float(nest.simd[3])
    stores_vectors = nest.uses[nest.uses.shape[0] - 1, nest.simd[0]] == 1
    shuffles = 2.0 * math.log2(nest.simd[1])
    for i in range(_N):
        vectors = v[_SMALL_VECTORS + i] + large
        vector_calls = v[_LARGE_VECTORS_CALLS + i] if large > 0.0 else v[_SMALL_VECTORS_CALLS + i]
        count = v[_TILES + i] * v[_SMALL_ROWS_CALLS + i] * vector_calls
        accumulators = v[_ROWS + i] * vectors
        loads = v[_VECTOR_LOADS + i] * vectors + v[_BROADCAST + i]
        held = v[_VECTORS_HELD + i] * vectors + v[_HELD + i]
        step, registers, fma, load, latency, issue = step_one(
            cpu, accumulators, loads, held, v[_BROADCAST + i], v[_UNROLL + i], reduces
        )
        stores = accumulators * v[_RELOADED + i] if stores_vectors else accumulators + shuffles
        reloads = stores if stores_vectors else 1.0
        extra = call_one(cpu, stores, reloads, reduces, v[_PARTIAL + i])
        steps = v[_STEPS + i]
        is_used = count > 0.0
        v[_CYCLES + i] += count * (steps * step + extra)
        v[_FMA + i] += count * steps * fma
        v[_LOAD + i] += count * steps * load
        v[_LATENCY + i] += count * steps * latency
        v[_ISSUE + i] += count * steps * issue
        v[_OVERHEAD + i] += count * extra
        v[_ACCUMULATORS + i] = max(v[_ACCUMULATORS + i], accumulators if is_used else 0.0)
        v[_REGISTERS + i] = max(v[_REGISTERS + i], registers if is_used else 0.0)
        v[_UNROLLED + i] = max(v[_UNROLLED + i], accumulators * v[_UNROLL + i] if is_used else 0.0)


@jit_sequence
def core_columns(nest: CpuNest, cpu: CpuCore, c: CpuChunk) -> None:
    """Fill CYCLES, the cycles of its parts, registers and the rule, after `load_points`."""
    v = c.values
    _calls(nest, c)
    for i in range(_N):
        v[_CYCLES + i] = 0.0
        v[_FMA + i] = 0.0
        v[_LOAD + i] = 0.0
        v[_LATENCY + i] = 0.0
        v[_ISSUE + i] = 0.0
        v[_OVERHEAD + i] = 0.0
        v[_ACCUMULATORS + i] = 0.0
        v[_REGISTERS + i] = 0.0
        v[_UNROLLED + i] = 0.0
    for row_kind in range(2):
        if row_kind == 1:
            for i in range(_N):
                v[_SMALL_ROWS_CALLS + i] = v[_LARGE_ROWS_CALLS + i]
        _rows(float(row_kind), nest, c)
        for vector_kind in range(2):
            _kinds(float(vector_kind), nest, cpu, c)
    for i in range(_N):
        v[_RULE + i] = rule_one(
            cpu, v[_REGISTERS + i], v[_PAIRS + i], v[_UNROLLED + i], v[_PARALLEL + i], v[_CHUNKS + i]
        )
