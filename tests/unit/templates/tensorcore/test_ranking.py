"""Spaces whose k may be split: what is left out is never among the best."""

from __future__ import annotations

import pytest

import anatune
from anatune.core.workload.nest import Workload
from anatune.templates.base.ranking import rank_whole
from anatune.templates.base.watch import Watch
from anatune.templates.tensorcore import ranking
from anatune.templates.tensorcore.model import TensorCoreModel
from tests.naive_gpu import gpu

WORKLOADS = [
    anatune.matmul(64, 64, 4096, dtype="float16"),
    anatune.conv2d(1, 512, 7, 7, 256, 3, 3, padding=1, dtype="float16"),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=Workload.describe)
def test_bounded_rankings_are_the_whole_ones(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "SLAB_POINTS", 5_000)
    model = TensorCoreModel(workload, gpu("a100"))
    wanted = rank_whole(model, model.best_points(20, distinct=False), model.floor_s, Watch())
    found = ranking.rank_splits(model, model.space, model.best_points(20, distinct=False), Watch())
    assert found.points.tolist() == wanted.points.tolist()
    assert (found.num_legal, found.rejected) == (wanted.num_legal, wanted.rejected)
    assert found.guarantee.kind == "certified"
    assert found.guarantee.num_evaluated < model.space.size
    assert any(point[9] > 1 for point in found.points.tolist())  # a split is among the best
