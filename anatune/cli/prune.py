"""``anatune prune``: the schedules that deserve a run, for another tuner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from anatune.cli.output import note, note_first_compilation, refuse_given, search_progress
from anatune.cli.plan import check_template, check_time_limit
from anatune.cli.workload import with_workload

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload

__all__ = ["prune"]


def _check_keep(value: str) -> str:
    _keep(value)
    return value


def _keep(word: str) -> float:
    """Return a share (0.01, 1%) or a count (100)."""
    try:
        number: float = int(word) if word.isdecimal() else float(word.removesuffix("%")) / (100 if "%" in word else 1)
    except ValueError:
        number = -1.0
    if not (isinstance(number, int) and number >= 1) and not 0.0 < number < 1.0:
        raise typer.BadParameter(f"got {word}, expected a share above 0 and below 1 (0.01 or 1%), or a count (100)")
    return number


def _check_format(value: str) -> str:
    from anatune.adapters.formats import FORMATS

    if value not in FORMATS:
        raise typer.BadParameter(f"got {value}, expected one of {', '.join(FORMATS)}")
    return value


def _check_most(value: int) -> int:
    if value < 1:
        raise typer.BadParameter(f"got {value}, expected an integer >= 1")
    return value


@with_workload("prune")
def prune(
    context: typer.Context,
    workload: Workload,
    hw: Annotated[
        str,
        typer.Option("--hw", metavar="NAME|FILE", help="Device: a name of `anatune hw list`, host, or a TOML file."),
    ],
    keep: Annotated[
        str, typer.Option("--keep", metavar="SHARE|N", callback=_check_keep, help="Share of the legal ones, or count.")
    ] = "0.01",
    form: Annotated[
        str,
        typer.Option(
            "--for", metavar="FORMAT", callback=_check_format, help="json, csv, triton, kernel-tuner or metaschedule."
        ),
    ] = "json",
    most: Annotated[
        int, typer.Option("--most", metavar="N", callback=_check_most, help="Write at most so many.")
    ] = 1000,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", metavar="NAME", callback=check_template, help="GPUs: cuda (default), pipelined or tensorcore."
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", metavar="SECONDS", callback=check_time_limit, help="Of the search; 10,000 at most then."
        ),
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="One schedule of each predicted time; for a count.")
    ] = False,
    no_diverse: Annotated[
        bool, typer.Option("--no-diverse", help="The first of the order, also where few are kept and they are alike.")
    ] = False,
    correction: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|FOLDER", help="Learned correction to use, shipped or your own."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="No learned correction, also where one was made for the device.")
    ] = False,
) -> None:
    """List the schedules that deserve a run, best first, for a tuner of your own. No device is needed."""
    from anatune import api
    from anatune.adapters.formats import IGNORED, OTHER_LINES, PruneRequest, writer
    from anatune.cli.output import UsageError

    if plain and correction is not None:
        raise UsageError("--plain uses no correction, --model names one; leave one out")
    hardware = api.hardware(hw)
    write = writer(form)
    refuse_given(context, IGNORED.get(form, ()), f"does not apply to --for {form}")
    request = PruneRequest(
        workload,
        hardware,
        _keep(keep),
        most=most,
        template=template,
        time_limit_s=time_limit,
        distinct=distinct,
        diverse=not no_diverse,
        correction="none" if plain else correction or "auto",
        progress=search_progress(),
    )
    if form != "triton":
        note_first_compilation(hardware, template)
    lines = 0
    for line in write(request):
        typer.echo(line)
        lines += 1
    if request.may_end_early and lines - OTHER_LINES.get(form, 0) == most:
        note(f"note: at most {most} are written; --most N writes more")
