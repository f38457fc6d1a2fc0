"""What was detected, and what a calibration measured, in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.report import units
from anatune.report.tables import unverified_keys

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, GpuSpec
    from anatune.measure.cpu.calibration.calibrate import Calibration
    from anatune.measure.cuda.calibration.numbers import GpuNumbers, Median

__all__ = [
    "cpu_calibration_lines",
    "detected_cpu_lines",
    "gpu_calibration_lines",
    "prediction_lines",
]

_DTYPES = ("float16", "bfloat16", "tfloat32")


def gpu_calibration_lines(spec: GpuSpec, numbers: GpuNumbers) -> list[str]:
    """Return the measured numbers in a few lines; those that were not measured are left out."""
    compute = spec.compute
    peak = compute.fp32_peak_flop_per_s
    lines = [f"GPU: {spec.model} ({spec.arch}), {compute.num_sms} SMs at {compute.clock_hz / 1e9:.3f} GHz under load"]
    best = numbers.best_fma
    if best is not None:
        chains, warps = best[0].split("_")[1:]
        lines.append(
            f"float32: {units.flop_rate(best[1].value)}, {units.percent(best[1].value / peak)} of "
            f"{units.flop_rate(peak)}, with {chains} chains in each of {warps} warps a SM{_spread(best[1])}"
        )
    others = [(dtype, numbers.rates.get(f"fma_{dtype}")) for dtype in ("float16", "int8")]
    others += [
        (f"{dtype} in matrix units (mma.sync)", (numbers.best_matrix(dtype) or ("", None))[1]) for dtype in _DTYPES
    ]
    lines += [f"{what}: {units.flop_rate(rate.value)}{_spread(rate)}" for what, rate in others if rate is not None]
    bandwidths = [
        ("L2", numbers.rates.get("l2_read")),
        ("DRAM reading", numbers.rates.get("dram_read")),
        ("DRAM copying, both directions counted", numbers.rates.get("dram_copy")),
    ]
    lines += [f"{what}: {units.rate(rate.value)}{_spread(rate)}" for what, rate in bandwidths if rate is not None]
    if numbers.shared_bytes_cycle:
        widths = [f"{m.value:.1f} ({width}-byte loads)" for width, m in numbers.shared_bytes_cycle.items()]
        lines.append(f"shared memory, bytes a cycle and SM: {', '.join(widths)}")
    if numbers.latency_cycles:
        cycles = [f"{level} {found.value:.0f}" for level, found in numbers.latency_cycles.items()]
        lines.append(f"latencies in cycles: {', '.join(cycles)}")
    if numbers.launch_s is not None:
        lines.append(f"launch in a row: {units.duration(numbers.launch_s.value)}{_spread(numbers.launch_s)}")
    return lines


def _spread(measured: Median) -> str:
    return f" (+-{100 * measured.spread:.1f} %)"


def detected_cpu_lines(spec: CpuSpec) -> list[str]:
    """Return what a CPU is, and how much of that nobody has verified."""
    compute = spec.compute
    caches = ", ".join(
        f"{level} {units.size(cache.size_bytes)}"
        for level, cache in (("L1", spec.l1), ("L2", spec.l2), ("L3", spec.l3))
        if cache is not None
    )
    return [
        f"CPU: {spec.model} ({spec.arch}), {compute.num_cores} cores, "
        f"{compute.isa} of {compute.simd_bits} bits, {units.flop_rate(compute.fp32_peak_flop_per_s)}, {caches}",
        *hidden_lines(spec),
        f"unverified: {len(unverified_keys(spec))} numbers, marked by `anatune hw show {spec.name}`",
    ]


def hidden_lines(spec: CpuSpec) -> list[str]:
    """Say which instructions of its processor the machine does not offer, if there are any."""
    hidden = spec.hidden_features
    return [f"not offered here, and not used: {', '.join(hidden)}"] if hidden else []


def cpu_calibration_lines(spec: CpuSpec) -> list[str]:
    """Return the measured numbers in a few lines."""
    compute, dram, launch = spec.compute, spec.dram, spec.launch
    caches = [("L1", spec.l1), ("L2", spec.l2), ("L3", spec.l3)]
    fills = [
        f"{name} {cache.bandwidth_bytes_per_cycle:g} bytes/cycle after {cache.latency_cycles:g} cycles"
        for name, cache in caches
        if cache is not None
    ]
    lines = [
        f"CPU: {spec.model} ({spec.arch}), {compute.num_cores} cores, {units.flop_rate(compute.fp32_peak_flop_per_s)}, "
        f"FMA latency {compute.fma_latency_cycles:g} cycles",
        *hidden_lines(spec),
        f"a cycle: {compute.fma_per_cycle:g} multiply-adds, {compute.loads_per_cycle:g} loads, "
        f"{compute.broadcasts_per_cycle or compute.loads_per_cycle:g} broadcasts, {compute.stores_per_cycle:g} stores",
        ", ".join(fills),
        f"DRAM {units.rate(dram.core_bandwidth_bytes_per_s)} by one core, {units.rate(dram.bandwidth_bytes_per_s)} by "
        f"all, after {1e9 * dram.latency_s:.0f} ns",
    ]
    if launch is not None:
        lines.append(
            f"parallel start {1e6 * launch.parallel_start_s:.1f} us, function call "
            f"{1e6 * launch.function_call_s:.2f} us, microkernel call {launch.microkernel_call_cycles:g} cycles"
        )
    return lines


def prediction_lines(result: Calibration) -> list[str]:
    """Say which tile is best, how well the model predicts the good ones, and what the samples are worth."""
    lines = []
    best = max(result.tiles, key=lambda entry: entry.share, default=None)
    if best is not None:
        rows, vectors, unroll = best.tile
        lines.append(
            f"best register tile: {rows} rows x {vectors} vectors, {unroll} steps unrolled, "
            f"{100 * best.share:.1f} % of the peak"
        )
    for what, found in (("that fit the registers", result.fitting), ("tried", result.agreement)):
        lines.append(
            f"of the tiles {what}, {found.num_good} reach 80 % of the peak; the model predicts {found.num_predicted}: "
            f"precision {found.precision:.2f}, recall {found.recall:.2f}"
        )
    lines.append(f"{100 * result.quiet_share:.0f} % of the samples were quiet")
    return lines
