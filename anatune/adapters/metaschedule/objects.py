"""Protocols of the MetaSchedule objects that are read here, and helpers for them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Protocol

from anatune.adapters.logs import read_times
from anatune.codegen.compat import import_tvm
from anatune.core.trial import Measurement, Outcome
from anatune.untyped import ms, tvm

__all__ = [
    "Context", "MeasureCandidate", "RunnerResult", "TracedSchedule", "TuningRecord", "derive_class", "measurement_of",
    "run_secs",
]  # fmt: skip


class Context(Protocol):
    """A ``TuneContext``: the function that is tuned, and its target."""

    mod: tvm.IRModule
    target: tvm.target.Target
    task_name: str | None
    rand_state: int
    num_threads: int


class TracedSchedule(Protocol):
    """A ``tvm.s_tir.Schedule``."""

    mod: tvm.IRModule
    trace: tvm.s_tir.schedule.Trace


class MeasureCandidate(Protocol):
    """A ``MeasureCandidate``."""

    sch: TracedSchedule


class RunTimes(Protocol):
    """The seconds of runs, or None for a failure."""

    run_secs: Iterable[float] | None


class RunnerResult(RunTimes, Protocol):
    """The runner's result for a candidate."""

    error_msg: str | None


class TuningRecord(RunTimes, Protocol):
    """A record of a database; ``workload.mod`` is the function before scheduling."""

    trace: tvm.s_tir.schedule.Trace
    workload: ms.database.Workload


@cache
def derive_class(template: type, base: type) -> type:
    """Return a class with the members of `template` that derives from TVM's class `base`, so that TVM can call it."""
    body = {name: value for name, value in vars(template).items() if name not in ("__dict__", "__weakref__")}
    derived_class: type = import_tvm().ir.utils.derived_object(type(template.__name__, (base,), body))
    return derived_class


def run_secs(runs: RunTimes) -> tuple[float, ...]:
    """Return the seconds as Python numbers instead of TVM objects."""
    return tuple(float(seconds) for seconds in runs.run_secs or ())


def measurement_of(result: RunnerResult) -> Measurement:
    """Convert a runner's result to a measurement."""
    if result.error_msg is not None:
        lines = str(result.error_msg).strip().splitlines() or ["failed"]
        return Measurement(Outcome.RUN_ERROR, message=lines[-1])
    return read_times(run_secs(result), None)
