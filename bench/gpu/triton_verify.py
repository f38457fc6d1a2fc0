"""Random schedules of the template "triton": generated kernels in Triton's interpreter against float64; and mutants.

    python -m bench.gpu.triton_verify [--scaled] [--points 400] [--hw h100_sxm] [--mutants 60] [--seed 0] [--json FILE]

Products of every transposition, einsum products, convolutions of one to three dimensions with strides, paddings,
dilations and groups in both layouts; epilogues; parts of sums, groups of tiles, programs that take several tiles,
tensor descriptors. `--scaled`: products with scales and of experts instead. Exit status 1 if a point was wrong, or if a
mutant (`triton_mutants`) was not caught.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anatune
from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError, RunError
from anatune.measure.emulate.triton_interpreter import check_program
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.measure.run.rounding import find_used_operands
from anatune.templates import TRITON
from anatune.templates.triton.program import TritonProgram
from bench.gpu.scaled_points import DEVICES as SCALED_DEVICES
from bench.gpu.scaled_points import random_scaled
from bench.gpu.triton_mutants import mutants
from bench.gpu.triton_points import DEVICES, random_schedule
from bench.results import environment, write_json

__all__ = ["main"]


def _check(schedule: Schedule) -> tuple[bool, float | None, str]:
    """Return whether a schedule's kernels are right, their largest error, and what is wrong."""
    try:
        answer = anatune.verify(schedule)
    except AnatuneError as fault:
        return False, None, f"{type(fault).__name__}: {fault}"
    return answer.ok, answer.max_rel_error, answer.message


def _is_caught(schedule: Schedule, mutant: TritonProgram) -> bool:
    """Return whether a mutant is wrong with either of two draws of operands: one result may happen to be about 0."""
    workload = schedule.workload
    for seed in (0, 1):
        inputs = random_inputs(workload, seed)
        want = compute_expected(workload, find_used_operands(schedule, inputs))
        try:
            if not check_program(workload, mutant, inputs, want).ok:
                return True
        except RunError:
            return True
    return False


def _mutate(right: Sequence[Schedule]) -> tuple[Counter[str], Counter[str]]:
    """Return kind of fault -> mutants, and -> those that were caught; print those that were not."""
    made: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    for schedule in right:
        for what, mutant in mutants(TRITON.program(schedule)):
            made[what] += 1
            found = _is_caught(schedule, mutant)
            caught[what] += found
            if not found:
                print(f"  not caught: {what}: {schedule.workload.describe()} {schedule.describe()}", flush=True)
    return made, caught


def _parts(schedule: Schedule) -> list[str]:
    """Return what a point has of what is counted."""
    options, workload = schedule.options, schedule.workload
    kind = str(workload.attribute.get("dtype", workload.dtype))
    words = [workload.operator, kind.partition(":")[0], schedule.hardware.name, *workload.epilogue]
    words += [name for name in ("descriptors", "persistent", "warp_specialize") if options.get(name)]
    return words + (["split_k"] if options.get("split_k", 1) != 1 else [])


def main() -> int:
    """Check, print, save; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--scaled", action="store_true", help="products with scales and of experts")
    parser.add_argument("--hw", choices=sorted({*DEVICES, *SCALED_DEVICES}), help="one device; default: all in turn")
    parser.add_argument("--mutants", type=int, default=60, help="points whose kernels are mutated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    right: list[Schedule] = []
    largest = 0.0
    start = time.perf_counter()
    for _ in range(options.points):
        schedule = (random_scaled if options.scaled else random_schedule)(draw, options.hw)
        ok, error, message = _check(schedule)
        counts.update(_parts(schedule))
        largest = max(largest, error or 0.0)
        if ok:
            right.append(schedule)
            continue
        wrong.append(f"{schedule.workload.describe()} {schedule.describe()}: {message}")
        print(f"  WRONG {wrong[-1]}", flush=True)
    seconds = time.perf_counter() - start
    print(
        f"{len(right)} of {options.points} right, largest error {largest:.1e}, {seconds / options.points:.2f} s a point"
    )
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    made, caught = _mutate(right[: options.mutants])
    for what in made:
        print(f"mutants, {what}: {caught[what]} of {made[what]} caught")
    missed = made.total() - caught.total()
    print(f"mutants, all: {caught.total()} of {made.total()} caught")
    print(f"{'PASS' if not wrong and not missed else 'FAIL'}: {len(wrong)} points wrong, {missed} mutants not caught")
    if options.json:
        write_json(
            options.json,
            {
                "environment": environment(points=options.points, seed=options.seed),
                "wrong": wrong,
                "made": made,
                "caught": caught,
            },
        )
    return int(bool(wrong or missed))


if __name__ == "__main__":
    raise SystemExit(main())
