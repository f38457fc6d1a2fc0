"""Recorded GPU measurements (by others) as points of anatune's GPU tile space.

Reads CSV tables of the columns that the data folder's README describes: Ansor and AutoTVM convolutions,
Ansor matmuls, CLBlast GEMMs, TopHub winners. A table is recognised by its columns, not by its name, so any
device, layer or further table of the same columns is accepted; whatever cannot be used is explained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError
from anatune.templates.base.features import FeatureTable
from bench.replay.recorded import RecordedGroup, model_of, table_files, workload_of

__all__ = ["Group", "clblast_points", "conv_points", "load_groups", "matmul_points"]

RANDOM_ROUND = 64
"""Ansor's first trials of a search: its random initial population. Source: README of the measurements."""
AUTOTVM_UNROLL = 0
"""Unroll depth where a table has none."""
CLBLAST_UNROLL = 512
"""Unroll depth that stands for CLBlast's fully unrolled KWI loop."""


CLBLAST_KNOBS = (
    "GEMMK", "KREG", "MWG", "NWG", "KWG", "MDIMC", "NDIMC", "MDIMA", "NDIMB", "KWI", "VWM", "VWN", "STRM", "STRN",
    "SA", "SB",
)  # fmt: skip
OTHER_KNOBS = {
    "ansor": (),
    "autotvm": ("unroll_explicit",),
    "tophub": (),
    "clblast": ("GEMMK", "KREG", "MDIMA", "NDIMB", "STRM", "STRN", "SA", "SB"),
}
"""Tuner -> its parameters that a point of the template does not hold."""


@dataclass(frozen=True)
class Group(RecordedGroup):
    """Recorded points of the template `cuda`."""

    hardware: GpuSpec
    points: NDArray[np.int64]
    """(num_points, num_columns): in the order of a plain GpuSpace's columns."""
    spread: NDArray[np.float64]
    """(num_points,): standard deviation over mean of the repeated runs, NaN where it is not recorded."""
    num_runs: NDArray[np.float64]
    """(num_points,): repeated runs, NaN where it is not recorded."""
    others: dict[str, NDArray[np.int64]]
    """Parameters of the tuner that the points do not hold -> (num_points,)."""
    knobs: dict[str, NDArray[np.int64]]
    """All parameters of the tuner, where they are not tiles -> (num_points,); empty otherwise."""

    def predictions(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the analytical model's seconds, and what it calls legal."""
        evaluation = model_of(self.workload, self.hardware).evaluate(self.points)
        return evaluation.time_s, evaluation.rule == 0

    def features(self) -> FeatureTable:
        """Return the features of the points, for learned corrections."""
        return model_of(self.workload, self.hardware).feature_table(self.points)


def _factors(column: pd.Series, width: int) -> NDArray[np.int64]:
    """Parse tile vectors, (num_rows, width); zeros where a text is no vector of a known length."""
    tiles: dict[object, tuple[int, ...]] = {}
    for text in column.unique():
        parts = str(text).split("x")
        numbers = tuple(map(int, parts)) if all(p.isdigit() for p in parts) else ()
        if len(numbers) == width - 1:  # AutoTVM has no reg_outer (spatial) and no innermost k2 (reduction)
            numbers = (*numbers[:3], 1, *numbers[3:]) if width == 5 else (*numbers, 1)
        tiles[text] = numbers if len(numbers) == width else (0,) * width
    return np.array([tiles[text] for text in column], dtype=np.int64).reshape(len(column), width)


def _integers(frame: pd.DataFrame, column: str, default: int) -> NDArray[np.int64]:
    """Return a column as integers; `default` where it is missing or blank."""
    if column not in frame:
        return np.full(len(frame), default, dtype=np.int64)
    return pd.to_numeric(frame[column], errors="coerce").fillna(default).astype(np.int64).to_numpy()


def _numbers(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Return a column as numbers, NaN where it is missing or blank."""
    if column not in frame:
        return np.full(len(frame), np.nan)
    return pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=float)


def _with_unroll_and_widths(tiles: Sequence[NDArray[np.int64]], frame: pd.DataFrame) -> NDArray[np.int64]:
    unroll = _integers(frame, "unroll", AUTOTVM_UNROLL)
    return np.column_stack([*tiles, unroll, _integers(frame, "vec_d", 1), _integers(frame, "vec_w", 1)])


def conv_points(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return (num_rows, 32) points of Ansor or AutoTVM convolution rows.

    AutoTVM's template gives each image blocks of its own and has no fetch widths.
    """
    if "t_n" in frame:
        batch = _factors(frame["t_n"], 5)
    else:
        batch = np.ones((len(frame), 5), dtype=np.int64)
        batch[:, 0] = frame["workload_id"].str.extract(r"_n(\d+)_", expand=False).astype(np.int64)
    tiles = [batch, *(_factors(frame[column], 5) for column in ("t_f", "t_y", "t_x"))]
    tiles += [_factors(frame[column], 3) for column in ("t_rc", "t_ry", "t_rx")]
    return _with_unroll_and_widths(tiles, frame)


def matmul_points(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return (num_rows, 16) points of Ansor matmul rows."""
    tiles = [_factors(frame["t_i"], 5), _factors(frame["t_j"], 5), _factors(frame["t_k"], 3)]
    return _with_unroll_and_widths(tiles, frame)


def clblast_points(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return (num_rows, 16) points of CLBlast Xgemm rows.

    CLBlast's M is the contiguous dimension of its column-major result and its fastest thread index, so M maps
    to the template's j and N to i. STRM = 0 gives a thread MWI consecutive rows, STRM = 1 strides them by the
    threads (virtual threads of VWM elements).
    """
    tiles = []
    for extent, tile, threads, width, strided in (
        ("N", "NWG", "NDIMC", "VWN", "STRN"),
        ("M", "MWG", "MDIMC", "VWM", "STRM"),
    ):
        per_thread = frame[tile] // frame[threads]
        inner = frame[width].where(frame[strided] == 1, per_thread)
        ones = np.ones(len(frame), dtype=np.int64)
        blocks = frame[extent] // frame[tile]
        tiles.append(np.column_stack([blocks, per_thread // inner, frame[threads], ones, inner]))
    tiles.append(np.column_stack([frame["K"] // frame["KWG"], frame["KWG"] // frame["KWI"], frame["KWI"]]))
    unroll = np.full(len(frame), CLBLAST_UNROLL)
    return np.column_stack([*tiles, unroll, frame["VWN"], frame["VWM"]]).astype(np.int64)


def _opencl_hardware(hardware: GpuSpec) -> GpuSpec:
    """Return the hardware as CLBlast's OpenCL kernels see it.

    ``compiler.registers_per_thread`` of a spec models TVM's code generator. Its ROCm kernels are compiled for up
    to 1024 work-items a group, so that LLVM leaves each thread of an mi50 only 64 of its 256 vector registers.
    CLBlast's kernels name the group size they are launched with (reqd_work_group_size) and may use all.
    """
    own = msgspec.structs.replace(hardware.compiler, registers_per_thread=hardware.registers.per_thread)
    return msgspec.structs.replace(hardware, compiler=own)


def _divisible(points: NDArray[np.int64], workload: Workload) -> NDArray[np.bool_]:
    """Say which points' factors multiply to the extents of `workload`."""
    at, fine = 0, np.ones(len(points), dtype=bool)
    for axis in workload.axes:
        width = 5 if axis.kind == "spatial" else 3
        fine &= points[:, at : at + width].prod(axis=1) == axis.extent
        at += width
    return fine


def _kind(frame: pd.DataFrame) -> str | None:
    """Tell from its columns which tuner a GPU table comes from; None if it holds no points of ours."""
    columns = set(frame.columns)
    if not {"gpu", "time_s"} <= columns:
        return None
    if {"MWG", "NWG", "KWG", "MDIMC", "NDIMC", "VWM", "VWN", "STRM", "STRN", "KWI", "M", "N", "K"} <= columns:
        return "clblast"
    if "workload_id" not in columns:
        return None
    if {"t_i", "t_j", "t_k"} <= columns:
        return "ansor"
    if {"t_f", "t_y", "t_x", "t_rc", "t_ry", "t_rx"} <= columns:
        if "plausible" in columns:
            return "tophub"
        return "ansor" if "t_n" in columns else "autotvm"
    return None


def load_groups(folder: Path, notes: list[str] | None = None, *, whole: bool = False) -> Iterator[Group]:
    """Yield every group of recorded GPU points in `folder`, table by table.

    Parameters
    ----------
    folder : Path
        Folder of CSV tables; any of them may be missing, others in it are left alone.
    notes : list of str, optional
        What was left out, and why, is appended here.
    whole : bool
        Keep the CLBlast rows that do not stage both operands, too: the tuner's whole space.
    """
    notes = notes if notes is not None else []
    for path in table_files(folder):
        table = path.name.split(".")[0]
        try:
            frame = pd.read_csv(path, low_memory=False)
        except (OSError, ValueError) as error:
            notes.append(f"{table}: not readable as CSV ({error}), skipped")
            continue
        kind = _kind(frame)
        if kind is not None:
            yield from _groups(frame, table, kind, notes, whole)


def _usable(frame: pd.DataFrame, table: str, kind: str, notes: list[str], whole: bool) -> pd.DataFrame:
    """Drop the rows that the template does not describe or that appear twice."""
    total = len(frame)
    frame = frame[frame["gpu"].notna()]
    if kind == "clblast":
        for column, value in (("SA", 1), ("SB", 1), ("GEMMK", 0)):
            if column in frame and not whole:
                frame = frame[frame[column] == value]
        if len(frame) < total:
            notes.append(f"{table}: {total - len(frame)} rows do not stage both operands (SA, SB), left out")
        sizes = [frame[column].astype(str) for column in ("M", "N", "K")]
        return frame.assign(workload_id="gemm_m" + sizes[0] + "_n" + sizes[1] + "_k" + sizes[2])
    for column, value, why in (
        ("plausible", 1, "implausible"),
        ("div_ok", 1, "do not divide the extents"),
        ("dup", 0, "repeat an earlier one"),
    ):
        if column in frame and not (column == "dup" and kind == "tophub"):
            fine = frame[column] == value
            if not fine.all():
                notes.append(f"{table}: {int((~fine).sum())} rows {why}, left out")
            frame = frame[fine]
    return frame


def _unbiased(frame: pd.DataFrame, kind: str) -> NDArray[np.bool_]:
    """Say which rows are part of an unbiased sample of the tuner's space."""
    if kind == "ansor" and "idx" in frame:
        return (frame["idx"] < RANDOM_ROUND).to_numpy(dtype=bool)
    if "tuners" in frame:
        return frame["tuners"].astype(str).str.contains("random").to_numpy(dtype=bool)
    if "kept" in frame:
        return (frame["kept"] != "best").to_numpy(dtype=bool)
    return np.ones(len(frame), dtype=bool)


def _groups(frame: pd.DataFrame, table: str, kind: str, notes: list[str], whole: bool) -> Iterator[Group]:
    frame = _usable(frame, table, kind, notes, whole)
    frame = frame.assign(gpu=frame["gpu"].astype(str), workload_id=frame["workload_id"].astype(str))
    for device, of_device in frame.groupby("gpu", sort=True):
        try:
            hardware = anatune.hardware(str(device))
        except AnatuneError as error:
            notes.append(f"{table}: device {device!r}: {len(of_device)} rows skipped: {error}")
            continue
        if not isinstance(hardware, GpuSpec):
            notes.append(f"{table}: device {device!r}: {len(of_device)} rows skipped: its spec is not a GPU")
            continue
        if kind == "clblast":
            hardware = _opencl_hardware(hardware)
        for workload_id, rows in of_device.groupby("workload_id", sort=True):
            where = f"{table}: {device} {workload_id}"
            try:
                if kind == "clblast":
                    n, m, k = (int(rows[column].iloc[0]) for column in ("N", "M", "K"))
                    workload, points = anatune.matmul(n, m, k, transpose_a=True), clblast_points(rows)
                else:
                    workload = workload_of(str(workload_id))
                    points = matmul_points(rows) if "t_i" in rows else conv_points(rows)
            except ValueError as error:  # WorkloadError is one, too
                notes.append(f"{where}: {len(rows)} rows skipped: {error}")
                continue
            if points.shape[1] != sum(5 if axis.kind == "spatial" else 3 for axis in workload.axes) + 3:
                notes.append(f"{where}: {len(rows)} rows skipped: their tiles are not those of the workload")
                continue
            fine = _divisible(points, workload)
            if not fine.all():
                notes.append(f"{where}: {int((~fine).sum())} of {len(rows)} rows do not divide, skipped")
            if not fine.any():
                continue
            failed = _integers(rows, "err", 0) != 0
            time_s = np.where(failed, np.nan, pd.to_numeric(rows["time_s"], errors="coerce").to_numpy(float))
            time_s[~(time_s > 0)] = np.nan
            unbiased = _unbiased(rows, kind)
            runs = "n_times" if "n_times" in rows else "n_ok"
            others = {name: _integers(rows, name, 0)[fine] for name in OTHER_KNOBS[kind] if name in rows}
            knobs = {
                name: _integers(rows, name, 0)[fine] for name in CLBLAST_KNOBS if kind == "clblast" and name in rows
            }
            yield Group(
                table, kind, str(device), str(workload_id), workload, hardware,
                time_s[fine], unbiased[fine], points[fine], _numbers(rows, "cv")[fine], _numbers(rows, runs)[fine],
                others, knobs,
            )  # fmt: skip
