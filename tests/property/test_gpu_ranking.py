"""Branch and bound of the GPU space equals exhaustive enumeration, on hundreds of random small problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base import watch
from anatune.templates.cuda.model import ranking as gpu_ranking
from anatune.templates.cuda.model.model import CudaModel
from tests.naive_gpu import DEVICES, all_points, gpu, ranking_key, small_workloads, with_limits

LARGEST_SPACE = 250_000
EXACT = settings(
    derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip


@st.composite
def devices(draw: st.DrawFn) -> GpuSpec:
    """Packaged GPUs, some with limits so tight that much of a small space is illegal."""
    spec = gpu(draw(st.sampled_from(DEVICES)))
    if draw(st.booleans()):
        threads = draw(st.sampled_from([32, 64, 1024]))
        return with_limits(spec, compute={"max_threads_per_block": threads}, shared={"per_block_bytes": 8192})
    return spec


@pytest.fixture(autouse=True)
def _branch_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_ranking, "EXHAUSTIVE_POINTS", 0)


def tighten(model: CudaModel, share: float) -> None:
    """Give the model a limit on shared memory that bites in small spaces, too."""
    most = sum(access.num_bytes for access in model.workload.reads)
    model._gpu = model._gpu._replace(shared_block_bytes=max(4, int(share * most)))


@settings(EXACT, max_examples=120)
@given(
    workload=small_workloads(),
    device=devices(),
    top_k=st.sampled_from([1, 2, 5, 10, 33]),
    share=st.sampled_from([0.05, 0.3, 1e9]),
    seeds=st.sampled_from([1, 20, 2000]),
    distinct=st.booleans(),
)
def test_equals_exhaustive_enumeration(
    workload: Workload, device: GpuSpec, top_k: int, share: float, seeds: int, distinct: bool
) -> None:
    model = CudaModel(workload, device)
    assume(model.space.size <= LARGEST_SPACE)
    if share < 1:
        tighten(model, share)
    points = all_points(model)
    assert len(points) == model.space.size
    times, rules = model.times(points)
    legal = rules == 0
    gpu_ranking.SEED_POINTS, before = seeds, gpu_ranking.SEED_POINTS
    try:
        ranking = model.rank(top_k, distinct=distinct)
    finally:
        gpu_ranking.SEED_POINTS = before
    assert ranking.guarantee.kind == "certified"
    assert ranking.guarantee.gap == 0
    assert ranking.num_legal == int(legal.sum())
    expected_counts = {rule.id: int((rules == code).sum()) for code, rule in enumerate(model.rules, 1)}
    assert ranking.rejected == expected_counts
    assert ranking.num_legal + sum(ranking.rejected.values()) == model.space.size
    expected = expected_order(model, points[legal], times[legal], top_k, distinct)
    assert ranking.points.tolist() == expected


def expected_order(
    model: CudaModel, points: np.ndarray, times: np.ndarray, top_k: int, distinct: bool
) -> list[list[int]]:
    if distinct:
        near = times <= (np.unique(times)[: 2 * top_k + 20][-1] if len(times) else 0.0)
    else:
        near = times <= (np.partition(times, top_k - 1)[top_k - 1] if len(times) > top_k else math.inf)
    keys = sorted(
        ranking_key(model.space.columns, tuple(point), float(time))
        for point, time in zip(points[near].tolist(), times[near], strict=True)
    )
    if distinct:
        keys = [
            key for at, key in enumerate(keys) if at == 0 or float(key[0]) - float(keys[at - 1][0]) > 1e-12 * key[0]
        ]
    return [list(key[-1]) for key in keys[:top_k]]


@settings(EXACT, max_examples=60)
@given(workload=small_workloads(), device=devices(), looks=st.integers(0, 12), top_k=st.sampled_from([1, 3]))
def test_the_gap_of_a_search_that_ends_early_holds(workload: Workload, device: GpuSpec, looks: int, top_k: int) -> None:
    model = CudaModel(workload, device)
    assume(model.space.size <= LARGEST_SPACE)
    times, rules = model.times(all_points(model))
    clock = iter(range(10**9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch.time, "monotonic", lambda: float(next(clock)))
        patch.setattr(gpu_ranking, "SLAB_MACROS", 50)
        patch.setattr(gpu_ranking, "SEED_POINTS", 10)
        ranking = model.rank(top_k, looks + 0.5)
    assert len(ranking.points)
    optimum = times[rules == 0].min()
    best = model.times(ranking.points)[0][0]
    gap = ranking.guarantee.gap
    assert gap >= 0
    assert best / (1 + gap) <= optimum * (1 + 1e-12)
    if ranking.guarantee.kind == "certified":
        assert gap == 0
        assert best == optimum
    if ranking.num_legal is not None:
        assert ranking.num_legal == int((rules == 0).sum())
