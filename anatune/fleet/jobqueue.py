"""Workers as jobs of Slurm, PBS, SGE, LSF or HTCondor: job scripts of dask-jobqueue that run `anatune worker`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from anatune.arguments import quote
from anatune.errors import SpaceError
from anatune.fleet.cluster.security import security_of

Cluster = TypeVar("Cluster")
"""A cluster class of dask-jobqueue."""

_WEB = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""The options of the scheduler that keep its web server off other interfaces than the loopback."""


def queue_cluster(
    kind: Callable[..., Cluster],
    tls: str | os.PathLike[str],
    *,
    device: str = "host",
    build_only: bool = False,
    builders: int | None = None,
    scheduler_options: Mapping[str, object] | None = None,
    **options: object,
) -> Cluster:
    """Return a dask-jobqueue cluster whose jobs run `anatune worker`; ``cluster.scale(jobs=8)`` submits eight jobs.

    The scheduler runs in this process, on the node that submits the jobs. Pass ``distributed.Client(cluster)`` to
    ``anatune.tune(..., cluster=client)``.

    Parameters
    ----------
    kind : type
        The class ``dask_jobqueue.SLURMCluster``, or another one of dask-jobqueue.
    tls : path
        The folder of certificates (ca.pem, cert.pem, key.pem), in a file system that every node can read.
    device, build_only, builders
        The options of `anatune worker`; each job has one device.
    scheduler_options, **options
        Options of `kind`: queue, account, walltime, cores, memory, job_extra_directives, job_script_prologue ...

    Raises
    ------
    SpaceError
        `kind` is not a cluster of dask-jobqueue, or `options` ask for several workers in a job.
    SecurityError, MissingDependencyError
        The errors of `security_of`.
    """
    job = getattr(kind, "job_cls", None)
    if not isinstance(kind, type) or not isinstance(job, type):
        raise SpaceError(f"queue_cluster: kind is {quote(kind)}, expected a cluster such as dask_jobqueue.SLURMCluster")
    if options.get("processes", 1) != 1:
        raise SpaceError("queue_cluster: processes has to be 1: a job has one device; scale to more jobs")
    words = ["--build-only"] if build_only else ["--device", device]
    words += [] if builders is None else ["--builders", str(builders)]
    words += ["--tls", str(Path(tls).absolute())]
    scheduler = {**_WEB, **(scheduler_options or {})}
    merged = {**options, "processes": 1}
    cluster: Cluster = kind(
        job_cls=_make_job_class(job, words), security=security_of(tls), scheduler_options=scheduler, **merged
    )
    return cluster


def _make_job_class(kind: type, words: list[str]) -> type:
    """Return a subclass of the job class `kind` whose script runs `anatune worker`."""

    class Job(kind):  # type: ignore[misc,valid-type]
        def __init__(self, scheduler: str | None = None, name: str | None = None, **options: object) -> None:
            super().__init__(scheduler, name, **options)
            python = options.get("python") or sys.executable
            command = [str(python), "-m", "anatune", "worker", str(scheduler), "--name", str(name), *words]
            # exec replaces the shell, which would otherwise get the queue's signal first
            self._command_template = f"exec {shlex.join(command)}"

    Job.__name__ = kind.__name__
    return Job
