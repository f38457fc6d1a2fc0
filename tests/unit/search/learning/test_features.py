"""Features of points, and how alike they make them."""

import math

import numpy as np

import anatune
from anatune.api import model
from anatune.search.learning.features import Similarity, compute_features
from anatune.search.learning.kriging import take_row

CPU = anatune.hardware("xeon_gold_6230r")
MODEL = model(anatune.matmul(96, 128, 64), CPU)
SPACE = MODEL.space


def features(tiles, **options):
    return compute_features(MODEL, SPACE.point_of(SPACE.schedule(tiles, **options))[None, :])


BASE = {"i": (1, 1, 2, 8, 6), "j": (1, 1, 1, 2, 64), "k": (1, 1, 32, 2)}


def test_numbers_of_one_point():
    times, found = features(BASE, packed=["B"])
    point = SPACE.point_of(SPACE.schedule(BASE, packed=["B"]))
    assert times[0] == MODEL.times(point[None, :])[0][0]
    assert np.exp2(found.kernel[0]).round().tolist() == [6, 1, 4, 1, 2]  # rows, single; vectors of 16, single; unroll
    assert np.exp2(found.tiles[0]).round().tolist() == [1, 48, 96, 96, 128, 128, 128, 64, 64, 64]
    assert found.packs.tolist() == [[0, 1]]
    assert (found.shares[0] >= 0).all()


def test_a_pair_counts_by_its_larger_microkernel():
    tiles = {"i": (1, 6, 1, 1, 16), "j": (1, 1, 1, 2, 64), "k": (1, 1, 32, 2)}
    _, found = features(tiles, calls={"i": 3})
    assert np.exp2(found.kernel[0]).round().tolist() == [6, 2, 4, 1, 2]


def test_covariance():
    similarity = Similarity()
    _, one = features(BASE, packed=["B"])
    _, unpacked = features(BASE, packed=[])
    _, other = features({**BASE, "i": (1, 1, 4, 1, 24)}, packed=["B"])
    assert math.isclose(similarity.covariance(one, one)[0], similarity.variance)
    near, far = similarity.covariance(one, unpacked)[0], similarity.covariance(one, other)[0]
    assert 0 < far < near < similarity.variance


def test_covariance_is_positive_definite():
    similarity = Similarity()
    _, many = compute_features(MODEL, SPACE.sample_points(60, 5))
    matrix = np.array([similarity.covariance(take_row(many, at), many) for at in range(60)])
    assert np.allclose(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9


def test_axes_of_one_iteration():
    tiny = model(anatune.matmul(1, 1, 1), CPU)
    times, found = compute_features(tiny, tiny.space.sample_points(3, 0))
    assert np.isfinite(times).all()
    assert np.isfinite(found.tiles).all()
