"""Pruned spaces of recorded tables: how near the best configuration kept is to the recorded best.

    python -m bench.replay.pruning FOLDER [--json FILE] [--model plain --model corrected --model lowo --model lodo]
                                 [--kernel-tuner] [--seeds 20]

What is kept, and what each number means: docs/bench/replay.pruning.md. Needs no device.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from anatune.adapters.kernel_tuner.names import CLBLAST, tile_points
from anatune.errors import AnatuneError
from anatune.model.pruning.diversity import MOST_DIVERSE, beginning_rows, choose_diverse, error_quantities
from bench.replay.corrections import MODELS, corrected_times
from bench.replay.metrics import quantile
from bench.replay.ranking import SAMPLES
from bench.replay.recorded import model_of, table_files
from bench.replay.recorded_gpu import Group, load_groups
from bench.replay.scores import Space
from bench.results import environment, matches, progress_bar, wide_console, write_json

__all__ = ["KEEP_SHARES", "Kept", "copied", "kept_rows", "loss"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

KEEP_SHARES = (0.01, 0.05)
AIMS = {0.01: (1.03, 1.10), 0.05: (1.01, 1.04)}
"""Share kept -> best kept over recorded best: median, 90th percentile over workloads."""
RANDOM_DRAWS = 100
TABLE_WIDTH = 175
MIN_ROWS = 10
"""Fewest successful rows of a workload that takes part."""


@dataclass(frozen=True)
class Kept:
    """One way of pruning one workload on one device in one table."""

    table: str
    kind: str
    device: str
    workload_id: str
    method: str
    """A model, "random", "copied"; with " (space)": the share is one of the whole tile space."""
    num_rows: int
    loss: dict[float, float]
    """Share -> best kept over recorded best; inf: everything kept had failed. NaN: cannot be said."""
    share_kept: dict[float, float]
    """Share -> share of the recorded rows that is kept."""


def kept_rows(share: float, num_rows: int) -> int:
    """Return how many recorded configurations of a workload are kept: rounded up, failed ones count."""
    return max(1, math.ceil(share * num_rows - 1e-9))


def loss(time_s: Floats, rows: Integers | NDArray[np.bool_]) -> float:
    """Return the best time of some rows over the best of all; inf where all of them had failed, or there are none."""
    times = time_s[rows]
    good = times[np.isfinite(times)]
    return float(good.min() / np.nanmin(time_s)) if len(good) else math.inf


def _predicted_order(predicted_s: Floats, rule: Integers) -> Integers:
    """Return the rows in predicted order, illegal ones last; equal ones in the order of the file."""
    return np.lexsort((np.arange(len(rule)), predicted_s, rule != 0))


def by_order(group: Group, method: str, order: Integers) -> Kept:
    """Keep the first rows of an order."""
    total = len(group.time_s)
    counts = {share: kept_rows(share, total) for share in KEEP_SHARES}
    losses = {share: loss(group.time_s, order[:count]) for share, count in counts.items()}
    return _kept(group, method, losses, {share: count / total for share, count in counts.items()})


def diverse(
    group: Group, method: str, order: Integers, predicted_s: Floats, rule: Integers, quantities: Floats
) -> Kept:
    """Keep rows that `anatune.prune` chooses where few are kept, else the first ones."""
    total = len(group.time_s)
    counts = {share: kept_rows(share, total) for share in KEEP_SHARES}
    legal = order[: int((rule == 0).sum())]
    losses = {}
    for share, count in counts.items():
        rows = order[:count]
        if count <= min(MOST_DIVERSE, len(legal)):
            pool = legal[beginning_rows(predicted_s[legal], count)]
            rows = pool[choose_diverse(predicted_s[pool], quantities[pool], count)]
        losses[share] = loss(group.time_s, rows)
    return _kept(group, f"{method} diverse", losses, {share: count / total for share, count in counts.items()})


def at_random(group: Group, seed: int) -> Kept:
    """Keep as many rows, drawn uniformly: the median loss of many draws."""
    rng = np.random.default_rng(seed)
    total = len(group.time_s)
    draws = [rng.permutation(total) for _ in range(RANDOM_DRAWS)]
    counts = {share: kept_rows(share, total) for share in KEEP_SHARES}
    losses = {
        share: quantile([loss(group.time_s, draw[:count]) for draw in draws], 0.5) for share, count in counts.items()
    }
    return _kept(group, "random", losses, {share: count / total for share, count in counts.items()})


def of_space(group: Group, predicted_s: Floats, rule: Integers, sample: Floats) -> Kept:
    """Keep the rows that are among the best share of the whole tile space, of which `sample` is drawn uniformly."""
    losses, shares = {}, {}
    for share in KEEP_SHARES:
        rows = (rule == 0) & (predicted_s <= np.quantile(sample, share))
        losses[share], shares[share] = loss(group.time_s, rows), float(rows.mean())
    return _kept(group, "plain (space)", losses, shares)


def _rows_by_key(group: Group) -> dict[bytes, int]:
    keys = np.column_stack([group.points, *group.others.values()])
    return {np.ascontiguousarray(key).tobytes(): row for row, key in enumerate(keys)}


def copied(group: Group, others: Sequence[Group]) -> dict[str, Kept]:
    """Keep what was best on other devices, of the configurations that were recorded on both: the best, and the first n.

    Median over the other devices; empty where none has a configuration in common.
    """
    here = _rows_by_key(group)
    total = len(group.time_s)
    lists = []
    for other in others:
        there = _rows_by_key(other)
        common = [(other.time_s[row], here[key]) for key, row in there.items() if key in here]
        ranked = [row for time_s, row in sorted(common, key=lambda one: one[0]) if math.isfinite(time_s)]
        if ranked:
            lists.append(np.array(ranked))
    if not lists:
        return {}
    found = {}
    counts = {share: kept_rows(share, total) for share in KEEP_SHARES}
    for method, most in (("copied best", dict.fromkeys(KEEP_SHARES, 1)), ("copied first n", counts)):
        losses = {s: quantile([loss(group.time_s, rows[:count]) for rows in lists], 0.5) for s, count in most.items()}
        found[method] = _kept(group, method, losses, {share: count / total for share, count in most.items()})
    return found


def _kept(group: Group, method: str, losses: dict[float, float], shares: dict[float, float]) -> Kept:
    return Kept(
        group.table, group.kind, group.device, group.workload_id, method, len(group.time_s), losses, shares
    )  # fmt: skip


def score(
    groups: Sequence[Group],
    everything: Sequence[Group],
    models: Sequence[str],
    samples: int,
    seed: int,
    step: Callable[[], None],
) -> list[Kept]:
    """Return every way of pruning of `groups`; copies and corrections come from `everything`."""
    space = Space(samples, seed)
    plain: dict[int, tuple[Floats, Integers]] = {}
    quantities: dict[int, Floats] = {}
    found: list[Kept] = []
    for group in groups:
        model = model_of(group.workload, group.hardware)
        evaluation = model.evaluate(group.points)
        time_s, rule = plain[id(group)] = evaluation.time_s, evaluation.rule
        quantities[id(group)] = error_quantities(model, group.points)
        if "plain" in models:
            order = _predicted_order(time_s, rule)
            found.append(by_order(group, "plain", order))
            found.append(diverse(group, "plain", order, time_s, rule, quantities[id(group)]))
        if samples and group.kind != "clblast":
            found.append(of_space(group, time_s, rule, space.times(group.workload, group.hardware)))
        if group.kind == "clblast":
            weight = tile_points(CLBLAST, group.workload, list(group.knobs), np.column_stack([*group.knobs.values()]))[
                2
            ]
            found.append(by_order(group, "adapter", _predicted_order(time_s * weight, rule)))
        found.append(at_random(group, seed))
        others = [o for o in everything if (o.kind, o.workload_id) == (group.kind, group.workload_id)]
        found += copied(group, [o for o in others if o.device != group.device]).values()
        step()
    for name in models:
        if name == "plain":
            continue
        for group, times in zip(everything, corrected_times(everything, name, lambda: None), strict=True):
            if id(group) in plain:
                time_s, rule = plain[id(group)]
                used = time_s if times is None else times
                order = _predicted_order(used, rule)
                found.append(by_order(group, name, order))
                found.append(diverse(group, name, order, used, rule, quantities[id(group)]))
    return found


def result_table(kept: Sequence[Kept], num_rows: int) -> Table:
    """Return one row a table, device and method, then all tables of a kind together."""
    table = Table(title="Best configuration kept, over the recorded best", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("table", "device", "loads", "method"):
        table.add_column(name, no_wrap=True)
    for share in KEEP_SHARES:
        for name in (f"{share:.0%}: median", "90 %", "of rows"):
            table.add_column(name, justify="right", no_wrap=True)
    places = list(dict.fromkeys((one.table, one.device) for one in kept))
    families = (("all GEMM tables", ("clblast",)), ("all TVM tables", ("ansor", "autotvm")))
    parts = [(place, [one for one in kept if (one.table, one.device) == place]) for place in places]
    parts += [((name, ""), [one for one in kept if one.kind in kinds]) for name, kinds in families]
    for (where, device), part in parts:
        for method in dict.fromkeys(one.method for one in part):
            own = [one for one in part if one.method == method]
            cells = []
            for share in KEEP_SHARES:
                values = [one.loss[share] for one in own]
                for q, aim in zip((0.5, 0.9), AIMS[share], strict=True):
                    value = quantile(values, q)
                    colour = "green" if value <= aim else "red"
                    cells.append(f"[{colour}]{value:.3f}[/{colour}]")
                cells.append(f"{quantile([one.share_kept[share] for one in own], 0.5):.1%}")
            table.add_row(where, device, str(len(own)), method, *cells)
        table.add_section()
    table.caption = (
        f"{num_rows} rows. Aims (green): "
        + "; ".join(f"{share:.0%} kept: {median} and {high}" for share, (median, high) in AIMS.items())
        + ".\n(space): the share is one of the whole tile space; elsewhere of the workload's recorded rows."
    )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of recorded tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, per workload too")
    parser.add_argument("--model", action="append", choices=MODELS, help="may be repeated (default: plain)")
    parser.add_argument("--device", nargs="+", metavar="D", help="only these devices (patterns)")
    parser.add_argument("--table", nargs="+", metavar="T", help="only these tables (patterns or beginnings)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="legal points drawn a space; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernel-tuner", action="store_true", help="also Kernel Tuner's simulation mode")
    parser.add_argument("--only-kernel-tuner", action="store_true", help="nothing else")
    parser.add_argument("--keep", type=float, default=0.01, help="share that Kernel Tuner searches")
    parser.add_argument("--seeds", type=int, default=20, help="of each of its strategies")
    parser.add_argument("--fevals", type=int, default=200, help="evaluations of its unpruned runs")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir() or not table_files(options.folder):
        raise SystemExit(
            f"bench.replay.pruning: {options.folder} holds no tables; give the folder of the recorded ones"
        )
    started = time.perf_counter()
    notes: list[str] = []
    everything = [
        group
        for group in load_groups(options.folder, notes, whole=True)
        if group.kind != "tophub" and np.isfinite(group.time_s).sum() >= MIN_ROWS
    ]
    groups = [g for g in everything if matches(g.device, options.device) and matches(g.table, options.table)]
    if not groups:
        raise SystemExit(f"bench.replay.pruning: no such recorded search in {options.folder}")
    models = list(dict.fromkeys(options.model or ["plain"]))
    console = wide_console(TABLE_WIDTH)
    kept, runs = [], []
    with progress_bar() as progress:
        task = progress.add_task("prune", total=len(groups))
        try:
            if not options.only_kernel_tuner:
                kept = score(groups, everything, models, options.samples, options.seed, lambda: progress.advance(task))
            if options.kernel_tuner or options.only_kernel_tuner:
                from bench.replay.kernel_tuner import STRATEGIES, simulate, simulation_table

                exhaustive = [group for group in groups if group.kind == "clblast"]
                task = progress.add_task("Kernel Tuner", total=len(exhaustive) * options.seeds * len(STRATEGIES))
                for group in exhaustive:
                    runs += simulate(group, options.keep, options.seeds, options.fevals, lambda: progress.advance(task))
        except AnatuneError as error:
            raise SystemExit(f"bench.replay.pruning: {error}") from None
    if kept:
        console.print(result_table(kept, sum(len(group.time_s) for group in groups)))
    if runs:
        console.print(simulation_table(runs, options.keep))
    for note in notes:
        console.print(f"left out: {note}", markup=False, highlight=False, soft_wrap=True)
    seconds = time.perf_counter() - started
    console.print(f"{len(groups)} workloads, {seconds:.0f} s")
    if options.json:
        used = {"seed": options.seed, "samples": options.samples, "keep": options.keep, "fevals": options.fevals}
        write_json(
            options.json,
            {"environment": environment(**used, seconds=seconds), "kept": kept, "simulations": runs, "left_out": notes},
        )


if __name__ == "__main__":
    sys.exit(main())
