"""``anatune worker``: joins a Dask cluster with what this machine has, and serves until it is told to end."""

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
from anatune.fleet.cluster.tasks import PLUGIN, Desk
from anatune.measure.named_hardware import hardware
from anatune.named import resolve

if TYPE_CHECKING:
    from distributed import Worker, WorkerPlugin

_LOG = logging.getLogger(__name__)

_RETRY_S = 2.0
"""Between two attempts to reach a scheduler that is gone."""
_GONE_S = 30.0
"""A scheduler that answers nothing for so long is gone."""

Joined = Callable[[str], None]
"""Told in one line what happens: joined, lost."""


def make_station(
    device: str = "host",
    *,
    build_only: bool = False,
    builders: int | None = None,
    name: str | None = None,
    backend: str | None = None,
) -> Station:
    """Return what this machine can serve.

    Parameters
    ----------
    device : str
        "host": its CPU; "host_gpu", "host_gpu1": its GPUs; the name of a spec of one of them; or ``module:function``
        that makes another station, (name, builders) -> `Station`.
    build_only : bool
        It has no device.
    builders : int, optional
        How many schedules are built at once; by default one a core.
    name : str, optional
        Of the worker; by default the machine's, of a GPU or without a device with that behind it: two workers of one
        machine have different names.
    backend : str, optional
        GPUs: "pycuda" or "cuda-bindings".

    Raises
    ------
    DeviceError
        There is no such device.
    UnknownNameError, SpecError
        No such spec.
    RunError, MissingDependencyError
        It cannot be measured on.
    """
    name = name or socket.gethostname() + ("-build" if build_only else "" if device == "host" else f"-{device}")
    if ":" in device and not Path(device).exists():
        station: Station = resolve(device)(name, builders)
        return station
    return Station(name, None if build_only else _device(device, backend), builders)


def _device(named: str, backend: str | None) -> Device:
    """Return the device of this machine that a word means."""
    number = re.fullmatch(r"host_gpu(\d*)", named)
    try:
        spec = hardware(named)
    except UnknownNameError:
        if number is None:
            raise
        spec = None
    if spec is not None and spec.kind == "cpu":
        there = hardware("host")
        differs = difference(spec, there)
        if differs is not None:
            raise DeviceError(f"{named} is {differs[0]}, this machine {differs[1]}; use --device host")
        return Device(spec, {})
    from anatune.measure.cuda.detect import gpu_detection

    found, why = gpu_detection(backend)
    if not found:
        raise DeviceError(f"{named}: {why}; --build-only builds where there is no GPU")
    places = [int(number[1] or 0)] if number else [*range(len(found))]
    for place in places:
        if place < len(found) and (spec is None or difference(spec, found[place]) is None):
            return Device(spec or found[place], {"device": place, "backend": backend})
    present = ", ".join(f"host_gpu{index or ''} ({gpu.model})" for index, gpu in enumerate(found))
    raise DeviceError(f"{named} is no GPU of this machine, which has {present}")


def run_worker(
    scheduler: str,
    *,
    device: str = "host",
    build_only: bool = False,
    builders: int | None = None,
    name: str | None = None,
    tls: str | Path | None = None,
    backend: str | None = None,
    tell: Joined | None = None,
) -> None:
    """Join a cluster and serve until this process is interrupted; comes back when the scheduler does.

    Parameters
    ----------
    scheduler : str
        Its address, as `cluster_address` takes it.
    device, build_only, builders, name, backend
        As for `make_station`.
    tls : str or Path, optional
        Folder of the cluster's certificates.
    tell : callable, optional
        Told in one line what happens.

    Raises
    ------
    SecurityError
        The address or the certificates cannot be used.
    DeviceError, UnknownNameError, SpecError, RunError, MissingDependencyError
        As `make_station`.
    """
    address = cluster_address(scheduler, tls)
    server_options(address, tls)  # certificates that cannot be used are said before the device is tried
    station = make_station(device, build_only=build_only, builders=builders, name=name, backend=backend)
    try:
        asyncio.run(_until_told(_serve(address, tls, station, tell or _LOG.info)))
    finally:
        station.close()


async def _until_told(serving: Awaitable[None]) -> None:
    """Serve until SIGTERM: whoever ends services sends it, and processes and folders have to go with this one."""
    task = asyncio.ensure_future(serving)
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not here, not in this thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _serve(address: str, tls: str | Path | None, station: Station, tell: Joined) -> None:
    """Join again and again."""
    described = station.description
    told = ""
    while True:
        worker = await _joined(address, tls, station)
        if isinstance(worker, str):
            if told != worker:
                tell(f"{worker}; tried again every {_RETRY_S:g} s")
                told = worker
            await asyncio.sleep(_RETRY_S)
            continue
        told = ""
        tell(f"{described.name} joined {address}: {described.words}, builds {described.builders} at once")
        try:
            await worker.finished()  # type: ignore[no-untyped-call]
        finally:
            await worker.close(timeout=1, executor_wait=False)
            shutil.rmtree(worker.local_directory, ignore_errors=True)
        tell(f"{address}: the scheduler is gone; tried again every {_RETRY_S:g} s")


async def _joined(address: str, tls: str | Path | None, station: Station) -> Worker | str:
    """Return a worker that has joined, or in one line why there is none yet."""
    try:
        await asyncio.to_thread(scheduler_identity, address, tls)  # at once, where Dask tries for half a minute
        return await join(address, tls, station)
    except DeviceError as error:
        return str(error)
    except AnatuneError:
        raise
    except Exception as error:  # noqa: BLE001  Dask says in many ways that nobody is there
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        line = line_of(cause)
    if "name taken" in line:  # by one that is gone and that the scheduler still waits for, too
        return f"{address}: another worker there is called {station.description.name}; --name names this one"
    return f"{address}: cannot join ({line})"


async def join(address: str, tls: str | Path | None, station: Station) -> Worker:
    """Return a `distributed.Worker` of this process that has joined; several may serve in one process.

    Raises
    ------
    OSError
        Nobody answers.
    SecurityError, RunError
        The certificates cannot be used; there is no room for temporary files.
    """
    import dask

    package = import_distributed()
    described = station.description
    resources = {BUILD: described.builders, MEASURE: int(described.device is not None)}
    threads = max(1, sum(resources.values()))
    settings = {
        # A sample of all stacks every 10 ms would disturb what is timed.
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
            name=described.name,
            resources={word: count for word, count in resources.items() if count},
            memory_limit=0,  # what is built is small; a worker that pauses or spills would disturb what is timed
            local_directory=str(folder),
            startup_information={WORD: lambda _: msgspec.json.encode(described).decode()},
            metrics={WORD: lambda _: msgspec.json.encode(station.standing()).decode()},
            plugins=(_plugin(station),),
            death_timeout=_GONE_S,
            **server_options(address, tls),
        )
        try:
            await worker
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return worker


def _plugin(station: Station) -> WorkerPlugin:
    """Return what holds a worker's station, and notices when a session's last lease ends, also as its client dies."""
    from distributed import WorkerPlugin

    class StationPlugin(WorkerPlugin):
        name = PLUGIN

        def __init__(self) -> None:
            self.desk = Desk(station)
            self._leases: dict[str, set[str]] = {}

        def transition(self, key: object, start: str, finish: str, **more: object) -> None:
            """Note which leases are held; let go a session that has none."""
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
