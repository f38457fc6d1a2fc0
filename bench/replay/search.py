"""Compare search strategies on recorded measurements: trials and seconds until a share of the recorded optimum.

    python -m bench.replay.search FOLDER [--json FILE] [--plots FOLDER] [--strategy NAME ...] [--seeds 20]

Every candidate is a recorded point, so nothing rests on an interpolation. What is printed: docs/bench/replay.search.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from anatune.core.trial import Trial
from anatune.errors import AnatuneError
from anatune.model.learned.corrections import apply_correction, find_shipped_correction
from anatune.search.base import STRATEGIES, make_strategy
from bench.replay.corrections import KERNELS
from bench.replay.metrics import quantile
from bench.replay.plots import write_plots
from bench.replay.recorded_points import RecordedTable, load_tables
from bench.results import environment, matches, progress_bar, wide_console, write_json

__all__ = ["Run", "Setting", "run_one"]

SHARES = (1.05, 1.02, 1.01, 1.0)
"""Best time over the recorded optimum: after how many trials it is reached."""
TABLE_WIDTH = 200
"""Columns the results are printed in, at least."""
ONE_SEED = ("model", "grid")
"""Strategies that do nothing at random on a list of points: they are replayed once."""
AT = (16, 64)
"""Trials after which the best time is reported."""


@dataclass(frozen=True)
class Setting:
    """One contender: a strategy, where it starts, and whether a shipped correction orders what it starts from."""

    strategy: str
    start: str = "model"
    corrected: bool = False

    @property
    def name(self) -> str:
        """Return its name in the tables."""
        return self.strategy + (" (paper)" if self.start == "paper" else "") + (" + shipped" if self.corrected else "")


@dataclass
class Run:
    """One search."""

    table: str
    kind: str
    device: str
    workload_id: str
    strategy: str
    seed: int
    num_points: int
    best_s: float
    """Recorded optimum."""
    curve: list[float] = field(default_factory=list)
    """After each trial: best time over the recorded optimum (inf while nothing ran)."""
    model_s: float = 0.0
    """Analytical model of all points, once; CPU seconds, as is the strategy's time: other load matters less."""
    strategy_s: float = 0.0
    """Asking and telling, all trials, without the model's first evaluation of the table."""
    run_s: float = 0.0
    """Recorded kernel time of the trials, times the recorded number of runs where it is known (else 1)."""
    build_s: float | None = None
    """Not recorded in any of the tables."""

    def trials_to(self, share: float) -> float:
        """Return the first trial whose best time is at most `share` times the optimum, inf if none is."""
        return next((at for at, value in enumerate(self.curve, 1) if value <= share + 1e-12), math.inf)

    def at(self, trials: int) -> float:
        """Return the best time over the optimum after so many trials (or all, if there were fewer)."""
        return self.curve[min(trials, len(self.curve)) - 1] if self.curve else math.inf


def run_one(recorded: RecordedTable, setting: Setting, seed: int, trials: int) -> Run:
    """Replay one search of at most `trials` trials, asked for one at a time."""
    group = recorded.group
    started = time.process_time()
    model = recorded.model
    if setting.corrected:
        model = apply_correction(model, find_shipped_correction(group.hardware, KERNELS[group.kind]))
    table = recorded.table(model)
    table.rank(1)
    runner = recorded.runner(table)
    run = Run(
        group.table,
        group.kind,
        group.device,
        group.workload_id,
        setting.name,
        seed,
        len(recorded.points),
        runner.best_s,
    )
    run.model_s = time.process_time() - started
    best = math.inf
    started = time.process_time()
    strategy = make_strategy(setting.strategy, table, seed=seed, start=setting.start)
    for number in range(trials):
        asked = strategy.ask(1)
        if not asked:
            break
        (measurement,) = runner.run(asked)
        if measurement.time_s is not None:
            best = min(best, measurement.time_s)
            run.run_s += measurement.time_s * recorded.runs_of(table.row_of(asked[0]))
        run.curve.append(best / run.best_s)
        strategy.tell([Trial(asked[0], measurement, number=number, source=setting.strategy)])
    run.strategy_s = time.process_time() - started
    return run


def default_settings(names: Sequence[str], starts: Sequence[str], corrected: bool) -> list[Setting]:
    """Return the contenders: each strategy from each start ("model", "random" and "grid" have one)."""
    found = []
    for name in names:
        both = starts if name not in ("model", "random", "grid") else ["model"]
        found += [Setting(name, start) for start in both]
        if corrected and name == "model":
            found.append(Setting(name, "model", corrected=True))
    return found


def result_table(runs: Sequence[Run], by: str) -> Table:
    """Return one row a strategy: medians over devices, workloads and seeds, with quartiles."""
    table = Table(title=f"{by}: {len({(r.device, r.workload_id) for r in runs})} workloads", box=SIMPLE_HEAD)
    columns = ["strategy", *(f"best at {at}" for at in AT), *(f"trials to {100 * (s - 1):.0f} %" for s in SHARES)]
    for name in (*columns, "ms a trial", "model s", "kernels s"):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    for strategy in dict.fromkeys(run.strategy for run in runs):
        own = [run for run in runs if run.strategy == strategy]
        cells = [_quartiles([run.at(at) for run in own], "{:.3f}") for at in AT]
        cells += [_quartiles([run.trials_to(share) for run in own], "{:.0f}") for share in SHARES]
        cells.append(f"{1e3 * quantile([run.strategy_s / max(1, len(run.curve)) for run in own], 0.5):.1f}")
        cells += [f"{quantile([getattr(run, name) for run in own], 0.5):.2f}" for name in ("model_s", "run_s")]
        table.add_row(strategy, *cells)
    table.caption = "median (quartiles) over workloads and seeds; best: over the recorded optimum, which is 1"
    return table


def _quartiles(values: Sequence[float], form: str) -> str:
    low, middle, high = (quantile(values, q) for q in (0.25, 0.5, 0.75))
    return f"{form.format(middle)} ({form.format(low)}-{form.format(high)})"


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the medians and quartiles of each table and strategy as numbers."""
    found = []
    for table in dict.fromkeys(run.table for run in runs):
        for strategy in dict.fromkeys(run.strategy for run in runs if run.table == table):
            own = [run for run in runs if (run.table, run.strategy) == (table, strategy)]
            row: dict[str, Any] = {"table": table, "strategy": strategy, "num_runs": len(own)}
            row |= {f"best_at_{at}": [quantile([r.at(at) for r in own], q) for q in (0.25, 0.5, 0.75)] for at in AT}
            row |= {
                f"trials_to_{share}": [quantile([r.trials_to(share) for r in own], q) for q in (0.25, 0.5, 0.75)]
                for share in SHARES
            }
            row["strategy_s_a_trial"] = quantile([r.strategy_s / max(1, len(r.curve)) for r in own], 0.5)
            found.append(row)
    return found


def chosen_tables(tables: Sequence[RecordedTable], most: int) -> list[RecordedTable]:
    """Return at most `most` workloads of each table and device, evenly spread over their sorted names."""
    parts: dict[tuple[str, str], list[RecordedTable]] = {}
    for one in tables:
        parts.setdefault((one.group.table, one.group.device), []).append(one)
    found: list[RecordedTable] = []
    for part in parts.values():
        places: NDArray[np.int64] = np.unique(np.linspace(0, len(part) - 1, min(most, len(part))).astype(np.int64))
        found += [part[at] for at in places]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of recorded tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run with its curve")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write an SVG of best-so-far for each table")
    parser.add_argument("--strategy", nargs="+", metavar="NAME", help="only these (random always takes part)")
    parser.add_argument("--start", nargs="+", choices=("model", "paper"), default=["model", "paper"])
    parser.add_argument("--device", nargs="+", metavar="D", help="only these devices (patterns)")
    parser.add_argument("--table", nargs="+", metavar="T", help="only these tables (patterns or beginnings)")
    parser.add_argument("--workloads", type=int, default=10**6, metavar="N", help="at most N of each table and device")
    parser.add_argument("--seeds", type=int, default=20, help="searches of each strategy")
    parser.add_argument("--trials", type=int, default=100, help="trials of a search")
    parser.add_argument(
        "--shipped",
        action="store_true",
        help="also: the default strategy ordered by shipped corrections (seen layers!)",
    )
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    notes: list[str] = []
    if not options.folder.is_dir():
        raise SystemExit(f"bench.replay.search: {options.folder} is no folder; give the folder of the recorded tables")
    tables = [
        one
        for one in load_tables(options.folder, notes)
        if matches(one.group.table, options.table) and matches(one.group.device, options.device)
    ]
    tables = chosen_tables(tables, options.workloads)
    if not tables:
        raise SystemExit(f"bench.replay.search: no recorded GPU table of a search in {options.folder}")
    names = list(dict.fromkeys([*(options.strategy or STRATEGIES), "random"]))
    try:
        settings = default_settings(names, options.start, options.shipped)
        unknown = [name for name in names if name not in STRATEGIES]
        if unknown:
            raise SystemExit(
                f"bench.replay.search: unknown strategy {unknown[0]!r}, expected some of {', '.join(STRATEGIES)}"
            )
        runs = _replay(tables, settings, options.seeds, options.trials, notes)
    except AnatuneError as error:
        raise SystemExit(f"bench.replay.search: {error}") from None
    console = wide_console(TABLE_WIDTH)
    for table in dict.fromkeys(run.table for run in runs):
        own = [run for run in runs if run.table == table]
        console.print(result_table(own, table))
        devices = list(dict.fromkeys(run.device for run in own))
        for device in devices if len(devices) > 1 else []:
            console.print(result_table([run for run in own if run.device == device], f"{table}, {device}"))
    for note in notes:
        console.print(f"left out: {note}", markup=False, highlight=False, soft_wrap=True)
    seconds = time.perf_counter() - started
    console.print(f"{len(runs)} searches, {seconds:.0f} s")
    if options.plots:
        write_plots(runs, options.plots)
    if options.json:
        settings_used = {"seeds": options.seeds, "trials": options.trials, "seconds": seconds}
        write_json(
            options.json,
            {"environment": environment(**settings_used), "summary": summary(runs), "runs": runs, "left_out": notes},
        )


def _replay(
    tables: Sequence[RecordedTable], settings: Sequence[Setting], seeds: int, trials: int, notes: list[str]
) -> list[Run]:
    """Return every search."""
    runs: list[Run] = []
    with progress_bar() as progress:
        task = progress.add_task("replay", total=len(tables) * len(settings) * seeds)
        for recorded in tables:
            where = f"{recorded.group.device} {recorded.group.workload_id}"
            for setting in settings:
                progress.update(task, description=f"{where} {setting.name}")
                for seed in range(1 if setting.strategy in ONE_SEED else seeds):
                    try:
                        runs.append(run_one(recorded, setting, seed, trials))
                    except AnatuneError as error:
                        notes.append(f"{where} {setting.name}, seed {seed}: {error}")
                progress.advance(task, seeds)
    return runs


if __name__ == "__main__":
    sys.exit(main())
