"""The kernels (nests) that a calibration generates: small workloads of many kinds, and diverse schedules of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators.convolution import conv2d
from anatune.core.workload.operators.matmul import matmul
from anatune.templates.cpu.model.model import CpuModel

Integers = NDArray[np.int64]

SLOWEST = 1.5
"""Ratio to the best predicted time up to which schedules are measured; the model's errors are smaller."""
_RANKED, _SAMPLES = 256, 20_000
_RANKING_S = 1.0
"""Time limit of a search, s."""

_MATMULS = ((96, 320, 384), (40, 1024, 256), (192, 640, 160), (384, 192, 768), (12, 800, 640), (320, 480, 512))
_CONVOLUTIONS = (  # channels, size, filters, kernel, stride; zeros around, as many as keep the size
    (48, 40, 96, 3, 1),
    (3, 160, 24, 3, 1),
    (96, 32, 160, 1, 1),
    (160, 20, 96, 3, 1),
    (3, 128, 48, 7, 2),
    (24, 72, 48, 3, 1),
    (320, 10, 256, 1, 1),
    (80, 40, 112, 3, 2),
    (384, 8, 192, 3, 1),
    (48, 64, 128, 1, 2),
    (640, 13, 1600, 1, 1),
    (16, 96, 32, 5, 1),
    (112, 28, 224, 3, 1),
    (256, 20, 640, 1, 1),
)


def calibration_workloads() -> list[Workload]:
    """Return the workloads, which take a few milliseconds on a core, with kinds in turn.

    A measurement that runs out of time has seen all kinds. No workload is a layer of the benchmarks.
    """
    convolutions = [
        conv2d(1, channels, size, size, filters, kernel, kernel, stride=stride, padding=kernel // 2, layout="NHWC")
        for channels, size, filters, kernel, stride in _CONVOLUTIONS
    ]
    matmuls = [matmul(*sizes) for sizes in _MATMULS]
    turns: list[Workload] = []
    while convolutions or matmuls:
        turns += [queue.pop(0) for queue in (convolutions, matmuls, convolutions) if queue]
    return turns


def diverse_schedules(model: CpuModel, count: int, seed: int = 0) -> list[Schedule]:
    """Return schedules from which a model's errors are learned: its first choice, then schedules that differ most.

    They are taken from the first of the ranking and from random points that are predicted to be nearly as fast. Their
    difference is measured by the features of a correction, each relative to its spread.

    Parameters
    ----------
    count : int
        Number of schedules; fewer if the space has fewer fast ones.
    seed : int
        Seed of the random points.
    """
    ranked = model.rank(_RANKED, _RANKING_S).points
    points = np.concatenate([ranked, model.space.sample_points(_SAMPLES, seed)])
    times, rules = model.times(points)
    if not (rules == 0).any():
        return []
    kept = (rules == 0) & (times <= SLOWEST * times[rules == 0].min())
    points, times = _one_a_program(model, points[kept], times[kept])
    values = model.feature_table(points).values
    spread = values.std(axis=0)
    values = values[:, spread > 1e-9] / spread[spread > 1e-9]
    chosen = [0 if len(ranked) else int(np.argmin(times))]
    distance = np.full(len(points), np.inf)
    while len(chosen) < min(count, len(points)):
        distance = np.minimum(distance, np.square(values - values[chosen[-1]]).sum(axis=1))
        distance[chosen] = -np.inf
        chosen.append(int(np.argmax(distance / times)))  # of two at the same distance, take the faster one
    return [model.space.schedule_of(points[at]) for at in chosen]


def _one_a_program(
    model: CpuModel, points: Integers, times: NDArray[np.float64]
) -> tuple[Integers, NDArray[np.float64]]:
    """Return one point of each program, with its time."""
    first: dict[object, int] = {}
    for position, point in enumerate(points):
        first.setdefault(model.program_key(point), position)
    kept = list(first.values())
    return points[kept], times[kept]
