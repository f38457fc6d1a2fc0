"""TVM's MetaSchedule with its own search and with anatune's, on functions as a model has them: plain layouts.

    python -m bench.cpu.metaschedule_search [SHAPE ...] [--own 32] [--other 256] [--threads 1] [--folder FOLDER]
                                            [--json FILE]

Every search runs in a process of its own and stays in FOLDER; afterwards the best kernels of both take turns. Needs TVM
and xgboost (pip install xgboost): a quarter of an hour a shape. What the columns mean:
docs/bench/cpu.metaschedule_search.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = ["SHAPES", "main"]

MARKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Trials after which the best kernel so far is kept."""
ROUNDS = 15
_CALLS_S = 0.05
"""One sample takes about so long."""

Shape = dict[str, Any]
"""Extents by name: of a matrix product, or of a convolution."""
SHAPES: dict[str, Shape] = {
    "matmul": {"m": 512, "n": 1024, "k": 1024},
    "conv_nchw": {"c": 64, "size": 56, "k": 64, "r": 3, "stride": 1, "padding": 1, "layout": "NCHW"},
    "conv_nhwc": {"c": 128, "size": 28, "k": 128, "r": 3, "stride": 1, "padding": 1, "layout": "NHWC"},
    "conv_strided": {"c": 64, "size": 56, "k": 128, "r": 3, "stride": 2, "padding": 1, "layout": "NCHW"},
    "pointwise": {"c": 256, "size": 14, "k": 1024, "r": 1, "stride": 1, "padding": 0, "layout": "NCHW"},
}
DEFAULT_SHAPES = ("matmul", "conv_nchw", "conv_nhwc")


def function_of(shape: Shape) -> Any:
    """Return the function, as TVM's own operators write it."""
    import tvm
    from tvm import te, topi

    if "m" in shape:
        a = te.placeholder((shape["m"], shape["k"]), name="A")
        b = te.placeholder((shape["k"], shape["n"]), name="B")
        tensors = [a, b, topi.matmul(a, b)]
    else:
        c, k, size, r = shape["c"], shape["k"], shape["size"], shape["r"]
        nchw = shape["layout"] == "NCHW"
        data = te.placeholder((1, c, size, size) if nchw else (1, size, size, c), name="data")
        weight = te.placeholder((k, c, r, r) if nchw else (r, r, c, k), name="weight")
        conv = topi.nn.conv2d_nchw if nchw else topi.nn.conv2d_nhwc
        tensors = [data, weight, conv(data, weight, shape["stride"], shape["padding"], 1)]
    return tvm.IRModule({"main": te.create_prim_func(tensors)})


def flop_of(shape: Shape) -> float:
    """Return the operations of one call, padding included."""
    if "m" in shape:
        return float(2 * shape["m"] * shape["n"] * shape["k"])
    out = (shape["size"] + 2 * shape["padding"] - shape["r"]) // shape["stride"] + 1
    return float(2 * out * out * shape["k"] * shape["c"] * shape["r"] ** 2)


def search_here(shape: Shape, method: str, trials: int, threads: int, folder: Path) -> None:
    """Search in this process; write the best kernel after each mark, and result.json."""
    import tvm
    from tvm.s_tir import meta_schedule

    from anatune.adapters import metaschedule
    from anatune.adapters.relax import target as target_of

    module = function_of(shape)
    target = target_of("host", threads)
    options: dict[str, Any] = {"cost_model": "xgb", "builder": metaschedule.builder(), "seed": 0}
    if method == "anatune":
        options = metaschedule.tuning_options("host")
    started = time.perf_counter()
    work = folder / "work"
    database = meta_schedule.tir_integration.tune_tir(
        module, target, str(work), max_trials_global=trials, num_trials_per_iter=min(64, trials), **options
    )
    wall_s = time.perf_counter() - started
    lines = (work / "database_tuning_record.json").read_text(encoding="utf-8").splitlines()  # in order of commit
    workload = database.commit_workload(module)
    records = [meta_schedule.database.TuningRecord.from_json(json.loads(line)[1], workload) for line in lines]
    times = [min((float(seconds) for seconds in record.run_secs or []), default=1e10) for record in records]
    libraries: dict[str, str] = {}
    for mark in (mark for mark in MARKS if mark <= len(times)):
        best = min(range(mark), key=times.__getitem__)
        if f"{best}.so" in libraries.values():
            libraries[str(mark)] = f"{best}.so"
            continue
        schedule = tvm.s_tir.Schedule(module)
        records[best].trace.apply_to_schedule(schedule, remove_postproc=False)
        tvm.compile(schedule.mod, target=target).export_library(str(folder / f"{best}.so"))
        libraries[str(mark)] = f"{best}.so"
    found = {"trials": len(times), "failed": sum(t >= 1e9 for t in times), "wall_s": wall_s, "libraries": libraries}
    (folder / "result.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def search(name: str, method: str, trials: int, threads: int, cache: Path) -> dict[str, Any]:
    """Return the result in `cache`, or search in a process of its own and keep it there.

    Raises
    ------
    SystemExit
        The search fails; the message has its last lines.
    """
    folder = (cache / f"{name}-{method}-{trials}trials-{threads}threads").resolve()
    if not (folder / "result.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "bench.cpu.metaschedule_search",
            name,
            "--threads",
            str(threads),
            "--inside",
            method,
            str(trials),
        ]
        settings = {**os.environ, "TVM_NUM_THREADS": str(threads)}
        with (folder / "log.txt").open("w") as log:
            done = subprocess.run(
                [*command, "--folder", str(folder)], stdout=log, stderr=log, env=settings, check=False
            )
        if done.returncode or not (folder / "result.json").exists():
            tail = (folder / "log.txt").read_text(errors="replace")[-1500:]
            raise SystemExit(f"bench.cpu.metaschedule_search: {method} on {name} failed:\n{tail}")
    found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    found["folder"] = str(folder)
    return found


def take_turns(shape: Shape, libraries: dict[str, str]) -> dict[str, list[float]]:
    """Return seconds a call of each library; in every round each has its turn."""
    import numpy as np
    import tvm

    generator = np.random.default_rng(0)
    parameters = function_of(shape)["main"].params
    arrays = [
        tvm.runtime.tensor(generator.random([int(extent) for extent in p.shape], dtype=np.float32)) for p in parameters
    ]
    calls: dict[str, Callable[..., Any]] = {
        name: tvm.runtime.load_module(path)["main"] for name, path in libraries.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    counts: dict[str, int] = {}
    results = {}
    for name, call in calls.items():
        call(*arrays)
        results[name] = arrays[-1].numpy().copy()
        started = time.perf_counter()
        call(*arrays)
        counts[name] = max(1, round(_CALLS_S / max(time.perf_counter() - started, 1e-6)))
    first = next(iter(results.values()))
    for name, result in results.items():
        if not np.allclose(result, first, rtol=1e-3, atol=1e-3):
            raise SystemExit(f"bench.cpu.metaschedule_search: {name} computes something else")
    for _ in range(ROUNDS):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(counts[name]):
                call(*arrays)
            samples[name].append((time.perf_counter() - started) / counts[name])
    return samples


def compare(name: str, own: int, other: int, threads: int, cache: Path) -> dict[str, Any]:
    """Return GFLOP/s of both searches after each mark, and the ratio of their last kernels; all take turns."""
    found = {
        "anatune": search(name, "anatune", own, threads, cache),
        "default": search(name, "default", other, threads, cache),
    }
    libraries = {
        f"{method} {mark}": f"{result['folder']}/{library}"
        for method, result in found.items()
        for mark, library in result["libraries"].items()
    }
    samples = take_turns(SHAPES[name], libraries)
    flop = flop_of(SHAPES[name])
    final = [samples[f"{method} {max(map(int, found[method]['libraries']))}"] for method in ("default", "anatune")]
    return {
        "shape": name,
        "gflop_per_s": {label: flop / statistics.median(times) / 1e9 for label, times in samples.items()},
        "ratio": statistics.median(a / b for a, b in zip(*final, strict=True)),
        "wall_s": {method: result["wall_s"] for method, result in found.items()},
        "failed": {method: result["failed"] for method, result in found.items()},
    }


def _print(results: Sequence[dict[str, Any]], own: int, other: int) -> None:
    table = Table(
        box=SIMPLE_HEAD, title=f"GFLOP/s after N trials; {own} trials of anatune's, {other} of MetaSchedule's own"
    )
    for column in ("shape", "search", *map(str, MARKS[: MARKS.index(other) + 1]), "failed", "wall s", "own / other"):
        table.add_column(column, justify="left" if column in ("shape", "search") else "right")
    for result in results:
        for method in ("anatune", "default"):
            speeds = [result["gflop_per_s"].get(f"{method} {mark}") for mark in MARKS[: MARKS.index(other) + 1]]
            cells = ["" if speed is None else f"{speed:.1f}" for speed in speeds]
            ratio = f"{result['ratio']:.3f}" if method == "anatune" else ""
            more = (str(result["failed"][method]), f"{result['wall_s'][method]:.0f}", ratio)
            table.add_row(result["shape"] if method == "anatune" else "", method, *cells, *more)
    Console(width=170).print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="*", default=list(DEFAULT_SHAPES), metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--own", type=int, default=32, choices=MARKS)
    parser.add_argument("--other", type=int, default=256, choices=MARKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("metaschedule"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in options.shapes:
        if name not in SHAPES:
            parser.error(f"shape is {name!r}, expected one of {', '.join(SHAPES)}")
    if options.inside:
        method, trials = options.inside
        search_here(SHAPES[options.shapes[0]], method, int(trials), options.threads, options.folder)
        return
    results = []
    for name in options.shapes:
        print(f"{name}: searching, minutes ...", file=sys.stderr)
        results.append(compare(name, options.own, options.other, options.threads, options.folder))
        _print(results[-1:], options.own, options.other)
    _print(results, options.own, options.other)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
