"""Trials that several spaces share: whose turn it is, what is told to whom, how a session goes on."""

import math

import pytest

import anatune
from anatune import templates
from anatune.core.accuracy import RELAXED
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import Strategy, make_strategy
from anatune.search.shared import SharedStrategy, SpaceMember
from anatune.templates import make_model
from tests.contracts.trial_template import JOINED, TRIAL

HARDWARE = anatune.hardware("xeon_gold_6230r").with_threads(1)
MATMUL = anatune.matmul(16, 32, 24)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(templates.TEMPLATES, TRIAL.name, TRIAL)
    monkeypatch.setitem(templates.TEMPLATES, JOINED.name, JOINED)


def member(name, slower=1.0):
    """Return a space that is predicted to be `slower` times as slow as the other one."""
    model = make_model(MATMUL, HARDWARE, name, RELAXED)
    ranked = model.rank(4).points
    model.times = scaled(model.times, slower / float(model.times(ranked[:1])[0][0]))
    return SpaceMember(model, make_strategy("grid", model, ranked=ranked), ranked)


def scaled(times, factor):
    return lambda points: (times(points)[0] * factor, times(points)[1])


def shared(slower=1.0, faster="trial"):
    """Return a strategy over two spaces, the first of which is predicted to be faster."""
    other = "joined" if faster == "trial" else "trial"
    return SharedStrategy([member(faster), member(other, slower)])


def answer(schedule, number, world, relative=False):
    """Return a trial of a world: template -> seconds of all of its schedules; None: they fail."""
    time_s = world[schedule.template]
    if time_s is None:
        return Trial(schedule, Measurement(Outcome.BUILD_ERROR, "it would not"), number)
    return Trial(
        schedule, Measurement(Outcome.OK, times_s=(time_s,), reference_times_s=(2.0,) if relative else ()), number
    )


def lived(strategy, world, count, **more):
    """Return the templates of the schedules that were asked, one after the other."""
    asked = []
    for number in range(count):
        (schedule,) = strategy.ask(1)
        strategy.tell([answer(schedule, number, world, **more)])
        asked.append(schedule.template)
    return asked


def test_it_is_a_strategy_that_asks_what_its_members_do():
    strategy = shared()
    assert isinstance(strategy, Strategy)
    asked = strategy.ask(6)
    assert len({one.key for one in asked}) == 6
    assert strategy.ask(0) == []


def test_what_is_far_behind_is_not_tried():
    assert set(lived(shared(slower=1.5), {"trial": 1.0, "joined": 1.5}, 12)) == {"trial"}


def test_what_is_little_behind_is_tried_and_left():
    asked = lived(shared(slower=1.1), {"trial": 1.0, "joined": 1.3}, 20)
    assert asked.count("joined") == 1


def test_what_the_model_has_wrong_is_found_out():
    asked = lived(shared(slower=1.1), {"trial": 1.0, "joined": 0.9}, 20)
    assert asked[0] == "trial"
    assert asked.count("joined") >= 15


def test_equals_take_turns():
    asked = lived(shared(slower=1.0), {"trial": 1.0, "joined": 1.0}, 20)
    assert 8 <= asked.count("joined") <= 12


@pytest.mark.parametrize("relative", [False, True])
def test_a_bias_that_all_share_does_not_count(relative):
    """Everything takes 1.6 times as long as predicted: an untried space is judged by that, too."""
    asked = lived(shared(slower=1.05), {"trial": 1.6, "joined": 1.7}, 10, relative=relative)
    assert "joined" in asked[:2]
    assert asked.count("joined") <= 4


def test_failures_cost_as_many_trials_as_one_that_runs_is_likely_to():
    asked = lived(shared(), {"trial": None, "joined": 1.0}, 20)
    assert asked.count("joined") >= 17
    some = lived(shared(slower=3.0), {"trial": None, "joined": 3.0}, 20)
    assert "joined" in some


def test_a_finished_member_leaves_the_trials_to_the_others():
    model = make_model(anatune.matmul(2, 1, 1), HARDWARE, "trial")
    few = SpaceMember(model, make_strategy("grid", model), model.rank(1).points)
    strategy = SharedStrategy([few, member("joined", 1e3)])
    asked = lived_of(strategy, 12)
    assert asked.count("trial") == model.rank(100).num_legal
    assert asked.count("joined") == 12 - asked.count("trial")


def lived_of(strategy, count):
    asked = []
    for number in range(count):
        (schedule,) = strategy.ask(1)
        strategy.tell([answer(schedule, number, {"trial": 1.0, "joined": 1.0})])
        asked.append(schedule.template)
    return asked


def test_the_order_of_telling_does_not_matter():
    world = {"trial": 1.0, "joined": 0.95}
    first, trials = shared(slower=1.02), []
    for number in range(9):
        (schedule,) = first.ask(1)
        trials.append(answer(schedule, number, world))
        first.tell(trials[-1:])
    following = [one.key for one in first.ask(3)]
    for told in ([trials], [trials[::-1]], [trials[5:], trials[:5]]):
        other = shared(slower=1.02)
        for part in told:
            other.tell(part)
        assert [one.key for one in other.ask(3)] == following


def test_schedules_of_one_program_count_as_one_trial():
    strategy, other = shared(slower=1.02), shared(slower=1.02)
    world = {"trial": 1.0, "joined": 1.0}
    (one,) = strategy.ask(1)
    known = answer(one, 0, world)
    strategy.tell([known])
    aliases = [Trial(alias, known.measurement, 0) for alias in make_model(MATMUL, HARDWARE, "trial").space.sample(5, 0)]
    other.ask(1)
    other.tell([known, *aliases])
    assert [one.template for one in strategy.ask(4)] == [one.template for one in other.ask(4)]


def test_foreign_trials_are_left_out():
    strategy = shared()
    plain = make_model(MATMUL, HARDWARE, "cpu").space.schedule({})
    strategy.tell([answer(plain, 0, {"cpu": 1.0})])
    other = anatune.matmul(4, 4, 4)
    strange = make_model(other, HARDWARE, "trial").space.schedule({})
    strategy.tell([answer(strange, 1, {"trial": 1.0})])
    assert [one.key for one in strategy.ask(3)] == [one.key for one in shared().ask(3)]
    assert math.isfinite(strategy._bounds()[0])
