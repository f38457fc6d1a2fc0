"""Score the model of attention's tiles on recorded times: of FlexAttention's configurations, and of libraries.

    python -m bench.replay.tensorcores_attention FOLDER [--half odd|even] [--problems N]

FOLDER holds autotune_flexattention__*, attention_aiconfigurator__* and autotune_mm__*.csv.gz (whose cuBLAS rows say
what DRAM reaches on the same devices). FlexAttention's times do not depend on the number of keys, and are those of
queries read and results written at the bandwidth of DRAM: Inductor's tuner gave the kernels index tensors of zeros, so
they went over no keys. They are scored as such, and once more as if all keys had been read.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.attention.problem import AttentionProblem, AttentionTiles
from anatune.templates.triton.attention.resources import OWN_REGISTERS, attention_units
from anatune.templates.triton.attention.rules import MOST_DIM
from anatune.templates.triton.attention.steps import count_steps
from anatune.templates.triton.attention.times import score_attention
from anatune.templates.triton.instructions import has_descriptors
from anatune.templates.triton.resources import is_wide
from anatune.templates.triton.times import TileScores
from bench.replay.metrics import spearman
from bench.replay.tensorcores import anchored_specs, read
from bench.replay.tensorcores_devices import spec_named
from bench.replay.tensorcores_tables import PLAIN, in_half, read_choices

FLEX, LIBRARIES = "autotune_flexattention", "attention_aiconfigurator"
_SHAPE = ["device", "batch", "heads", "seq_q", "head_dim", "dtype"]
_LONG_S = 5e-5
"""Repeats of the table agree on the order of configurations (0.9 and more) of kernels that take longer."""
_LONG_TOKENS = 1024
HOPPER, BLACKWELL = 9.0, 10.0
_SMALLEST = 0.15
"""Share of a library's rows, the fastest, that say what a call of it costs."""


class Library(NamedTuple):
    """One row of a library's table."""

    device: str
    library: str
    kind: str
    windowed: bool
    dtype: str
    key: tuple[int, ...]
    measured_s: float
    predicted_s: float
    own_tile_s: float
    """Predicted with the library's tile (`_library_tiles`)."""


def flex(folder: Path, half: str, specs: dict[str, GpuSpec], *, no_keys: bool) -> Iterator[tuple[object, ...]]:
    """Yield device, head_dim, best time, Spearman, first choice over the best, winner's time over the measured one."""
    table = pd.read_csv(next(folder.glob(f"{FLEX}__*.csv.gz")))
    table = table[np.isfinite(table.time_ms) & (table.dtype != "float32")]
    for key, rows in table.groupby([*_SHAPE, "subgraph_num_nodes", "subgraph_num_args"]):
        device, batch, heads, seq, dim, dtype = key[:6]
        if len(rows) < 6 or device not in specs or not in_half(half, *key[:6]):
            continue
        problem = AttentionProblem(*(int(n) for n in (batch, heads, heads, seq, seq, dim)), dtype=str(dtype))
        tiles = AttentionTiles.of(
            [(*row, 1) for row in rows[["block_m", "block_n", "num_warps", "num_stages"]].to_numpy()]
        )
        steps = count_steps(problem, tiles)
        if no_keys:
            steps = replace(steps, mean=0.0 * steps.mean, most=0.0 * steps.most)
            problem = problem._replace(seq_kv=1)
        known = _older(problem, tiles, specs[str(device)])
        found = score_attention(problem, tiles, specs[str(device)], steps=steps, compiled=known).time_s
        measured = rows.time_ms.to_numpy(dtype=np.float64) / 1e3
        best = measured.min()
        first = measured[found.argmin()] / best
        yield device, int(dim), best, spearman(found, measured), first, found[measured.argmin()] / best


def _older(problem: AttentionProblem, tiles: AttentionTiles, spec: GpuSpec) -> NDArray[np.float64]:
    """Return registers, shared bytes and spills, (3, num_tiles), as Triton 3.0 had them.

    Warps of units that read registers lay along rows, however few there were, and exchanged nothing.
    """
    wide = is_wide(attention_units(problem, tiles, spec))
    repeated = np.where(wide, 1.0, np.maximum(1.0, 16.0 * tiles.num_warps / tiles.block_m))
    columns = problem.depth * np.where(wide, 1.0, 1.5) + 1.5 * tiles.block_n
    wanted = OWN_REGISTERS + tiles.block_m * repeated * columns / (32.0 * tiles.num_warps)
    queries = 2 * tiles.block_m * problem.depth
    stage = 4 * tiles.block_n * problem.depth
    staged = np.where(wide, queries + stage * tiles.num_stages, np.maximum(queries, stage * (tiles.num_stages - 1)))
    most = float(spec.registers.per_thread)
    return np.array([np.minimum(wanted, most), staged, np.maximum(0.0, wanted - most)])


def print_flex(folder: Path, half: str, specs: dict[str, GpuSpec]) -> None:
    """Print a line for each device and reading of the table."""
    columns = ["device", "dim", "best_s", "rank", "first", "winner"]
    print("| device, read as | problems | Spearman (over 50 us) | first choice over best: median, 90 % | winner |")
    print("|---" * 5 + "|")
    for no_keys in (True, False):
        scores = pd.DataFrame(flex(folder, half, specs, no_keys=no_keys), columns=columns)
        for device, rows in scores.groupby("device"):
            longer = rows[rows.best_s > _LONG_S]
            print(
                f"| {device}, {'no keys' if no_keys else 'all keys'} | {len(rows)} | {rows['rank'].median():.3f} "
                f"({longer['rank'].median():.3f}) | {rows['first'].median():.3f}, {rows['first'].quantile(0.9):.3f} | "
                f"{rows.winner.median():.2f} |"
            )


def libraries(folder: Path, half: str, problems: int) -> Iterator[Library]:
    """Yield what was measured and the best predicted time; `problems` of each device, library and kind (0: all)."""
    table = pd.read_csv(next(folder.glob(f"{LIBRARIES}__*.csv.gz")))
    table["kind"] = table.note.str.split(";").str[0]
    table["window"] = table.note.str.extract(r"window (\d+)", expand=False).fillna("0").astype(int)
    table = table[(table.head_dim <= MOST_DIM) & ((table.kind == "decode") | (table.seq_q >= _LONG_TOKENS))]
    sizes = ["batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim"]
    for (device, library, kind, dtype), rows in table.groupby(["device", "library", "kind", "dtype"]):
        spec = spec_named(str(device))
        kept = rows[[in_half(half, device, *key) for key in rows[sizes].itertuples(index=False, name=None)]]
        if spec is None or not len(kept):
            continue
        if problems:
            kept = kept.sample(min(problems, len(kept)), random_state=1)
        tiles = _tiles(spec)
        for row in kept.itertuples():
            shape = tuple(int(getattr(row, name)) for name in sizes)
            window = int(row.window) if row.window < row.seq_kv else 0
            element = "float8_e4m3fn" if dtype == "fp8" else "bfloat16"
            masked = bool(row.causal) or kind == "decode"
            problem = AttentionProblem(*shape, causal=masked, window=window, dtype=element)
            scores = score_attention(problem, tiles, spec, warm=True)
            best = _least(scores)
            theirs = score_attention(problem, _library_tiles(str(kind), problem.head_dim, spec), spec, warm=True)
            own = _least(theirs) if (theirs.resources.rule == 0).any() else best
            windowed = int(row.window) > 0
            key = (*shape, window, masked)
            yield Library(str(device), str(library), str(kind), windowed, str(dtype), key, row.time_us / 1e6, best, own)


def _least(scores: TileScores) -> float:
    return float(scores.time_s[scores.resources.rule == 0].min())


def _library_tiles(kind: str, head_dim: int, spec: GpuSpec) -> AttentionTiles:
    """Return the tile of a device's library, with parts of the keys where it decodes; masked blocks are whole blocks.

    FlashAttention 3 and TensorRT-LLM have 128 x 128 (128 x 64 for long heads), of which an SM holds one; the latter
    decodes with 16 rows, FlashAttention 2 (sm_80) with 64 x 128. Its prompts are left to the best tile: by 128 x 64 and
    four warps Triton would spill. Source: flash-attention's headers of launches; TensorRT-LLM's: assumed.
    """
    decodes, capability = kind == "decode", spec.compute_capability or 0.0
    columns = 128 if head_dim <= 128 else 64
    if capability < HOPPER:
        if not decodes:
            return _tiles(spec)
        tile = (64, columns, 4, 2)
    else:
        tile = (16, columns, 4, 2) if decodes and capability >= BLACKWELL else (128, columns, 8, 2)
    splits = (1, 2, 4, 8, 16, 32, 64) if decodes else (1,)
    return AttentionTiles.of([(*tile, split, int(has_descriptors(spec) and not decodes)) for split in splits])


def _tiles(spec: GpuSpec) -> AttentionTiles:
    """Return tiles that good kernels have."""
    sizes = itertools.product((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (4, 8), (1, 2, 3, 4))
    splits = (1, 2, 4, 8, 16, 32, 64)
    return AttentionTiles.of([(*size, split, int(has_descriptors(spec))) for size in sizes for split in splits])


def print_libraries(rows: list[Library]) -> None:
    """Print a line for each library and kind; behind it the fastest library of each problem.

    "fixed": the median of what the fastest calls of a library take beyond our prediction, added to all of its rows;
    once more with the library's tile in the place of the best one.
    """
    print(
        "| device, library | kind | dtype | problems | ratio (10 to 90 %) | error | with fixed cost: ratio, error |",
        end="",
    )
    print(" its tile, with fixed cost: ratio, error |")
    print("|---" * 8 + "|")
    table = pd.DataFrame(rows, columns=Library._fields)
    if table.empty:
        return
    small = table.groupby(["device", "library"]).measured_s.transform(lambda s: s.quantile(_SMALLEST))
    for name in ("predicted_s", "own_tile_s"):
        beyond = (table.measured_s - table[name]).where(table.measured_s <= small)
        table[f"fixed_{name}"] = beyond.groupby([table.device, table.library]).transform("median").clip(lower=0.0)
    fastest = table.loc[table.groupby(["device", "kind", "dtype", "key"]).measured_s.idxmin()].copy()
    fastest["library"] = "fastest"
    for (device, library, kind, windowed, dtype), group in pd.concat([table, fastest]).groupby(
        ["device", "library", "kind", "windowed", "dtype"]
    ):
        ratio = (group.predicted_s / group.measured_s).to_numpy()
        print(
            f"| {device} {library} | {kind}{' with a window' if windowed else ''} | {dtype} | {len(group)} | "
            f"{_median(ratio):.2f} ({np.quantile(ratio, 0.1):.2f} to {np.quantile(ratio, 0.9):.2f}) | "
            f"{100 * _median(abs(ratio - 1)):.0f} % | {_with_fixed(group, 'predicted_s')} | "
            f"{_with_fixed(group, 'own_tile_s')} |"
        )


def _with_fixed(group: pd.DataFrame, name: str) -> str:
    whole = ((group[name] + group[f"fixed_{name}"]) / group.measured_s).to_numpy()
    fixed_us = 1e6 * group[f"fixed_{name}"].median()
    return f"{_median(whole):.2f}, {100 * _median(abs(whole - 1)):.0f} % ({fixed_us:.1f} us)"


def _median(values: NDArray[np.float64]) -> float:
    return float(np.median(values))


def main() -> None:
    """Read the tables and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("all", "odd", "even"), default="all", help="of the problems, by a hash")
    parser.add_argument("--problems", type=int, default=0, help="sample of each library and kind; 0: all")
    chosen = parser.parse_args()
    specs = anchored_specs(read(read_choices, chosen.folder, PLAIN))
    print(f"\n{FLEX}\n")
    print_flex(chosen.folder, chosen.half, specs)
    print(f"\n{LIBRARIES}, prompts of {_LONG_TOKENS:,} tokens and more, and decoding\n")
    print_libraries(list(libraries(chosen.folder, chosen.half, chosen.problems)))


if __name__ == "__main__":
    main()
