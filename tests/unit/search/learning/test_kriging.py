"""The incremental posterior against the textbook's formulas."""

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.search.learning.features import Similarity, compute_features
from anatune.search.learning.kriging import Batch, Kriging, take_row

MODEL = model(anatune.matmul(96, 128, 64), anatune.hardware("xeon_gold_6230r"))
SIMILARITY = Similarity()


def batch(count, seed):
    return compute_features(MODEL, MODEL.space.sample_points(count, seed))[1]


@pytest.mark.parametrize("number", [1, 5, 40])
def test_posterior(number):
    observed, candidates = batch(number, 1), batch(30, 2)
    values = 0.1 * np.random.default_rng(0).standard_normal(number)
    correction, pool = Kriging(SIMILARITY), Batch(candidates, SIMILARITY)
    for at in range(number):
        correction.observe(take_row(observed, at))
        if at % 3 == 0:  # in parts
            pool.extend(correction.factor, correction.observed)
    pool.extend(correction.factor, correction.observed)
    mean, weights = correction.solve(dict(enumerate(values.tolist())))

    inside = np.array([SIMILARITY.covariance(take_row(observed, at), observed) for at in range(number)])
    inside += SIMILARITY.noise_std**2 * np.eye(number)
    across = np.array([SIMILARITY.covariance(take_row(observed, at), candidates) for at in range(number)])
    inverse, ones = np.linalg.inv(inside), np.ones(number)
    expected = ones @ inverse @ values / (ones @ inverse @ ones)
    assert mean == pytest.approx(expected)
    assert weights @ pool.rows == pytest.approx((values - expected) @ inverse @ across)
    assert pool.variance == pytest.approx(SIMILARITY.variance - np.einsum("ij,ik,kj->j", across, inverse, across))


def test_pending_points_lower_the_variance_and_leave_the_mean():
    observed, candidates = batch(10, 1), batch(30, 2)
    answers = []
    for pending in (0, 4):
        correction, pool = Kriging(SIMILARITY), Batch(candidates, SIMILARITY)
        for at in range(6 + pending):
            correction.observe(take_row(observed, at))
        pool.extend(correction.factor, correction.observed)
        mean, weights = correction.solve({at: 0.05 * at for at in range(6)})
        answers.append((mean + weights @ pool.rows, pool.variance))
    assert answers[0][0] == pytest.approx(answers[1][0])
    assert (answers[1][1] < answers[0][1] + 1e-12).all()
    assert (answers[1][1] < answers[0][1] - 1e-5).any()


def test_nothing_known():
    correction = Kriging(SIMILARITY)
    assert correction.solve({})[0] == 0.0
    correction.observe(batch(1, 0))
    mean, weights = correction.solve({})
    assert (mean, weights.tolist()) == (0.0, [0.0])


def test_one_hopeless_kernel_does_not_move_the_others():
    observed, candidates = batch(8, 1), batch(30, 2)
    means = []
    for outlier in (0.8, 4.0):
        correction, pool = Kriging(SIMILARITY), Batch(candidates, SIMILARITY)
        for at in range(8):
            correction.observe(take_row(observed, at))
        pool.extend(correction.factor, correction.observed)
        mean, weights = correction.solve({at: outlier if at == 3 else 0.0 for at in range(8)})
        means.append(mean + weights @ pool.rows)
    assert means[0] == pytest.approx(means[1])


def test_many_observations_grow_the_tables():
    observed = batch(70, 4)
    correction, pool = Kriging(SIMILARITY), Batch(batch(5, 1), SIMILARITY)
    for at in range(70):
        correction.observe(take_row(observed, at))
    pool.extend(correction.factor, correction.observed)
    assert correction.factor.shape == (70, 70)
    assert pool.rows.shape == (70, 5)
    assert (pool.variance >= 0).all()
