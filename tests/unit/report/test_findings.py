import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from anatune.core.trial import Measurement, Outcome, Trial
from anatune.measure.run.timing import paired_test
from anatune.report.findings import agreement, contests, failure_kinds, reference_speeds
from anatune.report.sessions import session_views
from tests.unit.records.making import schedule
from tests.unit.report.recorded import ran, recorded, session_of, usual


def trials_of(pairs):
    return [Trial(schedule(1), ran(measured), predicted_s=predicted) for predicted, measured in pairs]


def test_agreement_is_spearmans_with_its_interval():
    random = np.random.default_rng(3)
    predicted = random.integers(1, 9, 40) * 1e-3  # with ties
    measured = predicted * np.exp(random.normal(0, 0.6, 40))
    found = agreement(trials_of(zip(predicted, measured, strict=True)))
    times = [trial.measurement.time_s for trial in trials_of(zip(predicted, measured, strict=True))]
    assert found.rho == pytest.approx(spearmanr(predicted, times).statistic)
    assert found.low < found.rho < found.high
    width = 1.96 * math.sqrt((1 + found.rho**2 / 2) / 37)
    assert math.atanh(found.high) - math.atanh(found.low) == pytest.approx(2 * width, rel=1e-3)
    assert 0.5 < found.ordered < 1
    assert "95 % confidence" in found.describe()


def test_the_interval_covers_what_it_says():
    """Of samples of one bivariate normal distribution about 95 % of the intervals hold the coefficient of all."""
    random = np.random.default_rng(0)
    true = 6 / math.pi * math.asin(0.5 / 2)  # Spearman's of a normal distribution with r = 0.5
    held = 0
    for _ in range(200):
        x = random.normal(size=30)
        y = 0.5 * x + math.sqrt(0.75) * random.normal(size=30)
        found = agreement(trials_of(zip(np.exp(x), np.exp(y), strict=True)))
        held += found.low <= true <= found.high
    assert 180 <= held <= 200


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([], "No trial has both"),
        ([(1e-3, 2e-3)], "too few trials"),
        ([(1e-3, 2e-3), (1e-3, 3e-3), (1e-3, 4e-3)], "times are equal"),
        ([(1e-3, 2e-3), (2e-3, 3e-3), (3e-3, 4e-3)], "too few trials for a confidence"),
        (
            [(1e-3, 2e-3), (2e-3, 3e-3), (3e-3, 1e-3), (4e-3, 2.5e-3), (5e-3, 1.5e-3)],
            "do not show that the model orders",
        ),
    ],
)
def test_what_cannot_be_said_is_not_said(pairs, words):
    assert words in agreement(trials_of(pairs)).describe()


def test_failures_are_counted_by_kind_and_first_line():
    no = [Measurement(Outcome.BUILD_ERROR, text) for text in ("a  b\nmore", "a b", "c", "")]
    late = Measurement(Outcome.RUN_TIMEOUT, "too long")
    found = failure_kinds(Trial(schedule(1), one) for one in [ran(1e-3), late, *no])
    assert [(kind.outcome, kind.num) for kind in found] == [(Outcome.BUILD_ERROR, 4), (Outcome.RUN_TIMEOUT, 1)]
    assert found[0].messages == (("a b", 2), ("c", 1), ("no message", 1))


def test_machines_are_compared_with_themselves():
    measurements = [ran(1e-3, reference_s=base, worker=name) for base, name in ((1e-4, "a"), (5e-4, "b"), (2e-4, "a"))]
    (view,) = session_views(recorded(session_of(), measurements))
    found = reference_speeds(view)
    assert [(one.place, one.worker) for one in found] == [(0, "a"), (1, "b"), (2, "a")]
    assert found[1].median == 1.0
    assert found[0].median / found[2].median == pytest.approx(0.5)
    assert all(one.low < one.median < one.high for one in found)


def test_contenders_have_the_interval_of_the_paired_test():
    (view,) = session_views(usual())
    winner, close, far = contests(view.comparison, view.best_s)
    assert (winner.number, winner.low, winner.high) == (2, 1.0, 1.0)
    assert close.low <= close.ratio <= close.high
    assert (close.number, far.number) == (6, 0)
    assert far.low > 1.3
    samples = {one.number: one.measurement.times_s for one in view.comparison.contenders}
    test = paired_test(samples[0], samples[2])
    assert far.high == pytest.approx(math.exp(test.difference + test.half_width))
