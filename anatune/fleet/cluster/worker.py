"""``anatune worker``: a process that joins a Dask cluster and serves its sessions until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anatune.core.hardware.changed import difference
from anatune.errors import AnatuneError, DeviceError, RunError, UnknownNameError
from anatune.files import scratch_folder
from anatune.fleet.cluster.dask_fleet import BUILD, LEASE, MEASURE, WORD
from anatune.fleet.cluster.messages import line_of
from anatune.fleet.cluster.security import cluster_address, import_distributed, scheduler_identity, server_options
from anatune.fleet.cluster.station import Device, Station
from anatune.fleet.cluster.tasks import PLUGIN, RequestHandler
from anatune.measure.named_hardware import hardware
from anatune.named import resolve

if TYPE_CHECKING:
    from distributed import Worker, WorkerPlugin

_LOG = logging.getLogger(__name__)

_RETRY_S = 2.0
"""The seconds between two attempts to reach a scheduler."""
_GONE_S = 30.0
"""The seconds after which a scheduler that does not answer counts as gone."""

TellLine = Callable[[str], None]
"""A function that gets a line for each event: joined, lost."""


def make_station(
    device: str = "host",
    *,
    build_only: bool = False,
    builders: int | None = None,
    name: str | None = None,
    backend: str | None = None,
) -> Station:
    """Return the station of this machine.

    Parameters
    ----------
    device : str
        "host" is the CPU; "host_gpu", "host_gpu1", ... are the GPUs; or the name of a spec of one of them. A
        ``module:function`` of (name, builders) makes another `Station`.
    build_only : bool
        Whether the worker has no device.
    builders : int, optional
        The number of schedules that are built at once; by default one for each core.
    name : str, optional
        The name of the worker. The default is the machine's name, followed by the GPU or "build", so that two workers
        of a machine have different names.
    backend : str, optional
        The backend of a GPU: "pycuda" or "cuda-bindings".

    Raises
    ------
    DeviceError
        This machine does not have the device.
    UnknownNameError, SpecError
        The spec is unknown or wrong.
    RunError, MissingDependencyError
        Nothing can be measured on the device.
    """
    name = name or socket.gethostname() + ("-build" if build_only else "" if device == "host" else f"-{device}")
    if ":" in device and not Path(device).exists():
        station: Station = resolve(device)(name, builders)
        return station
    return Station(name, None if build_only else _find_device(device, backend), builders)


def _find_device(named: str, backend: str | None) -> Device:
    """Return the device of this machine with a name."""
    number = re.fullmatch(r"host_gpu(\d*)", named)
    try:
        spec = hardware(named)
    except UnknownNameError:
        if number is None:
            raise
        spec = None
    if spec is not None and spec.kind == "cpu":
        host = hardware("host")
        differs = difference(spec, host)
        if differs is not None:
            raise DeviceError(f"{named} is {differs[0]}, but this machine has {differs[1]}; use --device host")
        return Device(spec, {})
    from anatune.measure.cuda.detect import gpu_detection

    gpus, why = gpu_detection(backend)
    if not gpus:
        raise DeviceError(f"{named}: {why}; use --build-only on a machine without GPU")
    places = [int(number[1] or 0)] if number else [*range(len(gpus))]
    for index_of_gpu in places:
        if index_of_gpu < len(gpus) and (spec is None or difference(spec, gpus[index_of_gpu]) is None):
            return Device(spec or gpus[index_of_gpu], {"device": index_of_gpu, "backend": backend})
    present = ", ".join(f"host_gpu{index or ''} ({gpu.model})" for index, gpu in enumerate(gpus))
    raise DeviceError(f"{named} is not a GPU of this machine, which has {present}")


def run_worker(
    scheduler: str,
    *,
    device: str = "host",
    build_only: bool = False,
    builders: int | None = None,
    name: str | None = None,
    tls: str | Path | None = None,
    backend: str | None = None,
    tell: TellLine | None = None,
) -> None:
    """Join a cluster and serve until this process is interrupted; join again after the scheduler was restarted.

    Parameters
    ----------
    scheduler : str
        The address of the scheduler, as for `cluster_address`.
    device, build_only, builders, name, backend
        The same as in `make_station`.
    tls : str or Path, optional
        The folder of the cluster's certificates.
    tell : callable, optional
        Called with a line for each event.

    Raises
    ------
    SecurityError
        The address or the certificates cannot be used.
    DeviceError, UnknownNameError, SpecError, RunError, MissingDependencyError
        The errors of `make_station`.
    """
    address = cluster_address(scheduler, tls)
    server_options(address, tls)  # report unusable certificates before the device is tried
    station = make_station(device, build_only=build_only, builders=builders, name=name, backend=backend)
    try:
        asyncio.run(_run_until_signal(_serve(address, tls, station, tell or _LOG.info)))
    finally:
        station.close()


async def _run_until_signal(serving: Awaitable[None]) -> None:
    """Serve until SIGTERM, which ends the process in an orderly way, with its subprocesses and folders."""
    task = asyncio.ensure_future(serving)
    with contextlib.suppress(
        NotImplementedError, RuntimeError, ValueError
    ):  # not possible on this system or in this thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _serve(address: str, tls: str | Path | None, station: Station, tell: TellLine) -> None:
    """Join the scheduler, serve it, and join again whenever it was lost."""
    description = station.description
    last_line = ""
    while True:
        worker = await _try_join(address, tls, station)
        if isinstance(worker, str):
            if last_line != worker:
                tell(f"{worker}; trying again every {_RETRY_S:g} s")
                last_line = worker
            await asyncio.sleep(_RETRY_S)
            continue
        last_line = ""
        tell(f"{description.name} joined {address}: {description.words}, up to {description.builders} builds at once")
        try:
            await worker.finished()  # type: ignore[no-untyped-call]
        finally:
            await worker.close(timeout=1, executor_wait=False)
            shutil.rmtree(worker.local_directory, ignore_errors=True)
        tell(f"{address}: the scheduler is gone; trying again every {_RETRY_S:g} s")


async def _try_join(address: str, tls: str | Path | None, station: Station) -> Worker | str:
    """Return a worker that has joined, or a line with the reason why it could not."""
    try:
        await asyncio.to_thread(scheduler_identity, address, tls)  # fails at once, while Dask tries for half a minute
        return await join(address, tls, station)
    except DeviceError as error:
        return str(error)
    except AnatuneError:
        raise
    except Exception as error:  # noqa: BLE001  Dask raises many kinds of errors for a missing scheduler
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        line = line_of(cause)
    if "name taken" in line:  # perhaps by a lost worker that the scheduler still waits for
        return f"{address}: another worker has the name {station.description.name}; choose another name with --name"
    return f"{address}: the worker cannot join ({line})"


async def join(address: str, tls: str | Path | None, station: Station) -> Worker:
    """Start a `distributed.Worker` in this process and join; there may be several in one process.

    Raises
    ------
    OSError
        The scheduler does not answer.
    SecurityError, RunError
        The certificates cannot be used, or there is no space for temporary files.
    """
    import dask

    package = import_distributed()
    description = station.description
    resources = {BUILD: description.builders, MEASURE: int(description.device is not None)}
    threads = max(1, sum(resources.values()))
    settings = {
        # sampling all stacks every 10 ms would disturb timing
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.interval": "2s",
        "distributed.comm.timeouts.connect": f"{_GONE_S:g}s",
        "distributed.comm.timeouts.tcp": f"{_GONE_S:g}s",
    }
    folder = scratch_folder(RunError)
    with dask.config.set(settings):
        worker: Worker = package.Worker(
            address,
            nthreads=threads,
            executor=ThreadPoolExecutor(threads, thread_name_prefix="task"),
            name=description.name,
            resources={word: count for word, count in resources.items() if count},
            memory_limit=0,  # kernels are small, and a worker that pauses or spills would disturb timing
            local_directory=str(folder),
            startup_information={WORD: lambda _: msgspec.json.encode(description).decode()},
            metrics={WORD: lambda _: msgspec.json.encode(station.standing()).decode()},
            plugins=(_make_plugin(station),),
            death_timeout=_GONE_S,
            **server_options(address, tls),
        )
        try:
            await worker
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return worker


def _make_plugin(station: Station) -> WorkerPlugin:
    """Return the plugin that has a worker's station, and ends a session after its last lease."""
    from distributed import WorkerPlugin

    class StationPlugin(WorkerPlugin):
        name = PLUGIN

        def __init__(self) -> None:
            self.desk = RequestHandler(station)
            self._leases: dict[str, set[str]] = {}

        def transition(self, key: object, start: str, finish: str, **more: object) -> None:
            """Track the leases of sessions, and release a session without leases."""
            if not str(key).startswith(f"{LEASE}-"):
                return
            session = str(key).split("-")[-2]
            held = self._leases.setdefault(session, set())
            if finish in ("executing", "memory"):
                held.add(str(key))
            elif finish in ("released", "forgotten", "cancelled", "error"):
                held.discard(str(key))
                if not held:
                    del self._leases[session]
                    station.forget(session)

    return StationPlugin()
