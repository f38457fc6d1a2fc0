"""Recorded GPU measurements (by others) as points of anatune's tile space.

Reads the CSV tables described in the data folder's README: Ansor and AutoTVM convolutions, Ansor matmuls, CLBlast
GEMMs, TopHub winners. Any device and any workload that follows the same columns is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import anatune
from anatune.core.hardware import GpuSpec
from anatune.core.workload import Workload
from anatune.errors import AnatuneError

CONV_ID = re.compile(r"conv_n(\d+)_c(\d+)_h(\d+)x(\d+)_k(\d+)_r(\d+)x(\d+)_s(\d+)x(\d+)_o(\d+)x(\d+)")
MATMUL_ID = re.compile(r"mm_m(\d+)_n(\d+)_k(\d+)_nn")


@dataclass(frozen=True)
class Group:
    """All recorded points of one workload on one device in one table."""

    table: str
    kind: str
    """"ansor", "autotvm", "clblast" or "tophub"."""
    device: str
    workload_id: str
    workload: Workload
    hardware: GpuSpec
    points: NDArray[np.int64]
    """(num_points, num_columns): in the order of GpuSpace.columns."""
    time_s: NDArray[np.float64]
    """(num_points,): NaN where the trial failed."""
    unbiased: NDArray[np.bool_]
    """(num_points,): part of an unbiased sample of the tuner's space."""


def workload_of(workload_id: str) -> Workload:
    """Return the workload that an id names; the padding follows from the output size in it."""
    if match := CONV_ID.fullmatch(workload_id):
        n, c, h, w, k, r, s, sy, sx, oh, ow = map(int, match.groups())
        pad = tuple(max(0, -(-((o - 1) * st + size - i) // 2)) for o, st, size, i in ((oh, sy, r, h), (ow, sx, s, w)))
        return anatune.conv2d(n, c, h, w, k, r, s, stride=(sy, sx), padding=pad)
    if match := MATMUL_ID.fullmatch(workload_id):
        return anatune.matmul(*map(int, match.groups()))
    raise ValueError(f"workload id {workload_id!r} is neither a convolution nor a matmul")


def _factors(column: pd.Series, width: int) -> NDArray[np.int64]:
    table = np.array([list(map(int, text.split("x"))) for text in column], dtype=np.int64).reshape(len(column), -1)
    if table.shape[1] == width:
        return table
    ones = np.ones((len(table), 1), dtype=np.int64)
    if width == 5:  # AutoTVM: block, vthread, thread, inner
        return np.column_stack([table[:, :3], ones, table[:, 3:]])
    return np.column_stack([table, ones])  # AutoTVM: outer, inner


def conv_points(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return (num_rows, 32) points of the Ansor or AutoTVM convolution rows of `frame`."""
    if "t_n" in frame:
        batch = _factors(frame["t_n"], 5)
    else:
        extent = frame["workload_id"].str.extract(r"_n(\d+)_")[0].astype(int).to_numpy()
        batch = np.column_stack([extent, *[np.ones(len(frame), dtype=np.int64)] * 4])
    tiles = [batch, *(_factors(frame[c], 5) for c in ("t_f", "t_y", "t_x"))]
    tiles += [_factors(frame[c], 3) for c in ("t_rc", "t_ry", "t_rx")]
    one = np.ones(len(frame), dtype=np.int64)
    widths = [frame[c].fillna(1).astype(np.int64).to_numpy() if c in frame else one for c in ("vec_d", "vec_w")]
    return np.column_stack([*tiles, frame["unroll"].astype(np.int64).to_numpy(), *widths])


def matmul_points(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return (num_rows, 16) points of Ansor matmul rows."""
    tiles = [_factors(frame["t_i"], 5), _factors(frame["t_j"], 5), _factors(frame["t_k"], 3)]
    widths = [frame[c].fillna(1).astype(np.int64).to_numpy() for c in ("vec_d", "vec_w")]
    return np.column_stack([*tiles, frame["unroll"].astype(np.int64).to_numpy(), *widths])


def clblast_points(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return (num_rows, 16) points of CLBlast Xgemm rows.

    CLBlast's M is the contiguous dimension of its column-major result and its fastest thread index, so M maps to the
    template's j and N to i. STRM = 0 gives a thread MWI consecutive rows, STRM = 1 strides them by the threads
    (virtual threads of VWM elements).
    """
    tiles = []
    for extent, work, threads, width, strided in (("N", "NWG", "NDIMC", "VWN", "STRN"), ("M", "MWG", "MDIMC", "VWM", "STRM")):
        per_thread = frame[work] // frame[threads]
        vector = frame[width].where(frame[strided] == 1, per_thread)
        tiles.append(np.column_stack([frame[extent] // frame[work], per_thread // vector, frame[threads],
                                      np.ones(len(frame)), vector]))
    tiles.append(np.column_stack([frame["K"] // frame["KWG"], frame["KWG"] // frame["KWI"], frame["KWI"]]))
    rest = [np.full(len(frame), 512), frame["VWN"], frame["VWM"]]
    return np.column_stack([*tiles, *rest]).astype(np.int64)


def _divisible(points: NDArray[np.int64], workload: Workload) -> NDArray[np.bool_]:
    at, fine = 0, np.ones(len(points), dtype=bool)
    for axis in workload.axes:
        width = 5 if axis.kind == "spatial" else 3
        fine &= points[:, at : at + width].prod(axis=1) == axis.extent
        at += width
    return fine


def load_groups(folder: Path, notes: list[str] | None = None) -> Iterator[Group]:
    """Yield every group of recorded GPU points below `folder`, table by table; skips are explained in `notes`."""
    notes = notes if notes is not None else []
    for path in sorted(folder.glob("*.csv.gz")):
        table = path.name.split(".")[0]
        if table.startswith(("ansor_conv2d", "ansor_matmul", "autotvm_conv2d_gpu", "gemm_clblast", "tophub_conv2d")):
            yield from _load_table(path, table, notes)


def _load_table(path: Path, table: str, notes: list[str]) -> Iterator[Group]:
    frame = pd.read_csv(path, low_memory=False)
    if table.startswith("gemm_clblast"):
        kind = "clblast"
        frame = frame[(frame["SA"] == 1) & (frame["SB"] == 1) & (frame["GEMMK"] == 0)]
        frame = frame.assign(workload_id="gemm_m" + frame["M"].astype(str))
    elif table.startswith("tophub"):
        kind = "tophub"
        frame = frame[(frame["plausible"] == 1) & (frame["div_ok"] == 1)]
    elif table.startswith("autotvm"):
        kind = "autotvm"
        frame = frame[frame["div_ok"] == 1]
    else:
        kind = "ansor"
        if "dup" in frame:
            frame = frame[frame["dup"] == 0]
    for device in sorted(frame["gpu"].dropna().astype(str).unique()):
        try:
            anatune.hardware(device)
        except AnatuneError:
            notes.append(f"{table}: no spec for device {device!r}, {int((frame['gpu'] == device).sum())} rows skipped")
            frame = frame[frame["gpu"] != device]
    for (device, workload_id), rows in frame.groupby(["gpu", "workload_id"], sort=True):
        hardware = anatune.hardware(str(device))
        if kind == "clblast":
            size = rows.iloc[0]
            workload = anatune.matmul(int(size["N"]), int(size["M"]), int(size["K"]), transpose_a=True)
            points = clblast_points(rows)
        else:
            workload = workload_of(str(workload_id))
            points = matmul_points(rows) if "t_i" in rows else conv_points(rows)
        fine = _divisible(points, workload)
        if not fine.all():
            notes.append(f"{table}: {device} {workload_id}: {int((~fine).sum())} rows do not divide, skipped")
        if kind == "ansor":
            unbiased = (rows["idx"] < 64).to_numpy()
        elif "tuners" in rows:
            unbiased = rows["tuners"].str.contains("random").to_numpy()
        else:
            unbiased = (rows["kept"] != "best").to_numpy() if "kept" in rows else np.ones(len(rows), dtype=bool)
        failed = rows["err"].fillna(0).to_numpy() != 0 if "err" in rows else np.zeros(len(rows), dtype=bool)
        time_s = rows["time_s"].astype(float).where(~failed).to_numpy()
        yield Group(table, kind, str(device), str(workload_id), workload, hardware,
                    points[fine], time_s[fine], unbiased[fine])
