"""Measuring schedules on boards: kernels are built here on all cores and measured by all boards with a key."""

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
"""The seconds after a board's own time limit after which a board that does not answer counts as lost."""


class BoardRunner(RunnerProcess):
    """The process that talks with one board, and with another board if that one is lost.

    A candidate whose board is lost is measured once more on any board, because it may not be the cause.

    Attributes
    ----------
    board : BoardDescription or None
        The board; None before its first answer.
    trials, failed : int
        The number of trials, and of failures among them.
    """

    functions = "anatune.fleet.boards.session"

    def __init__(self, worker: Worker, limits: Limits, name: str) -> None:
        super().__init__(worker, msgspec.structs.replace(limits, run_s=limits.run_s + SILENCE_S), name)
        self.board: BoardDescription | None = None
        self.trials = self.failed = 0

    def finish_set_up(self) -> None:
        """Wait for the board, with the errors of `RunnerProcess.finish_set_up`."""
        super().finish_set_up()
        self._learn()

    def _learn(self) -> None:
        """Ask the process, not the board, for its current board, which may change after a loss."""
        self.worker.submit(f"{self.functions}:present", {}, SILENCE_S)
        reply = self.worker.wait(SILENCE_S)
        if isinstance(reply.value, BoardDescription):
            self.board, self.name = reply.value, reply.value.name

    def collect(self, incumbent: float | None) -> BuildJob | None:
        """Return the finished job, see `RunnerProcess.collect`."""
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
            message = reply.message if reply.error else f"board {self.name} does not answer any more: {reply.message}"
            reply = reply._replace(kind="error", error="DeviceError", message=f"{message}; this happened twice")
        super()._record_failure(job, reply)

    def _measurement(self, report: RunReport, build_s: float, run_s: float) -> Measurement:
        self._learn()
        return super()._measurement(report, build_s, run_s)


class BoardMeasurer(Measurer):
    """The `Measurer` that builds schedules of one workload here, and checks and times them on boards.

    All cores of this machine build, because nothing is timed here. With several boards, results come in any order. A
    lost board is replaced by another free one. If there is none, the other boards go on; without any board, the session
    ends with a DeviceError.

    Parameters
    ----------
    hardware
        The boards' processor, with the cores that kernels use.
    tracker, key : str
        The address of the tracker, and the key of the boards.
    device : CpuSpec, optional
        The device that each board has to be, with all its cores; `hardware` by default. Other boards are refused.
    boards : int
        The most boards to use.
    cold : None
        Boards measure with warm caches only.
    wait_s : float
        The most seconds to wait for a free board.
    settings
        See `MeasurerSettings`. The threads are those of the board.

    Raises
    ------
    DeviceError
        The hardware is not a CPU.
    SpaceError
        The number of threads is not possible, or `cold` is given.
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
            raise DeviceError(f"{hardware.name} is not a CPU, and only CPUs of boards can be measured")
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

    def _handle_refusal(self, runner: RunnerProcess, error: AnatuneError) -> None:
        assert isinstance(runner, BoardRunner)
        refused = "is refused" in str(error)
        self._gone.append(_state(runner, "refused" if refused else "lost", str(error)))

    def workers(self) -> tuple[WorkerState, ...]:
        """Return the states of the boards, lost boards first."""
        current = [_state(runner, "ready", "") for runner in self._runners if isinstance(runner, BoardRunner)]
        return (*self._gone, *current)


def _state(runner: BoardRunner, state: Literal["ready", "lost", "refused"], why: str) -> WorkerState:
    board = runner.board
    device, where = ("", None) if board is None else (board.hardware.model, board.environment)
    return WorkerState(runner.name, device, state, why, runner.trials, runner.failed, where)
