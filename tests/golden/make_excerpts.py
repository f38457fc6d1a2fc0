"""Write the excerpts of recorded measurements that the golden tests use; run once, kept for provenance.

    python tests/golden/make_excerpts.py FOLDER

FOLDER holds the full tables (see SOURCE.toml for where they come from). Only tables whose licence lets us
redistribute them are read.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pandas as pd

SEED = 20240
RANDOM_ROUND = 64
HERE = Path(__file__).resolve().parent / "recorded"
TILES = ["t_n", "t_f", "t_y", "t_x", "t_i", "t_j", "t_k", "t_rc", "t_ry", "t_rx", "unroll", "vec_w", "vec_d"]
CLBLAST = ["M", "N", "K", "GEMMK", "KREG", "MWG", "NWG", "KWG", "MDIMC", "NDIMC", "MDIMA", "NDIMB", "KWI"]
CLBLAST += ["VWM", "VWN", "STRM", "STRN", "SA", "SB"]
KEYS = ["gpu", "workload_id", "idx"]
RESULT = ["time_s", "err", "kept", "source"]

PLAN = {  # table -> device -> number of workloads
    "ansor_conv2d_gpu__mit": {"k80": 6, "mi50": 6, "rtx3080": 1},
    "ansor_conv2d_rtx3090_res7__apache2": {"rtx3090": 1},
    "ansor_matmul_gpu__mit": {"k80": 3, "mi50": 3, "rtx3080": 1},
    "autotvm_conv2d_gpu_roller__mit": {"k80": 6, "mi50": 6},
    "gemm_clblast__mit": {"rtx3090": 1, "titan_rtx": 1},
}
ROWS = {"ansor": 60, "autotvm": 100, "gemm": 600}
"""Rows drawn of each workload, beside Ansor's random round."""
BEST = 8
"""Fastest rows of each workload, always taken and marked kept = best."""


def excerpt(frame: pd.DataFrame, tool: str, rng: np.random.Generator) -> pd.DataFrame:
    """Return rows of one workload: Ansor's random round, a uniform sample of the others, the fastest."""
    best = frame.nsmallest(BEST, "time_s").index
    always = frame.index[frame["idx"] < RANDOM_ROUND] if tool == "ansor" else frame.index[:0]
    rest = frame.index.difference(always)
    drawn = rest[rng.permutation(len(rest))[: ROWS[tool]]]
    taken = frame.loc[sorted({*always, *drawn, *best})].copy()
    taken["kept"] = np.where(taken.index.isin(best.difference(drawn)), "best", "rand")
    return taken


def main(folder: Path) -> None:
    """Write one excerpt a table."""
    HERE.mkdir(exist_ok=True)
    for table, devices in PLAN.items():
        rng = np.random.default_rng(SEED)
        tool = table.split("_")[0]
        frame = pd.read_csv(folder / f"{table}.csv.gz", low_memory=False)
        if tool == "gemm":
            frame = frame[(frame["SA"] == 1) & (frame["SB"] == 1)].assign(workload_id="gemm")
        if "dup" in frame:
            frame = frame[frame["dup"] == 0]
        parts = []
        for device, number in devices.items():
            of_device = frame[frame["gpu"] == device]
            early = of_device["idx"] < RANDOM_ROUND if tool == "ansor" else of_device["kept"] != "best"
            good = of_device[early & of_device["time_s"].notna()].groupby("workload_id").size()
            names = good.index[good >= 15].to_numpy()
            for name in sorted(rng.permutation(names)[:number]):
                parts.append(excerpt(of_device[of_device["workload_id"] == name], tool, rng))
        columns = [c for c in [*KEYS, *TILES, *CLBLAST, *RESULT] if c in frame]
        if tool == "gemm":
            columns.remove("workload_id")
        text = pd.concat(parts)[columns].to_csv(index=False, lineterminator="\n")
        with open(HERE / f"{table}.csv.gz", "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as out:
            out.write(text.encode())
        print(f"{table}: {sum(map(len, parts))} rows, {(HERE / f'{table}.csv.gz').stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
