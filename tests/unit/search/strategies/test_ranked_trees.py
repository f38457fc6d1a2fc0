"""The default strategy of CPUs with trees that other workloads have trained."""

import numpy as np
import pytest

pytest.importorskip("lightgbm")

import anatune
from anatune.api import model
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.model.learned.corrected import CorrectedModel
from anatune.model.learned.cross_fit import MeasuredPoints, fit_residual
from anatune.model.learned.residual import ResidualOptions
from anatune.search.base import make_strategy
from anatune.search.strategies.ranked import ModelStrategy

CPU = anatune.hardware("xeon_gold_6230r")
MODEL = model(anatune.matmul(96, 512, 256), CPU)
OTHERS = ((64, 512, 512), (128, 256, 512), (192, 512, 128))
START = MODEL.rank(16).points


def world(some, points):
    """A machine on which packed operands are slower than the model thinks."""
    packed = [at for at, name in enumerate(some.space.columns) if name.startswith("pack.")]
    return some.times(points)[0] * np.exp(0.4 * (points[:, packed] > 0).sum(axis=1))


@pytest.fixture(scope="module")
def trees():
    measured = []
    for shape in OTHERS:
        other = model(anatune.matmul(*shape), CPU)
        points = np.unique(np.concatenate([other.rank(16).points, other.space.sample_points(80, 1)]), axis=0)
        points = points[other.check(points) == 0]
        measured.append(MeasuredPoints(shape, CPU.name, other.feature_table(points), world(other, points)))
    return CorrectedModel(MODEL, fit_residual(measured, ResidualOptions(num_trees=60, num_leaves=7, num_members=1)))


def trial(schedule, number, factor=1.0):
    (time_s,) = world(MODEL, MODEL.space.point_of(schedule)[None, :])
    return Trial(schedule, Measurement(Outcome.OK, times_s=(float(time_s) * factor,)), number)


def run(strategy, count):
    trials = []
    for number in range(count):
        (schedule,) = strategy.ask(1)
        trials.append(trial(schedule, number))
        strategy.tell(trials[-1:])
    return trials


def best(trials):
    return min(one.measurement.time_s for one in trials)


def test_the_default_strategy_takes_trees_from_other_workloads(trees):
    strategy = make_strategy("model", trees, ranked=START)
    assert isinstance(strategy, ModelStrategy)
    assert strategy.ask(1) == [MODEL.space.schedule_of(START[0])]
    learned, plain = run(make_strategy("model", trees, ranked=START), 3), run(ModelStrategy(MODEL, ranked=START), 3)
    assert best(learned) < best(plain)


def test_trees_are_refitted_to_the_session(trees):
    """On a machine that errs in the other way than the records the session's own trials turn the trees round."""
    packed = [at for at, name in enumerate(MODEL.space.columns) if name.startswith("pack.")]

    def other_way(schedule, number):
        point = MODEL.space.point_of(schedule)
        time_s = float(MODEL.times(point[None, :])[0][0]) * np.exp(0.4 * (point[packed] == 0).sum())
        return Trial(schedule, Measurement(Outcome.OK, times_s=(time_s,)), number)

    strategy = make_strategy("model", trees, ranked=START)
    for number in range(24):
        (schedule,) = strategy.ask(1)
        strategy.tell([other_way(schedule, number)])
    strategy.ask(1)
    assert isinstance(strategy.model, CorrectedModel)
    points = np.array([MODEL.space.point_of(one) for one in (strategy.ask(1)[0], MODEL.space.schedule_of(START[0]))])
    before, after = trees.correction(points).log_ratio, strategy.model.correction(points).log_ratio
    assert not np.array_equal(before, after)
    assert trees.residual.delta_ is None  # the records' trees stay as they are, for other sessions


@pytest.mark.parametrize("order", ["forwards", "backwards", "at once"])
def test_what_it_asks_depends_on_what_it_was_told_alone(trees, order):
    trials = run(make_strategy("model", trees, ranked=START), 14)
    strategy = make_strategy("model", trees, ranked=START)
    if order == "at once":
        strategy.tell(trials)
    for one in trials if order == "forwards" else reversed(trials) if order == "backwards" else ():
        strategy.tell([one])
    other = make_strategy("model", trees, ranked=START)
    other.tell(trials)
    assert strategy.ask(6) == other.ask(6)


def test_trees_are_refitted_where_an_early_trial_comes_back_late(trees):
    """The trees see the first trials by number, also where as many others were there before."""
    strategy, other = make_strategy("model", trees, ranked=START), make_strategy("model", trees, ranked=START)
    trials = run(strategy, 11)
    asked = strategy.ask(3)
    trials += [
        trial(schedule, 11 + at, factor) for at, (schedule, factor) in enumerate(zip(asked, (1, 1, 4), strict=True))
    ]
    strategy.tell(trials[-1:])
    trials += [trial(strategy.ask(1)[0], 14)]
    strategy.tell(trials[11:13] + trials[14:])
    other.tell(trials)
    assert strategy.ask(3) == other.ask(3)
    ratios = [some.model.correction(START).log_ratio for some in (strategy, other)]
    np.testing.assert_array_equal(*ratios)


def test_the_unit_of_times_may_change_after_a_refit(trees):
    """A trial without a reference makes all others count by seconds: the trees and the best points follow."""
    strategy, other = make_strategy("model", trees, ranked=START), make_strategy("model", trees, ranked=START)
    trials = []
    for number in range(14):
        (schedule,) = strategy.ask(1)
        one = trial(schedule, number)
        references = (1e-4,) if number < 13 else ()
        trials.append(Trial(schedule, Measurement(Outcome.OK, "", one.measurement.times_s, references), number))
        strategy.tell(trials[-1:])
    other.tell(trials)
    assert strategy.ask(3) == other.ask(3)
    np.testing.assert_array_equal(*[some.model.correction(START).log_ratio for some in (strategy, other)])
