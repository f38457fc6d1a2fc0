"""``anatune plan``: rank the schedules of a workload on a device, without the device."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING, Annotated

import typer

from anatune.cli.output import (
    UsageError,
    count_progress,
    line_width,
    note_first_compilation,
    print_json,
    print_lines,
    search_progress,
)
from anatune.cli.workload import with_workload
from anatune.errors import SpaceError

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload

__all__ = ["check_template", "check_time_limit", "plan"]

_NUM_EXPLAINED = 64
"""Schedules that an explanation looks at to find one that differs materially from the best."""


def _check_top_k(value: int) -> int:
    if value < 1:
        raise typer.BadParameter(f"got {value}, expected an integer >= 1")
    return value


def check_template(value: str | None) -> str | None:
    """Return the template that --template names."""
    from anatune.core.templates import TEMPLATES, template_name

    name = template_name(value)
    if name is not None and name not in TEMPLATES:
        raise typer.BadParameter(f"got {value}, expected one of {', '.join(TEMPLATES)}")
    return str(name) if name is not None else None


def check_time_limit(value: float | None) -> float | None:
    """Return the seconds of --time-limit if they are a time."""
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise typer.BadParameter(f"got {value:g}, expected a number of seconds > 0")
    return value


def _check_compile(value: int) -> int:
    if value < 0:
        raise typer.BadParameter(f"got {value}, expected an integer >= 0")
    return value


@with_workload("plan")
def plan(
    workload: Workload,
    hw: Annotated[
        str,
        typer.Option("--hw", metavar="NAME|FILE", help="Device: a name of `anatune hw list`, host, or a TOML file."),
    ],
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="K", callback=_check_top_k, help="How many schedules to return.")
    ] = 10,
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="NAME",
            callback=check_template,
            help="GPUs: cuda (default), pipelined (cuda with several shared-memory buffers and padded rows) or "
            "tensorcore (float16, bfloat16; float32 as tf32).",
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            callback=check_time_limit,
            help="Stop then; the answer says how far off.",
        ),
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="One schedule of each predicted time: ties count as one.")
    ] = False,
    compile_count: Annotated[
        int,
        typer.Option(
            "--compile",
            metavar="N",
            callback=_check_compile,
            help="Compile the first N different programs and correct their predictions.",
        ),
    ] = 0,
    correction: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|FOLDER", help="Learned correction to use, shipped or your own."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="No learned correction, also where one was made for the device.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say why the best schedule is the best.")] = False,
) -> None:
    """Rank every schedule of a workload on a device by the analytical model.

    Options may stand before or after the words. No device is needed.
    """
    from anatune import api

    if plain and correction is not None:
        raise UsageError("--plain uses no correction, --model names one; leave one out")
    hardware = api.hardware(hw)
    note_first_compilation(hardware, template)
    start = time.perf_counter()
    answer = api.plan(
        workload,
        hardware,
        max(top_k, _NUM_EXPLAINED) if explain else top_k,
        template=template,
        time_limit_s=time_limit,
        distinct=distinct,
        compile=compile_count,
        correction="none" if plain else correction or "auto",
        progress=search_progress(),
        compile_progress=count_progress("compiling"),
    )
    seconds = time.perf_counter() - start
    shown = dataclasses.replace(answer, schedules=answer.schedules[:top_k], predictions=answer.predictions[:top_k])
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

        print_lines(plan_lines(shown, width=line_width(), seconds=seconds))
        if answer.compilation is not None:
            from anatune.report.compilation import compilation_lines

            print_lines(compilation_lines(answer.compilation, top_k, width=line_width()))
        if explain:
            from anatune.report.explain import explanation_lines

            print_lines(explanation_lines(answer, api.steps_from(answer), width=line_width()))
    if not answer.schedules:
        from anatune.report.explain import nothing_legal_text

        raise SpaceError(nothing_legal_text(answer))
