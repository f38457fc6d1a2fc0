"""Measure a model's kernels between planning and building, and divide the trials among them.

Each different product is one `TuningSession` in the record store. Its kernels read their weights from the same level
of memory as in a run of the model, because the fastest kernel in a separate loop is often not the fastest there.
Sessions take turns: the next trials go to the product with the most time to gain, which is its calls times the time of
a call above its bound, over the trials it has had. A gain of single kernels may be none of the whole model: therefore
the planned and the tuned build of the model run in turn at the end.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.core.workload.text import workload_to_text
from anatune.errors import RecordError
from anatune.files import scratch_folder
from anatune.measure.cpu.cold import level_of
from anatune.measure.place import WorkerState, add_earlier_trials
from anatune.model.bound import TimeBound, time_bound
from anatune.network.compiling.compiled import CompiledModel
from anatune.network.compiling.planning import PlannedKernel, predict_product, strip_epilogue, weight_bytes
from anatune.network.compiling.request import TRIALS_PER_TURN, CompileRequest
from anatune.network.graph.products import constant_operands
from anatune.network.graph.summary import KernelTuning, Latency, TuningSummary
from anatune.records.place import ServerAddress, is_missing
from anatune.records.schema import Record
from anatune.records.store import RecordStore
from anatune.templates import joined_templates, make_model
from anatune.templates.cpu.microkernels import constant_tensors
from anatune.tuning.ending import Ending, equalise_speed, rank_trials
from anatune.tuning.places.local import place_of
from anatune.tuning.places.place import Place
from anatune.tuning.result import ModelProgress, TuningProgress
from anatune.tuning.reuse import recorded_leaders, same_device
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings

__all__ = ["TuningOutcome", "choose_faster", "measure_latency", "tune_kernels"]

Clock = Callable[[], float]

_LEAST_TRIALS = 4
_RUN_TIME_S = 2.0
"""Time to spend on timed runs of one build of a model, s."""
_FEWEST_RUNS, _MOST_RUNS = 5, 200
"""Least and largest number of runs of each build."""


@dataclass
class _TunedProduct:
    """A product that kernels of the model share, and its trials so far.

    Attributes
    ----------
    calls : int
        Calls in one run of the model.
    predicted_s : float
        Predicted time of one call with the plan's first choice.
    bound : TimeBound
        Bound of one call: no schedule is faster.
    num_trials : int
        Number of trials so far.
    measured_s : float, optional
        Time of the best schedule so far.
    ended : str
        Why it gets no more trials: a reason of `tuning.ending.Ended`; empty while it gets some.
    """

    workload: Workload
    calls: int
    predicted_s: float
    bound: TimeBound
    num_trials: int = 0
    measured_s: float | None = None
    ended: str = ""

    @property
    def time_s(self) -> float:
        return self.predicted_s if self.measured_s is None else self.measured_s

    def gain_s(self, scale: float) -> float:
        """Return the time that a trial may gain in one run of the model: the gap to the bound over its trials so far.

        Parameters
        ----------
        scale : float
            Ratio of measured to predicted times of other kernels, for a product that has not been measured.
        """
        time_s = self.predicted_s * scale if self.measured_s is None else self.measured_s
        return self.calls * max(time_s - self.bound.time_s, 0.0) / (1 + self.num_trials)


class TuningOutcome(NamedTuple):
    """The planned kernels with their best measured schedules, and a summary of the measurements."""

    kernels: list[PlannedKernel]
    summary: TuningSummary


def tune_kernels(
    planned: Sequence[PlannedKernel],
    hardware: CpuSpec,
    threads: int,
    request: CompileRequest,
    stand_ins: StandIns | None = None,
) -> TuningOutcome:
    """Measure kernels and return them with the best schedules.

    Kernels whose second operand is computed by the model (attention) keep their plan: sessions measure with constants
    that are packed ahead.

    Parameters
    ----------
    hardware : CpuSpec
        This machine, with all its cores.
    request : CompileRequest
        Its `tuning_progress` is called after every trial.
    stand_ins : StandIns, optional
        Replacements for tests.

    Raises
    ------
    DeviceError
        `hardware` is not this machine.
    RecordError
        The record file cannot be used.
    TuningInterrupted
        Ctrl-C; all trials are in the record store.
    """
    scratch = scratch_folder(RecordError) if request.records is None else None
    try:
        records = request.records if scratch is None else scratch / "tuning.sqlite"
        host = None if stand_ins is None else stand_ins.host
        with contextlib.closing(place_of(TuningSettings(**request.measuring.place_options), host)) as place:
            tuning = _ModelTuning(planned, hardware, threads, request, stand_ins, records, place)
            ended = tuning.run()
            return TuningOutcome(tuning.choose_kernels(), tuning.summary(ended))
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


class _ModelTuning:
    """The state of one call of `tune_kernels`."""

    def __init__(
        self,
        planned: Sequence[PlannedKernel],
        hardware: CpuSpec,
        threads: int,
        request: CompileRequest,
        stand_ins: StandIns | None,
        records: str | Path | ServerAddress | None,
        place: Place,
    ) -> None:
        self._place = place
        self._planned, self._hardware, self._threads = planned, hardware, threads
        self._request, self._measuring = request, request.measuring
        self._stand_ins, self._records = stand_ins, records
        self._weights = weight_bytes(node for one in planned for node in one.nodes)
        # A board runs one kernel over and over: its weights stay where the previous run left them.
        self._cold = level_of(self._weights, hardware) if request.measuring.tracker is None else None
        self._products = _collect_products(planned, hardware.with_threads(threads), request.accuracy, self._cold)
        others = [one for one in planned if not _is_tunable(one)]
        self._untuned_s = sum(len(other.nodes) * other.prediction.time_s for other in others)
        self._clock = time.monotonic if stand_ins is None else stand_ins.clock
        self._start_s = self._clock()
        self._trials_before = 0
        self._workers: tuple[WorkerState, ...] = ()

    def run(self) -> str:
        """Measure until the budget is spent; return the reason for the end, as `TuningSummary` has it."""
        for product in self._products.values():
            trials = self._session(product, 1, None).read_recorded()
            self._update(product, trials)
            ending = Ending(product.bound.time_s, self._measuring.stop_at, self._measuring.patience)
            for number, trial in enumerate(trials, start=1):
                ending.add(trial.measurement, number)
            product.ended = ending.reason or ""
        self._trials_before = self._trials()
        per_turn = max(_LEAST_TRIALS, min(TRIALS_PER_TURN, self._measuring.trials // max(1, len(self._products))))
        while (trials_left := self._measuring.trials - self._trials()) > 0:
            if self._remaining_s() <= 0:
                return "time_limit"
            open_products = [product for product in self._products.values() if not product.ended]
            if not open_products:
                return "kernels"
            scale = self._median_ratio()
            product = max(open_products, key=lambda one: one.gain_s(scale))
            before = product.num_trials
            result = self._session(product, before + min(per_turn, trials_left), self._remaining_s()).run()
            self._workers = add_earlier_trials(self._workers, result.workers)
            self._update(product, result.trials)
            if result.ended in ("stop_at", "patience"):
                product.ended = result.ended
            elif product.num_trials == before:
                product.ended = "space"
        return "trials"

    def summary(self, ended: str) -> TuningSummary:
        """Return the number of trials, their time, and the result for each product."""
        kernels = tuple(
            KernelTuning(
                workload_to_text(one.workload), one.calls, one.num_trials, one.bound.time_s, one.predicted_s,
                one.measured_s, one.ended,
            )
            for one in self._products.values()
        )  # fmt: skip
        done = self._trials()
        return TuningSummary(ended, done, done - self._trials_before, self._clock() - self._start_s, kernels)

    def choose_kernels(self) -> list[PlannedKernel]:
        """Return the kernels with the best schedules in the record store; kernels without trials keep the plan's."""
        best_schedules: dict[Workload, Schedule] = {}
        if self._records is not None and (self._trials() or (self._measuring.reuse and not is_missing(self._records))):
            with RecordStore(self._records) as store:
                for workload in self._products:
                    best_record = self._find_best_record(store, workload)
                    if best_record is not None:
                        best_schedules[workload] = best_record.trial.schedule
        return [
            self._apply_schedule(one, best_schedules[strip_epilogue(one.workload)])
            if _is_tunable(one) and strip_epilogue(one.workload) in best_schedules
            else one
            for one in self._planned
        ]

    def _find_best_record(self, store: RecordStore, workload: Workload) -> Record | None:
        """Return the best record among those whose weights came from the same level of memory; else the best of all.

        Only records of exactly this device count. Without `reuse`, records of other sessions do not count.
        """
        key = (workload, self._hardware.name, self._threads)
        sessions = [
            session
            for session in store.sessions(*key)
            if session.settings.get("cold") == self._cold and same_device(session.hardware, self._hardware)
        ]
        best_records = [store.best(*key, one, accuracy=self._request.accuracy) for one in sessions]
        timed = [one for one in best_records if one is not None and one.trial.measurement.time_s is not None]
        if timed:
            return min(timed, key=lambda one: one.trial.measurement.time_s or 0.0)
        if not self._measuring.reuse:
            return None
        leaders = recorded_leaders(store, workload, self._hardware, self._threads, 1, accuracy=self._request.accuracy)
        return leaders[0] if leaders else None

    def _apply_schedule(self, kernel: PlannedKernel, measured: Schedule) -> PlannedKernel:
        """Return a kernel with the measured schedule of its product, and with its own epilogue."""
        hardware = self._hardware.with_threads(self._threads)
        schedule = msgspec.structs.replace(measured, workload=kernel.workload, hardware=hardware)
        prediction = predict_product(schedule, constant_operands(kernel.nodes[0]), hardware, self._weights)
        return kernel._replace(schedule=schedule, prediction=prediction, is_tuned=schedule != kernel.schedule)

    def _session(self, product: _TunedProduct, trials: int, limit_s: float | None) -> TuningSession:
        settings = TuningSettings(
            trials=trials, records=self._records, resume=True, threads=self._threads, accuracy=self._request.accuracy,
            cold=self._cold, reuse=self._measuring.reuse,
            **self._measuring.place_options, **self._measuring.stopping_options,
            time_limit_s=None if limit_s is None or limit_s == float("inf") else limit_s,
        )  # fmt: skip
        return TuningSession(
            product.workload, self._hardware, settings, self._listener(product), self._stand_ins, self._place
        )

    def _update(self, product: _TunedProduct, trials: Sequence[Trial]) -> None:
        product.num_trials = len(trials)
        best = next(iter(rank_trials(equalise_speed(trials))), None)
        product.measured_s = None if best is None else best.measurement.time_s

    def _listener(self, product: _TunedProduct) -> Callable[[TuningProgress], None] | None:
        """Return a function that reports the model's progress when a session reports its own; None: nobody listens."""
        if self._request.listeners.tuning_progress is None:
            return None
        report = self._request.listeners.tuning_progress

        def tell(progress: TuningProgress) -> None:
            if progress.stage == "start":  # it describes one turn of one kernel
                return
            if progress.stage == "measure":
                product.num_trials = progress.done
                if progress.best is not None:
                    product.measured_s = progress.best_s
            done, elapsed_s = self._trials(), self._clock() - self._start_s
            measured, total = done - self._trials_before, max(self._measuring.trials, done)
            left_s = elapsed_s / measured * (total - done) if measured else None
            if left_s is not None and self._measuring.time_limit_s is not None:
                left_s = min(left_s, max(self._remaining_s(), 0.0))
            products = self._products.values()
            predicted_s = self._untuned_s + sum(one.calls * one.predicted_s for one in products)
            measured_s = self._untuned_s + sum(one.calls * one.time_s for one in products)
            workload_text = workload_to_text(product.workload)
            report(
                ModelProgress(
                    workload_text, done, total, predicted_s, measured_s, elapsed_s, left_s,
                    add_earlier_trials(self._workers, progress.workers),
                    measured / elapsed_s if measured and elapsed_s > 0 else None,
                    self._time_bound(),
                )
            )  # fmt: skip

        return tell

    def _time_bound(self) -> TimeBound:
        """Return a bound of one run of the model: the bounds of tuned kernels and the predictions of the others."""
        products = self._products.values()
        worst = max(products, key=lambda one: one.calls * one.bound.time_s)
        unverified = dict.fromkeys(name for one in products for name in one.bound.unverified)
        seconds = self._untuned_s + sum(one.calls * one.bound.time_s for one in products)
        return TimeBound(seconds, worst.bound.bound_by, tuple(unverified))

    def _median_ratio(self) -> float:
        """Return the median ratio of measured to predicted times; 1 if nothing has been measured."""
        ratios = [one.measured_s / one.predicted_s for one in self._products.values() if one.measured_s is not None]
        return statistics.median(ratios) if ratios else 1.0

    def _trials(self) -> int:
        return sum(product.num_trials for product in self._products.values())

    def _remaining_s(self) -> float:
        limit_s = self._measuring.time_limit_s
        return float("inf") if limit_s is None else limit_s - (self._clock() - self._start_s)


def _is_tunable(kernel: PlannedKernel) -> bool:
    """Return whether all operands that a kernel packs are constants of the model."""
    return set(constant_tensors(kernel.workload)) <= set(constant_operands(kernel.nodes[0]))


def _collect_products(
    planned: Sequence[PlannedKernel], hardware: CpuSpec, accuracy: str, cold: str | None
) -> dict[Workload, _TunedProduct]:
    """Return the products that can be tuned, each once, in order."""
    products: dict[Workload, _TunedProduct] = {}
    for kernel in planned:
        if not _is_tunable(kernel):
            continue
        workload, calls = strip_epilogue(kernel.workload), len(kernel.nodes)
        if workload in products:
            products[workload].calls += calls
        else:
            bound = _bound_of(workload, hardware, accuracy, cold)
            products[workload] = _TunedProduct(workload, calls, kernel.prediction.time_s, bound)
    return products


def _bound_of(workload: Workload, hardware: CpuSpec, accuracy: str, cold: str | None) -> TimeBound:
    """Return a bound that no schedule of a product goes below, as its sessions compute it."""
    templates = joined_templates(workload, hardware, accuracy)
    fewest = {one.name: make_model(workload, hardware, one.name, accuracy).least_flop for one in templates}
    return time_bound(workload, hardware, fewest, cold=cold, constants=constant_tensors(workload))


def measure_latency(model: CompiledModel, clock: Clock = time.perf_counter) -> Latency:
    """Return a model's median time on random inputs."""
    call = model.prepared(*model.random_inputs())
    (times,) = _time_in_turn([call], clock)
    return Latency(statistics.median(times))


def choose_faster(tuned: CompiledModel, plan: CompiledModel, clock: Clock = time.perf_counter) -> Latency:
    """Return the latencies of two builds of a model, and which one is kept: the tuned one, unless it is slower.

    Both run in turn on the same random inputs. The median of the ratios within a round decides, so that a machine that
    slows down favours neither.
    """
    inputs = tuned.random_inputs()
    ours, others = _time_in_turn([tuned.prepared(*inputs), plan.prepared(*inputs)], clock)
    ratio = statistics.median(tuned_s / plan_s for tuned_s, plan_s in zip(ours, others, strict=True))
    tuned_s, plan_s = statistics.median(ours), statistics.median(others)
    return Latency(tuned_s, plan_s, True) if ratio <= 1.0 else Latency(plan_s, tuned_s, False)


def _time_in_turn(calls: list[Callable[[], object]], clock: Clock) -> list[list[float]]:
    """Return the seconds of calls that take turns; the order alternates from round to round."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    began = clock()
    while len(times[0]) < _FEWEST_RUNS or (len(times[0]) < _MOST_RUNS and clock() - began < _RUN_TIME_S * len(calls)):
        order = list(range(len(calls)))
        for index in order if len(times[0]) % 2 == 0 else order[::-1]:
            start = clock()
            calls[index]()
            times[index].append(clock() - start)
    return times
