"""The default strategy: diverse first questions, and what it learns from answers."""

import math
import statistics

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import make_strategy
from anatune.search.learning.features import compute_features
from anatune.search.neighbours import Moves
from anatune.search.strategies.ranked import ModelStrategy
from tests.unit.search.worlds import varied

CPU = anatune.hardware("xeon_gold_6230r")
MODEL = model(anatune.matmul(96, 512, 256), CPU)
START = MODEL.rank(16).points


def kernels(schedules):
    points = np.array([MODEL.space.point_of(schedule) for schedule in schedules])
    return len(set(Moves(MODEL.space).kernel_ids(MODEL.space.encode(points)).tolist()))


def world(schedule):
    """A machine on which wide microkernels and unpacked operands are slower than the model thinks."""
    times, found = compute_features(MODEL, MODEL.space.point_of(schedule)[None, :])
    rows, vectors = 2.0 ** found.kernel[0, 0], 2.0 ** found.kernel[0, 2]
    wrong = 0.5 * abs(math.log2(vectors)) + 0.1 * abs(math.log2(rows / 6)) + 0.15 * (found.packs == 0).sum()
    return float(times[0]) * math.exp(wrong)


def run(strategy, trials):
    best = []
    for number in range(trials):
        (schedule,) = strategy.ask(1)
        seconds = world(schedule)
        strategy.tell([Trial(schedule, Measurement(Outcome.OK, times_s=(seconds,)), number)])
        best.append(min([seconds, *best[-1:]]))
    return best


def test_the_first_question_is_the_rankings_first_point():
    assert ModelStrategy(MODEL, ranked=START).ask(1) == [MODEL.space.schedule_of(START[0])]
    assert ModelStrategy(MODEL).ask(1) == [MODEL.space.schedule_of(START[0])]


def test_first_questions_are_not_near_identical():
    asked = ModelStrategy(MODEL, ranked=START).ask(12)
    assert kernels(asked) >= 6
    times = MODEL.times(np.array([MODEL.space.point_of(schedule) for schedule in asked]))[0]
    assert times.max() < 1.5 * times.min()


def test_it_learns():
    learned = run(ModelStrategy(MODEL, ranked=START), 30)
    blind = [MODEL.space.schedule_of(point) for point in MODEL.rank(30).points]
    assert learned[-1] < 0.95 * min(map(world, blind))
    drawn = [run(make_strategy("random", MODEL, seed=seed), 30)[-1] for seed in range(3)]
    assert learned[-1] < statistics.median(drawn)


def test_relative_times_are_used_where_all_trials_have_them():
    slow, fast = ModelStrategy(MODEL, ranked=START), ModelStrategy(MODEL, ranked=START)
    for strategy, speed in ((slow, 2.0), (fast, 1.0)):  # the same machine in a slow and in a fast minute
        for number in range(10):
            (schedule,) = strategy.ask(1)
            seconds = world(schedule) * (speed if number % 2 else 1.0)
            reference = 1e-3 * (speed if number % 2 else 1.0)
            measurement = Measurement(Outcome.OK, times_s=(seconds,), reference_times_s=(reference,))
            strategy.tell([Trial(schedule, measurement, number)])
    assert slow.ask(4) == fast.ask(4)


def test_failing_microkernels_are_left():
    strategy = ModelStrategy(MODEL, ranked=START)
    failed = strategy.ask(1)
    strategy.tell([Trial(failed[0], Measurement(Outcome.BUILD_ERROR, "no"))])
    following = strategy.ask(6)
    assert kernels([*failed, *following]) == kernels(following) + 1


def test_settings_have_an_effect():
    greedy = varied(ModelStrategy, num_first=0, exploration=0.0)(MODEL, ranked=START)
    assert kernels(greedy.ask(12)) <= kernels(ModelStrategy(MODEL, ranked=START).ask(12))


def test_nothing_legal():
    class Nothing(type(MODEL)):
        def check(self, points):
            return np.ones(len(points), dtype=np.int64)

        def times(self, points):
            return super().times(points)[0], np.ones(len(points), dtype=np.int64)

    made = Nothing(anatune.matmul(2, 2, 2), CPU)
    assert ModelStrategy(made, ranked=START[:0, :0].reshape(0, len(made.space.columns))).ask(3) == []


@pytest.mark.parametrize("workload", [anatune.matmul(1, 1, 1), anatune.reduction((7,), axes=(0,))])
def test_tiny_spaces(workload):
    made = model(workload, CPU)
    strategy = ModelStrategy(made)
    assert strategy.ask(1)
    strategy.ask(100)
    assert strategy.ask(1) == []
