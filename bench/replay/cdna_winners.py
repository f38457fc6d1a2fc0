"""The fastest products of AMD's own kernels, as recorded by aiter, beside the best that the template triton predicts.

    python -m bench.replay.cdna_winners FOLDER

FOLDER holds `gemm_aiter_winners__mit.csv.gz` (MI300X). Most of them scale every block of 128 steps of k ("blockscale"):
vector lanes multiply all sums once a block, beside the matrix cores. That work is added at the clock that they keep.
"""

from __future__ import annotations

import csv
import gzip
import sys
from argparse import ArgumentParser
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.files import hardware
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import score_tiles

__all__ = ["main", "predicted_s"]

_TILES = Tiles.of(
    [
        (m, n, k, warps, stages, split, group)
        for m, n in product((16, 32, 64, 128, 256), repeat=2)
        for k, warps, stages in product((32, 64, 128), (1, 2, 4, 8), (1, 2, 3))
        for split, group in product((1, 2, 4, 8, 16), (1, 8))
    ]
)
_SCALED_STEPS = 128


def predicted_s(problem: MatmulProblem, device: str, *, scaled: bool) -> float:
    """Return the seconds of the best tile, with the work of scales of blocks or without it."""
    spec = hardware(device)
    scores = score_tiles(problem, _TILES, spec)
    best = float(np.where(scores.resources.rule == 0, scores.time_s, np.inf).min())
    cores = spec.tensor_cores
    if not scaled or cores is None:
        return best
    lanes = spec.compute.fp32_lanes_per_sm * spec.compute.reachable_fraction
    rate = lanes * spec.compute.num_sms * spec.compute.clock_hz * cores.fp8_sustained_fraction
    return best + problem.batch * problem.m * problem.n * problem.k / _SCALED_STEPS / rate


def _rank(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.argsort(np.argsort(values))


def main(words: list[str] | None = None) -> int:
    """Print ratios and rank correlation by table."""
    parser = ArgumentParser(prog="bench.replay.cdna_winners", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=400, help="at most, of a table, drawn by chance")
    given = parser.parse_args(words)
    with gzip.open(given.folder / "gemm_aiter_winners__mit.csv.gz", "rt") as file:
        tables = defaultdict(list)
        for row in csv.DictReader(file):
            if float(row["time_us"] or 0) > 0:
                tables[row["file"]].append(row)
    rng, every = np.random.default_rng(0), []
    print("MI300X: best predicted over measured")
    print("table  products  median  10 %  90 %  rank correlation")
    for name, rows in sorted(tables.items()):
        pairs = []
        for place in rng.permutation(len(rows))[: given.rows]:
            row = rows[place]
            dtype = "bfloat16" if name.startswith("bf16") else "fp8" if "blockscale" in name else "int8"
            sizes = (int(row[axis]) for axis in "mnk")
            problem = MatmulProblem(*sizes, dtype, 2, True, False, batch=max(1, int(row["batch"] or 1)))
            time_s = predicted_s(problem, "mi300x", scaled="blockscale" in name)
            pairs.append((time_s, float(row["time_us"]) / 1e6))
        every += pairs
        _print(name, np.array(pairs))
    _print("all", np.array(every))
    return 0


def _print(name: str, pairs: NDArray[np.float64]) -> None:
    ratio = pairs[:, 0] / pairs[:, 1]
    rank = np.corrcoef(_rank(pairs[:, 0]), _rank(pairs[:, 1]))[0, 1]
    low, high = np.quantile(ratio, (0.1, 0.9))
    print(f"{name:42} {len(pairs):5}  {np.median(ratio):5.2f}  {low:4.2f}  {high:4.2f}  {rank:6.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
