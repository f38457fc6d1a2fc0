"""What tuning returns: the trials, the best one, how sure that is, and how far a session has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.show import duration, html_table
from anatune.core.trial import Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.errors import RunError
from anatune.measure.place import WorkerState
from anatune.model.bound import TimeBound
from anatune.tuning.cost import CostEstimate
from anatune.tuning.ending import Ended, FinalComparison, equalise_speed, rank_trials, time_beside, time_of_best

MOST_SHOWN = 20
"""Trials that a notebook shows of a session, fastest first."""
_AS_THEY_ARE = (
    *("correction", "num_resumed", "num_reused", "records", "session", "elapsed_s", "bound", "share_of_bound", "ended"),
    *("learned_trials", "learned_workloads"),
    *("stop_at", "patience", "estimate", "measure_s", "energy_j", "energy_of", "templates", "accuracy"),
)
"""What a result's JSON has under the names of its attributes."""
_EARLIER = "measured in an earlier call, and is not there now"


class TuningProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a session is.

    Attributes
    ----------
    stage : str
        "plan": ranking; "start": `estimate` is there, nothing is measured yet; "measure": `trial` is done; "compare":
        the contenders are measured again.
    done, total : int
        Trials that are done (resumed ones included), trials asked for.
    failures : int
        Trials without a time.
    trial : Trial or None
        The last one.
    best : Trial or None
        The best one so far.
    elapsed_s, left_s : float
        Wall time since this call began; an estimate of what is left.
    workers : tuple of WorkerState
        Who measures elsewhere; empty where this machine does.
    trials_per_s : float or None
        How fast this call goes, as `left_s` is estimated.
    estimate : CostEstimate or None
        Told before the session began to measure: how long it will take and what it can win.
    first : Trial or None
        The first one that ran: the plan's first choice, unless that failed. Others are told by their speed over its,
        which is what counts: rates drift with the machine's.
    """

    stage: Literal["plan", "start", "measure", "compare"]
    done: int
    total: int
    failures: int = 0
    trial: Trial | None = None
    best: Trial | None = None
    elapsed_s: float = 0.0
    left_s: float | None = None
    workers: tuple[WorkerState, ...] = ()
    trials_per_s: float | None = None
    estimate: CostEstimate | None = None
    first: Trial | None = None

    @property
    def best_s(self) -> float | None:
        """Time of the best so far at the machine's speed beside the first trial that ran, s; it never rises."""
        if self.best is None or self.first is None:
            return None
        return time_beside(self.best.measurement, self.first.measurement)


class WorkerShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one machine did for a session.

    Attributes
    ----------
    worker : WorkerState
        Its trials and failures are those of the whole session, resumed ones included; its name is empty for the machine
        of the session itself.
    best : Trial or None
        Its fastest.
    """

    worker: WorkerState
    best: Trial | None = None


class ModelProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the tuning of a model is.

    Attributes
    ----------
    kernel : str
        What is tuned now, in the words of the command line.
    done, total : int
        Trials that are done (recorded ones included), trials asked for.
    predicted_s : float
        Of all kernels in one run of the model, by the analytical model alone.
    measured_s : float
        The same with the best measured times where there are some.
    elapsed_s, left_s : float
        Wall time since tuning began; an estimate of what is left.
    workers, trials_per_s
        As `TuningProgress` has them.
    bound : TimeBound or None
        Of all kernels in one run of the model: what no schedules undercut; kernels that are not tuned as predicted.
    """

    kernel: str
    done: int
    total: int
    predicted_s: float
    measured_s: float
    elapsed_s: float
    left_s: float | None = None
    workers: tuple[WorkerState, ...] = ()
    trials_per_s: float | None = None
    bound: TimeBound | None = None


@dataclass(frozen=True, repr=False)
class TuningResult:
    """What a tuning session found.

    Attributes
    ----------
    workload, hardware
        What was tuned; the device as given.
    threads : int
        Threads that kernels ran with.
    strategy, seed
        Who asked.
    trials : list of Trial
        In the order in which they were measured; the plan's own first choice is among them.
    best_trial : Trial or None
        The fastest: the winner of `compare` where there is one. None if nothing ran.
    plan_first : Trial or None
        The plan's own first choice, measured first; None if interrupted before, or with ``start="paper"``.
    compare : Comparison or None
        The best against the plan's first choice and runners-up; None if there was nothing to compare.
    correction : str or None
        Learned correction of the ranking that the session started from; None if there was none.
    num_resumed : int
        Trials that were there already.
    num_reused : int
        Recorded schedules that the session began with, after the plan's first choice.
    learned_trials, learned_workloads : int
        Recorded trials of the device, and their workloads, that the strategy's model learned from; 0 where that does
        not help.
    records, session : str or None
        File and session of the records, if they were kept.
    elapsed_s : float
        Wall time of this call.
    templates : tuple of str
        What schedules could look like, the device's default first.
    accuracy : str
        What arithmetic was admitted.
    workers : tuple of WorkerState
        Who measured elsewhere; empty where this machine did.
    bound : TimeBound or None
        Time that no schedule undercuts, from the device's spec alone; None if interrupted before.
    ended : str
        Why the session ended: "trials" (all that were asked for), "stop_at", "patience", "time_limit", "space" (no
        more schedules) or "interrupted".
    stop_at, patience : float, int or None
        As `tune` took them.
    estimate : CostEstimate or None
        What was told before it began to measure; None if interrupted before.
    measure_s : float or None
        What that was about: wall time from there to the end.
    energy_j : float or None
        Joules of this call in all, by the counters of `energy_of`: of whole devices, whoever kept them busy. None where
        nothing counts, or others build or measure. What a run takes has each trial (`Measurement.energy_j`).
    energy_of : tuple of str
        What was counted: "package-0", "gpu 00000000:17:00.0".
    """

    workload: Workload
    hardware: CpuSpec | GpuSpec
    threads: int
    strategy: str
    seed: int
    trials: list[Trial]
    best_trial: Trial | None
    plan_first: Trial | None
    compare: FinalComparison | None = None
    correction: str | None = None
    num_resumed: int = 0
    num_reused: int = 0
    learned_trials: int = 0
    learned_workloads: int = 0
    records: str | None = None
    session: str | None = None
    elapsed_s: float = 0.0
    templates: tuple[str, ...] = ()
    accuracy: str = STANDARD
    workers: tuple[WorkerState, ...] = ()
    bound: TimeBound | None = None
    ended: Ended = "trials"
    stop_at: float | None = None
    patience: int | None = None
    estimate: CostEstimate | None = None
    measure_s: float | None = None
    energy_j: float | None = None
    energy_of: tuple[str, ...] = ()

    @property
    def best_s(self) -> float | None:
        """Time of the best at the machine's speed beside the first trial that ran, s; None if nothing ran.

        After a final comparison it is the time of the plan's first choice over the speedup.
        """
        return time_of_best(self._equalise(self.best_trial), self._equalise(self.plan_first), self.compare)

    def equalise_trials(self) -> list[Trial]:
        """Return the trials with times at the machine's speed beside the first that ran: see `equalise_speed`."""
        return equalise_speed(self.trials)

    def _equalise(self, trial: Trial | None) -> Trial | None:
        pairs = zip(self.trials, self.equalise_trials(), strict=True)
        return next((equal for measured, equal in pairs if measured is trial), None)

    @property
    def share_of_bound(self) -> float | None:
        """Bound over `best_s`; above 1 the bound was beaten: the spec says less than the device does."""
        return None if self.bound is None or self.best_s is None else self.bound.time_s / self.best_s

    @property
    def best(self) -> Schedule:
        """The fastest schedule.

        Raises
        ------
        anatune.errors.RunError
            No trial ran; the message says how they ended.
        """
        if self.best_trial is None:
            counts = ", ".join(f"{outcome.value}: {number}" for outcome, number in self.outcomes.items())
            first = next((trial.measurement.message for trial in self.trials), "")
            raise RunError(
                f"{self.workload.describe()}: none of {len(self.trials)} trials ran ({counts or 'none was made'})"
                + (f"; the first: {first}" if first else "")
            )
        return self.best_trial.schedule

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """How many trials ended how."""
        counted = Counter(trial.measurement.outcome for trial in self.trials)
        return {outcome: counted[outcome] for outcome in Outcome if counted[outcome]}

    @property
    def shares(self) -> tuple[WorkerShare, ...]:
        """Who measured what; empty where this machine measured all."""
        return shares_of(self.equalise_trials(), self.workers)

    def __repr__(self) -> str:
        best = "none ran" if self.best_s is None else f"best {duration(self.best_s)}"
        where = f"{self.workload.describe()} on {self.hardware.name}"
        return f"TuningResult({where}: {len(self.trials)} trials by {self.strategy}, {best})"

    def _repr_html_(self) -> str:
        ranked = rank_trials(self.equalise_trials())
        rows = [
            (trial.number, trial.source, trial.measurement.describe(), trial.schedule.describe())
            for trial in ranked[:MOST_SHOWN]
        ]
        return html_table(repr(self), ("trial", "source", "time", "schedule"), rows)

    def to_dict(self) -> dict[str, object]:
        """Return plain dictionaries and lists (what `to_json` writes)."""
        return {
            "workload": msgspec.to_builtins(self.workload),
            "hardware": {"name": self.hardware.name, "model": self.hardware.model, "arch": self.hardware.arch},
            "threads": self.threads,
            "strategy": self.strategy,
            "seed": self.seed,
            "outcomes": {outcome.value: number for outcome, number in self.outcomes.items()},
            "trials": [
                _trial_tree(trial, equal.measurement.time_s)
                for trial, equal in zip(self.trials, self.equalise_trials(), strict=True)
            ],
            "plan_first": None if self.plan_first is None else self.plan_first.number,
            "best": None if self.best_trial is None else self.best_trial.number,
            "best_s": self.best_s,
            "compare": msgspec.to_builtins(self.compare),
            "best_schedule": None if self.best_trial is None else msgspec.to_builtins(self.best_trial.schedule),
            **{name: msgspec.to_builtins(getattr(self, name)) for name in _AS_THEY_ARE},
            "workers": [
                {**msgspec.to_builtins(share.worker), "best": None if share.best is None else share.best.number}
                for share in self.shares
            ],
        }

    def to_json(self) -> str:
        """Return one JSON object: what was tuned, every trial in order, the best schedule whole, the comparison."""
        return msgspec.json.encode(self.to_dict()).decode()


def shares_of(trials: Sequence[Trial], workers: Sequence[WorkerState]) -> tuple[WorkerShare, ...]:
    """Return who measured what of some trials; empty where one machine measured all of them itself.

    Parameters
    ----------
    workers : sequence of WorkerState
        Those that are known, with trials or without.
    """
    known = {worker.name: worker for worker in workers}
    names = dict.fromkeys([*known, *(trial.measurement.worker for trial in trials)])
    if not any(names):
        return ()
    shares = []
    for name in names:
        own = [trial for trial in trials if trial.measurement.worker == name]
        failed = sum(trial.measurement.time_s is None for trial in own)
        worker = known.get(name) or WorkerState(name, state="lost" if name else "ready", why=_EARLIER if name else "")
        counted = msgspec.structs.replace(worker, trials=len(own), failed=failed)
        shares.append(WorkerShare(counted, next(iter(rank_trials(own)), None)))
    return tuple(shares)


class TuningInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a session; `result` is what it had found, all of which is recorded."""

    def __init__(self, result: TuningResult) -> None:
        super().__init__(f"interrupted after {len(result.trials)} trials")
        self.result = result

    def __reduce__(self) -> tuple[object, ...]:
        return TuningInterrupted, (self.result,)


def _trial_tree(trial: Trial, time_s: float | None) -> dict[str, object]:
    """Return a trial: its numbers, of which `time_s` is told, the choices of its schedule, and the schedule whole."""
    schedule = trial.schedule
    tree = schedule.to_dict()
    return {
        "number": trial.number,
        "source": trial.source,
        "predicted_s": trial.predicted_s,
        "time_s": time_s,
        "gflop_per_s": schedule.workload.flop / time_s / 1e9 if time_s else None,
        "relative": trial.measurement.relative,
        "measurement": msgspec.to_builtins(trial.measurement),
        **{name: tree[name] for name in ("tiles", "unroll", "vector", "options")},
        "schedule": tree,
    }
