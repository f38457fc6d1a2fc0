"""How much of a GPU awkward shapes get, beside the smooth shapes above them: predicted times, no GPU is needed.

    python -m bench.gpu.awkward_plans [--hw rtx3090 a100 h100] [--only PATTERN ...] [--time-limit 60] [--json FILE]

Every workload of `awkward_shapes.AWKWARD` is planned as `anatune plan` plans it (the default templates, certified), and
so is its smooth neighbour. The yardstick is the neighbour's time scaled by floating-point operations. Launches do not
scale: with t the time of the plan, n that of the neighbour, l the device's launch and s the operations of the workload
over the neighbour's,

    ratio = (t - l) / max(s (n - l), floor)

so that a second kernel of a split sum counts. "whole" is the same with a launch in both, as a user waits for it:
t over l + max(s (n - l), floor). "1.6 plus the launch" is judged by the times as they are, too: t <= 1.6 s n + l. The
floor is what the compulsory bytes (operands and result once) take at the reachable bandwidth of memory: a product of
few rows reads all of its other operand, which no kernel does in the share of the time that its operations have.
"scaled" is the ratio without a floor. What misses the aim is printed with the parts of both plans.

Apart: the four workloads that the work began with, and products of a matrix and a vector as a share of the reachable
bandwidth, the launch included.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.workload.access import DTYPE_BYTES
from anatune.core.workload.nest import Workload
from bench.gpu.awkward_shapes import AWKWARD, FOUR, MATVECS, Shape
from bench.results import environment, number_text, progress_bar, wide_console, write_json

__all__ = ["Planned", "Row", "compulsory_s", "geometric_mean", "planned", "row_of"]

WIDTH = 160
MEAN_AIM, WORST_AIM = 1.15, 1.6
"""Aims for the ratio: its geometric mean, the largest."""
MATVEC_AIM = 0.85
FOUR_AIMS = {
    "matmul 509x4099x1021": ("45 % of the peak", lambda row: row.share >= 0.45),
    "matmul 197x768x768": ("30 % of the peak", lambda row: row.share >= 0.30),
    "matmul 16x16x65536": ("823 us / 20", lambda row: row.plan.time_s <= 823e-6 / 20),
    "batch_matmul 12x128x128x64": ("what the launch leaves", None),
}
"""Name -> aim in words, whether a row on the RTX 3090 meets it."""


@dataclass(frozen=True)
class Planned:
    """The plan's first choice for one shape."""

    name: str
    time_s: float
    flop: float
    compulsory_s: float
    """Seconds that operands and result, each once, take at the reachable bandwidth of memory."""
    template: str
    tiles: str
    bound_by: str
    parts: dict[str, float]
    guarantee: str


@dataclass(frozen=True)
class Row:
    """A workload beside its neighbour (None: it has none here) on one device."""

    plan: Planned
    neighbour: Planned | None
    peak_flop_per_s: float
    launch_s: float

    @property
    def share(self) -> float:
        """Share of the device's float32 peak, in [0, 1]."""
        return self.plan.flop / self.plan.time_s / self.peak_flop_per_s

    def over_neighbour(self, floor_s: float) -> float:
        """Return the time without a launch over the neighbour's, scaled by operations and at least `floor_s`."""
        if self.neighbour is None:
            return math.nan
        scaled_s = self.plan.flop / self.neighbour.flop * (self.neighbour.time_s - self.launch_s)
        return (self.plan.time_s - self.launch_s) / max(scaled_s, floor_s)

    @property
    def ratio(self) -> float:
        """Return the ratio that is judged."""
        return self.over_neighbour(self.plan.compulsory_s)

    @property
    def scaled(self) -> float:
        """Return the ratio to the scaled time alone."""
        return self.over_neighbour(0.0)

    @property
    def whole(self) -> float:
        """Return the ratio of times with one launch each, of which only the rest scales."""
        scaled_s = (self.plan.time_s - self.launch_s) / self.ratio
        return self.plan.time_s / (scaled_s + self.launch_s)

    @property
    def is_far(self) -> bool:
        """Whether the time exceeds the aim and a launch, the neighbour's time scaled with its own launch."""
        if self.neighbour is None:
            return False
        scaled_s = max(self.plan.flop / self.neighbour.flop * self.neighbour.time_s, self.plan.compulsory_s)
        return self.plan.time_s > WORST_AIM * scaled_s + self.launch_s

    @property
    def bandwidth(self) -> float:
        """Share of the reachable bandwidth of memory, in [0, 1]."""
        return self.plan.compulsory_s / self.plan.time_s


def compulsory_s(workload: Workload, hardware: GpuSpec) -> float:
    """Return the seconds that all tensors, each once, take at the reachable bandwidth of memory."""
    tensors = (*workload.reads, workload.write)
    total = sum(one.touched_elements(workload.extents) * DTYPE_BYTES[one.dtype] for one in tensors)
    return total / (hardware.dram.bandwidth_bytes_per_s * hardware.dram.reachable_fraction)


def planned(shape: Shape, hardware: GpuSpec, time_limit_s: float | None = None) -> Planned:
    """Return the first choice of the plan with the analytical model as it is."""
    workload = shape.workload()
    answer = anatune.plan(workload, hardware, 1, time_limit_s=time_limit_s, correction="none")
    first, best = answer.predictions[0], answer.best
    options = "".join(f" {name}={value}" for name, value in (best.options or {}).items())
    return Planned(
        name=shape.name,
        time_s=first.time_s,
        flop=float(workload.flop),
        compulsory_s=compulsory_s(workload, hardware),
        template=best.template,
        tiles=" ".join(f"{axis}={'x'.join(map(str, factors))}" for axis, factors in best.tiles.items()) + options,
        bound_by=first.bound_by,
        parts=_parts(first),
        guarantee=answer.guarantee.kind,
    )


def _parts(prediction: Prediction) -> dict[str, float]:
    return {name: float(value) for name, value in prediction.parts.items()}


def row_of(shape: Shape, hardware: GpuSpec, plan: Callable[[Shape], Planned], *, alone: bool = False) -> Row:
    """Return the row of a workload; `alone` without its neighbour. `plan` gives the plan of a shape."""
    neighbour = None if alone else plan(shape.neighbour())
    return Row(plan(shape), neighbour, hardware.compute.fp32_peak_flop_per_s, hardware.launch.overhead_s)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, NaN of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def awkward_table(title: str, rows: Sequence[Row]) -> Table:
    """Return the table of all workloads beside their neighbours."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("workload", no_wrap=True)
    for name in ("us", "% of peak", "neighbour us", "ratio", "whole", "scaled"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("template", "bound by", "neighbour's", ""):
        table.add_column(name, no_wrap=True)
    for row in rows:
        assert row.neighbour is not None
        missed = row.ratio > WORST_AIM
        ratio = number_text(row.ratio, "{:.2f}")
        odd = {one.guarantee for one in (row.plan, row.neighbour)} - {"certified", "exhaustive"}
        table.add_row(
            row.plan.name, _us(row.plan.time_s), f"{100 * row.share:.1f}", _us(row.neighbour.time_s),
            f"[red]{ratio}[/red]" if missed else ratio, number_text(row.whole, "{:.2f}"),
            number_text(row.scaled, "{:.2f}"), row.plan.template, row.plan.bound_by, row.neighbour.bound_by,
            ", ".join(odd),
        )  # fmt: skip
    return table


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Return what the table comes to: means, the worst, and what the rows above the aim are bound by."""
    ratios = [row.ratio for row in rows]
    worst = max(rows, key=lambda row: row.ratio)
    mean, whole, scaled = (
        geometric_mean(part) for part in (ratios, [row.whole for row in rows], [row.scaled for row in rows])
    )
    above = sorted((row for row in rows if row.ratio > WORST_AIM), key=lambda row: -row.ratio)
    lines = [
        f"geometric mean {mean:.3f} (aim {MEAN_AIM}: {_verdict(mean <= MEAN_AIM)}), with launches {whole:.3f} "
        f"({_verdict(whole <= MEAN_AIM)}), without a floor {scaled:.3f}; "
        f"worst {worst.ratio:.2f} ({worst.plan.name}; aim {WORST_AIM}: {_verdict(not above)}), "
        f"above it {len(above)} of {len(rows)}, {sum(row.is_far for row in rows)} by the times as they are"
    ]
    for row in above:
        assert row.neighbour is not None
        for one in (row.plan, row.neighbour):
            parts = ", ".join(f"{name.removesuffix('_s')} {_us(value)}" for name, value in one.parts.items() if value)
            lines.append(f"  {row.ratio:.2f} {one.name}: {one.template} {one.tiles}: {parts}")
    return lines


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def four_table(rows: Sequence[Row], hardware: GpuSpec) -> Table:
    """Return the table of the four workloads; their aims are for the RTX 3090."""
    table = Table(title=f"The four on {hardware.name}", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("workload", "us", "without a launch", "% of peak", "bound by", "aim (rtx3090)", ""):
        table.add_column(name, justify="left" if name in ("workload", "bound by") else "right", no_wrap=True)
    for row in rows:
        words, meets = FOUR_AIMS[row.plan.name]
        verdict = _verdict(meets(row)) if meets is not None and hardware.name == "rtx3090" else ""
        table.add_row(
            row.plan.name, _us(row.plan.time_s), _us(row.plan.time_s - row.launch_s), f"{100 * row.share:.1f}",
            row.plan.bound_by, words, verdict,
        )  # fmt: skip
    return table


def matvec_table(rows: Sequence[Row], hardware: GpuSpec) -> Table:
    """Return the table of matrix times vector."""
    table = Table(title=f"Matrix times vector on {hardware.name}", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("workload", "us", "% of reachable bandwidth", "template", f"aim {100 * MATVEC_AIM:.0f} %"):
        table.add_column(name, justify="left" if name in ("workload", "template") else "right", no_wrap=True)
    for row in rows:
        met = _verdict(row.bandwidth >= MATVEC_AIM)
        table.add_row(
            row.plan.name, _us(row.plan.time_s), f"{100 * row.bandwidth:.1f}", row.plan.template, met
        )  # fmt: skip
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", nargs="+", default=["rtx3090", "a100", "h100"], help="GPUs")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="only workloads that fit, as 'conv2d *x7x7 *'")
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds a plan may take (default: no limit)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    devices = [anatune.hardware(name) for name in options.hw]
    chosen = [
        shape for shape in AWKWARD if not options.only or any(fnmatch.fnmatch(shape.name, p) for p in options.only)
    ]
    if not chosen:
        raise SystemExit(f"bench.gpu.awkward_plans: --only {' '.join(options.only)} fits no workload")
    apart = () if options.only else (*FOUR, *MATVECS)
    console, results = wide_console(WIDTH), {}
    for hardware in devices:
        if not isinstance(hardware, GpuSpec):
            raise SystemExit(f"bench.gpu.awkward_plans: --hw: {hardware.name} is a CPU, expected a GPU")
        results[hardware.name] = one_device(hardware, chosen, apart, options.time_limit, console)
    if options.json:
        settings = environment(seed=None, time_limit_s=options.time_limit)
        write_json(options.json, {"environment": settings, "devices": results})


def one_device(
    hardware: GpuSpec, chosen: Sequence[Shape], apart: Sequence[Shape], time_limit_s: float | None, console: Console
) -> dict[str, object]:
    """Plan everything on one device, print its tables and return its rows for the JSON file."""
    known: dict[Shape, Planned] = {}
    with progress_bar() as progress:
        wanted = dict.fromkeys([*chosen, *(shape.neighbour() for shape in chosen), *apart])
        task = progress.add_task(hardware.name, total=len(wanted))
        for shape in wanted:
            progress.update(task, description=f"{hardware.name} {shape.name}")
            known[shape] = planned(shape, hardware, time_limit_s)
            progress.advance(task)
    rows = [row_of(shape, hardware, known.__getitem__) for shape in chosen]
    console.print(awkward_table(f"Awkward shapes on {hardware.name}", rows))
    for line in summary_lines(rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    lone = {shape: row_of(shape, hardware, known.__getitem__, alone=True) for shape in apart}
    four = [row for shape, row in lone.items() if shape in FOUR]
    matvecs = [row for shape, row in lone.items() if shape in MATVECS]
    if lone:
        console.print(four_table(four, hardware))
        console.print(matvec_table(matvecs, hardware))
    return {
        "geometric_mean": geometric_mean([row.ratio for row in rows]),
        "geometric_mean_whole": geometric_mean([row.whole for row in rows]),
        "geometric_mean_scaled": geometric_mean([row.scaled for row in rows]),
        "worst": max(row.ratio for row in rows),
        "workloads": [
            {
                "ratio": row.ratio,
                "whole": row.whole,
                "scaled": row.scaled,
                "is_far": row.is_far,
                "share": row.share,
                "plan": row.plan,
                "neighbour": row.neighbour,
            }
            for row in rows
        ],
        "four": [{"share": row.share, "plan": row.plan} for row in four],
        "matvecs": [{"bandwidth": row.bandwidth, "plan": row.plan} for row in matvecs],
    }


if __name__ == "__main__":
    sys.exit(main())
