"""A tuning session: the plan's first choice, then whatever the strategy asks for; every trial recorded as it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from anatune.arguments import checked_function, shown
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Trial
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, SpaceError
from anatune.measure.energy import EnergyCounter, EnergyMeter
from anatune.measure.named_hardware import HardwareLike
from anatune.measure.place import MakeMeasurer, MeasurerLike, WorkerState
from anatune.model.bound import TimeBound
from anatune.records.choice import COMPARED
from anatune.records.place import is_missing
from anatune.records.schema import Session, now_utc
from anatune.records.store import RecordStore
from anatune.resources import user_cache_folder
from anatune.search.base import BLIND, DEFAULT_STRATEGY
from anatune.tuning.cost import CostEstimate
from anatune.tuning.cost_history import SessionCosts
from anatune.tuning.ending import (
    Ended,
    Ending,
    FinalComparison,
    Interrupts,
    Standing,
    choose_contenders,
    compare_contenders,
)
from anatune.tuning.manifest import SOURCE
from anatune.tuning.places.choose import place_of
from anatune.tuning.places.local import energy_counters
from anatune.tuning.places.place import Place
from anatune.tuning.questions import Questions
from anatune.tuning.result import TuningInterrupted, TuningProgress, TuningResult
from anatune.tuning.reuse import LEARNED_UNTIL, MOST_REUSED, Learned, learned_of, session_to_resume, suggested_schedules
from anatune.tuning.settings import TuningSettings
from anatune.tuning.target import Source, source_of_manifest, source_of_model, target_of

__all__ = ["StandIns", "TuningSession"]

_COMPARE_S = 1.5


class StandIns(msgspec.Struct, frozen=True, kw_only=True):
    """What tests put in the place of the machine.

    Attributes
    ----------
    host : CpuSpec or GpuSpec, optional
        The present machine, or its GPU; detected by default.
    measurer : callable, optional
        Makes the measurer, as that of `tuning.target.Source`.
    program_key : callable, optional
        Schedule -> key of the program it is lowered to: schedules of equal keys are measured once.
    clock : callable
        Seconds.
    costs : Path, optional
        Folder of what earlier sessions took; by default the user's, none with another measurer.
    counters : sequence of EnergyCounter, optional
        What counts energy; by default what the place has, nothing with another measurer.
    """

    host: CpuSpec | GpuSpec | None = None
    measurer: MakeMeasurer | None = None
    program_key: Callable[[Schedule], Hashable] | None = None
    clock: Callable[[], float] = time.monotonic
    costs: Path | None = None
    counters: Sequence[EnergyCounter] | None = None


class TuningSession:
    """One call of `tune`.

    Parameters
    ----------
    workload, hw, progress
        As for `tune`.
    settings
        Its other keywords.
    stand_ins
        For tests.
    place : Place, optional
        Where schedules are measured, which the caller closes; by default what `settings` name.

    Attributes
    ----------
    damaged : list of str
        A line for each row of the record file that cannot be read: a resumed session goes on without it.
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
            raise SpaceError(f"workload is {shown(workload)}, expected a Workload; make one with anatune.matmul(...)")
        checked_function("tune: progress", progress)
        self._settings = settings = settings or TuningSettings()
        self._stand_ins = stand_ins = stand_ins or StandIns()
        self._place = place_of(settings, stand_ins.host) if place is None else place
        self._owned = contextlib.ExitStack()
        if place is None:
            self._owned.callback(self._place.close)
        try:
            self._target = target_of(workload, self._place.hardware(hw), settings, self._place)
        except BaseException:
            self._owned.close()
            raise
        self._strategy_name, self._seed, self._trials_wanted = settings.strategy, settings.seed, settings.trials
        if (manifest := self._target.manifest) is not None:
            self._strategy_name, self._seed = SOURCE, manifest.seed
            self._trials_wanted = min(settings.trials, len(manifest.entries))
        self._report = progress
        self._began = stand_ins.clock()
        self._first_s = 0.0
        self._trials: list[Trial] = []
        self._standing = Standing()
        self._ending: Ending | None = None
        counters = stand_ins.counters
        if counters is None and stand_ins.measurer is None and self._place.is_here:
            counters = energy_counters(self._target.device)
        self._energy = EnergyMeter(counters or ())
        is_real = stand_ins.measurer is None and stand_ins.costs is None
        self._costs = SessionCosts(user_cache_folder() if is_real else stand_ins.costs)
        self._ended: Ended | None = None
        self.damaged: list[str] = []
        self._num_resumed = self._num_reused = 0
        self._store: RecordStore | None = None
        self._session: Session | None = None
        self._comparison: FinalComparison | None = None
        self._interrupts = Interrupts()
        self._source: Source
        self._correction: str | None = None
        self._learned = Learned()
        self._learned_until: str | None = None
        self._bound: TimeBound | None = None
        self._questions: Questions | None = None
        self._measurer: MeasurerLike | None = None
        self._workers: tuple[WorkerState, ...] = ()

    def run(self) -> TuningResult:
        """Tune; see `tune`."""
        records = self._settings.records
        with self._interrupts:
            try:
                with self._owned, contextlib.ExitStack() as files:
                    if records is not None and not is_missing(records):
                        self._store = files.enter_context(RecordStore(records))
                    self._run(files)
            except KeyboardInterrupt:
                self._ended = "interrupted"
                raise TuningInterrupted(self._result()) from None
        return self._result()

    def estimate(self) -> CostEstimate:
        """Return about how long `run` would take from where it begins to measure; nothing is measured.

        In the place of `run`: a place that is the session's own is closed.
        """
        with self._owned:
            history = self.recorded()
            return self._costs.estimate(self._target, self._place, self._settings, self._made(), history)

    def recorded(self) -> list[Trial]:
        """Return the trials that `run` would go on from, without measuring anything; comparisons are left out."""
        records = self._settings.records
        if records is None or is_missing(records):
            return []
        with RecordStore(records) as self._store:
            try:
                return self._take_up()
            finally:
                self._store = None

    # ---- the steps -------------------------------------------------------------------------------------------

    def _run(self, files: contextlib.ExitStack) -> None:
        self._say("plan")
        history = self._take_up()
        target = self._target
        self._learned = self._learn()
        self._source = source = self._made()
        self._correction, self._bound = source.correction, source.bound
        self._ending = Ending(source.bound.time_s, self._settings.stop_at, self._settings.patience)
        key = self._stand_ins.program_key or source.program_key
        is_published = self._settings.start == "paper" and self._strategy_name != DEFAULT_STRATEGY
        first = None if is_published else source.first  # no paper measures our plan first
        self._questions = questions = Questions(source.strategy, self._strategy_name, first, key)
        questions.replay(history)
        self._keep(history)
        self._num_resumed = len(history)
        if not history:
            questions.suggest(suggested := self._suggested())
            self._num_reused = len(suggested)
        self._costs.estimate(target, self._place, self._settings, source, history, self._left_s())
        self._say("start")
        self._costs.begin("start", self._elapsed_s())
        make = self._stand_ins.measurer or self._place.measurer(source.measurer)
        with make(
            target.workload, source.hardware, threads=target.threads, limits=self._settings.limits, seed=self._seed,
            least_samples=source.strategy.least_samples, **target.conditions, **target.device,
        ) as self._measurer:  # fmt: skip
            if self._store is None and self._settings.records is not None:  # a trial can be made: now there is a file
                self._store = files.enter_context(RecordStore(self._settings.records))
            if self._store is not None and self._session is None:
                self._session = self._new_session(self._store)
            measurer = self._measurer
            measurer.incumbent = self._best_relative()
            self._workers = measurer.workers()
            try:
                self._costs.begin("measure", self._elapsed_s())
                self._measure(measurer, questions)
                self._costs.begin("compare", self._elapsed_s())
                self._compare(measurer)
                self._costs.begin("", self._elapsed_s())
                self._costs.keep([trial.measurement for trial in self._trials[self._num_resumed :]])
            except DeviceError as error:
                records = self._settings.records
                kept = f"kept in {records}, --resume goes on" if records else "lost with this session"
                raise DeviceError(f"{error}; {len(self._trials)} trials are {kept}") from None

    def _made(self) -> Source:
        target = self._target
        if target.manifest is not None:
            return source_of_manifest(target, target.manifest)
        return source_of_model(target, self._strategy_name, self._seed, self._settings.start, self._learned.residuals)

    def _learn(self) -> Learned:
        """Return what the records teach of the device; in a session that is resumed, what they did when it began."""
        settings, target = self._settings, self._target
        if self._store is None or not settings.reuse or settings.start == "paper" or target.manifest is not None:
            return Learned()
        until = now_utc() if self._session is None else self._session.settings.get(LEARNED_UNTIL)
        if not isinstance(until, str):
            return Learned()
        self._learned_until = until
        if self._strategy_name in BLIND:
            return Learned()
        names = [template.name for template in target.templates]
        return learned_of(self._store, target.hardware, names, target.conditions, until, self.damaged.append)

    def _take_up(self) -> list[Trial]:
        """Return the trials of the session to resume, if there is one."""
        if self._store is None or not self._settings.resume:
            return []
        start, on_damage = self._settings.start, self.damaged.append
        session = session_to_resume(self._store, self._target, self._strategy_name, start, on_damage)
        if session is None:
            return []
        self._session, self._seed = session, session.seed
        self._target = self._target._replace(hardware=session.hardware)
        recorded = [record.trial for record in self._store.trials(session=session, on_damage=on_damage)]
        return [trial for trial in recorded if trial.source != COMPARED]

    def _suggested(self) -> list[Schedule]:
        """Return the best recorded schedules of this workload, device and threads that are legal here and now.

        They are measured anew: the machine's speed drifts. Of a session that is resumed they are among its trials.
        """
        target, source = self._target, self._source
        settings = self._settings
        if self._store is None or not settings.reuse or target.manifest is not None or self._trials_wanted < 2:
            return []
        if settings.start == "paper":
            return []
        count = min(MOST_REUSED, max(1, self._trials_wanted // 4))
        return suggested_schedules(self._store, target, source, count, self.damaged.append)

    def _new_session(self, store: RecordStore) -> Session:
        target = self._target
        told = {"trials": self._trials_wanted, "start": self._settings.start, **target.asked, **target.conditions}
        rules = {name: getattr(self._settings, name) for name in ("stop_at", "patience")}
        rules[LEARNED_UNTIL] = self._learned_until if self._learned.residuals else None
        told |= {name: value for name, value in rules.items() if value is not None}
        return store.new_session(
            target.workload, target.hardware, target.threads, self._strategy_name, self._seed,
            {**told, **self._place.provenance(target.device, target.manifest, [one.name for one in target.templates])},
        )  # fmt: skip

    def _measure(self, measurer: MeasurerLike, questions: Questions) -> None:
        is_open = True
        while is_open:
            for schedule, measurement in measurer.serve(lambda: self._ask(questions)):
                self._workers = measurer.workers()
                with self._interrupts.held():
                    self._finish(schedule, measurement, questions)
                self._say("measure")
            is_open = questions.reopen()

    def _ask(self, questions: Questions) -> Schedule | None:
        """Return what is to be measured; None for now where the strategy wants to be told first."""
        self._ended = reason = self._reason(questions)
        if reason is not None:  # no end yet: what is on its way may be better, and patience begins anew
            return None
        # With several devices none waits for the answer of another one.
        return questions.next(ahead=sum(worker.state == "ready" and worker.measures for worker in self._workers) > 1)

    def _reason(self, questions: Questions) -> Ended | None:
        """Return why nothing more is asked for; None: go on."""
        limit_s = self._settings.time_limit_s
        if len(questions) >= self._trials_wanted:
            return "trials"
        assert self._ending is not None
        if (reason := self._ending.reason) is not None:
            return reason
        return "time_limit" if limit_s is not None and self._elapsed_s() > limit_s else None

    def _finish(self, schedule: Schedule, measurement: Measurement, questions: Questions) -> None:
        """Record a trial, then tell the strategy."""
        number = 1 + self._standing.last_number
        predicted_s, corrected_s = self._source.predicted(schedule), self._source.corrected(schedule)
        source, threads = questions.source(schedule), self._target.threads
        trial = Trial(schedule, measurement, number, source, predicted_s, threads, corrected_s)
        self._record(trial)
        self._energy.read()
        self._keep([trial])
        questions.tell(trial)

    def _keep(self, trials: Sequence[Trial]) -> None:
        assert self._ending is not None
        assert self._questions is not None
        for trial in trials:
            self._trials.append(trial)
            self._standing.add(trial)
            # What an earlier call had on its way by then nobody knows.
            is_earlier = self._measurer is None
            self._ending.add(trial.measurement, len(self._trials) if is_earlier else len(self._questions))

    def _record(self, trial: Trial) -> None:
        if self._store is not None and self._session is not None:
            by = trial.measurement.worker
            worker = next((worker for worker in self._workers if worker.name == by), None) if by else None
            self._store.append(self._session, trial, worker.environment if worker is not None else None)

    def _compare(self, measurer: MeasurerLike) -> None:
        """Measure the best trials and, where it was measured, the plan's first choice in turn."""
        plan = self._plan_trial()
        chosen = choose_contenders(self._trials, plan)
        if len(chosen) < 2:
            return
        self._say("compare")
        measurements = measurer.compare([trial.schedule for trial in chosen], _COMPARE_S)
        self._workers = measurer.workers()
        self._comparison = compare_contenders(chosen, measurements, None if plan is None else plan.number)
        with self._interrupts.held():
            for trial, measurement in zip(chosen, measurements, strict=True):
                self._record(msgspec.structs.replace(trial, measurement=measurement, source=COMPARED))

    # ---- small things ----------------------------------------------------------------------------------------

    def _plan_trial(self) -> Trial | None:
        if self._questions is None or self._questions.first is None:
            return None
        key = self._questions.first.key
        return next((trial for trial in self._trials if trial.schedule.key == key), None)

    def _best_trial(self) -> Trial | None:
        if self._comparison is not None:
            best = self._comparison.best
            return next(trial for trial in self._trials if trial.number == best)
        return self._standing.best

    def _best_relative(self) -> float | None:
        values = [trial.measurement.relative for trial in self._trials]
        return min((value for value in values if value is not None), default=None)

    def _left_s(self) -> float | None:
        limit_s = self._settings.time_limit_s
        return None if limit_s is None else max(0.0, limit_s - self._elapsed_s())

    def _elapsed_s(self) -> float:
        return self._stand_ins.clock() - self._began

    def _say(self, stage: Literal["plan", "start", "measure", "compare"]) -> None:
        """Report where the session is."""
        if stage == "measure" and len(self._trials) == self._num_resumed + 1:
            self._first_s = self._elapsed_s()  # planning, starting and the first trial say little about the others
        if self._report is None:
            return
        done, now = len(self._trials), self._elapsed_s()
        left: float | None = None
        per_s: float | None = None
        since = done - self._num_resumed - 1
        if stage == "measure" and since > 0:
            per_s = since / max(now - self._first_s, 1e-9)
            left = (self._trials_wanted - done) / per_s + _COMPARE_S
            if self._settings.time_limit_s is not None:
                left = min(left, max(0.0, self._settings.time_limit_s - now) + _COMPARE_S)
        last, failed = (self._trials[-1] if self._trials else None), done - self._standing.num_ran
        first = next((trial for trial in self._trials if trial.measurement.time_s is not None), None)
        self._report(
            TuningProgress(
                stage, done, self._trials_wanted, failed, last, self._standing.best, elapsed_s=now, left_s=left,
                workers=self._workers, trials_per_s=per_s, estimate=self._costs.told, first=first,
            )
        )  # fmt: skip

    def _result(self) -> TuningResult:
        records = self._settings.records
        self._energy.read()
        return TuningResult(
            workload=self._target.workload,
            hardware=self._target.hardware,
            threads=self._target.threads,
            templates=tuple(template.name for template in self._target.templates),
            accuracy=self._target.accuracy,
            strategy=self._strategy_name,
            seed=self._seed,
            trials=list(self._trials),
            best_trial=self._best_trial(),
            plan_first=self._plan_trial(),
            compare=self._comparison,
            correction=self._correction,
            num_resumed=self._num_resumed,
            num_reused=self._num_reused,
            learned_trials=self._learned.num_trials,
            learned_workloads=self._learned.num_workloads,
            records=None if records is None else str(records),
            session=None if self._session is None else self._session.id,
            elapsed_s=self._elapsed_s(),
            workers=self._workers,
            bound=self._bound,
            ended=self._ended or "space",
            stop_at=self._settings.stop_at,
            patience=self._settings.patience,
            estimate=self._costs.told,
            measure_s=self._costs.spent_s(self._elapsed_s()),
            energy_j=self._energy.energy_j,
            energy_of=self._energy.names,
        )
