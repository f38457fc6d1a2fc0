"""Points a second of the CPU model on one core.

Prints one JSON line a workload: points, nanoseconds a point, million points a second.
"""

from __future__ import annotations

import argparse
import json
import time

import anatune
from anatune.templates.cpu.model.model import CpuModel


def main() -> None:
    """Time `CpuModel.times` on uniform legal samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hw", default="xeon_gold_6230r")
    parser.add_argument("--points", type=int, default=200_000)
    arguments = parser.parse_args()
    hardware = anatune.hardware(arguments.hw)
    workloads = (
        anatune.matmul(512, 4096, 1024),
        anatune.conv2d(1, 64, 56, 56, 64, 3, 3, padding=1),
        anatune.max_pool2d(1, 64, 56, 56, 3, 3, stride=2, padding=1),
    )
    for workload in workloads:
        model = CpuModel(workload, hardware)
        points = model.space.sample_points(arguments.points, seed=0)
        model.times(points)
        seconds = []
        for _ in range(5):
            start = time.process_time()
            model.times(points)
            seconds.append(time.process_time() - start)
        each = min(seconds) / len(points)
        print(json.dumps({"workload": workload.describe(), "points": len(points), "ns_per_point": round(each * 1e9, 1),
                          "million_points_per_s": round(1e-6 / each, 2)}))  # fmt: skip


if __name__ == "__main__":
    main()
