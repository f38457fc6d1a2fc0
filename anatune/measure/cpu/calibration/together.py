"""The combined speed of all cores, and the reason if it is less than that of single cores.

One pinned thread on each core runs the multiply-add probe, first alone in turn, then all at the same time. Each is
timed by its processor time, so that other programs on this machine do not count. Cores that are threads of one
physical core always halve each other's speed. A crowded host of a virtual machine takes cores away from time to time,
which shows in the steal time of /proc/stat or in rates that vary between samples.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.measure.run.cores import physical_cores

Call = Callable[[], object]

ALIKE = 0.93
"""Share of their speed alone above which cores count as independent."""
_CROWDED_STEAL = 0.02
"""Share of stolen time above which a host counts as crowded."""
_CROWDED_SPREAD = 0.1
"""Spread of the samples above which the cause varies in time; shared units are always shared."""
_HALVES = 1.2
"""Combined speed below which two threads share all units of one core."""
_MOST_CORES = 64
"""Largest number of threads to measure; more give no more information."""
_WAIT_S = 30.0


class Round(NamedTuple):
    """Processor seconds of the probe on each core, alone and all together."""

    alone: tuple[float, ...]
    together: tuple[float, ...]

    @property
    def speedup(self) -> float:
        """Return the number of single cores with the same speed."""
        return sum(alone / shared for alone, shared in zip(self.alone, self.together, strict=True))


class Together(NamedTuple):
    """The combined speed of several cores.

    Attributes
    ----------
    cores : int
        Number of measured cores.
    speedup : float
        Number of single cores with the same speed; `cores` if they are independent. The median of the best third of the
        samples.
    low : float
        The same for the lowest tenth.
    steal : float
        Share of the time that the host took away, in [0, 1]; 0 if the system does not report it.
    cause : {"independent", "shared", "clock", "crowded"}
        "independent": cores share nothing. "shared": threads of the same physical cores share units. "clock": every
        sample is a little slower (a lower clock, or a shared unit). "crowded": the host gives the cores to others.
    """

    cores: int
    speedup: float
    low: float
    steal: float
    cause: str

    @property
    def line(self) -> str:
        """Return the result as a sentence."""
        summary = f"{self.cores} cores together are as fast as {self.speedup:.2f} single cores"
        varied = f"lowest samples {self.low:.2f}, the host took {100 * self.steal:.1f} % of the time"
        return {
            "independent": f"{summary}: they are independent ({varied})",
            "shared": f"{summary} in every sample: they are threads that share physical cores ({varied})",
            "clock": f"{summary} in every sample: the clock is lower with all cores busy, or they share units "
            "({varied})",
            "crowded": f"{summary}: the host is crowded ({varied}); calibrate again when it is less busy",
        }[self.cause]


def judge_rounds(rounds: Sequence[Round], steal: float) -> Together:
    """Return the combined speed of the cores and its cause.

    Parameters
    ----------
    steal : float
        Share of the time that the host took away meanwhile.
    """
    ordered = sorted((entry.speedup for entry in rounds), reverse=True)
    cores = len(rounds[0].alone)
    best = statistics.median(ordered[: -(-len(ordered) // 3)])
    low, middle = ordered[-1 - len(ordered) // 10], statistics.median(ordered)
    if steal > _CROWDED_STEAL or middle < (1.0 - _CROWDED_SPREAD) * best:
        cause = "crowded"
    elif best >= ALIKE * cores:
        cause = "independent"
    else:
        cause = "shared" if best <= _HALVES * max(1.0, cores / 2) else "clock"
    return Together(cores, min(float(cores), best), low, steal, cause)


def measure_together(make_call: Callable[[], Call], *, budget_s: float, least_rounds: int = 15) -> Together | None:
    """Run a probe on every core alone and on all at once; None where threads cannot be pinned or there is one core.

    Parameters
    ----------
    make_call : callable
        Returns a call of the probe on separate memory; it must release the interpreter's lock.
    budget_s : float
        Seconds to spend; at least `least_rounds` rounds are run, even if they take longer.
    """
    places = [cpus[0] for cpus in physical_cores().values()][:_MOST_CORES]
    if len(places) < 2 or not hasattr(os, "sched_setaffinity"):
        return None
    calls = [make_call() for _ in places]
    gate = threading.Barrier(len(places))
    alone: list[list[float]] = [[] for _ in places]
    shared: list[list[float]] = [[] for _ in places]
    is_over = threading.Event()
    failed: list[BaseException] = []
    started = time.perf_counter()

    def work(index: int) -> None:
        try:
            os.sched_setaffinity(0, {places[index]})  # of this thread
            call = calls[index]
            call()
            while not is_over.is_set():
                for turn in range(len(places)):
                    gate.wait(_WAIT_S)
                    if turn == index:
                        alone[index].append(_processor_s(call))
                gate.wait(_WAIT_S)
                shared[index].append(_processor_s(call))
                if index == 0 and len(shared[0]) >= least_rounds and time.perf_counter() - started > budget_s:
                    is_over.set()
                gate.wait(_WAIT_S)
        except BaseException as error:  # noqa: BLE001  raised again in the main thread
            failed.append(error)
            gate.abort()

    before = steal_ticks()
    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        if not isinstance(error, (OSError, threading.BrokenBarrierError)):
            raise error
    if failed:  # a core may not be available
        return None
    stolen, passed = (now - then for now, then in zip(steal_ticks(), before, strict=True))
    return judge_rounds(
        [Round(*both) for both in zip(zip(*alone, strict=True), zip(*shared, strict=True), strict=True)],
        stolen / passed if passed else 0.0,
    )


def steal_ticks(root: str | Path = "/") -> tuple[int, int]:
    """Return the clock ticks that the host took from this machine's processors, and all ticks; zeros if unknown."""
    try:
        words = (Path(root) / "proc/stat").read_text().split("\n", 1)[0].split()
        ticks = [int(word) for word in words[1:9]]  # user nice system idle iowait irq softirq steal
    except (OSError, ValueError):
        return 0, 0
    return (ticks[7], sum(ticks)) if words[0] == "cpu" and len(ticks) == 8 else (0, 0)


def _processor_s(call: Call) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start
