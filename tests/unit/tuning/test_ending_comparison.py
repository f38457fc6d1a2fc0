"""What is known of trials while they come: the same as from all of them."""

import random

import anatune
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.tuning.ending import BestTracker, equalise_speed, rank_trials

SCHEDULE = anatune.plan(anatune.matmul(16, 16, 16), anatune.hardware("xeon_gold_6230r"), top_k=1).best


def trial(number, rng, has_reference):
    if rng.random() < 0.3:
        return Trial(SCHEDULE, Measurement(Outcome.RUN_ERROR, "no"), number)
    times = (rng.choice((1.0, 2.0, 3.0)),) * 2
    references = (rng.choice((1.0, 2.0)),) * 2 if has_reference else ()
    return Trial(SCHEDULE, Measurement(Outcome.OK, times_s=times, reference_times_s=references), number)


def test_the_standing_is_that_of_the_ranking():
    rng = random.Random(0)
    for _ in range(50):
        standing, trials = BestTracker(), []
        numbers = rng.sample(range(40), 12)
        without = rng.choice((0, 20))
        assert (standing.best, standing.num_ran, standing.last_number) == (None, 0, -1)
        for number in numbers:
            trials.append(trial(number, rng, number >= without))
            standing.add(trials[-1])
            ranked = rank_trials(trials)
            assert standing.best is (ranked[0] if ranked else None)
            assert standing.num_ran == len(ranked)
            assert standing.last_number == max(one.number for one in trials)


def test_times_at_one_speed_are_in_the_order_of_the_ranking():
    rng = random.Random(1)
    for _ in range(50):
        trials = [trial(number, rng, rng.random() < 0.9 or number < 6) for number in range(8)]
        equal = equalise_speed(trials)
        times = [equal[trials.index(one)].measurement.time_s for one in rank_trials(trials)]
        assert times == sorted(times)
        first = next((pair for pair in zip(trials, equal, strict=True) if pair[0].measurement.time_s is not None), None)
        assert first is None or first[0].measurement.time_s == first[1].measurement.time_s
        standing, bests = BestTracker(), []
        for one in equal:
            standing.add(one)
            bests += [] if standing.best is None else [standing.best.measurement.time_s]
        assert bests == sorted(bests, reverse=True)
