"""MetaSchedule's objects as far as they are read here: what the classes of TVM that are passed have to have."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Protocol

from anatune.adapters.logs import measured
from anatune.codegen.compat import import_tvm
from anatune.core.trial import Measurement, Outcome
from anatune.untyped import ms, tvm

__all__ = [
    "Candidate", "Context", "RunnerResult", "TracedSchedule", "TuningRecord", "derived", "measurement_of", "run_secs",
]  # fmt: skip


class Context(Protocol):
    """A ``TuneContext``: the function that is tuned, and for which target."""

    mod: tvm.IRModule
    target: tvm.target.Target
    task_name: str | None
    rand_state: int
    num_threads: int


class TracedSchedule(Protocol):
    """A ``tvm.s_tir.Schedule``."""

    mod: tvm.IRModule
    trace: tvm.s_tir.schedule.Trace


class Candidate(Protocol):
    """A ``MeasureCandidate``."""

    sch: TracedSchedule


class Runs(Protocol):
    """What has been run: seconds, None where it failed."""

    run_secs: Iterable[float] | None


class RunnerResult(Runs, Protocol):
    """What the runner says of a candidate."""

    error_msg: str | None


class TuningRecord(Runs, Protocol):
    """A record of a database; ``workload.mod`` is the function as it was before."""

    trace: tvm.s_tir.schedule.Trace
    workload: ms.database.Workload


@cache
def derived(kind: type, base: type) -> type:
    """Return `kind` as a class that derives from one of TVM's, which is imported late, and that TVM can call."""
    body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    made: type = import_tvm().ir.utils.derived_object(type(kind.__name__, (base,), body))
    return made


def run_secs(runs: Runs) -> tuple[float, ...]:
    """Return seconds as Python's numbers; TVM's are objects."""
    return tuple(float(seconds) for seconds in runs.run_secs or ())


def measurement_of(result: RunnerResult) -> Measurement:
    """Return a runner's result as a measurement."""
    if result.error_msg is not None:
        lines = str(result.error_msg).strip().splitlines() or ["failed"]
        return Measurement(Outcome.RUN_ERROR, message=lines[-1])
    return measured(run_secs(result), None)
