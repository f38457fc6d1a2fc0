"""Features of CPU points for learned corrections."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import DTYPE_BYTES
from anatune.templates.base.features import FeatureTable, Floats, log2, table_of
from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.times.columns import CpuCol

__all__ = ["cpu_features"]

_PARTS = (
    "FMA_S", "LOAD_S", "LATENCY_S", "ISSUE_S", "OVERHEAD_S", "PACKING_S", "L2_S", "L3_S", "DRAM_S",
)  # fmt: skip


def cpu_features(model: CpuScoring, points: NDArray[np.int64]) -> FeatureTable:
    """Return the features of CPU points: shares of the time, cache tiles relative to caches, and the microkernel."""
    rules, times, raw = model.raw_columns(points)
    compute, machine = model.hardware.compute, model.machine
    columns = {f"share_{part[:-2].lower()}": raw[CpuCol[part].row] / times for part in _PARTS}
    columns["share_core"] = raw[CpuCol.CORE_S.row] / times
    columns["share_memory"] = raw[CpuCol.MEMORY_S.row] / times
    columns["share_start"] = raw[CpuCol.START_S.row] / times
    sizes = [*machine.size_bytes.tolist(), *[float(machine.size_bytes[-1])] * 3][:3]
    for level, size in enumerate(sizes, start=1):
        columns[f"l{level}_tile"] = log2(raw[CpuCol[f"L{level}_TILE_BYTES"].row] / size)
        columns[f"l{level}_traffic"] = log2(
            raw[CpuCol[f"L{level}_BYTES"].row] / (model.workload.num_points * DTYPE_BYTES[model.workload.dtype])
        )
    columns |= {
        "threads": raw[CpuCol.THREADS.row] / compute.num_cores,
        "busiest": raw[CpuCol.SHARE.row] * compute.num_cores,
        "chunks": log2(raw[CpuCol.CHUNKS.row] / compute.num_cores),
        "accumulators": raw[CpuCol.ACCUMULATORS.row] / compute.num_vector_registers,
        "registers": raw[CpuCol.REGISTERS.row] / compute.num_vector_registers,
        "steps": log2(raw[CpuCol.STEPS.row]),
        "unrolled": log2(raw[CpuCol.UNROLLED_FMA.row]),
    }
    return table_of(times, rules, columns | _shape(model, points))


def _shape(model: CpuScoring, points: NDArray[np.int64]) -> dict[str, Floats]:
    """Return features that the parts of the time do not show: microkernel shape, passes over the result, packing.

    For a pair of microkernels they describe the larger one; "smaller_rows" is the ratio of the rows of the smaller one
    to the rows of the larger one. "strided_rows" counts the rows that are apart in the first operand, so that each has
    a separate address.
    """
    space, reads = model.space, model.workload.reads
    column = {name: at for at, name in enumerate(space.columns)}
    reduced = {axis.name for axis in model.workload.reduction_axes}
    neighbours = {term.axis for term in reads[0].indices[-1]} if reads[0].indices else set()
    ones = np.ones(len(points))
    rows, vectors, smaller, strided = ones, ones, ones, ones
    unroll, passes, calls_l1, pairs = ones, ones, ones, 0.0 * ones
    for axis in space.axes:
        levels = space.levels[axis]
        factors = {level: points[:, column[f"{axis}.{level}"]].astype(np.float64) for level in levels}
        register = factors[levels[-1]]
        calls_l1 = calls_l1 * factors.get("l1", ones)
        if axis in reduced:
            unroll = unroll * register
            for level in ("outer", "l3", "l2"):
                passes = passes * factors.get(level, ones)
            continue
        calls = points[:, column[f"pair.{axis}"]] if axis in space.pairable else 0.0 * ones
        pairs = pairs + (calls > 0)
        if axis == space.simd_axis:
            vectors = np.ceil(np.ceil(register / space.lanes) / np.maximum(calls, 1))
            continue
        larger = np.ceil(register / np.maximum(calls, 1))
        rows = rows * larger
        smaller = smaller * np.where(calls > 0, np.floor(register / np.maximum(calls, 1)) / larger, 1.0)
        strided = strided * (ones if axis in neighbours else larger)
    packed = {
        f"pack_{at}": points[:, column[f"pack.{access.tensor}"]].astype(np.float64)
        if f"pack.{access.tensor}" in column
        else 0.0 * ones
        for at, access in enumerate((*reads, *reads)[:2])
    }
    return {
        "rows": rows,
        "vectors": vectors,
        "broadcast_share": rows / (rows + vectors),
        "smaller_rows": smaller,
        "strided_rows": strided,
        "pairs": pairs,
        "unroll": log2(unroll),
        "passes": log2(passes),
        "l1_calls": log2(calls_l1),
    } | packed
