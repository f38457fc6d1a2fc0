"""Core cycles of chunks of points: the microkernels that cover the L1 tile, and the cost of each."""

from __future__ import annotations

import math

from anatune.numerics._jit import jit_helper
from anatune.numerics.columns import CHUNK_SIZE, Ints
from anatune.templates.cpu.times.columns import CpuChunk, CpuCol
from anatune.templates.cpu.times.microkernel import broken_rule, call_one, result_stores, step_one
from anatune.templates.cpu.times.nest import CpuCore, CpuNest, skips_padding, steps_of

__all__ = ["core_columns", "load_points"]

_N = CHUNK_SIZE


@jit_helper
def load_points(points: Ints, start: int, n: int, nest: CpuNest, c: CpuChunk) -> None:
    """Read points[start : start + n], in the order of CpuSpace.columns, into the chunk; the last point fills it."""
    v = c.values
    for column in range(points.shape[1]):
        for i in range(_N):
            c.raw[column, i] = points[start + min(i, n - 1), column]
    parallel = nest.simd[2]
    for i in range(_N):
        v[CpuCol.CHUNKS + i] = 1.0
        v[CpuCol.PARALLEL + i] = c.raw[parallel, i]
        v[CpuCol.PAIRS + i] = 0.0
        v[CpuCol.PAIR_AXIS + i] = -1.0
    lanes = float(nest.simd[1])
    for a in range(nest.extents.shape[0]):
        outer, l1, kernel, pair = nest.columns[a, 0], nest.columns[a, 3], nest.columns[a, 4], nest.columns[a, 5]
        other = 0.0 if a == nest.simd[0] else 1.0
        unit = lanes if a == nest.simd[0] else 1.0
        for i in range(_N):
            pair_calls = c.raw[pair, i] if pair >= 0 else 0.0
            is_pair = 1.0 if pair_calls > 0.0 else 0.0
            inner = c.raw[l1, i] * c.raw[kernel, i]
            c.is_pair[a, i] = is_pair
            c.calls[a, i] = max(pair_calls, c.raw[l1, i])
            c.inner[a, i] = inner
            units = math.floor(math.ceil(inner / unit) / c.calls[a, i])
            c.small[a, i] = units if is_pair > 0.0 else math.ceil(c.raw[kernel, i] / unit)
            v[CpuCol.PAIRS + i] += is_pair * other
            v[CpuCol.PAIR_AXIS + i] = float(a) if is_pair * other > 0.0 else v[CpuCol.PAIR_AXIS + i]
            v[CpuCol.CHUNKS + i] *= c.raw[outer, i] if outer >= 0 else 1.0
    for x in range(nest.uses.shape[0]):
        flag = nest.pack_columns[x]
        for i in range(_N):
            c.packed[x, i] = c.raw[flag, i] if flag >= 0 else 0.0


@jit_helper
def _calls(nest: CpuNest, c: CpuChunk) -> None:
    """Fill the number of steps, tiles and calls of each kind of microkernel, and clear the sums over the kinds."""
    v = c.values
    for i in range(_N):
        v[CpuCol.STEPS + i] = 1.0
        v[CpuCol.UNROLL + i] = 1.0
        v[CpuCol.TILES + i] = 1.0
        v[CpuCol.PARTIAL + i] = 0.0
        v[CpuCol.SMALL_ROWS_CALLS + i] = 1.0
        v[CpuCol.LARGE_ROWS_CALLS + i] = 0.0
    for a in range(nest.extents.shape[0]):
        extent = float(nest.extents[a])
        if nest.is_reduction[a]:
            is_simd = a == nest.simd[0]
            group = float(nest.group[1]) if a == nest.group[0] else 1.0
            for i in range(_N):
                inner = c.inner[a, i]
                v[CpuCol.TILES + i] *= extent / inner
                v[CpuCol.PARTIAL + i] = 1.0 if inner < extent else v[CpuCol.PARTIAL + i]
                v[CpuCol.STEPS + i] *= c.calls[a, i] if is_simd else steps_of(inner, c.small[a, i], group)
                v[CpuCol.UNROLL + i] *= 1.0 if is_simd else math.ceil(c.small[a, i] / group)
        else:
            is_rows = a != nest.simd[0]
            for i in range(_N):
                calls = c.calls[a, i]
                larger = c.inner[a, i] - c.small[a, i] * calls
                is_last = v[CpuCol.PAIR_AXIS + i] == float(a)
                v[CpuCol.SMALL_ROWS_CALLS + i] = calls - larger if is_last else v[CpuCol.SMALL_ROWS_CALLS + i]
                v[CpuCol.LARGE_ROWS_CALLS + i] = larger if is_last else v[CpuCol.LARGE_ROWS_CALLS + i]
                v[CpuCol.TILES + i] *= extent / c.inner[a, i] * (calls if is_rows and not is_last else 1.0)
    axis = nest.simd[0]
    lanes = float(nest.simd[1])
    is_reduction = nest.is_reduction[axis] == 1
    for i in range(_N):
        calls, small = c.calls[axis, i], c.small[axis, i]
        larger = (math.ceil(c.inner[axis, i] / lanes) - small * calls) * c.is_pair[axis, i]
        # if the SIMD axis is summed over, calls along it are steps of one kernel
        v[CpuCol.SMALL_VECTORS + i] = small + (1.0 if larger > 0.0 and is_reduction else 0.0)
        v[CpuCol.SMALL_VECTORS_CALLS + i] = 1.0 if is_reduction else calls - larger
        v[CpuCol.LARGE_VECTORS_CALLS + i] = 0.0 if is_reduction else larger
    for i in range(_N):
        v[CpuCol.CYCLES + i] = 0.0
        v[CpuCol.FMA_S + i] = 0.0
        v[CpuCol.LOAD_S + i] = 0.0
        v[CpuCol.LATENCY_S + i] = 0.0
        v[CpuCol.ISSUE_S + i] = 0.0
        v[CpuCol.OVERHEAD_S + i] = 0.0
        v[CpuCol.ACCUMULATORS + i] = 0.0
        v[CpuCol.REGISTERS + i] = 0.0
        v[CpuCol.UNROLLED_FMA + i] = 0.0


@jit_helper
def _padding(nest: CpuNest, c: CpuChunk) -> None:
    """Fill INSIDE, RUNNING and PADDING, as `cpu.times.microkernel` computes them for single tiles."""
    v = c.values
    for i in range(_N):
        v[CpuCol.INSIDE + i] = 1.0
        v[CpuCol.RUNNING + i] = 1.0
        v[CpuCol.PADDING + i] = 0.0
        v[CpuCol.OWN_COPY + i] = -1.0
    for p in range(nest.padding.shape[0]):
        x, a, r = nest.padding[p, 0], nest.padding[p, 1], nest.padding[p, 2]
        axis, window = max(a, 0), max(r, 0)
        axis_kernel, window_kernel = nest.columns[axis, 4], nest.columns[window, 4]
        axis_extent, window_extent = float(nest.extents[axis]), float(nest.extents[window])
        share, copy = nest.inside_share[p], nest.pad_cycles[x]
        for i in range(_N):
            leaves_out = a >= 0 and skips_padding(
                c.inner[axis, i], axis_extent, c.raw[axis_kernel, i], c.inner[window, i], window_extent,
                c.raw[window_kernel, i],
            )  # fmt: skip
            v[CpuCol.INSIDE + i] *= share if leaves_out else 1.0
            v[CpuCol.RUNNING + i] *= share if leaves_out and c.raw[axis_kernel, i] == 1.0 else 1.0
            is_new = not leaves_out and c.packed[x, i] == 0.0 and v[CpuCol.OWN_COPY + i] != float(x)
            v[CpuCol.PADDING + i] += copy if is_new else 0.0
            v[CpuCol.OWN_COPY + i] = float(x) if is_new else v[CpuCol.OWN_COPY + i]


@jit_helper
def _operand_columns(large: float, nest: CpuNest, c: CpuChunk) -> None:
    """Fill the columns of the operands, for the microkernels of a pair with fewer (`large` 0) or more rows (1)."""
    v = c.values
    axis = nest.simd[0]
    for i in range(_N):
        v[CpuCol.VECTOR_LOADS + i] = 0.0
        v[CpuCol.VECTORS_HELD + i] = 0.0
        v[CpuCol.HELD + i] = 0.0
        v[CpuCol.BROADCAST + i] = 0.0
        v[CpuCol.VECTOR_CONVERSIONS + i] = 0.0
        v[CpuCol.CONVERSIONS + i] = 0.0
    result = nest.vector_loads.shape[0] - 1
    block = float(nest.group[2])
    shares = 1.0 if nest.group[2] > 1 else 0.0  # the rows of an AMX tile share its vectors
    for x in range(-1, result):  # first the product of all rows
        for i in range(_N):
            v[CpuCol.OWN + i] = 1.0
        for a in range(nest.extents.shape[0]):
            if nest.is_reduction[a] or a == axis or (x >= 0 and not nest.uses[x, a]):
                continue
            for i in range(_N):
                v[CpuCol.OWN + i] *= c.small[a, i] + (large if v[CpuCol.PAIR_AXIS + i] == float(a) else 0.0)
        if x < 0:
            for i in range(_N):
                v[CpuCol.ROWS + i] = v[CpuCol.OWN + i]
        elif nest.uses[x, axis]:
            each, converts = nest.vector_loads[x], nest.conversions[x]
            for i in range(_N):
                own_rows = v[CpuCol.OWN + i]
                v[CpuCol.VECTOR_LOADS + i] += own_rows if c.packed[x, i] > 0.0 else own_rows * each
                is_shared = own_rows < v[CpuCol.ROWS + i] or shares > 0.0
                v[CpuCol.VECTORS_HELD + i] += own_rows if is_shared else 0.0
                v[CpuCol.HELD + i] += 0.0 if is_shared else 1.0
                v[CpuCol.VECTOR_CONVERSIONS + i] += own_rows * converts
        else:
            converts = nest.conversions[x]
            for i in range(_N):
                own_rows = math.ceil(v[CpuCol.OWN + i] / block)
                v[CpuCol.BROADCAST + i] += own_rows
                v[CpuCol.CONVERSIONS + i] += own_rows * converts
    for i in range(_N):
        v[CpuCol.ROWS + i] = math.ceil(v[CpuCol.ROWS + i] / block)
    each, lanes, row = nest.vector_loads[result], float(nest.simd[1]), nest.result_row
    for i in range(_N):
        v[CpuCol.RELOADED + i] = each
    if row >= 0:
        for i in range(_N):
            own_rows = c.small[row, i] + (large if v[CpuCol.PAIR_AXIS + i] == float(row) else 0.0)
            v[CpuCol.RELOADED + i] = result_stores(each, lanes, own_rows)


@jit_helper
def _add_cycles(large: float, nest: CpuNest, cpu: CpuCore, c: CpuChunk) -> None:
    """Add the cycles of the microkernels with fewer (`large` 0) or more vectors (1) of a pair.

    `_operand_columns` has to run before.
    """
    v = c.values
    reduces = float(nest.simd[3])
    stores_vectors = nest.uses[nest.uses.shape[0] - 1, nest.simd[0]] == 1
    shuffles = 2.0 * math.log2(nest.simd[1])
    for i in range(_N):
        vectors = v[CpuCol.SMALL_VECTORS + i] + large
        vector_calls = v[CpuCol.LARGE_VECTORS_CALLS + i] if large > 0.0 else v[CpuCol.SMALL_VECTORS_CALLS + i]
        count = v[CpuCol.TILES + i] * v[CpuCol.SMALL_ROWS_CALLS + i] * vector_calls
        accumulators = v[CpuCol.ROWS + i] * vectors
        loads = v[CpuCol.VECTOR_LOADS + i] * vectors + v[CpuCol.BROADCAST + i]
        held = v[CpuCol.VECTORS_HELD + i] * vectors + v[CpuCol.HELD + i]
        conversions = v[CpuCol.VECTOR_CONVERSIONS + i] * vectors + v[CpuCol.CONVERSIONS + i]
        step, registers, fma, load, latency, issue = step_one(
            cpu, accumulators, loads, held, v[CpuCol.BROADCAST + i], conversions, v[CpuCol.UNROLL + i], reduces
        )
        stores = accumulators * v[CpuCol.RELOADED + i] if stores_vectors else accumulators + shuffles
        reloads = stores if stores_vectors else 1.0
        extra = call_one(cpu, stores, reloads, reduces, v[CpuCol.PARTIAL + i]) + v[CpuCol.PARTIAL + i] * nest.sums_wait
        steps = v[CpuCol.STEPS + i]
        is_used = count > 0.0
        latency *= v[CpuCol.RUNNING + i] / v[CpuCol.INSIDE + i]
        steps *= v[CpuCol.INSIDE + i]
        v[CpuCol.CYCLES + i] += count * (steps * max(step, latency) + extra)
        v[CpuCol.FMA_S + i] += count * steps * fma
        v[CpuCol.LOAD_S + i] += count * steps * load
        v[CpuCol.LATENCY_S + i] += count * steps * latency
        v[CpuCol.ISSUE_S + i] += count * steps * issue
        v[CpuCol.OVERHEAD_S + i] += count * extra
        v[CpuCol.ACCUMULATORS + i] = max(v[CpuCol.ACCUMULATORS + i], accumulators if is_used else 0.0)
        v[CpuCol.REGISTERS + i] = max(v[CpuCol.REGISTERS + i], registers if is_used else 0.0)
        unrolled = accumulators * v[CpuCol.UNROLL + i] if is_used else 0.0
        v[CpuCol.UNROLLED_FMA + i] = max(v[CpuCol.UNROLLED_FMA + i], unrolled)


@jit_helper
def core_columns(nest: CpuNest, cpu: CpuCore, c: CpuChunk) -> None:
    """Fill CYCLES, the cycles of its parts, the registers and the rule, after `load_points`."""
    v = c.values
    _calls(nest, c)
    _padding(nest, c)
    for row_kind in range(2):
        if row_kind == 1:
            for i in range(_N):
                v[CpuCol.SMALL_ROWS_CALLS + i] = v[CpuCol.LARGE_ROWS_CALLS + i]
        _operand_columns(float(row_kind), nest, c)
        for vector_kind in range(2):
            _add_cycles(float(vector_kind), nest, cpu, c)
    for i in range(_N):
        v[CpuCol.CYCLES + i] += v[CpuCol.PADDING + i]
        v[CpuCol.OVERHEAD_S + i] += v[CpuCol.PADDING + i]
    for i in range(_N):
        v[CpuCol.RULE + i] = broken_rule(
            cpu, v[CpuCol.REGISTERS + i], v[CpuCol.PAIRS + i], v[CpuCol.UNROLLED_FMA + i], v[CpuCol.PARALLEL + i],
            v[CpuCol.CHUNKS + i],
        )  # fmt: skip
