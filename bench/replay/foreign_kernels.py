"""Lists of kernels that the model does not describe, beside a random choice of as many: how near the best kept is.

    python -m bench.replay.foreign_kernels [FOLDER] [--seeds 10] [--keep 0.01 0.05] [--json FILE]

Simulated tables (`simulated_kernels.py`) need nothing. With FOLDER, the recorded GEMM tables are somebody's kernel,
too: read with the wrong names, device or workload, and in the worst order there is. random: the exact expectation of
the best of so many. order: the first ones of the predicted order. kept: what `anatune.adapters.kernel_tuner.prune`
keeps (`choose_portfolio`). Numbers are geometric means over tables (and draws) of the best kept over the best of all.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import gammaln

import anatune
from anatune.adapters.kernel_tuner.fit import AUTO_SPREAD, Fit
from anatune.adapters.kernel_tuner.names import CLBLAST, Names
from anatune.adapters.kernel_tuner.scores import Scorer
from anatune.core.workload.nest import Workload
from anatune.model.pruning.portfolio import choose_portfolio, value_positions
from bench.replay.pruning import loss
from bench.replay.recorded_gpu import Group, load_groups
from bench.replay.simulated_kernels import DEVICES, simulate_table
from bench.results import environment, write_json

__all__ = ["Case", "cases", "expected_best"]

Floats = NDArray[np.float64]

_IMAGE: Names = {
    "threads_n": 1, "work_n": 1, "threads_f": 1, "work_f": 1, "block_rc": 1, "threads_x": "block_size_x",
    "work_x": "tile_size_x", "inner_x": 1, "threads_y": "block_size_y", "work_y": "tile_size_y", "inner_y": 1,
}  # fmt: skip
_SIMULATED: dict[str, tuple[Workload, Names]] = {
    "convolution": (
        anatune.conv2d(1, 1, 4110, 4110, 1, 15, 15),
        {**_IMAGE, "block_ry": 15, "block_rx": 15, "staged_data": "use_shmem"},
    ),
    "stencil": (anatune.conv2d(1, 1, 4098, 4098, 1, 3, 3), {**_IMAGE, "block_ry": 3, "block_rx": 3}),
}
_TILES: Names = {"block_i": "NWG", "threads_i": "NDIMC", "block_j": "MWG", "threads_j": "MDIMC", "block_k": "KWG"}
_OTHER_AXES: Names = {"block_j": "NWG", "threads_j": "NDIMC", "block_i": "MWG", "threads_i": "MDIMC", "block_k": "KWG"}
_OTHER_DEVICE = {"k20": "rtx3090", "mi50": "1080ti"}


@dataclass(frozen=True)
class Case:
    """One table as the adapter sees it: what is predicted of every configuration, and what was measured."""

    kind: str
    time_s: Floats
    predicted_s: Floats
    """Inf: nothing is predicted."""
    places: Floats
    spread: float


def expected_best(time_s: Floats, count: int) -> float:
    """Return the mean of the best of `count` random ones over the best of all; failed ones (NaN) are never the best."""
    good = np.sort(time_s[np.isfinite(time_s)])
    total, at = len(time_s), np.arange(len(good))
    left = total - at
    with np.errstate(invalid="ignore"):
        logs = gammaln(left + 1) - gammaln(left - count + 1) - gammaln(total + 1) + gammaln(total - count + 1)
    none_before = np.append(np.where(left >= count, np.exp(logs), 0.0), 0.0)
    chances = none_before[:-1] - none_before[1:]
    return float((chances * good).sum() / chances.sum() / good[0])


def cases(folder: Path | None) -> Iterator[Case]:
    """Yield all cases."""
    for kernel, (workload, names) in _SIMULATED.items():
        for device in DEVICES:
            for seed in range(2):
                table = simulate_table(kernel, device, seed)
                yield _case(kernel, table.time_s, workload, device.name, names, table.parameters, table.configs)
    if folder is None:
        return
    for group in load_groups(folder, whole=True):
        if group.kind == "clblast":
            yield from _recorded(group)


def _case(
    kind: str,
    time_s: Floats,
    workload: Workload,
    device: str,
    names: Names,
    parameters: Sequence[str],
    configs: list[tuple[int, ...]],
) -> Case:
    scores = Scorer(workload, anatune.hardware(device), names, parameters).score(configs)
    spread = Fit(names, parameters, configs, scores, AUTO_SPREAD).spread
    predicted_s = np.where(scores.judged, scores.time_s, np.inf)
    places = np.column_stack([value_positions(list(column)) for column in zip(*configs, strict=True)])
    return Case(kind, time_s, predicted_s, places, spread or 0.25)  # as if CLBlast's names were nobody's


def _recorded(group: Group) -> Iterator[Case]:
    parameters = tuple(group.knobs)
    configs = [tuple(row) for row in np.column_stack([*group.knobs.values()]).tolist()]
    other = _OTHER_DEVICE.get(group.device, "k20")
    tiny = anatune.matmul(256, 256, 64, transpose_a=True)
    for kind, workload, device, names in (
        ("GEMM, all roles", group.workload, group.device, CLBLAST),
        ("GEMM, tiles only", group.workload, group.device, _TILES),
        ("GEMM, other axes", group.workload, group.device, _OTHER_AXES),
        ("GEMM, other device", group.workload, other, CLBLAST),
        ("GEMM, other workload", tiny, group.device, _TILES),
    ):
        case = _case(kind, group.time_s, workload, device, names, parameters, configs)
        yield case
        if kind == "GEMM, tiles only":
            worst_s = np.nan_to_num(1.0 / group.time_s, nan=np.inf)
            yield Case("GEMM, the worst order", case.time_s, worst_s, case.places, case.spread)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="folder of recorded tables (default: simulated ones only)")
    parser.add_argument("--seeds", type=int, default=10, help="draws of each list")
    parser.add_argument("--keep", type=float, nargs="+", default=[0.01, 0.05])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    found: dict[tuple[str, float], list[tuple[float, float, list[float]]]] = defaultdict(list)
    spreads = defaultdict(list)
    for case in cases(options.folder):
        spreads[case.kind].append(case.spread)
        order = np.argsort(case.predicted_s, kind="stable")
        for keep in options.keep:
            count = math.ceil(keep * len(order) - 1e-9)
            lists = [
                choose_portfolio(case.predicted_s, case.places, count, case.spread, seed)
                for seed in range(options.seeds)
            ]
            found[case.kind, keep].append(
                (
                    expected_best(case.time_s, count),
                    loss(case.time_s, order[:count]),
                    [loss(case.time_s, rows) for rows in lists],
                )
            )
    table = Table(title="Best kept over the best, beside a random choice of as many")
    for name in (
        "kernel",
        "tables",
        "spread",
        "keep",
        "random",
        "order",
        "worst over random",
        "kept",
        "worst mean over random",
    ):
        table.add_column(name, justify="left" if name == "kernel" else "right")
    for (kind, keep), rows in found.items():
        random, first = (np.array([row[at] for row in rows]) for at in (0, 1))
        kept = np.array([row[2] for row in rows])
        means = np.exp(np.log(kept).mean(axis=1))
        cells = [f"{np.exp(np.log(one).mean()):.3f}" for one in (random, first, kept)]
        table.add_row(
            kind, str(len(rows)), f"{np.mean(spreads[kind]):.2f}", f"{keep:.0%}", cells[0], cells[1],
            f"{(first / random).max():.3f}", cells[2], f"{(means / random).max():.3f}",
        )  # fmt: skip
    Console(width=150).print(table)
    if options.json:
        rows_of = [{"kind": kind, "keep": keep, "rows": rows} for (kind, keep), rows in found.items()]
        write_json(options.json, {"environment": environment(seeds=options.seeds), "rows": rows_of})


if __name__ == "__main__":
    main()
