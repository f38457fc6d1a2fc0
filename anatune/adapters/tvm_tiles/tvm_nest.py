"""The time of loop nests that TVM and LLVM compile from MetaSchedule's CPU tilings, without microkernels.

A nest has the loops ``S0 S1 R0 S2 R1 S3`` around one statement ``C += A * B`` (`tvm_shape`). `tvm_code` predicts the
generated code, and `tvm_core` its cycles: the largest of multiply-adds, loads, stores, issue and latency. Cache traffic
follows from the tiles and overlaps with the cycles as in `CpuModel`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.tvm_tiles.tvm_code import compiled_code
from anatune.adapters.tvm_tiles.tvm_core import core_cycles
from anatune.adapters.tvm_tiles.tvm_shape import INLINED, NO_PRODUCER, NestShape, TiledNests
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.model import Evaluation, Rule
from anatune.templates.cpu.microkernels import simd_lanes
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.times.columns import new_chunk
from anatune.templates.cpu.times.nest import CpuNest
from anatune.templates.cpu.times.traffic import tile_traffic

__all__ = ["INLINED", "NO_PRODUCER", "CompiledNestModel", "TiledNests"]

Floats = NDArray[np.float64]

COLLIDING_SHARE = 0.75
"""The share of the colliding cache sets that rows of a tensor may fill. As many rows as a cache has ways still fit."""
PARTS = ("fma_s", "load_s", "store_s", "issue_s", "latency_s", "copy_s", "memory_s")
"""The parts of the time, in seconds."""


class CompiledNestModel:
    """The model of compiled nests of one workload on one CPU.

    It is deterministic, and every prediction depends only on its own nest. It is not safe for concurrent use.

    Parameters
    ----------
    workload : Workload
        A float32 workload. A padded operand is read from a padded copy.
    hardware : CpuSpec
        The device.
    threads : int, optional
        The threads of parallel loops, by default one for each core.

    Raises
    ------
    SpaceError
        The workload is not a sum of products in float32.
    """

    rules: tuple[Rule, ...] = ()
    """The rules of the model: every nest is legal."""

    def __init__(self, workload: Workload, hardware: CpuSpec, threads: int | None = None) -> None:
        if workload.body != "multiply_add" or not workload.reduction_axes or workload.dtype != "float32":
            raise SpaceError(f"{workload.describe()}: expected a sum of products in float32, others are not modelled")
        self.workload, self.hardware = workload, hardware
        self.threads = min(threads or hardware.compute.num_cores, hardware.compute.num_cores)
        self.shape = NestShape(workload, simd_lanes(workload, hardware.compute.simd_bits))
        model = CpuModel(self.shape.plain, hardware, simd=self.shape.simd)
        self._machine = model.machine
        nest = _nest_of_tiling(model.nest, self.shape)
        self._nests = [_with_colliding_rows(nest, x) for x in range(len(workload.reads))]

    def evaluate(self, nests: TiledNests) -> Evaluation:
        """Return predicted times of nests; the columns are `PARTS` in seconds and the numbers behind them."""
        machine, core = self._machine, self._machine.core
        code = compiled_code(self.shape, core, nests)
        cycles = core_cycles(self.shape, core, nests, code)
        chunks = self._chunks(nests)
        share = np.ceil(chunks / np.minimum(self.threads, chunks)) / chunks
        seconds = [1.0 / (bytes_cycle * core.clock_hz) for bytes_cycle in machine.fill_bytes_per_cycle[:-1]]
        seconds.append(1.0 / min(core.dram_core_bytes_s, core.dram_socket_bytes_s / self.threads))
        memory_s = share * sum(m * s for m, s in zip(self._traffic(nests), seconds, strict=True))
        core_s = share * cycles.total / core.clock_hz
        time_s = np.maximum(core_s, memory_s) + core.exposed_share * np.minimum(core_s, memory_s)
        time_s += np.where(chunks > 1, core.start_s if self.threads > 1 else 0.0, 0.0)
        each_s = share / core.clock_hz
        columns = {
            "fma_s": cycles.fma * each_s, "load_s": cycles.load * each_s, "store_s": cycles.store * each_s,
            "issue_s": cycles.issue * each_s, "latency_s": cycles.latency * each_s, "copy_s": cycles.copy * each_s,
            "memory_s": memory_s, "core_s": core_s, "vector": code.vector.length, "held": cycles.held,
            "registers": cycles.registers, "body": code.body.prod(axis=1), "chunks": chunks,
        }  # fmt: skip
        return Evaluation(time_s, np.zeros(len(time_s), dtype=np.int64), columns)

    def features(self, nests: TiledNests, evaluation: Evaluation) -> Floats:
        """Return the features for learned corrections, (num_nests, num_features): parts, choices, inner tiles."""
        columns = evaluation.columns
        parts = [columns[name] / evaluation.time_s for name in PARTS]
        counts = [columns[name] for name in ("vector", "held", "registers", "body", "chunks")]
        inner = [nests.factors[:, at] for (_, level), at in self.shape.columns.items() if level not in ("S0", "R0")]
        places = [nests.write_depth >= 0, nests.producer_depth == INLINED, nests.producer_depth >= 0]
        logs = [np.log2(1.0 + value) for value in (*counts, *inner, nests.unroll)]
        return np.column_stack([*parts, *logs, *(place.astype(np.float64) for place in places)])

    def _chunks(self, nests: TiledNests) -> Floats:
        """Return the iterations of the parallel loop, (num_nests,)."""
        whole = self.shape.trips(nests)
        chunks, goes_on = np.ones(len(whole)), nests.parallel > 0
        for loop in range(2 * len(self.shape.spatial)):
            chunks = np.where(goes_on, chunks * whole[:, loop], chunks)
            split = (nests.write_depth == loop) | (nests.producer_depth == loop)
            goes_on &= (chunks <= nests.parallel) & ~split
        return chunks

    def _traffic(self, nests: TiledNests) -> Floats:
        """Return the bytes that enter each cache, (levels, num_nests)."""
        machine, count, names = self._machine, len(nests.factors), list(self.workload.extents)
        raw = np.ones((nests.factors.shape[1] + 1, count))
        raw[:-1] = nests.factors.T
        inner, calls = np.ones((len(names), count)), np.ones((len(names), count))
        for number, axis in enumerate(names):
            if axis in self.shape.spatial:
                inner[number] = nests.factors[:, self.shape.columns[axis, "S3"]]
            else:
                inner[number] = calls[number] = nests.factors[:, self.shape.columns[axis, "R1"]]
        packed = np.zeros((len(self.shape.plain.reads) + 1, count))
        for x, padded in enumerate(self.shape.padded):
            if padded:
                packed[x] = nests.producer_depth >= 0
        packed[-1] = nests.write_depth >= 0
        zeros = np.zeros((1, count))
        raw = np.concatenate([raw, zeros])
        chunk = new_chunk(len(raw), len(names), len(packed), len(machine.size_bytes))
        size = machine.size_bytes / np.minimum(self.threads, machine.shared_by)
        most = np.zeros((len(size), count))
        for nest in self._nests:
            moved = np.empty((len(size), count))
            tile_traffic(raw, inner, calls, packed, size, nest, machine.core.line_bytes, chunk, moved)
            most = np.maximum(most, moved)
        return most


def _nest_of_tiling(nest: CpuNest, shape: NestShape) -> CpuNest:
    """Return the nest with the loops of this module: outer S0, l3 S1, l2 R0 S2, l1 R1, microkernel S3."""
    names, column = list(shape.workload.extents), shape.columns
    spatial, reduction = shape.spatial, shape.reduction
    ones, zeros = len(column), len(column) + 1
    columns = np.full((len(names), 6), -1, dtype=np.int64)
    for number, axis in enumerate(names):
        if axis in spatial:
            columns[number] = [column[axis, "S0"], column[axis, "S1"], column[axis, "S2"], -1, column[axis, "S3"], -1]
        else:
            columns[number] = [-1, -1, column[axis, "R0"], -1, ones, -1]
    orders = np.full((4, 1, len(names) + 1), -1, dtype=np.int64)
    for level, loops in enumerate((spatial, spatial, [*reduction, *spatial], reduction)):
        orders[level, 0, : len(loops)] = [names.index(axis) for axis in reversed(loops)]
    return nest._replace(columns=columns, order_columns=np.full(4, zeros, dtype=np.int64), orders=orders)


def _with_colliding_rows(nest: CpuNest, tensor: int) -> CpuNest:
    """Return the nest in which the rows of one tensor collide in few sets of a cache.

    The sets depend on the tensors' addresses, and rows of two tensors rarely use the same sets.
    """
    boxes, tensors = nest.boxes.copy(), nest.tensors.copy()
    is_own_box = boxes[:, 0] == tensor
    boxes[:, 6:] = np.where(is_own_box[:, None], (boxes[:, 6:] * COLLIDING_SHARE).astype(np.int64), 0)
    rows = np.arange(len(tensors)) == tensor
    tensors[:, 2:] = np.where(rows[:, None], tensors[:, 2:] * COLLIDING_SHARE, 0.0)
    return nest._replace(boxes=boxes, tensors=tensors)
