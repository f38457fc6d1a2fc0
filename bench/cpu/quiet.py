"""Samples in strictly alternating order with probes on both sides of each, and what may be said from them.

A shared machine's speed drifts by a factor of two between minutes. So methods take turns, in a rotating order; between
any two samples both probes run; a sample counts if both probes were high before and after it ("quiet"); ratios are
taken within a round, then their median.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.cpu.probes import Reading

__all__ = [
    "Method",
    "Ratio",
    "Sample",
    "Thresholds",
    "geometric_mean",
    "interleave",
    "loop",
    "paired_ratio",
    "percentile",
    "quiet_or_all",
    "share_of_peak",
    "spread",
]

QUIET_SHARE = 0.93
"""A probe is high from this share of its own 95th percentile on."""

RUNNING_SHARE = 0.95
"""Below this share of CPU time in a sample's wall time others had the core: probes of 1 ms may both miss that."""

WAIT_S = 0.1
"""Pause of one step of waiting for a quiet machine."""

Method = Callable[[], float]
"""Take one sample: seconds of one run of the kernel (the median over as many runs as the sample's length holds)."""


@dataclass(frozen=True)
class Sample:
    """Seconds of one run in one round, the probes before and after, the share of the time that this thread ran."""

    round: int
    time_s: float
    before: Reading
    after: Reading
    running: float = 1.0

    @property
    def fma(self) -> float:
        """FLOP/s of the FMA probe around the sample."""
        return (self.before.fma + self.after.fma) / 2


@dataclass(frozen=True)
class Thresholds:
    """From which readings on both probes count as high, FLOP/s."""

    fma: float
    gemm: float

    @staticmethod
    def of(samples: Iterable[Sample], quiet_share: float = QUIET_SHARE) -> Thresholds:
        """Return `quiet_share` of the 95th percentile of each probe over `samples`."""
        readings = [reading for sample in samples for reading in (sample.before, sample.after)]
        if not readings:
            return Thresholds(0.0, 0.0)
        return Thresholds(
            quiet_share * percentile([r.fma for r in readings], 0.95),
            quiet_share * percentile([r.gemm for r in readings], 0.95),
        )

    def high(self, reading: Reading) -> bool:
        """Whether both probes are high."""
        return reading.fma >= self.fma and reading.gemm >= self.gemm

    def quiet(self, sample: Sample) -> bool:
        """Whether both probes were high on both sides, and no other process had the core in between."""
        return self.high(sample.before) and self.high(sample.after) and sample.running >= RUNNING_SHARE


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of `values` lie, between neighbours linearly; nan of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean; nan of none, nan and anything not positive are left out."""
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def quiet_or_all(samples: Sequence[Sample], thresholds: Thresholds, fewest: int = 3) -> tuple[list[Sample], bool]:
    """Return the quiet samples and True; all of them and False where fewer than `least_size` are quiet."""
    quiet = [sample for sample in samples if thresholds.quiet(sample)]
    return (quiet, True) if len(quiet) >= fewest else (list(samples), False)


def share_of_peak(samples: Sequence[Sample], flop: int) -> float:
    """Return the median rate over the FMA probe's beside each sample; nan of none."""
    if not samples:
        return math.nan
    return statistics.median(flop / sample.time_s / sample.fma for sample in samples)


def spread(samples: Sequence[Sample]) -> float:
    """Return half the range of the middle half of the times over their median; nan of none."""
    times = [sample.time_s for sample in samples]
    if not times:
        return math.nan
    return (percentile(times, 0.75) - percentile(times, 0.25)) / 2 / statistics.median(times)


@dataclass(frozen=True)
class Ratio:
    """Speed of one method over another's: median over the rounds where both were quiet, its middle half, the rounds.

    `quiet` is False where there were too few such rounds and all of them count.
    """

    value: float
    low: float
    high: float
    rounds: int
    quiet: bool


def paired_ratio(
    ours: Sequence[Sample], theirs: Sequence[Sample], thresholds: Thresholds, fewest: int = 3
) -> Ratio | None:
    """Return how many times as fast as `theirs` `ours` is (above 1: faster); None without a common round.

    Round by round: between rounds the machine's speed may have changed.
    """
    other = {sample.round: sample for sample in theirs}
    pairs = [(sample, other[sample.round]) for sample in ours if sample.round in other]
    if not pairs:
        return None
    chosen = [(a, b) for a, b in pairs if thresholds.quiet(a) and thresholds.quiet(b)]
    quiet = len(chosen) >= fewest
    ratios = [b.time_s / a.time_s for a, b in (chosen if quiet else pairs)]
    return Ratio(statistics.median(ratios), percentile(ratios, 0.25), percentile(ratios, 0.75), len(ratios), quiet)


def loop(call: Callable[[], object], sample_s: float = 0.012) -> Method:
    """Return a method that times enough calls in a row for `sample_s` seconds, after one that is not timed.

    Each call has its own time, and the median counts, as it does for the libraries' own clocks: a call in which another
    process had the core does not spoil the sample. Reading the clock costs 0.1 us.
    """
    call()
    call()
    started = time.perf_counter()
    call()
    number = max(1, round(sample_s / max(time.perf_counter() - started, 1e-9)))

    def sample() -> float:
        call()
        times = []
        start = time.perf_counter()
        for _ in range(number):
            call()
            end = time.perf_counter()
            times.append(end - start)
            start = end
        return statistics.median(times)

    return sample


def interleave(
    methods: Mapping[str, Method],
    probes: Callable[[], Reading],
    rounds: int,
    *,
    most_rounds: int | None = None,
    known: Sequence[Sample] = (),
    patience_s: float = 0.0,
    label: str = "",
) -> dict[str, list[Sample]]:
    """Let `methods` take turns, probes between any two samples, until each has `rounds` quiet samples.

    Parameters
    ----------
    methods : mapping of str to Method
        What takes turns; each round starts with the next one.
    probes : callable
        Returns a `SizedReading`.
    rounds : int
        Quiet samples wanted of each.
    most_rounds : int, optional
        Rounds at most, quiet or not; three times `rounds` if it is not given.
    known : sequence of Sample
        Samples of earlier layers: they say what is quiet on this machine.
    patience_s : float
        Seconds to wait in all, between rounds, for the probes to be high.
    label : str
        Shown on standard error while it runs.
    """
    order = list(methods)
    samples: dict[str, list[Sample]] = {name: [] for name in methods}
    for number in range(3 * rounds if most_rounds is None else most_rounds):
        before = probes()
        taken_so_far = [sample for taken in samples.values() for sample in taken]
        thresholds = Thresholds.of([*known, *taken_so_far])
        while patience_s > 0 and not thresholds.high(before):
            time.sleep(WAIT_S)
            patience_s -= WAIT_S
            before = probes()
        for name in order:
            cpu, wall = time.thread_time(), time.perf_counter()
            seconds = methods[name]()
            running = (time.thread_time() - cpu) / max(time.perf_counter() - wall, 1e-9)
            after = probes()
            samples[name].append(Sample(number, seconds, before, after, running))
            before = after
        order = [*order[1:], *order[:1]]
        thresholds = Thresholds.of([*known, *(sample for taken in samples.values() for sample in taken)])
        fewest = min((sum(map(thresholds.quiet, taken)) for taken in samples.values()), default=0)
        if sys.stderr.isatty():
            print(f"\r{label}: round {number + 1}, quiet {fewest} of {rounds}  ", end="", file=sys.stderr, flush=True)
        if number + 1 >= rounds and fewest >= rounds:
            break
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return samples
