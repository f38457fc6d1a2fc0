"""How well anatune's cost model orders random candidates of MetaSchedule's own CPU space, measured on one core.

    python -m bench.cpu.metaschedule_ranking [--workload NAME ...] [--candidates 60] [--seed 1] [--hw host]
                                          [--folder FOLDER] [--json FILE]

Draws traces of the default space of TVM's MetaSchedule, builds and times them on one thread, in turns (the median of
rounds), and compares the predicted order: Spearman's rank correlation, and the best of the first eight against the best
of all, beside what a random order gives on average. Measurements stay in FOLDER and are used again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import anatune
from anatune.adapters.tvm_tiles.tvm_nest import CompiledNestModel
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.records.traces import UnfitError, read_trace
from bench.cpu.metaschedule import SLOW_INTRINSICS
from bench.replay.metrics import spearman


def in_loop_order(workload: Workload) -> Workload:
    """Return the workload with its spatial axes in the order of the result's dimensions, as TVM's block has them."""
    spatial = [next(axis for axis in workload.axes if axis.name == name) for name in workload.output_axes]
    return msgspec.structs.replace(workload, axes=(*spatial, *workload.reduction_axes))


WORKLOADS: dict[str, Workload] = {
    "matmul": anatune.matmul(256, 256, 256),
    "conv2d": anatune.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1),
    "matmul_tall": anatune.matmul(512, 64, 1024),
    "conv2d_stride2": anatune.conv2d(1, 32, 56, 56, 64, 3, 3, stride=2, padding=1),
    "batch_matmul": anatune.batch_matmul(12, 128, 64, 128),
    "conv2d_1x1": anatune.conv2d(1, 128, 14, 14, 256, 1, 1),
    "matmul_wide": anatune.matmul(96, 768, 192),
    "conv2d_nhwc": in_loop_order(anatune.conv2d(1, 32, 28, 28, 96, 3, 3, padding=1, layout="NHWC")),
    "conv2d_7x7": anatune.conv2d(1, 128, 14, 14, 128, 3, 3, padding=1),
    "conv2d_5x5": anatune.conv2d(1, 16, 32, 32, 48, 5, 5, padding=2),
    "matmul_odd": anatune.matmul(252, 180, 300),
    "conv2d_stem": anatune.conv2d(1, 3, 112, 112, 32, 7, 7, stride=2, padding=3),
}
FIRST = 8


def function_of(workload: Workload) -> Any:
    """Return the workload as TVM's PrimFunc, as importers of models write it: padding is a block of its own."""
    from tvm import te

    axes = {axis.name: te.reduce_axis((0, axis.extent), name=axis.name) for axis in workload.reduction_axes}
    tensors, operands = [], []
    for access in workload.reads:
        tensor = te.placeholder(access.shape, access.dtype, name=access.tensor)
        tensors.append(tensor)
        before = [max(0, -offset) for offset in access.offsets]
        spans = [
            1 + offset + sum(term.coefficient * (workload.extents[term.axis] - 1) for term in terms)
            for terms, offset in zip(access.indices, access.offsets, strict=True)
        ]
        after = [max(0, span - size) for span, size in zip(spans, access.shape, strict=True)]
        if any(before) or any(after):
            tensor = _padded(te, tensor, before, after)
        operands.append(tensor)
    order = list(workload.output_axes)

    def element(*spatial: Any) -> Any:
        at = dict(zip(order, spatial, strict=True)) | axes
        product: Any = None
        for access, tensor in zip(workload.reads, operands, strict=True):
            index = [
                sum((at[term.axis] * term.coefficient for term in terms), max(0, offset))
                for terms, offset in zip(access.indices, access.offsets, strict=True)
            ]
            product = tensor(*index) if product is None else product * tensor(*index)
        return te.sum(product, axis=list(axes.values()))

    result = te.compute(workload.write.shape, element, name=workload.write.tensor)
    return te.create_prim_func([*tensors, result])


def _padded(te: Any, tensor: Any, before: Sequence[int], after: Sequence[int]) -> Any:
    """Return the tensor with zeros around it."""
    import tvm

    shape = [int(size) + b + a for size, b, a in zip(tensor.shape, before, after, strict=True)]

    def element(*index: Any) -> Any:
        inside = []
        for i, size, b, a in zip(index, tensor.shape, before, after, strict=True):
            inside += [i >= b] if b else []
            inside += [i < int(size) + b] if a else []
        source = tensor(*[i - b for i, b in zip(index, before, strict=True)])
        return tvm.tirx.if_then_else(te.all(*inside), source, te.const(0, tensor.dtype))

    return te.compute(shape, element, name="padded")


def draw(workload: Workload, count: int, seed: int) -> tuple[Any, list[Any]]:
    """Return the target and candidates of MetaSchedule's default CPU space, as a tuner would build them."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from anatune.adapters.relax import target as target_of

    target = target_of("host", threads=1)
    context = ms.TuneContext(
        mod=tvm.IRModule({"main": function_of(workload)}),
        target=target,
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        task_name="rank",
        rand_state=seed,
        num_threads=1,
    )
    context.pre_tuning(count, count)
    return target, [candidate.sch for candidate in context.generate_measure_candidates() or []]


def measure(workload: Workload, count: int, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Build and time candidates; one row each: the trace as JSON, median seconds."""
    import tvm

    from anatune.adapters.metaschedule.traces import recorded_trace
    from anatune.codegen.compat import TVM_ERRORS

    target, schedules = draw(workload, count, seed)
    generator = np.random.default_rng(0)
    shapes = [access.shape for access in (*workload.reads, workload.write)]
    arrays = [tvm.runtime.tensor(generator.random(shape, dtype=np.float32)) for shape in shapes]
    rows, timers = [], []
    for number, schedule in enumerate(schedules):
        started = time.perf_counter()
        try:
            built = tvm.compile(schedule.mod, target=target)
        except TVM_ERRORS as error:  # a candidate that TVM cannot build is no candidate
            print(f"{number}: {str(error).splitlines()[-1][:100]}", file=sys.stderr)
            continue
        rows.append({"trace": recorded_trace(schedule.trace), "build_s": time.perf_counter() - started, "times_s": []})
        timers.append(built)
    for _ in range(rounds):
        for row, built in zip(rows, timers, strict=True):
            evaluator = built.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=15)
            row["times_s"].append(float(evaluator(*arrays).mean))
    for row in rows:
        row["time_s"] = statistics.median(row["times_s"])
    return rows


def predicted(workload: Workload, hardware: CpuSpec, traces: Sequence[Any]) -> list[float]:
    """Return the predicted seconds of recorded traces on one core, NaN where one is not understood."""
    from anatune.adapters.metaschedule.traces import nests_of

    model = CompiledNestModel(workload, hardware, 1)
    times = []
    for instructions, decisions in traces:
        try:
            nests = nests_of(workload, [read_trace(instructions, decisions)])
        except UnfitError:
            times.append(math.nan)
        else:
            times.append(float(model.evaluate(nests).time_s[0]))
    return times


def report(name: str, workload: Workload, rows: list[dict[str, Any]], times: list[float]) -> dict[str, Any]:
    """Return the measures of one workload."""
    known = [at for at, time_s in enumerate(times) if math.isfinite(time_s)]
    measured = np.array([rows[at]["time_s"] for at in known])
    guessed = np.array([times[at] for at in known])
    order = np.argsort(guessed, kind="stable")
    generator = np.random.default_rng(0)
    best = measured.min()
    chance = [measured[generator.permutation(len(measured))[:FIRST]].min() / best for _ in range(2000)]
    ratio = measured / guessed
    return {
        "workload": name,
        "candidates": len(rows),
        "understood": len(known),
        "spearman": spearman(guessed, measured),
        "best_gflop_s": workload.flop / best / 1e9,
        f"first_{FIRST}_over_best": float(measured[order[:FIRST]].min() / best),
        f"random_{FIRST}_over_best": float(np.median(chance)),
        "first_over_best": float(measured[order[0]] / best),
        "median_measured_over_predicted": float(np.median(ratio)),
        "ratio_spread": float(np.exp(np.std(np.log(ratio)))),
    }


def table_of(reports: Sequence[dict[str, Any]]) -> Table:
    """Return reports as a table."""
    table = Table(title="Random candidates of MetaSchedule's CPU space", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("workload", "candidates", "understood", "rho", "first", f"first {FIRST}", f"random {FIRST}"):
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for row in reports:
        ratios = (row["first_over_best"], row[f"first_{FIRST}_over_best"], row[f"random_{FIRST}_over_best"])
        counts = (str(row["candidates"]), str(row["understood"]), f"{row['spearman']:.2f}")
        table.add_row(row["workload"], *counts, *(f"{ratio:.2f}" for ratio in ratios))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="all by default")
    parser.add_argument("--candidates", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hw", default="host")
    parser.add_argument("--folder", type=Path, default=Path("metaschedule-rank"), help="of the measurements")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = "1"
    for name in SLOW_INTRINSICS:
        sys.modules.setdefault(f"tvm.s_tir.tensor_intrin.{name}", types.ModuleType(name))
    options.folder.mkdir(parents=True, exist_ok=True)
    hardware = anatune.hardware(options.hw)
    if not isinstance(hardware, CpuSpec):
        parser.error(f"--hw {options.hw} is a GPU, expected a CPU")
    reports = []
    for name in options.workload or WORKLOADS:
        path = options.folder / f"{name}-{options.seed}.json"
        if not path.exists():
            print(f"{name}: measuring", file=sys.stderr)
            rows = measure(WORKLOADS[name], options.candidates, options.rounds, options.seed)
            path.write_text(json.dumps(rows), encoding="utf-8")
        rows = json.loads(path.read_text(encoding="utf-8"))
        reports.append(
            report(name, WORKLOADS[name], rows, predicted(WORKLOADS[name], hardware, [row["trace"] for row in rows]))
        )
    Console(width=120).print(table_of(reports))
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
