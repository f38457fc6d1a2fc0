"""Score the model of products with scales on recorded times of libraries: int8, weights of 8 and 4 bits, fp8, nvfp4.

    python -m bench.replay.tensorcores_scaled FOLDER [--half odd|even] [--sample 60]

FOLDER holds gemm_aiconfigurator__*.csv.gz. The best schedule of each product is planned, and its predicted time stands
over that of a library, whose kernel is another one and whose call does more: it quantises the data, and what Python
needs around a launch is in times of small products. So large products say most; the rank says what is left of others.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import anatune
from anatune.core.workload.nest import Workload
from bench.replay.metrics import spearman
from bench.replay.tensorcores_devices import spec_named
from bench.replay.tensorcores_tables import in_half

TABLE = "gemm_aiconfigurator"
LIBRARIES = {
    "smooth_quant_gemm": ("int8", "rows"),
    "weight_only_quant_matmul": ("float16x", "tensor"),
    "CutlassFP8ScaledMMLinearKernel": ("float8_e4m3fn", "rows"),
    "TritonFp8BlockScaledMMKernel": ("float8_e4m3fn", "blocks"),
    "deepgemm_gemm_nt_f8f8bf16": ("float8_e4m3fn", "blocks"),
    "cutedsl_nvfp4": ("nvfp4", "tensor"),
}
"""Part of a library's name -> format (behind "x": what the table says of weights) and where its scales lie."""
LARGE_FLOP, FEW_ROWS = 2e10, 64


class ScaledTime(NamedTuple):
    """A recorded time and ours, seconds, and the group that they belong to."""

    group: tuple[str, str, str]
    predicted_s: float
    measured_s: float


def workload_of(library: str, weights: str, m: int, n: int, k: int) -> Workload | None:
    """Return the workload of a recorded product; None where it is none of ours."""
    found = next((how for word, how in LIBRARIES.items() if word in library), None)
    if found is None or k % 128 or n < 16:
        return None
    dtype = found[0] + weights if found[0].endswith("x") else found[0]
    return anatune.scaled_matmul(m, n, k, dtype, scales=found[1])


def read_times(folder: Path, half: str, sample: int) -> Iterator[ScaledTime]:
    """Yield up to `sample` products of each device and library.

    Raises
    ------
    FileNotFoundError
        The folder has no such table.
    """
    paths = sorted(folder.glob(f"{TABLE}__*.csv.gz"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no {TABLE}__*.csv.gz")
    table = pd.read_csv(paths[0], low_memory=False).sort_values(["m", "n", "k"])
    for (device, library), rows in table.groupby(["device", "library_kernel"], sort=True):
        spec = spec_named(str(device))
        kept = [row for row in rows.itertuples() if in_half(half, str(device), row.m, row.n, row.k)]
        for row in kept[:: max(1, len(kept) // sample)]:
            workload = workload_of(str(library), str(row.dtype_b), int(row.m), int(row.n), int(row.k))
            if workload is None or spec is None:
                continue
            size = "large" if workload.flop > LARGE_FLOP else "few rows" if row.m <= FEW_ROWS else "others"
            time_s = anatune.plan(workload, spec, 1, correction="none").predictions[0].time_s
            name = next(word for word in LIBRARIES if word in str(library))
            yield ScaledTime((str(device), f"{name}, {workload.formats}", size), time_s, float(row.time_us) / 1e6)


def print_times(times: list[ScaledTime]) -> None:
    """Print a line for each device, library and size."""
    groups: dict[tuple[str, str, str], list[ScaledTime]] = defaultdict(list)
    for time in times:
        groups[time.group].append(time)
    print("| device | library | products | number | predicted over measured, median (quartiles) | rank |")
    print("|---" * 6 + "|")
    for group, found in sorted(groups.items()):
        predicted, measured = (np.array([getattr(time, name) for time in found]) for name in ScaledTime._fields[1:])
        low, middle, high = np.quantile(predicted / measured, (0.25, 0.5, 0.75))
        rank = f"{spearman(predicted, measured):.2f}" if len(found) > 2 else ""
        print(f"| {' | '.join(group)} | {len(found)} | {middle:.2f} ({low:.2f} to {high:.2f}) | {rank} |")


def main() -> None:
    """Read the table and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("all", "odd", "even"), default="all", help="of the problems, by a hash")
    parser.add_argument("--sample", type=int, default=60, help="products of each device and library")
    chosen = parser.parse_args()
    print_times(list(read_times(chosen.folder, chosen.half, chosen.sample)))


if __name__ == "__main__":
    main()
