"""A tuning session: the plan's first choice, then whatever the strategy asks for; every trial recorded as it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from anatune.arguments import (
    MOST_SEED,
    checked_flag,
    checked_function,
    checked_integer,
    checked_path,
    checked_seconds,
    shown,
)
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.keywords import renamed
from anatune.core.schedule import Schedule
from anatune.core.templates import CPU, template_of
from anatune.core.trial import Measurement, Trial
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, RecordError, SpaceError
from anatune.measure.cuda.runner import check_l2
from anatune.measure.named_hardware import HardwareLike, hardware
from anatune.measure.run.build_processes import Limits
from anatune.measure.run.memory import check_runs_here
from anatune.model.templates import tuning_template
from anatune.records.database import record_path
from anatune.records.schema import Session
from anatune.records.store import RecordStore
from anatune.search.base import DEFAULT_STRATEGY, Strategy, check_start, check_strategy
from anatune.tuning.interrupts import Interrupts
from anatune.tuning.machine import check_gpu, check_machine, choose_threads
from anatune.tuning.manifest import SOURCE, Manifest, read_manifest
from anatune.tuning.result import (
    Comparison,
    TuningInterrupted,
    TuningProgress,
    TuningResult,
    compare_contenders,
    rank_trials,
)
from anatune.tuning.source import Source, source_of_manifest, source_of_model

__all__ = ["MeasurerLike", "TuningSession", "tune"]

MOST_TRIALS = 100_000
COMPARED = "compare"
"""Source of the records of the final comparison: samples of a schedule that has its own trial already."""

_CONTENDERS = 3
_CONTENDING = 1.15
"""The final comparison takes so many of the best trials, up to so many times the best time, and the plan's choice."""
_COMPARE_S = 1.5
_MOST_ALIASES = 1000
"""Questions in a row whose programs are known already, after which the strategy counts as finished."""

Progress = Callable[[TuningProgress], None]


class MeasurerLike(Protocol):
    """What a session needs of `anatune.measure.run.measurer.Measurer`."""

    incumbent: float | None

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def measure(self, schedules: Iterable[Schedule]) -> Iterator[tuple[Schedule, Measurement]]:
        """Yield a measurement for each schedule, in order."""
        ...

    def compare(self, schedules: Sequence[Schedule], budget_s: float) -> list[Measurement]:
        """Return measurements of contenders that take turns."""
        ...


@renamed(budget_s="time_limit_s")
def tune(
    workload: Workload,
    hw: HardwareLike,
    trials: int = 64,
    strategy: str = DEFAULT_STRATEGY,
    records: str | Path | None = None,
    threads: int | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: Progress | None = None,
    limits: Limits | None = None,
    time_limit_s: float | None = None,
    *,
    template: str | None = None,
    l2: str | None = None,
    device: int = 0,
    backend: str | None = None,
    manifest: str | Path | None = None,
    start: str = "model",
) -> TuningResult:
    """Build, check and time schedules of `workload` on the present machine and return the fastest.

    The plan's own first choice is measured first; at the end it, the best and the runners-up are measured once more,
    in turn. Whatever a schedule does wrong is an outcome of its trial.

    Parameters
    ----------
    workload : Workload
        What is computed.
    hw : CpuSpec, GpuSpec, str or Path
        The present machine: "host", or a spec, or its name or file; its GPU likewise.
    trials : int
        How many schedules to measure, with those of a resumed session.
    strategy : str
        Who asks for schedules: one of `anatune.search.base.STRATEGIES`.
    records : str or Path, optional
        Record file; every trial is on the disk before the next question. None: nothing is kept.
    threads : int, optional
        Threads that CPU kernels run with; by default the cores of `hw` that this process may use. The library reads no
        environment variables; the command line passes TVM_NUM_THREADS.
    seed : int
        Of the strategy's choices and the operands; a resumed session keeps its own.
    resume : bool
        Go on with the latest session of this workload, hardware, threads and strategy in `records`; a new one begins if
        there is none.
    progress : callable, optional
        Called with a `TuningProgress` at the beginning, after every trial and before the comparison.
    limits : Limits, optional
        Time and memory of one schedule.
    time_limit_s : float, optional
        Ask for nothing new after this many seconds.
    template : {"cuda", "pipelined", "tensorcore"}, optional
        What a GPU's schedules look like; CUDA cores, with a staging pipeline where there can be one, by default.
    l2 : {"flush", "warm"}, optional
        GPUs: whether the L2 cache holds nothing of the operands when a launch begins (the default), or what the launch
        before left there.
    device : int
        GPUs: number of the device, as CUDA counts.
    backend : str, optional
        GPUs: "pycuda" or "cuda-bindings"; by default the one that works.
    manifest : str or Path, optional
        GPUs: folder of kernels that ``anatune tune --build-only`` built elsewhere; they are measured in their order,
        `strategy` and `seed` do not count. Neither TVM nor a compiler is needed.
    start : {"model", "paper"}
        Where the strategy starts: from the model's ranking, or as it was published. The plan's first choice is measured
        in any case. Sessions that differ in it are not resumed.

    Raises
    ------
    DeviceError
        `hw` is not the present machine; a GPU disappeared (all trials before that are kept).
    SpaceError, UnknownNameError
        An argument is wrong; no schedule is legal.
    SpecError
        The hardware's file is damaged.
    RecordError
        The record file cannot be used, or the disk is full: all trials before that are kept.
    MissingDependencyError
        TVM is not installed.
    TuningInterrupted
        Ctrl-C (a KeyboardInterrupt); its ``.result`` is what was found so far.
    """
    session = TuningSession(
        workload, hw, trials=trials, strategy=strategy, records=records, threads=threads, seed=seed, resume=resume,
        progress=progress, limits=limits, time_limit_s=time_limit_s, template=template, l2=l2, device=device,
        backend=backend, manifest=manifest, start=start,
    )  # fmt: skip
    return session.run()


class TuningSession:
    """One call of `tune`, with what tests replace: the measurer, the machine, the key of a program.

    Parameters
    ----------
    workload, hw, trials, strategy, records, threads, seed, resume, progress, limits, time_limit_s
        As for `tune`.
    template, l2, device, backend, manifest
        As for `tune`.
    host : CpuSpec or GpuSpec, optional
        The present machine, or its GPU; detected by default.
    measurer : callable, optional
        (workload, hardware, threads=, limits=, seed=, and for GPUs template=, l2=, device=, backend=) -> a context
        manager as `Measurer`.
    program_key : callable, optional
        Schedule -> key of the program it is lowered to: schedules of equal keys are measured once.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        workload: Workload,
        hw: HardwareLike,
        *,
        trials: int = 64,
        strategy: str = DEFAULT_STRATEGY,
        records: str | Path | None = None,
        threads: int | None = None,
        seed: int = 0,
        resume: bool = False,
        progress: Progress | None = None,
        limits: Limits | None = None,
        time_limit_s: float | None = None,
        template: str | None = None,
        l2: str | None = None,
        device: int = 0,
        backend: str | None = None,
        manifest: str | Path | None = None,
        start: str = "model",
        host: CpuSpec | GpuSpec | None = None,
        measurer: Callable[..., MeasurerLike] | None = None,
        program_key: Callable[[Schedule], Hashable] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(workload, Workload):
            raise SpaceError(f"workload is {shown(workload)}, expected a Workload; make one with anatune.matmul(...)")
        hw = hardware(hw)
        self._workload = workload
        self._trials_wanted = checked_integer("tune: trials", trials, 1, MOST_TRIALS)
        self._strategy_name = check_strategy(strategy)
        self._start = check_start(start)
        self._seed = checked_integer("tune: seed", seed, 0, MOST_SEED)
        self._time_limit_s = checked_seconds("tune: time_limit_s", time_limit_s)
        resume = checked_flag("tune: resume", resume)
        checked_function("tune: progress", progress)
        if limits is not None and not isinstance(limits, Limits):
            raise SpaceError(f"tune: limits is {shown(limits)}, expected anatune.Limits(...) or None")
        self._manifest: Manifest | None = None
        if manifest is not None:
            folder = checked_path("tune: manifest", manifest, RecordError)
            self._manifest = _fitting(read_manifest(folder), workload, hw)
            self._strategy_name, self._seed, template = SOURCE, self._manifest.seed, self._manifest.template
            self._trials_wanted = min(self._trials_wanted, len(self._manifest.entries))
        if isinstance(hw, GpuSpec):
            template = (template_of(template, hw) if template else tuning_template(workload, hw)).name
        self._template = template
        self._gpu: dict[str, Any] = {}
        """What only GPU sessions have; sessions that differ in it are not resumed."""
        if isinstance(hw, GpuSpec):
            self._gpu = {"template": template, "l2": check_l2(l2 or "flush")}
            self._on: dict[str, Any] = {"device": checked_integer("tune: device", device, 0, 1023), "backend": backend}
            self._hardware: CpuSpec | GpuSpec = check_gpu(hw, host, **self._on, built=manifest is not None)
        elif given := _of_gpus(template, l2, device, backend, manifest):
            raise SpaceError(f"tune: {given[0]} is for GPUs, and {hw.name} is none; leave it out")
        else:
            self._on = {}
            self._hardware = check_machine(hw, host)
        self._threads = choose_threads(self._hardware, threads)
        check_runs_here(workload, self._hardware)
        if resume and records is None:
            raise SpaceError("resume is True, but records is None; name the record file of the session to go on with")
        self._records = None if records is None else record_path(records)
        self._resume = resume
        self._report, self._limits = progress, limits
        self._make_measurer, self._clock = measurer, clock
        self._given_key = program_key
        self._began = clock()
        self._trials: list[Trial] = []
        self._asked: dict[str, str] = {}
        """Key of a schedule that was asked -> who asked."""
        self._programs: dict[Hashable, str] = {}
        """Key of a program -> key of the schedule that is measured for it."""
        self._aliases: dict[str, list[Schedule]] = {}
        self.damaged: list[str] = []
        """A line for each row of the record file that cannot be read: a resumed session goes on without it."""
        self._num_resumed = 0
        self._num_compared = 0
        self._store: RecordStore | None = None
        self._session: Session | None = None
        self._comparison: Comparison | None = None
        self._plan_first: Schedule | None = None
        self._source: Source
        self._strategy: Strategy
        self._program_key: Callable[[Schedule], Hashable]

    def run(self) -> TuningResult:
        """Tune; see `tune`."""
        with Interrupts() as interrupts:
            self._interrupts = interrupts
            try:
                if self._records is None:
                    self._run()
                else:
                    with RecordStore(self._records) as self._store:
                        self._run()
            except KeyboardInterrupt:
                raise TuningInterrupted(self._result()) from None
        return self._result()

    # ---- the steps -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._say("plan")
        history = self._take_up()
        self._source = source = self._make_source()
        self._strategy, self._program_key = source.strategy, self._given_key or source.program_key
        self._plan_first = source.first
        self._replay(history)
        make = self._make_measurer or source.measurer
        measurer: MeasurerLike = make(
            self._workload, source.hardware, threads=self._threads, limits=self._limits, seed=self._seed,
            **self._gpu, **self._on,
        )  # fmt: skip
        with measurer:
            if self._store is not None and self._session is None:
                self._session = self._new_session(self._store)
            measurer.incumbent = self._best_relative()
            try:
                self._measure(measurer)
                self._compare(measurer)
            except DeviceError as error:
                kept = f"kept in {self._records}, --resume goes on" if self._records else "lost with this session"
                raise DeviceError(f"{error}; {len(self._trials)} trials are {kept}") from None

    def _make_source(self) -> Source:
        if self._manifest is not None:
            return source_of_manifest(self._manifest)
        return source_of_model(
            self._workload, self._hardware, self._threads, self._template, self._strategy_name, self._seed, self._start
        )

    def _take_up(self) -> list[Trial]:
        """Return the trials of the session to resume, if there is one."""
        if self._store is None or not self._resume:
            return []
        # Detection may read another clock than it did then; the session goes on under the spec it began with.
        here, asked = self._hardware, (self._workload, self._hardware.name, self._threads, self._strategy_name)
        same = [
            one
            for one in self._store.sessions(*asked, on_damage=self.damaged.append)
            if (type(one.hardware), one.hardware.model, one.hardware.arch) == (type(here), here.model, here.arch)
            and {name: one.settings.get(name) for name in self._gpu} == self._gpu
            and one.settings.get("start", "model") == self._start
        ]
        found = next((one for one in reversed(same) if one.hardware == here), same[-1] if same else None)
        if found is None:
            return []
        self._session, self._seed, self._hardware = found, found.seed, found.hardware
        recorded = [record.trial for record in self._store.trials(session=found, on_damage=self.damaged.append)]
        return [trial for trial in recorded if trial.source != COMPARED]

    def _new_session(self, store: RecordStore) -> Session:
        return store.new_session(
            self._workload, self._hardware, self._threads, self._strategy_name, self._seed,
            {"trials": self._trials_wanted, "start": self._start, **self._gpu, **self._provenance()},
        )  # fmt: skip

    def _provenance(self) -> dict[str, Any]:
        """Return what a GPU's records have to say beside the environment."""
        if not self._gpu:
            return {}
        from anatune.codegen.cuda.nvrtc import FLAGS, compiler_version
        from anatune.measure.cuda.detect import gpu_environment

        built = self._manifest
        return {
            **gpu_environment(**self._on),
            "built": "here" if built is None else "elsewhere",
            "compiler": compiler_version() if built is None else built.compiler,
            "flags": list(FLAGS if built is None else built.flags),
        }

    def _replay(self, history: list[Trial]) -> None:
        """Go through what was measured before, as if it came back now."""
        self._num_resumed = len(history)
        for trial in history:
            self._asked[trial.schedule.key] = trial.source
            self._programs.setdefault(self._program_key(trial.schedule), trial.schedule.key)
        self._trials += history
        self._strategy.tell(history)
        if first := next((trial for trial in history if trial.source == "plan"), None):
            self._plan_first = first.schedule

    def _measure(self, measurer: MeasurerLike) -> None:
        while True:
            done = len(self._trials)
            for schedule, measurement in measurer.measure(self._questions()):
                with self._interrupts.held():
                    self._finish(schedule, measurement)
                self._say("measure")
            if len(self._trials) == done:
                return

    def _questions(self) -> Iterator[Schedule]:
        """Yield what is to be measured; ends for now where the strategy wants to be told first."""
        while len(self._asked) < self._trials_wanted and not self._is_late():
            schedule = self._question()
            if schedule is None:
                return
            yield schedule

    def _question(self) -> Schedule | None:
        first = self._plan_first
        if first is not None and first.key not in self._asked:
            return self._admit(first, self._program_key(first), "plan")
        for _ in range(_MOST_ALIASES):
            asked = self._strategy.ask(1)
            if not asked:
                return None
            schedule = asked[0]
            if schedule.key in self._asked:  # the plan's first choice: the strategy is told when it is done
                continue
            program = self._program_key(schedule)
            original = self._programs.get(program)
            if original is None:
                return self._admit(schedule, program, self._strategy_name)
            done = next((trial for trial in self._trials if trial.schedule.key == original), None)
            if done is None:
                self._aliases.setdefault(original, []).append(schedule)
            else:
                self._strategy.tell([Trial(schedule, done.measurement, done.number)])
        return None

    def _admit(self, schedule: Schedule, program: Hashable, source: str) -> Schedule:
        self._asked[schedule.key] = source
        self._programs.setdefault(program, schedule.key)
        return schedule

    def _finish(self, schedule: Schedule, measurement: Measurement) -> None:
        """Record a trial, then tell the strategy."""
        trial = Trial(
            schedule,
            measurement,
            number=1 + max((trial.number for trial in self._trials), default=-1),
            source=self._asked[schedule.key],
            predicted_s=self._source.predicted(schedule),
            threads=self._threads,
        )
        if self._store is not None and self._session is not None:
            self._store.append(self._session, trial)
        self._trials.append(trial)
        same = [Trial(alias, measurement, trial.number) for alias in self._aliases.pop(schedule.key, [])]
        self._strategy.tell([trial, *same])

    def _compare(self, measurer: MeasurerLike) -> None:
        """Measure the best trials and the plan's first choice in turn."""
        ranked = rank_trials(self._trials)
        plan = self._plan_trial()
        if not ranked or plan is None:
            return
        limit = _CONTENDING * _time(ranked[0], ranked)
        chosen = [trial for trial in ranked[:_CONTENDERS] if _time(trial, ranked) <= limit]
        if plan not in chosen and plan.measurement.time_s is not None:
            chosen.append(plan)
        if len(chosen) < 2:
            return
        self._say("compare")
        measurements = measurer.compare([trial.schedule for trial in chosen], _COMPARE_S)
        self._comparison = compare_contenders(chosen, measurements, plan.number)
        if self._store is not None and self._session is not None:
            with self._interrupts.held():
                for trial, measurement in zip(chosen, measurements, strict=True):
                    again = Trial(trial.schedule, measurement, trial.number, COMPARED, trial.predicted_s, self._threads)
                    self._store.append(self._session, again)

    # ---- small things ----------------------------------------------------------------------------------------

    def _plan_trial(self) -> Trial | None:
        if self._plan_first is None:
            return None
        key = self._plan_first.key
        return next((trial for trial in self._trials if trial.schedule.key == key), None)

    def _best_trial(self) -> Trial | None:
        if self._comparison is not None:
            best = self._comparison.best
            return next(trial for trial in self._trials if trial.number == best)
        return next(iter(rank_trials(self._trials)), None)

    def _best_relative(self) -> float | None:
        values = [trial.measurement.relative for trial in self._trials]
        return min((value for value in values if value is not None), default=None)

    def _elapsed_s(self) -> float:
        return self._clock() - self._began

    def _is_late(self) -> bool:
        return self._time_limit_s is not None and self._elapsed_s() > self._time_limit_s

    def _say(self, stage: Any) -> None:
        """Report where the session is."""
        if stage == "measure" and len(self._trials) == self._num_resumed + 1:
            self._first_s = self._elapsed_s()  # planning, starting and the first trial say little about the others
        if self._report is None:
            return
        done, now = len(self._trials), self._elapsed_s()
        left: float | None = None
        since = done - self._num_resumed - 1
        if stage == "measure" and since > 0:
            left = (now - self._first_s) / since * (self._trials_wanted - done) + _COMPARE_S
            if self._time_limit_s is not None:
                left = min(left, max(0.0, self._time_limit_s - now) + _COMPARE_S)
        ranked = rank_trials(self._trials)
        self._report(
            TuningProgress(
                stage=stage,
                done=done,
                total=self._trials_wanted,
                failures=done - len(ranked),
                trial=self._trials[-1] if self._trials else None,
                best=ranked[0] if ranked else None,
                elapsed_s=now,
                left_s=left,
            )
        )

    def _result(self) -> TuningResult:
        return TuningResult(
            workload=self._workload,
            hardware=self._hardware,
            threads=self._threads,
            strategy=self._strategy_name,
            seed=self._seed,
            trials=list(self._trials),
            best_trial=self._best_trial(),
            plan_first=self._plan_trial(),
            compare=self._comparison,
            num_resumed=self._num_resumed,
            records=None if self._records is None else str(self._records),
            session=None if self._session is None else self._session.id,
            elapsed_s=self._elapsed_s(),
        )


def _time(trial: Trial, ranked: Sequence[Trial]) -> float:
    """Return what `rank_trials` sorted by."""
    relative = trial.measurement.relative
    if relative is not None and all(one.measurement.relative is not None for one in ranked):
        return relative
    return trial.measurement.time_s or math.inf


def _of_gpus(template: object, l2: object, device: object, backend: object, manifest: object) -> list[str]:
    """Return which arguments that only GPUs have were given."""
    given = {"template": template not in (None, CPU.name), "l2": l2 is not None, "device": device != 0}
    given |= {"backend": backend is not None, "manifest": manifest is not None}
    return [name for name, is_given in given.items() if is_given]


def _fitting(manifest: Manifest, workload: Workload, hw: CpuSpec | GpuSpec) -> Manifest:
    """Return the manifest if it is of this workload and kind of GPU."""
    if manifest.workload != workload:
        raise SpaceError(
            f"manifest: its kernels compute {manifest.workload.describe()}, expected {workload.describe()}; "
            "name the manifest of this workload"
        )
    if hw.arch != manifest.hardware.arch:
        raise SpaceError(
            f"manifest: its kernels are for {manifest.hardware.name} ({manifest.hardware.arch}), expected {hw.arch} "
            f"for {hw.name}; build them with --hw {hw.name}"
        )
    return manifest
