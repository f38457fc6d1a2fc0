"""Ranking of the GPU space: guarantees, exact counts, ties, time limits, nothing legal."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import anatune
from anatune.templates.base import ranking as whole_ranking
from anatune.templates.base import watch
from anatune.templates.cuda.model import ranking as gpu_ranking
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.model.ranking import options_of
from tests.naive_gpu import all_points, gpu, random_points, ranking_key, with_limits

SMALL = anatune.matmul(6, 8, 4)
LARGE = anatune.matmul(256, 512, 128)


@pytest.fixture
def branch_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_ranking, "EXHAUSTIVE_POINTS", 0)


def test_small_spaces_are_enumerated() -> None:
    model = CudaModel(SMALL, gpu("rtx3090"))
    ranking = model.rank(5)
    assert ranking.guarantee.kind == "exhaustive"
    assert ranking.guarantee.num_evaluated == model.space.size
    points = all_points(model)
    times, rules = model.times(points)
    keys = [
        ranking_key(model.space.columns, tuple(point), float(time))
        for point, time, rule in zip(points.tolist(), times, rules, strict=True)
        if rule == 0
    ]
    assert ranking.points.tolist() == [list(key[-1]) for key in sorted(keys)[:5]]


@pytest.mark.usefixtures("branch_and_bound")
def test_large_spaces_are_certified() -> None:
    for device in ("rtx3090", "k80"):
        model = CudaModel(LARGE, gpu(device))
        ranking = model.rank(10)
        assert ranking.guarantee.kind == "certified"
        assert ranking.guarantee.gap == 0
        assert ranking.num_legal is not None
        assert ranking.num_legal + sum(ranking.rejected.values()) == model.space.size
        times, rules = model.times(ranking.points)
        assert times.tolist() == sorted(times.tolist())
        assert (rules == 0).all()
        assert len(np.unique(ranking.points, axis=0)) == 10
        drawn, _ = model.times(random_points(model, 20_000, seed=9, legal=True))
        assert drawn.min() >= times[0]
        assert ranking.guarantee.num_evaluated < model.space.size / 100


@pytest.mark.parametrize("slab", [1, 13, 100_000])
def test_slabs_do_not_matter(monkeypatch: pytest.MonkeyPatch, slab: int) -> None:
    model = CudaModel(anatune.matmul(6, 4, 3), gpu("mi50"))
    expected = model.rank(8)
    monkeypatch.setattr(whole_ranking, "SLAB_POINTS", max(slab, 1000))
    assert model.rank(8).points.tolist() == expected.points.tolist()
    monkeypatch.setattr(gpu_ranking, "SLAB_MACROS", slab)
    monkeypatch.setattr(gpu_ranking, "EXHAUSTIVE_POINTS", 0)
    ranking = model.rank(8)
    assert ranking.points.tolist() == expected.points.tolist()
    assert (ranking.num_legal, ranking.rejected) == (expected.num_legal, expected.rejected)


@pytest.mark.parametrize("limit", [0, 10**9])
def test_more_than_there_is(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(gpu_ranking, "EXHAUSTIVE_POINTS", limit)
    model = CudaModel(anatune.matmul(2, 1, 3), gpu("tx2"))
    ranking = model.rank(10**6)
    assert len(ranking.points) == ranking.num_legal == model.space.size
    assert len(np.unique(ranking.points, axis=0)) == model.space.size
    assert model.rank(3).points.tolist() == ranking.points[:3].tolist()


@pytest.mark.parametrize("limit", [0, 10**9])
def test_nothing_legal(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(gpu_ranking, "EXHAUSTIVE_POINTS", limit)
    model = CudaModel(SMALL, gpu("rtx3090"))
    model._gpu = model._gpu._replace(shared_block_bytes=4)
    ranking = model.rank(3)
    assert ranking.points.shape == (0, len(model.space.columns))
    assert ranking.num_legal == 0
    assert ranking.rejected["shared_bytes_per_block"] == model.space.size
    assert ranking.guarantee.kind == ("certified" if limit == 0 else "exhaustive")


@pytest.mark.usefixtures("branch_and_bound")
def test_little_is_legal() -> None:
    """Fewer legal points than asked for, none among the samples: the search must still find them all."""
    workload = anatune.matmul(64, 64, 64)
    model = CudaModel(workload, with_limits(gpu("rtx3090"), compute={"max_threads_per_block": 32}))
    model._gpu = model._gpu._replace(shared_block_bytes=8)  # one element of each operand
    ranking = model.rank(10**5)
    # every tile is one iteration: unroll depth, fetch widths and two splits are what is left
    assert ranking.num_legal == 5 * 9 * 2 == len(ranking.points)
    assert ranking.num_legal + sum(ranking.rejected.values()) == model.space.size


ROWS = anatune.elementwise((512, 512))


@pytest.mark.parametrize(
    ("limit", "workload"),
    [(0, SMALL), (0, LARGE), (0, ROWS), (10**9, SMALL), (10**9, ROWS)],
    ids=lambda v: getattr(v, "operator", str(v)),
)
def test_time_limit(monkeypatch: pytest.MonkeyPatch, limit: int, workload: anatune.Workload) -> None:
    model = CudaModel(workload, gpu("k80"))
    optimum = float(model.times(model.rank(1).points)[0][0])
    monkeypatch.setattr(gpu_ranking, "EXHAUSTIVE_POINTS", limit)
    monkeypatch.setattr(whole_ranking, "SLAB_POINTS", 1000)
    ranking = model.rank(3, 1e-9)
    assert ranking.guarantee.kind == "best_found"
    assert ranking.guarantee.gap >= 0
    assert ranking.num_legal is None
    assert ranking.rejected is None
    times, rules = model.times(ranking.points)
    assert (rules == 0).all()
    assert len(times) >= 1
    assert optimum <= times[0]
    assert optimum >= times[0] / (1 + ranking.guarantee.gap) * (1 - 1e-12)


def test_time_limits_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs out after some number of looks: the gap always holds, counts are exact or None."""
    model = CudaModel(LARGE, gpu("tx2"))
    optimum = float(model.times(model.rank(1).points)[0][0])
    monkeypatch.setattr(gpu_ranking, "SLAB_MACROS", 2000)
    kinds = set()
    for looks in (1, 2, 3, 5, 8, 10, 12, 20, 1000):
        clock = itertools.count()
        monkeypatch.setattr(watch.time, "monotonic", lambda clock=clock: float(next(clock)))
        ranking = model.rank(2, looks)
        kinds.add((ranking.guarantee.kind, ranking.num_legal is None))
        best = float(model.times(ranking.points)[0][0])
        assert best / (1 + ranking.guarantee.gap) <= optimum * (1 + 1e-12) <= best * (1 + 2e-12)
        if ranking.num_legal is not None:
            assert ranking.num_legal + sum(ranking.rejected.values()) == model.space.size
    assert ("best_found", True) in kinds
    assert ("certified", False) in kinds


def test_ranking_is_deterministic() -> None:
    rankings = [CudaModel(LARGE, gpu("rtx4090")).rank(6) for _ in range(2)]
    assert rankings[0].points.tolist() == rankings[1].points.tolist()
    assert rankings[0].guarantee == rankings[1].guarantee


@pytest.mark.parametrize("distinct", [False, True])
def test_best_keeps_the_first_of_equal_times(distinct: bool) -> None:
    model = CudaModel(SMALL, gpu("rtx3090"))
    points = all_points(model)[:600]
    times = np.repeat([3.0, 1.0, 2.0], 200)
    expected = sorted(
        ranking_key(model.space.columns, tuple(p), t) for p, t in zip(points.tolist(), times.tolist(), strict=True)
    )
    if distinct:
        expected = [expected[at] for at in (0, 200, 400)]
    for top_k in (1, 3, 201, 5000):
        best = model.best_points(top_k, distinct=distinct)
        for order in (np.arange(600), np.arange(599, -1, -1)):
            for part in np.array_split(order, 7):
                best.add(points[part], times[part])
        assert best.points.tolist() == [list(key[-1]) for key in expected[:top_k]]
        assert best.limit_s == (expected[top_k - 1][0] if top_k <= len(expected) else math.inf)


@pytest.mark.parametrize("limit", [0, 10**9])
def test_distinct_times(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(gpu_ranking, "EXHAUSTIVE_POINTS", limit)
    model = CudaModel(SMALL, gpu("k80"))
    distinct = model.rank(10, distinct=True)
    times, _ = model.times(distinct.points)
    assert len(times) == 10
    assert (np.diff(times) > 1e-12 * times[1:]).all()
    everything = model.rank(3_000)
    all_times, _ = model.times(everything.points)
    apart = np.concatenate([[True], np.diff(all_times) > 1e-12 * all_times[1:]])
    assert distinct.points.tolist() == everything.points[apart][:10].tolist()
    assert (distinct.num_legal, distinct.rejected) == (everything.num_legal, everything.rejected)


def test_progress_is_a_rising_share() -> None:
    shares: list[float] = []
    CudaModel(LARGE, gpu("rtx3090")).rank(2, progress=shares.append)
    assert shares == sorted(shares)
    assert shares
    assert 0 <= shares[0] <= shares[-1] <= 1


def test_options_count_every_point_of_large_spaces() -> None:
    for workload in (LARGE, anatune.conv2d(16, 64, 56, 56, 64, 3, 3)):
        model = CudaModel(workload, gpu("rtx3090"))
        options = options_of(model)
        splits = 1 if model.space.splits is None else model.space.splits.count
        assert math.prod(options.multiplicity.sum(axis=1).tolist()) * splits == model.space.size
        assert options.points_below[-1] == 1
