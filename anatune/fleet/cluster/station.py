"""The work of a worker: building, and measuring on its device. This module does not depend on Dask."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.operators import matmul
from anatune.errors import AnatuneError, MissingDependencyError, RunError
from anatune.files import scratch_folder
from anatune.fleet.cluster.builder import Builder, BuildSlots, entries_of, trouble_of
from anatune.fleet.cluster.messages import (
    BuildRequest,
    BuildResult,
    DamagedError,
    MeasureRequest,
    Packed,
    Running,
    SessionSetting,
    WorkerDescription,
    WorkerStanding,
    code_digest,
    unpack,
)
from anatune.measure.devices import measurer_of
from anatune.measure.run.build_processes import BuildProcesses, Limits
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.measure.run.measurer import Entries
from anatune.measure.run.memory import check_memory
from anatune.measure.run.prebuilt import Prebuilt, prebuilt
from anatune.records.environment import environment

_MOST_OPEN = 2
"""The number of measurers that stay open. Two sessions can take turns, and an abandoned one frees its memory soon."""
_REPEAT_PAUSES_S = (15.0, 30.0, 60.0, 120.0, 240.0)
"""The pauses between repeated measurements of the peak, in seconds."""
_PEAK_SAMPLES = 300
"""The samples of a round, of which the best counts; each takes 2 ms."""
_PEAK_ROUNDS = 6
_AGREE_WITHIN = 0.02
"""The relative difference to the best round below which rounds end. On a busy machine there are more rounds."""
_Answer = TypeVar("_Answer")


class Device(NamedTuple):
    """The device of a station: its spec, and for a GPU the options "device" and "backend"."""

    spec: CpuSpec | GpuSpec
    where: Mapping[str, object]


class _WorkerSession(NamedTuple):
    setting: SessionSetting
    reference: object
    folder: Path


class Station:
    """The builders and the device of this machine, which a worker serves; threads can share a station.

    Candidates run in separate processes with the limits of their session, as in a local measurer. Nothing is built on
    the cores of a CPU that time a kernel. With a GPU, the last core is reserved for the runner. Sessions take turns on
    the device.

    Parameters
    ----------
    name : str
        The name of the worker.
    device : Device, optional
        The device; None if the worker only builds.
    builders : int, optional
        The number of builders. The default is the number of cores, one fewer with a GPU, and 0 if a package for
        building is missing.
    entries : callable
        The function from the hardware to the functions that processes run.
    limits : Limits, optional
        The limits for measuring the peak.
    compared : bool
        Whether the peak is measured, so that sessions can compare it.

    Raises
    ------
    RunError, DeviceError, MissingDependencyError
        The device cannot be used, or there is no space for temporary files.
    """

    def __init__(
        self,
        name: str,
        device: Device | None = None,
        builders: int | None = None,
        *,
        entries: Callable[[CpuSpec | GpuSpec], Entries] = entries_of,
        limits: Limits | None = None,
        compared: bool = True,
    ) -> None:
        self._device, self._entries = device, entries
        self._limits = limits or Limits()
        cores = physical_cores()
        ordered = [cores[first] for first in sorted(cores)]
        most = max(1, len(ordered) - (device is not None and device.spec.kind == "gpu"))
        count = most if builders is None else builders
        places = [ordered[slot % len(ordered)] if ordered else () for slot in range(count)]
        self._folder = scratch_folder(RunError)
        self._slots = BuildSlots(places)
        self._builders = [
            Builder(self._folder / f"builder-{slot}", place, entries) for slot, place in enumerate(places)
        ]
        self._timer = ThreadPoolExecutor(1, thread_name_prefix="measure")
        self._sessions: dict[str, _WorkerSession] = {}
        self._open: OrderedDict[str, Prebuilt] = OrderedDict()
        self._numbers = itertools.count()
        self._running: dict[int, Running] = {}
        self._lock = threading.Lock()
        self._built = self._measured = 0
        try:
            peak = None if device is None or not compared else self._timer.submit(self._peak, device).result()
        except MissingDependencyError:
            if device is None or device.spec.kind == "cpu":  # TVM is also needed to load kernels on a CPU
                self.close()
                raise
            peak, count = None, 0  # it measures kernels that others build
        except BaseException:
            self.close()
            raise
        self.description = WorkerDescription(
            name, code_digest(), environment(), count, None if device is None else device.spec, peak
        )
        self._peak_flop_per_s = peak
        self._ended = threading.Event()
        if device is not None and peak is not None:
            threading.Thread(target=self._repeat_peak, args=(device,), name="peak", daemon=True).start()

    # -- building ---------------------------------------------------------------------------------------------------

    def build(self, request: BuildRequest) -> BuildResult:
        """Build a schedule or the reference kernel; errors are part of the result."""
        with self._stage(request.session, request.number, "wait") as set_stage:
            return self._slots.submit(lambda slot: self._build(slot, request, set_stage)).result()

    def _build(self, slot: int, request: BuildRequest, set_stage: Callable[[str], None]) -> BuildResult:
        set_stage("build")
        built = self._builders[slot].build(request)
        self._built += built.packed is not None
        return built

    # -- measuring --------------------------------------------------------------------------------------------------

    def open(self, setting: SessionSetting, reference: Packed) -> None:
        """Prepare a session, whose kernels are timed next to `reference`.

        Raises
        ------
        AnatuneError
            This worker cannot measure for the session.
        """
        if self._device is None:
            raise RunError(f"worker {self.description.name} only builds and has no device")
        folder = self._folder / f"session-{next(self._numbers)}"
        try:
            folder.mkdir()
        except OSError as error:
            raise RunError(trouble_of(error)) from None
        session = _WorkerSession(setting, unpack(reference, folder, ""), folder)
        with self._lock:
            self._sessions[setting.session] = session

        def begin() -> None:
            with self._stage(setting.session, 0, "set up"):
                self._measurer(setting.session)

        self._run_timed(begin)

    def measure(self, request: MeasureRequest, built: Sequence[BuildResult]) -> list[Measurement]:
        """Check and time one built kernel, or several in turn.

        Raises
        ------
        AnatuneError
            This worker cannot measure.
        """
        with self._stage(request.session, request.number, "wait") as set_stage:
            return self._run_timed(lambda: self._measure(request, built, set_stage))

    def _measure(
        self, request: MeasureRequest, built: Sequence[BuildResult], set_stage: Callable[[str], None]
    ) -> list[Measurement]:
        set_stage("set up")
        measurer = self._measurer(request.session)
        measurer.incumbent = request.incumbent
        with self._unpack_kernels(request.schedules, built) as measurer.built, self._free_runner_cores(measurer):
            set_stage("run")
            try:
                if request.budget_s is None:
                    measurements = [measurement for _, measurement in measurer.measure(request.schedules)]
                    self._measured += 1
                else:
                    measurements = measurer.compare(request.schedules, request.budget_s)
            except BaseException:  # the next request opens a new measurer
                self._close(request.session)
                raise
        pairs = zip(measurements, built, strict=True)
        return [msgspec.structs.replace(measurement, build_s=kernel.build_s) for measurement, kernel in pairs]

    @contextlib.contextmanager
    def _unpack_kernels(
        self, schedules: Sequence[Schedule], built: Sequence[BuildResult]
    ) -> Iterator[dict[str, object]]:
        """Write the built kernels to files, and yield the artifacts by schedule key."""
        folder = self._folder / f"run-{next(self._numbers)}"
        try:
            folder.mkdir()
            artifacts: dict[str, object] = {}
            for part, (schedule, kernel) in enumerate(zip(schedules, built, strict=True)):
                failed = kernel.failure or Measurement(Outcome.BUILD_ERROR, kernel.trouble)
                try:
                    unpacked = failed if kernel.packed is None else unpack(kernel.packed, folder, schedule.key)
                except DamagedError as error:
                    error.part = part
                    raise
                artifacts[schedule.key] = unpacked
            yield artifacts
        except OSError as error:
            raise RunError(trouble_of(error)) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _measurer(self, session: str) -> Prebuilt:
        """Return a session's measurer, and open it if needed; call this in the timing thread."""
        if session in self._open:
            self._open.move_to_end(session)
            return self._open[session]
        with self._lock:
            worker_session = self._sessions.get(session)
        if worker_session is None or self._device is None:
            raise RunError(f"the worker does not know the session {session[:8]}, because its lease has ended")
        while len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open)))
        setting = worker_session.setting
        check_memory(setting.workload, checked=True)
        make = prebuilt(measurer_of(setting.hardware))
        measurer: Prebuilt = make(
            setting.workload,
            setting.hardware,
            threads=setting.threads,
            limits=setting.limits,
            seed=setting.seed,
            least_samples=setting.least_samples,
            built={},
            reference=worker_session.reference,
            entries=self._entries(setting.hardware),
            **setting.conditions,
            **self._device.where,
        )
        measurer.__enter__()
        self._open[session] = measurer
        return measurer

    def _close(self, session: str) -> None:
        measurer = self._open.pop(session, None)
        if measurer is not None:
            measurer.close()

    def _close_all(self) -> None:
        for session in [*self._open]:
            self._close(session)

    def _free_runner_cores(self, measurer: Prebuilt) -> contextlib.AbstractContextManager[None]:
        """Return a context in which nothing is built on the cores of the runner."""
        return self._slots.keep_free(plan_cores(measurer.threads, physical_cores()).runner)

    def _run_timed(self, call: Callable[[], _Answer]) -> _Answer:
        """Call a function in the timing thread, so that its processes do not end with the calling thread."""
        try:
            future = self._timer.submit(call)
        except RuntimeError:
            raise RunError("the worker is closing") from None
        return future.result()

    def _peak(self, device: Device) -> float:
        return peak_flop_per_s(device.spec, device.where, self._entries(device.spec), self._limits, self._folder)

    def _repeat_peak(self, device: Device) -> None:
        """Repeat the measurement of the peak while there is no session, because the machine may have been busy."""
        for pause_s in _REPEAT_PAUSES_S:
            if self._ended.wait(pause_s):
                return
            if self._sessions or self._running:
                continue
            with contextlib.suppress(AnatuneError):  # the first measurement stays valid
                peak = self._run_timed(lambda: self._peak(device))
                self._peak_flop_per_s = max(peak, self._peak_flop_per_s or 0.0)

    # -- sessions and state -----------------------------------------------------------------------------------------

    def forget(self, session: str) -> None:
        """Release everything that belongs to a session."""
        with self._lock:
            worker_session = self._sessions.pop(session, None)
        if worker_session is None:
            return

        def end() -> None:
            self._close(session)
            shutil.rmtree(worker_session.folder, ignore_errors=True)

        with contextlib.suppress(RuntimeError):  # the station is closing
            self._timer.submit(end)

    def standing(self) -> WorkerStanding:
        """Return the current state of the worker."""
        now = time.monotonic()
        running = tuple(msgspec.structs.replace(at, seconds=now - at.seconds) for at in [*self._running.values()])
        return WorkerStanding(running, len(self._sessions), self._built, self._measured, self._peak_flop_per_s)

    @contextlib.contextmanager
    def _stage(self, session: str, number: int, stage: str) -> Iterator[Callable[[str], None]]:
        """Register a running request, and yield a function that sets its stage; `seconds` is the stage's start time."""
        mine = next(self._numbers)

        def set_stage(new_stage: str) -> None:
            self._running[mine] = Running(session, number, new_stage, time.monotonic())

        set_stage(stage)
        try:
            yield set_stage
        finally:
            self._running.pop(mine, None)

    def close(self) -> None:
        """End all processes and remove temporary files."""
        self._ended.set()
        self._slots.close()
        for builder in self._builders:
            builder.close()
        with contextlib.suppress(RuntimeError):
            self._timer.submit(self._close_all)
        self._timer.shutdown(wait=True)
        self._slots.join(1.0)
        shutil.rmtree(self._folder, ignore_errors=True)


def build_fma(hardware: CpuSpec, folder: Path) -> CpuArtifact:
    """Build multiply-adds between registers; unlike CPUs' reference kernel, they do not depend on shared caches."""
    from anatune.codegen.cpu.probes import compile_probe

    return compile_probe("fma", hardware, folder)


def peak_flop_per_s(
    hardware: CpuSpec | GpuSpec, where: Mapping[str, object], entries: Entries, limits: Limits, folder: Path
) -> float:
    """Measure the best rate of multiply-adds of one core of a CPU or a whole GPU; this takes a few seconds.

    Parameters
    ----------
    where
        The options "device" and "backend" of a GPU.
    folder : Path
        An existing folder.

    Raises
    ------
    RunError, DeviceError, MissingDependencyError
        The kernel cannot be built or run.
    """
    is_cpu = hardware.kind == "cpu"
    entry = f"{__name__}:build_fma" if is_cpu else entries.reference
    builders = BuildProcesses(entries.builder, [()], limits, setup=entries.builder_setup)
    try:
        builders.start()
        builders.begin_reference(entry, hardware, folder / "peak")
        artifact = builders.reference()
    finally:
        builders.kill()
    conditions = {} if is_cpu else {"l2": "warm"}
    make = prebuilt(measurer_of(hardware))
    # only the reference kernel is measured, not this workload
    workload = matmul(32, 32, 32)
    with make(workload, hardware, limits=limits, built={}, reference=artifact, **conditions, **where) as measurer:
        seconds = _best_of_rounds(measurer.reference_s)
    if isinstance(artifact, CpuArtifact):
        return float(artifact.facts["flop"]) / seconds
    from anatune.codegen.cuda.artifact import GpuArtifact
    from anatune.measure.cuda.runner import reference_flop

    assert isinstance(artifact, GpuArtifact)
    return float(reference_flop(artifact)) / seconds


def _best_of_rounds(sample: Callable[[int], float]) -> float:
    """Return the best time in seconds of several rounds of samples, until two rounds agree."""
    best = float("inf")
    for _ in range(_PEAK_ROUNDS):
        round_s = sample(_PEAK_SAMPLES)
        agree = abs(round_s - best) <= _AGREE_WITHIN * min(round_s, best)
        best = min(best, round_s)
        if agree:
            break
    return best
