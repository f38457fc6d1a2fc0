"""Cycles of one microkernel call: registers, ports, latency, spills, loop and store overhead.

Notation
--------
rows : product of the register factors of the spatial axes that are not vectorised.
vectors : vectors of the SIMD axis; accumulators = rows * vectors.
step : one iteration of the reduction inside the microkernel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.numerics._jit import jit, jit_inline
from anatune.numerics.cpu_nest import CpuMachine, CpuNest

__all__ = ["call_cycles", "microkernel_step", "step_cycles"]


@jit_inline
def step_cycles(
    uses: NDArray[np.int64],
    vector_loads: NDArray[np.float64],
    core: NDArray[np.float64],
    tuning: NDArray[np.float64],
    simd: NDArray[np.int64],
    rows: NDArray[np.int64],
    vectors: float,
    packed: NDArray[np.bool_],
    unroll: float,
    parts: NDArray[np.float64],
) -> tuple[float, float]:
    """Return cycles of one reduction step and the vector registers it needs.

    ``rows`` : (A,) int64, register factor of each axis (1 for the SIMD axis and reductions). ``parts`` receives FMA,
    load, latency and issue cycles, the cycles that spills add, and the accumulators.

    ``step = max(acc / fma, loads / load_ports, fma_latency, instructions / issue_width)``; rows + vectors loads stand
    against rows * vectors multiply-adds. Source: [BLIS-model] Sec. 4.1 (accumulators >= latency * units).

    Registers: accumulators, operands that several rows share, one broadcast; with multiplication by a lane (NEON) one
    vector and the broadcast operand packed in lanes will do. One register too many and compilers keep all
    accumulators in memory: a load and a store for each multiply-add. Source: Xeon 6230R table of TTile (5x6 52.7 %,
    7x4 45.5 %, 8x4 42.7 % of peak: one store a cycle against two multiply-adds).
    """
    axis = simd[0]
    all_rows = 1.0
    for a in range(rows.shape[0]):
        all_rows *= rows[a]
    accumulators = all_rows * vectors
    loads = 0.0
    held = 0.0
    broadcast = 0.0
    for x in range(vector_loads.shape[0] - 1):
        own = 1.0
        for a in range(rows.shape[0]):
            if uses[x, a]:
                own *= rows[a]
        if uses[x, axis]:
            cost = 1.0 if packed[x] else vector_loads[x]
            loads += own * vectors * cost
            held += own * vectors if own < all_rows else 1.0
        else:
            loads += own
            broadcast += own
    registers = accumulators + held + min(broadcast, 1.0)
    if core[12] > 0.0 and broadcast > 0.0:
        registers = min(registers, accumulators + 1.0 + np.ceil(broadcast / core[12]))
    fma = accumulators / (core[0] * core[8])
    load = loads / core[3]
    latency = core[1] if simd[3] else 0.0
    issue = (max(accumulators, loads) + tuning[1] / unroll) / core[5]
    step = max(max(fma, load), max(latency, issue))
    spilled = step
    if registers > core[2] and simd[3]:  # every accumulator is loaded and stored in each step
        if held > tuning[2] * core[2]:
            loads += accumulators
        spilled = max(spilled, (loads + accumulators) / core[3])
        spilled = max(spilled, accumulators / core[4])
        spilled = max(spilled, (2.0 * accumulators + loads) / core[5])
    parts[0] = fma
    parts[1] = load
    parts[2] = latency
    parts[3] = issue
    parts[4] = spilled - step
    parts[5] = accumulators
    return spilled, registers


@jit_inline
def call_cycles(
    uses: NDArray[np.int64],
    vector_loads: NDArray[np.float64],
    core: NDArray[np.float64],
    tuning: NDArray[np.float64],
    simd: NDArray[np.int64],
    accumulators: float,
    packed: NDArray[np.bool_],
    is_partial: bool,
) -> float:
    """Return the cycles a call adds to its steps: entry, pipeline drain, stores, and reloads of partial sums."""
    x = vector_loads.shape[0] - 1
    stores = accumulators
    if uses[x, simd[0]]:
        if not packed[x]:
            stores *= vector_loads[x]
        reloads = stores
    else:  # the SIMD axis is summed over: a horizontal sum of log2(lanes) shuffles and adds for each call
        stores = accumulators + 2.0 * np.log2(simd[1])
        reloads = 1.0
    cycles: float = stores / core[4]
    if simd[3]:
        cycles += tuning[0] + core[1]
    else:
        cycles += tuning[1] / core[5]
    if is_partial:
        cycles += reloads / core[3]
    return cycles


@jit
def microkernel_step(
    nest: CpuNest, machine: CpuMachine, rows: NDArray[np.int64], vectors: float, packed: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return (cycles of a step, registers) of one microkernel with no unrolling: for tables and tests."""
    parts = np.zeros(6)
    return step_cycles(
        nest.uses, nest.vector_loads, machine.core, machine.tuning, nest.simd, rows, vectors, packed, 1.0, parts
    )
