"""``anatune plan``: rank the schedules of a workload on a device, without the device."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anatune.cli.options import (
    AsJson,
    Html,
    Keywords,
    Parsed,
    Predicting,
    parse_share,
    records_option,
    seconds_option,
    spread,
)
from anatune.cli.output import UsageError, line_width, print_json, print_lines
from anatune.cli.outputs import check_html, write_page
from anatune.cli.progress import Progress
from anatune.cli.workload import Words, WorkloadOptions
from anatune.errors import SpaceError
from anatune.named import load

if TYPE_CHECKING:
    from anatune.core.hardware.spec import HardwareSpec
    from anatune.core.workload.ranges import RangedWorkload
    from anatune.model.plan import Plan

_NUM_EXPLAINED = 64
"""Number of schedules in which an explanation searches for one that differs materially from the best."""
_NUM_KERNELS = 6
"""Default number of kernels for a range."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for the contents of a plan and how it is printed."""

    top_k: Annotated[int, typer.Option("--top-k", metavar="K", min=1, help="Number of schedules to return.")] = 10
    time_limit: Annotated[float | None, seconds_option("End the search after that time, and say what is proven.")] = (
        None
    )
    distinct: Annotated[
        bool | None,
        typer.Option(
            "--distinct/--all",
            help="--distinct lists one schedule for each predicted time and counts the others that have it; --all "
            "lists every schedule.  [default: --distinct; --all with --compile]",
            show_default=False,
        ),
    ] = None
    compile: Annotated[
        int,
        typer.Option(
            "--compile",
            metavar="N",
            min=0,
            help="Compile the first N different kernels, and predict them again with the registers that they use.",
        ),
    ] = 0
    records: Annotated[
        Parsed,
        records_option(
            "Show the best recorded trial of this workload and device, and correct the predicted times by a model "
            "learned from all trials of the device in this record file or server."
        ),
    ] = None
    as_json: AsJson = False
    explain: Annotated[bool, typer.Option("--explain", help="Explain why the best schedule is the best.")] = False
    html: Html = None

    def refuse_for_range(self, predicting: Predicting) -> None:
        """Raise UsageError for the first given option that plans for a range do not support."""
        given = {
            "--top-k": self.top_k != 10, "--explain": self.explain, "--compile": self.compile,
            "--model": predicting.correction, "--accuracy relaxed": predicting.accuracy == "relaxed",
            "--distinct": self.distinct is not None, "--records": self.records, "--html": self.html,
        }  # fmt: skip
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} is for workloads without a range of extents, but this has one; leave it out")


class RangeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for a plan that covers a range of extents."""

    kernels: Annotated[
        int | None,
        typer.Option(
            "--kernels",
            metavar="K",
            min=1,
            help="Ranges: use at most K kernels, with the smallest largest loss.  [default: 6]",
        ),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            metavar="SHARE",
            help="Ranges: keep every loss (time over the best, minus 1) below this: 5% or 0.05.",
        ),
    ] = None
    mean: Annotated[
        bool, typer.Option("--mean", help="Ranges: minimize the mean loss over all extents, not the largest one.")
    ] = False

    def refuse(self) -> None:
        """Raise UsageError if an option of ranges is given for a workload without one."""
        for name, value in (("--kernels", self.kernels), ("--loss", self.loss), ("--mean", self.mean)):
            if value:
                raise UsageError(
                    f"{name} is for a workload with a range of extents, and this one has none; write for example "
                    "matmul 1..512x768x768, or leave it out"
                )

    def keywords(self, num_extents: int) -> Keywords:
        """Return the keyword arguments of `anatune.plan_range` for a range of `num_extents` extents."""
        loss = None if self.loss is None else parse_share("--loss", self.loss)
        if loss is not None and (self.kernels is not None or self.mean):
            raise UsageError("--loss chooses the number of kernels itself; leave out --kernels and --mean")
        kernels = min(_NUM_KERNELS, num_extents) if self.kernels is None and loss is None else self.kernels
        return {"kernels": kernels, "loss": loss, "weights": [1.0] * num_extents if self.mean else None}


@spread
def plan(
    workload: WorkloadOptions, options: PlanOptions, ranges: RangeOptions, predicting: Predicting, words: Words = None
) -> None:
    """Rank every schedule of a workload on a device by the analytical model, without the device.

    If one extent is a range or a list (matmul 1..8192x4096x4096), choose a few kernels that serve all extents instead.
    Options may stand before or after the workload.
    """
    from anatune import api
    from anatune.core.workload.ranges import RangedWorkload

    parsed_workload = workload.parse_range("plan", words, predicting.hw)
    hardware = predicting.hardware()
    if isinstance(parsed_workload, RangedWorkload):
        options.refuse_for_range(predicting)
        _print_range_plan(parsed_workload, hardware, options, ranges, predicting)
        return
    ranges.refuse()
    page_file = check_html(options.html, options.records, predicting.hw)
    from anatune.numerics._compiling import CompilationClock, report_compilation

    start, clock = time.perf_counter(), CompilationClock()
    with report_compilation(clock), Progress(compiles=True) as progress:
        answer = api.plan(
            parsed_workload,
            hardware,
            max(options.top_k, _NUM_EXPLAINED) if options.explain or options.html else options.top_k,
            **predicting.keywords(),
            time_limit_s=options.time_limit,
            distinct=not options.compile if options.distinct is None else options.distinct,
            compile=options.compile,
            records=options.records,
            progress=progress.search(),
            compile_progress=progress.count("compiling"),
        )
    seconds = time.perf_counter() - start
    if options.as_json:
        _print_tree(answer, options)
    elif answer.schedules:
        _print_plan(answer, options, predicting, seconds - clock.seconds, clock.seconds)
    if not answer.schedules:
        from anatune.report.explain import nothing_legal_text

        raise SpaceError(nothing_legal_text(answer))
    if page_file is not None:
        with Progress(compiles=True) as progress:
            share = progress.share("predicting changed devices for the page")
            limit = {} if options.time_limit is None else {"what_if_s": options.time_limit}
            page = load("pages", "plan")(answer, **limit, progress=share)
        write_page(page, page_file)


def _print_tree(answer: Plan, options: PlanOptions) -> None:
    """Print a plan as JSON."""
    tree = answer.first(options.top_k).to_dict()
    if options.explain:
        from anatune.report.explain import explanation, steps_from

        tree["explanation"] = explanation(answer, steps_from(answer))
    if answer.compilation is not None:
        from anatune.report.compilation import compilation_sentences

        tree["compilation"] = answer.compilation.to_dict() | {"text": compilation_sentences(answer.compilation)}
    print_json(tree)


def _print_plan(answer: Plan, options: PlanOptions, predicting: Predicting, seconds: float, compiling_s: float) -> None:
    """Print a plan, the best record, the compiler's corrections and the explanation, each only if requested.

    The last lines name commands to run next.
    """
    from anatune.report.plans import plan_lines
    from anatune.report.text import Line, wrap_text

    width = line_width()
    print_lines(plan_lines(answer.first(options.top_k), width=width, seconds=seconds, compiling_s=compiling_s))
    if options.records is not None:
        from anatune.records.schema import now_utc

        measured_text = f"measured: {options.records} has no trial of this workload, device and number of threads"
        if answer.measured is not None:
            measured_text = answer.measured.describe(now_utc())
        print_lines([Line(text) for text in wrap_text(measured_text, width, hanging="  ")])
    if answer.compilation is not None:
        from anatune.report.compilation import compilation_lines

        print_lines(compilation_lines(answer.compilation, options.top_k, width=width))
    if options.explain:
        from anatune.report.explain import explanation_lines, steps_from

        print_lines(explanation_lines(answer, steps_from(answer), width=width))
    print_lines([Line(""), *map(Line, _next_lines(answer, options, predicting))])


def _next_lines(answer: Plan, options: PlanOptions, predicting: Predicting) -> list[str]:
    """Return the lines below a plan: commands that explain it, write its best kernel and measure; they do not wrap."""
    from anatune.core.generation import vendor_limit
    from anatune.records.export import workload_text
    from anatune.report.text import wrap_text
    from anatune.templates import get_template

    given = {"--template": predicting.template, "--accuracy": predicting.accuracy, "--threads": predicting.threads}
    option_text = "".join(f" {name} {value}" for name, value in given.items() if value is not None)
    words = f"--hw {shlex.quote(predicting.hw)}{option_text} {workload_text(answer.workload)}"
    limit = "" if get_template(answer.best.template).toolchain == "triton" else vendor_limit(answer.hardware)
    if limit:
        return wrap_text(f"next: no kernel of this plan can be generated: {limit}", line_width(), hanging="  ")
    is_corrected = bool(options.records and answer.corrections)
    is_other = options.compile or options.time_limit or predicting.plain or predicting.correction or is_corrected
    export = f"anatune export {words}" if not is_other else "--json > plan.json, then anatune export plan.json"
    why = [] if options.explain else ["  explain why the first schedule is the best: add --explain"]
    return ["next:", *why, f"  write its kernel: {export}", f"  measure schedules: anatune tune {words}"]


def _print_range_plan(
    workload: RangedWorkload, hardware: HardwareSpec, options: PlanOptions, ranges: RangeOptions, predicting: Predicting
) -> None:
    """Make and print the plan for a range of extents."""
    from anatune import api
    from anatune.numerics._compiling import CompilationClock, report_compilation
    from anatune.report.ranges import range_lines

    kernels = ranges.keywords(len(workload.extents))
    start, clock = time.perf_counter(), CompilationClock()
    with report_compilation(clock), Progress(compiles=True) as progress:
        answer = api.plan_range(
            workload,
            hardware,
            **kernels,
            template=predicting.template,
            threads=predicting.threads,
            time_limit_s=options.time_limit,
            progress=progress.search(),
        )
    if options.as_json:
        print_json(answer.to_dict())
    else:
        print_lines(range_lines(answer, width=line_width(), seconds=time.perf_counter() - start - clock.seconds))
