"""Features of schedules for CUDA cores, the input of a learned correction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import DTYPE_BYTES
from anatune.templates.base.features import FeatureTable, evenness, log2, table_of
from anatune.templates.cuda.model.scoring import CudaScoring
from anatune.templates.gpu.times.columns import Col

__all__ = ["cuda_features"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_PARTS = ("FMA_S", "ISSUE_S", "SHARED_S", "SPILL_S", "L2_S", "DRAM_S", "LATENCY_S", "TAIL_S")
_SPATIAL_SHOWN = 3
"""Number of spatial axes whose factors are features, counted from the innermost axis."""
_REDUCTION_SHOWN = 2


def _factors(model: CudaScoring, points: Integers, axis: str) -> dict[str, Floats]:
    """Return the factors of one axis, level -> (num_points,)."""
    columns = model.space.columns
    return {level: points[:, columns.index(f"{axis}.{level}")].astype(np.float64) for level in model.space.levels[axis]}


def cuda_features(model: CudaScoring, points: Integers) -> FeatureTable:
    """Return the features of points: shares of the time, limits, traffic, code shape, factors of the inner axes."""
    rules, times, raw = model.raw_columns(points)
    hardware, workload = model.hardware, model.workload
    compute, shared = hardware.compute, hardware.shared_memory
    columns = {name: raw[Col[f"{name.upper()}_S"]] / times for name in (p[:-2].lower() for p in _PARTS)}
    columns = {f"share_{name}": share for name, share in columns.items()}
    columns["share_launch"] = hardware.launch.overhead_s / times
    threads, warps, blocks = raw[Col.THREADS], raw[Col.WARPS], raw[Col.BLOCKS]
    accumulators, steps, stages = raw[Col.ACCUMULATORS], raw[Col.STEPS], raw[Col.STAGES]
    work = np.maximum(accumulators * steps, 1.0)
    tile_bytes = np.maximum(raw[Col.TILE_BYTES], 1.0)
    element = float(DTYPE_BYTES[workload.dtype])
    waves = raw[Col.WAVES]
    columns |= {
        "threads": log2(threads),
        "idle_lanes": warps * compute.warp_size / np.maximum(threads, 1.0) - 1.0,
        "blocks_per_sm": log2(blocks / compute.num_sms),
        "waves": log2(waves),
        "wave_efficiency": waves / np.ceil(waves),
        "held_blocks": raw[Col.HELD],
        "held_warps": raw[Col.HELD] * warps / compute.max_warps_per_sm,
        "occupancy": np.minimum(1.0, raw[Col.RESIDENT] * warps / compute.max_warps_per_sm),
        "limiter": raw[Col.LIMITER],
        "accumulators": log2(accumulators),
        "steps": log2(steps),
        "stages": log2(stages),
        "shared_share": raw[Col.SHARED_BYTES] / shared.per_sm_bytes,
        "register_share": raw[Col.REGISTERS] / np.maximum(raw[Col.REGISTER_CAP], 1.0),
        "registers": raw[Col.REGISTERS],
        "spilled_share": raw[Col.SPILLED] / np.maximum(accumulators, 1.0),
        "spilled": raw[Col.SPILLED],
        "dynamic": raw[Col.DYNAMIC],
        "fragments_per_accumulator": log2(raw[Col.FRAGMENTS] / np.maximum(accumulators, 1.0)),
        "loads_per_fma": log2(raw[Col.LOADS] / work),
        "wavefronts_per_fma": log2(raw[Col.WAVEFRONTS] / work),
        "conflict": raw[Col.CONFLICT],
        "fetches_per_fma": log2(raw[Col.FETCHES] / work),
        "fetches": log2(raw[Col.FETCHES]),
        "fetch_waste": raw[Col.FETCHES_BLOCK] * compute.warp_size * element / tile_bytes,
        "lines_per_byte": log2(raw[Col.FETCH_LINES] / tile_bytes),
        "sectors_over_bytes": log2(raw[Col.SECTOR_BYTES] / tile_bytes),
        "store_sectors": raw[Col.STORE_SECTORS],
        "bytes_per_fma": log2(tile_bytes / (work * np.maximum(threads, 1.0))),
        "dram_over_l2": log2(raw[Col.DRAM_BYTES] / np.maximum(raw[Col.L2_BYTES], 1.0)),
        "local_per_fma": log2((raw[Col.LOCAL] + 1e-3) / (work * np.maximum(stages, 1.0))),
        "vthreads": log2(raw[Col.VTHREADS]),
        "reg_inner": log2(raw[Col.REG_INNER]),
        "reg_outer": log2(raw[Col.REG_OUTER]),
        "k2": log2(raw[Col.K2]),
        "unroll": log2(raw[Col.UNROLL] + 1.0),
        "body_over_unroll": log2(work / (raw[Col.UNROLL] + 1.0)),
    }
    spatial = [axis.name for axis in workload.spatial_axes][::-1]
    for number in range(_SPATIAL_SHOWN):
        factors = _factors(model, points, spatial[number]) if number < len(spatial) else {}
        ones = np.ones(len(points))
        thread, vthread = factors.get("thread", ones), factors.get("vthread", ones)
        inner, outer = factors.get("reg_inner", ones), factors.get("reg_outer", ones)
        columns[f"s{number}_thread"] = log2(thread)
        columns[f"s{number}_vthread"] = log2(vthread)
        columns[f"s{number}_results"] = log2(vthread * inner * outer)
        columns[f"s{number}_inner"] = log2(inner)
        columns[f"s{number}_tile"] = log2(thread * vthread * inner * outer)
        columns[f"s{number}_thread_even"] = evenness(thread)
        columns[f"s{number}_block_even"] = evenness(factors.get("block", ones))
    reduction = [axis.name for axis in workload.reduction_axes]
    reduction = [reduction[0], *reduction[:0:-1]] if reduction else []
    for number in range(_REDUCTION_SHOWN):
        factors = _factors(model, points, reduction[number]) if number < len(reduction) else {}
        ones = np.ones(len(points))
        columns[f"r{number}_stage"] = log2(factors.get("k1", ones) * factors.get("k2", ones))
        columns[f"r{number}_k2"] = log2(factors.get("k2", ones))
    widths = [points[:, model.space.columns.index(f"vector.{t}")].astype(np.float64) for t in model.space.staged]
    for number in range(2):
        columns[f"width{number}"] = log2(widths[number]) if number < len(widths) else np.zeros(len(points))
    return table_of(times, rules, columns)
