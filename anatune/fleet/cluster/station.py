"""What a worker can do, whoever asks: build, and measure on its device. Nothing here knows of Dask."""

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
    Built,
    DamagedError,
    MeasureRequest,
    Packed,
    Running,
    SessionSetting,
    Standing,
    WorkerDescription,
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
"""Measurers that stay open: sessions that take turns keep theirs, one that was forgotten holds no memory for long."""
_AGAIN_S = (15.0, 30.0, 60.0, 120.0, 240.0)
"""Pauses between further measurements of the peak."""
_PEAK_SAMPLES = 300
"""Of a round, of which the best counts: 2 ms each."""
_PEAK_ROUNDS = 6
_AGREE = 0.02
"""Rounds end when one comes so near to the best before: who joins while the machine is busy is looked at for longer."""
_Answer = TypeVar("_Answer")


class Device(NamedTuple):
    """What a station measures on: its spec, and where it is (GPUs: "device", "backend")."""

    spec: CpuSpec | GpuSpec
    where: Mapping[str, object]


class _Session(NamedTuple):
    setting: SessionSetting
    reference: object
    folder: Path


class Station:
    """Builders and a device of this machine: what a worker serves. Safe to share between threads.

    Candidates run in processes of their own, under the limits of their session, as those of a local measurer do. A CPU
    builds nothing on the cores that time a kernel; a GPU leaves the last core to the runner. Sessions take turns on the
    device.

    Parameters
    ----------
    name : str
        Of the worker.
    device : Device, optional
        None: it only builds.
    builders : int, optional
        By default as many as there are cores, with a GPU one fewer; none where a package that builds is missing.
    entries : callable
        Hardware -> what processes run.
    limits : Limits, optional
        Of what happens before any session: measuring the peak.
    compared : bool
        Whether the peak is measured, for sessions to compare.

    Raises
    ------
    RunError, DeviceError, MissingDependencyError
        The device cannot be used; there is no room for temporary files.
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
        self._sessions: dict[str, _Session] = {}
        self._open: OrderedDict[str, Prebuilt] = OrderedDict()
        self._numbers = itertools.count()
        self._running: dict[int, Running] = {}
        self._lock = threading.Lock()
        self._built = self._measured = 0
        try:
            peak = None if device is None or not compared else self._timer.submit(self._peak, device).result()
        except MissingDependencyError:
            if device is None or device.spec.kind == "cpu":  # on a CPU kernels are loaded through TVM, too
                self.close()
                raise
            peak, count = None, 0  # it measures what others build
        except BaseException:
            self.close()
            raise
        self.description = WorkerDescription(
            name, code_digest(), environment(), count, None if device is None else device.spec, peak
        )
        self._peak_flop_per_s = peak
        self._ended = threading.Event()
        if device is not None and peak is not None:
            threading.Thread(target=self._try_again, args=(device,), name="peak", daemon=True).start()

    # -- building ---------------------------------------------------------------------------------------------------

    def build(self, request: BuildRequest) -> Built:
        """Build a schedule, or the reference kernel; whatever goes wrong is in the answer."""
        with self._stage(request.session, request.number, "wait") as at:
            return self._slots.submit(lambda slot: self._build(slot, request, at)).result()

    def _build(self, slot: int, request: BuildRequest, at: Callable[[str], None]) -> Built:
        at("build")
        built = self._builders[slot].build(request)
        self._built += built.packed is not None
        return built

    # -- measuring --------------------------------------------------------------------------------------------------

    def open(self, setting: SessionSetting, reference: Packed) -> None:
        """Get ready for a session, whose kernels are timed beside `reference`.

        Raises
        ------
        AnatuneError
            This worker cannot.
        """
        if self._device is None:
            raise RunError(f"{self.description.name} only builds")
        folder = self._folder / f"session-{next(self._numbers)}"
        try:
            folder.mkdir()
        except OSError as error:
            raise RunError(trouble_of(error)) from None
        session = _Session(setting, unpack(reference, folder, ""), folder)
        with self._lock:
            self._sessions[setting.session] = session

        def begin() -> None:
            with self._stage(setting.session, 0, "set up"):
                self._measurer(setting.session)

        self._timed(begin)

    def measure(self, request: MeasureRequest, built: Sequence[Built]) -> list[Measurement]:
        """Check and time what was built, one kernel by itself, several in turn.

        Raises
        ------
        AnatuneError
            This worker cannot measure.
        """
        with self._stage(request.session, request.number, "wait") as at:
            return self._timed(lambda: self._measure(request, built, at))

    def _measure(self, request: MeasureRequest, built: Sequence[Built], at: Callable[[str], None]) -> list[Measurement]:
        at("set up")
        measurer = self._measurer(request.session)
        measurer.incumbent = request.incumbent
        with self._unpacked(request.schedules, built) as measurer.built, self._quiet(measurer):
            at("run")
            try:
                if request.budget_s is None:
                    measurements = [measurement for _, measurement in measurer.measure(request.schedules)]
                    self._measured += 1
                else:
                    measurements = measurer.compare(request.schedules, request.budget_s)
            except BaseException:  # the next request opens a new one
                self._close(request.session)
                raise
        pairs = zip(measurements, built, strict=True)
        return [msgspec.structs.replace(measurement, build_s=kernel.build_s) for measurement, kernel in pairs]

    @contextlib.contextmanager
    def _unpacked(self, schedules: Sequence[Schedule], built: Sequence[Built]) -> Iterator[dict[str, object]]:
        """Put what was built into files, by key of the schedule."""
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
        """Return a session's measurer, opened if it is not; called in the thread that times."""
        if session in self._open:
            self._open.move_to_end(session)
            return self._open[session]
        with self._lock:
            known = self._sessions.get(session)
        if known is None or self._device is None:
            raise RunError(f"the session {session[:8]} is not known here; its lease has ended")
        while len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open)))
        setting = known.setting
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
            reference=known.reference,
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

    def _quiet(self, measurer: Prebuilt) -> contextlib.AbstractContextManager[None]:
        """Let nothing be built on the cores of the runner."""
        return self._slots.apart(plan_cores(measurer.threads, physical_cores()).runner)

    def _timed(self, call: Callable[[], _Answer]) -> _Answer:
        """Call in the one thread that times kernels; its processes end with it, not with whoever asks."""
        try:
            future = self._timer.submit(call)
        except RuntimeError:
            raise RunError("the worker is closing") from None
        return future.result()

    def _peak(self, device: Device) -> float:
        return peak_flop_per_s(device.spec, device.where, self._entries(device.spec), self._limits, self._folder)

    def _try_again(self, device: Device) -> None:
        """Measure the peak some more times while nobody else measures: the machine may have been busy."""
        for pause_s in _AGAIN_S:
            if self._ended.wait(pause_s):
                return
            if self._sessions or self._running:
                continue
            with contextlib.suppress(AnatuneError):  # it was measured before, and serves with that
                found = self._timed(lambda: self._peak(device))
                self._peak_flop_per_s = max(found, self._peak_flop_per_s or 0.0)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def forget(self, session: str) -> None:
        """Let go what is held for a session."""
        with self._lock:
            known = self._sessions.pop(session, None)
        if known is None:
            return

        def end() -> None:
            self._close(session)
            shutil.rmtree(known.folder, ignore_errors=True)

        with contextlib.suppress(RuntimeError):  # it is closing anyway
            self._timer.submit(end)

    def standing(self) -> Standing:
        """Return what it is at."""
        now = time.monotonic()
        running = tuple(msgspec.structs.replace(at, seconds=now - at.seconds) for at in [*self._running.values()])
        return Standing(running, len(self._sessions), self._built, self._measured, self._peak_flop_per_s)

    @contextlib.contextmanager
    def _stage(self, session: str, number: int, stage: str) -> Iterator[Callable[[str], None]]:
        """Note what is being done; yields what changes the stage. The seconds are when it began, until asked for."""
        mine = next(self._numbers)

        def at(stage: str) -> None:
            self._running[mine] = Running(session, number, stage, time.monotonic())

        at(stage)
        try:
            yield at
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
    """Build multiply-adds between registers: the reference kernel of CPUs also shows what shares its caches."""
    from anatune.codegen.cpu.probes import compile_probe

    return compile_probe("fma", hardware, folder)


def peak_flop_per_s(
    hardware: CpuSpec | GpuSpec, where: Mapping[str, object], entries: Entries, limits: Limits, folder: Path
) -> float:
    """Measure multiply-adds: one core of a CPU, a whole GPU; the best of some seconds.

    Parameters
    ----------
    where
        GPUs: "device", "backend".
    folder : Path
        Exists.

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
    # What it computes is not measured, the reference kernel is.
    workload = matmul(32, 32, 32)
    with make(workload, hardware, limits=limits, built={}, reference=artifact, **conditions, **where) as measurer:
        seconds = _agreed(measurer.reference_s)
    if isinstance(artifact, CpuArtifact):
        return float(artifact.facts["flop"]) / seconds
    from anatune.codegen.cuda.artifact import GpuArtifact
    from anatune.measure.cuda.runner import reference_flop

    assert isinstance(artifact, GpuArtifact)
    return float(reference_flop(artifact)) / seconds


def _agreed(sample: Callable[[int], float]) -> float:
    """Return the best of rounds of samples, s: of as many as it takes for two to agree."""
    best = float("inf")
    for _ in range(_PEAK_ROUNDS):
        found = sample(_PEAK_SAMPLES)
        agree = abs(found - best) <= _AGREE * min(found, best)
        best = min(best, found)
        if agree:
            break
    return best
