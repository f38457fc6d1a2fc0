"""``anatune worker``: this machine builds and measures for a cluster."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from anatune.cli.options import Tls
from anatune.cli.output import UsageError, note, refuse_given

__all__ = ["worker"]


def worker(
    context: typer.Context,
    scheduler: Annotated[
        str, typer.Argument(metavar="SCHEDULER", help="Its address, HOST:PORT, as `anatune cluster scheduler` says it.")
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            help="What is measured on: host (the CPU), host_gpu, host_gpu1 ..., or the name of a spec of one of them.",
        ),
    ] = "host",
    build_only: Annotated[bool, typer.Option("--build-only", help="Build for others, measure nothing.")] = False,
    builders: Annotated[
        int | None,
        typer.Option(
            "--builders",
            metavar="N",
            min=0,
            help="Schedules to build at once.  [default: one a core]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="As records name it.  [default: the machine's name, and the device]",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="NAME", help="GPUs: pycuda or cuda-bindings.  [default: the one that works]"),
    ] = None,
    tls: Tls = None,
) -> None:
    """Join a cluster: build and measure for whoever tunes there. Ctrl-C or SIGTERM ends it.

    One worker a device; it measures one kernel at a time, beside its own reference kernel, and builds on the cores that
    are left. It waits for a scheduler that is not there, or gone, and joins when it comes. Candidates run in processes
    of their own, under the limits of time and memory of their session, as this user: join only clusters that you trust.
    """  # fmt: skip
    if build_only:
        refuse_given(context, ("device", "backend"), "is what is measured on, and --build-only measures nothing")
        if builders == 0:
            raise UsageError("--build-only with --builders 0 does nothing; leave one out")
    if device == "host":
        refuse_given(context, ("backend",), "is for GPUs, and host is none")
    if name is not None and (not name.strip() or len(name.split()) > 1):
        raise UsageError(f"--name is {name!r}, expected a word")
    from anatune.measure.cluster.worker import run_worker

    with contextlib.suppress(KeyboardInterrupt):  # how a person ends it
        run_worker(
            scheduler, device=device, build_only=build_only, builders=builders, name=name, tls=tls, backend=backend,
            tell=note,
        )  # fmt: skip
    note("the worker ended")
