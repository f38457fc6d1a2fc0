"""Kernel Tuner in simulation mode on recorded GEMM tables: whole spaces against pruned ones, its own strategies."""

from __future__ import annotations

import math
import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from anatune.adapters.kernel_tuner import Within, clblast_gemm, import_kernel_tuner, prune
from anatune.adapters.kernel_tuner_files import write_cache
from anatune.core.trial import Measurement, Outcome
from bench.replay.metrics import quantile
from bench.replay.recorded_gpu import Group

__all__ = ["STRATEGIES", "Simulation", "simulate", "simulation_table"]

STRATEGIES = ("random_sample", "genetic_algorithm", "greedy_ils")
SPACES = ("pruned", "pruned, best first")
"""Restricted; restricted, and the strategy starts from the best predicted."""
AIM = 0.1
"""Evaluations over those of the unpruned run."""
NEAR = 1.01
"""Times that count as the same quality in a second column: repeated measurements differ by as much."""
_LIMIT_S = 20.0
"""Of one search."""


@dataclass(frozen=True)
class Simulation:
    """One seed of one strategy on one table."""

    device: str
    workload_id: str
    source: str
    num_configs: int
    num_kept: int
    strategy: str
    seed: int
    fevals: int
    final: float
    """What the unpruned run has reached after `fevals` different configurations, over the recorded best."""
    needed: dict[str, float]
    """Space of `SPACES` -> different configurations until that is reached; inf: never."""
    reached: dict[str, float]
    """Space -> best of its first `AIM` x `fevals` different configurations, over the recorded best."""


def simulate(group: Group, keep: float, seeds: int, fevals: int, progress: Callable[[], None]) -> list[Simulation]:
    """Run every strategy with every seed on one table.

    Parameters
    ----------
    keep
        Share of the recorded configurations that is kept.
    fevals
        Different configurations of an unpruned run; pruned ones get half as many.
    """
    kernel_tuner = import_kernel_tuner()
    names = list(group.knobs)
    rows = np.column_stack([group.knobs[name] for name in names]).tolist()
    best_s = float(np.nanmin(group.time_s))
    tune_params = {name: sorted(set(group.knobs[name].tolist())) for name in names}
    known = {tuple(row) for row in rows}
    n, m, k = (group.workload.extents[axis] for axis in ("i", "j", "k"))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.json"
        measured = [_measurement(time_s) for time_s in group.time_s.tolist()]
        entries = [(dict(zip(names, row, strict=True)), one) for row, one in zip(rows, measured, strict=True)]
        write_cache(path, entries, kernel_name="Xgemm", problem_size=(m, n), device_name=group.device)
        constraint = import_kernel_tuner(".util").infer_restrictions_from_cache(
            {"tune_params_keys": names, "cache": {at: entry for at, (entry, _) in enumerate(entries)}}
        )
        space = prune(clblast_gemm(m, n, k), group.device, tune_params, keep=keep, restrictions=[constraint])

        def curve(strategy: Any, seed: int, most: int, restrictions: Any) -> list[float]:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002 (Kernel Tuner draws from it)
            options = {"max_fevals": most, "time_limit": _LIMIT_S}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # no parameter is called block_size_x
                results, _ = kernel_tuner.tune_cache(
                    str(path), restrictions=restrictions, strategy=strategy, strategy_options=options, quiet=True
                )
            return _best_so_far(results, names, best_s)[:most]

        assert all(tuple(config.values()) in known for config in space.configs)
        for strategy in STRATEGIES:
            for seed in range(seeds):
                final = curve(strategy, seed, fevals, None)[-1]
                needed, reached = {}, {}
                for where in SPACES:
                    one = Within(space, strategy, best_first=where != "pruned")
                    values = curve(one, seed, min(fevals // 2, len(space)), [space.keeps])
                    needed[where] = next((float(at) for at, v in enumerate(values, 1) if v <= final + 1e-9), math.inf)
                    reached[where] = values[min(len(values), max(1, round(AIM * fevals))) - 1]
                found.append(
                    Simulation(
                        group.device, group.workload_id, group.table, len(rows), len(space), strategy, seed, fevals,
                        final, needed, reached,
                    )
                )  # fmt: skip
                progress()
    return found


def _measurement(time_s: float) -> Measurement:
    return Measurement(Outcome.OK, times_s=(time_s,)) if math.isfinite(time_s) else Measurement(Outcome.RUN_ERROR)


def _best_so_far(results: Sequence[dict[str, Any]], names: Sequence[str], best_s: float) -> list[float]:
    """Return the best time over the recorded best after each configuration that had not been seen before."""
    seen: set[tuple[Any, ...]] = set()
    best, found = math.inf, []
    for result in results:
        key = tuple(result[name] for name in names)
        if key not in seen:
            seen.add(key)
            best = min(best, result["time"] / 1e3 / best_s) if "__error__" not in result else best
            found.append(best)
    return found


def simulation_table(runs: Sequence[Simulation], keep: float) -> Table:
    """Return one row a table and strategy: what the unpruned runs reach, and how soon the pruned ones do."""
    table = Table(title=f"Kernel Tuner in simulation mode, {keep:.0%} of the configurations kept", box=SIMPLE_HEAD)
    for name in ("table", "device", "kept", "strategy", "unpruned\nreaches", "after"):
        table.add_column(name, no_wrap=True)
    for space in SPACES:
        table.add_column(f"{space}:\nevaluations", justify="right", no_wrap=True)
        table.add_column(f"within\n{AIM:.0%}", justify="right")
        table.add_column(f"to {NEAR - 1:.0%}", justify="right")
        table.add_column("reaches\nthere", justify="right")
    places = list(dict.fromkeys((run.source, run.device) for run in runs))
    for place in (*places, ("all", "")):
        for strategy in STRATEGIES:
            own = [r for r in runs if r.strategy == strategy and place in ((r.source, r.device), ("all", ""))]
            cells: list[str] = []
            for space in SPACES:
                needed = [run.needed[space] for run in own]
                shares = [value <= AIM * run.fevals for value, run in zip(needed, own, strict=True)]
                low, middle, high = (quantile(needed, q) for q in (0.25, 0.5, 0.75))
                cells += [f"{middle:.0f} ({low:.0f}-{high:.0f})", f"{np.mean(shares):.0%}"]
                near = [run.reached[space] <= NEAR * run.final for run in own]
                cells += [f"{np.mean(near):.0%}", f"{quantile([run.reached[space] for run in own], 0.5):.3f}"]
            kept = str(own[0].num_kept) if place != ("all", "") else ""
            final = quantile([run.final for run in own], 0.5)
            table.add_row(*place, kept, strategy, f"{final:.3f}", str(own[0].fevals), *cells)
    table.caption = (
        "times over the recorded best, medians over seeds; evaluations until the unpruned run's final time is reached: "
        f"median (quartiles);\nwithin {AIM:.0%}: seeds that reach it in {AIM:.0%} of the unpruned run's evaluations"
    )
    return table
