import numpy as np
import pytest

import anatune
from anatune.errors import SpaceError
from anatune.plots import candidates as module
from anatune.plots.candidates import as_candidates, candidates_of, models_of
from tests.wording import refuses


@pytest.fixture(scope="module")
def plan():
    return anatune.plan(anatune.matmul(64, 64, 64), "rtx3090", 5, distinct=True, correction="none")


def test_large_spaces_are_drawn_from(plan):
    shown = candidates_of(plan)
    assert [one.rank for one in shown.best] == [1, 2, 3, 4, 5]
    assert not shown.is_whole
    assert 0.9 * module.MOST_DRAWN <= len(shown.drawn) <= module.MOST_DRAWN
    assert shown.describe().startswith("Shown are the 5 best ones and ")
    best_s = plan.predictions[0].time_s
    assert all(one.prediction.legal and one.prediction.time_s >= best_s for one in shown)
    assert len({one.schedule.key for one in shown}) == len(list(shown))
    assert [one.schedule for one in candidates_of(plan)] == [one.schedule for one in shown]


def test_small_spaces_are_shown_whole():
    plan = anatune.plan(anatune.matmul(2, 1, 2), "rtx3090", 3, template="cuda", correction="none")
    shown = candidates_of(plan)
    assert shown.is_whole
    assert len(shown.best) + len(shown.drawn) == plan.num_legal == len(shown.spaces[0].points)
    assert shown.describe() == f"All {plan.num_legal} legal schedules are shown."


@pytest.mark.parametrize(
    ("device", "levels"), [("rtx3090", ("dram", "l2", "shared")), ("xeon_gold_6230r", ("l3", "l2", "l1"))]
)
def test_bytes_are_those_of_the_model(device, levels):
    plan = anatune.plan(anatune.matmul(64, 64, 64), device, 2, correction="none")
    shown = candidates_of(plan)
    assert shown.levels == levels
    model = models_of(plan)[plan.template]
    columns = model.evaluate(model.space.point_of(plan.best)[None, :]).columns
    names = {"shared": "shared_traffic_bytes"}
    for level, moved in shown.best[0].moved_bytes.items():
        assert moved == pytest.approx(columns[names.get(level, f"{level}_bytes")][0])
        assert shown.io_bounds[level] == pytest.approx(model.io_bounds[level])


def test_results_at_once_are_those_of_a_block_or_a_piece(plan):
    one = candidates_of(plan).best[0]
    tiles = one.schedule.tiles
    assert one.results_at_once == np.prod([*tiles["i"][1:], *tiles["j"][1:]])
    kept = as_candidates(plan, zip(plan.schedules[3:], plan.predictions[3:], strict=True))
    assert [one.rank for one in kept] == [1, 2]


def test_nothing_legal_is_an_error(plan):
    import dataclasses

    with refuses(SpaceError):
        candidates_of(dataclasses.replace(plan, schedules=[], predictions=[]))
