"""What a session gains by what its record file holds of other workloads: recorded tables, some of them known.

    python -m bench.replay.learning FOLDER [--others 20] [--draws 6] [--seed 0] [--noise 0.01] [--trials 200]
                                    [--json FILE]

Of each device and tuner so many workloads are drawn and taken as measured, all their rows as records; every other
workload is tuned with them and from nothing. What is printed: docs/bench/replay.learning.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from anatune.core.trial import Measurement, Outcome, Trial
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.cross_fit import MeasuredPoints, fit_shrunk_residual
from anatune.model.learned.residual import ResidualModel
from anatune.search.base import DEFAULT_STRATEGY, make_strategy
from anatune.tuning.reuse import OPTIONS
from bench.replay.corrections import KERNELS
from bench.replay.recorded_points import RecordedTable, load_tables
from bench.results import environment, matches, progress_bar, wide_console, write_json

WITHIN = 1.02
"""Best time over the recorded optimum that counts as found."""
ALIKE = 1.02
"""Best times that differ by less than this are as good."""
CLEARLY = 2.0
"""Standard errors by which two means differ beyond noise. With two or three searches each this happens by chance, too:
how often, a search from nothing that is compared with itself says."""
OTHER_NOISE = 1000
"""Added to the seed of a search that is compared with itself."""


class Search(NamedTuple):
    """One search."""

    trials: int
    """Until within `WITHIN`; all of them, where it was not reached."""
    best: float
    """Best time over the recorded optimum after a quarter of the trials."""


class Outcomes(msgspec.Struct):
    """All searches of one table."""

    table: str
    device: str
    workload_id: str
    nothing: list[Search] = []
    again: list[Search] = []
    """From nothing once more, with other noise."""
    records: list[Search] = []
    shares: list[float] = []
    """Share of the correction that was used, of each draw."""

    def slower(self, arm: str = "records") -> float:
        """Return the trials of an arm less those from nothing, over the standard error of that."""
        pairs = [np.array([one.trials for one in own], dtype=float) for own in (getattr(self, arm), self.nothing)]
        error = math.sqrt(sum(own.var(ddof=1) / len(own) for own in pairs)) if len(pairs[0]) > 1 else math.inf
        return float(pairs[0].mean() - pairs[1].mean()) / max(error, 0.5)

    def mean(self, arm: str) -> float:
        """Return the mean number of trials of an arm."""
        return float(np.mean([one.trials for one in getattr(self, arm)]))

    def best(self, arm: str) -> float:
        """Return the geometric mean of the best times of an arm."""
        return float(np.exp(np.mean([math.log(one.best) for one in getattr(self, arm)])))


def search(recorded: RecordedTable, residual: ResidualModel | None, trials: int, noise: float, seed: int) -> Search:
    """Tune one table; a session measures the plan's first choice before it asks the strategy."""
    model = recorded.model if residual is None else CorrectedModel(recorded.model, residual)
    table = recorded.table(model)
    rows = {point.tobytes(): row for row, point in enumerate(table.space.points)}
    measured_s = recorded.time_s * np.exp(np.random.default_rng(seed).normal(0.0, noise, len(recorded.time_s)))
    best_s, optimum_s, at_quarter, found = math.inf, float(np.nanmin(recorded.time_s)), math.inf, trials
    strategy = make_strategy(DEFAULT_STRATEGY, table, seed=seed)
    first = [table.space.schedule_of(recorded.table().rank(1).points[0])]
    for number in range(trials):
        asked = first if number == 0 else strategy.ask(1)
        if not asked:
            break
        row = rows[table.space.point_of(asked[0]).tobytes()]
        if math.isfinite(recorded.time_s[row]):
            measurement = Measurement(Outcome.OK, times_s=(float(measured_s[row]),))
            best_s = min(best_s, float(recorded.time_s[row]))
        else:
            measurement = Measurement(Outcome.RUN_ERROR, "recorded as failed")
        if best_s <= WITHIN * optimum_s and found == trials:
            found = number + 1
        if number < trials // 4:
            at_quarter = best_s
        elif found < trials:
            break
        strategy.tell([Trial(asked[0], measurement, number=number)])
    return Search(found, at_quarter / optimum_s)


def measured_of(recorded: RecordedTable) -> MeasuredPoints:
    """Return what is learned of a table."""
    group = recorded.group
    table = recorded.model.feature_table(recorded.points)
    return MeasuredPoints(group.workload_id, group.device, table, recorded.time_s)


def replay(tables: Sequence[RecordedTable], options: argparse.Namespace) -> list[Outcomes]:
    """Return the searches of every table of whose device and tuner enough other workloads were measured."""
    families: dict[tuple[str, str], list[RecordedTable]] = {}
    for one in tables:
        families.setdefault((KERNELS[one.group.kind], one.group.device), []).append(one)
    kept = [family for family in families.values() if len(family) > options.others]
    found: list[Outcomes] = []
    with progress_bar() as progress:
        task = progress.add_task("replay", total=options.draws * len(kept))
        for family in kept:
            names = [(one.group.table, one.group.device, one.group.workload_id) for one in family]
            own = [Outcomes(*name) for name in names]
            for draw in range(options.seed, options.seed + options.draws):
                chosen = np.random.default_rng(draw).permutation(len(family))[: options.others].tolist()
                known = {family[at].group.workload_id for at in chosen}
                residual = fit_shrunk_residual([measured_of(family[at]) for at in sorted(chosen)], OPTIONS)
                for one, outcomes in zip(family, own, strict=True):
                    if one.group.workload_id not in known:
                        how = options.trials, options.noise, draw
                        outcomes.nothing.append(search(one, None, *how))
                        other = options.trials, options.noise, draw + OTHER_NOISE
                        outcomes.again.append(search(one, None, *other))
                        outcomes.records.append(
                            outcomes.nothing[-1] if residual is None else search(one, residual, *how)
                        )
                        outcomes.shares.append(0.0 if residual is None else residual.options.share)
                progress.advance(task)
            found += [outcomes for outcomes in own if outcomes.nothing]
    return found


def result_table(found: Sequence[Outcomes], trials: int) -> Table:
    """Return a row for each table and device, and one for all."""
    table = Table(title=f"trials until within {100 * (WITHIN - 1):.0f} % (at most {trials})", box=SIMPLE_HEAD)
    for name in (
        "table",
        "workloads",
        "share",
        "median",
        "mean",
        "ratio",
        "slower",
        "faster",
        "itself",
        "worse",
        "better",
    ):
        table.add_column(name, justify="left" if name == "table" else "right", no_wrap=True)
    parts: dict[str, list[Outcomes]] = {}
    for one in found:
        parts.setdefault(f"{one.table}, {one.device}", []).append(one)
    for name, own in [*parts.items(), ("all", list(found))]:
        nothing, records = (np.array([one.mean(arm) for one in own]) for arm in ("nothing", "records"))
        gap = np.array([one.best("records") / one.best("nothing") for one in own])
        clear = np.array([one.slower() for one in own])
        itself = np.array([one.slower("again") for one in own])
        shares = np.concatenate([one.shares for one in own])
        kinds = clear > CLEARLY, clear < -CLEARLY, itself > CLEARLY, gap > ALIKE, gap < 1.0 / ALIKE
        table.add_row(
            name, str(len(own)), f"{shares.mean():.2f}", f"{np.median(nothing):.0f} > {np.median(records):.0f}",
            f"{nothing.mean():.1f} > {records.mean():.1f}", f"{np.exp(np.log(records / nothing).mean()):.2f}",
            *(f"{100 * those.mean():.0f} %" for those in kinds),
        )  # fmt: skip
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of recorded tables")
    parser.add_argument("--others", type=int, default=20, metavar="N", help="workloads that are measured already")
    parser.add_argument("--draws", type=int, default=6, metavar="N", help="draws of them, each with noise of its own")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first draw; the next ones follow it")
    parser.add_argument("--noise", type=float, default=0.01, help="standard deviation of a measured time, a share")
    parser.add_argument("--trials", type=int, default=200, help="trials of a search")
    parser.add_argument("--device", nargs="+", metavar="D", help="only these devices (patterns)")
    parser.add_argument("--table", nargs="+", metavar="T", help="only these tables (patterns or beginnings)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every search")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    notes: list[str] = []
    tables = [
        one
        for one in load_tables(options.folder, notes, all_knobs=True)
        if matches(one.group.table, options.table) and matches(one.group.device, options.device)
    ]
    found = replay(tables, options)
    if not found:
        raise SystemExit(
            f"bench.replay.learning: no device in {options.folder} has more than {options.others} workloads"
        )
    console = wide_console(160)
    console.print(result_table(found, options.trials))
    console.print(f"{time.perf_counter() - started:.0f} s")
    if options.json:
        told = {name: value for name, value in vars(options).items() if isinstance(value, int | float)}
        write_json(options.json, {"environment": environment(**told), "tables": msgspec.to_builtins(found)})


if __name__ == "__main__":
    sys.exit(main())
