"""How many schedules a distinct ranking leaves out for each that it lists."""

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.templates.base.ranking import BestPoints


def sizes(times):
    """Return how many points there are of each of ascending times."""
    return np.diff(np.append(np.flatnonzero(np.diff(times, prepend=0.0) > 1e-12 * times), len(times))).tolist()


def all_times(chosen):
    numbers = np.array_split(np.arange(chosen.space.size), chosen.space.size // 100_000 + 1)
    scores = [chosen.times(chosen.space.points_at(part)) for part in numbers]
    return np.sort(np.concatenate([times[rules == 0] for times, rules in scores]))


@pytest.mark.parametrize(
    ("extents", "hw", "template"),
    [((8, 8, 8), "a100_sxm", "cuda"), ((8, 4, 4), "rtx3090", "pipelined"), ((32, 16, 16), "a100_sxm", "triton")],
)
def test_counts_are_those_of_all_points(extents, hw, template):
    chosen = model(anatune.matmul(*extents), hw, template)
    ranking = chosen.rank(10, distinct=True)
    assert ranking.alike_is_exact
    assert (ranking.num_alike + 1).tolist() == sizes(all_times(chosen))[: len(ranking.points)]
    assert chosen.rank(10).num_alike is None


def test_counts_of_a_space_that_is_not_evaluated_whole():
    chosen = model(anatune.matmul(64, 48, 32), "rtx3090")
    ranking = chosen.rank(4, distinct=True)
    assert ranking.guarantee.kind == "certified"
    last_s = chosen.times(ranking.points[-1:])[0][0]
    assert (ranking.num_alike + 1).tolist() == sizes(chosen.points_within(last_s * (1 + 1e-9))[1])


def test_a_time_limit_counts_what_it_met():
    ranking = model(anatune.matmul(512, 512, 512), "rtx3090").rank(3, 1e-6, distinct=True)
    assert not ranking.alike_is_exact
    assert len(ranking.num_alike) == len(ranking.points)


def test_counts_of_cpus_are_of_what_was_met():
    chosen = model(anatune.matmul(16, 16, 4), "xeon_gold_6230r")
    ranking = chosen.rank(5, distinct=True)
    assert not ranking.alike_is_exact
    assert len(ranking.num_alike) == len(ranking.points)
    assert (ranking.num_alike >= 0).all()


def test_points_that_come_twice_count_once(monkeypatch):
    monkeypatch.setattr("anatune.templates.base.ranking._MOST_TIED", 4)
    best = BestPoints(1, 2, lambda points: (), distinct=True)
    best._most_tied = 4
    for numbers, times in (([1, 2, 3], [3.0, 1.0, 1.0]), ([2, 4], [1.0, 2.0]), ([4, 5, 6], [2.0, 2.0, 9.0])):
        best.add(np.array(numbers)[:, None], np.array(times))
    assert best.times.tolist() == [1.0, 2.0]
    assert best.num_alike().tolist() == [1, 1]


def test_a_plan_says_how_many_are_alike():
    plan = anatune.plan(anatune.matmul(64, 48, 32), "rtx3090", 3, distinct=True)
    assert plan.alike_is_exact
    assert (
        plan.to_frame()["num_alike"].tolist()
        == plan.num_alike
        == [one["num_alike"] for one in plan.to_dict()["schedules"]]
    )
    assert len(plan.first(2).num_alike) == 2
    assert anatune.plan(anatune.matmul(64, 48, 32), "rtx3090", 3).num_alike is None
