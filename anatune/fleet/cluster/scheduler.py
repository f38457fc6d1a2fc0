"""Running a secured Dask scheduler until a signal ends it."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from anatune.arguments import check_integer
from anatune.errors import DeviceError, SecurityError
from anatune.files import reason
from anatune.fleet.cluster.security import DEFAULT_PORT, cluster_address, import_distributed, server_options

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.diagnostics.plugin import SchedulerPlugin


def run_scheduler(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    tls: object = None,
    *,
    ready: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Run a scheduler until SIGINT or SIGTERM; call this in the main thread of a separate process.

    Parameters
    ----------
    host : str
        The name or address to listen on; 0.0.0.0 means all interfaces. Other addresses than those of the loopback
        interface need certificates.
    port : int
        The port; 0 means any free port.
    tls : path, optional
        The folder of certificates.
    ready : callable
        Called with the address for workers and clients as soon as they can connect.
    tell : callable
        Called with a line for each worker that joins or leaves.

    Raises
    ------
    SecurityError
        The certificates cannot be used, or there are none and other machines could connect.
    DeviceError
        The host is not an address of this machine, or the port is in use.
    MissingDependencyError
        distributed or cryptography is not installed.
    """
    port = check_integer("scheduler: port", port, 0, 65535, SecurityError)
    package = import_distributed()
    host_text = f"[{host}]" if ":" in host and not host.startswith("[") else host
    # cluster_address checks the host; the port is checked above
    address = cluster_address(f"{host_text}:{port or DEFAULT_PORT}", tls)
    options = {"host": host_text, **server_options(address, tls)}

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with package.Scheduler(port=port, plugins=[_make_watcher(tell)], **options) as scheduler:
            ready(scheduler.address)
            await stop.wait()

    try:
        asyncio.run(serve())
    except (RuntimeError, OSError) as error:
        raise _explain_listen_error(f"{host_text}:{port}", error) from None


def _make_watcher(tell: Callable[[str], None]) -> SchedulerPlugin:
    """Return a plugin of the scheduler that reports workers that join and leave."""
    from distributed.diagnostics.plugin import SchedulerPlugin

    class WorkerWatcher(SchedulerPlugin):
        def __init__(self) -> None:
            self._names: dict[str, str] = {}

        def add_worker(self, scheduler: Scheduler, worker: str) -> None:
            state = scheduler.workers[worker]
            slots = ", ".join(f"{int(number)} to {kind}" for kind, number in sorted(state.resources.items()))
            self._names[worker] = str(state.name)
            tell(f"worker {state.name} joined from {state.host}: {slots or f'{state.nthreads} threads'}")

        def remove_worker(self, scheduler: Scheduler, worker: str, **_: object) -> None:
            tell(f"worker {self._names.pop(worker, worker)} left")

    return WorkerWatcher()


def _explain_listen_error(address: str, error: BaseException) -> DeviceError:
    """Return the reason why the scheduler cannot listen, from the system's error below Dask's."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if not isinstance(cause, OSError):
        raise error
    if cause.errno == errno.EADDRINUSE:
        return DeviceError(f"{address}: the port is in use, perhaps by another scheduler; choose one with --port")
    if cause.errno == errno.EADDRNOTAVAIL or isinstance(cause, socket.gaierror):
        return DeviceError(f"{address} is not an address of this machine; --host 0.0.0.0 listens on all (needs --tls)")
    return DeviceError(f"{address}: the scheduler cannot listen there: {reason(cause)}")
