"""Results of tuning: the trials, the best one and the final comparison; and the progress of a session."""

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
"""Number of trials that a notebook shows, fastest first."""
_AS_THEY_ARE = (
    *("correction", "num_resumed", "num_reused", "records", "session", "elapsed_s", "bound", "share_of_bound", "ended"),
    *("learned_trials", "learned_workloads"),
    *("stop_at", "patience", "estimate", "measure_s", "energy_j", "energy_of", "templates", "accuracy"),
)
"""Attributes that the JSON of a result has under the same names."""
_EARLIER = "measured in an earlier call and is not connected now"


class TuningProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The progress of a session.

    Attributes
    ----------
    stage : str
        "plan": ranking; "start": `estimate` is known, nothing is measured yet; "measure": `trial` is done; "compare":
        the final comparison begins.
    done, total : int
        Number of trials that are done (resumed ones included), and of all trials.
    failures : int
        Number of failed trials.
    trial : Trial or None
        The last trial.
    best : Trial or None
        The best trial so far.
    elapsed_s, left_s : float
        Wall time since this call began; an estimate of the time left.
    workers : tuple of WorkerState
        The workers that measure; empty if this machine does.
    trials_per_s : float or None
        Rate of this call, from which `left_s` is estimated.
    estimate : CostEstimate or None
        The estimated time and gain of the session, made before it measures.
    first : Trial or None
        The first trial that ran: the plan's first choice, unless that failed. The speed of other trials is reported
        relative to it, because the machine's speed drifts.
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
        """Time of the best trial so far, s, scaled to the machine's speed during the first trial; it never rises."""
        if self.best is None or self.first is None:
            return None
        return time_beside(self.best.measurement, self.first.measurement)


class WorkerShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of one worker in a session.

    Attributes
    ----------
    worker : WorkerState
        The worker, with its trials and failures in the whole session; its name is empty for the session's own machine.
    best : Trial or None
        The fastest trial that it measured.
    """

    worker: WorkerState
    best: Trial | None = None


class ModelProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The progress of tuning a network.

    Attributes
    ----------
    kernel : str
        The workload that is tuned now, as typed on the command line.
    done, total : int
        Number of trials that are done (recorded ones included), and of all trials.
    predicted_s : float
        Predicted time of all kernels in one run of the network, by the analytical model alone.
    measured_s : float
        The same with the best measured times of kernels that have some.
    elapsed_s, left_s : float
        Wall time since tuning began; an estimate of the time left.
    workers, trials_per_s
        As in `TuningProgress`.
    bound : TimeBound or None
        Lower bound on the time of all kernels in one run; kernels that are not tuned count with their predicted time.
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
    """The result of a tuning session.

    Attributes
    ----------
    workload, hardware
        The tuned workload; the device as given.
    threads : int
        Number of threads of the kernels.
    strategy, seed
        The search strategy and its seed.
    trials : list of Trial
        The trials in the order of measurement, including the plan's first choice.
    best_trial : Trial or None
        The fastest trial, which is the winner of `compare` if there is one. None if no trial ran.
    plan_first : Trial or None
        The trial of the plan's first choice; None if interrupted before it, or with ``start="paper"``.
    compare : Comparison or None
        The final comparison; None if there was nothing to compare.
    correction : str or None
        Learned correction of the predictions from which the session started; None if there was none.
    num_resumed : int
        Number of trials of the resumed session.
    num_reused : int
        Number of recorded schedules that were measured after the plan's first choice.
    learned_trials, learned_workloads : int
        Number of recorded trials of the device, and of their workloads, from which the strategy's model learned; 0 if
        that does not help.
    records, session : str or None
        Record file and id of the session, if it was recorded.
    elapsed_s : float
        Wall time of this call.
    templates : tuple of str
        The templates of the schedules, the device's default first.
    accuracy : str
        The admitted arithmetic.
    workers : tuple of WorkerState
        The workers that measured; empty if this machine did.
    bound : TimeBound or None
        Lower bound on the time of every schedule, from the device's spec alone; None if interrupted before.
    ended : str
        Why the session ended: "trials" (all were measured), "stop_at", "patience", "time_limit", "space" (no more
        schedules) or "interrupted".
    stop_at, patience : float, int or None
        The arguments of `tune`.
    estimate : CostEstimate or None
        The estimate that was made before measuring; None if interrupted before.
    measure_s : float or None
        Wall time from the estimate to the end.
    energy_j : float or None
        Joules of this call by the counters of `energy_of`, which count whole devices, other programs included. None if
        nothing counts, or if other machines build or measure. `Measurement.energy_j` is that of one run.
    energy_of : tuple of str
        The counted devices: "package-0", "gpu 00000000:17:00.0".
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
        """Time of the best trial, s, scaled to the machine's speed during the first trial; None if no trial ran.

        After a final comparison it is the time of the plan's first choice over the speedup.
        """
        return time_of_best(self._equalise(self.best_trial), self._equalise(self.plan_first), self.compare)

    def equalise_trials(self) -> list[Trial]:
        """Return the trials with times scaled to one speed of the machine, see `equalise_speed`."""
        return equalise_speed(self.trials)

    def _equalise(self, trial: Trial | None) -> Trial | None:
        pairs = zip(self.trials, self.equalise_trials(), strict=True)
        return next((equal for measured, equal in pairs if measured is trial), None)

    @property
    def share_of_bound(self) -> float | None:
        """Lower bound over `best_s`; above 1 if the device is faster than its spec."""
        return None if self.bound is None or self.best_s is None else self.bound.time_s / self.best_s

    @property
    def best(self) -> Schedule:
        """The fastest schedule.

        Raises
        ------
        anatune.errors.RunError
            No trial ran; the message lists their outcomes.
        """
        if self.best_trial is None:
            counts = ", ".join(f"{outcome.value}: {number}" for outcome, number in self.outcomes.items())
            first = next((trial.measurement.message for trial in self.trials), "")
            raise RunError(
                f"{self.workload.describe()}: none of {len(self.trials)} trials was successful "
                f"({counts or 'no trial was made'})" + (f"; the first error: {first}" if first else "")
            )
        return self.best_trial.schedule

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Number of trials by outcome."""
        counted = Counter(trial.measurement.outcome for trial in self.trials)
        return {outcome: counted[outcome] for outcome in Outcome if counted[outcome]}

    @property
    def shares(self) -> tuple[WorkerShare, ...]:
        """The part of each worker; empty if this machine measured all trials."""
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
        """Return the result as one JSON object."""
        return msgspec.json.encode(self.to_dict()).decode()


def shares_of(trials: Sequence[Trial], workers: Sequence[WorkerState]) -> tuple[WorkerShare, ...]:
    """Return the part of each worker in some trials; empty if one machine measured all of them itself.

    Parameters
    ----------
    workers : sequence of WorkerState
        The known workers, with or without trials.
    """
    worker_by_name = {worker.name: worker for worker in workers}
    names = dict.fromkeys([*worker_by_name, *(trial.measurement.worker for trial in trials)])
    if not any(names):
        return ()
    shares = []
    for name in names:
        own_trials = [trial for trial in trials if trial.measurement.worker == name]
        failed = sum(trial.measurement.time_s is None for trial in own_trials)
        worker = worker_by_name.get(name) or WorkerState(
            name, state="lost" if name else "ready", why=_EARLIER if name else ""
        )
        counted = msgspec.structs.replace(worker, trials=len(own_trials), failed=failed)
        shares.append(WorkerShare(counted, next(iter(rank_trials(own_trials)), None)))
    return tuple(shares)


class TuningInterrupted(KeyboardInterrupt):
    """The exception after Ctrl-C; `result` holds the trials so far, all of which are recorded."""

    def __init__(self, result: TuningResult) -> None:
        super().__init__(f"interrupted after {len(result.trials)} trials")
        self.result = result

    def __reduce__(self) -> tuple[object, ...]:
        return TuningInterrupted, (self.result,)


def _trial_tree(trial: Trial, time_s: float | None) -> dict[str, object]:
    """Return a trial as plain values: its numbers with the given `time_s`, and its schedule."""
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
