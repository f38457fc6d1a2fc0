"""What a learned correction looks at in schedules for CPUs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import DTYPE_BYTES
from anatune.model.cpu.scoring import CpuScoring
from anatune.model.features import FeatureTable, log2, table_of
from anatune.numerics.cpu.columns import CpuCol

__all__ = ["cpu_features"]

_PARTS = (
    "FMA_S", "LOAD_S", "LATENCY_S", "ISSUE_S", "OVERHEAD_S", "PACKING_S", "L2_S", "L3_S", "DRAM_S",
)  # fmt: skip


def cpu_features(model: CpuScoring, points: NDArray[np.int64]) -> FeatureTable:
    """Return the features of CPU points: time shares, cache tiles over caches, the microkernel."""
    rules, times, raw = model.raw_columns(points)
    compute, machine = model.hardware.compute, model.machine
    columns = {f"share_{part[:-2].lower()}": raw[CpuCol[part]] / times for part in _PARTS}
    columns["share_core"] = raw[CpuCol.CORE_S] / times
    columns["share_memory"] = raw[CpuCol.MEMORY_S] / times
    columns["share_start"] = raw[CpuCol.START_S] / times
    sizes = [*machine.size_bytes.tolist(), *[float(machine.size_bytes[-1])] * 3][:3]
    for level, size in enumerate(sizes, start=1):
        columns[f"l{level}_tile"] = log2(raw[CpuCol[f"L{level}_TILE_BYTES"]] / size)
        columns[f"l{level}_traffic"] = log2(
            raw[CpuCol[f"L{level}_BYTES"]] / (model.workload.num_points * DTYPE_BYTES[model.workload.dtype])
        )
    columns |= {
        "threads": raw[CpuCol.THREADS] / compute.num_cores,
        "busiest": raw[CpuCol.SHARE] * compute.num_cores,
        "chunks": log2(raw[CpuCol.CHUNKS] / compute.num_cores),
        "accumulators": raw[CpuCol.ACCUMULATORS] / compute.num_vector_registers,
        "registers": raw[CpuCol.REGISTERS] / compute.num_vector_registers,
        "steps": log2(raw[CpuCol.STEPS]),
        "unrolled": log2(raw[CpuCol.UNROLLED_FMA]),
    }
    return table_of(times, rules, columns)
