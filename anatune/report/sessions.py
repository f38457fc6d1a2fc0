"""Sessions as figures and reports need them: trials, when each ended, the best one and the final comparison.

A `SessionView` is made from a result of `tune`, from records, or from trials alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.measure.place import WorkerState
from anatune.model.bound import TimeBound, time_bound
from anatune.records.choice import COMPARED
from anatune.records.schema import Record, Session
from anatune.report.tuning import ended_text
from anatune.templates import make_model
from anatune.templates.cpu.microkernels import constant_tensors
from anatune.tuning.ending import BestTracker, FinalComparison, compare_contenders, equalise_speed, time_of_best
from anatune.tuning.result import TuningResult, WorkerShare, shares_of

PAUSE_S = 60.0
"""A longer gap between two trials, beyond the time of the later one, means that the session was resumed."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SessionView:
    """A session, made from a result, from records or from trials. Immutable.

    Attributes
    ----------
    name : str
        A short name for legends.
    workload, hardware, threads
        The tuned workload, its device and the number of threads.
    trials : tuple of Trial
        The trials in the order of measurement, without those of the final comparison; their times are scaled to one
        speed of the machine (`equalise_speed`).
    references_s : tuple of tuple of float
        Times of the reference kernel during each trial, s.
    ended_s : tuple of float or None
        Seconds from the beginning of the session to the end of each trial, without pauses; None if unknown.
    seconds : str
        A sentence that explains these seconds.
    comparison : FinalComparison or None
        The final comparison.
    plan_first, best : Trial or None
        The plan's first choice; the winner.
    strategy : str
    workers : tuple of WorkerState
        The workers that measured; empty if unknown.
    id : str
        The id in the records; empty if the session was not recorded.
    begun_utc : str
        The time of the beginning in the records, ISO 8601.
    ended : str
        The reason why the session ended early, or empty.
    energy_j : float or None
        Joules of the whole session, if they were counted.
    session_bound : TimeBound or None
        The lower bound on the time, if the session computed one; see `bound`.
    conditions : mapping
        The settings under which kernels were timed ("l2", "cold").
    """

    name: str
    workload: Workload
    hardware: CpuSpec | GpuSpec
    threads: int
    trials: tuple[Trial, ...]
    references_s: tuple[tuple[float, ...], ...]
    ended_s: tuple[float, ...] | None = None
    seconds: str = ""
    comparison: FinalComparison | None = None
    plan_first: Trial | None = None
    best: Trial | None = None
    strategy: str = ""
    workers: tuple[WorkerState, ...] = field(default=())
    id: str = ""
    begun_utc: str = ""
    ended: str = ""
    energy_j: float | None = None
    session_bound: TimeBound | None = None
    conditions: Mapping[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        where = f"{self.workload.describe()} on {self.hardware.name}"
        return f"SessionView({self.name}: {where}, {len(self.trials)} trials)"

    @property
    def shares(self) -> tuple[WorkerShare, ...]:
        """The trials of each worker; empty if one machine measured all trials itself."""
        return shares_of(self.trials, self.workers)

    @property
    def best_s(self) -> float | None:
        """Time of the best, s; None if no trial ran. See `tuning.result.TuningResult.best_s`."""
        return time_of_best(self.best, self.plan_first, self.comparison)

    @functools.cached_property
    def bound(self) -> TimeBound:
        """A lower bound on the time of all schedules of the session's templates, from the device's spec alone."""
        if self.session_bound is not None:
            return self.session_bound
        hardware = self.hardware if self.hardware.most_threads is None else self.hardware.with_threads(self.threads)
        fewest = {trial.schedule.template: float(self.workload.flop) for trial in self.trials}
        for template in fewest:
            with contextlib.suppress(SpaceError):  # an imported kernel that the template cannot express
                fewest[template] = make_model(self.workload, hardware, template).least_flop
        cache_states = {name: value for name in ("l2", "cold") if isinstance(value := self.conditions.get(name), str)}
        constants = constant_tensors(self.workload) if "cold" in cache_states else ()
        return time_bound(self.workload, hardware, fewest, **cache_states, constants=constants)

    @property
    def num_failed(self) -> int:
        """Number of failed trials."""
        return sum(trial.measurement.time_s is None for trial in self.trials)


Viewed: TypeAlias = "SessionView | TuningResult | Sequence[SessionView | TuningResult | Trial | Record]"
"""The types that figures of sessions accept: one or several sessions, results, trials or records."""


def session_views(sources: Viewed) -> list[SessionView]:
    """Return the sessions in the arguments of a figure; records are grouped by session, trials form one session."""
    if isinstance(sources, SessionView):
        return [sources]
    if isinstance(sources, TuningResult):
        return [_view_result(sources)]
    views: list[SessionView] = []
    trials: list[Trial] = []
    records: dict[str, list[Record]] = {}
    for entry in sources:
        if isinstance(entry, SessionView):
            views.append(entry)
        elif isinstance(entry, TuningResult):
            views.append(_view_result(entry))
        elif isinstance(entry, Record):
            records.setdefault(entry.session.id, []).append(entry)
        else:
            trials.append(entry)
    views += [_view_records(found) for found in records.values()]
    if trials:
        views.append(_view_trials(trials))
    return _make_names_unique(views)


def _make_names_unique(views: Sequence[SessionView]) -> list[SessionView]:
    """Return the sessions with unique names, by which figures sort them."""
    name_counts: Counter[str] = Counter()
    renamed = []
    for view in views:
        name_counts[view.name] += 1
        number = name_counts[view.name]
        renamed.append(view if number == 1 else replace(view, name=f"{view.name} ({number})"))
    return renamed


def result_view(result: TuningResult, records: Sequence[Record] = ()) -> SessionView:
    """Return the session of a result, with the end times from its records if these are complete."""
    view = _view_result(result)
    if not records:
        return view
    recorded = _view_records(records)
    if [one.number for one in recorded.trials] != [one.number for one in view.trials]:
        return view
    return replace(view, ended_s=recorded.ended_s, seconds=recorded.seconds, begun_utc=recorded.begun_utc)


def _view_trials(trials: Sequence[Trial]) -> SessionView:
    """Return a session made from trials; those of the final comparison are recognized by their source."""
    measured = [trial for trial in trials if trial.source != COMPARED]
    own_trials = tuple(equalise_speed(measured))
    first = trials[0]
    plan = next((trial for trial in own_trials if trial.source == "plan"), None)
    comparison = _comparison(trials, plan)
    return SessionView(
        name=next((trial.source for trial in own_trials if trial.source not in ("plan", "records")), "trials"),
        workload=first.schedule.workload, hardware=first.schedule.hardware, threads=first.threads, trials=own_trials,
        references_s=_references(measured), ended_s=_working_seconds(own_trials), seconds=_WORKING_TEXT,
        comparison=comparison, plan_first=plan, best=_best(own_trials, comparison),
    )  # fmt: skip


def _view_result(result: TuningResult) -> SessionView:
    trials = tuple(result.equalise_trials())
    equal = {id(measured): trial for measured, trial in zip(result.trials, trials, strict=True)}
    return SessionView(
        name=f"{result.session[:8]} {result.strategy}" if result.session else result.strategy,
        workload=result.workload, hardware=result.hardware, threads=result.threads, trials=trials,
        references_s=_references(result.trials),
        ended_s=_working_seconds(trials), seconds=_WORKING_TEXT, comparison=result.compare,
        plan_first=equal.get(id(result.plan_first)), best=equal.get(id(result.best_trial)),
        strategy=result.strategy, workers=result.workers, id=result.session or "",
        ended="interrupted" if result.ended == "interrupted" else ended_text(result),
        energy_j=result.energy_j, session_bound=result.bound,
    )  # fmt: skip


def _view_records(records: Sequence[Record]) -> SessionView:
    session = records[0].session
    view = _view_trials([record.trial for record in records])
    own_records = [record for record in records if record.trial.source != COMPARED]
    is_imported = "imported" in session.settings
    return replace(
        view,
        name=f"{session.id[:8]} {session.strategy}",
        workload=session.workload,
        hardware=session.hardware,
        threads=session.threads,
        strategy=session.strategy,
        id=session.id,
        begun_utc=session.created_utc,
        conditions=session.settings,
        ended_s=None if is_imported else _elapsed_seconds(session, own_records),
        seconds="" if is_imported else "Seconds count from the beginning of the session, without pauses.",
    )


def _references(trials: Sequence[Trial]) -> tuple[tuple[float, ...], ...]:
    return tuple(trial.measurement.reference_times_s for trial in trials)


_WORKING_TEXT = "Seconds are the summed times of building and running, because the end times of trials are not known."


def _working_seconds(trials: Sequence[Trial]) -> tuple[float, ...] | None:
    """Return the summed seconds of building and running up to each trial; None if they were not measured."""
    total, ended = 0.0, []
    for trial in trials:
        total += trial.measurement.build_s + trial.measurement.run_s
        ended.append(total)
    return tuple(ended) if total > 0 else None


def _elapsed_seconds(session: Session, records: Sequence[Record]) -> tuple[float, ...]:
    """Return the seconds from the beginning of a session to the recording of each trial, without pauses."""
    before = _time(session.created_utc)
    total, ended = 0.0, []
    for record in records:
        now, measurement = _time(record.created_utc), record.trial.measurement
        own_s = measurement.build_s + measurement.run_s
        gap_s = max((now - before).total_seconds(), 0.0)
        total += gap_s if gap_s <= own_s + PAUSE_S else own_s
        before = now
        ended.append(total)
    return tuple(ended)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _comparison(trials: Sequence[Trial], plan: Trial | None) -> FinalComparison | None:
    """Return the final comparison at the end of a session's trials; None if there is none."""
    compared: dict[int, Trial] = {}
    for trial in reversed(trials):
        if trial.source != COMPARED or trial.number in compared:
            break
        compared[trial.number] = trial
    contenders = list(reversed(compared.values()))
    measured = [trial.measurement for trial in contenders]
    return compare_contenders(contenders, measured, -1 if plan is None else plan.number) if contenders else None


def _best(trials: Sequence[Trial], comparison: FinalComparison | None) -> Trial | None:
    standing = BestTracker()
    for trial in trials:
        standing.add(trial)
    if comparison is not None:
        return next((trial for trial in trials if trial.number == comparison.best), standing.best)
    return standing.best


def best_so_far(trials: Sequence[Trial]) -> list[Trial | None]:
    """Return the best trial so far after each trial, by times relative to the reference kernel."""
    standing, bests = BestTracker(), []
    for trial in trials:
        standing.add(trial)
        bests.append(standing.best)
    return bests
