"""What the default session on a CPU gains from trees that learned from other workloads, and go on learning.

    python -m bench.experiments.learn_cpu --folder DIR [--seeds 5] [--trials 32] [--json FILE]

First the default session without records measures each workload of the papers (32 trials, one thread): these are the
records. Then sessions with different corrections search the same workloads, each with trees that were trained on all
others (leave-one-workload-out), and plans are made with them; programs that no table has are measured. What came of it
is in ``docs/experiments/learn_cpu.md``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.layers import layer_names
from anatune.errors import AnatuneError
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.cross_fit import MeasuredPoints, fit_shrunk_residual
from anatune.report.text import columns
from anatune.search.base import Strategy, make_strategy
from anatune.search.learning.features import Features, Similarity
from anatune.search.learning.kriging import Kriging
from anatune.search.strategies.ranked import ModelStrategy
from anatune.templates.base.model import Model
from anatune.tuning.reuse import OPTIONS
from bench.experiments.measured import MeasuredTable, Replay, search_all
from bench.experiments.search_cpu import here, table_of
from bench.results import environment, matches, progress_bar, write_json

__all__ = ["LAYERS", "RECORDED", "VARIANTS", "main"]

Integers = NDArray[np.int64]

LAYERS = [name for name in layer_names() if name.split(":")[1][0].isalpha()]
"""[ICS24] Table 1 and [NoSE] Table II: 42 layers, some of which are one workload."""
RECORDED = 32
"""Trials of the session whose measurements are the records."""
AT = (2, 4, 8, 16, 32)
_NEVER = 10**6


class Unkriged(ModelStrategy):
    """The default strategy without kriging: times are the model's, or the trees'."""

    def _begin(self) -> Kriging[Features]:
        super()._begin()
        return Kriging(Similarity(kernel_std=1e-6, tiles_std=1e-6, shares_std=1e-6))


VARIANTS: Mapping[str, tuple[type[ModelStrategy], bool, int]] = {
    "none": (Unkriged, False, _NEVER),
    "kriging": (ModelStrategy, False, _NEVER),
    "trees before": (Unkriged, True, _NEVER),
    "trees online": (Unkriged, True, ModelStrategy.refit_after),
    "trees before, kriging": (ModelStrategy, True, _NEVER),
    "trees online, kriging": (ModelStrategy, True, ModelStrategy.refit_after),
}
"""Name -> strategy, whether it has trees, trials after which they are refitted."""


class Session(msgspec.Struct):
    """One session: the best over the best known after each trial."""

    workload: str
    variant: str
    seed: int
    ratios: list[float]
    strategy_s: float

    def trials_to(self, ratio: float) -> float:
        """Return the first trial whose best is at most `ratio`, inf if none is."""
        return next((trial for trial, value in enumerate(self.ratios, 1) if value <= ratio), math.inf)


class Predicted(msgspec.Struct):
    """What plans say of a workload: median of |log(measured / predicted)| over the records; the first choice."""

    workload: str
    plain_error: float
    error: float
    plain_first: float
    first: float


def _session(variant: str, seed: int, trials: int, ranked: Integers, learned: CorrectedModel | None) -> Replay:
    kind, has_trees, refit_after = VARIANTS[variant]
    made = type(kind.__name__, (kind,), {"refit_after": refit_after})

    def strategy(model: Model) -> Strategy:
        begun: Strategy = made(learned if has_trees and learned else model, seed=seed, ranked=ranked)
        return begun

    return Replay(variant, seed, trials, strategy, first=lambda _: ranked[:1])


def _records(name: str, table: MeasuredTable, ranked: Integers, hardware: CpuSpec) -> MeasuredPoints:
    """Return what the session without records measures of a workload."""
    replay = Replay(
        "records", 0, RECORDED, lambda model: make_strategy("model", model, ranked=ranked), first=lambda _: ranked[:1]
    )
    search_all(table, hardware, [replay])
    known = {table.key(point): (point, measurement) for point, measurement in table.measured()}
    points = np.array([known[key][0] for key in replay.keys])
    times = [known[key][1].time_s for key in replay.keys]
    time_s = np.array([math.nan if one is None else one for one in times])
    return MeasuredPoints(str(table.model.workload.key), hardware.name, table.model.feature_table(points), time_s)


def _predicted(name: str, table: MeasuredTable, records: MeasuredPoints, learned: CorrectedModel) -> Predicted:
    """Return how plans predict a workload, both with and without what other workloads taught."""
    good = np.isfinite(records.time_s)
    said = records.table.time_s * np.exp(learned.residual.predict(records.table.values).log_ratio)
    errors = [float(np.median(np.abs(np.log(records.time_s / times))[good])) for times in (records.table.time_s, said)]
    firsts = []
    for model in (table.model, learned):
        measurement = table.get(model.rank(1).points[0])
        firsts.append(math.nan if measurement is None else (measurement.relative or math.nan) / table.best)
    return Predicted(name, errors[0], errors[1], firsts[0], firsts[1])


def _study(options: argparse.Namespace, hardware: CpuSpec) -> tuple[list[Session], list[Predicted]]:
    names = [name for name in LAYERS if matches(name, options.workload)]
    if not names:
        raise SystemExit(
            f"bench.experiments.learn_cpu: no layer fits {options.workload}, expected some like {LAYERS[0]}"
        )
    tables: dict[str, MeasuredTable] = {}
    ranked: dict[str, Integers] = {}
    records: dict[str, MeasuredPoints] = {}
    sessions: list[Session] = []
    plans: list[Predicted] = []
    with progress_bar() as progress:
        task = progress.add_task("records", total=2 * len(names))
        for name in names:
            progress.update(task, description=f"{name}, records")
            tables[name] = table_of(options.folder, name, anatune.layer(name), hardware)
            ranked[name] = tables[name].model.rank(16).points
            records[name] = _records(name, tables[name], ranked[name], hardware)
            progress.advance(task)
        for name, table in tables.items():
            progress.update(task, description=name)
            others = {one.workload: one for one in records.values() if one.workload != records[name].workload}
            residual = fit_shrunk_residual(list(others.values()), OPTIONS)
            learned = None if residual is None else CorrectedModel(table.model, residual)
            replays = [
                _session(variant, seed, options.trials, ranked[name], learned)
                for variant in VARIANTS
                for seed in range(1 if variant == "none" else options.seeds)
            ]
            firsts = [ranked[name][0]] if learned is None else [ranked[name][0], learned.rank(1).points[0]]
            replays += [_asking(table, point) for point in firsts]
            search_all(table, hardware, replays)
            sessions += [
                Session(name, one.name, one.seed, [value / table.best for value in one.curve], one.strategy_s)
                for one in replays
                if one.name in VARIANTS
            ]
            if learned is not None:
                plans.append(_predicted(name, table, records[name], learned))
            progress.advance(task)
    return sessions, plans


def _asking(table: MeasuredTable, point: Integers) -> Replay:
    """Return a search that measures one point."""
    return Replay("plan", 0, 1, partial(make_strategy, "grid"), first=lambda _: point[None, :])


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def summary(sessions: Sequence[Session]) -> str:
    """Return a table: a row for each variant; geometric means over workloads and seeds, and against kriging alone."""
    rows = [["correction", *(f"best at {at}" for at in AT), "trials to 5 %", "to 1 %", "against kriging at 8", "ms"]]
    alone = {(one.workload, one.seed): one for one in sessions if one.variant == "kriging"}
    for variant in VARIANTS:
        own = [one for one in sessions if one.variant == variant]
        if not own:
            continue
        cells = [f"{_mean([one.ratios[min(at, len(one.ratios)) - 1] for one in own]):.4f}" for at in AT]
        for ratio in (1.05, 1.01):
            to = [min(one.trials_to(ratio), 2.0 * RECORDED) for one in own]
            cells.append(f"{np.mean(to):.1f}")
        logs = [math.log(one.ratios[7] / alone[one.workload, one.seed].ratios[7]) for one in own if len(one.ratios) > 7]
        half = 2.0 * float(np.std(logs)) / math.sqrt(len(logs))
        cells.append(f"{math.exp(float(np.mean(logs))):.4f} +- {half:.4f}")
        spent = sum(one.strategy_s for one in own) / sum(len(one.ratios) for one in own)
        rows.append([variant, *cells, f"{1e3 * spent:.0f}"])
    return "\n".join(columns(rows, left=(0,), width=150))


def told(plans: Sequence[Predicted]) -> str:
    """Return in words how well plans predict workloads that their records leave out."""
    plain, learned = (float(np.median([getattr(one, name) for one in plans])) for name in ("plain_error", "error"))
    firsts = [
        _mean([value for one in plans if math.isfinite(value := getattr(one, name))])
        for name in ("plain_first", "first")
    ]
    return (
        f"{len(plans)} workloads left out: median error of predictions {plain:.1%} without records, {learned:.1%} "
        "with; "
        f"the plan's first choice over the best known {firsts[0]:.4f} without, {firsts[1]:.4f} with (geometric means)"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="tables of this machine, extended")
    parser.add_argument("--workload", nargs="+", metavar="W", help="some layers (patterns or beginnings)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every session")
    options = parser.parse_args(arguments)
    try:
        hardware = here(options.folder)
        sessions, plans = _study(options, hardware)
    except AnatuneError as error:
        raise SystemExit(f"bench.experiments.learn_cpu: {error}") from None
    print(f"{hardware.model}, one thread, {len({one.workload for one in sessions})} workloads")
    print(summary(sessions))
    print(told(plans))
    if options.json:
        about = environment(seeds=options.seeds, trials=options.trials, device=hardware.model)
        write_json(
            options.json,
            {
                "environment": about,
                "sessions": [msgspec.to_builtins(one) for one in sessions],
                "plans": [msgspec.to_builtins(one) for one in plans],
            },
        )


if __name__ == "__main__":
    main()
