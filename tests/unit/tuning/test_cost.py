"""What a session costs, told before it begins: the arithmetic of it, and what sessions leave for later ones."""

import math

import msgspec
import pytest

import anatune
from anatune.measure.run.cores import CorePlan
from anatune.measure.run.timing import CPU_PROTOCOL
from anatune.model.bound import TimeBound
from anatune.report.tuning import cost_text
from anatune.tuning.cost import (
    MeasuringSetup,
    SessionCost,
    estimate_session,
    run_seconds,
    seconds_a_trial,
    session_cost,
)
from tests.unit.tuning.fakes import HOST, WORKLOAD, failed, ran
from tests.wording import check_texts

TURNS = CorePlan((0,), (0,), 1, False)
APART = CorePlan((1,), (0,), 1, True)
GUESTS = CorePlan((1,), (0,), 1, True, 1)
BOUND = TimeBound(1e-3, "fma")
COST = SessionCost(
    trials=20, build_s=0.4, run_ratio=1.0, start_s=3.0, pace=1.0, compare_s=1.0, total_s=20.0, estimated_s=20.0
)


def measuring(cores=TURNS, **more):
    return MeasuringSetup(WORKLOAD, HOST, CPU_PROTOCOL, cores, **more)


def estimate(trials=64, predicted_s=1.31e-3, cores=TURNS, is_built=False, **more):
    return estimate_session(measuring(cores, is_built=is_built), trials, predicted_s, BOUND, **more)


def test_a_trial_by_hand():
    # 12 runs of 1 ms fill a sample, after one that is not timed: 13 ms, and 2.6 ms of the reference kernel; 3 samples
    # where they agree at once, 8 within the budget where they do not; three runs before.
    assert run_seconds(1e-3, WORKLOAD, CPU_PROTOCOL) == pytest.approx(3e-3 + 5.5 * 15.6e-3, rel=1e-2)
    assert run_seconds(2.0, WORKLOAD, CPU_PROTOCOL) == pytest.approx(3 * 2.0 + 2.0, rel=1e-2)  # one run is a sample
    large = anatune.matmul(4096, 4096, 8)  # comparing 16.8 million results takes some time, too
    assert run_seconds(1e-3, large, CPU_PROTOCOL) - run_seconds(1e-3, WORKLOAD, CPU_PROTOCOL) > 0.1


def test_who_builds_while_another_is_timed():
    assert seconds_a_trial(0.4, 0.1, TURNS) == pytest.approx(0.5)
    assert seconds_a_trial(0.4, 0.1, APART) == pytest.approx(0.4)
    assert seconds_a_trial(0.4, 0.1, GUESTS) == pytest.approx(0.25)  # two cores, 0.5 s of work
    assert seconds_a_trial(0.4, 0.1, CorePlan((), (), 4, True)) == pytest.approx(0.1)
    assert seconds_a_trial(0.05, 0.3, APART) == pytest.approx(0.3)


def test_a_machine_that_is_known_and_one_that_is_not():
    first, few, many = estimate(), estimate(earlier=[COST]), estimate(earlier=[COST] * 4)
    assert [one.basis for one in (first, few, many)] == ["first", "machine", "machine"]
    widths = [one.high_s / one.low_s for one in (first, few, many)]
    assert widths == sorted(widths, reverse=True)
    each_s = 0.4 + run_seconds(1.25 * 1.31e-3, WORKLOAD, CPU_PROTOCOL)
    assert many.seconds == pytest.approx(3.0 + 64 * each_s + 1.0)
    off = msgspec.structs.replace(COST, total_s=40.0)
    wide = estimate(earlier=[COST, off, COST, off])
    assert wide.high_s / wide.seconds == pytest.approx(math.exp(2 * math.log(2) / math.sqrt(2)))


def test_trials_that_are_there_say_more_than_other_sessions():
    slow = [msgspec.structs.replace(ran(1e-3), build_s=2.0, run_s=0.5)] * 4
    found = estimate(10, resumed=[*slow, failed()], earlier=[COST] * 4)
    assert (found.basis, found.build_s, found.run_s) == ("session", 2.0, 0.5)
    assert found.seconds == pytest.approx(3.0 + 10 * 2.5 + 1.0)
    assert estimate(10, resumed=slow[:3]).basis == "first"


def test_limits_and_other_machines():
    assert estimate(10_000, time_limit_s=60.0).seconds == pytest.approx(60.0, rel=0.1)
    assert estimate(10, time_limit_s=1e6).seconds == estimate(10).seconds
    there = estimate(cores=None)
    assert (there.seconds, there.basis, there.most_gain) == (None, "elsewhere", pytest.approx(1 - 1 / 1.31))
    assert estimate(is_built=True).build_s == 0.0


def test_in_words():
    text = cost_text(estimate(earlier=[COST] * 4))
    assert text == (
        "about 35 s for 64 trials (31 to 41); the plan's first choice is predicted to take 1.31 times "
        "the lower bound on the time: if that is right, tuning can save at most 24 % of it"
    )
    assert "about 8.3 min for 1000 trials (5.5 to 12)" in cost_text(estimate(1000, earlier=[COST]))
    assert "a first estimate, because this machine has no records yet, less if the session ends early" in cost_text(
        estimate(may_end_early=True)
    )
    assert " times " not in cost_text(estimate(predicted_s=0.9e-3))  # the bound itself
    check_texts([cost_text(estimate(predicted_s=0.9e-3))])
    guessed = msgspec.structs.replace(estimate(), bound=TimeBound(1e-3, "fma", ("compute.clock_hz",)))
    assert "at most" not in cost_text(guessed)
    check_texts([cost_text(guessed)])
    check_texts([cost_text(estimate(cores=None))])
    assert "for 1 trial (" in cost_text(estimate(1))


def test_what_a_session_leaves():
    trials = [msgspec.structs.replace(ran(1e-3), build_s=0.4, run_s=0.2)] * 6
    parts = {"start_s": 3.0, "measure_s": 7.2, "compare_s": 1.0, "estimated_s": 10.0}
    cost = session_cost(measuring(), trials, **parts)
    assert (cost.trials, cost.build_s, cost.pace) == (6, pytest.approx(0.4), pytest.approx(2.0))
    assert cost.run_ratio == pytest.approx(0.2 / run_seconds(1e-3, WORKLOAD, CPU_PROTOCOL))
    assert cost.total_s == pytest.approx(11.2)
    again = estimate(6, predicted_s=0.8e-3, earlier=[cost])
    assert again.seconds == pytest.approx(11.2)
    assert session_cost(measuring(), trials[:3], **parts) is None
    assert session_cost(measuring(), [failed()] * 9, **parts) is None
