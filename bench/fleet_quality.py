"""What many devices find beside one after the same number of trials, on recorded measurements.

    python -m bench.fleet_quality FOLDER [--devices 16] [--strategy NAME ...] [--seeds 20] [--json FILE]

Events are simulated, nothing sleeps: a device asks when it is free and answers when its trial is over, so that answers
come in another order than questions. What is printed: docs/bench/fleet_quality.md.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Trial
from anatune.errors import AnatuneError
from anatune.search.base import STARTS, STRATEGIES, Strategy, make_strategy
from bench.replay.metrics import quantile
from bench.replay.recorded_points import RecordedTable, load_tables
from bench.replay.runner import ReplayRunner
from bench.replay.search import chosen_tables
from bench.results import environment, matches, progress_bar, wide_console, write_json

DEFAULT = ("model", "dgd", "droplet", "genetic")
AT = (32, 64, 128, 256)
"""Trials after which the best times are compared."""
TRIAL_S, MEASURED_S, SPREAD = 0.3, 0.2, 0.3
"""A trial takes so long beside the kernel, for the kernel at the median recorded time (others in proportion, at most
ten times that); standard deviation of its logarithm. Only the order of answers depends on them."""
LATE_SHARE, LATE_TIMES = 0.03, 20.0
"""So many trials take so many times as long: a machine that swaps, a connection that stalls."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of recorded tables, as for bench.replay.search")
    parser.add_argument("--devices", type=int, nargs="+", default=[16], metavar="N", help="beside one device")
    parser.add_argument("--strategy", nargs="+", choices=tuple(STRATEGIES), default=list(DEFAULT), metavar="NAME")
    parser.add_argument("--queued", type=float, default=1.5, help="schedules a device that are built or wait for it")
    parser.add_argument("--start", choices=STARTS, default="model")
    parser.add_argument("--device", nargs="+", metavar="D", help="only tables of these devices (patterns)")
    parser.add_argument("--table", nargs="+", metavar="T", help="only these tables (patterns or beginnings)")
    parser.add_argument("--workloads", type=int, default=2, metavar="N", help="at most N of each table and device")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=max(AT))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    notes: list[str] = []
    tables = [
        one
        for one in load_tables(options.folder, notes)
        if matches(one.group.table, options.table) and matches(one.group.device, options.device)
    ]
    tables = chosen_tables([one for one in tables if len(one.points) >= 2 * options.trials], options.workloads)
    if not tables:
        raise SystemExit(f"bench.fleet_quality: no recorded table of {2 * options.trials} points in {options.folder}")
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with progress_bar() as progress:
        task = progress.add_task("simulate", total=len(tables) * len(options.strategy))
        for recorded in tables:
            model = recorded.table()
            model.rank(1)
            runner = recorded.runner(model)
            for name in options.strategy:
                for devices in (1, *options.devices):
                    for seed in range(options.seeds):
                        try:
                            strategy = make_strategy(name, model, seed=seed, start=options.start)
                            ahead = math.ceil(options.queued * devices) if devices > 1 else 0
                            curve = search(strategy, recorded, runner, devices, ahead, seed, options.trials)
                        except AnatuneError as error:
                            notes.append(f"{recorded.group.workload_id} {name}: {error}")
                            continue
                        where: dict[str, Any] = {"table": recorded.group.table, "device": recorded.group.device}
                        where |= {"workload": recorded.group.workload_id, "strategy": name, "seed": seed}
                        rows.append(
                            where
                            | {
                                "devices": devices,
                                "best": {at: best_at(curve, at) for at in AT if at <= options.trials},
                            }
                        )
                progress.advance(task)
            if options.json:
                write_json(options.json, {"environment": environment(start=options.start), "runs": rows})
    console = wide_console(100)
    for devices in options.devices:
        console.print(result_table(rows, options.strategy, devices, len(tables)))
    for note in notes:
        console.print(f"left out: {note}", markup=False, highlight=False, soft_wrap=True)
    if options.json:
        settings = {"seeds": options.seeds, "start": options.start, "seconds": time.perf_counter() - started}
        write_json(options.json, {"environment": environment(**settings), "runs": rows, "left_out": notes})


def search(
    strategy: Strategy, recorded: RecordedTable, runner: ReplayRunner, devices: int, ahead: int, seed: int, trials: int
) -> list[float]:
    """Return the best time over the recorded optimum after each answer.

    Of `devices` none is idle; `ahead` further schedules are on their way: what is asked now runs after them.
    """
    rng = np.random.default_rng([seed, devices])
    middle = float(np.nanmedian(recorded.time_s))
    line: deque[Schedule] = deque()
    events: list[tuple[float, int, Schedule, Measurement]] = []
    curve: list[float] = []
    now, put, best = 0.0, 0, math.inf
    while len(curve) < trials:
        while len(line) + len(events) < devices + ahead and put + len(line) < trials:
            asked = strategy.ask(1, ahead=devices > 1)
            if not asked:
                break
            line += asked
        while line and len(events) < devices:
            schedule = line.popleft()
            (measurement,) = runner.run([schedule])
            took = TRIAL_S + MEASURED_S * min((measurement.time_s or 0.0) / middle, 10.0)
            took *= math.exp(SPREAD * rng.standard_normal()) * (LATE_TIMES if rng.random() < LATE_SHARE else 1.0)
            heapq.heappush(events, (now + took, put, schedule, measurement))
            put += 1
        if not events:
            break
        now, number, schedule, measurement = heapq.heappop(events)
        if measurement.time_s is not None:
            best = min(best, measurement.time_s)
        curve.append(best / runner.best_s)
        strategy.tell([Trial(schedule, measurement, number=number)])
    return curve


def best_at(curve: Sequence[float], trials: int) -> float:
    """Return the best time after so many trials, or all, if there were fewer."""
    return curve[min(trials, len(curve)) - 1] if curve else math.inf


def result_table(rows: Sequence[dict[str, Any]], strategies: Sequence[str], devices: int, num_tables: int) -> Table:
    """Return one row a strategy: what many devices found over what one found, medians over seeds, then over tables."""
    table = Table(title=f"{devices} devices beside one: best time after as many trials", box=SIMPLE_HEAD)
    for column in ("strategy", "trials", "one", "many", "many / one", "90 % of tables"):
        table.add_column(column, justify="left" if column == "strategy" else "right", no_wrap=True)
    for name in strategies:
        for at in sorted({at for row in rows for at in row["best"]}):
            one, many = (medians(rows, name, number, at) for number in (1, devices))
            ratios = [many[key] / one[key] for key in one if key in many and math.isfinite(one[key])]
            cells = [f"{quantile(list(some.values()), 0.5):.3f}" for some in (one, many)]
            cells += [f"{quantile(ratios, share):.3f}" for share in (0.5, 0.9)]
            table.add_row(name, str(at), *cells)
    table.caption = f"over the recorded optimum, which is 1; median over seeds, then over {num_tables} tables"
    return table


def medians(rows: Sequence[dict[str, Any]], name: str, devices: int, at: int) -> dict[tuple[str, str, str], float]:
    """Return the median over seeds of the best time of each table."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if (row["strategy"], row["devices"]) == (name, devices):
            found.setdefault((row["table"], row["device"], row["workload"]), []).append(row["best"][at])
    return {key: quantile(values, 0.5) for key, values in found.items()}


if __name__ == "__main__":
    sys.exit(main())
