"""Plans for a range of extents: proven loss, and how long that takes.

    python -m bench.models.ranges [--hw rtx3090 a100_sxm h100] [--kernels 6] [--json FILE] [matmul 1..8192x4096x4096]

Each device is planned in turn, after a first call on a tiny range that loads the compiled code.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anatune
from anatune.core.workload.ranges import parse_ranged_workload
from bench.results import environment, wide_console, write_json

WORDS = ["matmul", "1..8192x4096x4096"]


def plan_one(words: Sequence[str], hardware: str, kernels: int) -> dict[str, Any]:
    """Plan a range on one device and return its row."""
    device = anatune.hardware(hardware)
    anatune.plan_range("matmul 1..2x8x8", device, kernels=1)
    started, cpu = time.perf_counter(), time.process_time()
    plan = anatune.plan_range(parse_ranged_workload(words), device, kernels=kernels)
    return {
        "hardware": hardware,
        "workload": plan.workload.describe(),
        "kernels": len(plan.programs),
        "intervals": len(plan.intervals),
        "proven_loss": plan.loss,
        "known_loss": plan.known_loss,
        "known_mean_loss": plan.known_mean_loss,
        "least_loss": plan.least_loss,
        "worst_extent": plan.worst_extent,
        "num_candidates": plan.num_candidates,
        "is_complete": plan.is_complete,
        "seconds": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
    }


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", default=WORDS, help="workload with a range")
    parser.add_argument("--hw", nargs="+", default=["rtx3090", "a100_sxm", "h100"])
    parser.add_argument("--kernels", type=int, default=6)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    console, rows = wide_console(120), []
    for hardware in asked.hw:
        row = plan_one(asked.words, hardware, asked.kernels)
        rows.append(row)
        console.print(
            f"{hardware}: {row['kernels']} kernels, {row['intervals']} intervals, proven loss <= "
            f"{100 * row['proven_loss']:.1f} % (worst at {row['worst_extent']}), {row['seconds']:.0f} s, "
            f"{row['cpu_s']:.0f} s of the processor"
        )
    if asked.json is not None:
        write_json(asked.json, {"environment": environment(), "rows": rows})


if __name__ == "__main__":
    main()
