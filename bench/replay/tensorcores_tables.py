"""Read recorded times of tensor-core kernels: configurations that others tried, and the best times of libraries."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anatune.errors import AnatuneError, SpaceError
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import TILE_FIELDS, Tiles

__all__ = [
    "AITER",
    "LIBRARIES",
    "MIXED",
    "PLAIN",
    "Choices",
    "LibraryTime",
    "in_half",
    "read_aiter",
    "read_choices",
    "read_libraries",
    "sample_of",
    "table_of",
]

PLAIN, MIXED = "autotune_mm", "autotune_mixed_mm"
LIBRARIES, AITER = "gemm_aiconfigurator", "gemm_aiter_winners"
BARE = ("trtllm torch_flow", "sglang sglang_torch_linear", "sglang sglang_sgl_kernel_fp8_scaled_mm")
"""Rows of products without scales of blocks."""
_QUANTISED = {"trtllm torch_flow": (3, 5.0), "sglang sglang_sgl_kernel_fp8_scaled_mm": (1, 3.0)}
"""Libraries whose rows of 8 bits hold the quantisation of the left operand -> launches, bytes read and written of an
element: a scale of each row in one kernel; or of all (zero, largest value, division). Source: what aiconfigurator
(095f58a51) times, ``collector/sglang/collect_gemm.py`` and ``collector/trtllm/collect_gemm.py``, dynamic scales."""
_KEYS = ["device", "m", "n", "k", "dtype_a", "dtype_b", "layout", "stride_a", "stride_b", "tf32"]
_WEIGHTS = {"int8": 1, "uint8": 1}
"""Weights that kernels convert to the type of the left operand -> bytes."""
_DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "fp8_e4m3": "fp8", "torch.int8": "int8"}


@dataclass(frozen=True)
class Choices:
    """What was tried for one problem: (num_tiles,) each."""

    device: str
    label: str
    """The types of the operands."""
    problem: MatmulProblem
    tiles: Tiles
    seconds: NDArray[np.float64]
    """inf: did not run."""
    library_s: float
    """cuBLAS on the same problem, NaN where it is not recorded."""


@dataclass(frozen=True)
class LibraryTime:
    """A library's time of one problem."""

    device: str
    label: str
    library: str
    problem: MatmulProblem
    seconds: float
    quantised: tuple[int, float] = (0, 0.0)
    """Launches that quantise the left operand before the product, bytes that they move of an element."""


def in_half(half: str, *key: object) -> bool:
    """Whether a problem is of that half (odd, even, or all), by a hash that stays."""
    return half == "all" or zlib.crc32(repr(key).encode()) % 2 == (half == "odd")


def read_choices(folder: Path, name: str, half: str = "all", sample: int = 0, seed: int = 0) -> Iterator[Choices]:
    """Yield the problems of a table of configurations; prints a line for each kind of problem it cannot read.

    Raises
    ------
    FileNotFoundError
        The folder has no such table.
    """
    table = table_of(folder, name, *[key for key in _KEYS if key != "tf32"], "time_ms", "is_extern")
    if "tf32" not in table:
        table["tf32"] = ""
    groups = [group for group in table.groupby(_KEYS, dropna=False, sort=True) if in_half(half, *group[0][:7])]
    refused: dict[str, int] = {}
    for place in sample_of(len(groups), sample, seed):
        (device, m, n, k, dtype_a, dtype_b, layout, stride_a, stride_b, tf32), rows = groups[place]
        dtype = "tf32" if dtype_a == "float32" and str(tf32) == "True" else str(dtype_a)
        mixed = dtype_a != dtype_b
        try:
            if mixed and dtype_b not in _WEIGHTS:
                raise SpaceError(f"weights of {dtype_b}, expected one of {', '.join(_WEIGHTS)}")
            problem = MatmulProblem(
                m=int(m),
                n=int(n),
                k=int(k),
                dtype=dtype,
                a_along_k=_rows_along_second(stride_a, layout[0]),
                b_along_n=_rows_along_second(stride_b, layout[1]),
                right_bytes=_WEIGHTS.get(str(dtype_b), 0) if mixed else 0,
            )
        except AnatuneError as error:
            refused[str(error)] = refused.get(str(error), 0) + 1
            continue
        tried = rows[(rows.is_extern == 0) & rows.time_ms.notna()]
        tried = tried[tried[[field for field in TILE_FIELDS if field in tried]].notna().all(axis=1)]
        external = rows.time_ms[rows.is_extern == 1]
        columns = [tried[field] if field in tried else np.ones(len(tried)) for field in TILE_FIELDS]
        yield Choices(
            device=str(device),
            label=f"{dtype} x {dtype_b}" if mixed else dtype,
            problem=problem,
            tiles=Tiles.of(np.column_stack(columns)),
            seconds=tried.time_ms.to_numpy(dtype=np.float64) / 1e3,
            library_s=float(external.min()) / 1e3 if len(external) else float("nan"),
        )
    for line, count in refused.items():
        print(f"{name}: {count} problems left out: {line}")


def read_libraries(folder: Path, half: str = "all", sample: int = 0, seed: int = 0) -> Iterator[LibraryTime]:
    """Yield the best times of libraries, `sample` of each device, library and dtype (0: all)."""
    table = table_of(folder, LIBRARIES, "device", "library_kernel", "dtype_a", "m", "n", "k", "time_us")
    table = table[table.library_kernel.isin(BARE)]
    for (device, library, dtype), rows in table.groupby(["device", "library_kernel", "dtype_a"]):
        if dtype not in _DTYPES:
            print(f"{LIBRARIES}: {device}, {library}: {len(rows)} rows of {dtype} left out: no dtype of ours")
            continue
        kept = rows[[in_half(half, device, *key) for key in zip(rows.m, rows.n, rows.k, strict=True)]]
        for place in sample_of(len(kept), sample, seed):
            row = kept.iloc[place]
            try:
                problem = MatmulProblem(int(row.m), int(row.n), int(row.k), _DTYPES[dtype], b_along_n=False)
            except AnatuneError as error:
                print(f"{LIBRARIES}: {device}, {library}: left out: {error}")
                continue
            quantised = _QUANTISED.get(str(library), (0, 0.0)) if problem.is_float8 else (0, 0.0)
            yield LibraryTime(str(device), _DTYPES[dtype], str(library), problem, float(row.time_us) / 1e6, quantised)


def read_aiter(folder: Path, half: str = "all", sample: int = 0, seed: int = 0) -> Iterator[LibraryTime]:
    """Yield the best times that aiter's tuner recorded on an MI300X, `sample` of each table (0: all)."""
    table = table_of(folder, AITER, "file", "batch", "m", "n", "k", "time_us")
    table = table[table.batch == 1]
    for file, rows in table.groupby("file"):
        kept = rows[[in_half(half, *key) for key in zip(rows.m, rows.n, rows.k, strict=True)]]
        dtype = "fp8" if "blockscale" in str(file) else "int8" if "a8w8" in str(file) else "bfloat16"
        for place in sample_of(len(kept), sample, seed):
            row = kept.iloc[place]
            try:
                problem = MatmulProblem(int(row.m), int(row.n), int(row.k), dtype, out_bytes=2, b_along_n=False)
            except AnatuneError as error:
                print(f"{AITER}: {len(kept)} rows of {file} left out: {error}")
                break
            yield LibraryTime("mi300x", dtype, str(file), problem, float(row.time_us) / 1e6)


def table_of(folder: Path, name: str, *columns: str) -> pd.DataFrame:
    """Return a table; ValueError where columns are missing."""
    found = sorted(folder.glob(f"{name}__*.csv.gz"))
    if not found:
        raise FileNotFoundError(f"{folder} has no {name}__*.csv.gz")
    table = pd.read_csv(found[0], low_memory=False)
    missing = [column for column in columns if column not in table]
    if missing:
        raise ValueError(f"{found[0].name} has no column {', '.join(missing)}")
    return table


def sample_of(count: int, sample: int, seed: int) -> list[int]:
    """Return the places of a sample, in order; all of them where `sample` is 0 or more than there are."""
    if not 0 < sample < count:
        return list(range(count))
    return sorted(np.random.default_rng(seed).permutation(count)[:sample].tolist())


def _rows_along_second(strides: object, letter: str) -> bool:
    """Whether rows in memory run along the second index: by the strides, or by the layout where they do not tell."""
    first, _, second = str(strides).partition("x")
    if first.isdigit() and second.isdigit() and (first == "1") != (second == "1"):
        return second == "1"
    return letter == "N"
