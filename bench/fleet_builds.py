"""How many GPU kernels build workers build a second: real Dask workers, TVM and NVRTC, no GPU.

    python -m bench.fleet_builds [--workers 1 2 4] [--builds 40] [--hw rtx3090] [--workload resnet50:R2] [--json FILE]

What is printed: docs/bench/fleet_builds.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE_HEAD
from rich.table import Table

import anatune
from anatune import api
from anatune.codegen.cuda.artifact import cuda_kernel, set_up
from anatune.codegen.cuda.nvrtc import compile_cuda
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.fleet.cluster import tasks
from anatune.fleet.cluster.dask_fleet import BUILD
from anatune.fleet.cluster.messages import BuildRequest, BuildResult, decode, encode
from anatune.fleet.cluster.security import connect
from anatune.measure.run.build_processes import Limits
from bench.results import environment, wide_console, write_json
from bench.simulate_fleet import started

AHEAD = 2
"""Builds that a worker has or waits for: it never waits for this process."""
WARM_UP = 2
"""Builds of each worker that do not count: processes start, libraries are loaded."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="of one builder each")
    parser.add_argument("--builds", type=int, default=40, help="that count, for each number of workers")
    parser.add_argument("--hw", default="rtx3090")
    parser.add_argument("--workload", default="resnet50:R2", help="a named layer")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    hardware = api.hardware(options.hw)
    if not isinstance(hardware, GpuSpec):
        raise SystemExit(f"bench.fleet_builds: {options.hw} is no GPU")
    numbers = [WARM_UP * count + options.builds for count in options.workers]
    model = api.model(anatune.layer(options.workload), hardware)
    points = model.rank(sum(numbers), distinct=True).points
    schedules = [model.space.schedule_of(point) for point in points]
    table = Table(title=f"{options.workload} for {options.hw}: builds of GPU kernels", box=SIMPLE_HEAD)
    columns = "workers", "builds a s", "of linear", "processor s a build", "cores busy", "wall s a build", "bytes"
    for column in columns:
        table.add_column(column, justify="right")
    rows: list[dict[str, Any]] = []
    first = schedules[WARM_UP * options.workers[0] : numbers[0]]
    for count, number in zip(options.workers, numbers, strict=True):
        own, schedules = schedules[:number], schedules[number:]
        row = {"workers": count, **build_all(count, own, hardware)}
        rows.append(row)
        linear = row["builds_per_s"] / (rows[0]["builds_per_s"] / rows[0]["workers"] * count)
        table.add_row(
            str(count), f"{row['builds_per_s']:.2f}", f"{linear:.2f}", f"{row['processor_s']:.3f}",
            f"{row['processor_s'] * row['builds_per_s']:.2f}", f"{row['build_s']:.3f}", f"{row['bytes']:.0f}",
        )  # fmt: skip
    parts = shares(first)
    table.caption = "in one process, processor s a build: " + ", ".join(f"{k} {v:.3f}" for k, v in parts.items())
    wide_console(120).print(table)
    if options.json:
        settings = {"hw": options.hw, "workload": options.workload, "builds": options.builds}
        write_json(options.json, {"environment": environment(**settings), "rows": rows, "one_process": parts})


def build_all(count: int, schedules: Sequence[Schedule], hardware: GpuSpec) -> dict[str, float]:
    """Build with some workers; return speed, processor time (worker, builder processes), wall time, size of answers."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        scheduler = stack.enter_context(started(["scheduler"], None))
        workers = [stack.enter_context(worker(scheduler.said, at, Path(folder))) for at in range(count)]
        client = stack.enter_context(contextlib.closing(connect(scheduler.said, None)))
        client.wait_for_workers(count, timeout=120)
        addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
        session, waiting = uuid.uuid4().hex, list(enumerate(schedules))
        started_s, used_s, counted, build_s, size = 0.0, 0.0, 0, 0.0, 0
        flying: dict[Any, str] = {}
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for done in range(len(schedules)):
            for address in addresses:
                while waiting and sum(one == address for one in flying.values()) < AHEAD:
                    number, schedule = waiting.pop(0)
                    request = encode(BuildRequest(session, number, hardware, 1, Limits(), schedule))
                    future = client.submit(
                        tasks.answer,
                        "build",
                        request,
                        workers=[address],
                        resources={BUILD: 1},
                        pure=False,
                        key=f"b{number}",
                    )
                    flying[future] = address
                    future.add_done_callback(ended.put)
            if done == WARM_UP * count:
                started_s, used_s = time.perf_counter(), sum(tree_s(one) for one in workers)
            future = ended.get()
            content = future.result()
            del flying[future]
            built = decode(content, BuildResult)
            if built.packed is None:
                raise SystemExit(f"bench.fleet_builds: {built.trouble or built.failure}")
            if started_s:
                counted, build_s, size = counted + 1, build_s + built.build_s, size + len(content)
        wall_s = time.perf_counter() - started_s
        used_s = sum(tree_s(one) for one in workers) - used_s
    return {
        "builds_per_s": counted / wall_s, "processor_s": used_s / counted, "build_s": build_s / counted,
        "bytes": size / counted,
    }  # fmt: skip


@contextlib.contextmanager
def worker(address: str, number: int, folder: Path) -> Iterator[psutil.Process]:
    """Run ``anatune worker --build-only``, on a core of its own as long as there are any; nothing is in its cache."""
    cores = sorted(os.sched_getaffinity(0))
    words = [sys.executable, "-m", "anatune", "worker", address, "--build-only", "--builders", "1"]
    process = subprocess.Popen(
        [*words, "--name", f"builder-{number}"],
        env={**os.environ, "XDG_CACHE_HOME": str(folder / str(number))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, {cores[number % len(cores)]}),
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def tree_s(process: psutil.Process) -> float:
    """Return the processor time of a process and of all that it started, s."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total


def shares(schedules: Sequence[Schedule]) -> dict[str, float]:
    """Return the processor time of the steps of a build in this process, s: generating text, NVRTC."""
    set_up()
    total = {"TVM and text": 0.0, "NVRTC": 0.0}
    for number, schedule in enumerate(schedules):
        begun = time.process_time()
        kernel = cuda_kernel(schedule)
        text = time.process_time()
        compile_cuda(kernel.source, kernel.arch, name=kernel.name)
        if number:  # the first loads libraries
            total["TVM and text"] += text - begun
            total["NVRTC"] += time.process_time() - text
    return {name: seconds / max(len(schedules) - 1, 1) for name, seconds in total.items()}


if __name__ == "__main__":
    sys.exit(main())
