"""TVM's MetaSchedule on one layer: evolutionary search with xgboost, packed weights, natural blocked layouts.

    python -m bench.cpu.metaschedule LAYER --trials 192 [--threads 1] [--folder FOLDER]

Needs TVM and xgboost (pip install xgboost). Minutes a layer, so the result (library, times, wall time) stays in FOLDER
and is used again. `bench/cpu/device.py --metaschedule 192` calls this.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.cpu.layers import LAYERS
from bench.layers import Layer, Matmul

__all__ = ["SLOW_INTRINSICS", "Result", "search", "timed_call"]

Result = dict[str, Any]
"""library, entry shapes, trials, wall_s, failed, best_s, best_so_far (trials -> GFLOP/s)."""

SLOW_INTRINSICS = ("cuda", "rocm", "metal", "hexagon", "arm_cpu", "riscv_cpu")
"""Parts of tvm.s_tir.tensor_intrin that no x86 search uses and that take 20 s to import in every builder worker."""


def _block(extent: int, most: int = 16) -> int:
    """Return the largest divisor of `extent` that is at most `most`: channels of a block."""
    return max(block for block in range(1, most + 1) if extent % block == 0)


def shapes(layer: Layer) -> list[tuple[int, ...]]:
    """Return the shapes of the input, the packed constant and the result."""
    if isinstance(layer, Matmul):
        block = _block(layer.n)
        return [(layer.m, layer.k), (layer.n // block, layer.k, block), (layer.m, layer.n // block, block)]
    c, k, h, r, o = layer.channels, layer.filters, layer.size, layer.kernel, layer.output_size
    cb, kb = _block(c), _block(k)
    return [(c // cb, h, h, cb), (k // kb, c // cb, r, r, cb, kb), (k // kb, o, o, kb)]


def _function(layer: Layer) -> Any:
    """Return the computation as a TVM PrimFunc."""
    from tvm import te

    first, second, _ = shapes(layer)
    if isinstance(layer, Matmul):
        a, b = te.placeholder(first, name="A"), te.placeholder(second, name="B")
        k = te.reduce_axis((0, layer.k), name="k")
        shape = (layer.m, second[0], second[2])
        c = te.compute(shape, lambda i, j, jj: te.sum(a[i, k] * b[j, k, jj], axis=k), name="C")
        return te.create_prim_func([a, b, c])
    x, w = te.placeholder(first, name="X"), te.placeholder(second, name="W")
    p, s, h = layer.padding, layer.stride, layer.size
    source = x
    if p:
        source = te.compute(
            (first[0], h + 2 * p, h + 2 * p, first[3]),
            lambda co, y, z, ci: te.if_then_else(
                te.all(y >= p, y < h + p, z >= p, z < h + p), x[co, y - p, z - p, ci], te.const(0, "float32")
            ),
            name="P",
        )
    co, ci = te.reduce_axis((0, first[0]), name="co"), te.reduce_axis((0, first[3]), name="ci")
    r, q = te.reduce_axis((0, layer.kernel), name="r"), te.reduce_axis((0, layer.kernel), name="q")
    o = te.compute(
        (second[0], layer.output_size, layer.output_size, second[5]),
        lambda ko, y, z, ki: te.sum(
            source[co, y * s + r, z * s + q, ci] * w[ko, co, r, q, ci, ki], axis=[co, r, q, ci]
        ),
        name="O",
    )
    return te.create_prim_func([x, w, o])


def search_here(layer: Layer, trials: int, threads: int, folder: Path) -> Result:
    """Search in this process, export the best into `folder` and return what happened."""
    import tvm
    from tvm.s_tir import meta_schedule

    from anatune.adapters.relax import target as target_of

    module = tvm.IRModule({"main": _function(layer)})
    target = target_of("host", threads)
    started = time.perf_counter()
    database = meta_schedule.tir_integration.tune_tir(
        mod=module,
        target=target,
        work_dir=str(folder / "work"),
        max_trials_global=trials,
        num_trials_per_iter=min(32, trials),
        cost_model="xgb",
        seed=0,
    )
    wall_s = time.perf_counter() - started
    best = [
        min((float(t) for t in record.run_secs or []), default=math.inf) for record in database.get_all_tuning_records()
    ]
    valid = [seconds if seconds < 1e8 else math.inf for seconds in best]  # 1e10 is MetaSchedule's time of a failure
    schedule = meta_schedule.tir_integration.compile_tir(database, module, target)
    library = folder / "best.so"
    tvm.compile(schedule.mod, target=target).export_library(str(library))
    marks = [n for n in (8, 16, 32, 64, 128, 192, 256, 512) if n <= len(valid)]
    return {
        "layer": layer.name,
        "library": library.name,
        "trials": trials,
        "threads": threads,
        "wall_s": wall_s,
        "failed": sum(map(math.isinf, valid)),
        "best_s": min(valid),
        "best_so_far": {str(n): layer.flop / min(valid[:n]) / 1e9 for n in marks},
    }


def search(layer: Layer, trials: int, threads: int, cache: Path) -> Result:
    """Return the result in `cache`, or search in a process of its own and keep it there.

    Raises
    ------
    SystemExit
        A package is missing, or the search fails; the message has its last lines.
    """
    folder = (cache / f"{layer.name}-{trials}trials-{threads}threads").resolve()
    result = folder / "result.json"
    if not result.exists():
        for package, need in (
            ("tvm", "apache-tvm"),
            ("xgboost", "xgboost"),
            ("psutil", "psutil"),
            ("cloudpickle", "cloudpickle"),
        ):
            if importlib.util.find_spec(package) is None:
                raise SystemExit(f"bench.cpu.metaschedule: MetaSchedule needs {package}: pip install {need}")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as hooks:  # sitecustomize: in every worker, before TVM
            names = [f"tvm.s_tir.tensor_intrin.{name}" for name in SLOW_INTRINSICS]
            code = f"import sys, types\nfor name in {names!r}:\n    sys.modules[name] = types.ModuleType(name)\n"
            Path(hooks, "sitecustomize.py").write_text(code, encoding="utf-8")
            path = os.pathsep.join(filter(None, [hooks, os.environ.get("PYTHONPATH", "")]))
            settings = {**os.environ, "PYTHONPATH": path, "TVM_NUM_THREADS": str(threads)}
            command = [
                sys.executable,
                "-m",
                "bench.cpu.metaschedule",
                layer.name,
                "--trials",
                str(trials),
                "--threads",
                str(threads),
            ]
            with (folder / "log.txt").open("w") as log:
                done = subprocess.run(
                    [*command, "--inside", str(folder)], stdout=log, stderr=log, env=settings, check=False
                )
        if done.returncode or not result.exists():
            tail = (folder / "log.txt").read_text(errors="replace")[-1500:]
            raise SystemExit(f"bench.cpu.metaschedule: the search of {layer.name} failed:\n{tail}")
    found: Result = json.loads(result.read_text(encoding="utf-8"))
    found["library"] = str(folder / found["library"])
    return found


def timed_call(layer: Layer, result: Result) -> Callable[[], Any]:
    """Return a call without arguments that runs the best schedule on random operands."""
    import functools

    import numpy as np
    import tvm

    generator = np.random.default_rng(0)
    arrays = [tvm.runtime.tensor(generator.random(shape, dtype=np.float32)) for shape in shapes(layer)]
    return functools.partial(tvm.runtime.load_module(result["library"])["main"], *arrays)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("layer", choices=LAYERS)
    parser.add_argument("--trials", type=int, default=192)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("metaschedule"))
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    layer = LAYERS[options.layer]
    if options.inside:
        found = search_here(layer, options.trials, options.threads, options.inside)
        (options.inside / "result.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        return
    found = search(layer, options.trials, options.threads, options.folder)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
