"""The Gaussian process that learns one value at a time, against the formulas with matrices."""

import math

import numpy as np
import pytest

from anatune.search.learning.process import GaussianProcess, fit_process


def matern(some, others, length):
    distance = np.sqrt(5.0) * np.linalg.norm(some[:, None] - others[None], axis=2) / length
    return (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)


def plain(places, values, candidates, length):
    """Return mean, standard deviation and the logarithm of the likelihood, computed with inverses."""
    scale = values.std()
    normal = (values - values.mean()) / scale
    covariance = matern(places, places, length) + 1e-6 * np.eye(len(places))
    inverse = np.linalg.inv(covariance)
    cross = matern(places, candidates, length)
    mean = values.mean() + scale * (normal @ inverse @ cross)
    std = scale * np.sqrt(1.0 - np.einsum("ij,ik,kj->j", cross, inverse, cross))
    likelihood = -0.5 * normal @ inverse @ normal - 0.5 * np.linalg.slogdet(covariance)[1]
    return mean, std, likelihood


@pytest.fixture
def world():
    rng = np.random.default_rng(3)
    places, pool = rng.random((12, 3)), rng.random((20, 3))
    return places, np.sin(7.0 * places.sum(axis=1)), pool


@pytest.mark.parametrize("first", [1, 5, 12])
def test_one_at_a_time_is_all_at_once(world, first):
    places, values, pool = world
    process = GaussianProcess(places[:first], values[:first], pool, 0.3, 12)
    for place, value in zip(places[first:], values[first:].tolist(), strict=True):
        process.tell(place, value)
    mean, std, likelihood = plain(places, values, pool, 0.3)
    for moments in (process.posterior(), process.predict(pool)):
        assert moments[0] == pytest.approx(mean, rel=1e-6, abs=1e-6)
        assert moments[1] == pytest.approx(std, rel=1e-4, abs=1e-6)
    assert process.log_likelihood == pytest.approx(likelihood, rel=1e-6)


def test_a_candidate_that_was_observed_is_certain(world):
    places, values, pool = world
    process = GaussianProcess(places, values, np.concatenate([places[:1], pool]), 0.3, 12)
    mean, std = process.posterior()
    assert mean[0] == pytest.approx(values[0], abs=1e-3)
    assert std[0] < 0.01 < std[1:].min()


def test_the_likeliest_length_is_taken(world):
    places, values, pool = world
    lengths = {length: plain(places, values, pool, length)[2] for length in (0.1, 0.3, 1.0)}
    fitted = fit_process(places, values, pool, 12)
    best = max(lengths, key=lengths.__getitem__)
    assert fitted.posterior()[0] == pytest.approx(plain(places, values, pool, best)[0], rel=1e-5)


def test_equal_values(world):
    places, values, pool = world
    mean, std = GaussianProcess(places, np.full_like(values, 0.25), pool, 0.3, 12).posterior()
    assert mean == pytest.approx(np.full(len(pool), 0.25))
    assert all(math.isfinite(one) for one in std)
