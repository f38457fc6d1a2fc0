"""One program for a range of extents beside the plans of single shapes: kernels of both take turns at some extents.

    python -m bench.cpu.ranges [WORKLOAD ...] [--at 1,7,64] [--threads 1] [--rounds 15] [--hw host] [--json FILE]

The workload is written as for `anatune plan`, one extent as a range (default: matmul 1..512x768x768). The one program
whose worst proven loss is least is built for the whole range, the plan's first choice for each extent; constants are
packed before, caches are warm. A ratio is the plan's time over the program's within a round, below 1: the program is
slower; its median over the rounds counts. Needs TVM and a C compiler.
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
from anatune.codegen.cpu.dispatch import Dispatch
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.ranges import RangedWorkload, parse_ranged
from anatune.model.cpu.ranges import CpuFamily
from anatune.model.watch import Watch
from bench.cpu.quiet import Sample, Thresholds, geometric_mean, interleave, loop, paired_ratio, quiet_or_all
from bench.results import environment, write_json

__all__ = ["Chosen", "Line", "best_program", "line_of", "measured", "spread_out"]

WORKLOAD = "matmul 1..512x768x768"
POINTS = 12


class Chosen(NamedTuple):
    """A program for all extents: predicted seconds at each, and what no schedule of the single shape undercuts."""

    program: Schedule
    times_s: tuple[float, ...]
    bounds_s: tuple[float, ...]

    @property
    def worst_loss(self) -> float:
        """Proven for all extents."""
        return max(own / least for own, least in zip(self.times_s, self.bounds_s, strict=True)) - 1


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


def best_program(workload: RangedWorkload, hardware: CpuSpec) -> Chosen:
    """Return the program whose worst loss over the range is least."""
    family = CpuFamily(workload, hardware)
    programs = [one for one in family.candidates(Watch()) if isinstance(one, Schedule)]
    times = family.times(programs)
    bounds = family.bounds(times.min(axis=0), Watch()).seconds
    at = int(np.argmin((times / bounds).max(axis=1)))
    return Chosen(programs[at], tuple(times[at].tolist()), tuple(bounds.tolist()))


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


def measured(
    workload: RangedWorkload, chosen: Chosen, hardware: CpuSpec, extents: Sequence[int], rounds: int, threads: int
) -> list[Line]:
    """Build the program and the plans, check results, and let them take turns at each extent.

    Raises
    ------
    SystemExit
        A result is wrong.
    """
    from anatune.measure.cpu.ranged import load_range
    from anatune.measure.run.correctness import random_inputs
    from bench.cpu.probes import Probes

    dispatch = Dispatch(workload.axis, workload.extents[0], (chosen.program,), (workload.extents[-1],), (0,))
    kernel = load_range(dispatch, threads)
    plans = {extent: anatune.plan(workload.at(extent), hardware, top_k=1, template="cpu") for extent in extents}
    built = {extent: anatune.build(plan.best, threads) for extent, plan in plans.items()}
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
        predicted = (plans[extent].predictions[0].time_s, chosen.times_s[workload.extents.index(extent)])
        lines.append(line_of(extent, predicted, samples["plan"], samples["program"]))
    return lines


def _print(workload: RangedWorkload, chosen: Chosen, lines: Sequence[Line]) -> None:
    print(f"{workload.describe()}: one program, proven worst loss {chosen.worst_loss:.1%} (predicted times)")
    print(f"  {chosen.program.describe()}")
    print("extent  plan us  program us  program/plan predicted  measured (middle half)  rounds")
    for line in lines:
        print(
            f"{line.extent:6d}  {1e6 * line.plan_s:7.1f}  {1e6 * line.program_s:10.1f}  "
            f"{line.program_predicted_s / line.plan_predicted_s:22.3f}  "
            f"{1 / line.ratio:8.3f} ({1 / line.high:.3f} to {1 / line.low:.3f})  {line.rounds}"
            f"{'' if line.quiet else ' busy'}"
        )
    ratios = [1 / line.ratio for line in lines]
    print(f"geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios, default=math.nan):.3f}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", nargs="*", default=WORKLOAD.split(), help=f"default: {WORKLOAD}")
    parser.add_argument("--at", help="comma-separated extents; left out: 12 of them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15, help="quiet samples of each kernel; twice as many at most")
    parser.add_argument("--hw", default="host", help="hardware spec that is planned for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    workload = parse_ranged(options.workload)
    hardware = anatune.hardware(options.hw)
    if not isinstance(hardware, CpuSpec):
        raise SystemExit(f"bench.cpu.ranges: {hardware.name} is no CPU")
    hardware = hardware.with_threads(options.threads)
    started = time.perf_counter()
    chosen = best_program(workload, hardware)
    print(f"chosen in {time.perf_counter() - started:.1f} s")
    extents = [int(word) for word in options.at.split(",")] if options.at else spread_out(workload.extents)
    lines = measured(workload, chosen, hardware, extents, options.rounds, options.threads)
    _print(workload, chosen, lines)
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items()}
        answer = {"worst_loss": chosen.worst_loss, "program": chosen.program.describe()}
        about = environment(**settings)
        lines_json = [line._asdict() for line in lines]
        write_json(options.json, {"environment": about, "hardware": hardware.name, **answer, "lines": lines_json})


if __name__ == "__main__":
    main()
