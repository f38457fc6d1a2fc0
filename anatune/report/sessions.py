"""Sessions as pictures and reports need them: trials with the seconds they ended at, and what they say together.

A `SessionView` is made of what `tune` returned, of records, or of trials alone; everything that a picture or a line of
text says of a session is computed here, once.
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
from anatune.tuning.ending import FinalComparison, Standing, compare_contenders, equalise_speed, time_of_best
from anatune.tuning.result import TuningResult, WorkerShare, shares_of

PAUSE_S = 60.0
"""Between two trials more than what the later one took and this long nobody worked: a session was resumed."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SessionView:
    """One session, whoever tells of it. Immutable.

    Attributes
    ----------
    name : str
        A few words for legends.
    workload, hardware, threads
        What was tuned, where.
    trials : tuple of Trial
        In the order in which they were measured, without those of the comparison; their times are at the machine's
        speed beside the first that ran, as `equalise_speed` says.
    references_s : tuple of tuple of float
        What the reference kernel took beside each trial, s: how fast the machine was.
    ended_s : tuple of float or None
        Seconds from the beginning to the end of each trial, pauses of a resumed session left out; None: not known.
    seconds : str
        What these seconds are, in a sentence.
    comparison : FinalComparison or None
        What was measured in turn at the end.
    plan_first, best : Trial or None
        The plan's own first choice; the winner.
    strategy : str
    workers : tuple of WorkerState
        Who measured elsewhere, as far as that is known.
    id : str
        As records have it; empty: it was not recorded.
    begun_utc : str
        When it began, where records tell: ISO 8601.
    ended : str
        Why it ended before its trials were made, in words, where the session itself told it.
    energy_j : float or None
        Joules of the whole session, where something counted them.
    told_bound : TimeBound or None
        The lower bound of times, where the session itself told it; see `bound`.
    conditions : mapping
        Under which kernels were timed, as a session's settings have them ("l2", "cold").
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
    told_bound: TimeBound | None = None
    conditions: Mapping[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        where = f"{self.workload.describe()} on {self.hardware.name}"
        return f"SessionView({self.name}: {where}, {len(self.trials)} trials)"

    @property
    def shares(self) -> tuple[WorkerShare, ...]:
        """Who measured what; empty where one machine measured all of it itself."""
        return shares_of(self.trials, self.workers)

    @property
    def best_s(self) -> float | None:
        """Time of the best, s; None: nothing ran. See `tuning.result.TuningResult.best_s`."""
        return time_of_best(self.best, self.plan_first, self.comparison)

    @functools.cached_property
    def bound(self) -> TimeBound:
        """Time that no schedule of the session's templates undercuts, from the device's spec alone."""
        if self.told_bound is not None:
            return self.told_bound
        hardware = self.hardware if self.hardware.most_threads is None else self.hardware.with_threads(self.threads)
        fewest = {trial.schedule.template: float(self.workload.flop) for trial in self.trials}
        for template in fewest:
            with contextlib.suppress(SpaceError):  # of a kernel that was imported, which the template cannot say
                fewest[template] = make_model(self.workload, hardware, template).least_flop
        told = {name: value for name in ("l2", "cold") if isinstance(value := self.conditions.get(name), str)}
        constants = constant_tensors(self.workload) if "cold" in told else ()
        return time_bound(self.workload, hardware, fewest, **told, constants=constants)

    @property
    def num_failed(self) -> int:
        """Trials without a time."""
        return sum(trial.measurement.time_s is None for trial in self.trials)


Viewed: TypeAlias = "SessionView | TuningResult | Sequence[SessionView | TuningResult | Trial | Record]"
"""What pictures of sessions are drawn of: one or several sessions, results, trials or records."""


def session_views(given: Viewed) -> list[SessionView]:
    """Return the sessions of what pictures are asked for; records are sorted by their sessions, trials are one."""
    if isinstance(given, SessionView):
        return [given]
    if isinstance(given, TuningResult):
        return [_of_result(given)]
    views: list[SessionView] = []
    trials: list[Trial] = []
    records: dict[str, list[Record]] = {}
    for one in given:
        if isinstance(one, SessionView):
            views.append(one)
        elif isinstance(one, TuningResult):
            views.append(_of_result(one))
        elif isinstance(one, Record):
            records.setdefault(one.session.id, []).append(one)
        else:
            trials.append(one)
    views += [_of_records(found) for found in records.values()]
    if trials:
        views.append(_of_trials(trials))
    return _told_apart(views)


def _told_apart(views: Sequence[SessionView]) -> list[SessionView]:
    """Return sessions with names of their own: pictures draw and sort by them."""
    known: Counter[str] = Counter()
    named = []
    for view in views:
        known[view.name] += 1
        number = known[view.name]
        named.append(view if number == 1 else replace(view, name=f"{view.name} ({number})"))
    return named


def result_view(result: TuningResult, records: Sequence[Record] = ()) -> SessionView:
    """Return the session of a result, with the seconds that its records tell, where they are all there."""
    view = _of_result(result)
    if not records:
        return view
    recorded = _of_records(records)
    if [one.number for one in recorded.trials] != [one.number for one in view.trials]:
        return view
    return replace(view, ended_s=recorded.ended_s, seconds=recorded.seconds, begun_utc=recorded.begun_utc)


def _of_trials(trials: Sequence[Trial]) -> SessionView:
    """Return trials without a session: the comparison's are told by their source."""
    measured = [trial for trial in trials if trial.source != COMPARED]
    own = tuple(equalise_speed(measured))
    first = trials[0]
    plan = next((trial for trial in own if trial.source == "plan"), None)
    comparison = _comparison(trials, plan)
    return SessionView(
        name=next((trial.source for trial in own if trial.source not in ("plan", "records")), "trials"),
        workload=first.schedule.workload, hardware=first.schedule.hardware, threads=first.threads, trials=own,
        references_s=_references(measured), ended_s=_worked(own), seconds=_WORKED, comparison=comparison,
        plan_first=plan, best=_best(own, comparison),
    )  # fmt: skip


def _of_result(result: TuningResult) -> SessionView:
    trials = tuple(result.equalise_trials())
    equal = {id(measured): trial for measured, trial in zip(result.trials, trials, strict=True)}
    return SessionView(
        name=f"{result.session[:8]} {result.strategy}" if result.session else result.strategy,
        workload=result.workload, hardware=result.hardware, threads=result.threads, trials=trials,
        references_s=_references(result.trials),
        ended_s=_worked(trials), seconds=_WORKED, comparison=result.compare,
        plan_first=equal.get(id(result.plan_first)), best=equal.get(id(result.best_trial)),
        strategy=result.strategy, workers=result.workers, id=result.session or "",
        ended="interrupted" if result.ended == "interrupted" else ended_text(result),
        energy_j=result.energy_j, told_bound=result.bound,
    )  # fmt: skip


def _of_records(records: Sequence[Record]) -> SessionView:
    session = records[0].session
    view = _of_trials([record.trial for record in records])
    own = [record for record in records if record.trial.source != COMPARED]
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
        ended_s=None if is_imported else _elapsed(session, own),
        seconds="" if is_imported else "Seconds count from the beginning of the session; pauses are left out.",
    )


def _references(trials: Sequence[Trial]) -> tuple[tuple[float, ...], ...]:
    return tuple(trial.measurement.reference_times_s for trial in trials)


_WORKED = "Seconds are those of building and running, one after the other: when each trial ended was not kept."


def _worked(trials: Sequence[Trial]) -> tuple[float, ...] | None:
    """Return the seconds that building and running took up to each trial; None where nobody took their time."""
    total, ended = 0.0, []
    for trial in trials:
        total += trial.measurement.build_s + trial.measurement.run_s
        ended.append(total)
    return tuple(ended) if total > 0 else None


def _elapsed(session: Session, records: Sequence[Record]) -> tuple[float, ...]:
    """Return the seconds from a session's beginning to the recording of each of its trials, without pauses."""
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
    """Return the comparison that records of a session end with."""
    compared: dict[int, Trial] = {}
    for trial in reversed(trials):
        if trial.source != COMPARED or trial.number in compared:
            break
        compared[trial.number] = trial
    contenders = list(reversed(compared.values()))
    measured = [trial.measurement for trial in contenders]
    return compare_contenders(contenders, measured, -1 if plan is None else plan.number) if contenders else None


def _best(trials: Sequence[Trial], comparison: FinalComparison | None) -> Trial | None:
    standing = Standing()
    for trial in trials:
        standing.add(trial)
    if comparison is not None:
        return next((trial for trial in trials if trial.number == comparison.best), standing.best)
    return standing.best


def best_so_far(trials: Sequence[Trial]) -> list[Trial | None]:
    """Return after each trial the best one up to it, as the session judged: relative to the reference kernel."""
    standing, found = Standing(), []
    for trial in trials:
        standing.add(trial)
        found.append(standing.best)
    return found
