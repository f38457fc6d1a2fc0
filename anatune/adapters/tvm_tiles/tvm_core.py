"""Cycles of compiled nests on one core: register reuse, loads, stores and latency.

held : results stay in registers over the largest group of innermost loops whose spatial loops are all unrolled and
    whose results fit the vector registers. Outside that group they are loaded and stored. The same holds for operands.
chain : updates of one result depend on each other, also through memory if the result is not held in a register.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.tvm_tiles.tvm_code import PIPES, CompiledCode, Vector, narrow_rate
from anatune.adapters.tvm_tiles.tvm_shape import INLINED, NestShape, TiledNests, distinct_vectors
from anatune.core.workload.nest import DTYPE_BYTES, Access
from anatune.templates.cpu.microkernels import vector_stride
from anatune.templates.cpu.times.nest import CpuCore

Floats = NDArray[np.float64]

PROMOTION_ACCESSES = 250.0
"""The most memory accesses of a loop that LLVM promotes to registers. Source: LLVM, -licm-mssa-max-acc-promotion."""
SPARE_REGISTERS = 2.0
"""The vector registers that are needed besides results: one for each operand."""
WINDOW_OPERATIONS = 100.0
"""The multiply-adds in flight at once: a reorder buffer of about 300 instructions, unverified."""
FORWARD_CYCLES = 6.0
"""The cycles, in addition to the multiply-add, of a result that goes through memory, unverified."""
ITERATION_INSTRUCTIONS = 3.0
"""The instructions of one iteration of a loop without its body, unverified."""
ENTRY_INSTRUCTIONS = 10.0
"""The instructions before a loop, which compute addresses, unverified."""
GUARDED_INSTRUCTIONS = 3.0
"""The instructions to pad one element. Source: padded copies of a 64x28x28 image on a Zen 4 machine."""
SCATTER_CYCLES = 4.0
"""The cycles of one statement that LLVM vectorises across rows, with gathers and scatters. Source: the same machine."""
SCALARISED_CYCLES = 1.0
"""The cycles to extract an element from a vector and to insert it again. LLVM breaks vectors that are longer than a
register, and whose length is not a power of two, into scalars if they live across a loop (getVectorTypeBreakdown).
Source: the same machine."""


class CoreCycles(NamedTuple):
    """The cycles of a batch of nests on one core, (num_nests,) each; `total` is the largest part plus the copies."""

    fma: Floats
    load: Floats
    store: Floats
    issue: Floats
    latency: Floats
    copy: Floats
    total: Floats
    held: Floats
    """The updates of a result between its load and its store."""
    registers: Floats
    """The vector registers that hold results."""


class _LoadCost(NamedTuple):
    cycles: Floats
    shuffles: Floats
    instructions: Floats


def core_cycles(shape: NestShape, core: CpuCore, nests: TiledNests, code: CompiledCode) -> CoreCycles:
    """Return the cycles of nests on one core."""
    vector, statements, write = code.vector, code.statements, shape.plain.write
    held, registers = _result_reuse(shape, core, code)
    rounds = statements / held
    loads = _loads(shape, core, nests, code, registers)
    load = loads.cycles + rounds * _vector_cost(shape, core, vector, write, core.loads)
    store = rounds * _vector_cost(shape, core, vector, write, core.stores)
    fma = statements * vector.fma_cycles / core.reachable
    moved = rounds * (vector.full + vector.narrow)
    instructions = np.maximum(statements * vector.operations, loads.instructions + moved) + moved
    issue = (instructions + loads.shuffles + _overhead(shape, code)) / core.issue_width
    latency = np.where(code.scattered, statements * SCATTER_CYCLES, _latency(shape, core, code, held))
    shuffle = loads.shuffles / PIPES + SCALARISED_CYCLES * _count_scalarised_elements(shape, code)
    copy = _copy_cycles(shape, core, nests)
    together = (fma**8 + load**8) ** 0.125  # as in `cpu.times.microkernel`: they do not overlap perfectly
    total = np.maximum.reduce([together, store, issue, latency, shuffle]) + copy
    return CoreCycles(fma, load, store, issue, latency, copy, total, held, registers)


def _vector_cost(shape: NestShape, core: CpuCore, vector: Vector, access: Access, rate: float) -> Floats:
    """Return the cycles to load or store one vector of a tensor along the vectorised axis."""
    stride = vector_stride(access, shape.simd)
    narrow = float(narrow_rate(rate, 2.0))
    if stride == 0:
        return np.full_like(vector.length, 1.0 / narrow)
    if stride != 1:
        return vector.length / narrow
    aligned = np.mod(vector.length, shape.lanes) == 0
    if len(access.indices[-1]) > 1 or access.shape[-1] % shape.lanes:
        aligned = np.zeros_like(aligned)
    crossing = (shape.lanes - 1) * DTYPE_BYTES[access.dtype] / core.line_bytes  # share of loads on two lines
    return vector.full * np.where(aligned, 1.0, 1.0 + crossing) / rate + vector.narrow / narrow


def _result_reuse(shape: NestShape, core: CpuCore, code: CompiledCode) -> tuple[Floats, Floats]:
    """Return the updates of a result between its load and its store, and the registers that hold results."""
    trips, each = code.trips, code.vector.registers
    count = len(trips)
    tile, reduced, held, registers = np.ones(count), np.ones(count), np.ones(count), each.copy()
    goes_on, is_promoted = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
    accesses = 2.0 * code.body[:, ~shape.reduces].prod(axis=1) + 2.0 * code.body.prod(axis=1)
    for loop in reversed(range(trips.shape[1])):
        is_loop = (trips[:, loop] > 1) & ~code.unrolled[:, loop]
        is_promoted |= is_loop
        if shape.reduces[loop]:
            goes_on &= ~is_loop | ~code.is_automatic
            reduced = reduced * trips[:, loop]
        else:
            goes_on &= ~is_loop
            tile = tile * trips[:, loop]
        fits = tile * each + SPARE_REGISTERS <= core.registers
        better = goes_on & fits & (~is_promoted | (accesses <= PROMOTION_ACCESSES)) & (reduced > held)
        held = np.where(better, reduced, held)
        registers = np.where(better, tile * each, registers)
    return held, registers


def _count_scalarised_elements(shape: NestShape, code: CompiledCode) -> Floats:
    """Return the elements of results that LLVM breaks into scalars, see `SCALARISED_CYCLES`."""
    last, is_left = code.innermost_loop()
    length = code.vector.length
    tile = code.body[:, ~shape.reduces].prod(axis=1)
    odd = (np.mod(np.log2(length), 1.0) > 0.0) & (length > shape.lanes) & ~code.is_automatic
    lives = is_left & shape.reduces[last] & odd & (2.0 * tile <= PROMOTION_ACCESSES)
    return np.where(lives, code.statements / code.body.prod(axis=1) * tile * length, 0.0)


def _loads(shape: NestShape, core: CpuCore, nests: TiledNests, code: CompiledCode, used_registers: Floats) -> _LoadCost:
    """Return the cost of loading operands; the free registers hold as many loaded values as possible."""
    vector = code.vector
    trips = code.with_vector_trips(1.0)
    total = trips.prod(axis=1)
    free = core.registers - used_registers
    cycles, shuffles, instructions = np.zeros_like(total), np.zeros_like(total), np.zeros_like(total)
    reads = list(zip(shape.plain.reads, shape.padded, strict=True))
    for access, padded in sorted(reads, key=lambda pair: vector_stride(pair[0], shape.simd) == 0):
        stride = vector_stride(access, shape.simd)
        each = np.ones_like(total) if stride == 0 else vector.registers
        fewest, used = _fewest_loads(shape, code, trips, access, each, free)
        free = free - np.maximum(used, 1.0)
        pieces = np.ones_like(total) if stride == 0 else vector.full + vector.narrow
        more = np.where((stride == 1) & (vector.length > 1), np.maximum(vector.narrow - 1.0, 0.0), 0.0)
        if stride not in (0, 1):  # one element at a time
            pieces, more = vector.length, vector.length
        cost = _vector_cost(shape, core, vector, access, core.loads)
        if padded:
            inlined = nests.producer_depth == INLINED
            elements = np.where(stride == 0, 1.0, vector.length)
            fewest, more = np.where(inlined, total, fewest), np.where(inlined, 0.0, more)
            pieces = np.where(inlined, GUARDED_INSTRUCTIONS * elements, pieces)
            cost = np.where(inlined, elements / PIPES, cost)
        cycles += fewest * cost
        shuffles += fewest * more
        instructions += fewest * pieces
    return _LoadCost(cycles, shuffles, instructions)


def _fewest_loads(
    shape: NestShape, code: CompiledCode, trips: Floats, access: Access, each: Floats, free: Floats
) -> tuple[Floats, Floats]:
    """Return the fewest vector loads of a tensor, and the registers that hold them.

    Parameters
    ----------
    trips : (num_nests, loops) float64
        The extents of the loops.
    each, free : (num_nests,) float64
        The registers of one vector, and the free registers.
    """
    total = trips.prod(axis=1)
    counts = {axis: np.ones_like(total) for axis in shape.plain.extents}
    goes_on, inside = np.ones(len(total), dtype=bool), np.ones_like(total)
    fewest, used = total.copy(), np.minimum(each, 1.0)
    for loop in reversed(range(trips.shape[1])):
        axis = shape.loops[loop][0]
        counts[axis] = counts[axis] * trips[:, loop]
        inside = inside * trips[:, loop]
        if access.uses(axis):
            goes_on &= (trips[:, loop] == 1) | code.unrolled[:, loop]
        distinct = distinct_vectors(access, counts, shape.simd)
        better = goes_on & (distinct * each + 1.0 <= free) & (total / inside * distinct < fewest)
        fewest = np.where(better, total / inside * distinct, fewest)
        used = np.where(better, distinct * each, used)
    return fewest, used


def _overhead(shape: NestShape, code: CompiledCode) -> Floats:
    """Return the instructions of loops without their bodies."""
    steps = np.ceil(code.trips[np.arange(len(code.trips)), code.automatic] / shape.lanes)
    trips = code.with_vector_trips(steps)
    outside, result = np.ones(len(trips)), np.zeros(len(trips))
    for loop in range(trips.shape[1]):
        real = (trips[:, loop] > 1) & ~code.unrolled[:, loop]
        result += np.where(real, outside * (ENTRY_INSTRUCTIONS + trips[:, loop] * ITERATION_INSTRUCTIONS), 0.0)
        outside = np.where(real, outside * trips[:, loop], outside)
    return result


def _latency(shape: NestShape, core: CpuCore, code: CompiledCode, held: Floats) -> Floats:
    """Return the cycles of dependent updates, hidden by independent results between them or in the reorder buffer."""
    trips = code.with_vector_trips(1.0)
    between = most = code.vector.operations
    chain = np.ones(len(trips))
    is_inside, was_spatial = np.ones(len(trips), dtype=bool), np.zeros(len(trips), dtype=bool)
    for loop in reversed(range(trips.shape[1])):
        real = trips[:, loop] > 1
        if shape.reduces[loop]:
            is_inside &= ~real
            chain = np.where(real & ~was_spatial, chain * trips[:, loop], chain)
            continue
        between = np.where(is_inside, between * trips[:, loop], between)
        was_spatial |= real & ~is_inside
        if shape.loops[loop][1] in ("S2", "S3"):
            most = most * trips[:, loop]
    latency = core.fma_latency + np.where(held > 1, 0.0, FORWARD_CYCLES)
    parallel = np.minimum(np.maximum(between, WINDOW_OPERATIONS / chain), most)
    cycles: Floats = code.statements * code.vector.operations * latency / parallel
    return cycles


def _copy_cycles(shape: NestShape, core: CpuCore, nests: TiledNests) -> Floats:
    """Return the cycles outside the nest: writing zeros, copying results, padding operands."""
    whole = shape.trips(nests)
    lanes = np.minimum(np.maximum(whole[:, -1], 1.0), shape.lanes)
    stores = shape.plain.write.num_elements / lanes / core.stores
    cycles = stores * np.where(nests.write_depth >= 0, 2.0, 1.0)
    for access, padded in zip(shape.plain.reads, shape.padded, strict=True):
        for depth in np.unique(nests.producer_depth) if padded else ():
            if depth < -1:
                continue
            rows = np.flatnonzero(nests.producer_depth == depth)
            first = int(depth) + 1  # the outermost loop inside which the copy is used
            counts = {axis: np.ones(len(rows)) for axis in shape.plain.extents}
            for loop in range(first, whole.shape[1]):
                counts[shape.loops[loop][0]] = counts[shape.loops[loop][0]] * whole[rows, loop]
            box = np.ones(len(rows))
            for terms in access.indices:
                box = box * (1.0 + sum(term.coefficient * (counts[term.axis] - 1.0) for term in terms))
            copied = box * whole[rows, :first].prod(axis=1)
            cycles[rows] += copied * GUARDED_INSTRUCTIONS / core.issue_width
    return cycles
