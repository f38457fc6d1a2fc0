"""Macro choices are listed completely and once, with the points they stand for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import anatune
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.model.ranking import options_of
from anatune.templates.cuda.times.search import list_macros
from tests.cases import each
from tests.naive_gpu import WORKLOADS, gpu, tilings

SMALL = {
    "matmul": anatune.matmul(12, 8, 6),
    "conv2d": anatune.conv2d(1, 4, 6, 8, 2, 3, 3, padding=1),
    "row_sum": WORKLOADS["row_sum"],
    "sum": WORKLOADS["sum"],
    "elementwise": anatune.elementwise((12, 16)),
    "one": anatune.matmul(1, 1, 1),
}


def expected_macros(model: CudaModel) -> dict[tuple[int, ...], float]:
    """Points of the space counted by their block, thread and stage sizes."""
    per_axis = []
    for axis in (*model.workload.spatial_axes, *model.workload.reduction_axes):
        counts: dict[tuple[int, ...], int] = {}
        for factors in tilings(axis.extent, 5 if axis.kind == "spatial" else 3):
            if axis.kind == "spatial":
                key = (factors[0], 1, factors[2], 1, factors[1] * factors[3] * factors[4])
            else:
                key = (factors[0], factors[1] * factors[2], 1)
            counts[key] = counts.get(key, 0) + 1
        per_axis.append(counts)
    shared = len(model.space.unroll_depths) * len(model.space.fetch_widths) ** len(model.space.staged)
    macros = {}
    for keys in itertools.product(*per_axis):
        weight = shared * math.prod(counts[key] for counts, key in zip(per_axis, keys, strict=True))
        macros[tuple(itertools.chain(*keys))] = float(weight)
    return macros


@pytest.mark.parametrize("name", SMALL)
@each("capacity, max_threads", itertools.product([1, 7, 10_000], [1, 8, 1024]))
def test_lists_every_macro_choice_once(name: str, max_threads: int, capacity: int) -> None:
    model = CudaModel(SMALL[name], gpu("rtx3090"))
    options = options_of(model)
    num_spatial = len(model.workload.spatial_axes)
    tiles = 5 * num_spatial + 3 * len(model.workload.reduction_axes)
    points = np.ones((capacity, len(model.space.columns)), dtype=np.int64)
    numbers, weights = np.empty(capacity, dtype=np.int64), np.empty(capacity)
    total = math.prod(options.num_options.tolist())
    next_number, skipped = 0, 0.0
    macros: dict[tuple[int, ...], float] = {}
    seen: list[int] = []
    while next_number < total:
        next_number, listed, lost = list_macros(
            next_number, total, num_spatial, options, max_threads, points, numbers, weights
        )
        skipped += lost
        assert (points[:, tiles:] == 1).all()  # columns other than the tiles are left alone
        seen += numbers[:listed].tolist()
        rows = map(tuple, points[:listed, :tiles].tolist())
        macros |= dict(zip(rows, weights[:listed].tolist(), strict=True))
    assert next_number == total
    assert seen == sorted(set(seen))
    assert len(seen) == len(macros)
    expected = expected_macros(model)

    def threads(key: tuple[int, ...]) -> int:
        return math.prod(key[2 : 5 * num_spatial : 5])

    assert macros == {key: weight for key, weight in expected.items() if threads(key) <= max_threads}
    assert skipped == sum(weight for key, weight in expected.items() if threads(key) > max_threads)
    splits = 1 if model.space.splits is None else model.space.splits.count
    assert (skipped + sum(macros.values())) * splits == model.space.size


def test_stops_where_it_is_told() -> None:
    model = CudaModel(SMALL["matmul"], gpu("rtx3090"))
    options = options_of(model)
    points = np.ones((1000, len(model.space.columns)), dtype=np.int64)
    numbers, weights = np.empty(1000, dtype=np.int64), np.empty(1000)
    next_number, listed, _ = list_macros(5, 12, 2, options, 1024, points, numbers, weights)
    assert (next_number, listed, numbers[:listed].tolist()) == (12, 7, list(range(5, 12)))
