"""Models for ranges of sizes beside the same models compiled for each size, interleaved, on one thread.

    python -m bench.models_sizes FILE.onnx --size tokens=1..512 --at batch=1,tokens=17 ... [--hw host] [--json FILE]

For each place a line: the median over rounds of the range's time over the fixed model's, CPU time of the process, and
how far outputs are apart. In the end the CPU seconds of compiling for the range over those of one size.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import anatune
from anatune.network.compiling.checking import error_of
from bench.results import environment, wide_console, write_json

__all__ = ["main", "ratio"]


def ratio(one: Callable[[], object], other: Callable[[], object], rounds: int) -> float:
    """Return the median of one call's CPU time over that of another beside it."""

    def seconds(call: Callable[[], object]) -> float:
        began = time.process_time()
        call()
        return time.process_time() - began

    one(), other()
    return statistics.median(seconds(one) / seconds(other) for _ in range(rounds))


def main() -> None:
    """Compile, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", action="append", default=[], metavar="NAME=1..512")
    parser.add_argument("--at", nargs="+", required=True, metavar="NAME=17,OTHER=3")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--hw", default="host", help="the CPU that kernels are for; this one must run them")
    parser.add_argument("--json", type=Path)
    own = parser.parse_args()
    sizes = dict(word.split("=") for word in own.size)
    console = wide_console(100)
    lines, compiling = [], {"range": 0.0, "fixed": 0.0}
    began = time.process_time()
    of_any = anatune.compile(own.file, hw=own.hw, threads=1, sizes=sizes, check=False)
    compiling["range"] = time.process_time() - began
    for place in own.at:
        at = {name: int(value) for name, value in (word.split("=") for word in place.split(","))}
        inputs = of_any.random_inputs(sizes=at)
        began = time.process_time()
        fixed = anatune.compile(own.file, inputs, hw=own.hw, threads=1, check=False)
        compiling["fixed"] = max(compiling["fixed"], time.process_time() - began)
        found = ratio(of_any.prepared(*inputs), fixed.prepared(*inputs), own.rounds)
        outputs = [one if isinstance(one, tuple) else (one,) for one in (of_any(*inputs), fixed(*inputs))]
        apart = max(error_of(np.asarray(one), np.asarray(other)) for one, other in zip(*outputs, strict=True))
        lines.append({"at": at, "ratio": found, "apart": apart})
        console.print(f"{place}: {found:.3f} of the fixed model's time, outputs {apart:.1e} apart")
    times = compiling["range"] / compiling["fixed"]
    console.print(f"compiling for the range takes {times:.2f} times the CPU seconds of the slowest fixed size")
    if own.json:
        write_json(own.json, {"file": own.file.name, "places": lines, "compile_ratio": times, **environment()})


if __name__ == "__main__":
    main()
