"""What a calibration of a GPU measured, in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.report import units

if TYPE_CHECKING:
    from anatune.core.hardware.spec import GpuSpec
    from anatune.measure.cuda.calibration.numbers import GpuNumbers, Median

__all__ = ["gpu_calibration_lines"]

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
