import math

import numpy as np
import pytest

from anatune.measure.run.timing import TimingProtocol, alternate, beside, make_sampler, paired_test, sample_candidate

PROTOCOL = TimingProtocol()


class Machine:
    """A clock that stands still but for the kernels it runs; its speed may drift."""

    def __init__(self, seed=0, noise=0.0, drift=None):
        self.now = 0.0
        self.rng = np.random.default_rng(seed)
        self.noise = noise
        self.drift = drift or (lambda now: 1.0)
        self.runs = {}

    def clock(self):
        return self.now

    def kernel(self, seconds, name="kernel"):
        def call():
            self.runs[name] = self.runs.get(name, 0) + 1
            self.now += seconds * self.drift(self.now) * math.exp(self.noise * self.rng.standard_normal())

        return make_sampler(call, self.clock)

    def reference(self, seconds=0.0005):
        return beside(self.kernel(seconds, "reference"), PROTOCOL.reference_s)


def sample(machine, seconds, protocol=PROTOCOL, **more):
    return sample_candidate(machine.kernel(seconds), machine.reference(), protocol, clock=machine.clock, **more)


def test_timed_counts_all_runs_between_two_looks_at_the_clock():
    machine = Machine()
    assert machine.kernel(0.25)(8) == 2.0
    assert machine.runs == {"kernel": 8}


@pytest.mark.parametrize("seconds", [1e-5, 0.002, 0.05, 3.0])
def test_samples_are_seconds_of_one_run_beside_the_reference(seconds):
    samples = sample(Machine(), seconds)
    assert samples.times_s == pytest.approx([seconds] * len(samples.times_s))
    assert samples.reference_times_s == pytest.approx([0.0005] * len(samples.times_s))
    assert not samples.stopped_early


def test_a_sample_stands_between_two_of_the_reference():
    """A machine that gets slower all the time: the mean of both is the reference's speed of the sample's own time."""
    machine = Machine()
    answers = iter([1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0, 17.0])
    samples = sample_candidate(machine.kernel(0.002), lambda: next(answers), PROTOCOL, clock=machine.clock)
    assert samples.reference_times_s[:3] == (2.0, 4.0, 6.0)
    answers = iter([1.0, 3.0, 5.0, 7.0, 9.0])
    contenders = [machine.kernel(0.002), machine.kernel(0.003)]
    first, second = alternate(
        contenders, lambda: next(answers), PROTOCOL, budget_s=0.1, least_rounds=2, clock=machine.clock
    )
    assert (first.reference_times_s, second.reference_times_s) == ((2.0, 8.0), (4.0, 6.0))


def test_a_quiet_machine_needs_the_least_number_of_samples_and_a_loud_one_more():
    assert len(sample(Machine(), 0.002).times_s) == PROTOCOL.least_samples
    loud = sample(Machine(noise=0.2), 0.002)
    assert PROTOCOL.least_samples < len(loud.times_s) <= PROTOCOL.most_samples


def test_a_normal_kernel_costs_a_tenth_of_a_second_and_a_slow_one_few_runs():
    machine = Machine(noise=0.2)
    sample(machine, 0.002)
    assert machine.now < 0.16
    machine = Machine()
    assert len(sample(machine, 3.0).times_s) == 1
    assert machine.runs["kernel"] == 1


def test_ratios_cancel_drift():
    machine = Machine(drift=lambda now: 1 + now * 5)
    samples = sample(machine, 0.002)
    assert max(samples.times_s) / min(samples.times_s) > 1.15
    assert max(samples.ratios) / min(samples.ratios) < 1.05


def test_clearly_slower_candidates_stop_early():
    incumbent = 0.002 / 0.0005
    slow = sample(Machine(), 0.003, incumbent=incumbent)
    assert slow.stopped_early
    assert len(slow.times_s) == 2
    assert not sample(Machine(), 0.0025, incumbent=incumbent).stopped_early
    assert not sample(Machine(), 0.001, incumbent=incumbent).stopped_early


@pytest.mark.parametrize("needed", [1, 3, 5])
def test_slow_candidates_get_as_many_samples_as_are_needed(needed):
    protocol = TimingProtocol(needed_samples=needed)
    stopped = sample(Machine(), 0.009, incumbent=1.0, protocol=protocol)
    assert stopped.stopped_early
    assert len(stopped.times_s) == max(2, needed)
    patient = sample(Machine(), 1.2, protocol=protocol)
    assert len(patient.times_s) == min(needed, 5)
    assert len(sample(Machine(), 2.9, protocol=TimingProtocol(needed_samples=5)).times_s) == 2


def test_paired_test_agrees_with_the_t_table():
    ratios = np.exp([0.01, 0.03, 0.02, 0.05, 0.04])
    contest = paired_test(ratios, np.ones(5))
    assert contest.difference == pytest.approx(0.03)
    assert contest.half_width == pytest.approx(2.776 * np.std([1, 3, 2, 5, 4], ddof=1) / 100 / math.sqrt(5), rel=1e-3)
    assert contest.decided
    assert not paired_test([1.0, 1.1], [1.1, 1.0]).decided
    assert not paired_test([2.0], [1.0]).decided


def test_alternating_contenders_find_a_difference_that_drift_would_hide():
    machine = Machine(noise=0.02, drift=lambda now: 1 + 0.5 * math.sin(now / 7))
    kernels = [machine.kernel(0.0021), machine.kernel(0.002), machine.kernel(0.004)]
    first, second, third = alternate(kernels, machine.reference(), PROTOCOL, budget_s=20, clock=machine.clock)
    assert first.stopped_early
    assert third.stopped_early
    assert not second.stopped_early
    assert len(third.times_s) <= len(first.times_s) <= len(second.times_s)
    assert machine.now < 20


def test_equal_contenders_end_when_the_interval_is_narrow_and_the_budget_ends_the_rest():
    machine = Machine(noise=0.001)
    equal = alternate(
        [machine.kernel(0.002), machine.kernel(0.002)], machine.reference(), PROTOCOL, budget_s=60, clock=machine.clock
    )
    assert machine.now < 10
    assert all(len(samples.times_s) >= 5 for samples in equal)
    machine = Machine(noise=0.3)
    alternate(
        [machine.kernel(0.05), machine.kernel(0.05)], machine.reference(), PROTOCOL, budget_s=2, clock=machine.clock
    )
    assert machine.now < 3


def test_one_contender_is_timed_and_none_is_no_work():
    machine = Machine()
    (alone,) = alternate([machine.kernel(0.002)], machine.reference(), PROTOCOL, budget_s=5, clock=machine.clock)
    assert len(alone.times_s) == 5
    assert alternate([], machine.reference(), PROTOCOL, budget_s=5, clock=machine.clock) == []
