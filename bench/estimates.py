"""How long sessions take beside what was told beforehand, one after the other on a machine that has not tuned yet.

    python -m bench.estimates [--trials 24] [--only PATTERN ...] [--costs FOLDER] [--json FILE]

Each session knows what those before it took. What is printed: docs/bench/estimates.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

import anatune
from anatune.core.workload.text import parse_workload
from anatune.errors import AnatuneError
from anatune.report.tuning import span_text
from anatune.report.units import duration
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from bench.results import environment, matches, wide_console, write_json

__all__ = ["WORKLOADS", "one_session"]

WORKLOADS = (
    "matmul 256x512x512",
    "conv2d 1x64x28x28 64x64x3x3 --padding 1 --layout NHWC",
    "matmul 64x1024x768",
    "depthwise_conv2d 1x96x28x28 96x1x3x3 --padding 1",
    "matmul 1024x1024x1024",
    "conv2d 1x128x14x14 256x128x1x1 --layout NHWC",
    "matmul 16x4096x1024",
    "conv2d 1x32x56x56 64x32x3x3 --stride 2 --padding 1 --layout NHWC",
)
"""Products and convolutions of 0.05 to 12 ms on one core, in an order that mixes them."""


def one_session(text: str, trials: int, costs: Path) -> dict[str, Any]:
    """Tune a workload on one core and return what was told, and what it took."""
    settings = TuningSettings(trials=trials, threads=1)
    stand_ins = StandIns(costs=costs)
    result = TuningSession(parse_workload(text), "host", settings, stand_ins=stand_ins).run()
    estimate, took_s = result.estimate, result.measure_s
    assert estimate is not None
    assert estimate.seconds is not None
    assert took_s is not None
    best_s = None if result.best_trial is None else result.best_trial.measurement.time_s
    first_s = None if result.plan_first is None else result.plan_first.measurement.time_s
    return {
        "workload": text,
        "trials": len(result.trials),
        "told": span_text(f"{estimate.trials} trials", estimate),
        "basis": estimate.basis,
        "sessions": estimate.sessions,
        "seconds": estimate.seconds,
        "low_s": estimate.low_s,
        "high_s": estimate.high_s,
        "took_s": took_s,
        "error": took_s / estimate.seconds - 1.0,
        "most_gain": estimate.most_gain,
        "gain": None if not best_s or not first_s else 1.0 - best_s / first_s,
        "share_of_bound": result.share_of_bound,
        "predicted_over_measured": None if not first_s else (estimate.predicted_s or math.nan) / first_s,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Told and taken", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("workload", "trials", "told", "range", "took", "error", "most to win", "won", "of bound"):
        table.add_column(heading, justify="left" if heading == "workload" else "right", no_wrap=True)
    for row in rows:
        inside = row["low_s"] <= row["took_s"] <= row["high_s"]
        table.add_row(
            row["workload"],
            str(row["trials"]),
            duration(row["seconds"]),
            f"{row['low_s']:.0f} to {row['high_s']:.0f} s{'' if inside else ' (!)'}",
            duration(row["took_s"]),
            f"{row['error']:+.0%}",
            *("-" if row[name] is None else f"{row[name]:.0%}" for name in ("most_gain", "gain", "share_of_bound")),
        )
    known = [abs(row["error"]) for row in rows if row["basis"] == "machine"]
    inside = sum(row["low_s"] <= row["took_s"] <= row["high_s"] for row in rows)
    table.caption = f"{inside} of {len(rows)} within the range; error: took over told"
    if known:
        table.caption += f"; its median once the machine is known {statistics.median(known):.0%}, most {max(known):.0%}"
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=24, help="of each session")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="only these workloads (patterns or beginnings)")
    parser.add_argument("--costs", type=Path, metavar="FOLDER", help="what earlier calls of this bench took")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every session")
    options = parser.parse_args(arguments)
    chosen = [text for text in WORKLOADS if matches(text, options.only)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for text in chosen:
                rows.append(one_session(text, options.trials, options.costs or Path(scratch)))
        except AnatuneError as error:
            raise SystemExit(f"bench.estimates: {error}") from None
    wide_console(150).print(_table(rows))
    if options.json:
        settings = {"trials": options.trials, "hardware": anatune.hardware("host").model}
        write_json(options.json, {"environment": environment(**settings), "sessions": rows})


if __name__ == "__main__":
    sys.exit(main())
