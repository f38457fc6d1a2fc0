"""Time of loop nests that a compiler makes of MetaSchedule's CPU tilings: no microkernels, whatever LLVM keeps.

A nest has the loops ``S0 S1 R0 S2 R1 S3`` (S: all spatial axes, R: all reductions, in the block's order) around one
statement ``C += A * B``. What TVM and LLVM make of it, as this model sees it:

vector : the innermost loop of the last spatial axis is one vector operation (TVM). Where it has one iteration, LLVM
    vectorises the innermost loop that is left, if that runs along the last spatial axis.
body : loops that are unrolled, from the inside: TVM's while the statements stay within ``auto_unroll_max_step``, then
    LLVM's while the instructions stay within its limit.
held : results stay in registers over the largest group of innermost loops whose spatial loops are all unrolled and
    whose results fit the vector registers; outside it they are loaded and stored. Operands likewise.
chain : updates of one result depend on each other, also through memory where results are not held.

Cycles are the largest of multiply-adds, loads, stores, issue and latency; cache traffic overlaps as in `CpuModel`.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware import CpuSpec
from anatune.core.microkernels import simd_lanes, vector_stride
from anatune.core.workload import DTYPE_BYTES, Access, Workload
from anatune.errors import SpaceError
from anatune.model.cpu_model import CpuModel
from anatune.model.evaluation import Evaluation
from anatune.numerics.cpu_columns import new_chunk
from anatune.numerics.cpu_nest import CpuNest
from anatune.numerics.tile_traffic import tile_traffic

__all__ = ["NO_PRODUCER", "CompiledNestModel", "TiledNests"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NO_PRODUCER = -3
"""`TiledNests.producer_depth` where operands are read as given; -2: padded in the statement, -1: before the nest."""
_INLINED = -2

LLVM_UNROLL = 300.0
"""Instructions up to which LLVM unrolls a loop of constant trip count whole. Source: LLVM, -unroll-threshold."""
REDUCTION_INSTRUCTIONS, SPATIAL_INSTRUCTIONS = 9.0, 11.0
"""Instructions of one statement as LLVM counts them, in a loop over a reduction (the result stays) and over a spatial
axis: two or three addresses, loads, multiply, add, store."""
PROMOTION_ACCESSES = 250.0
"""Memory accesses of a loop beyond which LLVM promotes none. Source: LLVM's -licm-mssa-max-acc-promotion."""
LLVM_VECTOR = 4
"""Fewest neighbouring elements that LLVM makes a vector by itself: 128 bits of float32."""
UNROLL_DEPTH = 8
"""Nested loops that TVM unrolls at most. Source: UnrollLoop's auto_max_depth."""
SPARE_REGISTERS = 2.0
"""Vector registers beside results: one operand of each kind."""
WINDOW_OPERATIONS = 100.0
"""Multiply-adds that are in flight at once: a reorder buffer of about 300 instructions, unverified."""
FORWARD_CYCLES = 6.0
"""Beyond the multiply-add, cycles until a result that went through memory is back, unverified."""
ITERATION_INSTRUCTIONS = 3.0
"""Instructions of one iteration of a loop beside its body, unverified."""
ENTRY_INSTRUCTIONS = 10.0
"""Instructions in front of a loop: addresses, unverified."""
GUARDED_INSTRUCTIONS = 3.0
"""Instructions to pad one element. Source: padded copies of a 64x28x28 image on a Zen 4 machine."""
SCATTER_CYCLES = 4.0
"""Cycles of one statement that LLVM vectorises across rows, with gathers and scatters. Source: the same machine."""
SCATTER_STATEMENTS = 16.0
"""Statements of a body that LLVM still vectorises that way. Source: the same machine."""
SCALARISED_CYCLES = 1.0
"""Cycles to take an element out of a vector and to put it back. LLVM breaks vectors whose length is no power of two
and more than a register into scalars wherever they live across a loop (getVectorTypeBreakdown). Source: the same
machine."""
COLLIDING_SHARE = 0.75
"""Of the sets that rows of one tensor fill, the share that they would have to overfill to be lost: as many rows as a
cache has ways still fit."""
PIPES = 2.0
"""Instructions of one kind a cycle for vectors of half the width and less."""


_PARTS = ("fma_s", "load_s", "store_s", "issue_s", "latency_s", "copy_s", "memory_s")


class TiledNests(NamedTuple):
    """A batch of nests.

    Attributes
    ----------
    factors : (num_nests, 4 * spatial + 2 * reduction axes) int64
        Factors axis by axis, in the workload's order: S0 S1 S2 S3, or R0 R1.
    unroll, vectorize, parallel : (num_nests,) int64
        Most statements that are unrolled; most iterations of a vector, and of the parallel loop before one more loop
        is fused into it.
    write_depth : (num_nests,) int64
        Loop in which results are copied out of a buffer of their own, -1: none.
    producer_depth : (num_nests,) int64
        Loop in which padded operands are made; `NO_PRODUCER`, -2, -1.
    """

    factors: Integers
    unroll: Integers
    vectorize: Integers
    parallel: Integers
    write_depth: Integers
    producer_depth: Integers


class _Vector(NamedTuple):
    """The vector operation of each nest."""

    length: Floats
    """Elements of one statement's operation."""
    pieces: Floats
    """Loads of the whole vector, and narrower ones for what remains."""
    narrow: Floats
    operations: Floats
    """Multiply-adds."""
    fma_cycles: Floats
    registers: Floats


class CompiledNestModel:
    """Predicts the time of compiled nests of one workload on one CPU.

    Guarantees: deterministic; every prediction depends on its own nest only. Not safe for concurrent use.

    Parameters
    ----------
    workload : Workload
        float32; a padded operand is read from a padded copy.
    hardware : CpuSpec
    threads : int, optional
        Threads that parallel loops use; all cores by default.

    Raises
    ------
    SpaceError
        The workload is no sum of products in float32.
    """

    def __init__(self, workload: Workload, hardware: CpuSpec, threads: int | None = None) -> None:
        if workload.body != "multiply_add" or not workload.reduction_axes or workload.dtype != "float32":
            raise SpaceError(
                f"{workload.describe()}: expected a sum of products in float32; others are not modelled as compiled"
            )
        self.workload, self.hardware = workload, hardware
        self.threads = min(threads or hardware.compute.num_cores, hardware.compute.num_cores)
        self.lanes = simd_lanes(workload, hardware.compute.simd_bits)
        self._padded = [min(access.offsets, default=0) < 0 or _overhangs(access, workload) for access in workload.reads]
        plain = msgspec.structs.replace(
            workload, reads=tuple(_whole(access, workload) for access in workload.reads), epilogue=(), epilogue_reads=()
        )
        self._plain = plain
        self._spatial = [axis.name for axis in plain.spatial_axes]
        self._reduction = [axis.name for axis in plain.reduction_axes]
        self.simd = self._spatial[-1]
        self.loops = _loops(self._spatial, self._reduction)
        """(axis, level) from the outermost to the innermost loop."""
        model = CpuModel(plain, hardware, simd=self.simd)
        self._machine = model.machine
        self._names = list(plain.extents)
        self._columns = _columns(plain)
        nest = _plain_nest(model.nest, self._names, self._spatial, self._reduction, self._columns)
        self._nests = [_colliding(nest, x) for x in range(len(plain.reads))]

    # ---- batches ---------------------------------------------------------------------------------------------

    def evaluate(self, nests: TiledNests) -> Evaluation:
        """Score nests; columns are the parts of the time, seconds, and what they follow from."""
        core = self._machine.core
        trips = np.stack([nests.factors[:, self._columns[loop]] for loop in self.loops], axis=1).astype(np.float64)
        total = trips.prod(axis=1)
        whole = trips.copy()
        vector_length = np.where(trips[:, -1] <= nests.vectorize, trips[:, -1], 1.0)
        trips[:, -1] /= vector_length
        unrolled = self._unrolled(trips, vector_length, nests.unroll)
        automatic = self._automatic(trips, unrolled, vector_length)
        barrier = automatic >= 0
        rows = np.flatnonzero(barrier)
        vector_length[rows] = trips[rows, automatic[rows]]
        scattered = self._scattered(trips, unrolled, vector_length)
        grouped = np.where(scattered, -1, self._grouped(trips, unrolled, vector_length))
        rows = np.flatnonzero(grouped >= 0)
        vector_length[rows] = trips[rows, grouped[rows]]
        trips[rows, grouped[rows]] = 1.0
        vector = self._vector(vector_length, barrier)
        statements = total / vector_length
        held, result_registers = self._held(trips, unrolled, vector, barrier)
        rounds = statements / held
        loads, shuffles, operand_loads = self._loads(
            trips, unrolled, vector, result_registers, nests, barrier, automatic
        )
        result_loads = self._cost(vector, self._plain.write, core.loads)
        load_c = loads + rounds * result_loads
        store_c = rounds * self._cost(vector, self._plain.write, core.stores)
        fma_c = statements * vector.fma_cycles / core.reachable
        pieces = vector.pieces + vector.narrow
        overhead = self._overhead(trips, unrolled, automatic)
        count = np.maximum(statements * vector.operations, operand_loads + rounds * pieces) + rounds * pieces
        issue_c = (count + shuffles + overhead) / core.issue_width
        latency_c = self._latency(trips, statements, vector, held, automatic)
        copies_c = self._copies(whole, nests)
        shuffles = shuffles + PIPES * SCALARISED_CYCLES * self._scalarised(trips, unrolled, vector, statements, barrier)
        latency_c = np.where(scattered, statements * SCATTER_CYCLES, latency_c)
        together = (fma_c**8 + load_c**8) ** 0.125
        core_c = np.maximum.reduce([together, store_c, issue_c, latency_c, shuffles / PIPES]) + copies_c
        chunks = self._chunks(whole, nests)
        threads = np.minimum(self.threads, chunks)
        share = np.ceil(chunks / threads) / chunks
        moved = self._traffic(nests)
        seconds = [1.0 / (b * core.clock_hz) for b in self._machine.fill_bytes_per_cycle[:-1]]
        seconds.append(1.0 / min(core.dram_core_bytes_s, core.dram_socket_bytes_s / self.threads))
        memory_s = share * sum(m * s for m, s in zip(moved, seconds, strict=True))
        core_s = share * core_c / core.clock_hz
        time_s = np.maximum(core_s, memory_s) + core.exposed_share * np.minimum(core_s, memory_s)
        time_s += np.where(chunks > 1, core.start_s if self.threads > 1 else 0.0, 0.0)
        cycle_s = share / core.clock_hz
        columns = {
            "fma_s": fma_c * cycle_s, "load_s": load_c * cycle_s, "store_s": store_c * cycle_s,
            "issue_s": issue_c * cycle_s, "latency_s": latency_c * cycle_s, "copy_s": copies_c * cycle_s,
            "memory_s": memory_s, "core_s": core_s, "vector": vector_length, "held": held,
            "registers": result_registers, "body": np.where(unrolled, trips, 1.0).prod(axis=1), "chunks": chunks,
        }  # fmt: skip
        return Evaluation(time_s, np.zeros(len(time_s), dtype=np.int64), columns)

    def features(self, nests: TiledNests, evaluation: Evaluation) -> Floats:
        """Return numbers by which errors carry over, (num_nests, num_features): parts, choices, inner tiles."""
        columns = evaluation.columns
        parts = [columns[name] / evaluation.time_s for name in _PARTS]
        counts = [columns[name] for name in ("vector", "held", "registers", "body", "chunks")]
        inner = [nests.factors[:, column] for (_, level), column in self._columns.items() if level not in ("S0", "R0")]
        places = [nests.write_depth >= 0, nests.producer_depth == _INLINED, nests.producer_depth >= 0]
        logs = [np.log2(1.0 + value) for value in (*counts, *inner, nests.unroll)]
        return np.column_stack([*parts, *logs, *(place.astype(np.float64) for place in places)])

    # ---- what the compilers do -------------------------------------------------------------------------------

    def _unrolled(self, trips: Floats, vector_length: Floats, unroll: Integers) -> NDArray[np.bool_]:
        """Return which loops are unrolled, (num_nests, loops)."""
        size, depth = np.ones(len(trips)), np.zeros(len(trips))
        by_tvm, result = np.ones(len(trips), dtype=bool), np.zeros(trips.shape, dtype=bool)
        loops = [at for at in reversed(range(trips.shape[1])) if self.loops[at][1] not in ("S0",)]
        for at in loops:
            real = trips[:, at] > 1
            fits = by_tvm & real & (size * trips[:, at] <= unroll) & (depth <= UNROLL_DEPTH)
            result[:, at] = fits
            size = np.where(fits, size * trips[:, at], size)
            depth += fits
            by_tvm &= fits | ~real
        operations = np.ceil(np.exp2(np.ceil(np.log2(vector_length))) / self.lanes)
        last = trips.shape[1] - 1 - np.argmax((trips > 1)[:, ::-1], axis=1)
        reduces = np.array([axis in self._reduction for axis, _ in self.loops])[last]
        size = size * np.where(reduces, REDUCTION_INSTRUCTIONS, SPATIAL_INSTRUCTIONS) * np.maximum(operations, 1.0)
        by_llvm = np.ones(len(trips), dtype=bool)
        for at in loops:
            real = (trips[:, at] > 1) & ~result[:, at]
            fits = by_llvm & real & (size * trips[:, at] <= LLVM_UNROLL)
            result[:, at] |= fits
            size = np.where(fits, size * trips[:, at], size)
            by_llvm &= fits | ~real
        return result

    def _automatic(self, trips: Floats, unrolled: NDArray[np.bool_], vector_length: Floats) -> Integers:
        """Return the loop that LLVM vectorises, (num_nests,), -1: none."""
        found = np.full(len(trips), -1, dtype=np.int64)
        least = LLVM_VECTOR + (1 if self._has_windows else 0)
        if not self._is_contiguous:
            return found
        left = (trips > 1) & ~unrolled
        last = trips.shape[1] - 1 - np.argmax(left[:, ::-1], axis=1)
        for at, (axis, _) in enumerate(self.loops):
            if axis == self.simd:
                chosen = (last == at) & left[:, at] & (vector_length == 1) & (trips[:, at] >= least)
                found[chosen] = at
        return found

    def _scattered(self, trips: Floats, unrolled: NDArray[np.bool_], vector_length: Floats) -> NDArray[np.bool_]:
        """Return whether LLVM vectorises the innermost loop that is left although its iterations are rows apart."""
        left = (trips > 1) & ~unrolled
        last = trips.shape[1] - 1 - np.argmax(left[:, ::-1], axis=1)
        spatial = np.array([axis in self._spatial for axis, _ in self.loops])[last]
        along = trips[np.arange(len(trips)), last]
        small = np.where(unrolled, trips, 1.0).prod(axis=1) <= SCATTER_STATEMENTS
        chosen: NDArray[np.bool_] = (vector_length == 1) & left.any(axis=1) & spatial & (along >= self.lanes) & small
        return chosen

    def _grouped(self, trips: Floats, unrolled: NDArray[np.bool_], vector_length: Floats) -> Integers:
        """Return the unrolled loop whose neighbouring results LLVM makes vectors (SLP), (num_nests,), -1: none."""
        found = np.full(len(trips), -1, dtype=np.int64)
        least = LLVM_VECTOR * (2 if self._has_windows else 1)
        if self._is_contiguous:
            for at, (axis, _) in enumerate(self.loops):
                if axis == self.simd:
                    chosen = unrolled[:, at] & (vector_length == 1) & (trips[:, at] >= least)
                    found[chosen] = at
        return found

    @property
    def _has_windows(self) -> bool:
        """Whether vectors of an operand overlap: what LLVM then makes of short loops is no vector."""
        return any(len(access.indices[-1]) > 1 for access in self._plain.reads if access.uses(self.simd))

    @property
    def _is_contiguous(self) -> bool:
        """Whether neighbours along the vector axis are neighbours in memory, or the same, in every tensor."""
        return all(vector_stride(a, self.simd) in (0, 1) for a in (*self._plain.reads, self._plain.write))

    def _vector(self, length: Floats, automatic: NDArray[np.bool_]) -> _Vector:
        lanes, core = float(self.lanes), self._machine.core
        full, rest = np.floor(length / lanes), np.mod(length, lanes)
        bits = np.array([int(value).bit_count() for value in rest], dtype=np.float64)
        rounded = np.exp2(np.ceil(np.log2(length)))
        scalars = np.mod(rest, LLVM_VECTOR)
        parts = np.array([(int(value) >> 2).bit_count() for value in rest], dtype=np.float64)
        narrow = np.where(automatic, parts + scalars, bits)
        operations = np.where(automatic, full + narrow, np.ceil(rounded / lanes))
        width = np.minimum(rounded, lanes)
        wide_c = np.ceil(rounded / lanes) / _rate(core.fma_per_cycle, lanes / width)
        automatic_c = full / core.fma_per_cycle + narrow / _rate(core.fma_per_cycle, np.full_like(rest, 2.0))
        return _Vector(
            length, full, narrow, operations, np.where(automatic, automatic_c, wide_c),
            np.where(automatic, 1.0, np.ceil(rounded / lanes)),
        )  # fmt: skip

    def _cost(self, vector: _Vector, access: Access, rate: float) -> Floats:
        """Return the cycles to load or store one vector of a tensor along the vector axis."""
        line, element = self._machine.core.line_bytes, DTYPE_BYTES[access.dtype]
        stride = vector_stride(access, self.simd)
        narrow_rate = float(_rate(rate, np.array([2.0]))[0])
        if stride == 0:
            return np.full_like(vector.length, 1.0 / narrow_rate)
        if stride != 1:
            return vector.length / narrow_rate
        aligned = len(access.indices[-1]) == 1 and access.shape[-1] % self.lanes == 0
        crossing = (
            np.where(np.mod(vector.length, self.lanes) == 0, 0.0, 1.0) if aligned else np.ones_like(vector.length)
        )
        share = 1.0 + crossing * (self.lanes - 1) * element / line
        return vector.pieces * share / rate + vector.narrow / narrow_rate

    def _held(
        self, trips: Floats, unrolled: NDArray[np.bool_], vector: _Vector, barrier: NDArray[np.bool_]
    ) -> tuple[Floats, Floats]:
        """Return the updates of a result between its load and its store, and the registers of the results."""
        count = len(trips)
        tile, reduced = np.ones(count), np.ones(count)
        held, registers = np.ones(count), vector.registers.copy()
        open_, promoted = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
        body = np.where(unrolled, trips, 1.0)
        spatial = [at for at, (axis, _) in enumerate(self.loops) if axis in self._spatial]
        accesses = 2.0 * body[:, spatial].prod(axis=1) + 2.0 * body.prod(axis=1)
        for at in reversed(range(trips.shape[1])):
            axis = self.loops[at][0]
            is_reduction = axis in self._reduction
            real = trips[:, at] > 1
            open_ &= ~real | unrolled[:, at] | (is_reduction & ~barrier)
            promoted |= real & ~unrolled[:, at]
            if is_reduction:
                reduced = reduced * trips[:, at]
            else:
                tile = tile * trips[:, at]
            fits = tile * vector.registers + SPARE_REGISTERS <= self._machine.core.registers
            better = open_ & fits & (~promoted | (accesses <= PROMOTION_ACCESSES)) & (reduced > held)
            held = np.where(better, reduced, held)
            registers = np.where(better, tile * vector.registers, registers)
        return held, registers

    def _scalarised(
        self,
        trips: Floats,
        unrolled: NDArray[np.bool_],
        vector: _Vector,
        statements: Floats,
        automatic: NDArray[np.bool_],
    ) -> Floats:
        """Return the elements of results that go through scalars: they live across a loop, in vectors of odd length."""
        left = (trips > 1) & ~unrolled
        last = trips.shape[1] - 1 - np.argmax(left[:, ::-1], axis=1)
        reduces = np.array([axis in self._reduction for axis, _ in self.loops])
        body = np.where(unrolled, trips, 1.0)
        tile = body[:, ~reduces].prod(axis=1)
        odd = (np.mod(np.log2(vector.length), 1.0) > 0.0) & (vector.length > self.lanes)
        lives = left.any(axis=1) & reduces[last] & odd & ~automatic & (2.0 * tile <= PROMOTION_ACCESSES)
        return np.where(lives, statements / body.prod(axis=1) * tile * vector.length, 0.0)

    def _loads(
        self,
        trips: Floats,
        unrolled: NDArray[np.bool_],
        vector: _Vector,
        result_registers: Floats,
        nests: TiledNests,
        barrier: NDArray[np.bool_],
        automatic: Integers,
    ) -> tuple[Floats, Floats, Floats]:
        """Return cycles of operand loads, shuffles to assemble vectors, and load instructions."""
        trips = trips.copy()
        rows = np.flatnonzero(barrier)
        trips[rows, automatic[rows]] = 1.0
        total = trips.prod(axis=1)
        left = self._machine.core.registers - result_registers
        cycles, shuffles, instructions = np.zeros(len(trips)), np.zeros(len(trips)), np.zeros(len(trips))
        reads = list(zip(self._plain.reads, self._padded, strict=True))
        for access, padded in sorted(reads, key=lambda pair: vector_stride(pair[0], self.simd) == 0):
            stride = vector_stride(access, self.simd)
            each = np.ones_like(total) if stride == 0 else vector.registers
            counts = {axis: np.ones(len(trips)) for axis in self._names}
            open_, inside = np.ones(len(trips), dtype=bool), np.ones(len(trips))
            fewest, used = total.copy(), np.minimum(each, 1.0)
            for at in reversed(range(trips.shape[1])):
                axis = self.loops[at][0]
                counts[axis] = counts[axis] * trips[:, at]
                inside = inside * trips[:, at]
                if access.uses(axis):
                    open_ &= (trips[:, at] == 1) | unrolled[:, at]
                distinct = _distinct(access, counts, self.simd)
                better = open_ & (distinct * each + 1.0 <= left) & (total / inside * distinct < fewest)
                fewest = np.where(better, total / inside * distinct, fewest)
                used = np.where(better, distinct * each, used)
            left = left - np.maximum(used, 1.0)
            pieces = np.ones_like(total) if stride == 0 else vector.pieces + vector.narrow
            gathered = np.zeros_like(total)
            if stride not in (0, 1):
                pieces, gathered = vector.length, vector.length
            cost = self._cost(vector, access, self._machine.core.loads)
            more = np.where(stride == 1, np.maximum(vector.narrow - 1.0, 0.0), 0.0) * (vector.length > 1) + gathered
            if padded:
                inlined = nests.producer_depth == _INLINED
                lanes = np.where(stride == 0, 1.0, vector.length)
                fewest = np.where(inlined, total, fewest)
                more = np.where(inlined, 0.0, more)
                pieces = np.where(inlined, GUARDED_INSTRUCTIONS * lanes, pieces)
                cost = np.where(inlined, lanes / PIPES, cost)
            cycles += fewest * cost
            shuffles += fewest * more
            instructions += fewest * pieces
        return cycles, shuffles, instructions

    def _overhead(self, trips: Floats, unrolled: NDArray[np.bool_], automatic: Integers) -> Floats:
        """Return the instructions of loops beside their bodies."""
        trips = trips.copy()
        rows = np.flatnonzero(automatic >= 0)
        trips[rows, automatic[rows]] = np.ceil(trips[rows, automatic[rows]] / self.lanes)
        outside, result = np.ones(len(trips)), np.zeros(len(trips))
        for at in range(trips.shape[1]):
            real = (trips[:, at] > 1) & ~unrolled[:, at]
            result += np.where(real, outside * (ENTRY_INSTRUCTIONS + trips[:, at] * ITERATION_INSTRUCTIONS), 0.0)
            outside = np.where(real, outside * trips[:, at], outside)
        return result

    def _latency(self, trips: Floats, statements: Floats, vector: _Vector, held: Floats, automatic: Integers) -> Floats:
        """Return the cycles of dependent updates."""
        core = self._machine.core
        operations = vector.operations.copy()
        between, chain, most = operations, np.ones(len(trips)), operations
        is_inside, was_spatial = np.ones(len(trips), dtype=bool), np.zeros(len(trips), dtype=bool)
        rows = np.flatnonzero(automatic >= 0)
        trips = trips.copy()
        trips[rows, automatic[rows]] = 1.0
        for at in reversed(range(trips.shape[1])):
            real = trips[:, at] > 1
            if self.loops[at][0] in self._reduction:
                is_inside &= ~real
                chain = np.where(real & ~was_spatial, chain * trips[:, at], chain)
            else:
                between = np.where(is_inside, between * trips[:, at], between)
                was_spatial |= real & ~is_inside
                if self.loops[at][1] in ("S2", "S3"):
                    most = most * trips[:, at]
        latency = core.fma_latency + np.where(held > 1, 0.0, FORWARD_CYCLES)
        parallel = np.minimum(np.maximum(between, WINDOW_OPERATIONS / chain), most)
        cycles: Floats = statements * operations * latency / parallel
        return cycles

    def _copies(self, whole: Floats, nests: TiledNests) -> Floats:
        """Return the cycles of what happens beside the nest: zeros, copies of results, padding."""
        core = self._machine.core
        results = float(self._plain.write.num_elements)
        lanes = np.minimum(np.maximum(whole[:, -1], 1.0), self.lanes)
        stores = results / lanes / core.stores
        cycles = stores * np.where(nests.write_depth >= 0, 2.0, 1.0)
        for access, padded in zip(self._plain.reads, self._padded, strict=True):
            if not padded:
                continue
            made = np.zeros(len(whole))
            for depth in np.unique(nests.producer_depth):
                at = np.flatnonzero(nests.producer_depth == depth)
                counts = {axis: np.ones(len(at)) for axis in self._names}
                for loop in range(max(0, int(depth) + 1), whole.shape[1]):
                    counts[self.loops[loop][0]] = counts[self.loops[loop][0]] * whole[at, loop]
                box = np.ones(len(at))
                for terms in access.indices:
                    box = box * (1.0 + sum(term.coefficient * (counts[term.axis] - 1.0) for term in terms))
                made[at] = box * whole[at, : max(0, int(depth) + 1)].prod(axis=1) if depth >= -1 else 0.0
            cycles = cycles + made * GUARDED_INSTRUCTIONS / core.issue_width
        return cycles

    def _chunks(self, whole: Floats, nests: TiledNests) -> Floats:
        """Return the iterations of the parallel loop, (num_nests,)."""
        chunks, open_ = np.ones(len(whole)), nests.parallel > 0
        for at in range(2 * len(self._spatial)):
            chunks = np.where(open_, chunks * whole[:, at], chunks)
            split = (nests.write_depth == at) | (nests.producer_depth == at)
            open_ &= (chunks <= nests.parallel) & ~split
        return chunks

    def _traffic(self, nests: TiledNests) -> Floats:
        """Return the bytes that enter each cache, (levels, num_nests)."""
        machine, count = self._machine, len(nests.factors)
        raw = np.ones((nests.factors.shape[1] + 1, count))
        raw[:-1] = nests.factors.T
        inner, calls = np.ones((len(self._names), count)), np.ones((len(self._names), count))
        for number, axis in enumerate(self._names):
            if axis in self._spatial:
                inner[number] = nests.factors[:, self._columns[axis, "S3"]]
            else:
                inner[number] = calls[number] = nests.factors[:, self._columns[axis, "R1"]]
        packed = np.zeros((len(self._plain.reads) + 1, count))
        for x, padded in enumerate(self._padded):
            if padded:
                packed[x] = nests.producer_depth >= 0
        packed[-1] = nests.write_depth >= 0
        zeros = np.zeros((1, count))
        raw = np.concatenate([raw, zeros])
        chunk = new_chunk(len(raw), len(self._names), len(packed), len(machine.size_bytes))
        size = machine.size_bytes / np.minimum(self.threads, machine.shared_by)
        most = np.zeros((len(size), count))
        for nest in self._nests:
            moved = np.empty((len(size), count))
            tile_traffic(raw, inner, calls, packed, size, nest, machine.core.line_bytes, chunk, moved)
            most = np.maximum(most, moved)
        return most


def _rate(rate: float, narrower: Floats) -> Floats:
    """Return instructions a cycle on vectors that are `narrower` times narrower than the registers."""
    return np.maximum(rate, np.minimum(PIPES, rate * narrower))


def _overhangs(access: Access, workload: Workload) -> bool:
    return any(
        offset + sum(term.coefficient * (workload.extents[term.axis] - 1) for term in terms) >= size
        for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True)
    )


def _whole(access: Access, workload: Workload) -> Access:
    """Return an access to a padded copy: everything that is read lies inside it."""
    shape = []
    for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True):
        last = offset + sum(term.coefficient * (workload.extents[term.axis] - 1) for term in terms)
        shape.append(size + max(0, -offset) + max(0, last + 1 - size))
    offsets = tuple(max(0, offset) for offset in access.offsets)
    return msgspec.structs.replace(access, shape=tuple(shape), offsets=offsets)


def _loops(spatial: list[str], reduction: list[str]) -> list[tuple[str, str]]:
    levels = ("S0", "S1", "R0", "S2", "R1", "S3")
    return [(axis, level) for level in levels for axis in (spatial if level[0] == "S" else reduction)]


def _columns(workload: Workload) -> dict[tuple[str, str], int]:
    """Return (axis, level) -> column of `TiledNests.factors`."""
    names = [
        (axis.name, level)
        for axis in workload.axes
        for level in (("S0", "S1", "S2", "S3") if axis.kind == "spatial" else ("R0", "R1"))
    ]
    return {name: at for at, name in enumerate(names)}


def _distinct(access: Access, counts: dict[str, Floats], simd: str) -> Floats:
    """Return the different vectors (or elements) of a tensor that tiles of `counts` touch."""
    result: Floats = np.ones(len(next(iter(counts.values()))))
    for terms in access.indices:
        many = np.ones_like(result)
        for term in terms:
            many = many * counts[term.axis]
        if all(term.axis != simd for term in terms):
            span = 1.0 + sum(term.coefficient * (counts[term.axis] - 1.0) for term in terms)
            many = np.minimum(many, span)
        result = result * many
    return result


def _plain_nest(
    nest: CpuNest, names: list[str], spatial: list[str], reduction: list[str], at: dict[tuple[str, str], int]
) -> CpuNest:
    """Return the nest with the loops of this module: levels outer S0, l3 S1, l2 R0 S2, l1 R1, microkernel S3."""
    ones, zeros = len(at), len(at) + 1
    columns = np.full((len(names), 6), -1, dtype=np.int64)
    for number, axis in enumerate(names):
        if axis in spatial:
            columns[number] = [at[axis, "S0"], at[axis, "S1"], at[axis, "S2"], -1, at[axis, "S3"], -1]
        else:
            columns[number] = [-1, -1, at[axis, "R0"], -1, ones, -1]
    orders = np.full((4, 1, len(names) + 1), -1, dtype=np.int64)
    for level, loops in enumerate((spatial, spatial, [*reduction, *spatial], reduction)):
        orders[level, 0, : len(loops)] = [names.index(axis) for axis in reversed(loops)]
    return nest._replace(columns=columns, order_columns=np.full(4, zeros, dtype=np.int64), orders=orders)


def _colliding(nest: CpuNest, tensor: int) -> CpuNest:
    """Return the nest with rows of one tensor that collide in few sets of a cache.

    Sets are where the tensors' addresses put them: two tensors' rows rarely take the same ones.
    """
    boxes, tensors = nest.boxes.copy(), nest.tensors.copy()
    own = boxes[:, 0] == tensor
    boxes[:, 6:] = np.where(own[:, None], (boxes[:, 6:] * COLLIDING_SHARE).astype(np.int64), 0)
    rows = np.arange(len(tensors)) == tensor
    tensors[:, 2:] = np.where(rows[:, None], tensors[:, 2:] * COLLIDING_SHARE, 0.0)
    return nest._replace(boxes=boxes, tensors=tensors)
