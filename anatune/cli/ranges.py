"""``anatune plan`` with a range of extents: few kernels for all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from anatune.cli.options import share_of
from anatune.cli.output import (
    UsageError,
    line_width,
    print_json,
    print_lines,
)
from anatune.cli.progress import Progress

if TYPE_CHECKING:
    from anatune.core.hardware.spec import CpuSpec, GpuSpec
    from anatune.core.workload.ranges import RangedWorkload

__all__ = ["Kernels", "Loss", "Mean", "plan_ranged", "refuse_plan_options", "refuse_range_options"]

DEFAULT_KERNELS = 6
"""Kernels for a range where neither their number nor a loss is given."""

Kernels = Annotated[
    int | None,
    typer.Option(
        "--kernels",
        metavar="K",
        min=1,
        help="Ranges: at most so many kernels, with the least worst loss.  [default: 6]",
    ),
]
Loss = Annotated[
    str | None,
    typer.Option("--loss", metavar="SHARE", help="Ranges: as few kernels as lose no more than this: 5% or 0.05."),
]
Mean = Annotated[bool, typer.Option("--mean", help="Ranges: the least mean loss of all extents, not the least worst.")]


def refuse_range_options(kernels: int | None, loss: str | None, mean: bool) -> None:
    """Raise UsageError if an option of ranges is given for a workload without one."""
    for name, value in (("--kernels", kernels), ("--loss", loss), ("--mean", mean)):
        if value:
            raise UsageError(
                f"{name} is for a range of extents, and the workload has none; write for example matmul 1..512x768x768"
            )


def refuse_plan_options(given: Mapping[str, object]) -> None:
    """Raise UsageError for the first option that is given and plans for ranges do not have."""
    for name, value in given.items():
        if value:
            raise UsageError(f"{name} is for plans of one shape, and the workload has a range; leave it out")


def plan_ranged(
    workload: RangedWorkload,
    hardware: GpuSpec | CpuSpec,
    kernels: int | None,
    loss: str | None,
    mean: bool,
    template: str | None,
    threads: int | None,
    time_limit_s: float | None,
    as_json: bool,
) -> None:
    """Print the plan for a range; options as of the command."""
    from anatune import api
    from anatune.report.ranges import range_lines

    share = None if loss is None else share_of("--loss", loss)
    if share is not None and (kernels is not None or mean):
        raise UsageError("--loss asks for as few kernels as keep it; leave out --kernels and --mean")
    start = time.perf_counter()
    with Progress(compiles=True) as progress:
        answer = api.plan_range(
            workload,
            hardware,
            kernels=min(DEFAULT_KERNELS, len(workload.extents)) if kernels is None and share is None else kernels,
            loss=share,
            weights=[1.0] * len(workload.extents) if mean else None,
            template=template,
            threads=threads,
            time_limit_s=time_limit_s,
            progress=progress.search(),
        )
    if as_json:
        print_json(answer.to_dict())
    else:
        print_lines(range_lines(answer, width=line_width(), seconds=time.perf_counter() - start))
