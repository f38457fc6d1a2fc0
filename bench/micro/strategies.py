"""Milliseconds a trial that strategies spend on themselves: asking and telling, without building and running.

    python -m bench.micro.strategies [--hw rtx3090] [--workload resnet50:R2] [--trials 300] [--json FILE]

A trial's time is the model's, times a factor that depends on the point. Everything that is done once (libraries,
compilation, the ranking) happens before; the first question is left out.
"""

from __future__ import annotations

import argparse
import math
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import anatune
from anatune import api
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import STARTS, STRATEGIES, make_strategy
from bench.results import environment, write_json


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="rtx3090", help="a GPU or a CPU")
    parser.add_argument("--workload", default="resnet50:R2", help="a named layer")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--strategy", nargs="+", choices=tuple(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    model = api.model(anatune.layer(options.workload), api.hardware(options.hw))
    ranked = model.rank(16).points
    rows = []
    for name in options.strategy:
        for start in STARTS if name not in ("model", "random", "grid") else STARTS[:1]:
            run_one(name, start, model, ranked, 80)  # imports
            rows.append(run_one(name, start, model, ranked, options.trials))
    table = Table(title=f"{options.workload} on {options.hw}: ms a trial", box=SIMPLE_HEAD)
    for column in ("strategy", "start", "trials", "mean", "median", "longest"):
        table.add_column(column, justify="left" if column in ("strategy", "start") else "right")
    for row in rows:
        numbers = (f"{1e3 * row[key]:.2f}" for key in ("mean_s", "median_s", "longest_s"))
        table.add_row(row["strategy"], row["start"], str(row["trials"]), *numbers)
    Console().print(table)
    if options.json:
        settings = {"hw": options.hw, "workload": options.workload, "trials": options.trials}
        write_json(options.json, {"environment": environment(**settings), "rows": rows})


def run_one(name: str, start: str, model: Any, ranked: Any, trials: int) -> dict[str, Any]:
    """Search once, one question at a time; return the seconds of asking and telling."""
    strategy = make_strategy(name, model, start=start, ranked=ranked)
    spent: list[float] = []
    while len(spent) < trials:
        began = time.perf_counter()
        asked = strategy.ask(1)
        seconds = time.perf_counter() - began
        if not asked:
            break
        point = model.space.point_of(asked[0])
        factor = math.exp(0.3 * zlib.crc32(point.tobytes()) / 2**32)
        time_s = float(model.times(point[None, :])[0][0]) * factor
        measurement = Measurement(Outcome.OK, times_s=(time_s, 1.01 * time_s, 0.99 * time_s))
        trial = Trial(asked[0], measurement, number=len(spent))
        began = time.perf_counter()
        strategy.tell([trial])
        spent.append(seconds + time.perf_counter() - began)
    later = spent[1:] or [math.nan]
    return {
        "strategy": name, "start": start, "trials": len(spent), "mean_s": math.fsum(later) / len(later),
        "median_s": median(later), "longest_s": max(later),
    }  # fmt: skip


if __name__ == "__main__":
    main()
