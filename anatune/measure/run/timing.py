"""Timing of kernels on a machine whose speed drifts.

A sample is as many runs in a row as fill `TimingProtocol.sample_s`, after one run that is not timed (caches are warm:
operands and code are where the previous run left them). A sample of a fixed reference kernel runs before and after
each. Only ratios to the mean time of those two are comparable between minutes. A loop of
multiply-adds is no suitable reference: its speed stays while kernels with data in the L2 cache lose a third.

The clock of a kernel of one thread is that thread's CPU time (`time.thread_time`), which does not advance while another
process has the core; with several threads it is `time.perf_counter`.

Runs are a Python loop around TVM's packed function: 0.19 us a call against 0.01 us inside TVM's time_evaluator
(2026-11, one core of a Zen 4 EPYC), which in turn spends 65 us and one more untimed run on every sample. Kernels worth
tuning take 20 us and more, where the loop is 1 % at most and the same for all candidates.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec

Clock = Callable[[], float]
Timed = Callable[[int], float]
"""A function that runs a kernel the given number of times in a row and returns the total seconds."""


_REFERENCE_PARTS = 3
_MOST_PATIENCE = 5.0


class TimingProtocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The duration and number of samples of a kernel. Defaults: 0.1 to 0.15 s for a kernel of 2 ms.

    Attributes
    ----------
    sample_s : float
        Shortest length of a sample; a sample has at least one run.
    reference_s : float
        The same for the reference kernel.
    budget_s : float
        Time after which no sample begins, once there are `least_samples`.
    patience_s : float
        Time after which no sample begins in any case, so that a slow kernel may have one sample.
    least_samples, most_samples : int
        Fewest and most samples of a kernel that is not stopped early.
    precision : float
        Sampling ends when the standard error of the mean ratio to the reference is below this share of it.
    slower : float
        Sampling ends after two samples if both ratios are this many times the incumbent's.
    needed_samples : int
        Samples of a kernel that is slower than `slower`, or takes longer than `patience_s`. It has fewer only after
        `_MOST_PATIENCE` times `patience_s`.
    """

    sample_s: float = 0.012
    reference_s: float = 0.002
    budget_s: float = 0.12
    patience_s: float = 1.0
    least_samples: int = 3
    most_samples: int = 8
    precision: float = 0.004
    slower: float = 1.3
    needed_samples: int = 1


CPU_PROTOCOL = TimingProtocol()
"""The protocol for kernels on CPUs."""


class Timings(NamedTuple):
    """The samples of a kernel: seconds of one run, those of the reference kernel, and whether timing stopped early.

    `energy_j` is the energy of one run in joules; None if it was not measured.
    """

    times_s: tuple[float, ...]
    reference_times_s: tuple[float, ...]
    stopped_early: bool = False
    energy_j: float | None = None

    @property
    def ratios(self) -> list[float]:
        """The time of each sample over the reference kernel's."""
        return [time_s / base for time_s, base in zip(self.times_s, self.reference_times_s, strict=True)]


def make_sampler(call: Callable[[], object], clock: Clock = time.perf_counter) -> Timed:
    """Return a function that samples `call`."""

    def run(count: int) -> float:
        start = clock()
        for _ in repeat(None, count):
            call()
        return clock() - start

    return run


class _Sampler:
    """A sampler of one kernel, whose samples have as many runs as fill the given time.

    The first run, at construction, determines that number. If it fills the time alone, it is the first sample.

    Attributes
    ----------
    count : int
        Number of runs in a sample, corrected after every sample because first runs are slow.
    """

    def __init__(self, kernel: Timed, sample_s: float) -> None:
        self._kernel, self._sample_s = kernel, sample_s
        first_s = kernel(1)
        self._fit(first_s)
        self._first_s = first_s if self.count == 1 else None

    def _fit(self, one_s: float) -> None:
        self.count = max(1, math.ceil(self._sample_s / max(one_s, 1e-9)))

    def sample(self) -> float:
        """Return the seconds of one run."""
        if self._first_s is not None:
            first_s, self._first_s = self._first_s, None
            return first_s
        if self.count > 1:
            self._kernel(1)
        one_s = self._kernel(self.count) / self.count
        self._fit(one_s)
        return one_s


def beside(reference: Timed, sample_s: float) -> Callable[[], float]:
    """Return a function that samples the reference kernel and returns the seconds of one run.

    A sample is the fastest of three parts. A part during which another process had the core would make the candidate
    beside it look fast, and an incumbent that only looks fast would stop all others early.
    """
    sampler = _Sampler(reference, sample_s / _REFERENCE_PARTS)
    sampler.sample()
    return lambda: min(sampler.sample() for _ in range(_REFERENCE_PARTS))


def sample_candidate(
    candidate: Timed,
    reference: Callable[[], float],
    protocol: TimingProtocol,
    *,
    incumbent: float | None = None,
    clock: Clock = time.perf_counter,
) -> Timings:
    """Time one kernel between samples of the reference kernel.

    Parameters
    ----------
    candidate
        The kernel, which ran before.
    reference
        A function from `beside`.
    protocol
        The timing protocol.
    incumbent : float, optional
        The best ratio to the reference so far; clearly slower kernels get few samples.
    clock
        Returns seconds; for tests.
    """
    started = clock()
    before = reference()
    sampler = _Sampler(candidate, protocol.sample_s)
    times: list[float] = []
    bases: list[float] = []
    while True:
        times.append(sampler.sample())
        after = reference()
        bases.append((before + after) / 2)
        before = after
        samples = Timings(tuple(times), tuple(bases))
        spent = clock() - started
        if len(times) < protocol.needed_samples and spent <= _MOST_PATIENCE * protocol.patience_s:
            continue
        if incumbent is not None and len(times) >= 2 and min(samples.ratios) > protocol.slower * incumbent:
            return samples._replace(stopped_early=True)
        if len(times) >= protocol.most_samples or spent > protocol.patience_s:
            return samples
        if len(times) >= protocol.least_samples:
            if spent > protocol.budget_s:
                return samples
            mean, spread = statistics.fmean(samples.ratios), statistics.stdev(samples.ratios)
            if spread / math.sqrt(len(times)) < protocol.precision * mean:
                return samples


class PairedTest(NamedTuple):
    """The result of a paired test: the mean of log(a / b), and half the width of its confidence interval."""

    difference: float
    half_width: float

    @property
    def decided(self) -> bool:
        """True if the interval does not contain 0."""
        return abs(self.difference) > self.half_width


def paired_test(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> PairedTest:
    """Compare two kernels by samples taken in turn: a paired t-test on the logarithms of their ratios.

    Pairs share the machine's speed of their moment, so that drift cancels; the logarithm makes the test symmetric.

    Parameters
    ----------
    first, second : sequence of float, > 0
        Samples; the i-th of both were taken next to each other. Fewer than two pairs decide nothing.
    """
    from scipy.special import stdtrit

    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    if len(logs) < 2:
        return PairedTest(math.fsum(logs), math.inf)
    quantile = float(stdtrit(len(logs) - 1, 0.5 + confidence / 2))
    return PairedTest(statistics.fmean(logs), quantile * statistics.stdev(logs) / math.sqrt(len(logs)))


def alternate(
    contenders: Sequence[Timed],
    reference: Callable[[], float],
    protocol: TimingProtocol,
    *,
    budget_s: float,
    least_rounds: int = 5,
    same: float = 0.005,
    clock: Clock = time.perf_counter,
) -> list[Timings]:
    """Time contenders in turn, A B C A B C ..., until a paired t-test at 95 % decides or the budget ends.

    After `least_rounds` rounds, a contender that is slower than the leader of the moment, by the test, drops out
    (`stopped_early`). It ends when one is left, when all that are left differ by less than `same` (the whole
    confidence interval of log ratios), or with the budget. The test is repeated after every round, so that between
    equal kernels "decided" is more frequent than 1 in 20: what it then picks is as good.

    Returns
    -------
    list of Timings
        In the order of `contenders`. The i-th samples of two contenders were taken in the same round.
    """
    started = clock()
    samplers = [_Sampler(contender, protocol.sample_s) for contender in contenders]
    times: list[list[float]] = [[] for _ in contenders]
    bases: list[list[float]] = [[] for _ in contenders]
    running = list(range(len(contenders)))
    before = reference()
    while running:
        shift = len(times[running[0]]) % len(running)
        for number in running[shift:] + running[:shift]:
            times[number].append(samplers[number].sample())
            after = reference()
            bases[number].append((before + after) / 2)
            before = after
        if len(times[running[0]]) >= least_rounds:
            leader = min(running, key=lambda place: _log_mean(times[place]))
            tests = {place: paired_test(times[place], times[leader]) for place in running if place != leader}
            running = [place for place in running if place == leader or not tests[place].decided]
            widest = (abs(tests[place].difference) + tests[place].half_width for place in running if place != leader)
            if max(widest, default=0.0) < same:
                break
        if clock() - started > budget_s:
            break
    return [Timings(tuple(times[place]), tuple(bases[place]), place not in running) for place in range(len(contenders))]


def _log_mean(times: Sequence[float]) -> float:
    return statistics.fmean(map(math.log, times))
