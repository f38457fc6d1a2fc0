"""Workers as jobs of Slurm, PBS, SGE, LSF or HTCondor: the job scripts of dask-jobqueue, with `anatune worker`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from anatune.arguments import shown
from anatune.errors import SpaceError
from anatune.fleet.cluster.security import security_of

Cluster = TypeVar("Cluster")
"""Of dask-jobqueue."""

_WEB = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""Of the scheduler; its web server would listen on all interfaces."""


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
    """Return a cluster of dask-jobqueue whose jobs are `anatune worker`s; ``cluster.scale(jobs=8)`` submits eight.

    The scheduler runs in this process, on the node that submits. ``distributed.Client(cluster)`` is what
    ``anatune.tune(..., cluster=client)`` takes.

    Parameters
    ----------
    kind : type
        ``dask_jobqueue.SLURMCluster``, or another of its clusters.
    tls : path
        Folder of certificates (ca.pem, cert.pem, key.pem), where every node sees it.
    device, build_only, builders
        As `anatune worker` takes them; a job has one device.
    scheduler_options, **options
        Of `kind`: queue, account, walltime, cores, memory, job_extra_directives, job_script_prologue ...

    Raises
    ------
    SpaceError
        `kind` is no cluster of dask-jobqueue, or more than one worker a job is asked for.
    SecurityError, MissingDependencyError
        As `security_of`.
    """
    job = getattr(kind, "job_cls", None)
    if not isinstance(kind, type) or not isinstance(job, type):
        raise SpaceError(f"queue_cluster: kind is {shown(kind)}, expected a cluster such as dask_jobqueue.SLURMCluster")
    if options.get("processes", 1) != 1:
        raise SpaceError("queue_cluster: processes has to be 1; a job has one device, ask for more jobs")
    words = ["--build-only"] if build_only else ["--device", device]
    words += [] if builders is None else ["--builders", str(builders)]
    words += ["--tls", str(Path(tls).absolute())]
    scheduler = {**_WEB, **(scheduler_options or {})}
    given = {**options, "processes": 1}
    cluster: Cluster = kind(job_cls=_job(job, words), security=security_of(tls), scheduler_options=scheduler, **given)
    return cluster


def _job(kind: type, words: list[str]) -> type:
    """Return a class of jobs that differs from `kind` in the command that its script ends with."""

    class Job(kind):  # type: ignore[misc,valid-type]
        def __init__(self, scheduler: str | None = None, name: str | None = None, **options: object) -> None:
            super().__init__(scheduler, name, **options)
            python = options.get("python") or sys.executable
            command = [str(python), "-m", "anatune", "worker", str(scheduler), "--name", str(name), *words]
            # In the place of the shell, which a queue's signal would end first.
            self._command_template = f"exec {shlex.join(command)}"

    Job.__name__ = kind.__name__
    return Job
