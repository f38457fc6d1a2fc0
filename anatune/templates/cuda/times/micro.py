"""Micro quantities: those that depend on the order of the register tile, k1/k2, unrolling and fetch widths."""

from __future__ import annotations

import math

from anatune.numerics._jit import jit_helper, jit_inline
from anatune.numerics.columns import Bytes
from anatune.templates.cuda.times.shared_memory import conflict_degree_one
from anatune.templates.cuda.times.tile import LIVE_REGISTERS
from anatune.templates.gpu.times.columns import Chunk, Col, Gpu, NestArrays
from anatune.templates.gpu.times.waves import SECTOR

__all__ = ["fill_best_micro", "fill_loop_effects", "fill_micro", "is_dynamic_one"]


@jit_inline
def warp_sectors_one(warp: float, lanes: float, inner: float, apart_bytes: float) -> float:
    """Return the 32-byte sectors that one access of a warp to global memory touches.

    `lanes` threads follow each other along the innermost dimension. Each has `inner` elements, and neighbouring threads
    are `apart_bytes` apart.
    """
    dense = max(1.0, lanes * apart_bytes / SECTOR)
    return warp / lanes * (dense if inner == 1.0 else min(lanes, dense))


@jit_inline
def is_dynamic_one(vthreads: float, reg_inner: float, k2: float, reg_outer: float, limit: float) -> bool:
    """Return whether a loop over the register tile is not unrolled, so that accumulators are indexed at run time.

    The innermost loops (from the inside reg_inner, k2, reg_outer) are unrolled as long as their product times the
    virtual threads is at most `limit` statements: TVM's unroll depth, or the limit of the device's compiler if that is
    larger. Accumulators that are indexed by a loop variable live in local memory. The arguments are products over all
    axes, because the loop of an inner axis cannot be the first that is too large.
    """
    body = vthreads * reg_inner
    return (reg_inner > 1.0 and body > limit) or (reg_outer > 1.0 and body * k2 * reg_outer > limit)


@jit_helper
def fill_loop_effects(n: int, gpu: Gpu, c: Chunk) -> None:
    """Fill DYNAMIC and REUSE, and set SPILLED to all accumulators if they are indexed dynamically.

    The loop k2 runs inside reg_outer. If the inner tile fits in the registers, a compiler can keep it there over k2.
    The square root models that it does so in part: spilling K80 and MI50 points lie between 1 and k2.
    """
    v = c.values
    for i in range(n):
        vthreads, reg_inner, k2 = v[Col.VTHREADS, i], v[Col.REG_INNER, i], v[Col.K2, i]
        limit = max(v[Col.UNROLL, i], float(gpu.unroll_statements))
        dynamic = is_dynamic_one(vthreads, reg_inner, k2, v[Col.REG_OUTER, i], limit)
        v[Col.DYNAMIC, i] = 1.0 if dynamic else 0.0
        v[Col.SPILLED, i] = v[Col.ACCUMULATORS, i] if dynamic else v[Col.SPILLED, i]
        fits = vthreads * reg_inner + LIVE_REGISTERS <= v[Col.REGISTER_CAP, i]
        v[Col.REUSE, i] = math.sqrt(k2) if fits else 1.0


@jit_helper
def _add_shared_loads(t: int, n: int, nest: NestArrays, gpu: Gpu, c: Chunk, table: Bytes) -> None:
    """Add the shared-memory loads of operand `t`.

    A thread reads vectors of up to 16 bytes if its elements are contiguous and aligned in the staged tile: along
    reg_inner and reg_outer, and along the reduction if the registers can hold several iterations. The addresses of a
    warp form a lattice along the first two axes with several threads. Further axes multiply the conflict degree.
    """
    v = c.values
    tmp = c.temporary
    thread_run, k_run, align, state, distinct = tmp[0], tmp[1], tmp[2], tmp[3], tmp[4]
    # state: 0 the run continues along reduction axes only, 1 it continues, 2 it has ended
    stride, span, thread_span, broken = tmp[5], tmp[6], tmp[7], tmp[8]
    stride_1, count_1, stride_2, count_2, others = tmp[9], tmp[10], tmp[11], tmp[12], tmp[13]
    element = nest.element_bytes
    for i in range(n):
        thread_run[i] = 1
        k_run[i] = 1
        align[i] = 0
        state[i] = 0
        distinct[i] = 1
        stride[i] = 1
        stride_1[i] = 0
        count_1[i] = 1
        stride_2[i] = 0
        count_2[i] = 1
        others[i] = 1
    for d in range(nest.dim_start[t + 1] - 1, nest.dim_start[t] - 1, -1):
        for i in range(n):
            span[i] = 1
            thread_span[i] = 1
            broken[i] = 0
        k_only = True
        for q in range(nest.term_start[d], nest.term_start[d + 1]):
            axis = nest.term_axis[q]
            coefficient = nest.term_coefficient[q]
            tile = c.tile[axis]
            if axis >= nest.num_spatial:
                for i in range(n):
                    span[i] += coefficient * (tile[i] - 1)
                    thread_span[i] += coefficient * (tile[i] - 1)
                continue
            k_only = False
            inner, lanes = c.inner[axis], c.lanes[axis]
            for i in range(n):
                count = lanes[i]
                apart = stride[i] * coefficient * inner[i] * element
                words = apart >> 2
                count = (count * apart + 3) >> 2 if words == 0 else count  # neighbours share a word
                words = max(words, 1)
                several = count > 1
                is_first = several and count_1[i] == 1
                is_second = several and not is_first and count_2[i] == 1
                is_other = several and not is_first and not is_second
                others[i] *= (count * min(words & -words, 32) + 31) >> 5 if is_other else 1
                stride_2[i] = words if is_second else stride_2[i]
                count_2[i] = count if is_second else count_2[i]
                stride_1[i] = words if is_first else stride_1[i]
                count_1[i] = count if is_first else count_1[i]
                span[i] += coefficient * (tile[i] - 1)
                thread_span[i] += coefficient * (inner[i] - 1)
                distinct[i] *= lanes[i]
                broken[i] = 1 if (coefficient != 1 and inner[i] > 1) else broken[i]
        gap = nest.pad if d == nest.dim_start[t + 1] - 1 else 0
        for i in range(n):
            stride[i] = stride[i] * span[i] + gap
            open_run = state[i] < 2
            whole = broken[i] == 0
            thread_run[i] *= thread_span[i] if (open_run and whole) else 1
            k_run[i] *= thread_span[i] if (state[i] == 0 and whole and k_only) else 1
            ends = open_run and (thread_span[i] < span[i] or not whole)
            align[i] = stride[i] if ends else align[i]
            state[i] = 2 if ends else (state[i] if k_only or thread_span[i] == 1 else max(state[i], 1))
    widest = 16 // element
    accumulators, caps, steps = v[Col.ACCUMULATORS], v[Col.REGISTER_CAP], v[Col.STEPS]
    loads, wavefronts, conflict = v[Col.LOADS], v[Col.WAVEFRONTS], v[Col.CONFLICT]
    fragment = c.fragment[t]
    vectors = stride
    for i in range(n):
        both = thread_run[i] | align[i]
        power = both & -both
        vector = min(power if power > 0 else widest, widest)
        crowded = accumulators[i] + fragment[i] * vector + LIVE_REGISTERS > caps[i]
        vectors[i] = 1 if (k_run[i] > 1 and crowded) else vector
    for i in range(n):
        phase = 32 // max(1, vectors[i] * element >> 2)
        degree = conflict_degree_one(table, stride_1[i], count_1[i], stride_2[i], count_2[i], others[i], phase)
        phases = math.ceil(distinct[i] / phase)
        cycles = math.ceil(distinct[i] * vectors[i] * element / gpu.shared_bytes_cycle)
        each = fragment[i] / vectors[i] * steps[i]
        loads[i] += each
        wavefronts[i] += each * max(cycles, phases * degree)
        conflict[i] = max(conflict[i], degree)


@jit_inline
def fetch_one(footprint: float, width: float, threads: float, warps: float, warp: float) -> tuple[float, float]:
    """Return (loads of one thread, loads of all warps) to fetch a tile of `footprint` elements once."""
    each = math.ceil(footprint / (threads * width))
    return each, min(each * warps, math.ceil(footprint / (min(warp, threads) * width)) + 0.25 * warps)


@jit_helper
def _add_fetches(t: int, n: int, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    """Add the global loads of operand `t`.

    Single elements are loaded, as in the generated code, if the width does not divide the rows of the tile or of the
    tensor, is not a power of two, or exceeds 16 bytes.
    """
    v = c.values
    footprint, run, width, pitch = c.footprint[t], c.run[t], c.width[t], c.pitch[t]
    threads, warps = v[Col.THREADS], v[Col.WARPS]
    for i in range(n):
        loadable = width[i] & (width[i] - 1) == 0 and width[i] * nest.element_bytes <= 16
        both = run[i] | pitch[i]
        whole = loadable and both & (width[i] - 1) == 0
        used = float(width[i]) if whole else 1.0
        each, block = fetch_one(float(footprint[i]), used, threads[i], warps[i], float(gpu.warp_size))
        v[Col.FETCHES, i] += each
        v[Col.FETCHES_BLOCK, i] += block


@jit_helper
def _add_direct_loads(t: int, n: int, nest: NestArrays, gpu: Gpu, c: Chunk, best: bool) -> None:
    """Add the loads of an operand that is read from global memory without staging."""
    v = c.values
    fragment = c.fragment[t]
    axis = nest.inner_axis[t]
    apart = float(nest.inner_coefficient[t] * nest.element_bytes)
    for i in range(n):
        lanes = float(c.lanes[axis, i]) if axis >= 0 else 1.0
        inner = float(c.inner[axis, i]) if axis >= 0 and not best else 1.0
        sectors = warp_sectors_one(float(gpu.warp_size), lanes, inner, inner * apart)
        v[Col.FETCHES, i] += fragment[i]
        v[Col.FETCHES_BLOCK, i] += fragment[i] * v[Col.WARPS, i]
        v[Col.WAVEFRONTS, i] += fragment[i] * min(sectors, float(gpu.warp_size)) / 4.0


@jit_helper
def _fill_stores(n: int, nest: NestArrays, gpu: Gpu, c: Chunk, best: bool) -> None:
    result = nest.num_operands
    axis = nest.inner_axis[result]
    apart = float(nest.inner_coefficient[result] * nest.result_bytes)
    sectors = c.values[Col.STORE_SECTORS]
    for i in range(n):
        lanes = float(c.lanes[axis, i]) if axis >= 0 else 1.0
        inner = float(c.inner[axis, i]) if axis >= 0 and not best else 1.0
        sectors[i] = min(warp_sectors_one(float(gpu.warp_size), lanes, inner, inner * apart), float(gpu.warp_size))


@jit_helper
def fill_micro(n: int, nest: NestArrays, gpu: Gpu, c: Chunk, table: Bytes) -> None:
    """Fill the micro quantities of the first `n` points. It needs inner, width and the macro quantities."""
    v = c.values
    for i in range(n):
        v[Col.LOADS, i] = 0.0
        v[Col.WAVEFRONTS, i] = 0.0
        v[Col.FETCHES, i] = 0.0
        v[Col.FETCHES_BLOCK, i] = 0.0
        v[Col.CONFLICT, i] = 1.0
    for t in range(nest.num_operands):
        if nest.staged == 1:
            _add_shared_loads(t, n, nest, gpu, c, table)
            _add_fetches(t, n, nest, gpu, c)
        else:
            _add_direct_loads(t, n, nest, gpu, c, False)
    _fill_stores(n, nest, gpu, c, False)


@jit_helper
def fill_best_micro(n: int, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    """Fill the micro quantities with values that no point of the macro choice can beat; see `cuda.model.ranking`."""
    v = c.values
    for i in range(n):
        v[Col.LOADS, i] = 0.0
        v[Col.WAVEFRONTS, i] = 0.0
        v[Col.FETCHES, i] = 0.0
        v[Col.FETCHES_BLOCK, i] = 0.0
        v[Col.CONFLICT, i] = 1.0
    widest = float(16 // nest.element_bytes)
    steps, threads, warps = v[Col.STEPS], v[Col.THREADS], v[Col.WARPS]
    for t in range(nest.num_operands):
        if nest.staged == 0:
            _add_direct_loads(t, n, nest, gpu, c, True)
            continue
        fragment, footprint = c.fragment[t], c.footprint[t]
        for i in range(n):
            distinct = 1.0
            for a in range(nest.num_spatial):
                if nest.uses[t, a] == 1:
                    distinct *= c.lanes[a, i]
            bytes_cycle = distinct * nest.element_bytes / gpu.shared_bytes_cycle
            v[Col.LOADS, i] += fragment[i] * steps[i] / widest
            v[Col.WAVEFRONTS, i] += fragment[i] * steps[i] * max(1.0 / widest, bytes_cycle)
            wide, wide_block = fetch_one(float(footprint[i]), widest, threads[i], warps[i], float(gpu.warp_size))
            v[Col.FETCHES, i] += wide
            v[Col.FETCHES_BLOCK, i] += wide_block
    _fill_stores(n, nest, gpu, c, True)
