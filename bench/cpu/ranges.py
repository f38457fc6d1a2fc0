"""Programs for a range of extents beside the plans of single shapes: kernels of both take turns at some extents.

    python -m bench.cpu.ranges [WORKLOAD ...] [--kernels 1] [--at 1,7,64] [--threads 1] [--rounds 15] [--json FILE]

The workload is written as for `anatune plan`, one extent as a range (default: matmul 1..512x768x768). The library of
the plan for the range is built, and the plan's first choice for each extent alone; results are checked, constants are
packed before, caches are warm. A ratio is the time of the range's program over that of the single shape's kernel within
a round; its median over the rounds counts. Needs TVM and a C compiler.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.ranges import parse_ranged_workload
from anatune.model.ranges.plan import RangePlan
from anatune.report.ranges import range_lines
from bench.cpu.quiet import Sample, Thresholds, geometric_mean, interleave, loop, paired_ratio, quiet_or_all
from bench.results import environment, write_json

__all__ = ["Line", "line_of", "measured", "spread_out"]

WORKLOAD = "matmul 1..512x768x768"
POINTS = 12


class Line(NamedTuple):
    """One extent: predicted and measured seconds of the plan and of the program; how many times as fast the program is.

    `low` and `high` bound the middle half of the rounds' ratios.
    """

    extent: int
    plan_predicted_s: float
    program_predicted_s: float
    plan_s: float
    program_s: float
    ratio: float
    low: float
    high: float
    rounds: int
    quiet: bool


def spread_out(extents: Sequence[int], count: int = POINTS) -> list[int]:
    """Return some extents, about as many in each octave, the first and the last among them."""
    wanted = np.geomspace(extents[0], extents[-1], count)
    known = np.array(extents)
    return sorted({int(known[np.abs(known - value).argmin()]) for value in wanted})


def line_of(extent: int, predicted_s: tuple[float, float], plan: Sequence[Sample], program: Sequence[Sample]) -> Line:
    """Return what samples of a plan's kernel and of the program's say; `predicted_s` of both, in this order."""
    thresholds = Thresholds.of([*plan, *program])
    ratio = paired_ratio(program, plan, thresholds)
    assert ratio is not None
    middle = [
        statistics.median(one.time_s for one in quiet_or_all(samples, thresholds)[0]) for samples in (plan, program)
    ]
    return Line(extent, *predicted_s, *middle, ratio.value, ratio.low, ratio.high, ratio.rounds, ratio.quiet)


def measured(plan: RangePlan, extents: Sequence[int], rounds: int, threads: int) -> list[Line]:
    """Build a plan for a range and those of single shapes, check results, and let them take turns at each extent.

    Raises
    ------
    SystemExit
        A result is wrong.
    """
    from anatune.measure.run.correctness import random_inputs
    from bench.cpu.probes import Probes

    workload, hardware = plan.workload, plan.hardware
    kernel = anatune.build(plan, threads)
    singles = {extent: anatune.plan(workload.at(extent), hardware, top_k=1, template="cpu") for extent in extents}
    built = {extent: anatune.build(one.best, threads) for extent, one in singles.items()}
    probes, known, lines = Probes(), [], []
    for extent in extents:
        answer = kernel.verify(extent)
        if not answer.ok:
            raise SystemExit(f"bench.cpu.ranges: {workload.axis}={extent} is wrong: {answer.message}")
        inputs = random_inputs(workload.at(extent), 0)
        methods = {
            "plan": loop(built[extent].prepare(inputs).call),
            "program": loop(kernel.at(extent).prepare(inputs).call),
        }
        samples = interleave(methods, probes, rounds, most_rounds=2 * rounds, known=known, label=str(extent))
        known += [one for taken in samples.values() for one in taken]
        schedule, _ = kernel.artifact.at(extent)
        own_s = float(anatune.predict(workload.at(extent), hardware, [schedule])["time_s"].iloc[0])
        predicted = (singles[extent].predictions[0].time_s, own_s)
        lines.append(line_of(extent, predicted, samples["plan"], samples["program"]))
    return lines


def _print(plan: RangePlan, lines: Sequence[Line]) -> None:
    print("\n".join(line.text for line in range_lines(plan, width=120)))
    print("extent  program  plan us  program us  program/plan predicted  measured (middle half)  rounds")
    for line in lines:
        print(
            f"{line.extent:6d}  {plan.program_of(line.extent):7d}  {1e6 * line.plan_s:7.1f}  "
            f"{1e6 * line.program_s:10.1f}  {line.program_predicted_s / line.plan_predicted_s:22.3f}  "
            f"{1 / line.ratio:8.3f} ({1 / line.high:.3f} to {1 / line.low:.3f})  {line.rounds}"
            f"{'' if line.quiet else ' busy'}"
        )
    ratios = [1 / line.ratio for line in lines]
    print(f"geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios, default=math.nan):.3f}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", nargs="*", default=WORKLOAD.split(), help=f"default: {WORKLOAD}")
    parser.add_argument("--kernels", type=int, default=1, help="programs for the range")
    parser.add_argument("--at", help="comma-separated extents; left out: 12 of them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15, help="quiet samples of each kernel; twice as many at most")
    parser.add_argument("--hw", default="host", help="hardware spec that is planned for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    workload = parse_ranged_workload(options.workload)
    hardware = anatune.hardware(options.hw)
    if not isinstance(hardware, CpuSpec):
        raise SystemExit(f"bench.cpu.ranges: {hardware.name} is no CPU")
    started = time.perf_counter()
    plan = anatune.plan_range(workload, hardware, kernels=options.kernels, template="cpu", threads=options.threads)
    print(f"chosen in {time.perf_counter() - started:.1f} s")
    extents = [int(word) for word in options.at.split(",")] if options.at else spread_out(workload.extents)
    lines = measured(plan, extents, options.rounds, options.threads)
    _print(plan, lines)
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items()}
        found = {"plan": plan.to_dict(), "lines": [line._asdict() for line in lines]}
        write_json(options.json, {"environment": environment(**settings), "hardware": hardware.name, **found})


if __name__ == "__main__":
    main()
