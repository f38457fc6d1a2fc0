"""The commands ``anatune cluster`` (scheduler, status) and ``anatune worker``."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from anatune.cli.options import AsJson, Backend, Tls
from anatune.cli.output import UsageError, line_width, note, print_json, print_lines, print_text, refuse_given
from anatune.cli.panels import subcommands

app = subcommands("Tune on several machines with Dask: run a scheduler, list the workers.")


@app.command("scheduler")
def scheduler(
    host: Annotated[
        str,
        typer.Option("--host", metavar="NAME|IP", help="Address to listen on; 0.0.0.0: all interfaces, needs --tls."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0: any free port.")] = 8786,
    tls: Tls = None,
) -> None:
    """Run a Dask scheduler, to which workers and sessions connect. Ctrl-C or SIGTERM ends it and its workers.

    Without certificates it listens on the loopback interface only, because whoever can connect can run programs. It
    needs no device and hardly any time: run it on any machine that all others can reach.
    """
    from anatune.fleet.cluster.scheduler import run_scheduler

    option = f" --tls {tls}" if tls else ""

    def announce(address: str) -> None:
        print_text(f"scheduler at {address}\nworkers join with `anatune worker {address}{option}`")

    run_scheduler(host, port, tls, ready=announce, tell=note)
    note("the scheduler ended")


@app.command("status")
def status(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Address of the scheduler, HOST:PORT.")],
    tls: Tls = None,
    as_json: AsJson = False,
) -> None:
    """List a cluster's workers: device, builds at once, current work, and why a session from here would refuse them."""
    from anatune.fleet.cluster.status import cluster_status
    from anatune.fleet.report import status_lines

    members = cluster_status(address, tls)
    if as_json:
        print_json(members)
    else:
        print_lines(status_lines(members, width=line_width()))


def worker(
    context: typer.Context,
    scheduler: Annotated[
        str, typer.Argument(metavar="SCHEDULER", help="Address, HOST:PORT, that `anatune cluster scheduler` prints.")
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Device to measure on: host (the CPU), host_gpu, host_gpu1 ..., or the name of a spec of one of them.",
        ),
    ] = "host",
    build_only: Annotated[bool, typer.Option("--build-only", help="Build for other workers, measure nothing.")] = False,
    builders: Annotated[
        int | None,
        typer.Option(
            "--builders",
            metavar="N",
            min=0,
            help="Number of schedules to build at once.  [default: one for each core]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of the worker in records.  [default: the names of the machine and the device]",
            show_default=False,
        ),
    ] = None,
    backend: Backend = None,
    tls: Tls = None,
) -> None:
    """Join a cluster as a worker: build and measure for the sessions there. Ctrl-C or SIGTERM ends it.

    Run one worker for each device. A worker measures one kernel at a time, next to its own reference kernel, and builds
    on the remaining cores. If the scheduler cannot be reached, the worker waits for it. Candidates run in separate
    processes as this user, with the limits of time and memory of their session: join only clusters that you trust.
    """  # fmt: skip
    if build_only:
        refuse_given(context, ("device", "backend"), "names a device to measure on, but --build-only measures nothing")
        if builders == 0:
            raise UsageError("--build-only with --builders 0 does nothing; leave one out")
    if device == "host":
        refuse_given(context, ("backend",), "is for GPUs, but host is a CPU")
    if name is not None and (not name.strip() or len(name.split()) > 1):
        raise UsageError(f"--name is {name!r}, expected a single word")
    from anatune.fleet.cluster.worker import run_worker

    with contextlib.suppress(KeyboardInterrupt):  # how a person ends it
        run_worker(
            scheduler, device=device, build_only=build_only, builders=builders, name=name, tls=tls, backend=backend,
            tell=note,
        )  # fmt: skip
    note("the worker ended")
