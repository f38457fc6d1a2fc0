"""The default strategy on GPUs and on lists of points: it learns, it never asks twice, order of telling is nothing."""

import numpy as np
import pytest

import anatune
from anatune import api
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import make_strategy
from anatune.search.strategies.learned import LearnedStrategy
from bench.replay.table import TableModel
from tests.unit.search.worlds import varied

MATMUL = anatune.matmul(256, 256, 256)


@pytest.fixture(scope="module")
def table():
    model = api.model(MATMUL, anatune.hardware("rtx3090"))
    return TableModel(model, np.unique(model.space.sample_points(600, 5), axis=0))


@pytest.fixture(scope="module")
def times(table):
    """Recorded seconds that differ from the model's: little unrolling and narrow threads cost much more."""
    found = table.feature_table(table.space.points)
    threads = found.values[:, found.names.index("s0_thread")]
    return found.time_s * np.exp(0.8 * (threads > 3) + 0.1 * found.values[:, found.names.index("steps")])


def trial(table, times, schedule, number=0):
    time_s = times[table.row_of(schedule)]
    good = np.isfinite(time_s)
    measured = Measurement(Outcome.OK, times_s=(float(time_s),)) if good else Measurement(Outcome.RUN_ERROR, "no")
    return Trial(schedule, measurement=measured, number=number)


def search(table, times, trials, **settings):
    strategy = varied(LearnedStrategy, **settings)(table)
    asked = []
    for number in range(trials):
        found = strategy.ask(1)
        if not found:
            break
        asked.append(table.row_of(found[0]))
        strategy.tell([trial(table, times, found[0], number)])
    return asked


def test_it_is_the_default_strategy_of_lists_and_gpus(table):
    assert isinstance(make_strategy("model", table), LearnedStrategy)


def test_the_first_question_is_the_best_of_the_ranking(table):
    (first,) = varied(LearnedStrategy, exploration=0.0)(table).ask(1)
    assert table.row_of(first) == int(np.argmin(table.times(table.space.points)[0]))


def test_what_is_measured_changes_the_order(table, times):
    asked = search(table, times, 40)
    ranked = np.argsort(table.times(table.space.points)[0], kind="stable")[:40]
    best = times.min()
    assert times[asked].min() <= 1.02 * best
    assert times[asked].min() <= times[ranked].min()


def test_nothing_is_asked_twice_and_all_is_asked_in_the_end(table, times):
    few = TableModel(table.model, table.space.points[:30])
    asked = search(few, times[:30], 99)
    assert sorted(asked) == list(range(30))


def test_the_order_of_telling_is_nothing(table, times):
    strategies = [LearnedStrategy(table), LearnedStrategy(table)]
    trials = [trial(table, times, table.space.schedule_of(point)) for point in table.space.points[:20]]
    strategies[0].tell(trials)
    for one in reversed(trials):
        strategies[1].tell([one])
    asked = [[table.row_of(one) for one in strategy.ask(5)] for strategy in strategies]
    assert asked[0] == asked[1]


def test_failures_keep_it_away_from_points_alike(table, times):
    found = table.feature_table(table.space.points)
    wide = found.values[:, found.names.index("threads")] >= 7.0
    failing = np.where(wide, np.nan, times)
    careless = search(table, failing, 40, failure_penalty=0.0)
    careful = search(table, failing, 40, failure_penalty=3.0)
    assert wide[careful].sum() < wide[careless].sum()


def test_a_gpu_space_is_searched_around_what_is_best():
    model = api.model(MATMUL, anatune.hardware("rtx3090"))
    strategy = varied(LearnedStrategy, num_ranked=8, num_drawn=200, num_kept=50)(model)
    seen = set()
    for number in range(12):
        (schedule,) = strategy.ask(1)
        assert schedule not in seen
        seen.add(schedule)
        point = model.space.point_of(schedule)[None, :]
        assert int(model.check(point)[0]) == 0
        time_s = float(model.times(point)[0][0])
        strategy.tell([Trial(schedule, Measurement(Outcome.OK, times_s=(time_s,)), number=number)])
    assert strategy._around
