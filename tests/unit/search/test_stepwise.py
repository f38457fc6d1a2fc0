"""A strategy that is a walk: what it waits for, and when it starts over."""

import numpy as np

from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.stepwise import StepwiseStrategy, TrialAnswer
from tests.unit.search.worlds import GPU, RANKED

POINTS = np.unique(GPU.space.sample_points(40, 0), axis=0)[:9]
SCHEDULES = [GPU.space.schedule_of(point) for point in POINTS]


class Walking(StepwiseStrategy):
    """Asks for points 0 to 2, then for the three after the best one's number."""

    def walk(self):
        self.answers = yield POINTS[:3]
        best = min((one.cost, at) for at, one in enumerate(self.answers) if one.cost is not None)[1]
        yield POINTS[[3 + best, 0]]
        yield POINTS[:0]
        yield POINTS[8:]


def told(number, time_s=None, reference_s=None):
    references = () if reference_s is None else (reference_s,)
    if time_s is None:
        return Trial(SCHEDULES[number], Measurement(Outcome.RUN_ERROR, "no"), number)
    measurement = Measurement(Outcome.OK, times_s=(time_s,), reference_times_s=references)
    return Trial(SCHEDULES[number], measurement, number)


def test_batches_are_waited_for():
    strategy = Walking(GPU, ranked=RANKED)
    assert strategy.ask(2) == SCHEDULES[:2]
    assert strategy.ask(4) == SCHEDULES[2:3]
    assert strategy.ask(4) == []
    strategy.tell([told(1, 2.0), told(0)])
    assert strategy.ask(4) == []
    strategy.tell([told(2, 3.0)])
    assert strategy.ask(4) == [SCHEDULES[4]]  # point 0 was measured already
    assert strategy.answers == [TrialAnswer(None), TrialAnswer(2.0, (2.0,)), TrialAnswer(3.0, (3.0,))]
    strategy.tell([told(4, 1.0)])
    assert strategy.ask(4) == [SCHEDULES[8]]
    strategy.tell([told(8, 1.0)])
    assert strategy.ask(4) == []


def test_a_trial_that_changes_an_answer_starts_the_walk_over():
    strategy = Walking(GPU)
    strategy.tell([told(0, 1.0), told(1, 2.0), told(2, 0.6), told(3, 1.0)])
    assert strategy.ask(1) == [SCHEDULES[5]]
    strategy.tell([Trial(SCHEDULES[0], Measurement(Outcome.OK, times_s=(0.001,)), 9)])  # median 0.5
    assert strategy.ask(3) == [SCHEDULES[8]]  # points 3 and 0 are known
    strategy.tell([told(5, 1.0), told(8, 1.0)])
    assert strategy.ask(3) == []


def test_relative_times_count_where_all_trials_have_them():
    strategy = Walking(GPU)
    strategy.tell([told(0, 1.0, 1.0), told(1, 2.0, 4.0), told(2, 3.0, 3.0)])
    assert strategy.ask(1) == [SCHEDULES[4]]
    strategy = Walking(GPU)
    strategy.tell([told(0, 1.0, 1.0), told(1, 2.0, 4.0), told(2, 3.0)])
    assert strategy.ask(1) == [SCHEDULES[3]]


def test_new_points_of_a_draw():
    strategy = Walking(GPU)
    points = strategy.draw_new(5, 1)
    assert len(points) == 5
    assert np.array_equal(points, Walking(GPU).draw_new(5, 1))
    assert not np.array_equal(points, Walking(GPU, seed=1).draw_new(5, 1))
    assert len(strategy.filter_new(np.concatenate([points, points]))) == len(np.unique(points, axis=0))


class Wandering(StepwiseStrategy):
    """Asks for two points, then for two more, then waits for what is missing; notes what it receives."""

    def walk(self):
        self.received = []
        for first in (0, 2):
            points = POINTS[first : first + 2]
            self.note(points, (yield points))
        while self.num_missing:
            self.note(POINTS[:0], (yield POINTS[:0]))
        self.note(POINTS[8:], (yield POINTS[8:]))

    def note(self, points, answers):
        self.received.append(
            [
                [(number(p), one.cost) for p, one in zip(*some, strict=True)]
                for some in self.receive_new(points, answers)
            ]
        )


def number(point):
    return next(at for at, one in enumerate(POINTS) if np.array_equal(one, point))


def test_ahead_a_walk_goes_on_without_answers_and_gets_them_when_they_are_there():
    strategy = Wandering(GPU)
    assert strategy.ask(4) == SCHEDULES[:2]
    strategy.tell([told(1, 2.0)])
    assert strategy.ask(4) == []
    assert strategy.ask(2, ahead=True) == SCHEDULES[2:4]
    assert strategy.received == [[[(1, 2.0)]]]
    assert strategy.num_missing == 1
    strategy.tell([told(2, 3.0), told(7, 0.5)])
    assert strategy.ask(4, ahead=True) == []  # it waits, and must not be finished for that
    assert strategy.received[1] == [[(2, 3.0)], [(7, 0.5)]]
    for _ in range(600):
        assert strategy.ask(1, ahead=True) == []
    strategy.tell([told(3), told(0, 1.0)])
    assert strategy.ask(4) == [SCHEDULES[8]]
    assert strategy.received[-1] == [[], [(0, 1.0), (3, None)]]
    strategy.tell([told(8, 1.0)])
    assert strategy.ask(4, ahead=True) == []
    assert strategy.received[-1] == [[(8, 1.0)]]
    assert strategy.num_missing == 0


def test_what_nobody_asked_for_is_kept_from_a_walk_that_does_not_go_ahead():
    strategy = Wandering(GPU)
    strategy.tell([told(number, 1.0) for number in (0, 1, 2, 3, 7)])
    assert strategy.ask(4) == [SCHEDULES[8]]
    assert [len(one) for one in strategy.received] == [1, 1]
    strategy.tell([told(8, 1.0)])
    assert strategy.ask(4) == []
    assert [len(one) for one in strategy.received] == [1, 1, 1]
