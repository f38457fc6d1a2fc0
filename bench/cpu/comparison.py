"""What the CPU benchmark's samples say: the table of layers, ratios to the rivals, the issue's aims."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.cpu.quiet import Ratio, Sample, Thresholds, geometric_mean, paired_ratio, quiet_or_all, share_of_peak, spread
from bench.layers import Layer

__all__ = [
    "OURS",
    "LayerResult",
    "Row",
    "Target",
    "bandwidth_bound_s",
    "fastest",
    "print_tables",
    "ratio_text",
    "row_of",
    "targets",
]

OURS = ("plan", "16", "32", "64")
LIBRARIES = ("onednn", "mkl")


@dataclass
class LayerResult:
    """Samples of every method on one layer ("anatune:32", "onednn:nhwc", ...), and what else is known.

    `same` names methods that run the very schedule of another one: "anatune:64" -> "anatune:32".
    """

    layer: Layer
    samples: dict[str, list[Sample]]
    same: dict[str, str] = field(default_factory=dict)
    bandwidth_s: float = 0.0
    rate: float = 1.0
    """Peak of the dtype's instruction over that of the FMA probe."""
    tune_s: float = 0.0
    num_trials: int = 0
    num_failed: int = 0
    metaschedule_s: float = math.nan
    process_spread: float = math.nan
    """Slowest over fastest of several processes that run the plan, less 1 (`bench.cpu.spread`)."""

    def of(self, name: str) -> list[Sample]:
        """Return the samples of `name`."""
        return self.samples.get(self.same.get(name, name), [])


@dataclass
class Row:
    """One line of the table: rates in FLOP/s by method, best variants, ratios of anatune's best to them."""

    layer: str
    text: str
    in_bounds: float
    rates: dict[str, float]
    variants: dict[str, str]
    shares: dict[str, float]
    spreads: dict[str, float]
    counts: dict[str, int]
    quiet: bool
    ratios: dict[str, Ratio | None]
    plan_over_best: Ratio | None
    over_metaschedule: Ratio | None
    process_spread: float = math.nan


def fastest(result: LayerResult, kinds: Sequence[str], thresholds: Thresholds) -> str | None:
    """Return the method of `kinds` with the smallest median time; None if there is none."""
    medians = {
        name: statistics.median(sample.time_s for sample in quiet_or_all(samples, thresholds)[0])
        for name, samples in result.samples.items()
        if name.split(":")[0] in kinds and samples
    }
    return min(medians, key=lambda name: medians[name]) if medians else None


def row_of(result: LayerResult, thresholds: Thresholds, judged: str = "32") -> Row:
    """Return the table's line; ratios are of anatune after `judged` trials (else the longest run, the plan)."""
    layer = result.layer
    ours = [name for name in OURS if result.of(f"anatune:{name}")]
    chosen = judged if judged in ours else (ours[-1] if ours else None)
    methods = {f"anatune:{name}": f"anatune:{name}" for name in ours}
    for kind in ("onednn", "mkl", "torch", "ort", "float32", "metaschedule"):
        if name := fastest(result, (kind,), thresholds):
            methods[kind] = name
    row = Row(layer.name, layer.text, layer.in_bounds, {}, {}, {}, {}, {}, True, {}, None, None, result.process_spread)
    for label, name in methods.items():
        used, quiet = quiet_or_all(result.of(name), thresholds)
        row.rates[label] = layer.flop / statistics.median(sample.time_s for sample in used)
        row.variants[label] = name.split(":")[1]
        row.shares[label] = share_of_peak(used, layer.flop) / result.rate
        row.spreads[label] = spread(used)
        row.counts[label] = len(used)
        row.quiet = row.quiet and quiet
    if chosen is None:
        return row
    mine = result.of(f"anatune:{chosen}")
    rivals = {kind: methods.get(kind) for kind in ("onednn", "mkl", "torch", "ort", "float32")}
    rivals["better"] = fastest(result, LIBRARIES, thresholds)
    for label, rival in rivals.items():
        row.ratios[label] = paired_ratio(mine, result.of(rival), thresholds) if rival else None
    if "plan" in ours and len(ours) > 1:
        row.plan_over_best = _own_ratio(result, "plan", ours[-1], thresholds)
    if "metaschedule" in methods and "16" in ours:
        row.over_metaschedule = paired_ratio(result.of("anatune:16"), result.of(methods["metaschedule"]), thresholds)
    return row


def _own_ratio(result: LayerResult, first: str, second: str, thresholds: Thresholds) -> Ratio | None:
    """Return how fast anatune's `first` is beside its `second`; 1 if they are the same schedule."""
    names = [result.same.get(f"anatune:{name}", f"anatune:{name}") for name in (first, second)]
    if names[0] == names[1]:
        return Ratio(1.0, 1.0, 1.0, len(result.of(names[0])), True)
    return paired_ratio(result.of(names[0]), result.of(names[1]), thresholds)


def bandwidth_bound_s(layer: Layer, hardware: Any, threads: int, dtype: str = "float32") -> float:
    """Return the least time of moving the compulsory bytes from the smallest level that holds them all, s; 0 within L2.

    In a hot loop that is where the operands come from.
    """
    moved = layer.compulsory_bytes if dtype == "float32" else layer.workload(dtype=dtype).compulsory_bytes
    clock = hardware.compute.clock_hz
    if moved <= hardware.l2.size_bytes:
        return 0.0
    if hardware.l3 is not None and moved <= hardware.l3.size_bytes:
        return float(moved / (hardware.l3.bandwidth_bytes_per_cycle * clock * threads))
    dram = min(threads * hardware.dram.core_bandwidth_bytes_per_s, hardware.dram.bandwidth_bytes_per_s)
    return float(moved / dram)


@dataclass(frozen=True)
class Target:
    """One aim of the issue: what was reached, on how many layers, whether it holds."""

    text: str
    value: float
    aim: str
    met: bool
    note: str = ""


def targets(
    results: Sequence[LayerResult], rows: Sequence[Row], peak_flop_per_s: float, judged: str = "32"
) -> list[Target]:
    """Return what became of the issue's aims; those without any data are left out."""
    found: list[Target] = []

    def geometric(text: str, ratios: Mapping[str, Ratio | None], aim: float) -> None:
        values = {name: ratio.value for name, ratio in ratios.items() if ratio is not None}
        if values:
            mean = geometric_mean(values.values())
            found.append(Target(f"{text}, geometric mean", mean, f">= {aim}", mean >= aim, f"{len(values)} layers"))

    by_layer = {row.layer: row for row in rows}
    better = {name: row.ratios.get("better") for name, row in by_layer.items()}
    geometric(f"after {judged} trials / better of oneDNN kernel and MKL", better, 1.05)
    known = {name: ratio.value for name, ratio in better.items() if ratio is not None}
    if known:
        worst = min(known, key=lambda name: known[name])
        below = [name for name, value in known.items() if value < 0.95]
        note = f"{worst}; below: {', '.join(below) or 'none'}"
        found.append(
            Target(f"after {judged} trials / better of both, smallest", known[worst], ">= 0.95", not below, note)
        )
    geometric(
        f"after {judged} trials / PyTorch end to end", {n: row.ratios.get("torch") for n, row in by_layer.items()}, 1.25
    )
    geometric("plan / best after all trials", {n: row.plan_over_best for n, row in by_layer.items()}, 0.95)
    dense, bound = {}, {}
    for result in results:
        row = by_layer[result.layer.name]
        ours = [label for label in row.shares if label.startswith("anatune:")]
        label = f"anatune:{judged}" if f"anatune:{judged}" in ours else (ours[-1] if ours else None)
        if label is None:
            continue
        if result.bandwidth_s > result.layer.flop / peak_flop_per_s:
            bound[result.layer.name] = result.bandwidth_s * row.rates[label] / result.layer.flop
        elif result.layer.is_dense:
            dense[result.layer.name] = row.shares[label]
    if dense:
        mean = geometric_mean(dense.values())
        found.append(
            Target(
                "share of the probed peak, matmuls and 3x3, geometric mean",
                mean,
                ">= 0.8",
                mean >= 0.8,
                f"{len(dense)} layers",
            )
        )
    if bound:
        worst = min(bound, key=lambda name: bound[name])
        found.append(
            Target(
                "share of the roofline where bandwidth bound, smallest",
                bound[worst],
                ">= 0.9",
                bound[worst] >= 0.9,
                worst,
            )
        )
    meta = {name: row.over_metaschedule.value for name, row in by_layer.items() if row.over_metaschedule is not None}
    if meta:
        worst = min(meta, key=lambda name: meta[name])
        found.append(
            Target(
                "16 trials / MetaSchedule, smallest",
                meta[worst],
                "> 1",
                meta[worst] > 1,
                f"{worst}, {len(meta)} layers",
            )
        )
        shares = [
            result.tune_s * 16 / result.num_trials / result.metaschedule_s
            for result in results
            if result.num_trials and result.metaschedule_s > 0
        ]
        if shares:
            found.append(
                Target("wall time of 16 trials / MetaSchedule's, largest", max(shares), "<= 0.1", max(shares) <= 0.1)
            )
    trials, seconds = sum(r.num_trials for r in results), sum(r.tune_s for r in results if r.num_trials)
    if trials:
        each, failed = seconds / trials, sum(r.num_failed for r in results)
        found.append(Target("wall time of a trial, s", each, "< 0.5", each < 0.5, f"{trials} trials, {failed} failed"))
    return found


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its rounds; "?" where they were not quiet."""
    return "" if ratio is None else f"{ratio.value:.3f}{'' if ratio.quiet else '?'}"


def print_tables(rows: Sequence[Row], found: Sequence[Target], judged: str) -> None:
    """Print the rates, the ratios with what they are worth, and the aims."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)

    def table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]], *, left: Sequence[str]) -> None:
        made = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
        for name in columns:
            made.add_column(name, justify="left" if name in left else "right", no_wrap=name not in ("note",))
        for line in lines:
            made.add_row(*line)
        console.print(made)

    heads = {
        "onednn": "oneDNN",
        "mkl": "MKL",
        "torch": "PyTorch e2e",
        "ort": "ORT e2e",
        "float32": "our float32",
        "metaschedule": "MetaSchedule",
    }
    labels = [label for label in (*(f"anatune:{n}" for n in OURS), *heads) if any(label in row.rates for row in rows)]
    lines = []
    for row in rows:
        cells = [row.layer, row.text, f"{100 * row.in_bounds:.0f}"]
        for label in labels:
            known = label in row.rates
            cells.append(f"{row.rates[label] / 1e9:.1f} ({100 * row.shares[label]:.0f})" if known else "")
        lines.append([*cells, f"{min(row.counts.values(), default=0)}{'' if row.quiet else '?'}"])
    titles = [heads[label] if label in heads else label[len("anatune:") :].replace("plan", "0") for label in labels]
    table(
        "GFLOP/s (% of the FMA probe) of anatune after 0 to 64 trials, of the libraries' kernels, of PyTorch",
        ["layer", "shape", "needed %", *titles, "n"],
        lines,
        left=("layer", "shape"),
    )
    lines = []
    for row in rows:
        ratios = [ratio_text(row.ratios.get(label)) for label in ("onednn", "mkl", "better", "torch", "ort", "float32")]
        better = row.ratios.get("better")
        half, rounds = (f"{better.low:.3f}-{better.high:.3f}", str(better.rounds)) if better else ("", "")
        spreads = f"{100 * max(row.spreads.values(), default=math.nan):.1f} %"
        meta, used = ratio_text(row.over_metaschedule), row.variants.get("onednn", "")
        processes = "" if math.isnan(row.process_spread) else f"{100 * row.process_spread:.1f} %"
        lines.append([row.layer, used, *ratios, half, rounds, ratio_text(row.plan_over_best), meta, spreads, processes])
    columns = [
        "layer",
        "oneDNN's",
        "/oneDNN",
        "/MKL",
        "/better",
        "/PyTorch",
        "/ORT",
        "/float32",
        "middle half",
        "rounds",
        "plan/best",
    ]
    table(
        f"Speed of anatune after {judged} trials over the rivals', > 1 is faster",
        [*columns, "16 trials/MetaSchedule", "spread", "processes"],
        lines,
        left=("layer", "oneDNN's"),
    )
    console.print(
        "Medians over samples, ratios over rounds, that both probes call quiet ('?': too few were, all count). needed: "
        "share of the counted FLOP\nthat is not with the padding's zeros. n: fewest samples of a method. spread: "
        "half the width of the middle half of the times, largest.\nprocesses (--processes): slowest over fastest "
        "process that runs the plan, less 1.",
        highlight=False,
    )
    lines = [[t.text, f"{t.value:.3f}", t.aim, "met" if t.met else "MISSED", t.note] for t in found]
    table("Aims", ["aim", "reached", "wanted", "", "note"], lines, left=("aim", "wanted", "", "note"))
