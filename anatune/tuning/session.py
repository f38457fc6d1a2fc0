"""A tuning session: it measures the plan's first choice, then the proposals of the strategy, and records each trial."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from anatune.arguments import check_function, quote
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Trial
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, SpaceError
from anatune.measure.energy import EnergyMeter
from anatune.measure.named_hardware import HardwareLike
from anatune.measure.place import MeasurerLike, WorkerState
from anatune.records.choice import COMPARED
from anatune.records.place import is_missing
from anatune.records.schema import Session, now_utc
from anatune.records.store import RecordStore
from anatune.resources import user_cache_folder
from anatune.search.base import BLIND, DEFAULT_STRATEGY
from anatune.tuning.cost import CostEstimate
from anatune.tuning.cost_history import SessionCosts
from anatune.tuning.ending import (
    BestTracker,
    Ended,
    Ending,
    FinalComparison,
    SignalDelay,
    choose_contenders,
    compare_contenders,
)
from anatune.tuning.manifest import SOURCE
from anatune.tuning.places.local import energy_counters, place_of
from anatune.tuning.places.place import Place
from anatune.tuning.questions import Questions
from anatune.tuning.result import TuningInterrupted, TuningProgress, TuningResult
from anatune.tuning.reuse import (
    LEARNED_UNTIL,
    MOST_REUSED,
    RecordCorrections,
    learn_corrections,
    session_to_resume,
    suggested_schedules,
)
from anatune.tuning.settings import StandIns, TuningSettings
from anatune.tuning.target import Source, Target, source_of_manifest, source_of_model, target_of

__all__ = ["StandIns", "TuningSession"]

_COMPARE_S = 1.5


@dataclass(frozen=True)
class _Setup:
    """The settings, place, target and strategy of a session; for a resumed session with its original seed."""

    settings: TuningSettings
    place: Place
    target: Target
    strategy: str
    seed: int
    trials: int


@dataclass(frozen=True)
class _Opening:
    """The parts of a session that are ready before it measures."""

    source: Source
    questions: Questions
    ending: Ending
    learned: RecordCorrections
    learned_until: str | None
    num_resumed: int
    num_reused: int


@dataclass
class _State:
    """The part of a session that changes while it measures."""

    trials: list[Trial] = field(default_factory=list)
    standing: BestTracker = field(default_factory=BestTracker)
    workers: tuple[WorkerState, ...] = ()
    first_s: float = 0.0
    comparison: FinalComparison | None = None
    ended: Ended | None = None


class TuningSession:
    """A session: one call of `tune`.

    Parameters
    ----------
    workload, hw, progress
        As for `tune`.
    settings
        The other keyword arguments of `tune`.
    stand_ins
        Replacements for tests.
    place : Place, optional
        Where schedules are measured; the caller closes it. By default the place that `settings` name.

    Attributes
    ----------
    damaged : list of str
        A line for each row of the record file that cannot be read and is ignored.
    """

    def __init__(
        self,
        workload: Workload,
        hw: HardwareLike,
        settings: TuningSettings | None = None,
        progress: Callable[[TuningProgress], None] | None = None,
        stand_ins: StandIns | None = None,
        place: Place | None = None,
    ) -> None:
        if not isinstance(workload, Workload):
            raise SpaceError(f"workload is {quote(workload)}, expected a Workload; make one with anatune.matmul(...)")
        check_function("tune: progress", progress)
        settings, self._stand_ins = settings or TuningSettings(), (stand_ins := stand_ins or StandIns())
        self._owned = contextlib.ExitStack()
        if place is None:
            place = place_of(settings, stand_ins.host)
            self._owned.callback(place.close)
        try:
            target = target_of(workload, place.hardware(hw), settings, place)
        except BaseException:
            self._owned.close()
            raise
        self._setup = _Setup(settings, place, target, settings.strategy, settings.seed, settings.trials)
        if (manifest := target.manifest) is not None:
            trials = min(settings.trials, len(manifest.entries))
            self._setup = replace(self._setup, strategy=SOURCE, seed=manifest.seed, trials=trials)
        self._report, self._began = progress, stand_ins.clock()
        counters = stand_ins.counters
        if counters is None and stand_ins.measurer is None and place.is_here:
            counters = energy_counters(target.device)
        self._energy = EnergyMeter(counters or ())
        is_real = stand_ins.measurer is None and stand_ins.costs is None
        self._costs = SessionCosts(user_cache_folder() if is_real else stand_ins.costs)
        self._interrupts, self._state = SignalDelay(), _State()
        self._opening: _Opening | None = None
        self._store: RecordStore | None = None
        self._session: Session | None = None
        self.damaged: list[str] = []

    def run(self) -> TuningResult:
        """Run the session and return its result; see `tune`."""
        records = self._setup.settings.records
        with self._interrupts:
            try:
                with self._owned, contextlib.ExitStack() as files:
                    if records is not None and not is_missing(records):
                        self._store = files.enter_context(RecordStore(records))
                    self._run(files)
            except KeyboardInterrupt:
                self._state.ended = "interrupted"
                raise TuningInterrupted(self._result()) from None
        return self._result()

    def estimate(self) -> CostEstimate:
        """Estimate how long `run` would take once it begins to measure, without measuring.

        Call this instead of `run`: it closes the place if the session has made it.
        """
        with self._owned:
            history = self.read_recorded()
            setup = self._setup
            return self._costs.estimate(
                setup.target, setup.place, setup.settings, self._make_source(RecordCorrections()), history
            )

    def read_recorded(self) -> list[Trial]:
        """Return the trials that `run` would resume from, without those of final comparisons; nothing is measured."""
        records = self._setup.settings.records
        if records is None or is_missing(records):
            return []
        with RecordStore(records) as self._store:
            try:
                return self._load_resumed()
            finally:
                self._store = None

    # ---- parts of a session ----------------------------------------------------------------------------------

    def _run(self, files: contextlib.ExitStack) -> None:
        self._say("plan")
        history = self._load_resumed()
        opening = self._opening = self._open(history)
        setup, source, target, settings = self._setup, opening.source, self._setup.target, self._setup.settings
        self._keep(history, opening)
        self._costs.estimate(target, setup.place, settings, source, history, self._left_s())
        self._say("start")
        self._costs.begin("start", self._elapsed_s())
        make = self._stand_ins.measurer or setup.place.measurer(source.measurer)
        with make(
            target.workload, source.hardware, threads=target.threads, limits=settings.limits, seed=setup.seed,
            least_samples=source.strategy.least_samples, **target.conditions, **target.device,
        ) as measurer:  # fmt: skip
            if self._store is None and settings.records is not None:  # make the file only now that trials can be made
                self._store = files.enter_context(RecordStore(settings.records))
            if self._store is not None and self._session is None:
                self._session = self._new_session(self._store, opening)
            measurer.incumbent = self._best_relative()
            self._state.workers = measurer.workers()
            try:
                self._costs.begin("measure", self._elapsed_s())
                self._measure(measurer, opening)
                self._costs.begin("compare", self._elapsed_s())
                self._compare(measurer)
                self._costs.begin("", self._elapsed_s())
                self._costs.keep([trial.measurement for trial in self._state.trials[opening.num_resumed :]])
            except DeviceError as error:
                kept = "not recorded, because no record file was given"
                kept = f"kept in {settings.records}, --resume continues" if settings.records else kept
                raise DeviceError(f"{error}; {len(self._state.trials)} trials are {kept}") from None

    def _open(self, history: Sequence[Trial]) -> _Opening:
        """Make the strategy; replay earlier trials and suggest the best recorded schedules."""
        setup, settings = self._setup, self._setup.settings
        learned, until = self._learn()
        source = self._make_source(learned)
        key = self._stand_ins.program_key or source.program_key
        is_published = settings.start == "paper" and setup.strategy != DEFAULT_STRATEGY
        first = None if is_published else source.first  # published strategies do not measure our plan first
        questions = Questions(source.strategy, setup.strategy, first, key)
        questions.replay(history)
        suggested = [] if history else self._suggest_recorded(source)
        questions.suggest(suggested)
        ending = Ending(source.bound.time_s, settings.stop_at, settings.patience)
        return _Opening(source, questions, ending, learned, until, len(history), len(suggested))

    def _make_source(self, learned: RecordCorrections) -> Source:
        setup, target = self._setup, self._setup.target
        if target.manifest is not None:
            return source_of_manifest(target, target.manifest)
        return source_of_model(target, setup.strategy, setup.seed, setup.settings.start, learned.residuals)

    def _learn(self) -> tuple[RecordCorrections, str | None]:
        """Return corrections learned from records, and the time up to which records count; unchanged when resumed."""
        settings, target = self._setup.settings, self._setup.target
        if self._store is None or not settings.reuse or settings.start == "paper" or target.manifest is not None:
            return RecordCorrections(), None
        until = now_utc() if self._session is None else self._session.settings.get(LEARNED_UNTIL)
        if not isinstance(until, str):
            return RecordCorrections(), None
        if self._setup.strategy in BLIND:
            return RecordCorrections(), until
        names = [template.name for template in target.templates]
        on_damage = self.damaged.append
        return learn_corrections(self._store, target.hardware, names, target.conditions, until, on_damage), until

    def _load_resumed(self) -> list[Trial]:
        """Find the session to resume, if there is one, and return its trials."""
        setup, on_damage = self._setup, self.damaged.append
        if self._store is None or not setup.settings.resume:
            return []
        session = session_to_resume(self._store, setup.target, setup.strategy, setup.settings.start, on_damage)
        if session is None:
            return []
        self._session = session
        target = setup.target._replace(hardware=session.hardware)
        self._setup = replace(setup, seed=session.seed, target=target)
        recorded = [record.trial for record in self._store.trials(session=session, on_damage=on_damage)]
        return [trial for trial in recorded if trial.source != COMPARED]

    def _suggest_recorded(self, source: Source) -> list[Schedule]:
        """Return the best recorded schedules of this workload, device and threads, to measure them again."""
        setup, settings = self._setup, self._setup.settings
        if self._store is None or not settings.reuse or setup.target.manifest is not None or setup.trials < 2:
            return []
        if settings.start == "paper":
            return []
        count = min(MOST_REUSED, max(1, setup.trials // 4))
        return suggested_schedules(self._store, setup.target, source, count, self.damaged.append)

    def _new_session(self, store: RecordStore, opening: _Opening) -> Session:
        setup, target, settings = self._setup, self._setup.target, self._setup.settings
        stored_settings = {"trials": setup.trials, "start": settings.start, **target.candidates, **target.conditions}
        rules = {name: getattr(settings, name) for name in ("stop_at", "patience")}
        rules[LEARNED_UNTIL] = opening.learned_until if opening.learned.residuals else None
        stored_settings |= {name: value for name, value in rules.items() if value is not None}
        templates = [template.name for template in target.templates]
        return store.new_session(
            target.workload, target.hardware, target.threads, setup.strategy, setup.seed,
            stored_settings | setup.place.provenance(target.device, target.manifest, templates),
        )  # fmt: skip

    def _measure(self, measurer: MeasurerLike, opening: _Opening) -> None:
        is_open = True
        while is_open:
            for schedule, measurement in measurer.serve(lambda: self._ask(opening)):
                self._state.workers = measurer.workers()
                with self._interrupts.hold():
                    self._finish(schedule, measurement, opening)
                self._say("measure")
            is_open = opening.questions.reopen()

    def _ask(self, opening: _Opening) -> Schedule | None:
        """Return the next schedule to measure; None if the session ends, or if the strategy waits for results."""
        state = self._state
        state.ended = reason = self._ending_reason(opening)
        if reason is not None:  # not final: a trial in progress may be better and restart `patience`
            return None
        # With several devices, no device waits for the result of another one.
        ahead = sum(worker.state == "ready" and worker.measures for worker in state.workers) > 1
        return opening.questions.next(ahead=ahead)

    def _ending_reason(self, opening: _Opening) -> Ended | None:
        """Return why no more schedules are measured; None to continue."""
        limit_s = self._setup.settings.time_limit_s
        if len(opening.questions) >= self._setup.trials:
            return "trials"
        if (reason := opening.ending.reason) is not None:
            return reason
        return "time_limit" if limit_s is not None and self._elapsed_s() > limit_s else None

    def _finish(self, schedule: Schedule, measurement: Measurement, opening: _Opening) -> None:
        """Record a trial, then report it to the strategy."""
        number = 1 + self._state.standing.last_number
        predicted_s, corrected_s = opening.source.predicted(schedule), opening.source.corrected(schedule)
        source, threads = opening.questions.source(schedule), self._setup.target.threads
        trial = Trial(schedule, measurement, number, source, predicted_s, threads, corrected_s)
        self._record(trial)
        self._energy.read()
        self._keep([trial], opening, num_asked=len(opening.questions))
        opening.questions.tell(trial)

    def _keep(self, trials: Sequence[Trial], opening: _Opening, num_asked: int | None = None) -> None:
        """Add trials to the state; `num_asked` is the number of schedules asked for by then, None if unknown."""
        for trial in trials:
            self._state.trials.append(trial)
            self._state.standing.add(trial)
            opening.ending.add(trial.measurement, len(self._state.trials) if num_asked is None else num_asked)

    def _record(self, trial: Trial) -> None:
        if self._store is not None and self._session is not None:
            by = trial.measurement.worker
            worker = next((worker for worker in self._state.workers if worker.name == by), None) if by else None
            self._store.append(self._session, trial, worker.environment if worker is not None else None)

    def _compare(self, measurer: MeasurerLike) -> None:
        """Run the final comparison: measure the best schedules and the plan's first choice again, in turn."""
        plan = self._plan_trial()
        chosen = choose_contenders(self._state.trials, plan)
        if len(chosen) < 2:
            return
        self._say("compare")
        measurements = measurer.compare([trial.schedule for trial in chosen], _COMPARE_S)
        self._state.workers = measurer.workers()
        self._state.comparison = compare_contenders(chosen, measurements, None if plan is None else plan.number)
        with self._interrupts.hold():
            for trial, measurement in zip(chosen, measurements, strict=True):
                self._record(msgspec.structs.replace(trial, measurement=measurement, source=COMPARED))

    # ---- helpers ---------------------------------------------------------------------------------------------

    def _plan_trial(self) -> Trial | None:
        first = None if self._opening is None else self._opening.questions.first
        if first is None:
            return None
        key = first.key
        return next((trial for trial in self._state.trials if trial.schedule.key == key), None)

    def _best_trial(self) -> Trial | None:
        if self._state.comparison is not None:
            best = self._state.comparison.best
            return next(trial for trial in self._state.trials if trial.number == best)
        return self._state.standing.best

    def _best_relative(self) -> float | None:
        values = [trial.measurement.relative for trial in self._state.trials]
        return min((value for value in values if value is not None), default=None)

    def _left_s(self) -> float | None:
        limit_s = self._setup.settings.time_limit_s
        return None if limit_s is None else max(0.0, limit_s - self._elapsed_s())

    def _elapsed_s(self) -> float:
        return self._stand_ins.clock() - self._began

    def _say(self, stage: Literal["plan", "start", "measure", "compare"]) -> None:
        """Report progress."""
        num_resumed = 0 if self._opening is None else self._opening.num_resumed
        if stage == "measure" and len(self._state.trials) == num_resumed + 1:
            # The rate counts from here: planning, starting and the first trial differ from the other trials.
            self._state.first_s = self._elapsed_s()
        if self._report is None:
            return
        done, now = len(self._state.trials), self._elapsed_s()
        left: float | None = None
        per_s: float | None = None
        since = done - num_resumed - 1
        if stage == "measure" and since > 0:
            per_s = since / max(now - self._state.first_s, 1e-9)
            left = (self._setup.trials - done) / per_s + _COMPARE_S
            if self._setup.settings.time_limit_s is not None:
                left = min(left, max(0.0, self._setup.settings.time_limit_s - now) + _COMPARE_S)
        last, failed = (self._state.trials[-1] if self._state.trials else None), done - self._state.standing.num_ran
        first = next((trial for trial in self._state.trials if trial.measurement.time_s is not None), None)
        self._report(
            TuningProgress(
                stage, done, self._setup.trials, failed, last, self._state.standing.best, elapsed_s=now, left_s=left,
                workers=self._state.workers, trials_per_s=per_s, estimate=self._costs.last_estimate, first=first,
            )
        )  # fmt: skip

    def _result(self) -> TuningResult:
        records = self._setup.settings.records
        self._energy.read()
        opening, state = self._opening, self._state
        return TuningResult(
            workload=self._setup.target.workload,
            hardware=self._setup.target.hardware,
            threads=self._setup.target.threads,
            templates=tuple(template.name for template in self._setup.target.templates),
            accuracy=self._setup.target.accuracy,
            strategy=self._setup.strategy,
            seed=self._setup.seed,
            trials=list(state.trials),
            best_trial=self._best_trial(),
            plan_first=self._plan_trial(),
            compare=state.comparison,
            correction=None if opening is None else opening.source.correction,
            num_resumed=0 if opening is None else opening.num_resumed,
            num_reused=0 if opening is None else opening.num_reused,
            learned_trials=0 if opening is None else opening.learned.num_trials,
            learned_workloads=0 if opening is None else opening.learned.num_workloads,
            records=None if records is None else str(records),
            session=None if self._session is None else self._session.id,
            elapsed_s=self._elapsed_s(),
            workers=state.workers,
            bound=None if opening is None else opening.source.bound,
            ended=state.ended or "space",
            stop_at=self._setup.settings.stop_at,
            patience=self._setup.settings.patience,
            estimate=self._costs.last_estimate,
            measure_s=self._costs.spent_s(self._elapsed_s()),
            energy_j=self._energy.energy_j,
            energy_of=self._energy.names,
        )
