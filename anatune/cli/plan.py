"""``anatune plan``: rank the schedules of a workload on a device, without the device."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anatune.cli.output import UsageError, line_width, note, print_json, print_lines, search_progress
from anatune.errors import SpaceError

if TYPE_CHECKING:
    from anatune.core.hardware import CpuSpec, GpuSpec
    from anatune.model.plan import Plan
    from anatune.report.alternatives import Alternative

__all__ = ["plan"]

_NUM_EXPLAINED = 64
"""Schedules that an explanation looks at to find one that differs materially from the best."""


def _check_top_k(value: int) -> int:
    if value < 1:
        raise typer.BadParameter(f"got {value}, expected an integer >= 1")
    return value


def _check_time_limit(value: float | None) -> float | None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise typer.BadParameter(f"got {value:g}, expected a number of seconds > 0")
    return value


def plan(
    hw: Annotated[
        str,
        typer.Option("--hw", metavar="NAME|FILE", help="Device: a name of `anatune hw list`, host, or a TOML file."),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD...",
            help="An operator and its extents (matmul 512x4096x1024; conv2d 1x64x56x56 64x64x3x3) "
            "or a named layer (resnet18:C2).",
        ),
    ] = None,
    stride: Annotated[str | None, typer.Option(metavar="S[,S]", help="Windows: step.")] = None,
    padding: Annotated[str | None, typer.Option(metavar="P[,P]|SAME", help="Windows: zeros around.")] = None,
    dilation: Annotated[str | None, typer.Option(metavar="D[,D]", help="Windows: distance of the taps.")] = None,
    groups: Annotated[str | None, typer.Option(metavar="G", help="Convolutions: groups of channels.")] = None,
    layout: Annotated[str | None, typer.Option(metavar="NCHW|NHWC", help="Windows: order in memory.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="float32, float16, bfloat16 or int8.")] = None,
    transpose_a: Annotated[bool, typer.Option("--transpose-a", help="Products: A is stored K x M.")] = False,
    transpose_b: Annotated[bool, typer.Option("--transpose-b", help="Products: B is stored N x K.")] = False,
    epilogue: Annotated[
        str | None, typer.Option(metavar="STEP[,STEP]", help="Fused steps on the result: bias, add, relu.")
    ] = None,
    axes: Annotated[str | None, typer.Option(metavar="A[,A]", help="Reductions: axes to reduce.")] = None,
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="K", callback=_check_top_k, help="How many schedules to return.")
    ] = 10,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            callback=_check_time_limit,
            help="Stop then; the answer says how far off.",
        ),
    ] = None,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="One schedule of each predicted time: ties count as one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say why the best schedule is the best.")] = False,
) -> None:
    """Rank every schedule of a workload on a device by the analytical model.

    Options may stand before or after the words. No device is needed.
    """
    from anatune import api
    from anatune.core.workload_text import parse_workload

    if not words:
        raise UsageError(
            "the workload is missing, expected an operator and extents or a layer; write for example "
            f"anatune plan --hw {hw} matmul 512x4096x1024"
        )
    workload = parse_workload(
        words,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        dtype=dtype,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        epilogue=epilogue,
        axes=axes,
    )
    hardware = api.hardware(hw)
    _note_first_compilation(hardware)
    start = time.perf_counter()
    answer = api.plan(
        workload,
        hardware,
        max(top_k, _NUM_EXPLAINED) if explain else top_k,
        time_limit_s=time_limit,
        distinct=distinct,
        progress=search_progress(),
    )
    seconds = time.perf_counter() - start
    shown = dataclasses.replace(answer, schedules=answer.schedules[:top_k], predictions=answer.predictions[:top_k])
    if as_json:
        tree = shown.to_dict()
        if explain:
            from anatune.report.explain import explanation

            tree["explanation"] = explanation(answer, _steps(answer))
        print_json(tree)
    elif answer.schedules:
        from anatune.report.tables import plan_lines

        print_lines(plan_lines(shown, width=line_width(), seconds=seconds))
        if explain:
            from anatune.report.explain import explanation_lines

            print_lines(explanation_lines(answer, _steps(answer), width=line_width()))
    if not answer.schedules:
        from anatune.report.explain import nothing_legal_text

        raise SpaceError(nothing_legal_text(answer))


def _steps(answer: Plan) -> list[Alternative]:
    """Return what the model says of the schedules one step away from the best."""
    from anatune import api
    from anatune.report.alternatives import alternatives
    from anatune.report.explain import MATERIAL_SHARE

    if not answer.schedules:
        return []
    return alternatives(api.model(answer.workload, answer.hardware), answer.schedules[0], MATERIAL_SHARE)


def _note_first_compilation(hardware: GpuSpec | CpuSpec) -> None:
    """Say on stderr that the model is compiled now, if no earlier run left its code."""
    from anatune.core.hardware import GpuSpec
    from anatune.numerics import _jit

    if _jit.has_cached_code("gpu_" if isinstance(hardware, GpuSpec) else "cpu_"):
        return
    folder = _jit.cache_folder()
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    if os.access(existing, os.W_OK):
        note(f"note: compiling the model once (10 to 30 s), kept in {folder}; later runs start in about a second")
    else:
        note(f"note: compiling the model (10 to 30 s) in every run: {folder} is read-only; set NUMBA_CACHE_DIR")
