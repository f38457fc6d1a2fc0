"""Measures the tiles that deserve a run, where the GPU is: each kernel is recorded before the next one is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.errors import BuildError, DeviceError, RunError
from anatune.measure.cuda.detect import gpu_detection
from anatune.measure.cuda.measurer import GpuMeasurer
from anatune.measure.run.measurer import Measurer
from anatune.records.place import RecordPlace
from anatune.records.store import RecordStore
from anatune.servers.defaults import Tile
from anatune.servers.kernels import Measured, schedule_of, workloads_of
from anatune.servers.shapes import Experts, Product
from anatune.tuning.machine import check_gpu
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.places.place import DeviceChoice

RECORDS = "anatune-configs.sqlite"
"""Keeps every trial, where no other file is named."""
_STRATEGY = "configs"
_TEMPLATE = "triton"
_SETTINGS = {"template": _TEMPLATE, "l2": "flush"}
"""Weights come from DRAM, as in a model of many layers."""


@dataclass(frozen=True)
class Measuring:
    """Where and how tiles are measured.

    Attributes
    ----------
    records : RecordPlace, optional
        File or server that keeps every trial; what it has of the same kernels is not measured again. By default a file
        beside the configurations.
    device : int
        Number of the GPU, as CUDA counts.
    backend : str, optional
        "pycuda" or "cuda-bindings"; by default the one that works.
    host : GpuSpec, optional
        The GPU that is there; detected by default.
    measurer : callable
        Makes the measurer, as `GpuMeasurer` takes its arguments.
    """

    records: RecordPlace | None = None
    device: int = 0
    backend: str | None = None
    host: GpuSpec | None = None
    measurer: Callable[..., Measurer] = GpuMeasurer

    @property
    def choice(self) -> DeviceChoice:
        """Which GPU."""
        return {"device": self.device, "backend": self.backend}

    def check(self, spec: GpuSpec) -> None:
        """Raise DeviceError unless the device that files are for is here."""
        if self.host is None and spec.vendor == "nvidia":
            gpus, why = gpu_detection(self.backend)
            if not gpus:
                raise DeviceError(
                    f"--measure for {spec.name} needs that GPU: {why}; leave --measure out (--keep 8 lists what "
                    "deserves a run), or call it on the machine with the GPU"
                )
        check_gpu(spec, self.host, **self.choice)


def recall(
    shape: Experts | Product,
    exponent: float | None,
    wanted: Mapping[int, Sequence[Tile]],
    spec: GpuSpec,
    how: Measuring,
    into: Measured,
) -> None:
    """Take in what records have of tiles for each number of rows; raise RecordError where they cannot be used."""
    with RecordStore(how.records or RECORDS) as store:
        for rows, tiles in wanted.items():
            for part, workload in enumerate(workloads_of(shape, rows, exponent)):
                known = _known(store, workload, spec)
                for tile in tiles:
                    if (time_s := known.get(schedule_of(workload, tile, spec).key)) is not None:
                        into.times[rows, tile, part] = time_s


def measure(
    shape: Experts | Product,
    exponent: float | None,
    wanted: Mapping[int, Sequence[Tile]],
    spec: GpuSpec,
    how: Measuring,
    into: Measured,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Measure tiles for each number of rows that `into` has no time of, which has what is known whatever ends this.

    A kernel that fails is recorded, too, and its tile has no time. Rows whose operands do not fit the memory, or whose
    kernels cannot be addressed, are left out.

    Raises
    ------
    DeviceError
        The GPU disappeared.
    MissingDependencyError
        Triton is not installed.
    RecordError
        The record file cannot be used.
    """
    place, done = LocalPlace(how.host), 0
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(RecordStore(how.records or RECORDS))
        measurer: Measurer | None = None
        for rows, tiles in wanted.items():
            for part, workload in enumerate(workloads_of(shape, rows, exponent)):
                left = [tile for tile in tiles if (rows, tile, part) not in into.times]
                schedules = {schedule_of(workload, tile, spec): tile for tile in left}
                try:
                    place.check_fits(workload, spec, [_TEMPLATE])
                    if left and measurer is None:
                        made = how.measurer(workload, spec, template=_TEMPLATE, l2=_SETTINGS["l2"], **how.choice)
                        measurer = opened.enter_context(made)
                    elif left and measurer is not None:
                        measurer.turn_to(workload)
                    for number, (schedule, found) in enumerate(_recorded(measurer, store, [*schedules], place, how), 1):
                        if found.time_s is None:
                            into.failed[rows] = f"{found.outcome.value}: {found.message}"
                        else:
                            into.times[rows, schedules[schedule], part] = found.time_s
                        progress(done + len(tiles) - len(left) + number)
                except (BuildError, RunError) as error:
                    into.failed[rows], measurer = str(error), None
                done += len(tiles)
                progress(done)


def _known(store: RecordStore, workload: Workload, spec: GpuSpec) -> dict[str, float]:
    """Return the seconds that records have of a workload's schedules here."""
    found = {}
    for record in store.trials(workload=workload, hardware=spec, outcome=Outcome.OK):
        settings, time_s = record.session.settings, record.trial.measurement.time_s
        if time_s is not None and all(settings.get(name) == value for name, value in _SETTINGS.items()):
            found[record.trial.schedule.key] = time_s
    return found


def _recorded(
    measurer: Measurer | None, store: RecordStore, schedules: Sequence[Schedule], place: LocalPlace, how: Measuring
) -> Iterator[tuple[Schedule, Measurement]]:
    """Yield what was measured of schedules of one workload, recorded."""
    if measurer is None or not schedules:
        return
    told = {**_SETTINGS, **place.provenance(how.choice, None, [_TEMPLATE])}
    session = store.new_session(schedules[0].workload, schedules[0].hardware, 1, _STRATEGY, 0, told)
    for number, (schedule, measurement) in enumerate(measurer.measure(schedules)):
        store.append(session, Trial(schedule, measurement, number))
        yield schedule, measurement
