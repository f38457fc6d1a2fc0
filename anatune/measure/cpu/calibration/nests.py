"""Building, checking and timing generated kernels (nests) for a calibration, as a tuning session does."""

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
"""A timing protocol shorter than that of tuning, for many kernels of a few per cent error instead of few precise ones.
Slow kernels are not stopped early, because their times are learned from."""
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
    """Measure the first choice of the model and diverse other schedules of each workload until the time is over.

    Each workload gets an equal part of the remaining time.

    Parameters
    ----------
    hardware : CpuSpec
        The calibrated spec of all cores.
    threads : int
        Number of threads of a kernel.
    budget_s : float
        Seconds for all workloads.
    progress
        Called with the share that is done.
    make
        Makes the measurer of the machine that `hardware` describes.

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
    with make(largest, here, threads=threads, protocol=_PROTOCOL) as measurer:  # memory limits for the largest one
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
