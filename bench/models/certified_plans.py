"""Time, guarantee and memory of the certified top 10 of every bert, resnet50 and yolo9000 layer.

    python -m bench.models.certified_plans [--hw rtx3090] [--layer bert:M1 ...] [--top-k 10] [--json FILE]

Each layer is planned in a process of its own (after a first call on a tiny workload that loads the compiled code),
so that its peak resident memory is its own. Layers that need longer than --limit seconds are stopped and reported.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

import anatune
from anatune.core.workload.layers import layer_names
from bench.results import environment, wide_console, write_json

NETWORKS = ("bert:", "resnet50:", "yolo9000:")


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process.

    Linux's own counter is preferred: getrusage starts from the memory of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def plan_one(layer: str, hardware: str, top_k: int) -> dict[str, Any]:
    """Plan one layer here and return its row; the peak memory is that of this whole process."""
    device = anatune.hardware(hardware)
    anatune.plan(anatune.matmul(4, 4, 4), device, 1)
    workload = anatune.layer(layer)
    before = peak_rss_bytes()
    started, cpu = time.perf_counter(), time.process_time()
    plan = anatune.plan(workload, device, top_k)
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    best = plan.predictions[0] if plan.predictions else None
    return {
        "layer": layer,
        "workload": workload.describe(),
        "space_size": plan.space_size,
        "num_legal": plan.num_legal,
        "time_s": seconds,
        "cpu_s": cpu_s,
        "guarantee": plan.guarantee.describe(),
        "num_evaluated": plan.guarantee.num_evaluated,
        "num_bounded": plan.guarantee.num_bounded,
        "peak_rss_bytes": peak_rss_bytes(),
        "peak_rss_before_bytes": before,
        "best_time_s": best.time_s if best else None,
        "best_gflop_per_s": best.gflop_per_s if best else None,
        "bound_by": best.bound_by if best else None,
    }


def in_own_process(layer: str, hardware: str, top_k: int, limit_s: float) -> dict[str, Any]:
    """Return the row of `layer` from a fresh process; an "error" where there is no answer."""
    command = [
        sys.executable,
        "-m",
        "bench.models.certified_plans",
        "--one",
        layer,
        "--hw",
        hardware,
        "--top-k",
        str(top_k),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"layer": layer, "error": f"no answer within {limit_s:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"layer": layer, "error": lines[-1] if lines else f"exit status {done.returncode}"}
    return dict(json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="rtx3090")
    parser.add_argument("--layer", nargs="+", metavar="L", help="only these layers")
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a layer may take")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(plan_one(options.one, options.hw, options.top_k)))
        return
    layers = options.layer or [name for name in layer_names() if name.startswith(NETWORKS)]
    rows = [
        in_own_process(name, options.hw, options.top_k, options.limit)
        for name in track(layers, "planning", console=Console(stderr=True))
    ]
    table = Table(title=f"Top {options.top_k} on {options.hw}", box=SIMPLE_HEAD, pad_edge=False)
    for heading in (
        "layer", "space", "legal", "s", "guarantee", "evaluated", "bounded", "peak MB", "best us", "TFLOP/s",
        "bound by",
    ):  # fmt: skip
        table.add_column(
            heading, justify="left" if heading in ("layer", "guarantee", "bound by") else "right", no_wrap=True
        )
    for row in rows:
        if "error" in row:
            table.add_row(row["layer"], *["-"] * 10)
            continue
        legal = "-" if row["num_legal"] is None else f"{row['num_legal']:.3g}"
        best, speed = row["best_time_s"], row["best_gflop_per_s"]
        table.add_row(
            row["layer"], f"{row['space_size']:.3g}", legal, f"{row['time_s']:.2f}", row["guarantee"],
            f"{row['num_evaluated']:.3g}", f"{row['num_bounded']:.3g}", f"{row['peak_rss_bytes'] / 1e6:.0f}",
            "-" if best is None else f"{1e6 * best:.1f}", "-" if speed is None else f"{speed / 1e3:.2f}",
            row["bound_by"] or "-",
        )  # fmt: skip
    times = sorted(row["time_s"] for row in rows if "time_s" in row)
    console = wide_console(120)
    console.print(table)
    for row in rows:
        if "error" in row:
            console.print(f"{row['layer']}: {row['error']}", markup=False, highlight=False)
    if times:
        console.print(
            f"{len(times)} of {len(rows)} layers answered; "
            f"median {times[len(times) // 2]:.2f} s, slowest {times[-1]:.2f} s"
        )
    if options.json:
        settings = {"hw": options.hw, "top_k": options.top_k, "seed": None}
        write_json(options.json, {"environment": environment(**settings), "layers": rows})


if __name__ == "__main__":
    main()
