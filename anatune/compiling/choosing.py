"""Two builds of one model, run in turn: which one is kept. What kernels win alone a whole model may not show."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from anatune.compiling.compiled import CompiledModel
from anatune.graph.summary import Latency

__all__ = ["faster", "latency"]

Clock = Callable[[], float]

_SPENT_S = 2.0
"""Time to spend on runs of one model, s."""
_FEWEST, _MOST = 5, 200
"""Runs of each model."""


def latency(model: CompiledModel, clock: Clock = time.perf_counter) -> Latency:
    """Return a model's median time on random inputs."""
    call = model.prepared(*model.random_inputs())
    (times,) = _in_turn([call], clock)
    return Latency(statistics.median(times))


def faster(tuned: CompiledModel, plan: CompiledModel, clock: Clock = time.perf_counter) -> Latency:
    """Return what was measured of two builds of a model, and which is kept: the tuned one, unless it is slower.

    Both run in turn on the same random inputs; the median of the ratios within a round decides, so that a machine that
    slows down judges neither.
    """
    inputs = tuned.random_inputs()
    ours, others = _in_turn([tuned.prepared(*inputs), plan.prepared(*inputs)], clock)
    ratio = statistics.median(tuned_s / plan_s for tuned_s, plan_s in zip(ours, others, strict=True))
    tuned_s, plan_s = statistics.median(ours), statistics.median(others)
    return Latency(tuned_s, plan_s, True) if ratio <= 1.0 else Latency(plan_s, tuned_s, False)


def _in_turn(calls: list[Callable[[], Any]], clock: Clock) -> list[list[float]]:
    """Return times of calls that take turns, each time beginning with another one, s."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    began = clock()
    while len(times[0]) < _FEWEST or (len(times[0]) < _MOST and clock() - began < _SPENT_S * len(calls)):
        order = list(range(len(calls)))
        for place in order if len(times[0]) % 2 == 0 else order[::-1]:
            start = clock()
            calls[place]()
            times[place].append(clock() - start)
    return times
