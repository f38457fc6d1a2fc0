"""Plans for ranges of programs that are tables of times: what is proven, served and said."""

import numpy as np
import pytest

import anatune
from anatune.errors import SpaceError
from anatune.model.ranges.plan import RangePlan
from anatune.model.ranges.planning import Goal, check_goal, plan_families
from anatune.templates.base.watch import Watch
from tests.unit.model.ranges.making import TableFamily, times
from tests.wording import refuses

WORDS = "matmul 1..8x16x16"


def true_losses(plan, table):
    """Return the loss at each extent of what a plan serves, by its intervals' own times where they end."""
    best = table.min(axis=0)
    return [(one.first_s / best[one.first - 1] - 1, one.last_s / best[one.last - 1] - 1) for one in plan.intervals]


@pytest.mark.parametrize("seed", range(5))
def test_the_proven_loss_holds_and_every_extent_is_served(seed):
    table = times(30, 200, seed)
    plan = plan_families([TableFamily(table)], Goal(programs=4), Watch())
    assert [extent for one in plan.intervals for extent in range(one.first, one.last + 1)] == list(range(1, 201))
    assert max(max(pair) for pair in true_losses(plan, table)) <= plan.loss + 1e-9
    assert plan.loss <= plan.known_loss + 2e-3
    assert len(plan.programs) <= 4
    assert plan.is_complete
    assert sum(one.num_extents for one in plan.programs) == 200


@pytest.mark.parametrize("seed", range(5))
def test_a_proof_finds_what_the_candidates_lack(seed):
    table = times(30, 200, seed)
    few = plan_families([TableFamily(table, shown=range(5))], Goal(programs=4), Watch())
    most = plan_families([TableFamily(table)], Goal(programs=4), Watch())
    assert max(max(pair) for pair in true_losses(few, table)) <= few.loss + 1e-9
    assert few.num_candidates > 5
    assert few.loss <= 1.25 * most.loss + 0.02


def test_families_are_chosen_together():
    table = times(20, 100, 1)
    one, other = TableFamily(table[:10]), TableFamily(table[10:])
    both = plan_families([one, other], Goal(programs=3), Watch())
    alone = plan_families([TableFamily(table)], Goal(programs=3), Watch())
    assert both.known_loss == pytest.approx(alone.known_loss, abs=5e-3)


@pytest.mark.parametrize("loss", [0.05, 0.15, 0.5])
def test_as_few_programs_as_keep_a_loss(loss):
    table = times(40, 150, 3)
    plan = plan_families([TableFamily(table)], Goal(loss=loss), Watch())
    assert plan.loss <= loss + 2e-3
    assert plan.goal == "count"
    assert plan.least_programs <= len(plan.programs)


def test_the_mean_loss_is_proven_too():
    table = times(30, 100, 4)
    weights = np.linspace(0, 1, 100)
    plan = plan_families([TableFamily(table)], Goal(programs=2, weights=weights / weights.sum()), Watch())
    best = table.min(axis=0)
    ends = [pair for one in plan.intervals for pair in ((one.first, one.first_s), (one.last, one.last_s))]
    assert all(seconds >= best[extent - 1] * (1 - 1e-12) for extent, seconds in ends)
    assert 0 <= plan.known_mean_loss <= plan.mean_loss <= 1.01 * (1 + plan.known_mean_loss) - 1 + 1e-9


def test_a_bound_that_is_missing_makes_the_loss_unknown_not_small():
    class Blind(TableFamily):
        def bounds(self, limits_s, watch):
            found = super().bounds(limits_s, watch)
            found.seconds[7] = 0.0
            return found._replace(is_complete=False)

    plan = plan_families([Blind(times(10, 20, 0))], Goal(programs=3), Watch())
    assert plan.loss == np.inf
    assert plan.worst_extent == 8
    assert not plan.is_complete


def test_plans_are_json_both_ways_and_dispatch():
    plan = plan_families([TableFamily(times(30, 64, 2))], Goal(programs=3), Watch())
    again = RangePlan.from_json(plan.to_json())
    assert again == plan
    for interval in plan.intervals:
        for extent in (interval.first, interval.last):
            assert again.program_of(extent) == interval.program
    table = plan.dispatch()
    assert (table["axis"], table["extents"]) == ("i", "1..64")
    assert len(table["intervals"]) == len(plan.intervals)
    for wrong in (0, 65, 1.0, True, "1"):
        with refuses(SpaceError):
            plan.program_of(wrong)


@pytest.mark.parametrize("text", ["{}", "[1]", "nonsense", b"\xff"])
def test_what_is_no_plan_is_one_line(text):
    with refuses(SpaceError) as caught:
        RangePlan.from_json(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kernels": 2, "loss": 0.1},
        {"kernels": 0},
        {"kernels": 9},
        {"kernels": 2.0},
        {"loss": 0},
        {"loss": -1.0},
        {"loss": "5%"},
        {"loss": 0.1, "weights": [1] * 8},
        {"kernels": 2, "weights": [1] * 7},
        {"kernels": 2, "weights": [0] * 8},
        {"kernels": 2, "weights": {1: -1.0}},
        {"kernels": 2, "weights": "many"},
    ],
)
def test_what_cannot_be_asked_for_is_refused(given):
    with refuses(SpaceError) as caught:
        anatune.plan_range(WORDS, "rtx3090", **given)
    assert "\n" not in str(caught.value)


def test_weights_may_be_of_some_extents_only():
    workload = anatune.core.workload.ranges.parse_ranged_workload(WORDS.split())
    np.testing.assert_allclose(check_goal(workload, 2, None, {8: 3, 1: 1}).weights, [0.25, *[0] * 6, 0.75])


@pytest.mark.parametrize(
    ("workload", "more"),
    [
        (anatune.matmul(8, 16, 16), {}),
        (anatune.matmul(8, 16, 16), {"axis": "i"}),
        ("matmul 1..8x16x16", {"axis": "i", "extents": "1..8"}),
        (3, {}),
        ("matmul 8..1x16x16", {}),
    ],
)
def test_what_is_no_range_is_refused(workload, more):
    with refuses(anatune.AnatuneError):
        anatune.plan_range(workload, "rtx3090", kernels=2, **more)
