"""``anatune cluster``: certificates of a lab, a scheduler, and who is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anatune.cli.options import AsJson, Tls
from anatune.cli.output import line_width, note, print_json, print_lines, print_text

__all__ = ["app"]

app = typer.Typer(
    help="Machines that tune together (Dask): make certificates, run a scheduler, see who is there.",
    no_args_is_help=False,
    rich_markup_mode=None,
    add_completion=False,
)


@app.command("certificates")
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make, with ca.pem, cert.pem, key.pem.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME|IP",
            help="A machine's name or address, once for each; Dask does not look at them, other programs may.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=3650, help="How long the certificates last.")
    ] = 365,
    as_json: AsJson = False,
) -> None:
    """Make the certificates of a lab: one folder that every machine of the cluster gets a copy of.

    Whoever has the folder can run programs on every machine of the cluster as the user that the worker runs as: copy it
    by scp or rsync, never by mail, and make a new one when somebody has it who should not.
    """
    from anatune.measure.cluster.certificates import make_certificates

    made = make_certificates(folder, host or (), days)
    if as_json:
        print_json({"folder": str(made.folder), "hosts": made.hosts, "expires": made.expires.isoformat()})
        return
    print_text(
        f"wrote {made.authority}, {made.certificate.name} and {made.key.name}, valid until {made.expires:%Y-%m-%d}\n"
        f"copy the folder to all machines (scp -rp {folder} MACHINE:), then `anatune cluster scheduler --host 0.0.0.0 "
        f"--tls {folder}`"
    )


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
    from anatune.measure.cluster.scheduler import run_scheduler

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
    from anatune.measure.cluster.status import cluster_status
    from anatune.report.workers import status_lines

    found = cluster_status(address, tls)
    if as_json:
        print_json(found)
    else:
        print_lines(status_lines(found, width=line_width()))
