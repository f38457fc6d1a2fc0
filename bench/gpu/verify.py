"""Random legal points of the GPU space, every operator: generated CUDA C against float64, on the CPU; and mutants.

    python -m bench.gpu.verify [--points 7] [--hw rtx3090 ...] [--only conv2d] [--mutants 30] [--seed 0] [--json FILE]

Half of the points become pipelined ones, with stages or padded rows of shared memory; names that
begin with "awkward" have tiles that do not divide their
extents; those that begin with "thin" use the template for streams. All mutants change results or break a rule of the
device (faults without effect are left out, see `mutants` and `guard_mutants`). Exit status 1 if a point was wrong or
could not be generated, or if a mutant was not caught.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import anatune
from anatune import batch_matmul, conv2d, matmul
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import (
    avg_pool2d,
    conv1d,
    conv3d,
    depthwise_conv2d,
    einsum,
    elementwise,
    max_pool2d,
    reduction,
)
from anatune.errors import AnatuneError, BuildError, RunError, SpaceError
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.measure.run.rounding import find_used_operands
from anatune.templates import CUDA, PIPELINED
from anatune.templates.cuda.model.model import CudaModel
from bench.gpu.awkward import awkward_workloads, covering_schedule, split_schedule
from bench.gpu.guard_mutants import guard_mutants, launch_mutants
from bench.gpu.mutants import mutants, spare_barriers
from bench.gpu.thin import thin_workloads

__all__ = ["Row", "workloads"]


class Row(msgspec.Struct):
    """One point: what was checked and what came out."""

    name: str
    hardware: str
    schedule: str
    ok: bool
    max_rel_error: float | None
    message: str
    seconds: float


class Mutants(msgspec.Struct):
    """Kernels with one kind of fault: how many, and how many of them the check found wrong."""

    kind: str
    made: int = 0
    caught: int = 0


def workloads() -> Iterator[tuple[str, Workload]]:
    """Yield small workloads of every kind, by name."""
    yield "matmul", matmul(96, 64, 48)
    yield "matmul odd", matmul(30, 35, 42)
    yield "matmul tall", matmul(256, 4, 64)
    yield "matmul transposed A", matmul(64, 48, 32, transpose_a=True)
    yield "matmul transposed B", matmul(48, 64, 32, transpose_b=True, epilogue=("bias", "relu"))
    yield "matmul epilogue", matmul(64, 96, 40, epilogue=("bias", "add", "relu"))
    yield "matmul float16", matmul(64, 64, 64, dtype="float16")
    yield "matmul bfloat16", matmul(64, 32, 64, dtype="bfloat16", epilogue=("bias",))
    yield "matmul int8", matmul(64, 64, 64, dtype="int8")
    yield "batch_matmul", batch_matmul(6, 32, 24, 40)
    yield "batch_matmul transposed", batch_matmul(4, 24, 32, 16, transpose_b=True, epilogue=("relu",))
    yield "conv2d", conv2d(1, 16, 14, 14, 24, 3, 3, padding=1)
    yield "conv2d 1x1", conv2d(2, 32, 7, 7, 48, 1, 1, epilogue=("bias", "relu"))
    yield "conv2d stride", conv2d(1, 8, 17, 17, 16, 3, 3, stride=2, padding=1, epilogue=("relu",))
    yield "conv2d 7x7 stride", conv2d(1, 3, 28, 28, 16, 7, 7, stride=2, padding=3)
    yield "conv2d dilation", conv2d(1, 6, 12, 10, 8, 3, 3, dilation=2, padding=2)
    yield "conv2d groups", conv2d(2, 12, 9, 8, 24, 3, 3, groups=3, padding=1, epilogue=("bias",))
    yield "conv2d asymmetric", conv2d(1, 4, 11, 13, 8, 3, 5, stride=(1, 2), padding=(1, 2))
    yield "conv2d NHWC", conv2d(1, 16, 10, 10, 16, 3, 3, padding=1, layout="NHWC")
    yield "conv2d NHWC residual", conv2d(1, 8, 9, 9, 12, 3, 3, stride=2, layout="NHWC", epilogue=("bias", "add"))
    yield "conv2d float16", conv2d(1, 8, 8, 8, 16, 3, 3, padding=1, dtype="float16")
    yield "depthwise", depthwise_conv2d(1, 24, 14, 14, 3, 3, padding=1, epilogue=("bias", "relu"))
    yield "depthwise NHWC", depthwise_conv2d(1, 16, 9, 9, 3, 3, stride=2, padding=1, layout="NHWC")
    yield "conv1d", conv1d(2, 8, 40, 16, 5, stride=2, padding=2)
    yield "conv3d", conv3d(1, 4, 6, 8, 8, 8, 3, 3, 3, padding=1)
    yield "max_pool2d", max_pool2d(1, 16, 15, 15, 3, 3, stride=2, padding=1)
    yield "max_pool2d NHWC", max_pool2d(2, 12, 12, 12, 2, 2, stride=2, layout="NHWC")
    yield "avg_pool2d", avg_pool2d(1, 16, 14, 14, 3, 3, stride=1, padding=1)
    yield "reduction", reduction((48, 200))
    yield "reduction rows", reduction((60, 96), axes=0)
    yield "reduction max", reduction((12, 10, 64), axes=(1, 2), kind="max")
    yield "einsum", einsum("bij,bkj->bik", [(3, 20, 16), (3, 24, 16)])
    yield "elementwise", elementwise((30, 64))
    for name, workload in awkward_workloads():
        yield f"awkward {name}", workload
    for name, workload in thin_workloads():
        yield f"thin {name}", workload


def _points(name: str, workload: Workload, hardware: GpuSpec, count: int, seed: int) -> list[Schedule]:
    draw = random.Random(seed)
    kind = name.removeprefix("awkward ")
    if kind.startswith("thin"):
        if (hardware.needed_capability(workload.dtypes) or 0.0) > (hardware.compute_capability or 0.0):
            return []
        found = anatune.space(workload, hardware, template="thin").sample(count, seed)
        return found if kind == name else [split_schedule(schedule, draw) for schedule in found]
    if workload.dtype == "bfloat16" and (hardware.compute_capability or 0.0) < 8.0:
        return []
    if name.startswith("awkward"):
        return [covering_schedule(workload, hardware, draw) for _ in range(count)]
    found = CudaModel(workload, hardware).space.sample(count, seed)
    return [schedule if draw.random() < 0.5 else _staged(schedule, draw) for schedule in found]


def _staged(schedule: Schedule, draw: random.Random) -> Schedule:
    """Return the schedule with stages and padding, or as it is where the device refuses them."""
    try:
        space = anatune.space(schedule.workload, schedule.hardware, template="pipelined")
    except SpaceError:
        return schedule
    stages, pad = draw.choice(space.stage_counts), draw.choice(space.pads)
    staged = space.schedule(schedule.tiles, schedule.unroll, schedule.vector, stages=stages, pad=pad)
    try:
        cuda_kernel(staged)
    except BuildError:
        return schedule
    return staged


def _check(name: str, schedule: Schedule) -> Row:
    start = time.perf_counter()
    try:
        answer = anatune.verify(schedule)
        ok, error, message = answer.ok, answer.max_rel_error, answer.message
    except AnatuneError as fault:
        ok, error, message = False, None, f"{type(fault).__name__}: {fault}"
    except Exception as fault:  # noqa: BLE001  a defect of the generator is a result here
        ok, error, message = False, None, f"{type(fault).__name__}: {str(fault).splitlines()[-1] if str(fault) else ''}"
    seconds = time.perf_counter() - start
    return Row(name, schedule.hardware.name, schedule.describe(), ok, error, message, seconds)


def _mutants(schedule: Schedule) -> Iterator[tuple[str, bool, str]]:
    """Yield (what, whether it was caught, how) of each mutant of one schedule's kernel."""
    workload = schedule.workload
    inputs = random_inputs(workload)
    want = compute_expected(workload, find_used_operands(schedule, inputs))
    kernel = cuda_kernel(schedule)
    own = guard_mutants(schedule) if schedule.template in (CUDA.name, PIPELINED.name) else ()
    for what, mutant in itertools.chain(mutants(kernel, spare_barriers(schedule)), launch_mutants(kernel), own):
        try:
            answer = check_kernel(workload, mutant, inputs, want)
            yield what, not answer.ok, answer.message
        except RunError as error:  # what does not compile is no kernel, and tells nothing about the check
            yield what, "compile" not in str(error), str(error)


def _mutate(right: Sequence[Schedule], count: int) -> list[Mutants]:
    """Check the mutants of so many of the points, at equal distances; print those that were not caught."""
    kinds: dict[str, Mutants] = {}
    for place in range(min(count, len(right))):
        schedule = right[place * len(right) // count if count < len(right) else place]
        for what, caught, _ in _mutants(schedule):
            name = " ".join(word for word in what.split() if not word.isdigit() and not word.endswith("_ptr"))
            kind = kinds.setdefault(name, Mutants(name))
            kind.made += 1
            kind.caught += caught
            if not caught:
                print(f"  not caught: {what}: {schedule.workload.describe()} {schedule.describe()}", flush=True)
    return list(kinds.values())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=7, help="random points of each workload and device")
    parser.add_argument("--hw", nargs="+", default=["rtx3090"])
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    parser.add_argument("--mutants", type=int, default=30, help="points whose kernels are mutated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Check, print, save; return the exit status."""
    options = _arguments()
    rows: list[Row] = []
    right: list[Schedule] = []
    print(f"{'workload':<26}{'points':>7}{'right':>7}{'largest error':>15}{'s a point':>11}")
    for number, (name, workload) in enumerate(workloads()):
        if not name.startswith(options.only):
            continue
        mine: list[Row] = []
        for hardware in options.hw:
            spec = anatune.hardware(hardware)
            for schedule in _points(name, workload, spec, options.points, options.seed + number):
                mine.append(_check(name, schedule))
                if mine[-1].ok:
                    right.append(schedule)
                else:
                    print(f"  WRONG {name}: {mine[-1].schedule}\n    {mine[-1].message}", flush=True)
        rows += mine
        worst = max((row.max_rel_error or 0.0 for row in mine), default=0.0)
        mean = sum(row.seconds for row in mine) / max(1, len(mine))
        print(f"{name:<26}{len(mine):>7}{sum(row.ok for row in mine):>7}{worst:>15.1e}{mean:>11.2f}", flush=True)
    print(f"{'all':<26}{len(rows):>7}{sum(row.ok for row in rows):>7}")
    kinds = _mutate(right, options.mutants)
    missed = sum(kind.made - kind.caught for kind in kinds)
    for kind in kinds:
        print(f"mutants, {kind.kind}: {kind.caught} of {kind.made} caught")
    if kinds:
        print(f"mutants, all: {sum(kind.caught for kind in kinds)} of {sum(kind.made for kind in kinds)} caught")
    wrong = sum(not row.ok for row in rows)
    print(f"{'PASS' if not wrong + missed else 'FAIL'}: {wrong} points wrong, {missed} mutants not caught")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"points": rows, "mutants": kinds})))
    return int(wrong + missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
