"""Matrix products of few rows (decoding) against the memory's bandwidth: weights packed ahead and cold.

    python -m bench.cpu.decode [--dtype float32,bfloat16] [--rows 1,4,16] [--threads 1] [--trials 0] [--json FILE]
    python -m bench.cpu.decode --dtype float32xint4,float32xint8 [--group 32] [--accuracy standard] --shapes 2048x2048

Each product is planned (or tuned with `--trials`), its weights are packed into as many copies as exceed four times the
last cache, and calls go from copy to copy, so that every weight comes from memory. A probe that reads as much memory
with vector loads and does nothing else takes turns with it, on as many threads: the share is of its bandwidth, median
over rounds. Bytes are the compulsory ones: weights, rows and results, each once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["SHAPES", "Line", "cold_calls", "measure"]

SHAPES = ((4096, 4096), (11008, 4096), (4096, 11008))
"""n, k of the weights: those of a language model of 7 thousand million parameters."""
AIM = 0.85


class Line(NamedTuple):
    """One product: bytes a call must move, seconds of a call and of reading as many bytes, by round."""

    text: str
    moved_bytes: int
    times_s: tuple[float, ...]
    reads_s: tuple[float, ...]
    schedule: str

    @property
    def rate(self) -> float:
        """Median bytes per second."""
        return self.moved_bytes / statistics.median(self.times_s)

    @property
    def share(self) -> float:
        """Median over rounds of the probe's time over the product's, for as many bytes."""
        return statistics.median(read / own for own, read in zip(self.times_s, self.reads_s, strict=True))


def cold_calls(schedule: Any, threads: int, least_bytes: int, folder: Path) -> list[Callable[[], None]]:
    """Return calls of one kernel on operands of their own each, together at least `least_bytes` of weights."""
    from anatune.codegen.cpu.lower import build_schedule
    from anatune.measure.cpu.kernel import KernelLibrary, PreparedCall
    from anatune.measure.run.correctness import compute_expected, random_inputs

    artifact = build_schedule(schedule, folder, threads=threads)
    library = KernelLibrary(artifact)
    inputs = random_inputs(schedule.workload)
    first = PreparedCall(artifact, library, inputs, guarded=True)
    answer = first.check(schedule.workload, compute_expected(schedule.workload, inputs))
    if not answer.ok:
        raise SystemExit(f"bench.cpu.decode: {schedule.workload.describe()}: {answer.message}")
    copies = max(2, -(-least_bytes // schedule.workload.reads[1].num_bytes))
    return [PreparedCall(artifact, library, inputs).call for _ in range(copies)]


def read_probe(hardware: Any, threads: int, num_bytes: int) -> tuple[Callable[[], object], int]:
    """Return a call that reads memory with vector loads, and how many bytes it reads."""
    import numpy as np

    from anatune.codegen.cpu.machine_probes import walk_probe
    from anatune.codegen.cpu.probes import build_probes
    from anatune.measure.cpu.blocks import ArgumentBlock

    each = num_bytes // threads // 65536 * 65536
    probe = walk_probe(hardware, "decode_load", "load", each, threads=threads)
    module = build_probes([probe], hardware, threads=threads)
    blocks = [ArgumentBlock("float32", (size,)) for size in probe.sizes]
    for block in blocks:
        block.array[...] = np.float32(0.0)
    function, tensors = module.functions[probe.name], [block.tensor for block in blocks]
    return lambda: function(*tensors), int(probe.work)


def measure(calls: Sequence[Callable[[], None]], probe: Callable[[], object], rounds: int) -> list[tuple[float, float]]:
    """Return, round by round, the seconds of one call (mean over all copies) and of the probe beside it."""
    clock = time.perf_counter
    taken = []
    for call in calls:
        call()
    for _ in range(rounds):
        started = clock()
        probe()
        middle = clock()
        for call in calls:
            call()
        ended = clock()
        probe()
        taken.append(((ended - middle) / len(calls), (middle - started + clock() - ended) / 2))
    return taken


def _workload(rows: int, n: int, k: int, dtype: str, group: int) -> Any:
    """Return a product; of weights of few bits with a scale for each `group` of them."""
    import anatune

    if "xint" in dtype:
        return anatune.scaled_matmul(rows, n, k, dtype=dtype, group=group)
    return anatune.matmul(rows, n, k, dtype=dtype)


def _schedule(workload: Any, hardware: Any, options: argparse.Namespace, records: Path) -> Any:
    import anatune

    own = {"threads": options.threads, "accuracy": options.accuracy}
    if options.trials:
        return anatune.tune(workload, hardware, trials=options.trials, records=str(records), **own).best
    return anatune.plan(workload, hardware, top_k=1, **own).best


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="host")
    parser.add_argument("--dtype", default="float32,bfloat16", help="comma-separated, as in workloads")
    parser.add_argument("--rows", default="1,4,16", help="comma-separated")
    parser.add_argument("--shapes", help="comma-separated NxK instead of the usual three")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--group", type=int, default=32, help="weights of 4 or 8 bits that share a scale")
    parser.add_argument("--accuracy", default="standard")
    parser.add_argument("--trials", type=int, default=0, help="of tuning; 0: the plan's first choice")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    import anatune
    from anatune.codegen.compat import set_pool_threads

    hardware = anatune.hardware(options.hw)
    set_pool_threads(options.threads)
    least = 4 * (hardware.l3 or hardware.l2).size_bytes
    probe, read_bytes = read_probe(hardware, options.threads, least)
    shapes = [tuple(map(int, one.split("x"))) for one in options.shapes.split(",")] if options.shapes else SHAPES
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="anatune-bench-") as folder:
        for dtype in options.dtype.split(","):
            for rows in map(int, options.rows.split(",")):
                for n, k in shapes:
                    workload = _workload(rows, n, k, dtype, options.group)
                    schedule = _schedule(workload, hardware, options, Path(folder) / "records")
                    calls = cold_calls(schedule, options.threads, least, Path(folder))
                    taken = measure(calls, probe, options.rounds)
                    moved = workload.compulsory_bytes
                    reads = tuple(read * moved / read_bytes for _, read in taken)
                    text = f"{rows}x{n}x{k} {dtype}"
                    lines.append(Line(text, moved, tuple(own for own, _ in taken), reads, schedule.describe()))
                    print(f"{text}: {100 * lines[-1].share:.0f} %  {schedule.describe()}", file=sys.stderr, flush=True)
    print(f"{options.threads} thread(s), {hardware.name}: {least >> 20} MiB or more of weights, copy after copy\n")
    print("| M x N x K | us | GB/s | probe GB/s | share |\n|---|---|---|---|---|")
    for line in lines:
        probed = line.moved_bytes / statistics.median(line.reads_s)
        own = 1e6 * statistics.median(line.times_s)
        print(f"| {line.text} | {own:.0f} | {line.rate / 1e9:.1f} | {probed / 1e9:.1f} | {100 * line.share:.0f} % |")
    missed = [line.text for line in lines if line.share < AIM]
    print(f"\naim: >= {100 * AIM:.0f} % each; missed: {', '.join(missed) or 'none'}")
    if options.json:
        from bench.results import environment, write_json

        settings = {name: str(value) for name, value in vars(options).items()}
        write_json(options.json, {"environment": environment(**settings), "lines": [line._asdict() for line in lines]})


if __name__ == "__main__":
    main()
