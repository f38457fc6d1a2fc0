"""CPU seconds of ``anatune compile`` on ONNX files: the first time, of a changed model, again.

    python -m bench.models_compile FILE.onnx ... [--runs 3] [--json FILE]

User and system time of the whole process with its children, so that other load matters less than for seconds. "first":
with an empty cache; "changed": another value in one weight, so that plans and kernels are there and the model is not;
"again": nothing has changed. Compiled code of the planner itself (Python's, numba's) is there in all of them.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.results import environment, wide_console, write_json

__all__ = ["changed", "main"]

_STAGES = ("first", "changed", "again")


def changed(source: Path, target: Path) -> None:
    """Write an ONNX model with one number changed in its largest weight; BERT's last one is too large to add 1."""
    import onnx

    model = onnx.load(str(source))
    weights = [one for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT]
    weight = max(weights, key=lambda one: len(one.raw_data))
    array = onnx.numpy_helper.to_array(weight).copy()
    array.flat[0] += np.float32(1)
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save(model, str(target))


def compile_s(file: Path, folder: Path) -> float:
    """Return the CPU seconds of a process that compiles a file, with `folder` for what is kept between processes."""
    settings = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "anatune", "compile", str(file), "-o", str(folder / "compiled")]
    subprocess.run(command, env=settings, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def stages_s(file: Path) -> dict[str, float]:
    """Return the CPU seconds of each stage."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cache").mkdir()
        found = {"first": compile_s(file, folder)}
        changed(file, folder / "changed.onnx")
        found["changed"] = compile_s(folder / "changed.onnx", folder)
        found["again"] = compile_s(file, folder)
    return found


def main() -> None:
    """Compile each file some times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.onnx")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    console, found = wide_console(100), {}
    for file in asked.files:
        runs = [stages_s(file) for _ in range(asked.runs)]
        medians = {stage: statistics.median(run[stage] for run in runs) for stage in _STAGES}
        found[file.stem] = {"runs": runs, "load": os.getloadavg()[0]}
        words = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in medians.items())
        console.print(f"{file.stem}: {words} CPU s (median of {asked.runs}, load {os.getloadavg()[0]:.1f})")
    if asked.json is not None:
        write_json(asked.json, {"environment": environment(runs=asked.runs), "models": found})


if __name__ == "__main__":
    main()
