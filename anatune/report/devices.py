"""Reports about devices: their specs, calibrations and learned corrections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anatune.core.hardware.files import spec_to_toml
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.report import units
from anatune.report.text import Cells, Line, table

if TYPE_CHECKING:
    from anatune.measure.cpu.calibration.calibrate import Calibration
    from anatune.measure.cuda.calibration.numbers import GpuNumbers, Median
    from anatune.tuning.calibration import Learned
    from anatune.tuning.training import Judgement, Quality, TrainingFamily

_QUIET = 0.5
"""Share of undisturbed samples below which the report gives advice."""


def hardware_lines(specs: Sequence[GpuSpec | CpuSpec]) -> list[Line]:
    """Return devices as a table: name, kind, float32 peak, DRAM bandwidth, product name."""
    cells: Cells = [
        ("name", [spec.name for spec in specs]),
        ("kind", [spec.kind for spec in specs]),
        ("FP32 peak", [units.flop_rate(spec.compute.fp32_peak_flop_per_s) for spec in specs]),
        ("DRAM", [units.rate(spec.dram.bandwidth_bytes_per_s) for spec in specs]),
        ("device", [spec.model for spec in specs]),
    ]
    return table(cells, ("name", "kind", "device"))


def unverified_keys(spec: GpuSpec | CpuSpec) -> list[str]:
    """Return the unverified numbers of a spec as dotted keys ("l2.latency_cycles")."""
    return [
        f"{group}.{key}" for group in spec.__struct_fields__ for key in getattr(getattr(spec, group), "unverified", ())
    ]


def marked_toml(spec: GpuSpec | CpuSpec) -> str:
    """Return the TOML text of a spec with a comment behind each unverified number."""
    doubtful = set(unverified_keys(spec))
    group, lines = "", []
    for line in spec_to_toml(spec).splitlines():
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        key = line.partition(" = ")[0]
        lines.append(f"{line}  # unverified" if f"{group}.{key}" in doubtful else line)
    return "\n".join(lines) + "\n"


def gpu_calibration_lines(spec: GpuSpec, numbers: GpuNumbers) -> list[str]:
    """Return lines with the measured numbers of a GPU; numbers that were not measured are left out."""
    compute, rates = spec.compute, numbers.rates
    peak = compute.fp32_peak_flop_per_s
    lines = [f"GPU: {spec.model} ({spec.arch}), {compute.num_sms} SMs at {compute.clock_hz / 1e9:.3f} GHz under load"]
    if numbers.best_fma is not None:
        name, best = numbers.best_fma
        chains, warps = name.split("_")[1:]
        lines.append(
            f"float32: {units.flop_rate(best.value)}, {units.percent(best.value / peak)} of {units.flop_rate(peak)}, "
            f"with {chains} independent chains in each of {warps} warps per SM{_spread(best)}"
        )
    measured: list[tuple[str, Median | None, Callable[[float], str]]]
    measured = [(dtype, rates.get(f"fma_{dtype}"), units.flop_rate) for dtype in ("float16", "int8")]
    for dtype in ("float16", "bfloat16", "tfloat32"):
        in_matrix = numbers.best_matrix(dtype)
        if in_matrix is not None:
            measured.append((f"{dtype} on tensor cores (mma.sync)", in_matrix[1], units.flop_rate))
    measured += [
        ("L2", rates.get("l2_read"), units.rate),
        ("DRAM reading", rates.get("dram_read"), units.rate),
        ("DRAM copying (reads plus writes)", rates.get("dram_copy"), units.rate),
    ]
    lines += [
        f"{what}: {format_value(rate.value)}{_spread(rate)}"
        for what, rate, format_value in measured
        if rate is not None
    ]
    if numbers.shared_bytes_cycle:
        widths = [f"{rate.value:.1f} ({width}-byte loads)" for width, rate in numbers.shared_bytes_cycle.items()]
        lines.append(f"shared memory, bytes per cycle and SM: {', '.join(widths)}")
    if numbers.latency_cycles:
        cycles = [f"{level} {latency.value:.0f}" for level, latency in numbers.latency_cycles.items()]
        lines.append(f"latencies in cycles: {', '.join(cycles)}")
    if numbers.launch_s is not None:
        lines.append(
            f"a launch, one of many in sequence: {units.duration(numbers.launch_s.value)}{_spread(numbers.launch_s)}"
        )
    return lines


def _spread(measured: Median) -> str:
    return f" (+-{100 * measured.spread:.1f} %)"


def detected_cpu_lines(spec: CpuSpec) -> list[str]:
    """Return lines that describe a detected CPU and count its unverified numbers."""
    compute = spec.compute
    caches = ", ".join(f"{level.upper()} {units.size(cache.size_bytes)}" for level, cache in spec.caches.items())
    return [
        f"CPU: {spec.model} ({spec.arch}), {compute.num_cores} cores, "
        f"{compute.isa} of {compute.simd_bits} bits, {units.flop_rate(compute.fp32_peak_flop_per_s)}, {caches}",
        *_hidden_lines(spec),
        f"unverified: {len(unverified_keys(spec))} numbers, marked by `anatune hw show {spec.name}`",
    ]


def _hidden_lines(spec: CpuSpec) -> list[str]:
    """Return a line that names instructions of the processor that the machine does not offer, if there are any."""
    hidden = spec.hidden_features
    return [f"instructions that this machine does not offer: {', '.join(hidden)}"] if hidden else []


def cpu_calibration_lines(spec: CpuSpec) -> list[str]:
    """Return lines with the measured numbers of a CPU."""
    compute, dram, launch = spec.compute, spec.dram, spec.launch
    fills = [
        f"{name.upper()} {cache.bandwidth_bytes_per_cycle:g} bytes/cycle after {cache.latency_cycles:g} cycles"
        for name, cache in spec.caches.items()
    ]
    lines = [
        f"CPU: {spec.model} ({spec.arch}), {compute.num_cores} cores, {units.flop_rate(compute.fp32_peak_flop_per_s)}, "
        f"FMA latency {compute.fma_latency_cycles:g} cycles",
        *_hidden_lines(spec),
        f"per cycle: {compute.fma_per_cycle:g} multiply-adds, {compute.loads_per_cycle:g} loads, "
        f"{compute.broadcasts_per_cycle or compute.loads_per_cycle:g} broadcasts, {compute.stores_per_cycle:g} stores",
        ", ".join(fills),
        f"DRAM {units.rate(dram.core_bandwidth_bytes_per_s)} for one core, "
        f"{units.rate(dram.bandwidth_bytes_per_s)} for all cores, latency {1e9 * dram.latency_s:.0f} ns",
    ]
    if launch is not None:
        lines.append(
            f"starting the threads {1e6 * launch.parallel_start_s:.1f} us, calling a kernel "
            f"{1e6 * launch.function_call_s:.2f} us, calling a microkernel {launch.microkernel_call_cycles:g} cycles"
        )
    return lines


def _class_lines(spec: CpuSpec) -> list[str]:
    """Return a line about the fast microkernels in a spec: the rows for each number of vectors."""
    table = spec.microkernels
    if table is None:
        return []
    rows: dict[int, set[int]] = {}
    for (vectors, _), shares in table.classes.items():
        rows.setdefault(vectors, set()).update(shares)
    texts = [f"{min(n)} to {max(n)} rows of {units.many(vectors, 'vector')}" for vectors, n in sorted(rows.items())]
    return [f"{len(table.tiles)} microkernels reach {100 * table.least_share:.0f} % of the peak: {', '.join(texts)}"]


def prediction_lines(result: Calibration) -> list[str]:
    """Return lines about the best register tile, the model's predictions of the good ones, and disturbed samples."""
    lines = []
    lines += _class_lines(result.spec)
    best = max(result.tiles, key=lambda entry: entry.share, default=None)
    if best is not None:
        rows, vectors, unroll = best.tile
        lines.append(
            f"best register tile: {rows} rows x {vectors} vectors, {unroll} iterations unrolled, "
            f"{100 * best.share:.1f} % of the peak"
        )
    for what, agreed in (("that fit the registers", result.fitting), ("tried", result.agreement)):
        lines.append(
            f"of the register tiles {what}, {agreed.num_good} reach 80 % of the peak; the model expects that of "
            f"{agreed.num_predicted}: precision {agreed.precision:.2f}, recall {agreed.recall:.2f}"
        )
    advice = ": stop other programs, or give more --minutes, and calibrate again"
    advice = "" if result.quiet_share >= _QUIET else advice
    lines.append(f"{100 * result.quiet_share:.0f} % of the samples were undisturbed by other programs{advice}")
    return lines


def family_lines(family: TrainingFamily, judgement: Judgement, saved: Path | None) -> list[Line]:
    """Return the report of one correction: its training data, and its gain.

    Parameters
    ----------
    saved : Path or None
        The folder where it was saved; None if it was not saved.
    """
    from anatune.tuning.training import MIN_TRIALS

    lines = [
        Line(
            f"{family.name}: {units.many(judgement.num_workloads, 'workload')}, {judgement.num_trials} schedules, "
            f"{judgement.num_failed} of them failed",
            "bold",
        )
    ]
    lines += [Line(f"  {part.workload}: {part.schedules} schedules, {part.failed} failed") for part in family.workloads]
    if family.num_left_out:
        lines.append(
            Line(f"  not used: {units.many(family.num_left_out, 'workload')} with fewer than {MIN_TRIALS} good trials")
        )
    lines += _both("tested on each workload, trained on the others", judgement.plain, judgement.by_workload)
    lines += _both("tested on this device, trained on the others", judgement.plain_by_device, judgement.by_device)
    if judgement.by_workload is None:
        lines.append(Line("  there is only one workload, so the correction cannot be tested on another one"))
    verdict = "better" if judgement.helps else "no better"
    where = f"saved in {saved}" if saved is not None else "not saved"
    lines.append(Line(f"  {verdict} than the analytical model alone on workloads that it was not trained on; {where}"))
    return lines


def nest_lines(learned: Learned) -> list[str]:
    """Return lines about the correction that a calibration learned from generated kernels."""
    lines = []
    if learned.measured:
        failed = f", {learned.failed} of them failed" if learned.failed else ""
        lines.append(f"measured {units.many(learned.measured, 'generated kernel')}{failed}; kept in {learned.records}")
    judgement = learned.judgement
    if judgement is None or judgement.plain is None or judgement.by_workload is None:
        return [*lines, "too few generated kernels were measured to learn a correction; give more --minutes"]
    parts = [
        f"{who}: Spearman's rank correlation {quality.spearman:.2f}; its first choice takes {quality.first_regret:.3f} "
        f"times as long as the best kernel (at most {quality.worst_first:.2f} times), the best of its first 8 "
        f"{quality.top8_regret:.3f} times"
        for who, quality in (("analytical model", judgement.plain), ("corrected model", judgement.by_workload))
    ]
    where = f"saved in {learned.saved}, plans use it" if learned.saved else "it does not help and is not kept"
    return [
        *lines,
        f"a correction learned from {judgement.num_trials} kernels of {judgement.num_workloads} workloads, tested on "
        "each workload after training on the others:",
        *(f"  {part}" for part in parts),
        f"  {where}",
    ]


def _both(title: str, plain: Quality | None, corrected: Quality | None) -> list[Line]:
    if plain is None or corrected is None:
        return []
    lines = [Line(f"  {title} (medians):")]
    for who, quality in (("analytical", plain), ("corrected", corrected)):
        regret = f"the best of its first 8 takes {quality.top8_regret:.3f} times the best time"
        lines.append(Line(f"    {who:<10}  rank correlation {quality.spearman:.3f}, {regret}"))
    return lines
