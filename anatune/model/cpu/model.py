"""The analytical CPU model: packs a workload and a CPU into arrays, scores points, explains them.

Physics: `numerics.cpu.microkernel` (registers, ports, latency), `numerics.cpu.traffic` (caches), `numerics.cpu.point`
(time).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import CpuSpec
from anatune.core.prediction import Prediction
from anatune.core.rules.cpu_microkernels import vector_stride
from anatune.core.space.cpu import CpuSpace
from anatune.core.workload.nest import DTYPE_BYTES, Access, Term, Workload
from anatune.model.base import Evaluation, Progress, Ranking, Rule
from anatune.model.watch import Watch
from anatune.numerics.cpu.columns import CpuCol, new_chunk
from anatune.numerics.cpu.nest import CpuCore, CpuMachine, CpuNest
from anatune.numerics.cpu.point import CHECK, PREDICT, run_points

__all__ = ["COLUMNS", "PARTS", "TIE_SHARE", "CpuModel", "pack_machine", "pack_nest"]

CALL_CYCLES = 10.0
"""Entry and exit of a microkernel call (address arithmetic, branches). Source: 14x32 tiles of [anchors], K = 64."""
LOOP_INSTRUCTIONS = 2.0
"""Instructions of one loop iteration beside the loads and multiply-adds: increment, fused compare and branch."""
HELD_SHARE = 0.5
"""Share of the registers that a spilling kernel still has for shared operands; beyond, they are reloaded for each row.
Source: AutoTVM NCHWc table of a Ryzen 3700X (16 registers): 64 channels, 16 vectors, 1.4 times slower than 32."""
EXPOSED_SHARE = 0.1
"""Share of the shorter of core work and transfers that does not overlap. Source: 14x32 fed from L2 reaches 91-97 % of
the peak [anchors]."""
PARALLEL_START_S = 5e-6
"""Fork and join of a thread pool, unverified."""
COPY_BYTES_PER_CYCLE = 16.0
"""Most bytes a copy of whole rows moves in a cycle: a careful value. Source: 25 for slivers of 64 lanes of a 4 MiB
matrix on a Zen 4 machine; rows of padded copies are shorter."""
PACK_BYTES_PER_CYCLE = 6.0
"""Most bytes that packing into slivers moves in a cycle: it transposes, element by element. Source: 2 cycles an element
for slivers of 14 rows, 2.5 to 3.7 for 28: matmuls of 16 columns on a Zen 4 machine, with A packed and not."""
REGISTER_LIMIT = 2.0
"""Rule microkernel_registers: at most this many times the registers; beyond, nothing stays in registers at all."""
MULTIPLY_ADD_LIMIT = 1024.0
"""Rule microkernel_code: multiply-adds of the straight-line body; 8 KiB of code stays in L1I and decodes once."""
TIE_SHARE = 1e-3
"""Predicted times within the same step of 0.1 % (of their logarithm) are ties."""

_PAGE_BYTES = 4096

PARTS = (
    "fma_s", "load_s", "latency_s", "issue_s", "overhead_s", "l2_s", "l3_s", "dram_s", "packing_s", "start_s",
)  # fmt: skip
"""Parts of a prediction, seconds. fma .. issue bind the microkernel's steps (the largest counts), overhead_s is added
to them; l2_s, l3_s, dram_s are the transfers that come from there."""
COLUMNS = tuple(col.name.lower() for col in CpuCol if col < CpuCol.RULE and col != CpuCol.TIME_S)
"""Names of `Evaluation.columns` that come straight from `numerics.cpu.point.run_points`."""


class CpuModel:
    """Analytical model of one workload on one CPU; implements `model.base.Model`.

    Guarantees: deterministic; safe to share between threads.

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    space : CpuSpace, optional
        The space of the points; a new one by default.
    simd : str, optional
        Axis to vectorise in the new space instead of the rule's choice.
    constants : sequence of str, optional
        Operands that the new space packs at no cost; by default those of the rule of `core.rules.cpu_microkernels`.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec,
        space: CpuSpace | None = None,
        simd: str | None = None,
        constants: Sequence[str] | None = None,
    ) -> None:
        self.workload = workload
        self.hardware = hardware
        self.space = space or CpuSpace(workload, hardware, self._is_legal, simd, constants)
        self.nest = pack_nest(self.space)
        self.machine = pack_machine(hardware)
        registers = hardware.compute.num_vector_registers
        self.rules: tuple[Rule, ...] = (
            Rule("microkernel_pairs", "axes that a pair of microkernels covers, beside the SIMD axis", 1),
            Rule(
                "microkernel_registers",
                "vector registers of the microkernel: accumulators, held operands, one broadcast",
                REGISTER_LIMIT * registers,
            ),
            Rule("microkernel_code", "multiply-adds of the microkernel's straight-line code", MULTIPLY_ADD_LIMIT),
            Rule(
                "parallel_cores",
                "a parallel loop needs two iterations and two cores; cores of the device",
                hardware.compute.num_cores,
            ),
        )

    def _is_legal(self, points: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.equal(self.check(points), 0)

    def check(self, points: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rule codes of points, (num_points,) int64: 0 or 1 + index of the first broken rule."""
        return self._run(points, CHECK)[0]

    def times(self, points: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return (seconds, rule codes) of points: the fast path of `evaluate`."""
        rules, times, _ = self._run(points, PREDICT)
        return times, rules

    def raw(self, points: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score points: (num_points, CpuCol.NUM_RESULTS) float64, a column for each of the first `CpuCol`."""
        return self._run(points, PREDICT, full=True)[2].T

    def raw_columns(
        self, points: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return (rule codes, seconds, every result of `CpuCol`: (CpuCol.NUM_RESULTS, num_points))."""
        return self._run(points, PREDICT, full=True)

    def _run(
        self, points: NDArray[np.int64], task: int, *, full: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return rules, times and columns (NUM_RESULTS, num_points; no rows unless `full`)."""
        points = np.ascontiguousarray(np.atleast_2d(points), dtype=np.int64)
        size = len(points)
        chunk = new_chunk(
            points.shape[1], self.nest.uses.shape[1], self.nest.uses.shape[0], len(self.machine.size_bytes)
        )
        rules, times = np.empty(size, dtype=np.int64), np.empty(size)
        columns = np.empty((int(CpuCol.NUM_RESULTS), size) if full else (0, 0))
        run_points(points, task, self.nest, self.machine, chunk, rules, times, columns)
        return rules, times, columns

    def evaluate(self, points: NDArray[np.int64]) -> Evaluation:
        """Score points, (num_points, len(space.columns)) int64.

        Returns
        -------
        Evaluation
            columns: `COLUMNS` (seconds, bytes, counts), "gflop_per_s", "occupancy", "waves", "bytes_over_bound_<level>"
            (traffic over the I/O lower bound) and the features "fma_share", "intensity_l1" .. (FLOP/byte).
        """
        rules, time_s, out = self._run(points, PREDICT, full=True)
        columns = {name: out[CpuCol[name.upper()]] for name in COLUMNS}
        work = self.workload.flop or self.workload.num_points
        cores = self.hardware.compute.num_cores
        columns["gflop_per_s"] = self.workload.flop / time_s / 1e9
        columns["occupancy"] = columns["threads"] / cores
        columns["waves"] = columns["chunks"] / columns["threads"]
        columns["fma_share"] = columns["fma_s"] / time_s
        columns["register_reuse"] = columns["fma_s"] / np.maximum(columns["load_s"], 1e-300)
        columns["reduction_steps"] = columns["steps"]
        for level, name in enumerate(self._level_names):
            columns[f"intensity_{name}"] = work / columns[f"{name}_bytes"]
            columns[f"{name}_over_bound"] = columns[f"{name}_bytes"] / self._bounds[level]
        return Evaluation(time_s, rules, columns)

    @property
    def _level_names(self) -> tuple[str, ...]:
        return ("l1", "l2", "l3")[: len(self.machine.size_bytes)]

    @property
    def _bounds(self) -> list[float]:
        """Least bytes that enter each cache: compulsory, or ``2 * points * bytes / sqrt(S * window)``.

        For contractions of two operands a cache of S elements serves at most ``(2 S)^1.5`` of the points of a phase
        that loads S; windows let an input element serve several kernel positions. Source: [IOLB] Sec. 5; [IOOpt]
        Table 1 (matmul, convolution).
        """
        workload = self.workload
        element = DTYPE_BYTES[workload.dtype]
        compulsory = float(
            sum(
                min(access.num_elements, access.footprint(self.space.extents)) * DTYPE_BYTES[access.dtype]
                for access in (*workload.reads, workload.write)
            )
        )
        bounds = []
        window = math.prod(self.space.extents[axis] for axis in self.space.windows)
        sizes = (self.hardware.l1, self.hardware.l2, self.hardware.l3)
        for cache in sizes[: len(self.machine.size_bytes)]:
            bound = compulsory
            if len(workload.reads) == 2 and workload.reduction_axes and cache is not None:
                elements = cache.size_bytes / element
                phases = 2.0 * workload.num_points / math.sqrt(elements * window) - 2.0 * elements
                bound = max(bound, phases * element)
            bounds.append(bound)
        return bounds

    def predictions(self, points: NDArray[np.int64]) -> list[Prediction]:
        """Score points and return one readable Prediction each."""
        evaluation = self.evaluate(points)
        columns = evaluation.columns
        result = []
        for at, time_s in enumerate(evaluation.time_s.tolist()):
            parts = {name: float(columns[name][at]) for name in PARTS}
            code = int(evaluation.rule[at])
            result.append(
                Prediction(
                    time_s=time_s,
                    gflop_per_s=float(columns["gflop_per_s"][at]),
                    parts=parts,
                    bound_by=max(parts, key=lambda name: parts[name]).removesuffix("_s"),
                    occupancy=float(columns["occupancy"][at]),
                    occupancy_limiter="parallel_loop",
                    waves=float(columns["waves"][at]),
                    features={
                        name: float(columns[name][at])
                        for name in (
                            "fma_share",
                            "register_reuse",
                            "reduction_steps",
                            *(f"intensity_{level}" for level in self._level_names),
                        )
                    },
                    traffic_over_bound={
                        level: float(columns[f"{level}_over_bound"][at]) for level in self._level_names
                    },
                    resources={
                        name: float(columns[name][at])
                        for name in (
                            "registers",
                            "accumulators",
                            "unrolled_fma",
                            "threads",
                            "l1_tile_bytes",
                            "l2_tile_bytes",
                            "l3_tile_bytes",
                        )
                    },
                    legal=code == 0,
                    rule=self.rules[code - 1].id if code else "",
                )
            )
        return result

    def rank(
        self,
        top_k: int,
        time_limit_s: float | None = None,
        *,
        distinct: bool = False,
        progress: Progress | None = None,
    ) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time (see `model.cpu.ranking` for ties).

        A distinct ranking looks at so many points only, so it may return fewer than `top_k`.
        """
        from anatune.model.cpu.ranking import rank  # the ranking needs the model

        return rank(self, top_k, Watch(time_limit_s, progress), distinct=distinct)


def pack_machine(hardware: CpuSpec) -> CpuMachine:
    """Return `hardware` as arrays; a CPU without L3 has two levels."""
    compute = hardware.compute
    caches = [cache for cache in (hardware.l1, hardware.l2, hardware.l3) if cache is not None]
    core = CpuCore(
        fma_per_cycle=float(compute.fma_per_cycle),
        fma_latency=float(compute.fma_latency_cycles),
        registers=float(compute.num_vector_registers),
        loads=float(compute.loads_per_cycle),
        broadcasts=float(compute.broadcasts_per_cycle or compute.loads_per_cycle),
        stores=float(compute.stores_per_cycle),
        issue_width=float(compute.issue_width),
        clock_hz=float(compute.clock_hz),
        num_cores=float(compute.num_cores),
        reachable=float(compute.reachable_fraction),
        line_bytes=float(hardware.l1.line_bytes),
        dram_core_bytes_s=float(hardware.dram.core_bandwidth_bytes_per_s),
        dram_socket_bytes_s=float(hardware.dram.bandwidth_bytes_per_s),
        pick_lanes=compute.simd_bits / 32 if compute.isa in ("neon", "sve") else 0.0,
        call_cycles=CALL_CYCLES,
        loop_instructions=LOOP_INSTRUCTIONS,
        held_share=HELD_SHARE,
        exposed_share=EXPOSED_SHARE,
        start_s=float(hardware.launch.parallel_start_s) if hardware.launch else PARALLEL_START_S,
        register_limit=REGISTER_LIMIT,
        multiply_add_limit=MULTIPLY_ADD_LIMIT,
    )
    return CpuMachine(
        core=core,
        size_bytes=np.array([c.size_bytes * (1.0 - 1.0 / max(c.ways, 2)) for c in caches], dtype=np.float64),
        shared_by=np.array([c.shared_by_cores for c in caches], dtype=np.float64),
        fill_bytes_per_cycle=np.array([*(c.bandwidth_bytes_per_cycle for c in caches[1:]), 1.0], dtype=np.float64),
    )


def _gap(distance: int, cache_size: int, ways: int) -> int:
    """Return gcd(distance, bytes of a way): how far apart addresses `distance` bytes apart lie in a cache's sets.

    Physical pages are placed at random, so strides of a page and more collide no further than within a page.
    """
    return math.gcd(distance, min(_PAGE_BYTES, max(1, cache_size // ways)))


def _row_gap(access: Access, cache_size: int, ways: int) -> float:
    """Return the gap of neighbouring rows of the last dimension."""
    if len(access.shape) < 2:
        return 0.0
    return float(_gap(access.shape[-1] * DTYPE_BYTES[access.dtype], cache_size, ways))


def _copy_bytes(access: Access, space: CpuSpace) -> tuple[float, float]:
    """Return bytes copied when unpacked (none: padded copies count as core cycles) and when packed."""
    return 0.0, 0.0 if access.tensor in space.packed_ahead else _copy(access, space.extents)


def _copy_rate(access: Access, simd: str) -> float:
    """Return the most bytes that packing moves in a cycle: rows of lanes are copied whole, others by element."""
    return COPY_BYTES_PER_CYCLE if vector_stride(access, simd) == 1 else PACK_BYTES_PER_CYCLE


def _copy(access: Access, extents: dict[str, int]) -> float:
    """Return the bytes that a copy of all that is touched moves: read, allocate, write."""
    touched = access.footprint(extents)
    return float(DTYPE_BYTES[access.dtype] * (min(access.num_elements, touched) + 2 * touched))


def _pad_cycles(access: Access, space: CpuSpace) -> float:
    """Return the core cycles of a padded copy, from the first cache that holds what it moves."""
    moved = _copy(access, space.extents)
    hardware = space.hardware
    rate = COPY_BYTES_PER_CYCLE
    for inner, outer in ((hardware.l1, hardware.l2), (hardware.l2, hardware.l3)):
        if moved > inner.size_bytes and outer is not None:
            rate = min(rate, outer.bandwidth_bytes_per_cycle)
    last = hardware.l3 or hardware.l2
    if moved > last.size_bytes:
        rate = min(rate, hardware.dram.core_bandwidth_bytes_per_s / hardware.compute.clock_hz)
    return moved / rate


def _padded(workload: Workload, number: dict[str, int], simd: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return `CpuNest.padding` and `inside_share`."""
    extents = workload.extents
    spatial = {axis.name for axis in workload.spatial_axes}
    rows: list[tuple[int, int, int]] = []
    shares: list[float] = []
    for x, access in enumerate(workload.reads):
        for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True):
            last = offset + sum(term.coefficient * (extents[term.axis] - 1) for term in terms)
            if offset >= 0 and last < size:
                continue
            axes = [term for term in terms if term.axis in spatial]
            windows = [term for term in terms if term.axis not in spatial]
            if len(axes) != 1 or len(windows) != 1 or axes[0].axis == simd:
                rows.append((x, -1, -1))
                shares.append(1.0)
                continue
            position = np.arange(extents[axes[0].axis]) * axes[0].coefficient + offset
            index = position[:, None] + np.arange(extents[windows[0].axis]) * windows[0].coefficient
            rows.append((x, number[axes[0].axis], number[windows[0].axis]))
            shares.append(float(((index >= 0) & (index < size)).mean()))
    return np.array(rows, dtype=np.int64).reshape(-1, 3), np.array(shares, dtype=np.float64)


def _result_row(workload: Workload, simd: str, number: dict[str, int]) -> int:
    """Return the axis along which a result that is strided along the SIMD axis is contiguous, or -1."""
    if vector_stride(workload.write, simd) >= 0:
        return -1
    terms = workload.write.indices[-1]
    return number[terms[0].axis] if len(terms) == 1 and terms[0].coefficient == 1 else -1


def pack_nest(space: CpuSpace) -> CpuNest:
    """Return the space's workload as arrays."""
    workload, axes = space.workload, space.axes
    number = {axis: index for index, axis in enumerate(axes)}
    column = {name: index for index, name in enumerate(space.columns)}
    accesses = (*workload.reads, workload.write)
    caches = [c for c in (space.hardware.l1, space.hardware.l2, space.hardware.l3) if c is not None]
    boxes: list[tuple[int, ...]] = []
    for x, access in enumerate(accesses):
        dims = list(zip(access.indices, access.shape, strict=True))[::-1] or [((), 1)]
        distance = DTYPE_BYTES[access.dtype]
        for d, (terms, size) in enumerate(dims):
            end = 2 if d == len(dims) - 1 else 1
            widest = max(terms, key=lambda term: term.coefficient, default=Term(axes[0], 1))
            collides = d > 0 and x < len(workload.reads)  # see `tensors` below
            gaps = [_gap(distance * widest.coefficient, c.size_bytes, c.ways) if collides else 0 for c in caches]
            collider = (number[widest.axis], *gaps)
            for t, term in enumerate(terms):
                done = end if t == len(terms) - 1 else 0
                boxes.append((x, number[term.axis], term.coefficient, done, size, *collider))
            if not terms:
                boxes.append((x, 0, 0, end, size, 0, *(0 for _ in caches)))
            distance *= size
    reductions = {axis.name for axis in workload.reduction_axes}
    tables = space.loop_tables
    loads = []
    for access in accesses:
        stride = vector_stride(access, space.simd_axis)
        loads.append(float(space.lanes) if stride < 0 else float(min(stride, space.lanes)))
    tensors = [
        [DTYPE_BYTES[x.dtype], 1.0, *(_row_gap(x, c.size_bytes, c.ways) for c in caches)] for x in workload.reads
    ]
    # accumulators are in registers while rows of the operands are read: the result's rows collide with nothing
    tensors.append([DTYPE_BYTES[workload.write.dtype], 2.0, *(0.0 for _ in caches)])
    has_reduction = any(space.extents[axis] > 1 for axis in reductions)
    padding, inside_share = _padded(workload, number, space.simd_axis)
    padded = set(padding[:, 0].tolist())
    return CpuNest(
        extents=np.array([space.extents[a] for a in axes], dtype=np.int64),
        is_reduction=np.array([a in reductions for a in axes], dtype=np.int64),
        columns=tables.columns,
        order_columns=tables.order_columns,
        orders=tables.orders,
        pack_columns=np.array([column.get(f"pack.{x.tensor}", -1) for x in accesses], dtype=np.int64),
        boxes=np.array(boxes, dtype=np.int64).reshape(-1, 6 + len(caches)),
        uses=np.array([[x.uses(a) for a in axes] for x in accesses], dtype=np.int64),
        tensors=np.array(tensors, dtype=np.float64),
        vector_loads=np.array(loads),
        copy_bytes=np.array([_copy_bytes(x, space) for x in accesses]),
        copy_rate=np.array([_copy_rate(x, space.simd_axis) for x in accesses]),
        simd=np.array([number[space.simd_axis], space.lanes, column["parallel"], has_reduction], dtype=np.int64),
        padding=padding,
        inside_share=inside_share,
        pad_cycles=np.array([_pad_cycles(x, space) if i in padded else 0.0 for i, x in enumerate(accesses)]),
        result_row=_result_row(workload, space.simd_axis, number),
    )
