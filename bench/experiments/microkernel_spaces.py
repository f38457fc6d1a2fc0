"""Spaces with one microkernel along an axis, with a pair of them where one does not divide it, and with padding.

A *pair* is the paper's combination of two microkernels ([TACO22] Sec. 3.2 and 4.2): of our CPU space it is the balanced
one, ``s % n`` calls of ``s // n + 1`` rows and the rest of ``s // n`` (`anatune.templates.cpu.microkernels`), on one
axis of rows and, of vectors, on the SIMD axis besides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.search.base import make_strategy
from anatune.templates.cpu.model.model import CpuModel
from bench.cpu.layers import LAYERS
from bench.layers import Convolution, Layer, Matmul

__all__ = ["LAYERS_HERE", "MOST_PADDING", "Space", "blis_like", "draws", "either", "ends", "one", "padded", "space_of"]

LAYERS_HERE: dict[str, Layer] = {**LAYERS, "Y10P": Convolution("Y10P", "yolo9000", 1024, 17, 28272, 1, 1, 0)}
"""Those of the CPU benchmarks, and Y10 with filters up to a multiple of 16, as the paper has it ([TACO22] Fig. 8)."""
MOST_PADDING = 4
"""Columns of results that padding may add."""
ROWS, COLUMNS = 12, 32
"""The microkernel of BLIS for AVX-512, rows and columns of results. Source: BLIS's configuration "skx"."""


@dataclass
class Space:
    """What a model says of a layer's space with one kind of microkernels."""

    device: str
    layer: str
    kind: str
    """"one", "either" (one, or a pair), "padded" (one, on a wider image)."""
    num_legal: int | None
    time_s: float
    guarantee: str
    schedule: str
    has_pair: bool


def either(workload: Workload, hardware: CpuSpec) -> CpuModel:
    """Return the model of the whole space: one microkernel, or a pair along an axis that it does not divide."""
    return CpuModel(workload, hardware)


def one(workload: Workload, hardware: CpuSpec) -> CpuModel:
    """Return the model of the space without pairs: the microkernel divides every axis, but for masked vectors."""
    model = CpuModel(workload, hardware)
    model.space.max_kernel = 0  # nothing of the space has been listed yet, and no pair has kernels so small
    return model


def padded(layer: Layer, columns: int) -> Workload:
    """Return a layer with so many more columns of results (rows of a product), whose values nobody needs."""
    if isinstance(layer, Matmul):
        return anatune.matmul(layer.m + columns, layer.n, layer.k)
    width = layer.size + columns * layer.stride
    return anatune.conv2d(
        1, layer.channels, layer.size, width, layer.filters, layer.kernel, layer.kernel,
        stride=layer.stride, padding=layer.padding, layout="NHWC",
    )  # fmt: skip


def ends(model: CpuModel, count: int) -> list[Schedule]:
    """Return the first schedules of a ranking that differ in predicted time."""
    ranked = model.rank(count, distinct=True).points
    return [model.space.schedule_of(point) for point in ranked]


def space_of(layer: Layer, kind: str, hardware: CpuSpec) -> tuple[Space, CpuModel]:
    """Return what is known of a layer's space, and its model; of padding, the fewest seconds of a few columns."""
    if kind == "padded":
        models = [one(padded(layer, columns), hardware) for columns in range(1, MOST_PADDING + 1)]
    else:
        models = [(either if kind == "either" else one)(layer.workload(), hardware)]
    found = []
    for model in models:
        ranking = model.rank(1)
        schedule = model.space.schedule_of(ranking.points[0])
        seconds = float(model.times(ranking.points)[0][0])
        pair = any(name.startswith("pair.") for name in schedule.options)
        guarantee = ranking.guarantee.describe()
        told = schedule.describe()
        found.append((Space(hardware.name, layer.name, kind, ranking.num_legal, seconds, guarantee, told, pair), model))
    return min(found, key=lambda both: both[0].time_s)


def draws(model: CpuModel, count: int, seed: int) -> list[float]:
    """Return predicted seconds of schedules drawn as the paper draws them: a good microkernel, then a tiling."""
    strategy = make_strategy("structured", model, seed=seed, start="paper")
    points = [model.space.point_of(schedule) for schedule in strategy.ask(count)]
    return [float(seconds) for seconds in model.times(np.array(points))[0]]


def blis_like(columns: int, depth: int, rows: int, hardware: CpuSpec) -> Schedule:
    """Return a product of so many rows at least, all of it by one microkernel of 12 x 32 results."""
    calls = -(-rows // ROWS)
    model = one(anatune.matmul(calls * ROWS, columns, depth), hardware)
    unroll = 4
    return model.space.schedule(
        {
            "i": (1, 1, 1, calls, ROWS),
            "j": (1, 1, 1, columns // COLUMNS, COLUMNS),
            "k": (1, 1, depth // unroll, unroll),
        },
        packed=("B",),
    )
