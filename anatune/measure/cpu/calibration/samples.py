"""Samples of many small kernels in turn, with two probes between any two, and the medians of undisturbed samples.

The machine's speed drifts and other programs disturb it. A sample is undisturbed (quiet) if the multiply-add probe and
the L2-fed tile ([CPU_ANCHORS] fact 1) were both near their best before and after it. Rates of the core are relative to
the multiply-add probe next to them, so that a change of the clock cancels. Every value is the median of its quiet
samples.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

FMA_SLACK = 1.03
"""Longest time of a quiet multiply-add probe over that of the best tenth."""
TILE_SLACK = 1.06
"""The same for the tile."""
LEAST_QUIET = 5
"""Fewest quiet samples of a value; below, it is doubtful and comes from the samples with the best probes."""


class ProbeTimes(NamedTuple):
    """Seconds of the two probes."""

    fma_s: float
    tile_s: float


class Quantity(NamedTuple):
    """A quantity to sample: `run` warms up, runs once more and returns the seconds of that run."""

    name: str
    run: Callable[[], float]


class _Sample(NamedTuple):
    seconds: float
    before: ProbeTimes
    after: ProbeTimes


class Samples:
    """Samples of quantities, by name."""

    def __init__(self) -> None:
        self._taken: dict[str, list[_Sample]] = {}
        self._known: tuple[ProbeTimes, float] | None = None

    def add(self, name: str, seconds: float, before: ProbeTimes, after: ProbeTimes) -> None:
        """Keep one sample and the probes before and after it."""
        self._known = None
        self._taken.setdefault(name, []).append(_Sample(seconds, before, after))

    @property
    def names(self) -> list[str]:
        """Names of the quantities with samples."""
        return list(self._taken)

    def _quiet_probes(self) -> tuple[ProbeTimes, float]:
        """Return the longest times of quiet probes, and the median of the quiet multiply-add probes."""
        if self._known is None:
            readings = [reading for taken in self._taken.values() for s in taken for reading in (s.before, s.after)]
            fma_times = [reading.fma_s for reading in readings]
            limits = ProbeTimes(
                FMA_SLACK * _low(fma_times), TILE_SLACK * _low([reading.tile_s for reading in readings])
            )
            self._known = limits, statistics.median(t for t in fma_times if t <= limits.fma_s)
        return self._known

    @property
    def _limits(self) -> ProbeTimes:
        return self._quiet_probes()[0]

    @property
    def fma_s(self) -> float:
        """Seconds of the multiply-add probe: the median of the quiet ones, which is the sustained rate."""
        return self._quiet_probes()[1]

    @property
    def quiet_share(self) -> float:
        """Share of all samples that are quiet."""
        limits = self._limits
        quiet = [_is_quiet(s, limits) for taken in self._taken.values() for s in taken]
        return sum(quiet) / max(1, len(quiet))

    def least_quiet(self) -> int:
        """Return the number of quiet samples of the quantity with the fewest."""
        limits = self._limits
        return min((sum(_is_quiet(s, limits) for s in taken) for taken in self._taken.values()), default=0)

    def is_doubtful(self, name: str) -> bool:
        """Return whether a quantity has too few quiet samples."""
        limits = self._limits
        return sum(_is_quiet(sample, limits) for sample in self._taken.get(name, [])) < LEAST_QUIET

    def seconds(self, name: str) -> float:
        """Return the median time of the quiet samples."""
        return statistics.median(sample.seconds for sample in self._select_samples(name))

    def best_seconds(self, name: str) -> float:
        """Return the median of the best third of all times, for quantities of all cores."""
        times = sorted(sample.seconds for sample in self._taken[name])
        return statistics.median(times[: max(1, -(-len(times) // 3))])

    def steady_seconds(self, name: str) -> float:
        """Return the time at the sustained clock: the median of quiet samples relative to the probes next to them."""
        return self.fma_s * statistics.median(
            2.0 * sample.seconds / (sample.before.fma_s + sample.after.fma_s) for sample in self._select_samples(name)
        )

    def _select_samples(self, name: str) -> list[_Sample]:
        """Return the quiet samples, or those with the best probes if there are too few."""
        limits, taken = self._limits, self._taken[name]
        quiet = [sample for sample in taken if _is_quiet(sample, limits)]
        if len(quiet) >= min(LEAST_QUIET, len(taken)):
            return quiet
        return sorted(taken, key=_disturbance)[:LEAST_QUIET]


def sample_quantities(
    quantities: Sequence[Quantity],
    probes: Callable[[], ProbeTimes],
    samples: Samples,
    *,
    budget_s: float,
    enough: int,
    least_rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Sample all quantities in turn until each has `enough` quiet samples or the budget ends.

    At least `least_rounds` rounds are completed in any case. Each round starts with the next quantity.

    Parameters
    ----------
    progress
        Called with the share that is done.
    """
    started = clock()
    number = 0
    while quantities:
        shift = number % len(quantities)
        before = probes()
        for quantity in (*quantities[shift:], *quantities[:shift]):
            seconds = quantity.run()
            after = probes()
            samples.add(quantity.name, seconds, before, after)
            before = after
        number += 1
        spent = clock() - started
        quiet = samples.least_quiet() if number >= min(enough, least_rounds) else 0
        if progress is not None:
            progress(min(1.0, max(quiet / enough, spent / max(budget_s, 1e-9))))
        if number >= least_rounds and (quiet >= enough or spent >= budget_s):
            return


def snap(value: float, entries: Sequence[float], tolerance: float = 0.1) -> float | None:
    """Return the entry within `tolerance` of `value`; None if there is none."""
    best = min(entries, key=lambda entry: abs(math.log(value / entry)))
    return best if abs(value / best - 1.0) <= tolerance else None


def _low(times: Sequence[float]) -> float:
    """Return the lowest tenth of the times."""
    ordered = sorted(times)
    return ordered[len(ordered) // 10]


def _is_quiet(sample: _Sample, limits: ProbeTimes) -> bool:
    return all(r.fma_s <= limits.fma_s and r.tile_s <= limits.tile_s for r in (sample.before, sample.after))


def _disturbance(sample: _Sample) -> float:
    return sum(r.fma_s * r.tile_s for r in (sample.before, sample.after))
