"""anatune's schedules for the CPU benchmark: the plan's first choice, and the best after 16, 32 and 64 trials.

They are kept in a JSON file: a layer that is in it is not tuned again, so that a run that was cut off goes on, and the
same schedules can be timed again later.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import anatune
from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome, Trial
from anatune.errors import AnatuneError
from anatune.files import replace_file
from bench.layers import Layer

__all__ = ["BUDGETS", "Tuned", "TunedFile", "best_after", "tune_layer"]

BUDGETS = (16, 32, 64)


class Tuned(msgspec.Struct):
    """What anatune says of one layer.

    Attributes
    ----------
    layer, workload : str
        Its name, and what it is.
    plan : Schedule or None
        The first choice without any measurement.
    plan_s : float
        Wall time of planning.
    after : dict of str to Schedule
        The best after so many trials.
    tune_s : float
        Wall time of tuning, everything included.
    num_trials, num_failed : int
        Trials that were made; those with another outcome than ok.
    notes : list of str
        What went wrong.
    """

    layer: str
    workload: str
    plan: Schedule | None = None
    plan_s: float = 0.0
    after: dict[str, Schedule] = {}
    tune_s: float = 0.0
    num_trials: int = 0
    num_failed: int = 0
    notes: list[str] = []

    @property
    def schedules(self) -> dict[str, Schedule]:
        """What is to be timed, by name: "plan", "16", ...; equal schedules come up each time."""
        first = {} if self.plan is None else {"plan": self.plan}
        return {**first, **self.after}


class TunedFile(msgspec.Struct):
    """The schedules of all layers, for one hardware spec, number of threads, layout of convolutions and dtype."""

    hardware: str
    threads: int
    layout: str
    dtype: str = "float32"
    layers: dict[str, Tuned] = {}

    @staticmethod
    def open(path: Path | None, hardware: str, threads: int, layout: str, dtype: str = "float32") -> TunedFile:
        """Return the file's contents, or an empty one.

        Raises
        ------
        SystemExit
            The file is of another machine, number of threads, layout or dtype, or damaged.
        """
        if path is None or not path.exists():
            return TunedFile(hardware, threads, layout, dtype)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=TunedFile)
        except msgspec.MsgspecError as error:
            raise SystemExit(f"{path}: {error}; remove it or name another file") from error
        if (found.hardware, found.threads, found.layout, found.dtype) != (hardware, threads, layout, dtype):
            raise SystemExit(
                f"{path} is of {found.hardware}, {found.threads} thread(s), {found.layout}, {found.dtype}; asked for "
                f"{hardware}, {threads}, {layout}, {dtype}: name another file with --schedules"
            )
        return found

    def save(self, path: Path | None) -> None:
        """Write the file anew."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def _cost(trial: Trial) -> float | None:
    """Return what ranks a trial: its time over the reference kernel's beside it, else its time; None if it failed."""
    measured = trial.measurement
    return measured.relative if measured.relative is not None else measured.time_s


def best_after(trials: Iterable[Trial], budget: int) -> Schedule | None:
    """Return the best schedule among the first `budget` trials; None if all failed.

    Times count relative to the reference kernel's if every trial that worked has that.
    """
    worked = [trial for trial in list(trials)[:budget] if trial.measurement.outcome is Outcome.OK]
    worked = [trial for trial in worked if trial.measurement.time_s is not None]
    if not worked:
        return None
    if all(trial.measurement.relative is not None for trial in worked):
        return min(worked, key=lambda trial: trial.measurement.relative or 0.0).schedule
    return min(worked, key=lambda trial: trial.measurement.time_s or 0.0).schedule


def _schedule_of(best: Any) -> Schedule | None:
    """Return the schedule of `best`, a schedule or a trial."""
    return best if isinstance(best, Schedule) else getattr(best, "schedule", None)


def tune_layer(
    layer: Layer,
    hardware: Any,
    *,
    threads: int,
    layout: str,
    trials: int,
    records: Path,
    seed: int = 0,
    dtype: str = "float32",
    budgets: Sequence[int] = BUDGETS,
    **limits: str,
) -> Tuned:
    """Plan and tune one layer, with `limits` (template, accuracy); a failure becomes a note."""
    workload = layer.workload(layout, dtype)
    tuned = Tuned(layer.name, workload.describe(), after={}, notes=[])
    try:
        started = time.perf_counter()
        plan = anatune.plan(workload, hardware, **_accepted(anatune.plan, threads=threads, **limits))
        tuned.plan, tuned.plan_s = _schedule_of(plan.best), time.perf_counter() - started
    except AnatuneError as error:
        tuned.notes.append(f"{layer.name} plan: {error}")
    if trials <= 0:
        return tuned
    try:
        options = _accepted(anatune.tune, threads=threads, seed=seed, **limits)
        started = time.perf_counter()
        result = anatune.tune(workload, hardware, trials=trials, records=str(records), **options)
        tuned.tune_s = time.perf_counter() - started
    except (AnatuneError, AttributeError) as error:  # AttributeError: a version of anatune without tune()
        tuned.notes.append(f"{layer.name} tune: {error}")
        return tuned
    done = list(result.trials)
    tuned.num_trials = len(done)
    tuned.num_failed = sum(trial.measurement.outcome is not Outcome.OK for trial in done)
    for budget in budgets:
        if budget > trials:
            continue
        best = best_after(done, budget)
        if best is not None:  # after all trials the session's own answer: it measured the best ones again
            tuned.after[str(budget)] = (_schedule_of(result.best) or best) if budget >= len(done) else best
    if not tuned.after:
        tuned.notes.append(f"{layer.name} tune: none of {len(done)} trials ran")
    return tuned


def _accepted(function: Any, **options: Any) -> dict[str, Any]:
    """Return those of `options` that `function` takes."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}
