"""Measuring the best predicted tiles on this machine's GPU; each kernel is recorded before the next one runs."""

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
from anatune.servers.kernels import MeasuredTiles, schedule_of, workloads_of
from anatune.servers.shapes import Experts, Product
from anatune.tuning.machine import check_gpu
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.places.place import DeviceChoice

RECORDS = "anatune-configs.sqlite"
"""The default record file for the trials."""
_STRATEGY = "configs"
_TEMPLATE = "triton"
_SETTINGS = {"template": _TEMPLATE, "l2": "flush"}
"""The settings of the measurer. L2 is flushed because weights come from DRAM in a model with many layers."""


@dataclass(frozen=True)
class MeasureOptions:
    """The options for measuring tiles.

    Attributes
    ----------
    records : RecordPlace, optional
        The file or server for all trials. Kernels with recorded times are not measured again. By default it is a file
        beside the configurations.
    device : int
        CUDA's number of the GPU.
    backend : str, optional
        "pycuda" or "cuda-bindings"; by default the one that works.
    host : GpuSpec, optional
        The GPU of this machine; detected by default.
    measurer : callable
        The function that makes the measurer, with the arguments of `GpuMeasurer`.
    """

    records: RecordPlace | None = None
    device: int = 0
    backend: str | None = None
    host: GpuSpec | None = None
    measurer: Callable[..., Measurer] = GpuMeasurer

    @property
    def choice(self) -> DeviceChoice:
        """The number and the backend of the GPU."""
        return {"device": self.device, "backend": self.backend}

    def check(self, spec: GpuSpec) -> None:
        """Raise DeviceError unless this machine has the device of the files."""
        if self.host is None and spec.vendor == "nvidia":
            gpus, why = gpu_detection(self.backend)
            if not gpus:
                raise DeviceError(
                    f"--measure for {spec.name} needs that GPU: {why}; leave --measure out (--keep 8 lists the best "
                    "tiles), or run the command on a machine with the GPU"
                )
        check_gpu(spec, self.host, **self.choice)


def recall(
    shape: Experts | Product,
    exponent: float | None,
    wanted: Mapping[int, Sequence[Tile]],
    spec: GpuSpec,
    options: MeasureOptions,
    into: MeasuredTiles,
) -> None:
    """Read recorded times of tiles for each number of rows; raise RecordError if the records cannot be used."""
    with RecordStore(options.records or RECORDS) as store:
        for rows, tiles in wanted.items():
            for part, workload in enumerate(workloads_of(shape, rows, exponent)):
                recorded_s = _recorded_times(store, workload, spec)
                for tile in tiles:
                    if (time_s := recorded_s.get(schedule_of(workload, tile, spec).key)) is not None:
                        into.times[rows, tile, part] = time_s


def measure(
    shape: Experts | Product,
    exponent: float | None,
    wanted: Mapping[int, Sequence[Tile]],
    spec: GpuSpec,
    options: MeasureOptions,
    into: MeasuredTiles,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Measure the tiles for each number of rows that have no time in `into`, and add their times one by one.

    A kernel that fails is recorded as well, and its tile has no time. Rows whose operands do not fit the memory, or
    whose tensors are too large to index, are left out.

    Raises
    ------
    DeviceError
        The GPU disappeared.
    MissingDependencyError
        Triton is not installed.
    RecordError
        The record file cannot be used.
    """
    place, done = LocalPlace(options.host), 0
    with contextlib.ExitStack() as resources:
        store = resources.enter_context(RecordStore(options.records or RECORDS))
        measurer: Measurer | None = None
        for rows, tiles in wanted.items():
            for part, workload in enumerate(workloads_of(shape, rows, exponent)):
                missing = [tile for tile in tiles if (rows, tile, part) not in into.times]
                schedules = {schedule_of(workload, tile, spec): tile for tile in missing}
                try:
                    place.check_fits(workload, spec, [_TEMPLATE])
                    if missing and measurer is None:
                        new_measurer = options.measurer(
                            workload, spec, template=_TEMPLATE, l2=_SETTINGS["l2"], **options.choice
                        )
                        measurer = resources.enter_context(new_measurer)
                    elif missing and measurer is not None:
                        measurer.turn_to(workload)
                    for number, (schedule, measurement) in enumerate(
                        _measure_and_record(measurer, store, [*schedules], place, options), 1
                    ):
                        if measurement.time_s is None:
                            into.failed[rows] = f"{measurement.outcome.value}: {measurement.message}"
                        else:
                            into.times[rows, schedules[schedule], part] = measurement.time_s
                        progress(done + len(tiles) - len(missing) + number)
                except (BuildError, RunError) as error:
                    into.failed[rows], measurer = str(error), None
                done += len(tiles)
                progress(done)


def _recorded_times(store: RecordStore, workload: Workload, spec: GpuSpec) -> dict[str, float]:
    """Return the recorded seconds of a workload's schedules on this device by schedule key."""
    seconds_by_key = {}
    for record in store.trials(workload=workload, hardware=spec, outcome=Outcome.OK):
        settings, time_s = record.session.settings, record.trial.measurement.time_s
        if time_s is not None and all(settings.get(name) == value for name, value in _SETTINGS.items()):
            seconds_by_key[record.trial.schedule.key] = time_s
    return seconds_by_key


def _measure_and_record(
    measurer: Measurer | None,
    store: RecordStore,
    schedules: Sequence[Schedule],
    place: LocalPlace,
    options: MeasureOptions,
) -> Iterator[tuple[Schedule, Measurement]]:
    """Measure schedules of one workload, and record and yield each measurement."""
    if measurer is None or not schedules:
        return
    provenance = {**_SETTINGS, **place.provenance(options.choice, None, [_TEMPLATE])}
    session = store.new_session(schedules[0].workload, schedules[0].hardware, 1, _STRATEGY, 0, provenance)
    for number, (schedule, measurement) in enumerate(measurer.measure(schedules)):
        store.append(session, Trial(schedule, measurement, number))
        yield schedule, measurement
