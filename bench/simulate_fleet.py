"""How a session scales with devices: a real Dask scheduler, workers that sleep as long as others measured.

    python -m bench.simulate_fleet [FOLDER] [--devices 1 4 16 64 256] [--strategy NAME ...] [--json FILE]

Everything else is what `anatune.tune` does: planning, asking, builds and measurements as tasks, records in a SQLite
file. What is printed: docs/bench/simulate_fleet.md.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import os
import pstats
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

import anatune
from anatune.fleet.cluster.measurer import ClusterMeasurer
from anatune.search.base import STRATEGIES
from anatune.tuning.result import TuningProgress
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from bench.fleet_parts import PretendedFleet, Setting
from bench.replay.recorded_points import load_tables
from bench.results import environment, wide_console, write_json

MOST_IN_PROCESS = 64
"""Workers that one process holds."""
STEADY = 0.1, 0.9
"""Answers between which trials a second are counted: without the start, and the end, when nothing new is asked."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="recorded tables whose times are slept, in proportion")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 4, 16, 64, 256], metavar="N")
    parser.add_argument("--strategy", nargs="+", choices=tuple(STRATEGIES), default=["model"], metavar="NAME")
    parser.add_argument("--trials", type=int, metavar="N", help="of a session; by default 24 a device, at most 1500")
    parser.add_argument("--trial-s", type=float, default=0.5, help="mean time of a trial on its device")
    parser.add_argument("--build-s", type=float, default=0.1)
    parser.add_argument("--image-bytes", type=int, default=50_000, help="size of a built kernel")
    parser.add_argument("--hw", default="xeon_gold_6230r")
    parser.add_argument("--workload", default="resnet50:R2", help="a named layer")
    parser.add_argument("--records", default=None, help="file or URL; by default a new SQLite file for each session")
    parser.add_argument("--cores", help="cores of the scheduler and the workers, 0,2-3; the session has the others")
    parser.add_argument("--without-dask", action="store_true", help="devices of this process instead of a scheduler's")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write a profile of the session's main thread")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if own := os.sched_getaffinity(0) - core_set(options.cores):
        os.sched_setaffinity(0, own)
    run_s = times_to_sleep(options.folder, options.trial_s)
    rows = []
    table = Table(title=f"trials of {options.trial_s:g} s", box=SIMPLE_HEAD)
    for column in ("strategy", "devices", "trials", "trials a s", "of linear", "session ms", "scheduler", "workers"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for name in options.strategy:
        for devices in options.devices:
            row = run_one(name, devices, run_s, options)
            rows.append(row)
            cells = f"{row['trials_per_s']:.1f}", f"{row['of_linear']:.3f}"
            costs = (f"{1e3 * row[part]:.2f}" for part in ("session_s", "scheduler_s", "workers_s"))
            table.add_row(name, str(devices), str(row["trials"]), *cells, *costs)
            print(row, file=sys.stderr, flush=True)
    table.caption = "last three columns: processor time a trial, ms"
    wide_console(100).print(table)
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("json", "profile")}
        write_json(options.json, {"environment": environment(**{k: str(v) for k, v in settings.items()}), "rows": rows})


def times_to_sleep(folder: Path | None, mean_s: float) -> list[float]:
    """Return how long trials take: in proportion to what one device of FOLDER recorded, else all alike.

    A trial is half what does not depend on the kernel, and runs at most five times the median kernel.
    """
    if folder is None:
        return [mean_s]
    recorded = next(iter(load_tables(folder, [])))
    times = recorded.time_s[np.isfinite(recorded.time_s)]
    times = np.minimum(times, 5.0 * np.median(times))
    values: list[float] = (mean_s * (0.5 + 0.5 * times / times.mean())).tolist()
    return values


def run_one(name: str, devices: int, run_s: list[float], options: argparse.Namespace) -> dict[str, Any]:
    """Tune once; return what it cost."""
    trials = options.trials or min(24 * devices, 1500)
    setting = Setting([], options.hw, run_s, options.build_s, options.image_bytes)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        parts = []
        if options.without_dask:
            names = [f"device {number}" for number in range(devices)]
            fleet = msgspec.structs.replace(setting, names=names)
            scheduler = Part()
            row = session(name, trials, fleet, Path(folder), options)
        else:
            scheduler = stack.enter_context(started(["scheduler"], options.cores))
            for first in range(0, devices, MOST_IN_PROCESS):
                names = [f"device {number}" for number in range(first, min(devices, first + MOST_IN_PROCESS))]
                path = Path(folder) / f"workers-{first}.json"
                path.write_bytes(msgspec.json.encode(msgspec.structs.replace(setting, names=names)))
                parts.append(stack.enter_context(started(["workers", scheduler.said, str(path)], options.cores)))
            row = session(name, trials, scheduler.said, Path(folder), options)
    expected = statistics.mean(run_s)
    return {
        "strategy": name, "devices": devices, "trials": trials, **row,
        "of_linear": row["trials_per_s"] * expected / devices,
        "scheduler_s": scheduler.used_s / trials, "workers_s": sum(part.used_s for part in parts) / trials,
    }  # fmt: skip


def session(
    name: str, trials: int, fleet: str | Setting, folder: Path, options: argparse.Namespace
) -> dict[str, float]:
    """Run one session; return its speed and its processor time a trial, without what comes before the first answer.

    Its devices are those of a scheduler, or all in this process.
    """
    told: list[tuple[float, float]] = []

    def progress(one: TuningProgress) -> None:
        if one.stage == "measure":
            told.append((time.perf_counter(), time.process_time()))

    records = options.records or folder / "records.db"
    address = fleet if isinstance(fleet, str) else None
    settings = TuningSettings(
        trials=trials, strategy=name, records=records, cluster=address, threads=1, reuse=False, template="cpu"
    )
    stand_ins = StandIns()
    if isinstance(fleet, Setting):
        pretended = functools.partial(ClusterMeasurer, connect=functools.partial(PretendedFleet, setting=fleet))
        stand_ins = StandIns(host=anatune.hardware(options.hw), measurer=pretended)
    tuning = TuningSession(anatune.layer(options.workload), options.hw, settings, progress, stand_ins)
    profile = cProfile.Profile() if options.profile else None
    result = profile.runcall(tuning.run) if profile else tuning.run()
    if profile:
        with options.profile.open("w") as file:
            pstats.Stats(profile, stream=file).sort_stats("cumulative").print_stats(70)
    low, high = (int(share * (len(told) - 1)) for share in STEADY)
    measured = sum(trial.measurement.time_s is not None for trial in result.trials)
    return {
        "measured": measured,
        "trials_per_s": (high - low) / (told[high][0] - told[low][0]),
        "session_s": (told[-1][1] - told[0][1]) / max(len(told) - 1, 1),
        "wall_s": told[-1][0] - told[0][0],
    }


class Part:
    """A process of `bench.fleet_parts`: what it said first, and the processor time that it used, s."""

    def __init__(self) -> None:
        self.said, self.used_s = "", 0.0


@contextlib.contextmanager
def started(words: Sequence[str], cores: str | None) -> Iterator[Part]:
    """Run a part, on the cores that are named."""
    chosen = core_set(cores)

    def placed() -> None:
        if chosen:
            os.sched_setaffinity(0, chosen)

    command = [sys.executable, "-m", "bench.fleet_parts", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=placed)
    assert process.stdout is not None
    part = Part()
    try:
        part.said = process.stdout.readline().strip()
        if not part.said:
            raise SystemExit(f"bench.simulate_fleet: {' '.join(words[:1])} did not start")
        yield part
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            lines = process.communicate(timeout=60)[0].split()
            part.used_s = float(lines[-1]) if lines else 0.0
        process.kill()


def core_set(text: str | None) -> set[int]:
    """Return the cores that a text like 0,2-3 means."""
    found: set[int] = set()
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


if __name__ == "__main__":
    sys.exit(main())
