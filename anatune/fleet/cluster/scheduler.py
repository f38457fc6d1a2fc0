"""A Dask scheduler that lets in only those who may come in, until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from anatune.arguments import checked_integer
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
    """Run a scheduler until SIGINT or SIGTERM; for the main thread of a process of its own.

    Parameters
    ----------
    host : str
        Name or address that it listens on; beyond the loopback only with certificates, 0.0.0.0: all interfaces.
    port : int
        0: a free one.
    tls : path, optional
        The folder of certificates.
    ready : callable
        Gets the address for workers and clients, as soon as they can connect.
    tell : callable
        Gets a line for each worker that comes or goes.

    Raises
    ------
    SecurityError
        The certificates cannot be used, or there are none and others than this machine could connect.
    DeviceError
        The host is not this machine's, or the port is taken.
    MissingDependencyError
        distributed or cryptography is not installed.
    """
    port = checked_integer("scheduler: port", port, 0, 65535, SecurityError)
    package = import_distributed()
    place = f"[{host}]" if ":" in host and not host.startswith("[") else host
    # Only a host may stand here, and its port is checked above.
    address = cluster_address(f"{place}:{port or DEFAULT_PORT}", tls)
    options = {"host": place, **server_options(address, tls)}

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with package.Scheduler(port=port, plugins=[_watching(tell)], **options) as scheduler:
            ready(scheduler.address)
            await stop.wait()

    try:
        asyncio.run(serve())
    except (RuntimeError, OSError) as error:
        raise _unusable(f"{place}:{port}", error) from None


def _watching(tell: Callable[[str], None]) -> SchedulerPlugin:
    """Return a plugin of the scheduler that says which workers come and go."""
    from distributed.diagnostics.plugin import SchedulerPlugin

    class Watching(SchedulerPlugin):
        def __init__(self) -> None:
            self._names: dict[str, str] = {}

        def add_worker(self, scheduler: Scheduler, worker: str) -> None:
            state = scheduler.workers[worker]
            slots = ", ".join(f"{int(number)} to {kind}" for kind, number in sorted(state.resources.items()))
            self._names[worker] = str(state.name)
            tell(f"worker {state.name} joined from {state.host}: {slots or f'{state.nthreads} threads'}")

        def remove_worker(self, scheduler: Scheduler, worker: str, **_: object) -> None:
            tell(f"worker {self._names.pop(worker, worker)} left")

    return Watching()


def _unusable(place: str, error: BaseException) -> DeviceError:
    """Return why nothing can listen there: Dask hides what the system said below its own errors."""
    following: BaseException | None = error
    while following is not None and not isinstance(following, OSError):
        following = following.__cause__ or following.__context__
    if not isinstance(following, OSError):
        raise error
    if following.errno == errno.EADDRINUSE:
        return DeviceError(f"{place}: the port is taken, by another scheduler? --port names another one")
    if following.errno == errno.EADDRNOTAVAIL or isinstance(following, socket.gaierror):
        return DeviceError(
            f"{place}: is no address of this machine; --host 0.0.0.0 listens on all it has, with certificates (--tls)"
        )
    return DeviceError(f"{place}: nothing can listen there: {reason(following)}")
