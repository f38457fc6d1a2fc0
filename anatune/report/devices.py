"""Devices as text: what is known, detected, measured and learned of them."""

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
    from anatune.tuning.training import Family, Judgement, Quality

_QUIET = 0.5
"""Share of quiet samples from which on a calibration needs no advice."""


def hardware_lines(specs: Sequence[GpuSpec | CpuSpec]) -> list[Line]:
    """Return the known devices as a table: name, kind, float32 peak, DRAM bandwidth, product."""
    cells: Cells = [
        ("name", [spec.name for spec in specs]),
        ("kind", [spec.kind for spec in specs]),
        ("FP32 peak", [units.flop_rate(spec.compute.fp32_peak_flop_per_s) for spec in specs]),
        ("DRAM", [units.rate(spec.dram.bandwidth_bytes_per_s) for spec in specs]),
        ("device", [spec.model for spec in specs]),
    ]
    return table(cells, ("name", "kind", "device"))


def unverified_keys(spec: GpuSpec | CpuSpec) -> list[str]:
    """Return the numbers of a spec that nobody has verified, as dotted keys ("l2.latency_cycles")."""
    return [
        f"{group}.{key}" for group in spec.__struct_fields__ for key in getattr(getattr(spec, group), "unverified", ())
    ]


def marked_toml(spec: GpuSpec | CpuSpec) -> str:
    """Return the spec's TOML text with a comment behind every number that nobody has verified."""
    doubtful = set(unverified_keys(spec))
    group, lines = "", []
    for line in spec_to_toml(spec).splitlines():
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        key = line.partition(" = ")[0]
        lines.append(f"{line}  # unverified" if f"{group}.{key}" in doubtful else line)
    return "\n".join(lines) + "\n"


def gpu_calibration_lines(spec: GpuSpec, numbers: GpuNumbers) -> list[str]:
    """Return the measured numbers in a few lines; those that were not measured are left out."""
    compute, rates = spec.compute, numbers.rates
    peak = compute.fp32_peak_flop_per_s
    lines = [f"GPU: {spec.model} ({spec.arch}), {compute.num_sms} SMs at {compute.clock_hz / 1e9:.3f} GHz under load"]
    if numbers.best_fma is not None:
        name, best = numbers.best_fma
        chains, warps = name.split("_")[1:]
        lines.append(
            f"float32: {units.flop_rate(best.value)}, {units.percent(best.value / peak)} of {units.flop_rate(peak)}, "
            f"with {chains} chains in each of {warps} warps a SM{_spread(best)}"
        )
    measured: list[tuple[str, Median | None, Callable[[float], str]]]
    measured = [(dtype, rates.get(f"fma_{dtype}"), units.flop_rate) for dtype in ("float16", "int8")]
    for dtype in ("float16", "bfloat16", "tfloat32"):
        in_matrix = numbers.best_matrix(dtype)
        if in_matrix is not None:
            measured.append((f"{dtype} in matrix units (mma.sync)", in_matrix[1], units.flop_rate))
    measured += [
        ("L2", rates.get("l2_read"), units.rate),
        ("DRAM reading", rates.get("dram_read"), units.rate),
        ("DRAM copying, both directions counted", rates.get("dram_copy"), units.rate),
    ]
    lines += [f"{what}: {told(rate.value)}{_spread(rate)}" for what, rate, told in measured if rate is not None]
    if numbers.shared_bytes_cycle:
        widths = [f"{rate.value:.1f} ({width}-byte loads)" for width, rate in numbers.shared_bytes_cycle.items()]
        lines.append(f"shared memory, bytes a cycle and SM: {', '.join(widths)}")
    if numbers.latency_cycles:
        cycles = [f"{level} {latency.value:.0f}" for level, latency in numbers.latency_cycles.items()]
        lines.append(f"latencies in cycles: {', '.join(cycles)}")
    if numbers.launch_s is not None:
        lines.append(f"launch in a row: {units.duration(numbers.launch_s.value)}{_spread(numbers.launch_s)}")
    return lines


def _spread(measured: Median) -> str:
    return f" (+-{100 * measured.spread:.1f} %)"


def detected_cpu_lines(spec: CpuSpec) -> list[str]:
    """Return what a CPU is, and how much of that nobody has verified."""
    compute = spec.compute
    caches = ", ".join(f"{level.upper()} {units.size(cache.size_bytes)}" for level, cache in spec.caches.items())
    return [
        f"CPU: {spec.model} ({spec.arch}), {compute.num_cores} cores, "
        f"{compute.isa} of {compute.simd_bits} bits, {units.flop_rate(compute.fp32_peak_flop_per_s)}, {caches}",
        *_hidden_lines(spec),
        f"unverified: {len(unverified_keys(spec))} numbers, marked by `anatune hw show {spec.name}`",
    ]


def _hidden_lines(spec: CpuSpec) -> list[str]:
    """Say which instructions of its processor the machine does not offer, if there are any."""
    hidden = spec.hidden_features
    return [f"not offered here, and not used: {', '.join(hidden)}"] if hidden else []


def cpu_calibration_lines(spec: CpuSpec) -> list[str]:
    """Return the measured numbers in a few lines."""
    compute, dram, launch = spec.compute, spec.dram, spec.launch
    fills = [
        f"{name.upper()} {cache.bandwidth_bytes_per_cycle:g} bytes/cycle after {cache.latency_cycles:g} cycles"
        for name, cache in spec.caches.items()
    ]
    lines = [
        f"CPU: {spec.model} ({spec.arch}), {compute.num_cores} cores, {units.flop_rate(compute.fp32_peak_flop_per_s)}, "
        f"FMA latency {compute.fma_latency_cycles:g} cycles",
        *_hidden_lines(spec),
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


def _class_lines(spec: CpuSpec) -> list[str]:
    """Say which microkernels the spec holds as good ones: rows of each number of vectors, whatever is unrolled."""
    table = spec.microkernels
    if table is None:
        return []
    rows: dict[int, set[int]] = {}
    for (vectors, _), shares in table.classes.items():
        rows.setdefault(vectors, set()).update(shares)
    told = [
        f"{min(some)} to {max(some)} rows of {units.many(vectors, 'vector')}" for vectors, some in sorted(rows.items())
    ]
    return [f"{len(table.tiles)} microkernels from {100 * table.least_share:.0f} % of the peak on: {', '.join(told)}"]


def prediction_lines(result: Calibration) -> list[str]:
    """Say which tile is best, how well the model predicts the good ones, and what the samples are worth."""
    lines = []
    lines += _class_lines(result.spec)
    best = max(result.tiles, key=lambda entry: entry.share, default=None)
    if best is not None:
        rows, vectors, unroll = best.tile
        lines.append(
            f"best register tile: {rows} rows x {vectors} vectors, {unroll} steps unrolled, "
            f"{100 * best.share:.1f} % of the peak"
        )
    for what, agreed in (("that fit the registers", result.fitting), ("tried", result.agreement)):
        lines.append(
            f"of the tiles {what}, {agreed.num_good} reach 80 % of the peak; the model predicts "
            f"{agreed.num_predicted}: precision {agreed.precision:.2f}, recall {agreed.recall:.2f}"
        )
    advice = ": stop what else runs here, or give more --minutes, and calibrate anew"
    advice = "" if result.quiet_share >= _QUIET else advice
    lines.append(f"{100 * result.quiet_share:.0f} % of the samples were quiet{advice}")
    return lines


def family_lines(family: Family, judgement: Judgement, saved: Path | None) -> list[Line]:
    """Return the report of one correction: what it was trained on, and what it is worth.

    Parameters
    ----------
    saved : Path or None
        Where it was saved, None if it was not.
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
            Line(f"  left out: {units.many(family.num_left_out, 'workload')} with fewer than {MIN_TRIALS} times")
        )
    lines += _both("each workload left out in turn", judgement.plain, judgement.by_workload)
    lines += _both("the device left out", judgement.plain_by_device, judgement.by_device)
    if judgement.by_workload is None:
        lines.append(Line("  one workload only: whether a correction helps on others cannot be told"))
    verdict = "better" if judgement.helps else "not better"
    where = f"saved in {saved}" if saved is not None else "not saved"
    lines.append(Line(f"  {verdict} than the analytical model on workloads it has not seen; {where}"))
    return lines


def nest_lines(learned: Learned) -> list[str]:
    """Return what a calibration learned from generated nests, and what that is worth."""
    lines = []
    if learned.measured:
        failed = f", {learned.failed} of them failed" if learned.failed else ""
        lines.append(f"measured {units.many(learned.measured, 'generated kernel')}{failed}; kept in {learned.records}")
    judgement = learned.judgement
    if judgement is None or judgement.plain is None or judgement.by_workload is None:
        return [*lines, "too few generated kernels were measured to learn from; calibrate for longer"]
    parts = [
        f"{who}: Spearman {quality.spearman:.2f}, its first choice takes {quality.first_regret:.3f} times as long as "
        f"the best (worst {quality.worst_first:.2f}), the best of its first 8 {quality.top8_regret:.3f}"
        for who, quality in (("model", judgement.plain), ("corrected", judgement.by_workload))
    ]
    where = f"saved in {learned.saved}, plans use it" if learned.saved else "it does not help, and is not kept"
    return [
        *lines,
        f"a correction learned from {judgement.num_trials} kernels of {judgement.num_workloads} workloads, each left "
        "out in turn:",
        *(f"  {part}" for part in parts),
        f"  {where}",
    ]


def _both(title: str, plain: Quality | None, corrected: Quality | None) -> list[Line]:
    if plain is None or corrected is None:
        return []
    lines = [Line(f"  {title} (medians):")]
    for who, quality in (("analytical", plain), ("corrected", corrected)):
        regret = f"best of its first 8 is {quality.top8_regret:.3f} x the best"
        lines.append(Line(f"    {who:<10}  Spearman {quality.spearman:.3f}, {regret}"))
    return lines
