"""Every search strategy, as published and from the model's ranking, on kernels of this machine's CPU.

    python -m bench.experiments.search_cpu --folder DIR [--workload NAME ...] [--strategy NAME ...]
        [--seeds 3] [--trials 128]

Each program is measured once, into a table for each workload (`bench.experiments.measured`), which searches ask and
extend: a run that was interrupted goes on where it was. What came of it is in ``docs/experiments/search_cpu.md``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from rich.progress import Progress

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.errors import AnatuneError
from anatune.report.text import columns
from anatune.search.base import BLIND, DEFAULT_STRATEGY, STRATEGIES, Strategy
from anatune.search.points import Integers
from anatune.search.strategies.droplet import DropletStrategy
from anatune.templates.base.model import Model
from bench.experiments.measured import MeasuredTable, Replay, search_all
from bench.experiments.surfaces import Contender
from bench.replay.metrics import quantile
from bench.replay.plots import svg
from bench.results import environment, matches, number_text, progress_bar, write_json

__all__ = ["WORKLOADS", "contenders", "here", "main", "table_of"]

WORKLOADS = {
    "matmul 256": "matmul 256x256x256",
    "matmul odd": "matmul 200x300x500",
    "matmul bert": "matmul 128x768x768",
    "matmul thin": "matmul 16x1024x1024",
    "C3": "resnet18:C3",
    "C4": "resnet18:C4",
    "C7": "resnet18:C7",
    "C8": "resnet18:C8",
    "C10": "resnet18:C10",
    "depthwise": "depthwise_conv2d 1x64x56x56 64x1x3x3 --padding 1",
    "pooling": "max_pool2d 1x64x56x56 3x3 --stride 2",
    "reduction": "sum 1024x4096 --axes 1",
}
"""Four products, five convolutions of ResNet-18 ([NoSE] Table II), a depthwise one, a pooling, a reduction."""
AT = (8, 16, 32, 64, 128)
"""Trials after which the best is reported."""
LIVE = ("matmul 256", "C4", "C8", "depthwise")
LIVE_AT = (16, 64)
"""Workloads of live sessions, and trials after which they are compared with replays."""
NEAR = 1.05
_RANKED = 16


class Curve(msgspec.Struct):
    """One search: the best over the best known after each trial."""

    workload: str
    contender: str
    seed: int
    ratios: list[float]
    strategy_s: float


def here(folder: Path) -> CpuSpec:
    """Return the spec of this machine, the same in all runs that share a folder: detection may read another clock."""
    path = folder / "hardware.json"
    found = anatune.hardware("host")
    assert isinstance(found, CpuSpec)
    if path.exists():
        known = msgspec.json.decode(path.read_bytes(), type=CpuSpec)
        if (known.model, known.arch) != (found.model, found.arch):
            raise SystemExit(f"{folder} was measured on {known.model} ({known.arch}), this is {found.model}")
        return known
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(found))
    return found


def table_of(folder: Path, name: str, workload: object, hardware: CpuSpec) -> MeasuredTable:
    """Return the table of a workload in a folder."""
    assert isinstance(workload, anatune.Workload)
    return MeasuredTable(folder / f"{name.replace(' ', '_').replace(':', '_')}.json.xz", workload, hardware)


class Straight(DropletStrategy):
    """Droplet search without speculation: no points beyond the neighbourhood fill a batch."""

    def _beyond(self, points: Integers, last: Integers, now: Integers) -> Integers:
        return points[:0]


ABLATIONS = (
    Contender("droplet, paper", "droplet", "paper"),
    Contender("droplet, any smaller mean", "droplet", "paper", {"significance": 1.0}),
    Contender("droplet, stopped after two samples", "droplet", "paper", {"least_samples": 1}),
    Contender("droplet, no speculation", "droplet", "paper", variant=Straight),
    Contender("droplet, whole neighbourhood", "droplet", "paper", {"published_batch": 1 << 20}),
)
"""[Droplet24] Sec. 4.3 (the t-test) and 4.5 (speculation), and what stopping slow candidates early does to the test."""


def contenders(names: Sequence[str] | None = None, *, ablations: bool = False) -> list[Contender]:
    """Return every search, or variants of one."""
    chosen = list(ABLATIONS) if ablations else []
    for strategy in () if ablations else STRATEGIES:
        starts = ["paper"] if strategy in BLIND else ["model"] if strategy == DEFAULT_STRATEGY else ["paper", "model"]
        for start in starts:
            name = strategy if len(starts) == 1 else f"{strategy}, {start}"
            chosen.append(Contender(name, strategy, start))
    return [contender for contender in chosen if matches(contender.name, names)]


def _replay(contender: Contender, seed: int, ranked: Integers, options: argparse.Namespace) -> Replay:
    def made(model: Model) -> Strategy:
        return contender.made(model, seed, ranked)

    def first(model: Model) -> Integers:
        return ranked[:1]

    begins = first if contender.start == "model" else None
    return Replay(contender.name, seed, options.trials, made, stops_early=not options.whole, first=begins)


def _search(options: argparse.Namespace, hardware: CpuSpec, progress: Progress) -> list[Curve]:
    """Return the curves of all searches, measuring what is not known."""
    curves = []
    wanted = {name: text for name, text in WORKLOADS.items() if matches(name, options.workload)}
    chosen = contenders(options.strategy, ablations=options.ablations)
    if not wanted or not chosen:
        raise SystemExit(
            f"bench.experiments.search_cpu: nothing fits {options.workload or options.strategy}, expected some of "
            f"{', '.join(WORKLOADS if not wanted else [one.name for one in contenders()])}"
        )
    for name, text in wanted.items():
        table = table_of(options.folder, name, anatune.parse_workload(text), hardware)
        ranked = table.model.rank(_RANKED).points
        replays = [
            _replay(contender, seed, ranked, options)
            for contender in chosen
            for seed in range(1 if contender.strategy == "grid" else options.seeds)
        ]
        task = progress.add_task(name, total=len(replays))
        search_all(table, hardware, replays, partial(_say, progress, task, name))
        progress.update(task, completed=len(replays))
        best = table.best
        curves += [
            Curve(name, one.name, one.seed, [value / best for value in one.curve], one.strategy_s) for one in replays
        ]
    return curves


def _say(progress: Progress, task: object, name: str, ended: int, programs: int) -> None:
    progress.update(task, completed=ended, description=f"{name}, {programs} programs")  # type: ignore[arg-type]


def _after(curve: Curve, trials: int) -> float:
    return curve.ratios[min(trials, len(curve.ratios)) - 1] if curve.ratios else math.inf


def _trials_to(curve: Curve, ratio: float) -> float:
    return next((trial for trial, value in enumerate(curve.ratios, 1) if value <= ratio), math.inf)


def summary(curves: Sequence[Curve], trials: int) -> str:
    """Return a table: a row for each contender; geometric means over workloads of the median over seeds."""
    at = [count for count in AT if count <= trials]
    rows = [["search", *(f"best at {count}" for count in at), "trials to 5 %", "near", "ms a trial"]]
    for contender in dict.fromkeys(curve.contender for curve in curves):
        own = [curve for curve in curves if curve.contender == contender]
        cells = []
        for count in at:
            cells.append(number_text(_typical(own, count)))
        to_near = [_trials_to(one, NEAR) for one in own]
        middle = quantile(to_near, 0.5)
        cost_s = sum(one.strategy_s for one in own) / max(1, sum(len(one.ratios) for one in own))
        near = sum(map(math.isfinite, to_near)) / len(to_near)
        rows.append(
            [
                contender,
                *cells,
                "never" if math.isinf(middle) else f"{middle:.0f}",
                f"{near:.0%}",
                f"{1e3 * cost_s:.1f}",
            ]
        )
    return "\n".join(columns(rows, left=(0,), width=140))


def picture(curves: Sequence[Curve], trials: int) -> str:
    """Return an SVG picture of the summary's ratios after each trial."""
    drawn = {}
    for contender in dict.fromkeys(curve.contender for curve in curves):
        own = [curve for curve in curves if curve.contender == contender]
        drawn[contender] = [_typical(own, trial) for trial in range(1, trials + 1)]
    return svg("best so far over the best known: kernels of a CPU, geometric mean", drawn)


def _typical(curves: Sequence[Curve], trials: int) -> float:
    """Return the geometric mean over workloads of the median over seeds of the best after so many trials."""
    workloads = dict.fromkeys(curve.workload for curve in curves)
    medians = [quantile([_after(one, trials) for one in curves if one.workload == name], 0.5) for name in workloads]
    return float(np.exp(np.mean(np.log(medians))))


def live(options: argparse.Namespace, hardware: CpuSpec, curves: Sequence[Curve]) -> str:
    """Return a table: what sessions of `anatune.tune` find beside what replays find, best over the best known."""
    rows = [["workload", "search", "seed", *(f"{how} at {at}" for at in LIVE_AT for how in ("live", "replayed"))]]
    replays = {(one.workload, one.contender, one.seed): one for one in curves}
    logs: list[float] = []
    for name in (name for name in LIVE if matches(name, options.workload)):
        workload = anatune.parse_workload(WORKLOADS[name])
        table = table_of(options.folder, name, workload, hardware)
        for contender in contenders(options.strategy):
            for seed in range(min(2, options.seeds)):
                result = anatune.tune(
                    workload, hardware, trials=options.trials, strategy=contender.strategy, start=contender.start,
                    seed=seed, threads=1, template="cpu",
                )  # fmt: skip
                ratios = [(one.measurement.relative or math.inf) / table.best for one in result.trials]
                replay = replays[name, contender.name, seed]
                both = [(min(ratios[:at]), _after(replay, at)) for at in LIVE_AT if at <= options.trials]
                logs.append(math.log(both[-1][0] / both[-1][1]))
                rows.append([name, contender.name, str(seed), *(number_text(one) for pair in both for one in pair)])
    middle, widest = quantile([abs(one) for one in logs], 0.5), max(map(abs, logs))
    told = f"live over replayed at the end: median deviation {math.expm1(middle):.1%}, largest {math.expm1(widest):.1%}"
    return "\n".join([*columns(rows, left=(0, 1), width=140), told])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="tables of this machine, extended")
    parser.add_argument("--workload", nargs="+", metavar="W", help=f"some of {', '.join(WORKLOADS)}")
    parser.add_argument("--strategy", nargs="+", metavar="S", help="some contenders (patterns or beginnings)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--ablations", action="store_true", help="variants of droplet search instead")
    parser.add_argument("--whole", action="store_true", help="stop no candidate early")
    parser.add_argument("--live", action="store_true", help="also sessions on four workloads, two seeds")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the best so far of each search")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every curve")
    options = parser.parse_args(arguments)
    try:
        hardware = here(options.folder)
        with progress_bar() as progress:
            curves = _search(options, hardware, progress)
    except AnatuneError as error:
        raise SystemExit(f"bench.experiments.search_cpu: {error}") from None
    print(f"{hardware.model}, one thread")
    print(summary(curves, options.trials))
    if options.svg:
        options.svg.write_text(picture(curves, options.trials), encoding="utf-8")
    if options.live:
        print(live(options, hardware, curves))
    if options.json:
        about = environment(seeds=options.seeds, trials=options.trials, device=hardware.model)
        write_json(options.json, {"environment": about, "curves": [msgspec.to_builtins(one) for one in curves]})


if __name__ == "__main__":
    main()
