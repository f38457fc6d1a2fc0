"""Measuring schedules on boards: built here on all cores, measured by as many boards as the tracker has of a key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, DeviceError, SpaceError
from anatune.fleet.boards.description import WAIT_S, BoardDescription
from anatune.measure.place import WorkerState
from anatune.measure.run.build_processes import BuildJob, BuildProcesses, Limits
from anatune.measure.run.cores import CorePlan
from anatune.measure.run.measurer import Entries, Measurer, MeasurerSettings
from anatune.measure.run.process import Reply, Worker
from anatune.measure.run.runner import RunReport
from anatune.measure.run.runner_process import RunnerProcess
from anatune.measure.run.timing import CPU_PROTOCOL
from anatune.resources import usable_cores

if TYPE_CHECKING:
    from typing import Unpack

BOARD_ENTRIES = Entries(
    builder="anatune.codegen.cpu.lower:build_schedule",
    reference="anatune.codegen.cpu.probes:build_parallel_reference",
    session="anatune.fleet.boards.session:BoardSession",
)

_MOST_BUILDERS = 16
_MOST_BOARDS = 64
SILENCE_S = 5.0
"""A board ends what exceeds its limit itself; one that still says nothing after so many seconds more is lost."""


class BoardRunner(RunnerProcess):
    """The process that talks with one board, and with another one when that is lost.

    A candidate that loses its board is tried once more, with any board: it may not be to blame.

    Attributes
    ----------
    board : BoardDescription or None
        Which one it is; None before the first answer.
    trials, failed : int
        Answers, and those without a time.
    """

    functions = "anatune.fleet.boards.session"

    def __init__(self, worker: Worker, limits: Limits, name: str) -> None:
        super().__init__(worker, msgspec.structs.replace(limits, run_s=limits.run_s + SILENCE_S), name)
        self.board: BoardDescription | None = None
        self.trials = self.failed = 0

    def finish_set_up(self) -> None:
        """Wait for the board; errors as `RunnerProcess.finish_set_up`."""
        super().finish_set_up()
        self._learn()

    def _learn(self) -> None:
        """Ask the process which board it has; after a loss it may be another one. The board is not asked."""
        self.worker.submit(f"{self.functions}:present", {}, SILENCE_S)
        reply = self.worker.wait(SILENCE_S)
        if isinstance(reply.value, BoardDescription):
            self.board, self.name = reply.value, reply.value.name

    def collect(self, incumbent: float | None) -> BuildJob | None:
        """Return the job that is done; as `RunnerProcess.collect`."""
        job = super().collect(incumbent)
        if job is not None and job.measurement is not None:
            self.trials += 1
            self.failed += job.measurement.outcome is not Outcome.OK
        return job

    def _may_go_well(self, reply: Reply) -> bool:
        if reply.error in ("BoardLostError", "DeviceError") or reply.kind == "timeout":
            self.worker.kill()
            return True
        return super()._may_go_well(reply)

    def _record_failure(self, job: BuildJob, reply: Reply) -> None:
        if reply.error == "BoardLateError":
            self.worker.kill()
            reply = reply._replace(kind="timeout", error="")
        elif reply.error == "BoardLostError" or reply.kind == "timeout":
            message = reply.message if reply.error else f"board {self.name} says nothing any more: {reply.message}"
            reply = reply._replace(kind="error", error="DeviceError", message=f"{message}, twice")
        super()._record_failure(job, reply)

    def _measurement(self, report: RunReport, build_s: float, run_s: float) -> Measurement:
        self._learn()
        return super()._measurement(report, build_s, run_s)


class BoardMeasurer(Measurer):
    """Builds schedules of one workload here, checks and times them on boards; see `Measurer`.

    Nothing is timed on this machine, so that all its cores build. Answers come in any order where there are several
    boards. A board that is lost is asked for again; if none comes, the others go on, and without any the session ends
    with a DeviceError.

    Parameters
    ----------
    hardware
        The boards' processor, with the cores that kernels use.
    tracker, key : str
        Who knows the boards, and under which name.
    device : CpuSpec, optional
        What a board has to be, with all its cores; `hardware` by default. Others are refused.
    boards : int
        How many to use at most.
    cold : None
        Constants always stay where the run before left them.
    wait_s : float
        Most seconds to wait for a free board.
    settings
        See `MeasurerSettings`; the threads are those over there.

    Raises
    ------
    DeviceError
        The hardware is no CPU.
    SpaceError
        No such number of threads; `cold` is given.
    """

    usual_entries, usual_protocol = BOARD_ENTRIES, CPU_PROTOCOL

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        tracker: str,
        key: str,
        device: CpuSpec | None = None,
        cold: str | None = None,
        boards: int = 1,
        wait_s: float | None = None,
        **settings: Unpack[MeasurerSettings],
    ) -> None:
        threads, limits = settings.get("threads", 1), settings.get("limits") or Limits()
        wait_s = WAIT_S if wait_s is None else wait_s
        if hardware.kind != "cpu":
            raise DeviceError(f"{hardware.name} is no CPU, and only CPUs of boards can be measured")
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= hardware.compute.num_cores:
            raise SpaceError(f"threads is {threads!r}, expected an integer from 1 to {hardware.compute.num_cores}")
        if cold is not None:
            raise SpaceError(f"cold is {cold!r}, but boards measure with warm caches only; leave it out")
        settings["limits"] = msgspec.structs.replace(limits, start_s=limits.start_s + wait_s)
        options = {
            "tracker": tracker,
            "key": key,
            "device": device or hardware,
            "threads": threads,
            "wait_s": wait_s,
            "run_s": limits.run_s,
        }
        super().__init__(workload, hardware, options, **settings)
        self._cores = CorePlan((), (), min(_MOST_BUILDERS, usable_cores()), True)
        self._key, self._boards = key, max(1, min(boards, _MOST_BOARDS))
        self._gone: list[WorkerState] = []

    def _begin_reference(self, builders: BuildProcesses, folder: Path) -> None:
        builders.begin_reference(self._entries.reference, self.hardware.with_threads(self.threads), folder)

    def _make_runners(self, environment: Mapping[str, str]) -> list[RunnerProcess]:
        def runner(number: int) -> BoardRunner:
            worker = Worker("runner", environment=environment, setup_s=self.limits.start_s)
            return BoardRunner(worker, self.limits, f"{self._key}#{number}")

        return [runner(number) for number in range(self._boards)]

    def _refused(self, runner: RunnerProcess, error: AnatuneError) -> None:
        assert isinstance(runner, BoardRunner)
        refused = "is refused" in str(error)
        self._gone.append(_state(runner, "refused" if refused else "lost", str(error)))

    def workers(self) -> tuple[WorkerState, ...]:
        """Return the boards, those that are gone first."""
        here = [_state(runner, "ready", "") for runner in self._runners if isinstance(runner, BoardRunner)]
        return (*self._gone, *here)


def _state(runner: BoardRunner, state: Literal["ready", "lost", "refused"], why: str) -> WorkerState:
    device, there = ("", None) if runner.board is None else (runner.board.hardware.model, runner.board.environment)
    return WorkerState(runner.name, device, state, why, runner.trials, runner.failed, there)
