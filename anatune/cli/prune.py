"""``anatune prune``: list the schedules worth measuring, for another tuner."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from anatune.cli.options import Html, Predicting, seconds_option, spread
from anatune.cli.output import UsageError, line_width, note, print_data, print_lines, refuse_given
from anatune.cli.outputs import check_html, write_page
from anatune.cli.progress import Progress
from anatune.cli.workload import Words, WorkloadOptions
from anatune.named import load

_NUM_FIRST = 10
"""Number of schedules in the summary."""
_NUM_SHOWN = 64
"""Number of schedules that an HTML page compares."""
Form = Literal["json", "csv", "triton", "kernel-tuner", "metaschedule"]
"""The formats of `anatune.listing.writers`, repeated here because that module is slow to import."""


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


class PruneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for the number of listed schedules, their choice and their format."""

    keep: Annotated[
        str,
        typer.Option("--keep", metavar="SHARE|N", callback=_check_keep, help="Share or number of schedules to keep."),
    ] = "0.01"
    form: Annotated[
        Form | None, typer.Option("--for", help="Print the whole list in this format.  [default: a summary as text]")
    ] = None
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, help="List at most N schedules.")] = 1000
    time_limit: Annotated[float | None, seconds_option("End the search after this time (--keep <= 10,000).")] = None
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Keep one schedule for each predicted time; only if --keep is a number.")
    ] = False
    no_diverse: Annotated[
        bool, typer.Option("--no-diverse", help="Keep the fastest predicted schedules, even if they are similar.")
    ] = False


@spread
def prune(
    context: typer.Context,
    workload: WorkloadOptions,
    options: PruneOptions,
    predicting: Predicting,
    words: Words = None,
    html: Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON, as --for json does.")] = False,
) -> None:
    """List the schedules worth measuring, best first, also for another tuner. No device is needed."""
    from anatune import api
    from anatune.listing.formats import PruneRequest
    from anatune.listing.writers import IGNORED, OTHER_LINES, find_writer
    from anatune.report.plans import subset_lines

    parsed_workload = workload.parse_one("prune", words, predicting.hw)
    hardware, keywords = predicting.hardware(), predicting.keywords()
    if as_json and options.form not in (None, "json"):
        raise UsageError(f"--json and --for {options.form} both name a format; leave one of them out")
    list_format = "json" if as_json else options.form
    page_file = check_html(html, predicting.hw)
    refuse_given(context, IGNORED.get(list_format or "", ()), f"does not apply to --for {list_format}")
    lines = 0
    with Progress(compiles=True) as progress:
        request = PruneRequest(
            parsed_workload, hardware, _keep(options.keep), most=options.most, **keywords,
            time_limit_s=options.time_limit, distinct=options.distinct, diverse=not options.no_diverse,
            progress=progress.search(),
        )  # fmt: skip
        if list_format is None:
            summary = subset_lines(request.subset(), min(_NUM_FIRST, options.most), width=line_width())
            progress.clear()
            print_lines(summary)
        for line in find_writer(list_format)(request) if list_format else ():
            progress.clear()  # stdout and stderr may be the same terminal
            print_data(f"{line}\n")
            lines += 1
    if list_format and request.may_end_early and lines - OTHER_LINES.get(list_format, 0) == options.most:
        note(f"note: the list ends after {options.most} schedules; --most N lists more")
    if page_file is not None:
        keywords["template"] = request.own_template
        with Progress(compiles=True) as progress:
            answer = api.plan(
                parsed_workload, hardware, _NUM_SHOWN, **keywords, time_limit_s=options.time_limit, distinct=True,
                progress=progress.search(),
            )  # fmt: skip
            progress.begin("the page")
            page = load("pages", "prune")(request.subset(), answer, options.most)
        write_page(page, page_file)
