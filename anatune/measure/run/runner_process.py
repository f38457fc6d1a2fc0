"""A runner process, which checks and times built kernels for a session."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from anatune.core.trial import Measurement, Outcome
from anatune.errors import MissingDependencyError
from anatune.measure.run.build_processes import BuildJob, Limits
from anatune.measure.run.process import Reply, Worker, refusal
from anatune.measure.run.runner import RunReport, Setting

_LOST = ("LostDeviceError", "DeviceError")
_DEAD = (*_LOST, "KernelFaultError")
"""Errors after which a process cannot be used any more, see `anatune.errors`."""


class RunnerProcess:
    """A process that checks and times kernels on one device, and the handling of its failures.

    Parameters
    ----------
    worker : Worker
        The process.
    limits
        Limits on the time of one trial.
    name : str
        Name in measurements (`Measurement.worker`); "" for this machine.

    Attributes
    ----------
    job : BuildJob or None
        The job that runs now.
    functions : str
        Module with the functions that the process runs: `set_up`, `run`, `contest`.
    """

    functions = "anatune.measure.run.runner"

    def __init__(self, worker: Worker, limits: Limits, name: str = "") -> None:
        self.worker, self.name = worker, name
        self.job: BuildJob | None = None
        self._limits = limits

    def begin_set_up(self, setting: Setting) -> None:
        """Send the process its setting; `finish_set_up` waits for it."""
        self.worker.setup = (f"{self.functions}:set_up", {"setting": setting})
        self.worker.submit(*self.worker.setup, limit_s=self._limits.start_s)

    def finish_set_up(self) -> None:
        """Wait for the set-up that `begin_set_up` began.

        Raises
        ------
        RunError, DeviceError, MissingDependencyError
            The process cannot be set up.
        """
        reply = self.worker.wait(2 * self._limits.start_s)
        if reply.kind != "value":
            raise refusal(reply, "the runner process cannot be set up")

    def begin(self, job: BuildJob, incumbent: float | None) -> None:
        """Check and time the kernel of a job."""
        self.job = job
        arguments = {"artifact": job.artifact, "incumbent": incumbent}
        self.worker.submit(f"{self.functions}:run", arguments, self._limits.run_s)

    def collect(self, incumbent: float | None) -> BuildJob | None:
        """Return the finished job with its measurement; None if there is none.

        Raises
        ------
        MissingDependencyError
            A package is missing.
        RunError, DeviceError
            A new process cannot be set up.
        """
        reply = self.worker.poll() if self.job is not None else None
        if reply is None or self.job is None:
            return None
        job = self.job
        if isinstance(reply.value, RunReport):
            job.measurement = self._measurement(reply.value, job.build_s, reply.seconds)
        elif not job.repeated and self._may_go_well(reply):
            job.repeated = True
            self.begin(job, incumbent)
            return None
        else:
            self._record_failure(job, reply)
        self.job = None
        return job

    def contest(self, jobs: Sequence[BuildJob], budget_s: float) -> None:
        """Time the kernels of jobs in turn, and give each job its measurement."""
        arguments = {"artifacts": [job.artifact for job in jobs], "budget_s": budget_s}
        limit_s = budget_s + self._limits.run_s * len(jobs)
        started = time.monotonic()
        for _ in range(2):
            self.worker.submit(f"{self.functions}:contest", arguments, limit_s)
            reply = self.worker.wait(self._limits.start_s + limit_s)
            if not self._may_go_well(reply):
                break
        share = (time.monotonic() - started) / len(jobs)
        reports = reply.value if isinstance(reply.value, list) else [None] * len(jobs)
        for job, report in zip(jobs, reports, strict=True):
            if report is None:
                self._record_failure(job, reply)
            else:
                job.measurement = self._measurement(report, job.build_s, share)

    def drain(self) -> None:
        """Wait for a run of an abandoned session."""
        if self.worker.busy:
            self.worker.wait(self._limits.start_s + max(self._limits.build_s, self._limits.run_s))
        self.job = None

    def _may_go_well(self, reply: Reply) -> bool:
        """Return whether a new process may succeed, because an earlier kernel may have damaged this one."""
        return reply.kind in ("died", "memory") and not reply.fresh

    def _record_failure(self, job: BuildJob, reply: Reply) -> None:
        if reply.error == "MissingDependencyError":
            raise MissingDependencyError(reply.message)
        if reply.error in _DEAD:
            self.worker.kill()  # a new process may find the device again; if not, its set-up fails
        if reply.error in _LOST:
            outcome, message = Outcome.LOST_DEVICE, reply.message
        elif reply.kind == "timeout":
            outcome, message = Outcome.RUN_TIMEOUT, f"run: {reply.message}"
        else:
            outcome, message = Outcome.RUN_ERROR, reply.message
        job.fail(outcome, message, run_s=reply.seconds)
        assert job.measurement is not None
        job.measurement = msgspec.structs.replace(job.measurement, worker=self.name)

    def _measurement(self, report: RunReport, build_s: float, run_s: float) -> Measurement:
        """Return a report as a measurement."""
        answer, timings = report
        return Measurement(
            Outcome.OK if answer.ok else Outcome.WRONG_RESULT,
            answer.message,
            timings.times_s,
            timings.reference_times_s,
            None if np.isnan(answer.max_rel_error) else answer.max_rel_error,
            build_s,
            run_s,
            timings.stopped_early,
            self.name,
            timings.energy_j,
        )
