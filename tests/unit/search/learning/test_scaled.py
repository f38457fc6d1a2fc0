"""Covariances of features: symmetric, and what leaves add."""

import numpy as np

from anatune.search.learning.scaled import LeafCovariance, LeafFeatures, ScaledFeatures, SquaredExponential, fit_scale


def test_leaves_share_the_variance():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 3))
    scaled = fit_scale(values, np.ones(3), 0.5).apply(values)
    leaves = np.array([[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 0, 0], [9, 9, 9, 9], [0, 1, 2, 3]])
    many = LeafFeatures(*scaled, leaves)
    one = LeafFeatures(*(part[:1] for part in many))
    alone = SquaredExponential(4.0, 0.1).covariance(ScaledFeatures(*(part[:1] for part in scaled)), scaled)
    found = LeafCovariance(4.0, 0.1, 0.5).covariance(one, many)
    np.testing.assert_allclose(found, 0.5 * alone + 0.5 * 4.0 * np.array([1.0, 0.75, 0.5, 0.0, 1.0]))
    np.testing.assert_allclose(found[0], 4.0)
    none = many._replace(leaves=leaves[:, :0])
    np.testing.assert_allclose(LeafCovariance(4.0, 0.1, 0.5).covariance(none._make(p[:1] for p in none), none), alone)
