"""Dimensionless numbers about points, by which a learned correction carries over to other workloads and devices.

Parts of the prediction are shares of its time, counts are ratios to the device's limits or logarithms (base 2), axes
are counted from the innermost one. Nothing names a workload or a device, so that what is learned on one holds, as far
as it can, on another.

A change of the features, of their order, or of the analytical quantities behind them is a new FEATURE_VERSION: saved
models of another version are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import DTYPE_BYTES
from anatune.numerics.cpu.columns import CpuCol
from anatune.numerics.cuda.columns import Col

if TYPE_CHECKING:
    from anatune.model.cpu.model import CpuModel
    from anatune.model.cuda.model import GpuModel

__all__ = ["FEATURE_VERSION", "FeatureTable", "feature_table"]

FEATURE_VERSION = 1

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_GPU_PARTS = ("FMA_S", "ISSUE_S", "SHARED_S", "SPILL_S", "L2_S", "DRAM_S", "LATENCY_S", "TAIL_S")
_CPU_PARTS = (
    "FMA_S", "LOAD_S", "LATENCY_S", "ISSUE_S", "OVERHEAD_S", "PACKING_S", "L2_S", "L3_S", "DRAM_S",
)  # fmt: skip
_SPATIAL_SHOWN = 3
"""Spatial axes whose own factors are features, from the innermost one."""
_REDUCTION_SHOWN = 2


class FeatureTable(NamedTuple):
    """What a correction needs of a batch of points.

    Attributes
    ----------
    time_s : (num_points,) float64
        Predicted seconds.
    rule : (num_points,) int64
        0 where legal, else the code of the first broken rule.
    names : tuple of str
        Names of the features.
    values : (num_points, num_features) float64
        The features.
    """

    time_s: Floats
    rule: Integers
    names: tuple[str, ...]
    values: Floats


def feature_table(model: Any, points: Integers) -> FeatureTable:
    """Return the features of `points`, (num_points, columns of the model's space) int64.

    `model` is an analytical model, or has a method ``feature_table(points)`` of its own.
    """
    points = np.atleast_2d(points)
    if hasattr(model, "feature_table"):
        table: FeatureTable = model.feature_table(points)
        return table
    if hasattr(model, "model"):  # a list of points, a corrected model
        return feature_table(model.model, points)
    if model.space.template == "cuda":
        return _gpu_table(model, points)
    if model.space.template == "cpu":
        return _cpu_table(model, points)
    return _other_table(model, points)


def _other_table(model: Any, points: Integers) -> FeatureTable:
    """Return the features of points of any other template: time shares, and the logarithms of the point's numbers."""
    found = model.evaluate(points)
    columns = {f"share_{name}": part / found.time_s for name, part in found.columns.items() if name.endswith("_s")}
    columns |= {name: _log2(1.0 + column) for name, column in zip(model.space.columns, points.T, strict=True)}
    return FeatureTable(found.time_s, found.rule, tuple(columns), np.column_stack(list(columns.values())))


def _log2(values: Any) -> Floats:
    """Return base-2 logarithms; what is not positive counts as 2^-30."""
    return np.log2(np.maximum(np.asarray(values, dtype=np.float64), 2.0**-30))


def _evenness(counts: Floats) -> Floats:
    """Return log2 of the largest power of two that divides each count: what alignment and fast division depend on."""
    whole = counts.astype(np.int64)
    return np.log2((whole & -whole).astype(np.float64))


def _factors(model: Any, points: Integers, axis: str) -> dict[str, Floats]:
    """Return the factors of one axis, level -> (num_points,)."""
    columns = model.space.columns
    return {level: points[:, columns.index(f"{axis}.{level}")].astype(np.float64) for level in model.space.levels[axis]}


def _gpu_table(model: GpuModel, points: Integers) -> FeatureTable:
    """Return the features of GPU points: time shares, limits, traffic, code shape, factors of the inner axes."""
    rules, times, raw = model.raw_columns(points)
    hardware, workload = model.hardware, model.workload
    compute, shared = hardware.compute, hardware.shared_memory
    columns = {name: raw[Col[f"{name.upper()}_S"]] / times for name in (p[:-2].lower() for p in _GPU_PARTS)}
    columns = {f"share_{name}": share for name, share in columns.items()}
    columns["share_launch"] = hardware.launch.overhead_s / times
    threads, warps, blocks = raw[Col.THREADS], raw[Col.WARPS], raw[Col.BLOCKS]
    accumulators, steps, stages = raw[Col.ACCUMULATORS], raw[Col.STEPS], raw[Col.STAGES]
    work = np.maximum(accumulators * steps, 1.0)
    tile_bytes = np.maximum(raw[Col.TILE_BYTES], 1.0)
    element = float(DTYPE_BYTES[workload.dtype])
    waves = raw[Col.WAVES]
    columns |= {
        "threads": _log2(threads),
        "idle_lanes": warps * compute.warp_size / np.maximum(threads, 1.0) - 1.0,
        "blocks_per_sm": _log2(blocks / compute.num_sms),
        "waves": _log2(waves),
        "wave_efficiency": waves / np.ceil(waves),
        "held_blocks": raw[Col.HELD],
        "held_warps": raw[Col.HELD] * warps / compute.max_warps_per_sm,
        "occupancy": np.minimum(1.0, raw[Col.RESIDENT] * warps / compute.max_warps_per_sm),
        "limiter": raw[Col.LIMITER],
        "accumulators": _log2(accumulators),
        "steps": _log2(steps),
        "stages": _log2(stages),
        "shared_share": raw[Col.SHARED_BYTES] / shared.per_sm_bytes,
        "register_share": raw[Col.REGISTERS] / np.maximum(raw[Col.REGISTER_CAP], 1.0),
        "registers": raw[Col.REGISTERS],
        "spilled_share": raw[Col.SPILLED] / np.maximum(accumulators, 1.0),
        "spilled": raw[Col.SPILLED],
        "dynamic": raw[Col.DYNAMIC],
        "fragments_per_accumulator": _log2(raw[Col.FRAGMENTS] / np.maximum(accumulators, 1.0)),
        "loads_per_fma": _log2(raw[Col.LOADS] / work),
        "wavefronts_per_fma": _log2(raw[Col.WAVEFRONTS] / work),
        "conflict": raw[Col.CONFLICT],
        "fetches_per_fma": _log2(raw[Col.FETCHES] / work),
        "fetches": _log2(raw[Col.FETCHES]),
        "fetch_waste": raw[Col.FETCHES_BLOCK] * compute.warp_size * element / tile_bytes,
        "lines_per_byte": _log2(raw[Col.FETCH_LINES] / tile_bytes),
        "sectors_over_bytes": _log2(raw[Col.SECTOR_BYTES] / tile_bytes),
        "store_sectors": raw[Col.STORE_SECTORS],
        "bytes_per_fma": _log2(tile_bytes / (work * np.maximum(threads, 1.0))),
        "dram_over_l2": _log2(raw[Col.DRAM_BYTES] / np.maximum(raw[Col.L2_BYTES], 1.0)),
        "local_per_fma": _log2((raw[Col.LOCAL] + 1e-3) / (work * np.maximum(stages, 1.0))),
        "vthreads": _log2(raw[Col.VTHREADS]),
        "reg_inner": _log2(raw[Col.REG_INNER]),
        "reg_outer": _log2(raw[Col.REG_OUTER]),
        "k2": _log2(raw[Col.K2]),
        "unroll": _log2(raw[Col.UNROLL] + 1.0),
        "body_over_unroll": _log2(work / (raw[Col.UNROLL] + 1.0)),
    }
    spatial = [axis.name for axis in workload.spatial_axes][::-1]
    for place in range(_SPATIAL_SHOWN):
        given = _factors(model, points, spatial[place]) if place < len(spatial) else {}
        one = np.ones(len(points))
        thread, vthread = given.get("thread", one), given.get("vthread", one)
        inner, outer = given.get("reg_inner", one), given.get("reg_outer", one)
        columns[f"s{place}_thread"] = _log2(thread)
        columns[f"s{place}_vthread"] = _log2(vthread)
        columns[f"s{place}_results"] = _log2(vthread * inner * outer)
        columns[f"s{place}_inner"] = _log2(inner)
        columns[f"s{place}_tile"] = _log2(thread * vthread * inner * outer)
        columns[f"s{place}_thread_even"] = _evenness(thread)
        columns[f"s{place}_block_even"] = _evenness(given.get("block", one))
    reduction = [axis.name for axis in workload.reduction_axes]
    reduction = [reduction[0], *reduction[:0:-1]] if reduction else []
    for place in range(_REDUCTION_SHOWN):
        given = _factors(model, points, reduction[place]) if place < len(reduction) else {}
        one = np.ones(len(points))
        columns[f"r{place}_stage"] = _log2(given.get("k1", one) * given.get("k2", one))
        columns[f"r{place}_k2"] = _log2(given.get("k2", one))
    widths = [points[:, model.space.columns.index(f"vector.{t}")].astype(np.float64) for t in model.space.staged]
    for place in range(2):
        columns[f"width{place}"] = _log2(widths[place]) if place < len(widths) else np.zeros(len(points))
    return FeatureTable(times, rules, tuple(columns), np.column_stack(list(columns.values())))


def _cpu_table(model: CpuModel, points: Integers) -> FeatureTable:
    """Return the features of CPU points: time shares, cache tiles over caches, the microkernel."""
    rules, times, raw = model.raw_columns(points)
    compute, machine = model.hardware.compute, model.machine
    columns = {f"share_{part[:-2].lower()}": raw[CpuCol[part]] / times for part in _CPU_PARTS}
    columns["share_core"] = raw[CpuCol.CORE_S] / times
    columns["share_memory"] = raw[CpuCol.MEMORY_S] / times
    columns["share_start"] = raw[CpuCol.START_S] / times
    sizes = [*machine.size_bytes.tolist(), *[float(machine.size_bytes[-1])] * 3][:3]
    for level, size in enumerate(sizes, start=1):
        columns[f"l{level}_tile"] = _log2(raw[CpuCol[f"L{level}_TILE_BYTES"]] / size)
        columns[f"l{level}_traffic"] = _log2(
            raw[CpuCol[f"L{level}_BYTES"]] / (model.workload.num_points * DTYPE_BYTES[model.workload.dtype])
        )
    columns |= {
        "threads": raw[CpuCol.THREADS] / compute.num_cores,
        "busiest": raw[CpuCol.SHARE] * compute.num_cores,
        "chunks": _log2(raw[CpuCol.CHUNKS] / compute.num_cores),
        "accumulators": raw[CpuCol.ACCUMULATORS] / compute.num_vector_registers,
        "registers": raw[CpuCol.REGISTERS] / compute.num_vector_registers,
        "steps": _log2(raw[CpuCol.STEPS]),
        "unrolled": _log2(raw[CpuCol.UNROLLED_FMA]),
    }
    return FeatureTable(times, rules, tuple(columns), np.column_stack(list(columns.values())))
