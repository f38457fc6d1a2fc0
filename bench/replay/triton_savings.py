"""What `matmul_pruner` saves of Triton's tuning, and what that costs, on recorded times of Triton's kernels.

    python -m bench.replay.triton_savings FOLDER [--problems N] [--seed S] [--within 2 1.5]

FOLDER holds autotune_mm__*.csv.gz and autotune_mixed_mm__*.csv.gz: times of all configurations that somebody tried for
a product. The pruner sees them through the call that Triton makes, smallest tile first, whatever was measured; specs
are those of the files. Lost is the best time of those kept over the recorded best. Tuning time is that of
``triton.testing.do_bench`` on the device (a run, five more to estimate, then as many as 25 ms and 100 ms hold), without
compilation, which is saved in proportion to the configurations. `--within` says the same of filters that leave what is
predicted to take at most so many times as long as the best that the model knows (``anatune.adapters.helion``).
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.triton import matmul_pruner
from anatune.adapters.triton.tiles import propose
from anatune.core.hardware.spec import GpuSpec
from anatune.errors import NotJudgedWarning
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.times import score_tiles
from bench.replay.tensorcores_devices import spec_named
from bench.replay.tensorcores_tables import MIXED, PLAIN, Choices, read_choices

KEEP = (8, 4, 1)
_WARMUP_S, _MEASURED_S, _ESTIMATE_RUNS = 25e-3, 100e-3, 6
"""Source: triton.testing.do_bench of Triton 3.9, its defaults."""
_FEWEST = 8
"""Configurations that ran, of problems that are judged."""


@dataclass(frozen=True)
class Saving:
    """What one `keep` does for one problem.

    Attributes
    ----------
    measured : int
        Configurations that Triton would measure; 0 where one is kept.
    lost : float
        Best time of those kept over the recorded best, infinite where none of them ran.
    saved : float
        Share of the tuning time.
    """

    measured: int
    lost: float
    saved: float


def arguments_of(problem: MatmulProblem) -> dict[str, object]:
    """Return the arguments of a kernel's call, by name."""

    def operand(rows: int, columns: int, along_columns: bool, element_bytes: int) -> SimpleNamespace:
        strides = (columns, 1) if along_columns else (1, rows)
        return SimpleNamespace(
            shape=(rows, columns), stride=lambda: strides, dtype=problem.dtype, element_size=lambda: element_bytes
        )

    return {
        "a": operand(problem.m, problem.k, problem.a_along_k, problem.element_bytes),
        "b": operand(problem.k, problem.n, problem.b_along_n, problem.right_element_bytes),
        "c": operand(problem.m, problem.n, True, problem.result_bytes),
        "M": problem.m,
        "N": problem.n,
        "K": problem.k,
    }


def tuning_s(seconds: NDArray[np.float64]) -> float:
    """Return the device's time to measure kernels of such times; what does not run costs nothing."""
    ran = seconds[np.isfinite(seconds)]
    runs = _ESTIMATE_RUNS + np.maximum(1, _WARMUP_S // ran) + np.maximum(1, _MEASURED_S // ran)
    return float((ran * runs).sum())


def savings(choices: Choices, spec: GpuSpec) -> list[Saving]:
    """Return what each of `KEEP` does for a problem."""
    tiles = choices.tiles
    columns = (tiles.block_m, tiles.block_n, tiles.block_k, tiles.num_warps, tiles.num_stages, tiles.group_m)
    order = np.lexsort(columns[::-1])
    configs = [
        SimpleNamespace(kwargs={"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group}, num_warps=w, num_stages=s)
        for m, n, k, w, s, group in np.stack(columns)[:, order].T.tolist()
    ]
    place_of = {id(config): place for config, place in zip(configs, order.tolist(), strict=True)}
    found = []
    for keep in KEEP:
        pruner = matmul_pruner(spec, keep, dtype=choices.problem.dtype)
        chosen = pruner.early_config_prune(configs, arguments_of(choices.problem))
        kept = [place_of[id(config)] for config in chosen]
        measured = [] if len(kept) == 1 else kept
        found.append(
            Saving(
                len(measured),
                float(choices.seconds[kept].min() / choices.seconds.min()),
                1.0 - tuning_s(choices.seconds[measured]) / tuning_s(choices.seconds),
            )
        )
    return found


def filtered(choices: Choices, spec: GpuSpec, within: float) -> tuple[float, float]:
    """Return the share of configurations that a filter leaves, and their best time over the recorded best."""
    scores = score_tiles(choices.problem, choices.tiles, spec)
    best = propose(choices.problem, spec, split_k=False, group_m=True)[0].time_s
    kept = (scores.resources.rule == 0) & (scores.time_s <= within * best)
    fastest = choices.seconds[kept].min() if kept.any() else np.inf
    return float(kept.mean()), float(fastest / choices.seconds.min())


def main() -> None:
    """Read the tables and print a line for each device and type of the operands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=0, help="sample of each table; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, nargs="*", default=(), help="bounds of filters")
    chosen = parser.parse_args()
    warnings.simplefilter("error", NotJudgedWarning)
    print("| device, operands | problems | configurations |" + "".join(f" keep={keep}: lost, saved |" for keep in KEEP))
    print("|---" * (3 + len(KEEP)) + "|")
    passed: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for name in (PLAIN, MIXED):
        found: dict[tuple[str, str], list[tuple[int, list[Saving]]]] = defaultdict(list)
        specs: dict[str, GpuSpec | None] = {}
        for row in read_choices(chosen.folder, name, sample=chosen.problems, seed=chosen.seed):
            if row.device not in specs:
                specs[row.device] = spec_named(row.device)
            spec = specs[row.device]
            if spec is not None and np.isfinite(row.seconds).sum() >= _FEWEST:
                found[row.device, row.label].append((len(row.tiles), savings(row, spec)))
                for within in chosen.within if name == PLAIN else ():
                    passed[within].append(filtered(row, spec, within))
        for (device, label), rows in sorted(found.items()):
            cells = []
            for at in range(len(KEEP)):
                lost = np.array([saving[at].lost - 1.0 for _, saving in rows])
                saved = np.median([saving[at].saved for _, saving in rows])
                cells.append(f"{np.median(lost):.1%} ({np.quantile(lost, 0.9):.0%}), {saved:.0%}")
            print(f"| {device} {label} | {len(rows)} | {np.median([n for n, _ in rows]):.0f} | {' | '.join(cells)} |")
    for within, pairs in passed.items():
        left, lost = np.array(pairs).T
        print(
            f"within {within:g} of the best: {left.mean():.0%} of the configurations stay, "
            f"{(lost <= 1.0).mean():.1%} of {len(lost)} problems lose nothing, "
            f"{(lost > 1.05).mean():.1%} more than 5 % ({np.isinf(lost).sum()} have none left)"
        )


if __name__ == "__main__":
    main()
