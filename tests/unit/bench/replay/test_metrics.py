import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.replay import metrics

NAN = math.nan


def naive_spearman(x, y):
    return float(np.corrcoef(pd.Series(x).rank(), pd.Series(y).rank())[0, 1])


values = st.lists(st.integers(-5, 5), min_size=2, max_size=30)


def test_average_ranks_share_ties():
    assert metrics.average_ranks([10.0, 5.0, 10.0, np.inf]).tolist() == [2.5, 1.0, 2.5, 4.0]


@given(values, st.randoms(use_true_random=False))
def test_spearman_agrees_with_pandas(x, random):
    y = [random.choice(x) + random.randint(-1, 1) for _ in x]
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(metrics.spearman(x, y))
    else:
        assert metrics.spearman(x, y) == pytest.approx(naive_spearman(x, y))


def test_spearman_of_orders():
    x = np.arange(12.0)
    assert metrics.spearman(x, x**3) == pytest.approx(1.0)
    assert metrics.spearman(x, -x) == pytest.approx(-1.0)
    assert math.isnan(metrics.spearman([], []))


def test_spearman_measured_drops_failures_and_biased_rows():
    predicted = np.arange(14.0)
    measured = predicted.copy()
    measured[0] = NAN
    sample = np.ones(14, dtype=bool)
    measured[1], sample[1] = 100.0, False
    assert metrics.spearman_measured(predicted, measured, sample) == pytest.approx(1.0)
    sample[:5] = False  # nine are left: too few
    assert math.isnan(metrics.spearman_measured(predicted, measured, sample))


def test_model_order_puts_illegal_last_and_keeps_rows_of_ties():
    predicted = np.array([2.0, 1.0, 2.0, 0.5, 1.0])
    legal = np.array([True, True, True, False, True])
    assert metrics.model_order(predicted, legal).tolist() == [1, 4, 0, 2, 3]


def test_regret_of_a_perfect_and_of_a_reversed_model():
    measured = np.arange(1.0, 41.0)
    legal = np.ones(40, dtype=bool)
    assert metrics.top_k_regret(measured, measured, legal, (1, 8)) == {1: 1.0, 8: 1.0}
    assert metrics.top_k_regret(-measured, measured, legal, (1, 8, 40)) == {1: 40.0, 8: 33.0, 40: 1.0}


def test_regret_counts_failures_among_the_first():
    predicted = np.arange(12.0)
    measured = np.array([NAN, NAN, *np.arange(1.0, 11.0)])
    legal = np.ones(12, dtype=bool)
    assert metrics.top_k_regret(predicted, measured, legal, (1, 2, 3)) == {1: math.inf, 2: math.inf, 3: 1.0}
    legal[:2] = False
    assert metrics.top_k_regret(predicted, measured, legal, (1,)) == {1: 1.0}


def test_regret_of_too_few_points_is_not_defined():
    nine = np.arange(1.0, 10.0)
    assert math.isnan(metrics.top_k_regret(nine, nine, np.ones(9, dtype=bool), (1,))[1])


def test_fraction_faster_is_strict():
    sample = np.array([1.0, 2.0, 3.0, 4.0])
    assert metrics.fraction_faster(sample, 3.0) == 0.5
    assert metrics.fraction_faster(sample, 0.0) == 0.0
    assert math.isnan(metrics.fraction_faster(np.empty(0), 1.0))


def test_legality_shares():
    measured = np.array([1.0, 1.0, NAN, NAN, NAN])
    legal = np.array([True, False, False, False, True])
    assert metrics.legality_shares(measured, legal) == pytest.approx((0.5, 2 / 3))
    assert math.isnan(metrics.legality_shares(measured[:2], legal[:2])[1])


def test_percentage_errors():
    assert metrics.median_absolute_percentage_error([1.1, 2.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(10.0)
    assert metrics.mean_absolute_percentage_error([1.1, 2.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(110 / 3)
    assert math.isnan(metrics.mean_absolute_percentage_error([], []))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
def test_quantile_agrees_with_numpy(numbers, q):
    assert metrics.quantile(numbers, q) == pytest.approx(np.quantile(numbers, q), abs=1e-12)


def test_quantile_takes_inf_and_leaves_nan_out():
    assert metrics.quantile([1.0, NAN, 3.0], 0.5) == 2.0
    assert metrics.quantile([1.0, math.inf, math.inf, math.inf], 0.5) == math.inf
    assert metrics.quantile([1.0, math.inf], 0.0) == 1.0
    assert math.isnan(metrics.quantile([NAN], 0.5))
