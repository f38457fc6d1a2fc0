"""``anatune plan``: rank the schedules of a workload on a device, without the device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anatune.cli.html import check_html, write_page
from anatune.cli.options import (
    RECORDS,
    Accuracy,
    AsJson,
    CorrectionName,
    Device,
    Html,
    Plain,
    Template,
    Threads,
    checked_place,
    correction_of,
    refuse_threads,
    seconds_option,
)
from anatune.cli.output import (
    line_width,
    print_json,
    print_lines,
)
from anatune.cli.progress import Progress
from anatune.cli.ranges import (
    Kernels,
    Loss,
    Mean,
    plan_ranged,
    refuse_plan_options,
    refuse_range_options,
)
from anatune.cli.workload import with_workload
from anatune.errors import SpaceError

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload
    from anatune.core.workload.ranges import RangedWorkload

__all__ = ["plan"]

_NUM_EXPLAINED = 64
"""Schedules that an explanation looks at to find one that differs materially from the best."""


@with_workload("plan", ranges=True)
def plan(
    workload: Workload | RangedWorkload,
    hw: Device,
    top_k: Annotated[int, typer.Option("--top-k", metavar="K", min=1, help="How many schedules to return.")] = 10,
    kernels: Kernels = None,
    loss: Loss = None,
    mean: Mean = False,
    template: Template = None,
    accuracy: Accuracy = "standard",
    threads: Threads = None,
    time_limit: Annotated[float | None, seconds_option("Stop then; the answer says how far off.")] = None,
    distinct: Annotated[
        bool | None,
        typer.Option(
            "--distinct/--all",
            help="One schedule of each predicted time, with the number of those alike, or all of them.  [default: "
            "distinct; all with --compile]",
            show_default=False,
        ),
    ] = None,
    compile_count: Annotated[
        int,
        typer.Option(
            "--compile",
            metavar="N",
            min=0,
            help="Compile the first N different programs and correct their predictions.",
        ),
    ] = 0,
    correction: CorrectionName = None,
    plain: Plain = False,
    records: Annotated[
        Any,
        typer.Option(
            "--records",
            metavar=RECORDS,
            parser=checked_place,
            help="Show the best that this record file or server has of the same, beside the plan.",
        ),
    ] = None,
    as_json: AsJson = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say why the best schedule is the best.")] = False,
    html: Html = None,
) -> None:
    """Rank every schedule of a workload on a device by the analytical model.

    With a range or a list for one extent (matmul 1..8192x4096x4096), choose few kernels that serve all of it instead.
    Options may stand before or after the words. No device is needed.
    """
    from anatune import api
    from anatune.core.workload.ranges import RangedWorkload

    chosen = correction_of(correction, plain)
    hardware = api.hardware(hw)
    refuse_threads(threads, hardware)
    if isinstance(workload, RangedWorkload):
        refuse_plan_options(
            {"--top-k": top_k != 10, "--explain": explain, "--compile": compile_count, "--model": correction,
             "--distinct": distinct is not None, "--records": records, "--html": html}
        )  # fmt: skip
        plan_ranged(workload, hardware, kernels, loss, mean, template, threads, time_limit, as_json)
        return
    refuse_range_options(kernels, loss, mean)
    page_file = check_html(html, records, hw)
    start = time.perf_counter()
    with Progress(compiles=True) as progress:
        answer = api.plan(
            workload,
            hardware,
            max(top_k, _NUM_EXPLAINED) if explain or html else top_k,
            template=template,
            accuracy=accuracy,
            threads=threads,
            time_limit_s=time_limit,
            distinct=not compile_count if distinct is None else distinct,
            compile=compile_count,
            correction=chosen,
            records=records,
            progress=progress.search(),
            compile_progress=progress.count("compiling"),
        )
    seconds = time.perf_counter() - start
    shown = answer.first(top_k)
    if as_json:
        tree = shown.to_dict()
        if explain:
            from anatune.report.explain import explanation

            tree["explanation"] = explanation(answer, api.steps_from(answer))
        if answer.compilation is not None:
            from anatune.report.compilation import compilation_sentences

            tree["compilation"]["text"] = compilation_sentences(answer.compilation)
        print_json(tree)
    elif answer.schedules:
        from anatune.report.tables import plan_lines
        from anatune.report.text import Line, wrapped

        print_lines(plan_lines(shown, width=line_width(), seconds=seconds))
        if answer.measured is not None:
            from anatune.records.store import now_utc

            told = answer.measured.describe(now_utc())
        else:
            told = f"measured: nothing of this workload, device and number of threads in {records}"
        if records is not None:
            print_lines([Line(text) for text in wrapped(told, line_width(), hanging="  ")])
        if answer.compilation is not None:
            from anatune.report.compilation import compilation_lines

            print_lines(compilation_lines(answer.compilation, top_k, width=line_width()))
        if explain:
            from anatune.report.explain import explanation_lines

            print_lines(explanation_lines(answer, api.steps_from(answer), width=line_width()))
    if not answer.schedules:
        from anatune.report.explain import nothing_legal_text

        raise SpaceError(nothing_legal_text(answer))
    if page_file is not None:
        from anatune.pages.plan import WHAT_IF_S, plan_page

        with Progress(compiles=True) as progress:
            page = plan_page(answer, what_if_s=time_limit or WHAT_IF_S, progress=progress.share("searching: what if"))
        write_page(page, page_file)
