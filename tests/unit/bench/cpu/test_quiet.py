"""Samples, probes beside them, and ratios: no device, no compiler."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cpu import quiet as quiet_cpu
from bench.cpu.probes import Reading
from bench.cpu.quiet import Sample, Thresholds

FAST, SLOW = Reading(100e9, 90e9), Reading(98e9, 60e9)  # the FMA probe alone would call the second one quiet
LIMITS = Thresholds(93e9, 80e9)


def sample(number, seconds, before=FAST, after=FAST):
    return Sample(number, seconds, before, after)


def test_quiet_needs_both_probes_on_both_sides():
    assert LIMITS.quiet(sample(0, 1.0))
    assert not LIMITS.quiet(sample(0, 1.0, before=SLOW))
    assert not LIMITS.quiet(sample(0, 1.0, after=SLOW))
    assert not LIMITS.quiet(sample(0, 1.0, after=Reading(92e9, 90e9)))
    assert not LIMITS.quiet(Sample(0, 1.0, FAST, FAST, running=0.5))  # another process had the core in between


def test_thresholds_are_relative_to_the_runs_own_best():
    samples = [sample(i, 1.0) for i in range(50)] + [sample(50, 1.0, before=SLOW, after=SLOW)]
    limits = Thresholds.of(samples)
    assert limits == Thresholds(pytest.approx(93e9), pytest.approx(0.93 * 90e9))
    assert sum(map(limits.quiet, samples)) == 50
    assert Thresholds.of([]) == Thresholds(0.0, 0.0)


def test_too_few_quiet_samples_are_named():
    quiet, noisy = [sample(i, 1.0) for i in range(3)], [sample(i, 2.0, before=SLOW) for i in range(3, 9)]
    assert quiet_cpu.quiet_or_all(quiet + noisy, LIMITS) == (quiet, True)
    assert quiet_cpu.quiet_or_all(quiet[:2] + noisy, LIMITS) == (quiet[:2] + noisy, False)


@pytest.fixture
def busy(monkeypatch):
    """The stand-ins for methods do nothing: let their CPU time count as all of their time."""
    monkeypatch.setattr(quiet_cpu, "RUNNING_SHARE", 0.0)


values = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20)


@given(values)
def test_geometric_mean(x):
    assert quiet_cpu.geometric_mean(x) == pytest.approx(math.prod(x) ** (1 / len(x)), rel=1e-9)


def test_geometric_mean_of_nothing():
    assert math.isnan(quiet_cpu.geometric_mean([]))
    assert quiet_cpu.geometric_mean([2.0, 8.0, math.nan]) == pytest.approx(4.0)


@given(values, st.floats(0, 1))
def test_percentile_lies_between(x, share):
    assert min(x) <= quiet_cpu.percentile(x, share) <= max(x)
    assert quiet_cpu.percentile(x, 0.0) == min(x)
    assert quiet_cpu.percentile(x, 1.0) == max(x)


def test_ratios_are_taken_within_rounds():
    ours = [sample(i, 1.0 * 2**i) for i in range(4)]  # the machine slows down by 2 each round
    theirs = [sample(i, 1.5 * 2**i) for i in range(4)]
    ratio = quiet_cpu.paired_ratio(ours, list(reversed(theirs)), LIMITS)
    assert ratio == quiet_cpu.Ratio(1.5, 1.5, 1.5, 4, True)


def test_ratios_leave_out_rounds_that_were_not_quiet_on_both_sides():
    ours = [sample(i, 1.0) for i in range(5)]
    theirs = [sample(i, 1.2) for i in range(3)] + [sample(3, 9.0, before=SLOW), sample(4, 9.0, after=SLOW)]
    assert quiet_cpu.paired_ratio(ours, theirs, LIMITS).value == pytest.approx(1.2)
    unquiet = quiet_cpu.paired_ratio(ours, theirs[1:], LIMITS)
    assert not unquiet.quiet
    assert unquiet.rounds == 4
    assert quiet_cpu.paired_ratio(ours, [sample(77, 1.0)], LIMITS) is None


def test_share_of_peak_uses_the_probe_beside_the_sample():
    slow = Reading(50e9, 50e9)
    samples = [sample(0, 1.0), sample(1, 2.0, before=slow, after=slow), sample(2, 1.0)]
    assert quiet_cpu.share_of_peak(samples, 80_000_000_000) == pytest.approx(0.8)


def test_methods_take_turns_until_enough_are_quiet(busy):
    asked = []
    readings = iter([SLOW] * 3 + [FAST] * 100)
    methods = {name: lambda name=name: asked.append(name) or 1.0 for name in "ab"}
    samples = quiet_cpu.interleave(methods, lambda: next(readings), rounds=3, known=[sample(0, 1.0)] * 50)
    assert asked == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 4, "b": 4}
    readings = iter([SLOW] * 100)
    samples = quiet_cpu.interleave(methods, lambda: next(readings), 3, most_rounds=5, known=[sample(0, 1.0)] * 50)
    assert [len(taken) for taken in samples.values()] == [5, 5]


def test_rounds_wait_for_a_quiet_machine_but_not_for_ever(monkeypatch, busy):
    monkeypatch.setattr(quiet_cpu, "WAIT_S", 0.001)
    readings = iter([SLOW] * 5 + [FAST] * 100)
    known = [sample(0, 1.0)] * 50
    samples = quiet_cpu.interleave({"a": lambda: 1.0}, lambda: next(readings), 2, known=known, patience_s=1.0)
    assert [taken.before for taken in samples["a"]] == [FAST, FAST]
    samples = quiet_cpu.interleave({"a": lambda: 1.0}, lambda: SLOW, 2, most_rounds=2, known=known, patience_s=0.003)
    assert [taken.before for taken in samples["a"]] == [SLOW, SLOW]
