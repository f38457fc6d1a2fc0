"""Compare predicted times of a layer of Llama-3-8B with the sums of libraries' recorded times of the same kernels.

    python -m bench.replay.llama_layers FOLDER

FOLDER holds gemm_aiconfigurator__* and attention_aiconfigurator__*.csv.gz. A layer has four products (q, k and v beside
each other, gate and up likewise) and an attention. The tables have sizes on a grid: products of 28,672 columns are
those of 16,384 and 12,288, sums of 14,336 those of 8,192 and 6,144, on both sides. Some of them are in the other half
of the tables: the number says how many are compared. Predictions are those of `anatune.plan`: our own kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from bench.replay.tensorcores_devices import spec_named
from bench.replay.tensorcores_tables import LIBRARIES, table_of

PRODUCTS = ((6144, 4096), (4096, 4096), (16384, 4096), (12288, 4096), (4096, 8192), (4096, 6144))
"""Columns and depth of a layer's products, on the tables' grid."""
ROWS = (1, 4, 16, 64, 256, 2048, 8192)
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
_PLAIN = "torch"
"""What the names of libraries' products without scales have in common: cuBLAS."""


def predicted_s(workload: Workload, spec: GpuSpec) -> float:
    """Return the least predicted time."""
    return anatune.plan(workload, spec, 1, template="triton").predictions[0].time_s


def products(folder: Path) -> Iterator[tuple[str, int, int, int, float]]:
    """Yield device, rows, columns, depth and the least recorded time, s."""
    table = table_of(folder, LIBRARIES, "device", "library_kernel", "dtype_a", "m", "n", "k", "time_us")
    table = table[(table.dtype_a == "bfloat16") & table.library_kernel.str.contains(_PLAIN)]
    for (device, m, n, k), rows in table.groupby(["device", "m", "n", "k"]):
        if (n, k) in PRODUCTS and m in ROWS:
            yield str(device), int(m), int(n), int(k), float(rows.time_us.min()) / 1e6


def attentions(folder: Path) -> Iterator[tuple[str, bool, tuple[int, int, int], float]]:
    """Yield device, whether it decodes, (batch, queries, keys) and the least recorded time, s."""
    table = table_of(folder, "attention_aiconfigurator", "device", "batch", "heads", "seq_q", "seq_kv", "note")
    own = (table.heads == HEADS) & (table.kv_heads == KV_HEADS) & (table.head_dim == HEAD_DIM)
    table = table[own & (table.dtype == "bfloat16") & ~table.note.str.contains("window")]
    for (device, batch, queries, keys), rows in table.groupby(["device", "batch", "seq_q", "seq_kv"]):
        yield str(device), int(queries) == 1, (int(batch), int(queries), int(keys)), float(rows.time_us.min()) / 1e6


def main() -> None:
    """Read the tables and print sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rows = []
    for device, m, n, k, measured in products(folder):
        rows.append((device, f"products of {m} rows", measured, anatune.matmul(m, n, k, dtype="bfloat16")))
    for device, decodes, (batch, queries, keys), measured in attentions(folder):
        workload = anatune.attention(
            batch, HEADS, KV_HEADS, queries, keys, HEAD_DIM, causal=not decodes, dtype="bfloat16"
        )
        if keys >= 1024 and batch * keys <= 1 << 18:
            rows.append((device, "attention, decoding" if decodes else "attention, prompts", measured, workload))
    found = pd.DataFrame(rows, columns=["device", "what", "measured_s", "workload"])
    specs = {device: spec for device in found.device.unique() if (spec := spec_named(device)) is not None}
    found = found[found.device.isin(specs)]
    found["predicted_s"] = [
        predicted_s(workload, specs[device]) for device, workload in zip(found.device, found.workload, strict=True)
    ]
    print("| device | kernels | number | predicted, us | recorded, us | over |\n" + "|---" * 6 + "|")
    for (device, what), group in found.groupby(["device", "what"], sort=False):
        own, theirs = 1e6 * group.predicted_s.sum(), 1e6 * group.measured_s.sum()
        print(f"| {device} | {what} | {len(group)} | {own:.1f} | {theirs:.1f} | {own / theirs:.2f} |")


if __name__ == "__main__":
    main()
