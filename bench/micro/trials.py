"""Seconds a trial of `anatune tune` on this CPU, and what they are spent on.

    python -m bench.micro.trials [--layers M0,R1,R5] [--trials 32] [--rounds 1] [--against FOLDER] [--hw host]
                                 [--json FILE]

Every session is a process of its own; with ``--against`` another checkout's sessions take turns with this one's.

Wall-clock seconds, medians over rounds: "total" of `tune`, "first" until the first trial is recorded (planning,
starting processes), "a trial" from the first to the last over their number, "build" and "run" the means of what
processes report, "ask" in the strategy (both directions). "noise" is what timing is worth: half the range of a kernel's
samples over the reference kernel's, in parts of their median; the median over trials. CPU seconds, children included,
means over some of the session's schedules built again in one process: "program", "read" (TVMScript), "compile" (TVM and
LLVM), "link" (object and library).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PHASES = {"lower": "program", "parse_program": "read", "compile_module": "compile", "link_library": "link"}
COLUMNS = ("total", "first", "a trial", "build", "run", "ask", "noise", "program", "read", "compile", "link")
_BUILT = 6
"""Schedules of a session that are built again."""


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that ended."""
    times = os.times()
    return sum(times[:4])


def watch(module: Any, name: str, spent: dict[str, float], label: str, clock: Callable[[], float]) -> None:
    """Have a function of a module add what it takes to `spent`."""
    function = getattr(module, name)

    def timed(*words: Any, **named: Any) -> Any:
        started = clock()
        try:
            return function(*words, **named)
        finally:
            spent[label] += clock() - started

    setattr(module, name, timed)


def noise(measurement: Any) -> float:
    """Return half the range of a measurement's relative samples over their median."""
    ratios: list[float] = [
        own / base for own, base in zip(measurement.times_s, measurement.reference_times_s, strict=True)
    ]
    return (max(ratios) - min(ratios)) / 2 / statistics.median(ratios)


def one_session(layer: str, trials: int, hw: str) -> dict[str, float]:
    """Tune one layer and return the columns, in seconds, and "kernel", the median kernel's."""
    import anatune
    from anatune.codegen.cpu import lower
    from anatune.tuning.questions import Questions
    from bench.cpu.layers import LAYERS

    spent: dict[str, float] = defaultdict(float)
    watch(Questions, "next", spent, "ask", time.perf_counter)
    watch(Questions, "tell", spent, "ask", time.perf_counter)
    ends: list[float] = []

    def progress(now: Any) -> None:
        if now.stage == "measure":
            ends.append(time.perf_counter())

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = anatune.tune(
            LAYERS[layer].workload(), hw, trials=trials, threads=1, records=f"{folder}/r.sqlite", progress=progress
        )
        ended = time.perf_counter()
        done = [trial.measurement for trial in result.trials]
        answer = {
            "total": ended - started,
            "first": ends[0] - started,
            "a trial": (ends[-1] - ends[0]) / max(1, len(ends) - 1),
            "build": statistics.fmean(one.build_s for one in done),
            "run": statistics.fmean(one.run_s for one in done),
            "ask": spent["ask"] / len(done),
            "kernel": statistics.median(one.time_s for one in done if one.time_s is not None),
            "best": (result.best_trial and result.best_trial.measurement.time_s) or 0.0,
        }
        answer["noise"] = statistics.median(noise(one) for one in done if len(one.times_s) > 1)
        step = max(1, len(result.trials) // _BUILT)
        chosen = [trial.schedule for trial in result.trials[::step]][:_BUILT]
        lower.build_schedule(chosen[0], Path(folder))  # imports
        phases: dict[str, float] = defaultdict(float)
        for name, label in PHASES.items():
            watch(lower, name, phases, label, cpu_s)
        for number, schedule in enumerate(chosen):
            place = Path(folder) / str(number)
            place.mkdir()
            lower.build_schedule(schedule, place)
    phases["program"] -= phases["read"]  # which is part of it
    return {**answer, **{label: phases[label] / len(chosen) for label in PHASES.values()}}


def session_of(checkout: Path, layer: str, trials: int, hw: str) -> dict[str, float]:
    """Run `one_session` with the package of a checkout.

    Raises
    ------
    SystemExit
        It failed.
    """
    command = [sys.executable, __file__, "--one", "--layers", layer, "--trials", str(trials), "--hw", hw]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"bench.micro.trials: {layer} with {checkout} failed:\n{done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def show(results: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Print a row a layer and checkout, and the geometric means of the ratios to the first."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Seconds of a trial", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("layer", "checkout", "kernel ms", *COLUMNS):
        table.add_column(heading, justify="left" if heading in ("layer", "checkout") else "right", no_wrap=True)
    ratios: dict[str, list[float]] = defaultdict(list)
    for layer, checkouts in results.items():
        base: float | None = None
        for name, rounds in checkouts.items():
            middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
            cells = [f"{middle[column]:.1f}" if middle[column] >= 10 else f"{middle[column]:.3f}" for column in COLUMNS]
            table.add_row(layer, name, f"{1e3 * middle['kernel']:.2f}", *cells)
            base = base or middle["a trial"]
            ratios[name].append(middle["a trial"] / base)
    console = Console(width=160)
    console.print(table)
    for name, values in list(ratios.items())[1:]:
        first = next(iter(ratios))
        console.print(f"a trial, {name} / {first}: {statistics.geometric_mean(values):.3f} (geometric mean)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", default="M0,M2,R1,R3,R5,R8,R10,Y3")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--hw", default="host")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, which goes first")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    layers = options.layers.split(",")
    if options.one:
        print(json.dumps(one_session(layers[0], options.trials, options.hw)))
        return
    from bench.results import environment, write_json

    here = Path(__file__).resolve().parents[2]
    checkouts = {"before": options.against.resolve()} if options.against else {}
    checkouts["now"] = here
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for layer in layers:
        results[layer] = {name: [] for name in checkouts}
        for _ in range(options.rounds):
            for name, checkout in checkouts.items():
                results[layer][name].append(session_of(checkout, layer, options.trials, options.hw))
    show(results)
    if options.json:
        write_json(options.json, {"environment": environment(hw=options.hw, seed=None), "sessions": results})


if __name__ == "__main__":
    main()
