"""The places of a Dask cluster, and of an executor that builds for this machine's device."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from anatune.arguments import quote
from anatune.core.hardware.changed import difference
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, SpaceError
from anatune.fleet.cluster.messages import WorkerDescription
from anatune.measure.named_hardware import HardwareLike
from anatune.measure.place import MakeMeasurer
from anatune.tuning.machine import choose_threads
from anatune.tuning.manifest import Manifest
from anatune.tuning.places.local import LocalPlace
from anatune.tuning.places.place import DeviceChoice, Place
from anatune.tuning.settings import TuningSettings

_LOG = logging.getLogger(__name__)

_LOOK_S = 0.5
_WAIT_S = 60.0
"""The seconds to wait for the first worker of a cluster."""


def cluster_place(settings: TuningSettings, host: HardwareSpec | None = None) -> Place:
    """Return the place for a session's setting `cluster`: a scheduler's address, a client, or an executor that builds.

    Parameters
    ----------
    host : CpuSpec or GpuSpec, optional
        The device of this machine that measures for an executor; detected by default.

    Raises
    ------
    SpaceError
        `cluster` is none of these.
    SecurityError, DeviceError, MissingDependencyError
        The cluster cannot be reached.
    """
    cluster, tls = settings.cluster, settings.tls
    if isinstance(cluster, str):
        from anatune.fleet.cluster.security import connect

        return ClusterPlace(connect(cluster, tls), owns_client=True)
    if isinstance(cluster, Executor):
        return ExecutorPlace(cluster, host)
    if all(hasattr(cluster, name) for name in ("submit", "scheduler", "loop", "sync")):  # distributed is not imported
        from anatune.fleet.cluster.security import check_client

        client: Any = cluster
        check_client(client)
        return ClusterPlace(client, owns_client=False)
    raise SpaceError(
        f"tune: cluster is {quote(cluster)}, expected the address of a Dask scheduler, a distributed.Client, or a "
        "concurrent.futures.Executor"
    )


class ClusterPlace(Place):
    """The workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        The client of the scheduler.
    owns_client : bool
        Whether `close` closes the client.
    wait_s : float
        The seconds to wait for the first worker.
    """

    def __init__(self, client: Any, *, owns_client: bool, wait_s: float = _WAIT_S) -> None:
        from anatune.fleet.cluster.dask_fleet import DaskFleet

        self._client = client
        self._owns_client, self._wait_s = owns_client, wait_s
        self._fleet: Callable[[str], DaskFleet] = functools.partial(DaskFleet, client)
        self._missed: set[str] = set()  # kinds of devices without worker, for which it waits only once

    def hardware(self, named: HardwareLike) -> HardwareSpec:
        """Return the named spec; "host" and "host_gpu" mean the devices of the workers."""
        kind = {"host": "cpu", "host_gpu": "gpu"}.get(str(named).lower()) if isinstance(named, str) else None
        if kind is None:
            return super().hardware(named)
        workers = self._descriptions(kind)
        if not workers:
            raise self._no_worker_error(f"{named} means", kind)
        kinds = _group_by_device(workers)
        if len(kinds) > 1:
            groups = "; ".join(f"{alike[0].words} ({', '.join(worker.name for worker in alike)})" for alike in kinds)
            raise DeviceError(
                f"{named} means the {kind.upper()} of the cluster's workers, which have {len(kinds)} different ones: "
                f"{groups}; name the spec of the one to tune for, or stop the other workers"
            )
        device = workers[0].device
        assert device is not None
        return device

    def check(self, hardware: HardwareSpec, device: DeviceChoice, *, built: bool) -> HardwareSpec:
        """Return `hardware` if a worker has it; the measurer refuses other workers."""
        devices = [worker.device for worker in self._descriptions(hardware.kind) if worker.device is not None]
        if not devices:
            raise self._no_worker_error(f"{hardware.name} needs", hardware.kind)
        differences = [difference(hardware, there) for there in devices]
        if all(differs is not None for differs in differences):
            differs = differences[0]
            assert differs is not None
            raise DeviceError(
                f"{hardware.name} is {differs[0]}, which no worker of the cluster has: the first one has {differs[1]}; "
                "use --hw host or host_gpu, or start a worker on such a machine"
            )
        return hardware

    def threads(self, hardware: HardwareSpec, requested: int | None) -> int:
        """Return the threads of kernels, by default as many as every worker with the device can use."""
        usable = [
            worker.environment.cores
            for worker in self._descriptions(hardware.kind)
            if worker.device is not None and difference(hardware, worker.device) is None
        ]
        most = min(usable) if usable and requested is None else max(usable, default=None)
        return choose_threads(hardware, requested, most if most is not None else hardware.most_threads)

    def measurer(self, make: MakeMeasurer) -> MakeMeasurer:
        """Return a function that makes a measurer on the cluster."""
        from anatune.fleet.cluster.measurer import ClusterMeasurer

        return functools.partial(ClusterMeasurer, connect=self._fleet, wait_s=self._wait_s)

    def provenance(self, device: DeviceChoice, built: Manifest | None, templates: Sequence[str]) -> dict[str, object]:
        """Return the provenance for records; each trial has its worker and the worker's environment."""
        return {"measured": "cluster"}

    def close(self) -> None:
        """Close the client if the place opened it."""
        if self._owns_client:
            self._client.close()

    def _no_worker_error(self, purpose: str, kind: str) -> DeviceError:
        device = "host_gpu" if kind == "gpu" else "host"
        return DeviceError(
            f"{purpose} the {kind.upper()} of a worker, but none joined the cluster within {self._wait_s:g} s; "
            f"start one with `anatune worker --device {device}`"
        )

    def _descriptions(self, kind: str) -> list[WorkerDescription]:
        """Return the workers with a device of this kind; wait for the first one."""
        fleet = self._fleet("")
        wait_s = 0.0 if kind in self._missed else self._wait_s
        until = time.monotonic() + wait_s
        has_warned = False
        while True:
            members = [member.description for member in fleet.look().workers.values()]
            seen = [description for description in members if description is not None]
            fitting = [worker for worker in seen if worker.device is not None and worker.device.kind == kind]
            if fitting:
                return fitting
            if time.monotonic() >= until:
                self._missed.add(kind)
                return []
            if not has_warned:
                there = f"{len(seen)} worker{'s' * (len(seen) > 1)} and no {kind.upper()}" if seen else "no worker"
                _LOG.warning("the cluster has %s; waiting %g s for one", there, wait_s)
                has_warned = True
            time.sleep(_LOOK_S)


def _group_by_device(workers: Sequence[WorkerDescription]) -> list[list[WorkerDescription]]:
    """Group workers by device."""
    kinds: list[list[WorkerDescription]] = []
    for worker in workers:
        for kind in kinds:
            first = kind[0]
            assert first.device is not None
            assert worker.device is not None
            same_name = worker.device.kind != "cpu" or worker.environment.cpu == first.environment.cpu
            if same_name and difference(first.device, worker.device) is None:
                kind.append(worker)
                break
        else:
            kinds.append([worker])
    return kinds


class ExecutorPlace(LocalPlace):
    """The device of this machine, for which an executor builds.

    Parameters
    ----------
    executor : Executor
        The executor; it is not shut down here.
    host : CpuSpec or GpuSpec, optional
        The same as in `LocalPlace`.
    """

    is_here = False

    def __init__(self, executor: Executor, host: HardwareSpec | None = None) -> None:
        super().__init__(host)
        self._executor = executor

    def measurer(self, make: MakeMeasurer) -> MakeMeasurer:
        """Return a function that makes a measurer for which the executor builds."""
        from anatune.fleet.cluster.executor_fleet import ExecutorMeasurer

        def make_measurer(workload: Workload, hardware: HardwareSpec, **more: Any) -> ExecutorMeasurer:
            where: dict[str, Any] = {name: more.pop(name) for name in ("device", "backend") if name in more}
            return ExecutorMeasurer(workload, hardware, executor=self._executor, where=where, **more)

        return make_measurer
