"""Score the models of grouped and of block-scaled products on recorded times, and on the files that servers ship.

    python -m bench.replay.serving FOLDER [--part experts|scaled|shipped] [--half odd|even] [--problems N]

FOLDER holds moe_aiconfigurator__*, gemm_aiconfigurator__* and serving_configs__*.csv.gz. Times of experts are of
SGLang's Triton kernels, repeated with the same weights, with the choice of experts (a kernel and three copies) beside
the layer; the tile is that of the file that SGLang ships for the shape, where the folder has it, else SGLang's
default. Shipped files do not tell hidden size and top-k: those of the model that has so many experts are taken.
vLLM's rows of scaled products are calls from Python: those that take less than twice what the smallest products take
are left out. Shipped files are winners among the programs of the Triton of their day: those of block-scaled products
are judged with it (`tuned_with`), and once more with today's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.routing import make_balanced_routing, make_power_law_routing
from anatune.errors import AnatuneError
from anatune.servers.choose import race, space_of
from anatune.servers.defaults import Tile, default_tile
from anatune.servers.names import check_version, folder_version
from anatune.servers.shapes import Experts, Product
from anatune.templates.triton.grouped.layer import ExpertLayer, score_layer
from anatune.templates.triton.grouped.scales import LATEST, Served
from anatune.templates.triton.grouped.times import score_scaled
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from bench.replay.metrics import spearman
from bench.replay.tensorcores_devices import spec_named
from bench.replay.tensorcores_scores import tiles_of
from bench.replay.tensorcores_tables import in_half, sample_of, table_of

KERNEL = "sglang sglang_fused_moe_triton"
SCALED = ("deepgemm", "TritonFp8BlockScaled", "DeepGemmFp8BlockScaled")
SHIPPED = {
    "NVIDIA_H100_80GB_HBM3": "h100_sxm",
    "NVIDIA_H200": "h200",
    "NVIDIA_B200": "b200",
    "NVIDIA_A100-SXM4-80GB": "a100_sxm_80gb",
    "NVIDIA_A100-SXM4-40GB": "a100_sxm",
    "NVIDIA_A800-SXM4-80GB": "a100_sxm_80gb",
    "NVIDIA_H20": "h20",
    "NVIDIA_L40S": "l40s",
    "NVIDIA_GeForce_RTX_4090": "rtx4090",
}
DEVICES = {"NVIDIA_" + name.replace(" ", "_"): name for name in ("A100-SXM4-80GB", "H100 80GB HBM3", "B200")}
MODELS = {
    8: (4096, 2), 16: (5120, 1), 60: (2048, 4), 64: (2048, 8), 128: (4096, 8), 160: (5120, 8),
    256: (7168, 8), 257: (7168, 9), 384: (7168, 8), 512: (2048, 10),
}  # fmt: skip
"""Experts -> hidden size and top-k of a model that has so many: Mixtral 8x7B, Llama 4 Scout, Qwen1.5-MoE, OLMoE,
Qwen3-235B, DeepSeek-V2, DeepSeek-V3 (with its shared expert: 257), Kimi K2, Qwen3-Next."""
CHOOSING = 4
"""Launches of the choice of experts and of copies beside a layer."""
TURNS = 6
"""Sets of weights that take turns; of Triton's kernel: one."""
TCGEN05_SINCE = 10.0
STRAIGHT, TWO_SUMS, TURNED = (3, 4), (3, 3), (3, 1)
"""Versions of Triton whose programs differ (`grouped.times`)."""
SMALL_FLOP, LARGE_FLOP = 1e8, 2e10


def experts_scores(folder: Path, sample: tuple[str, int, int]) -> Iterator[tuple[Any, ...]]:
    """Yield device, dtype, distribution, whether a file is known, measured, predicted as configured, best predicted."""
    rows = table_of(folder, "moe_aiconfigurator", "device", "tokens", "distribution", "time_us")
    rows = rows[(rows.library_kernel == KERNEL) & (rows.ep == 1) & rows.dtype.isin(["bfloat16", "fp8_block"])]
    shipped = table_of(folder, "serving_configs", "kind", "m", "block_m")
    shipped = shipped[(shipped.kind == "moe") & (shipped.source == "sglang") & (shipped.down != 1)]
    for (device, dtype, distribution), group in rows.groupby(["device", "dtype", "distribution"]):
        spec = spec_named(str(device))
        if spec is None:
            continue
        keys = zip(group.hidden, group.inter, group.num_experts, group.topk, group.tp, group.tokens, strict=True)
        kept = group[[in_half(sample[0], device, dtype, *key) for key in keys]]
        for place in sample_of(len(kept), *sample[1:]):
            row = kept.iloc[place]
            inter, tokens, count = int(row.inter // row.tp), int(row.tokens), int(row.num_experts)
            block = (128, 128) if dtype == "fp8_block" and inter % 128 == 0 else None
            kind = "fp8_w8a8" if dtype == "fp8_block" else "auto"
            shape = Experts(count, inter, int(row.hidden), int(row.topk), kind, block)
            routing = make_balanced_routing(tokens, count, shape.top_k)
            if "power" in distribution:
                routing = make_power_law_routing(tokens, count, shape.top_k, float(distribution.rsplit("_", 1)[1]))
            layer = ExpertLayer(
                tokens, shape.hidden, inter, count, shape.top_k, routing,
                "fp8" if dtype == "fp8_block" else "bfloat16", 0, 128 if block else 0,
            )  # fmt: skip
            name = next(key for key, value in DEVICES.items() if value == device)
            file = _file_tile(shipped, name, shape, tokens)
            tiles = space_of(shape, spec, (file or default_tile("sglang", shape, tokens, spec),))
            scores = score_layer(layer, tiles, spec, warm=True)
            rest = CHOOSING * spec.launch.overhead_s
            best = float(np.where(scores.is_legal, scores.time_s, np.inf).min())
            at = _place(tiles, file or default_tile("sglang", shape, tokens, spec))
            yield (
                device,
                dtype,
                distribution,
                file is not None,
                row.time_us * 1e-6,
                scores.time_s[at] + rest,
                best + rest,
            )


def scaled_scores(folder: Path, sample: tuple[str, int, int]) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield device, kernel, FLOP, measured and best predicted seconds of block-scaled products."""
    rows = table_of(folder, "gemm_aiconfigurator", "device", "library_kernel", "m", "n", "k", "time_us")
    rows = rows[rows.library_kernel.str.contains("|".join(SCALED), regex=True)]
    for (device, kernel), group in rows.groupby(["device", "library_kernel"]):
        spec = spec_named(str(device))
        if spec is None:
            continue
        if kernel.startswith("vllm"):
            small = 2.0 * group.m * group.n * group.k < SMALL_FLOP
            group = group[group.time_us > 2.0 * group.time_us[small].median()]
        keys = zip(group.m, group.n, group.k, strict=True)
        kept = group[[in_half(sample[0], device, *key) for key in keys]]
        for place in sample_of(len(kept), *sample[1:]):
            row = kept.iloc[place]
            product = MatmulProblem(int(row.m), int(row.n), int(row.k), "fp8", b_along_n=False)
            if "Triton" in kernel:
                tiles = space_of(Product(product.n, product.k), spec)
                found = score_scaled(product, 128, tiles, spec, warm=1, kernel=Served())
            else:
                # tcgen05 multiplies with the scales itself, so that no sums leave it
                by_unit = (spec.compute_capability or 0.0) >= TCGEN05_SINCE
                found = score_scaled(product, 0 if by_unit else 128, _deep(spec), spec, warm=TURNS)
            time_s = float(np.where(found.resources.rule == 0, found.time_s, np.inf).min())
            yield str(device), str(kernel), 2.0 * product.m * product.n * product.k, row.time_us * 1e-6, time_s


def tuned_with(rows: pd.DataFrame) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Return source, device, n and k of files of block-scaled products -> Triton that compiled what was tuned. Assumed.

    Those of SGLang for Ampere and Hopper, which vLLM copied, came with DeepSeek-V3 (Triton 3.1), B200's in the middle
    of 2025; vLLM's others are later.
    """
    names = ["m", "block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages"]
    files = {
        key: tuple(map(tuple, group.sort_values("m")[names].to_numpy()))
        for key, group in rows.groupby(["source", "device", "n", "k"])
    }
    found: dict[tuple[Any, ...], tuple[int, int]] = {}
    for (source, device, n, k), file in files.items():
        copied = source == "sglang" or files.get(("sglang", device, n, k)) == file
        found[source, device, n, k] = TWO_SUMS if "B200" in device else TURNED if copied else STRAIGHT
    return found


def shipped_scores(folder: Path, sample: tuple[str, int, int]) -> Iterator[tuple[Any, ...]]:
    """Yield kind, device, dtype, predicted over best predicted, rank's share, whether block_m agrees, gain."""
    rows = table_of(folder, "serving_configs", "kind", "m", "block_m")
    rows = rows[rows.device.isin(SHIPPED) & (rows.down != 1)].fillna({"block_shape": ""})
    versions = tuned_with(rows[rows.kind == "fp8gemm"])
    for (kind, device, dtype, block), group in rows.groupby(["kind", "device", "dtype", "block_shape"]):
        spec = spec_named(SHIPPED[device])
        keys = zip(group.experts, group.n, group.k, group.m, strict=True)
        kept = group[[in_half(sample[0], device, dtype, *key) for key in keys]]
        for place in sample_of(len(kept), *sample[1:]):
            row = kept.iloc[place]
            shape = _shape(row, kind, dtype, block)
            tile = _tile(row)
            if shape is None or tile is None or spec is None:
                continue
            usual = default_tile(row.source, shape, int(row.m), spec)
            tiles, label = space_of(shape, spec, (tile, usual)), f"{dtype}, blocks" if block else dtype
            told = folder_version(str(row.triton))  # SGLang's folders of experts' files say it
            version = check_version(told) if told else versions.get((row.source, device, row.n, row.k), LATEST)
            for triton, name in ((LATEST, f"{kind}, today's Triton"), (version, kind)):
                try:
                    found = race(shape, int(row.m), spec, tiles, triton=triton)
                except AnatuneError as error:
                    print(f"{device} {dtype}: left out: {error}")
                    continue
                best, mine = found.best()[0], found.time_of(tile)
                share = float((found.time_s < mine).sum() / np.isfinite(found.time_s).sum())
                gain = found.time_of(usual) / best.time_s
                yield name, device, label, mine / best.time_s, share, best.tile[0] == tile[0], gain


def _deep(spec: GpuSpec) -> Tiles:
    """Return tiles of DeepGEMM's kind: descriptors, persistent blocks, a step of 128."""
    t = tiles_of(spec)
    return t.take(np.flatnonzero((t.block_k == 128) & (t.split_k == 1)))


def _shape(row: Any, kind: str, dtype: str, block: str) -> Experts | Product | None:
    name = {"16bit": "auto", "bf16": "auto", "float8": "fp8_w8a8"}.get(dtype, dtype)
    if kind == "fp8gemm":
        return Product(int(row.n), int(row.k), name)
    if int(row.experts) not in MODELS:
        return None
    return Experts(int(row.experts), int(row.n), *MODELS[int(row.experts)], name, (128, 128) if block else None)


def _tile(row: Any) -> Tile | None:
    values = (row.block_m, row.block_n, row.block_k, row.num_warps, row.num_stages, 1, row.group_m)
    if any(value != value for value in values):
        return None
    m, n, k, warps, stages, split, group = (int(value) for value in values)
    return m, n, k, warps, stages, split, group


def _file_tile(shipped: pd.DataFrame, device: str, shape: Experts, tokens: int) -> Tile | None:
    """Return the tile of SGLang's file of the newest Triton, None where there is no file."""
    rows = shipped[(shipped.device == device) & (shipped.experts == shape.experts) & (shipped.n == shape.intermediate)]
    rows = rows[(rows.dtype == "fp8_w8a8") & rows.block_shape.notna()] if shape.block else rows[rows.dtype == "16bit"]
    if not len(rows):
        return None
    rows = rows[rows.triton == rows.triton.max()]
    return _tile(rows.iloc[int((rows.m - tokens).abs().to_numpy().argmin())])


def _place(tiles: Tiles, tile: Tile) -> int:
    t = tiles
    rows = np.stack([t.block_m, t.block_n, t.block_k, t.num_warps, t.num_stages, t.split_k, t.group_m], axis=1)
    return int(np.flatnonzero((rows == np.array(tile)).all(axis=1))[0])


def _error(predicted: np.ndarray, measured: np.ndarray) -> str:
    ratio = predicted / measured
    return (
        f"{np.median(ratio):.2f} ({np.quantile(ratio, 0.1):.2f} to {np.quantile(ratio, 0.9):.2f}) | "
        f"{100 * np.median(abs(ratio - 1)):.0f} % | {spearman(predicted, measured):.3f}"
    )


def print_experts(folder: Path, sample: tuple[str, int, int]) -> None:
    """Print a line for each device, dtype and distribution; those of a known file apart."""
    print(
        "| device, dtype, distribution | layers | ratio (10 to 90 %) | error | rank | best tile: ratio | error | rank |"
    )
    print("|---" * 8 + "|")
    frame = pd.DataFrame(
        experts_scores(folder, sample), columns=["device", "dtype", "split", "file", "t", "mine", "best"]
    )
    for name, chosen in (("", frame), ("tuned file: ", frame[frame.file])):
        for (device, dtype, split), rows in chosen.groupby(["device", "dtype", "split"]):
            as_is, best = (_error(column.to_numpy(), rows.t.to_numpy()) for column in (rows.mine, rows.best))
            print(f"| {name}{device} {dtype} {split} | {len(rows)} | {as_is} | {best} |")


def print_scaled(folder: Path, sample: tuple[str, int, int]) -> None:
    """Print a line for each device and kernel."""
    print("| device, kernel | products | ratio (10 to 90 %) | error | rank |\n|---|---|---|---|---|")
    frame = pd.DataFrame(scaled_scores(folder, sample), columns=["device", "kernel", "flop", "t", "best"])
    sized = frame.assign(size=np.where(frame.flop > LARGE_FLOP, "over 20 GFLOP", "smaller"))
    for (device, kernel, size), rows in sized.groupby(["device", "kernel", "size"]):
        print(f"| {device} {kernel}, {size} | {len(rows)} | {_error(rows.best.to_numpy(), rows.t.to_numpy())} |")


def print_shipped(folder: Path, sample: tuple[str, int, int]) -> None:
    """Print a line for each kind, device and dtype."""
    print("| kind, device, dtype | entries | over the best (90 %) | rank | block_m agrees | default over best (90 %) |")
    print("|---" * 6 + "|")
    columns = ["kind", "device", "dtype", "regret", "rank", "rows", "gain"]
    frame = pd.DataFrame(shipped_scores(folder, sample), columns=columns)
    for key, rows in (
        *frame.groupby(["kind", "device", "dtype"]),
        *((("all", kind, ""), g) for kind, g in frame.groupby("kind")),
    ):
        legal = rows[np.isfinite(rows.regret)]
        gain = rows.gain[np.isfinite(rows.gain)]
        print(
            f"| {' '.join(key)} | {len(rows)} ({len(rows) - len(legal)} refused) | {legal.regret.median():.3f} "
            f"({legal.regret.quantile(0.9):.2f}) | {100 * legal['rank'].median():.1f} % | "
            f"{100 * legal.rows.mean():.0f} % | {gain.median():.2f} ({gain.quantile(0.9):.2f}) |"
        )


PARTS: dict[str, Callable[[Path, tuple[str, int, int]], None]] = {
    "experts": print_experts,
    "scaled": print_scaled,
    "shipped": print_shipped,
}


def main() -> None:
    """Read the tables and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=sorted(PARTS), help="only that; left out: all")
    parser.add_argument("--problems", type=int, default=0, help="sample of each group; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", choices=("all", "odd", "even"), default="all", help="of the problems, by a hash")
    chosen = parser.parse_args()
    for name, part in PARTS.items():
        if chosen.part in (None, name):
            print(f"\n{name}\n")
            part(chosen.folder, (chosen.half, chosen.problems, chosen.seed))


if __name__ == "__main__":
    main()
