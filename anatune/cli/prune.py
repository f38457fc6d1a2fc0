"""``anatune prune``: the schedules that deserve a run, for another tuner."""

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
"""Schedules that the summary shows."""
_NUM_SHOWN = 64
"""Schedules whose distances from each other a page tells."""
Form = Literal["json", "csv", "triton", "kernel-tuner", "metaschedule"]
"""The formats of `anatune.listing.writers`, which takes long to import."""


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
    """How many schedules are listed, which, and how."""

    keep: Annotated[
        str, typer.Option("--keep", metavar="SHARE|N", callback=_check_keep, help="Share of the legal ones, or count.")
    ] = "0.01"
    form: Annotated[
        Form | None,
        typer.Option("--for", help="Whom the whole list is for: what it looks like.  [default: a summary, for people]"),
    ] = None
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, help="List at most so many.")] = 1000
    time_limit: Annotated[float | None, seconds_option("Of the search; 10,000 at most then.")] = None
    distinct: Annotated[bool, typer.Option("--distinct", help="One schedule of each predicted time; for a count.")] = (
        False
    )
    no_diverse: Annotated[
        bool, typer.Option("--no-diverse", help="The first of the order, also where few are kept and they are alike.")
    ] = False


@spread
def prune(
    context: typer.Context,
    workload: WorkloadOptions,
    asked: PruneOptions,
    predicting: Predicting,
    words: Words = None,
    html: Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON: as --for json.")] = False,
) -> None:
    """Say which schedules deserve a run, best first, or list them for a tuner of your own. No device is needed."""
    from anatune import api
    from anatune.listing.formats import PruneRequest
    from anatune.listing.writers import IGNORED, OTHER_LINES, writer
    from anatune.report.plans import subset_lines

    what = workload.parse_one("prune", words, predicting.hw)
    hardware, keywords = predicting.hardware(), predicting.keywords()
    if as_json and asked.form not in (None, "json"):
        raise UsageError(f"--json and --for {asked.form} both say what the list looks like; leave one out")
    listed = "json" if as_json else asked.form
    page_file = check_html(html, predicting.hw)
    refuse_given(context, IGNORED.get(listed or "", ()), f"does not apply to --for {listed}")
    lines = 0
    with Progress(compiles=True) as progress:
        request = PruneRequest(
            what, hardware, _keep(asked.keep), most=asked.most, **keywords, time_limit_s=asked.time_limit,
            distinct=asked.distinct, diverse=not asked.no_diverse, progress=progress.search(),
        )  # fmt: skip
        if listed is None:
            summary = subset_lines(request.subset(), min(_NUM_FIRST, asked.most), width=line_width())
            progress.clear()
            print_lines(summary)
        for line in writer(listed)(request) if listed else ():
            progress.clear()  # it may be the same terminal
            print_data(f"{line}\n")
            lines += 1
    if listed and request.may_end_early and lines - OTHER_LINES.get(listed, 0) == asked.most:
        note(f"note: at most {asked.most} are written; --most N writes more")
    if page_file is not None:
        keywords["template"] = request.own_template
        with Progress(compiles=True) as progress:
            answer = api.plan(
                what, hardware, _NUM_SHOWN, **keywords, time_limit_s=asked.time_limit, distinct=True,
                progress=progress.search(),
            )  # fmt: skip
            progress.begin("the page")
            page = load("pages", "prune")(request.subset(), answer, asked.most)
        write_page(page, page_file)
