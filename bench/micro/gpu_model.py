"""Points per second and core of the batch GPU model.

    python -m bench.micro.gpu_model [--hw rtx3090] [--points 8192] [--repeats 9] [--json FILE]

The workloads take turns, so that a slow phase of the machine hits all of them alike; medians are reported.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import anatune
from anatune import api
from bench.results import environment, write_json

WORKLOADS = ("bert:M1", "resnet50:R2")
"""matmul 512x4096x1024 and the 3x3 convolution of 64 channels at 56x56."""
CALLS = ("times", "evaluate", "check")
"""Seconds and rules alone (what ranking uses), all columns, rules alone."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="rtx3090", help="a GPU")
    parser.add_argument(
        "--points", type=int, default=8_192, help="legal points a batch (small enough for a cache, as in a search)"
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    models = {name: api.model(anatune.layer(name), anatune.hardware(options.hw)) for name in WORKLOADS}
    batches = {name: model.space.sample_points(options.points, options.seed) for name, model in models.items()}
    for name, model in models.items():  # compile, and touch the memory
        for call in CALLS:
            getattr(model, call)(batches[name])
    calls = [(name, call) for name in WORKLOADS for call in CALLS]
    wall_s: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    cpu_s: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(options.repeats):
        for name, call in calls:
            method = getattr(models[name], call)
            wall, cpu = time.perf_counter(), time.process_time()
            method(batches[name])
            cpu_s[name, call].append(time.process_time() - cpu)
            wall_s[name, call].append(time.perf_counter() - wall)

    table = Table(title=f"GPU model on {options.hw}", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("workload", "call", "points", "points/s", "points/s and core", "ns/point and core", "spread"):
        table.add_column(heading, justify="left" if heading in ("workload", "call") else "right")
    rows = []
    for name, call in calls:
        points = len(batches[name])
        wall = median(wall_s[name, call])
        core = median(cpu_s[name, call])
        low, _, high = quantiles(wall_s[name, call], n=4)
        rows.append(
            {
                "workload": name,
                "call": call,
                "points": points,
                "points_per_s": points / wall,
                "points_per_core_s": points / core,
                "wall_s": wall_s[name, call],
                "cpu_s": cpu_s[name, call],
            }
        )
        table.add_row(
            name, call, str(points), f"{points / wall:.3g}",
            f"{points / core:.3g}", f"{1e9 * core / points:.1f}", f"{100 * (high - low) / wall:.1f}%",
        )  # fmt: skip
    Console().print(table)
    if options.json:
        settings = {"hw": options.hw, "cores": os.cpu_count(), "seed": options.seed}
        write_json(options.json, {"environment": environment(**settings), "results": rows})


if __name__ == "__main__":
    main()
