"""Many devices ask at once and answer in any order: legal, never twice, no device stands still, it ends."""

import math
import random
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anatune
from anatune.api import model
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import STARTS, STRATEGIES, make_strategy
from anatune.tuning.questions import Questions
from bench.replay.table import TableModel

GPU = model(anatune.matmul(16, 32, 48), anatune.hardware("rtx3090"))
MODELS = {
    "gpu": GPU,
    "cpu": model(anatune.matmul(17, 32, 12), anatune.hardware("xeon_gold_6230r")),
    "table": TableModel(GPU, np.unique(GPU.space.sample_points(150, 0), axis=0)),
    "tiny": model(anatune.matmul(2, 1, 2), anatune.hardware("xeon_gold_6230r")),
}
RANKED = {name: made.rank(4).points for name, made in MODELS.items()}
ENDS = ("droplet", "paper")
"""The published descent ends where no neighbour is faster: with few points left it waits for the last answers."""


def measured(made, schedule, number=0):
    point = made.space.point_of(schedule)
    draw = zlib.crc32(point.tobytes()) / 2**32
    if draw < 0.1:
        return Trial(schedule, Measurement(Outcome.RUN_ERROR, "it would not"), number)
    seconds = float(made.times(point[None, :])[0][0]) * math.exp(draw)
    return Trial(schedule, Measurement(Outcome.OK, times_s=(seconds, 1.02 * seconds)), number)


def new(name, start, task, seed=0):
    return make_strategy(name, MODELS[task], seed=seed, start=start, ranked=RANKED[task])


def lived(strategy, made, devices, trials, rng, lost=0.0):
    """Keep `devices` busy; return the keys of programs asked, and how often a device found nothing to do."""
    asked, waiting, idle, told = [], [], 0, 0
    while told < trials:
        while len(waiting) < devices:
            found = strategy.ask(rng.choice((1, 1, 1, 3)), ahead=True)
            if not found:
                idle += len(asked) < trials
                break
            for schedule in found:
                point = made.space.point_of(schedule)
                assert made.check(point[None, :])[0] == 0
                asked.append(made.program_key(point))
            waiting += found
        if not waiting:
            break
        rng.shuffle(waiting)
        some = [waiting.pop() for _ in range(min(len(waiting), rng.randint(1, 3)))]
        strategy.tell([measured(made, schedule, told + at) for at, schedule in enumerate(some)])
        told += len(some)
        if rng.random() < lost and waiting:
            waiting.pop()  # it never comes back
    assert len(set(asked)) == len(asked)
    return asked, idle


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(STRATEGIES)),
    start=st.sampled_from(STARTS),
    task=st.sampled_from(sorted(MODELS)),
    devices=st.sampled_from((1, 2, 5, 16, 70)),
    trials=st.integers(1, 150),
    order=st.randoms(use_true_random=False),
)
def test_any_interleaving(name, start, task, devices, trials, order):
    """Whatever comes back when: legal, never twice; of a large space no device ever waits for another."""
    strategy = new(name, start, task)
    asked, idle = lived(strategy, MODELS[task], devices, trials, order)
    assert asked
    if task in ("gpu", "cpu") and (name, start) != ENDS:
        assert len(asked) >= trials
        assert not idle


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_answers_that_never_come_stop_nobody(name, start):
    asked, idle = lived(new(name, start, "gpu"), GPU, 8, 60, random.Random(1), lost=0.2)
    if (name, start) != ENDS:
        assert len(asked) >= 60
        assert not idle


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_it_ends_when_a_small_space_is_used_up(name, start):
    """All points that one device finds, many find (but for the default's: its pool follows the best); then it ends."""
    one, many = new(name, start, "tiny"), new(name, start, "tiny")
    made = MODELS["tiny"]
    alone = []
    while found := one.ask(1):
        alone.append(made.program_key(made.space.point_of(found[0])))
        one.tell([measured(made, found[0])])
    asked, _ = lived(many, made, 16, 10**6, random.Random(2))
    if name != "model" and (name, start) != ENDS:
        assert set(asked) == set(alone)
    assert many.ask(4, ahead=True) == []


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_with_one_device_ahead_changes_nothing(name):
    for start in STARTS:
        one, other = new(name, start, "cpu"), new(name, start, "cpu")
        for number in range(60):
            asked = one.ask(1)
            assert asked == other.ask(1, ahead=True)
            trials = [measured(MODELS["cpu"], schedule, number) for schedule in asked]
            one.tell(trials)
            other.tell(trials)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_session_of_many_devices_goes_on(name, start):
    """What many measured is known to a new object: it asks none of it, and goes on."""
    strategy, rng, trials, waiting = new(name, start, "gpu"), random.Random(3), [], []
    while len(trials) < 60:
        waiting += strategy.ask(12 - len(waiting), ahead=True)
        if not waiting:
            break
        rng.shuffle(waiting)
        trials.append(measured(GPU, waiting.pop(), len(trials)))
        strategy.tell(trials[-1:])
    known = {GPU.program_key(GPU.space.point_of(trial.schedule)) for trial in trials}
    resumed = new(name, start, "gpu")
    resumed.tell(trials)
    asked, _ = lived(resumed, GPU, 12, 60, rng)
    assert not known & set(asked)
    assert asked or (name, start) == ENDS


@pytest.mark.parametrize("name", ["model", "dgd", "droplet", "genetic"])
def test_schedules_of_one_program_among_many_devices(name):
    """Of a program that several schedules share one is measured, and all are told; the lost one is put once more."""
    made, rng = MODELS["cpu"], random.Random(4)

    def program(schedule):
        return zlib.crc32(schedule.key.encode()) % 60

    first = made.space.schedule_of(RANKED["cpu"][0])
    questions = Questions(new(name, "model", "cpu"), name, first, program)
    put, asked, waiting, number, was_lost = [], {}, [], 0, set()
    for _ in range(3):  # rounds of a measurer that loses some answers
        questions.reopen()
        while True:
            while len(waiting) < 6 and len(questions) < 40:
                schedule = questions.next(ahead=True)
                assert schedule is not None
                put.append(schedule.key)
                asked[schedule.key] = schedule
                waiting.append(schedule)
            if not waiting:
                break
            rng.shuffle(waiting)
            schedule = waiting.pop()
            if rng.random() < 0.1 and schedule.key not in was_lost:
                was_lost.add(schedule.key)
                continue
            questions.tell(measured(made, schedule, number))
            number += 1
    assert number == len(questions) == 40
    assert len({program(one) for one in map(asked.get, put)}) == 40
    assert all(put.count(key) == 1 + (key in was_lost) for key in put)
    assert was_lost


def test_a_question_that_nobody_answers_is_put_twice_and_given_up():
    made = MODELS["cpu"]
    strategy = new("genetic", "model", "cpu")
    questions = Questions(strategy, "genetic", made.space.schedule_of(RANKED["cpu"][0]), lambda schedule: schedule.key)
    first = questions.next()
    questions.reopen()
    assert len(questions) == 0
    assert questions.next() == first
    questions.reopen()
    assert questions.next() != first
    assert len(questions) == 2
