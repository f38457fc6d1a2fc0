"""``anatune cluster``: a scheduler, who is in it; ``anatune worker``: this machine joins."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from anatune.cli.options import AsJson, Backend, Tls
from anatune.cli.output import UsageError, line_width, note, print_json, print_lines, print_text, refuse_given
from anatune.cli.panels import subcommands

app = subcommands("Machines that tune together (Dask): run a scheduler, see who is there.")


@app.command("scheduler")
def scheduler(
    host: Annotated[
        str,
        typer.Option("--host", metavar="NAME|IP", help="Where it listens; 0.0.0.0: on all interfaces, needs --tls."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0: a free one.")] = 8786,
    tls: Tls = None,
) -> None:
    """Run a Dask scheduler: workers and sessions connect to it. Ctrl-C or SIGTERM ends it, and its workers with it.

    Without certificates it listens on the loopback only, because whoever can connect can run programs. It needs no
    device and next to no time: any machine that all others reach will do.
    """
    from anatune.fleet.cluster.scheduler import run_scheduler

    option = f" --tls {tls}" if tls else ""

    def ready(address: str) -> None:
        print_text(f"scheduler at {address}\nworkers join by `anatune worker {address}{option}`")

    run_scheduler(host, port, tls, ready=ready, tell=note)
    note("the scheduler ended")


@app.command("status")
def status(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Of the scheduler: HOST:PORT.")],
    tls: Tls = None,
    as_json: AsJson = False,
) -> None:
    """Say who is in a cluster: devices, slots, what each worker does now, whom a session from here would refuse."""
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
    backend: Backend = None,
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
    from anatune.fleet.cluster.worker import run_worker

    with contextlib.suppress(KeyboardInterrupt):  # how a person ends it
        run_worker(
            scheduler, device=device, build_only=build_only, builders=builders, name=name, tls=tls, backend=backend,
            tell=note,
        )  # fmt: skip
    note("the worker ended")
