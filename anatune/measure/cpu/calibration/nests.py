"""Builds and times generated nests for a calibration, as a tuning session does: builder processes, runner, checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement
from anatune.core.workload.nest import Workload
from anatune.measure.cpu.calibration.workloads import diverse_schedules
from anatune.measure.cpu.measurer import CpuMeasurer
from anatune.measure.run.measurer import Measurer
from anatune.measure.run.timing import TimingProtocol
from anatune.templates.cpu.model.model import CpuModel

_PROTOCOL = TimingProtocol(sample_s=0.004, budget_s=0.06, patience_s=0.5, least_samples=4, slower=4.0)
"""Shorter than in tuning: many nests of a few per cent rather than few of one. None is stopped for being slow: how slow
it is shall be learned."""
_MOST_SCHEDULES = 24


def measure_nests(
    hardware: CpuSpec,
    workloads: Sequence[Workload],
    *,
    threads: int,
    budget_s: float,
    progress: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
    make: Callable[..., Measurer] = CpuMeasurer,
) -> Iterator[tuple[Workload, Schedule, Measurement]]:
    """Measure the first choice of the model and diverse others for each workload, as many as there is time for.

    Each workload gets an equal part of the time that is left when its turn comes.

    Parameters
    ----------
    hardware : CpuSpec
        The calibrated spec of all cores.
    threads : int
        Threads that kernels run with.
    budget_s : float
        Seconds for all.
    progress
        Called with the share that is done.
    make
        Makes the measurer: of this machine, or of the one that `hardware` describes.

    Raises
    ------
    RunError, MissingDependencyError
        The processes cannot be started; a package is missing.
    """
    if not workloads:
        return
    ends = clock() + budget_s
    here = hardware.with_threads(threads)
    largest = max(workloads, key=lambda workload: sum(access.num_elements for access in workload.tensors))
    with make(largest, here, threads=threads, protocol=_PROTOCOL) as measurer:  # memory for the largest
        for number, workload in enumerate(workloads):
            now = clock()
            if now >= ends:
                return
            own_end = now + (ends - now) / (len(workloads) - number)
            schedules = diverse_schedules(CpuModel(workload, here), _MOST_SCHEDULES)
            if workload != measurer.workload:
                measurer.turn_to(workload)

            def in_time(schedules: Sequence[Schedule] = schedules, own_end: float = own_end) -> Iterator[Schedule]:
                for schedule in schedules:
                    if clock() >= own_end:
                        return
                    yield schedule

            for schedule, measurement in measurer.measure(in_time()):
                yield workload, schedule, measurement
            progress((number + 1) / len(workloads))
