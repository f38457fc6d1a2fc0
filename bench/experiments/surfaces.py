"""Searches on analytical surfaces: a model plays the device, so the best of the whole space is known exactly.

A *surface* is the time that a model gives every point of its space; a *guide* is the model that the strategy sees.
Where both are one model, the strategies that look at it are right at once, which says nothing: there they search as
published, and know no times. Where the guide is another one (wrong numbers, another device), it errs as models do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.named import resolve
from anatune.report.text import columns
from anatune.search.base import STRATEGIES, Strategy
from anatune.search.points import Integers
from anatune.templates.base.model import Model, Rule
from bench.replay.metrics import quantile
from bench.replay.recorded_points import RecordedTable
from bench.replay.table import TableModel

__all__ = ["NEAR", "Contender", "RecordedSurface", "Search", "search", "summary", "wrong_numbers"]

NEAR = 1.05
"""Best over the optimum that counts as near it."""


@dataclass(frozen=True)
class Contender:
    """A strategy with its settings, under the name that tables give it."""

    name: str
    strategy: str
    start: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Settings that are not the strategy's own."""
    variant: type | None = None
    """Another class than the strategy's, where it has settings that the strategy lacks."""

    def made(self, guide: Model, seed: int, ranked: Integers | None = None) -> Strategy:
        """Return the strategy; settings are attributes of its class."""
        kind = self.variant or resolve(STRATEGIES[self.strategy])
        if self.options:
            kind = type(kind.__name__, (kind,), dict(self.options))
        strategy: Strategy = kind(guide, seed=seed, start=self.start, ranked=ranked)
        return strategy


@dataclass
class Search:
    """One search."""

    device: str
    benchmark: str
    surface: str
    contender: str
    seed: int
    best_s: float
    """The best of the space."""
    steps: list[tuple[int, float]] = field(default_factory=list)
    """(trial, best time so far over the best of the space) wherever it got better."""
    num_trials: int = 0
    """Fewer than were allowed: the strategy had nothing left to ask."""
    num_illegal: int = 0
    """Schedules that the guide holds for legal and the surface does not."""
    strategy_s: float = 0.0
    """CPU seconds of asking and telling."""

    def trials_to(self, share: float) -> float:
        """Return the first trial whose best time is at most `share` times the optimum, inf if none is."""
        return next((trial for trial, ratio in self.steps if ratio <= share + 1e-12), math.inf)

    def at(self, trials: int) -> float:
        """Return the best time over the optimum after so many trials, or all if there were fewer; inf: none ran."""
        return next((ratio for trial, ratio in reversed(self.steps) if trial <= trials), math.inf)


class RecordedSurface:
    """Recorded times as a surface; what failed breaks a rule."""

    rules = (Rule("recorded", "recorded as failed", 0.0),)

    def __init__(self, recorded: RecordedTable, table: TableModel) -> None:
        self._table, self._time_s = table, recorded.time_s

    def times(self, points: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return (recorded seconds, 1 where the trial failed)."""
        seconds = self._time_s[[self._table.space.row_of(point) for point in points]]
        return seconds, np.isnan(seconds).astype(np.int64)


def search(truth: Model | RecordedSurface, guide: Model, contender: Contender, trials: int, found: Search) -> Search:
    """Search `truth` with a strategy that sees `guide`, one trial at a time; fill in `found`, which says what for."""
    started = time.process_time()
    strategy = contender.made(guide, found.seed)
    best = math.inf
    while found.num_trials < trials:
        asked = strategy.ask(1)
        if not asked:
            break
        seconds, rules = truth.times(guide.space.point_of(asked[0])[None, :])
        found.num_trials += 1
        if rules[0]:
            found.num_illegal += 1
            measurement = Measurement(Outcome.INVALID, truth.rules[int(rules[0]) - 1].id)
        else:
            time_s = float(seconds[0])
            measurement = Measurement(Outcome.OK, times_s=(time_s,))
            if time_s < best:
                best = time_s
                found.steps.append((found.num_trials, best / found.best_s))
        strategy.tell([Trial(asked[0], measurement, number=found.num_trials - 1, source=contender.strategy)])
    found.strategy_s = time.process_time() - started
    return found


def summary(searches: Sequence[Search]) -> str:
    """Return a table: on each kind of surface, how near the optimum the searches of a contender end, and how soon."""
    groups: dict[tuple[str, str], list[Search]] = {}
    for found in searches:
        groups.setdefault((found.benchmark, found.contender), []).append(found)
    rows = [["surfaces", "contender", "searches", "best over optimum", f"trials to {NEAR:g}"]]
    for (kind, contender), own in groups.items():
        ends = quantile([found.at(found.num_trials) for found in own], 0.5)
        trials = quantile([found.trials_to(NEAR) for found in own], 0.5)
        rows.append([kind, contender, str(len(own)), f"{ends:.3f}", "never" if math.isinf(trials) else f"{trials:.0f}"])
    return "\n".join(columns(rows, left=(0, 1), width=120))


def wrong_numbers(spec: GpuSpec, seed: int, sigma: float) -> GpuSpec:
    """Return `spec` with every rate and latency off by a factor exp(sigma z) of its own, z standard normal.

    Capacities and limits stay, and with them what is legal.
    """
    factors = iter(np.exp(sigma * np.random.default_rng(seed).standard_normal(10)).tolist())
    clock = next(factors)
    compute = replace(
        spec.compute,
        clock_hz=spec.compute.clock_hz * clock,
        fp32_peak_flop_per_s=spec.compute.fp32_peak_flop_per_s * clock,
        issue_per_cycle_per_sm=spec.compute.issue_per_cycle_per_sm * next(factors),
        fma_latency_cycles=spec.compute.fma_latency_cycles * next(factors),
    )
    shared = replace(
        spec.shared_memory,
        bytes_per_cycle_per_sm=spec.shared_memory.bytes_per_cycle_per_sm * next(factors),
        latency_cycles=spec.shared_memory.latency_cycles * next(factors),
    )
    l2 = replace(
        spec.l2,
        bandwidth_bytes_per_s=spec.l2.bandwidth_bytes_per_s * next(factors),
        latency_cycles=spec.l2.latency_cycles * next(factors),
    )
    dram = replace(
        spec.dram,
        bandwidth_bytes_per_s=spec.dram.bandwidth_bytes_per_s * next(factors),
        latency_cycles=spec.dram.latency_cycles * next(factors),
    )
    launch = replace(spec.launch, overhead_s=spec.launch.overhead_s * next(factors))
    return replace(spec, compute=compute, shared_memory=shared, l2=l2, dram=dram, launch=launch)
