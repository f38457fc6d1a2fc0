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
    records_option,
    seconds_option,
    share_of,
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
"""Schedules that an explanation looks at to find one that differs materially from the best."""
_NUM_KERNELS = 6
"""Kernels for a range where neither their number nor a loss is given."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan holds, and what is said of it."""

    top_k: Annotated[int, typer.Option("--top-k", metavar="K", min=1, help="How many schedules to return.")] = 10
    time_limit: Annotated[float | None, seconds_option("Stop then; the answer says how far off.")] = None
    distinct: Annotated[
        bool | None,
        typer.Option(
            "--distinct/--all",
            help="One schedule of each predicted time, with the number of those alike, or all of them.  [default: "
            "distinct; all with --compile]",
            show_default=False,
        ),
    ] = None
    compile: Annotated[
        int,
        typer.Option(
            "--compile",
            metavar="N",
            min=0,
            help="Compile the first N different programs and correct their predictions.",
        ),
    ] = 0
    records: Annotated[
        Parsed,
        records_option(
            "Show the best that this record file or server has of the same, and correct times and order by what it "
            "teaches of the device."
        ),
    ] = None
    as_json: AsJson = False
    explain: Annotated[bool, typer.Option("--explain", help="Say why the best schedule is the best.")] = False
    html: Html = None

    def refuse_of_one_shape(self, predicting: Predicting) -> None:
        """Raise UsageError for the first option that is given and plans for ranges do not have."""
        given = {
            "--top-k": self.top_k != 10, "--explain": self.explain, "--compile": self.compile,
            "--model": predicting.correction, "--accuracy relaxed": predicting.accuracy == "relaxed",
            "--distinct": self.distinct is not None, "--records": self.records, "--html": self.html,
        }  # fmt: skip
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} is for plans of one shape, and the workload has a range; leave it out")


class RangeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan for a range of extents holds."""

    kernels: Annotated[
        int | None,
        typer.Option(
            "--kernels",
            metavar="K",
            min=1,
            help="Ranges: at most so many kernels, with the least worst loss.  [default: 6]",
        ),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option("--loss", metavar="SHARE", help="Ranges: as few kernels as lose no more than this: 5% or 0.05."),
    ] = None
    mean: Annotated[
        bool, typer.Option("--mean", help="Ranges: the least mean loss of all extents, not the least worst.")
    ] = False

    def refuse(self) -> None:
        """Raise UsageError if an option of ranges is given for a workload without one."""
        for name, value in (("--kernels", self.kernels), ("--loss", self.loss), ("--mean", self.mean)):
            if value:
                raise UsageError(
                    f"{name} is for a range of extents, and the workload has none; write for example matmul "
                    "1..512x768x768"
                )

    def keywords(self, num_extents: int) -> Keywords:
        """Return what `anatune.plan_range` takes of it, for a range of so many extents."""
        loss = None if self.loss is None else share_of("--loss", self.loss)
        if loss is not None and (self.kernels is not None or self.mean):
            raise UsageError("--loss asks for as few kernels as keep it; leave out --kernels and --mean")
        kernels = min(_NUM_KERNELS, num_extents) if self.kernels is None and loss is None else self.kernels
        return {"kernels": kernels, "loss": loss, "weights": [1.0] * num_extents if self.mean else None}


@spread
def plan(
    workload: WorkloadOptions, asked: PlanOptions, ranges: RangeOptions, predicting: Predicting, words: Words = None
) -> None:
    """Rank every schedule of a workload on a device by the analytical model.

    With a range or a list for one extent (matmul 1..8192x4096x4096), choose few kernels that serve all of it instead.
    Options may stand before or after the words. No device is needed.
    """
    from anatune import api
    from anatune.core.workload.ranges import RangedWorkload

    what = workload.parse_range("plan", words, predicting.hw)
    hardware = predicting.hardware()
    if isinstance(what, RangedWorkload):
        asked.refuse_of_one_shape(predicting)
        _plan_ranged(what, hardware, asked, ranges, predicting)
        return
    ranges.refuse()
    page_file = check_html(asked.html, asked.records, predicting.hw)
    from anatune.numerics._compiling import CompilationClock, told_compilation

    start, clock = time.perf_counter(), CompilationClock()
    with told_compilation(clock), Progress(compiles=True) as progress:
        answer = api.plan(
            what,
            hardware,
            max(asked.top_k, _NUM_EXPLAINED) if asked.explain or asked.html else asked.top_k,
            **predicting.keywords(),
            time_limit_s=asked.time_limit,
            distinct=not asked.compile if asked.distinct is None else asked.distinct,
            compile=asked.compile,
            records=asked.records,
            progress=progress.search(),
            compile_progress=progress.count("compiling"),
        )
    seconds = time.perf_counter() - start
    if asked.as_json:
        _print_tree(answer, asked)
    elif answer.schedules:
        _print_plan(answer, asked, predicting, seconds - clock.seconds, clock.seconds)
    if not answer.schedules:
        from anatune.report.explain import nothing_legal_text

        raise SpaceError(nothing_legal_text(answer))
    if page_file is not None:
        with Progress(compiles=True) as progress:
            share = progress.share("searching: what if")
            limit = {} if asked.time_limit is None else {"what_if_s": asked.time_limit}
            page = load("pages", "plan")(answer, **limit, progress=share)
        write_page(page, page_file)


def _print_tree(answer: Plan, asked: PlanOptions) -> None:
    """Print a plan as JSON."""
    tree = answer.first(asked.top_k).to_dict()
    if asked.explain:
        from anatune.report.explain import explanation, steps_from

        tree["explanation"] = explanation(answer, steps_from(answer))
    if answer.compilation is not None:
        from anatune.report.compilation import compilation_sentences

        tree["compilation"] = answer.compilation.to_dict() | {"text": compilation_sentences(answer.compilation)}
    print_json(tree)


def _print_plan(answer: Plan, asked: PlanOptions, predicting: Predicting, seconds: float, compiling_s: float) -> None:
    """Print a plan, how long it and compiling the model took, what records have, what compilers said, and why.

    The last line says what to do next.
    """
    from anatune.report.plans import plan_lines
    from anatune.report.text import Line, wrapped

    width = line_width()
    print_lines(plan_lines(answer.first(asked.top_k), width=width, seconds=seconds, compiling_s=compiling_s))
    if asked.records is not None:
        from anatune.records.schema import now_utc

        told = f"measured: nothing of this workload, device and number of threads in {asked.records}"
        if answer.measured is not None:
            told = answer.measured.describe(now_utc())
        print_lines([Line(text) for text in wrapped(told, width, hanging="  ")])
    if answer.compilation is not None:
        from anatune.report.compilation import compilation_lines

        print_lines(compilation_lines(answer.compilation, asked.top_k, width=width))
    if asked.explain:
        from anatune.report.explain import explanation_lines, steps_from

        print_lines(explanation_lines(answer, steps_from(answer), width=width))
    print_lines([Line(""), *map(Line, _next_lines(answer, asked, predicting))])


def _next_lines(answer: Plan, asked: PlanOptions, predicting: Predicting) -> list[str]:
    """Return what follows a plan: what says why, and commands that write the first kernel and measure, unwrapped."""
    from anatune.core.generation import vendor_limit
    from anatune.records.export import workload_text
    from anatune.report.text import wrapped
    from anatune.templates import template_named

    given = {"--template": predicting.template, "--accuracy": predicting.accuracy, "--threads": predicting.threads}
    options = "".join(f" {name} {value}" for name, value in given.items() if value is not None)
    words = f"--hw {shlex.quote(predicting.hw)}{options} {workload_text(answer.workload)}"
    limit = "" if template_named(answer.best.template).toolchain == "triton" else vendor_limit(answer.hardware)
    if limit:
        return wrapped(f"next: no kernel can be written: {limit}", line_width(), hanging="  ")
    is_corrected = bool(asked.records and answer.corrections)
    is_other = asked.compile or asked.time_limit or predicting.plain or predicting.correction or is_corrected
    export = f"anatune export {words}" if not is_other else "--json > plan.json, then anatune export plan.json"
    why = [] if asked.explain else ["  see why the first one is the best: --explain"]
    return ["next:", *why, f"  write its kernel: {export}", f"  measure: anatune tune {words}"]


def _plan_ranged(
    workload: RangedWorkload, hardware: HardwareSpec, asked: PlanOptions, ranges: RangeOptions, predicting: Predicting
) -> None:
    """Print the plan for a range."""
    from anatune import api
    from anatune.numerics._compiling import CompilationClock, told_compilation
    from anatune.report.ranges import range_lines

    kernels = ranges.keywords(len(workload.extents))
    start, clock = time.perf_counter(), CompilationClock()
    with told_compilation(clock), Progress(compiles=True) as progress:
        answer = api.plan_range(
            workload,
            hardware,
            **kernels,
            template=predicting.template,
            threads=predicting.threads,
            time_limit_s=asked.time_limit,
            progress=progress.search(),
        )
    if asked.as_json:
        print_json(answer.to_dict())
    else:
        print_lines(range_lines(answer, width=line_width(), seconds=time.perf_counter() - start - clock.seconds))
