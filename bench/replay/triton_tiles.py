"""Score the model of block tiles (what the Triton adapter asks) on exhaustive tables of CLBlast's matrix product.

    python -m bench.replay.triton_tiles FOLDER

There are no recorded tables of Triton kernels; CLBlast's say whether tiles and warps are ordered well. For each block
tile and number of warps the table's best time counts (over vector widths, layouts and the like, which tiles do not
have), and the regret is that of the best among the first tiles of the predicted order. Rows that are whole warps only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import UnknownNameError
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import score_tiles, tile_order
from bench.replay.metrics import spearman

FIRST = (1, 4, 8)
"""Tiles of the predicted order that would be measured."""
TILE = ["MWG", "NWG", "KWG", "threads"]


def score(table: pd.DataFrame) -> None:
    """Print one line for each device and shape of a table."""
    for (device, m, n, k), group in table.groupby(["gpu", "M", "N", "K"]):
        try:
            spec = anatune.hardware(str(device).replace("-", "_"))
        except UnknownNameError:
            print(f"{device}: no spec")
            continue
        if not isinstance(spec, GpuSpec):
            continue
        warp = spec.compute.warp_size
        best = group[group.threads % warp == 0].groupby(TILE).time_s.min().reset_index()
        ones = np.ones(len(best), dtype=np.int64)
        # CLBlast's matrices are column-major: its M is the contiguous dimension, our n; tiles are not pipelined
        tiles = Tiles.of(np.column_stack([best.NWG, best.MWG, best.KWG, best.threads // warp, ones, ones, ones]))
        problem = MatmulProblem(int(n), int(m), int(k), "float32")
        scores = score_tiles(problem, tiles, spec)
        order = tile_order(scores, problem, tiles)
        measured = best.time_s.to_numpy()
        regrets = "  ".join(f"{count}: {measured[order[:count]].min() / measured.min():.3f}" for count in FIRST)
        print(
            f"{device:>10} {problem.describe():<28} {len(best):4} tiles  rank correlation "
            f"{spearman(scores.time_s, measured):.2f}  best of the first over the best  {regrets}"
        )


def main() -> None:
    """Read the tables and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with gemm_clblast__*.csv.gz")
    for path in sorted(parser.parse_args().folder.glob("gemm_clblast__*.csv.gz")):
        table = pd.read_csv(path)
        score(table[table.time_s.notna() & (table.GEMMK == 0)])


if __name__ == "__main__":
    main()
