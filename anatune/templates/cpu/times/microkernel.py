"""Cycles of microkernel calls: registers, ports, latency, spills, loop and store overhead.

Notation
--------
rows : product of the register factors of the spatial axes that are not vectorised.
vectors : vectors of the SIMD axis; accumulators = rows * vectors.
step : one iteration of the reduction inside the microkernel.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit, jit_helper, jit_inline
from anatune.numerics.columns import Bools, Floats, Ints
from anatune.templates.cpu.times.classes import MicrokernelShape
from anatune.templates.cpu.times.nest import CpuCore, CpuNest, ceil_div, skips_padding, steps_of

__all__ = [
    "ACCUMULATORS",
    "MULTIPLY_ADDS",
    "NUM_PARTS",
    "REGISTERS",
    "CpuRule",
    "KernelWork",
    "broken_rule",
    "call_one",
    "core_cycles",
    "kernel_rules",
    "new_kernel_work",
    "result_stores",
    "step_one",
]

ACCUMULATORS, REGISTERS, MULTIPLY_ADDS, NUM_PARTS = 0, 1, 2, 3
"""Indices into the array `parts` of `core_cycles`, and its length.

They are the accumulators and registers of the largest microkernel, and the multiply-adds of its unrolled body.
"""


class KernelWork(NamedTuple):
    """Work space of functions that try microkernels."""

    inner: Ints
    """(A,), as the next three fields."""
    calls: Ints
    kernel: Ints
    rows: Ints
    parts: Floats
    """(NUM_PARTS,)."""


def new_kernel_work(num_axes: int) -> KernelWork:
    """Return work space for nests of `num_axes` axes."""
    inner, calls, kernel, rows = np.empty((4, num_axes), np.int64)
    return KernelWork(inner, calls, kernel, rows, np.zeros(NUM_PARTS))


CpuRule = IntEnum("CpuRule", "microkernel_pairs microkernel_registers microkernel_code parallel_cores")
"""Id of a rule -> its code, which `broken_rule` returns for points that break it."""


@jit_inline
def _overlap(left: float, right: float) -> float:
    """Return the cycles of two kinds of work that overlap almost perfectly: ``(left^8 + right^8)^(1/8)``.

    Work that needs as many load slots as multiply-add slots never fills both. Multiply-adds of just as many sums as
    cover their latency never fill their slots either: each one that starts late delays all that follow it. Source:
    anatune tune on a Zen 4 virtual machine, 512x1024x4096 in float32: 28 rows x 1 vector (29 loads for 28
    multiply-adds) are 10 % slower than 6 x 4 (10 for 24); 14 x 2 (16 for 28) less than 1 % slower. AVX2 (two
    multiply-adds a cycle, of four cycles), 196x1024x512: 4 x 2 reach 106 GFLOP/s, 6 x 2 reach 112.
    """
    left *= left
    left *= left
    left *= left
    right *= right
    right *= right
    right *= right
    return math.sqrt(math.sqrt(math.sqrt(left + right)))


@jit_inline
def _folds(cpu: CpuCore, accumulators: float, broadcast: float) -> bool:
    """Return whether multiply-adds read broadcast elements directly from memory, one each (AVX-512)."""
    return cpu.folds_broadcasts > 0.0 and broadcast >= accumulators


@jit_inline
def _registers(cpu: CpuCore, accumulators: float, held: float, broadcast: float) -> float:
    """Return the vector registers of a step: accumulators, operands that several rows share, one broadcast.

    A multiply-add can read a broadcast element that it alone uses directly from memory (AVX-512: 31 rows of one vector
    reach 98 % of the peak of a Zen 4, 32 rows spill).
    """
    products = accumulators + cpu.product_registers
    return products + held + (0.0 if _folds(cpu, accumulators, broadcast) else min(broadcast, cpu.broadcasts_held))


@jit_inline
def step_one(
    cpu: CpuCore,
    accumulators: float,
    loads: float,
    held: float,
    broadcast: float,
    conversions: float,
    unroll: float,
    reduces: float,
) -> tuple[float, float, float, float, float, float]:
    """Return the cycles of one reduction step and its parts.

    acc / fma, loads / load_ports, instructions / issue_width and fma_latency overlap (`_overlap`): rows + vectors loads
    compete with rows * vectors multiply-adds. Source: [BLIS-model] Sec. 4.1 (accumulators >= latency * units).
    The units that multiply are some of those that all vector instructions share, including conversions of loaded
    vectors.

    With one register too many, compilers keep all accumulators in memory: each multiply-add has a load and a store.
    Source: Xeon 6230R table of TTile (5x6 52.7 %, 7x4 45.5 %, 8x4 42.7 % of peak: one store a cycle against two
    multiply-adds).

    Parameters
    ----------
    accumulators, loads, held, broadcast
        Numbers of vectors: results; loads of a step; operands that several rows share; broadcast elements.
    conversions
        Vector instructions that convert loaded vectors before they are multiplied.
    unroll
        Steps of the straight-line body.
    reduces
        1 if there is a reduction, else 0.

    Returns
    -------
    tuple of float
        Cycles, vector registers needed, and the cycles of multiply-adds, loads, latency and issue without spills.
    """
    registers = _registers(cpu, accumulators, held, broadcast)
    operations = accumulators * cpu.product_ops + conversions
    fma = max(accumulators * (1.0 / cpu.fma_per_cycle), operations * (1.0 / cpu.vector_ops)) * (1.0 / cpu.reachable)
    load = (loads - broadcast) * (1.0 / cpu.loads) + broadcast * (1.0 / cpu.broadcasts)
    latency = cpu.fma_latency * reduces
    separate = loads - (broadcast if _folds(cpu, accumulators, broadcast) else 0.0)
    issue = (operations + separate + cpu.loop_instructions / unroll) * (1.0 / cpu.issue_width)
    step = _overlap(_overlap(_overlap(fma, load), issue), latency)
    # spilled: every accumulator is loaded and stored in each step
    reloaded = loads + accumulators if held > cpu.held_share * cpu.registers else loads
    spilled = max(accumulators * (1.0 / cpu.stores), (reloaded + accumulators) * (1.0 / cpu.loads))
    spilled = max(spilled, (accumulators + operations + reloaded) * (1.0 / cpu.issue_width))
    does_spill = registers > cpu.registers and reduces > 0.0
    return (max(step, spilled) if does_spill else step), registers, fma, load, latency, issue


@jit_inline
def call_one(cpu: CpuCore, stores: float, reloads: float, reduces: float, partial: float) -> float:
    """Return the cycles that a call adds to its steps: entry, pipeline drain, stores, reloads of partial sums."""
    entry = cpu.call_cycles + cpu.fma_latency if reduces > 0.0 else cpu.loop_instructions / cpu.issue_width
    return stores * (1.0 / cpu.stores) + entry + partial * reloads * (1.0 / cpu.loads)


@jit_inline
def broken_rule(
    cpu: CpuCore, registers: float, pairs: float, multiply_adds: float, parallel: float, chunks: float
) -> float:
    """Return 0, or the code of the first broken `CpuRule`."""
    rule = 1.0 * CpuRule.parallel_cores.value if parallel > 0.0 and (chunks < 2.0 or cpu.num_cores < 2.0) else 0.0
    rule = 1.0 * CpuRule.microkernel_code.value if multiply_adds > cpu.multiply_add_limit else rule
    rule = 1.0 * CpuRule.microkernel_registers.value if registers > cpu.register_limit * cpu.registers else rule
    return 1.0 * CpuRule.microkernel_pairs.value if pairs > 1.0 else rule


@jit
def kernel_rules(nest: CpuNest, cpu: CpuCore, kernels: Ints, own_rows: Ints, rules: Ints) -> None:
    """Fill `rules` with the first rule that each microkernel breaks in a parallel loop, or 0.

    Parameters
    ----------
    kernels : (num_kernels, 5) int64
        Rows, vectors, unrolled steps, pairs beside the SIMD axis, chunks of the parallel loop.
    own_rows : (num_kernels, X - 1) int64
        Rows of each operand.
    rules : (num_kernels,) int64
        Overwritten, as `broken_rule`.
    """
    for k in range(kernels.shape[0]):
        rows, vectors = float(kernels[k, 0]), float(kernels[k, 1])
        block = nest.group[2]
        held = 0.0
        broadcast = 0.0
        for x in range(own_rows.shape[1]):
            if nest.uses[x, nest.simd[0]]:
                held += held_vectors(float(own_rows[k, x]), rows, vectors, block)
            else:
                broadcast += math.ceil(own_rows[k, x] / block)
        rows = math.ceil(rows / block)
        registers = _registers(cpu, rows * vectors, held, broadcast)
        multiply_adds = rows * vectors * kernels[k, 2]
        rules[k] = broken_rule(cpu, registers, float(kernels[k, 3]), multiply_adds, 1.0, float(kernels[k, 4]))


@jit_inline
def held_vectors(own_rows: float, rows: float, vectors: float, block: int) -> float:
    """Return the vectors of an operand that several of the rows share; 1 if each row has its own."""
    return own_rows * vectors if own_rows < rows or block > 1 else 1.0


@jit_inline
def _operands(nest: CpuNest, rows: Ints, packed: Bools, vectors: float) -> tuple[float, float, float, float, float]:
    """Return accumulators, loads, held and broadcast vectors of a microkernel, and its conversions."""
    axis = nest.simd[0]
    block = nest.group[2]
    all_rows = 1.0
    for a in range(rows.shape[0]):
        all_rows *= rows[a]
    loads = 0.0
    held = 0.0
    broadcast = 0.0
    conversions = 0.0
    for x in range(nest.vector_loads.shape[0] - 1):
        own_rows = 1.0
        for a in range(rows.shape[0]):
            if nest.uses[x, a]:
                own_rows *= rows[a]
        if nest.uses[x, axis]:
            loads += own_rows * vectors * (1.0 if packed[x] else nest.vector_loads[x])
            held += held_vectors(own_rows, all_rows, vectors, block)
            conversions += own_rows * vectors * nest.conversions[x]
        else:
            own_rows = math.ceil(own_rows / block)
            loads += own_rows
            broadcast += own_rows
            conversions += own_rows * nest.conversions[x]
    return math.ceil(all_rows / block) * vectors, loads, held, broadcast, conversions


@jit_inline
def result_stores(each: float, lanes: float, rows: float) -> float:
    """Return the stores (and shuffles) for one vector of results that is not contiguous along the SIMD axis.

    If several rows are contiguous in memory, the microkernel transposes in registers: log2(lanes) shuffles a vector,
    and one store for each lane and group of rows. Otherwise every lane is stored alone.
    """
    if each == lanes and rows > 1.0:
        return max(lanes / rows, 1.0) + math.log2(lanes)
    return each


@jit_helper
def _padding(nest: CpuNest, shape: MicrokernelShape, packed: Bools, is_bound: bool) -> tuple[float, float, float]:
    """Return the shares of products and of steps that remain if padding is skipped, and the cycles of padded copies.

    A step whose tap is outside for some rows of a tile multiplies the other rows, and takes the latency all the same.
    """
    inner, kernel = shape.inner, shape.kernel
    inside_share = 1.0
    running_share = 1.0
    cycles = 0.0
    copied = -1
    for p in range(nest.padding.shape[0]):
        x, a, r = nest.padding[p, 0], nest.padding[p, 1], nest.padding[p, 2]
        leaves_out = False
        if a >= 0:
            leaves_out = is_bound or skips_padding(
                inner[a], nest.extents[a], kernel[a], inner[r], nest.extents[r], kernel[r]
            )
        if leaves_out:
            inside_share *= nest.inside_share[p]
            running_share *= nest.inside_share[p] if kernel[a] == 1 else 1.0
        elif copied != x and not packed[x] and not is_bound:
            cycles += nest.pad_cycles[x]  # entries of one tensor are neighbours: its copy counts once
            copied = x
    return inside_share, running_share, cycles


@jit_inline
def _vectors(inner: int, calls: int, kernel: int, lanes: int, is_summed: bool) -> tuple[int, int, int]:
    """Return the vectors of the smaller microkernel along the SIMD axis, its calls, and the calls of the larger one."""
    if kernel > 0:
        vectors = ceil_div(kernel, lanes)
        num_large = 0
    else:
        units = ceil_div(inner, lanes)
        vectors = int(units / calls)
        num_large = units - vectors * calls
    num_small = calls - num_large
    if is_summed:  # calls along a SIMD axis that is summed over are steps of one kernel
        vectors += 1 if num_large > 0 else 0
        num_large = 0
        num_small = 1
    return vectors, num_small, num_large


@jit_helper
def core_cycles(
    nest: CpuNest, cpu: CpuCore, shape: MicrokernelShape, packed: Bools, rows: Ints, parts: Floats, is_bound: bool
) -> float:
    """Return the core cycles of all microkernel calls of one nest, on one core, padded copies included.

    `cpu.times.kernels` computes the same for columns of points; the search uses this one for single tiles.

    Parameters
    ----------
    packed : (X,) bool
    rows : (A,) int64
        Work space.
    parts : (NUM_PARTS,) float64
        Overwritten.
    is_bound : bool
        Return a lower bound for all unrollings up to that of ``shape.kernel``.
    """
    inner, calls, kernel = shape.inner, shape.calls, shape.kernel
    axis = nest.simd[0]
    lanes = nest.simd[1]
    reduces = float(nest.simd[3])
    result = nest.vector_loads.shape[0] - 1
    steps = 1.0
    unroll = 1.0
    tiles = 1.0
    partial = 0.0
    pair_axis = -1
    for a in range(inner.shape[0]):
        tiles *= nest.extents[a] / inner[a]
        rows[a] = 1
        if nest.is_reduction[a]:
            if inner[a] < nest.extents[a]:
                partial = 1.0
            if a == axis:
                steps *= calls[a]
            else:
                group = float(nest.group[1]) if a == nest.group[0] else 1.0
                steps *= inner[a] / group if is_bound else steps_of(float(inner[a]), float(kernel[a]), group)
                unroll *= math.ceil(kernel[a] / group)
        elif a != axis:
            if kernel[a] == 0:
                pair_axis = a
            else:
                rows[a] = kernel[a]
                tiles *= calls[a]
    vectors, num_small, num_large = _vectors(
        inner[axis], calls[axis], kernel[axis], lanes, nest.is_reduction[axis] == 1
    )
    inside_share, running_share, total = _padding(nest, shape, packed, is_bound)
    for i in range(NUM_PARTS):
        parts[i] = 0.0
    for row_kind in range(2):
        row_count = 1.0
        if pair_axis >= 0:
            small = int(inner[pair_axis] / calls[pair_axis])
            larger = inner[pair_axis] - small * calls[pair_axis]
            rows[pair_axis] = small + row_kind
            row_count = float(larger) if row_kind else float(calls[pair_axis] - larger)
        elif row_kind:
            break
        for vector_kind in range(2):
            count = tiles * row_count * (num_large if vector_kind else num_small)
            if count == 0.0:
                continue
            accumulators, loads, held, broadcast, conversions = _operands(
                nest, rows, packed, float(vectors + vector_kind)
            )
            step, registers, _, _, latency, _ = step_one(
                cpu, accumulators, loads, held, broadcast, conversions, unroll, reduces
            )
            if nest.uses[result, axis]:
                contiguous_rows = kernel[nest.result_row] if nest.result_row >= 0 else 1
                if nest.result_row == pair_axis and pair_axis >= 0:
                    contiguous_rows = rows[pair_axis]
                stores = accumulators * result_stores(nest.vector_loads[result], float(lanes), float(contiguous_rows))
                reloads = stores
            else:  # each call sums over the SIMD axis: log2(lanes) shuffles and adds
                stores = accumulators + 2.0 * math.log2(lanes)
                reloads = 1.0
            step = max(step, latency * (running_share / inside_share))
            extra = call_one(cpu, stores, reloads, reduces, partial) + partial * nest.sums_wait
            total += count * (inside_share * steps * step + extra)
            parts[ACCUMULATORS] = max(parts[ACCUMULATORS], accumulators)
            parts[REGISTERS] = max(parts[REGISTERS], registers)
            parts[MULTIPLY_ADDS] = max(parts[MULTIPLY_ADDS], accumulators * unroll)
    return total
