"""Measuring kernels that were built before: a measurer of any kind of device without builders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement
from anatune.errors import SpaceError
from anatune.measure.run.build_processes import BuildJob, BuildProcesses
from anatune.measure.run.measurer import Measurer
from anatune.measure.run.process import refusal


class Prebuilt(Measurer):
    """A mixin for measurers that build nothing; it comes before the measurer of a kind of device.

    Attributes
    ----------
    built : mapping of str to artifact or Measurement
        Key of a schedule -> its artifact, or the failure of its build. May be changed between calls.
    """

    def __init__(self, *arguments: Any, built: Mapping[str, object], reference: object, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.built = built
        self._built_reference = reference

    def _make_builders(self, environment: Mapping[str, str]) -> BuildProcesses:
        return BuildProcesses(self._entries.builder, [], self.limits)

    def _begin_reference(self, builders: BuildProcesses, folder: Path) -> None:
        pass

    def _reference(self, builders: BuildProcesses) -> object:
        return self._built_reference

    def _job(self, schedule: Schedule) -> BuildJob:
        job = super()._job(schedule)
        result = self.built.get(schedule.key)
        if result is None:
            raise SpaceError(f"there is no kernel for the schedule {schedule.key}; build it again")
        if isinstance(result, Measurement):
            job.measurement = result
        else:
            job.artifact = result
        return job

    def _keep(self, job: BuildJob) -> None:
        pass  # the builds belong to the caller

    def reference_s(self, samples: int) -> float:
        """Return the seconds of one run of the reference kernel: the best of some samples.

        Raises
        ------
        RunError, DeviceError, MissingDependencyError
            It does not run.
        """
        self._drain()
        worker = self._runners[0].worker
        # The reference kernel is known to end: a long run means a busy machine, so the limit includes the start time.
        limit_s = self.limits.start_s + self.limits.run_s
        worker.submit("anatune.measure.run.runner:reference_s", {"samples": samples}, limit_s)
        reply = worker.wait(self.limits.start_s + limit_s)
        if not isinstance(reply.value, float):
            raise refusal(reply, "the reference kernel does not run")
        return reply.value


def prebuilt(measurer: type[Measurer]) -> Any:
    """Return a subclass of `measurer` that takes ``built=`` and ``reference=`` instead of building."""
    return type(f"Prebuilt{measurer.__name__}", (Prebuilt, measurer), {})
