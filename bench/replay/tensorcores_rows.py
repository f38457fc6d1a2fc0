"""Score the model of kernels on rows on recorded times of softmax, norms, rotary embeddings and quantisation.

    python -m bench.replay.tensorcores_rows FOLDER [--half odd|even] [--sample N]

FOLDER holds rows__*.csv.gz. Each row is planned (the best tile of the space) and its predicted time stands over the
measured one, which is somebody's kernel, timed as `WARM` says. Libraries' smallest kernels take microseconds more
or less than ours on the same device; "fixed cost" adds that median difference to our times, as for products.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import add_rms_norm, layer_norm, quantise_tensor, rms_norm, rotary, softmax
from anatune.errors import AnatuneError
from anatune.templates.triton.rows.model import RowModel
from anatune.templates.triton.rows.times import score_rows
from bench.replay.metrics import spearman
from bench.replay.tensorcores_devices import spec_named
from bench.replay.tensorcores_tables import in_half

TABLE = "rows"
SMALL_BYTES = 1 << 19
"""Kernels that move less are launches and latencies."""
_HEADS, _KEY_HEADS = 32, 8
"""Of queries and keys in Liger's benchmark of rotary embeddings, turned by one kernel."""


def _turned(rows: int, cols: int, dtype: str) -> Workload:
    return rotary(rows, _HEADS + _KEY_HEADS, cols // _HEADS, dtype)


def _narrowed(rows: int, cols: int, dtype: str) -> Workload:
    return quantise_tensor(rows, cols, f"{dtype.partition('->')[0]}:float8_e4m3fn")


KERNELS: dict[tuple[str, str], Callable[[int, int, str], Workload]] = {
    ("scale_matrix", "vllm"): _narrowed,
    ("scale_matrix", "trtllm"): _narrowed,
    ("rms_norm", "liger"): rms_norm,
    ("layer_norm", "liger"): layer_norm,
    ("softmax", "liger"): softmax,
    ("rope", "liger"): _turned,
    ("fused_add_rms_norm", "liger_fused"): add_rms_norm,
    ("fused_add_rms_norm", "liger_triton_fused"): add_rms_norm,
    ("fused_add_rms_norm", "liger_cutile_fused"): add_rms_norm,
    ("layer_norm", "torch"): layer_norm,
    ("softmax", "torch"): softmax,
    ("rmsnorm", "quack"): rms_norm,
    ("softmax", "quack"): softmax,
    ("rmsnorm", "flashinfer"): rms_norm,
    ("softmax", "flashinfer"): softmax,
    ("input_layernorm", "vllm"): rms_norm,
}
"""Kernel, beginning of its library -> its workload. Left out: several kernels (Hugging Face, whole gated networks),
differences of times (the scales of vLLM), sglang's quantisation, which takes ten times as long as the others'."""
WARM = ("vllm", "trtllm")
"""Beginnings of the libraries whose kernels were repeated without a break; others were timed with L2 flushed."""
_SPECS = {
    "A100": "a100_sxm_80gb",
    "H100": "h100_sxm",
    "NVIDIA A100 80GB PCIe": "a100_pcie",
    "NVIDIA A100-PCIE-40GB": "a100_pcie",
    "NVIDIA A100-SXM4-80GB": "a100_sxm_80gb",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
}
"""Device of the table -> spec, where its name is another one."""


@dataclass(frozen=True)
class RowTime:
    """A recorded time, and ours."""

    label: str
    workload: Workload
    measured_s: float
    predicted_s: float


def workload_of(kernel: str, library: str, mode: str, rows: int, cols: int, dtype: str) -> Workload | None:
    """Return the workload of a recorded kernel; None where it is none of ours."""
    found = [make for (name, begin), make in KERNELS.items() if name == kernel and library.startswith(begin)]
    if not found or mode not in ("forward", "fwd", "fwd+res"):
        return None
    make = add_rms_norm if mode == "fwd+res" else found[-1]
    return make(rows, cols, dtype)


def best_s(workload: Workload, spec: GpuSpec, *, warm: bool) -> float:
    """Return the predicted time of the best tile."""
    model = RowModel(workload, spec)
    points = model.space.points_at(np.arange(model.space.size))
    found = score_rows(workload, points, spec, warm=warm)
    return float(np.where(found.resources.rule == 0, found.time_s, np.inf).min())


def read_rows(folder: Path, half: str = "all", sample: int = 0) -> Iterator[RowTime]:
    """Yield the rows whose kernel is one of ours; what is left out is printed.

    Raises
    ------
    FileNotFoundError
        The folder has no such table.
    """
    paths = sorted(folder.glob(f"{TABLE}__*.csv.gz"))
    if not paths:
        raise FileNotFoundError(f"{folder} has no {TABLE}__*.csv.gz")
    table = pd.read_csv(paths[0], low_memory=False)
    for name in ("rows", "cols", "time_us"):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    table = table[table[["rows", "cols", "time_us"]].notna().all(axis=1)]
    left: dict[str, int] = {}
    for (device, library, kernel, mode, dtype), rows in table.groupby(
        ["device", "library", "kernel", "mode", "dtype"], sort=True
    ):
        key = f"{device}, {library}, {kernel}"
        known = any(name == kernel and str(library).startswith(begin) for name, begin in KERNELS)
        spec = spec_named(_SPECS.get(str(device), str(device))) if known else None
        kept = [row for row in rows.itertuples() if in_half(half, device, kernel, int(row.rows), int(row.cols))]
        if spec is None:
            left[key] = left.get(key, 0) + len(rows)
            continue
        for row in kept[:: max(1, len(kept) // sample)] if sample else kept:
            try:
                workload = workload_of(str(kernel), str(library), str(mode), int(row.rows), int(row.cols), str(dtype))
                if workload is None:
                    left[f"{key} ({mode})"] = left.get(f"{key} ({mode})", 0) + 1
                    continue
                predicted = best_s(workload, spec, warm=str(library).startswith(WARM))
            except AnatuneError as error:
                left[str(error)] = left.get(str(error), 0) + 1
                continue
            label = f"{device} {workload.operator} {dtype}, {str(library).split()[0]}"
            yield RowTime(label, workload, float(row.time_us) / 1e6, predicted)
    print(f"left out: {sum(left.values())} rows of {len(left)} kernels, devices and modes")


def print_rows(times: list[RowTime]) -> None:
    """Print a line for each device, kernel and library."""
    print("| device, kernel, library | rows | ratio, median (10 to 90 %) | error | with fixed cost: error | rank |")
    print("|---" * 6 + "|")
    for label, found in groupby(sorted(times, key=lambda time: time.label), key=lambda time: time.label):
        group = list(found)
        measured = np.array([time.measured_s for time in group])
        predicted = np.array([time.predicted_s for time in group])
        small = np.array([time.workload.compulsory_bytes < SMALL_BYTES for time in group])
        cost = float(np.median((measured - predicted)[small])) if small.any() else 0.0
        ratio, fixed = predicted / measured, (predicted + cost) / measured
        print(
            f"| {label} | {len(group)} | {np.median(ratio):.2f} ({np.quantile(ratio, 0.1):.2f} to "
            f"{np.quantile(ratio, 0.9):.2f}) | {100 * np.median(abs(ratio - 1)):.0f} % | "
            f"{100 * np.median(abs(fixed - 1)):.0f} % ({1e6 * cost:+.1f} us) | {spearman(predicted, measured):.3f} |"
        )


def main() -> None:
    """Read the table and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("all", "odd", "even"), default="all", help="of the problems, by a hash")
    parser.add_argument("--sample", type=int, default=0, help="rows of each device and kernel; 0: all")
    chosen = parser.parse_args()
    print_rows(list(read_rows(chosen.folder, chosen.half, chosen.sample)))


if __name__ == "__main__":
    main()
