"""The matrices give the convolution; errors grow as they are said to."""

import numpy as np
import pytest

from anatune.templates.winograd.minimal_filtering import filtering


def correlated(data, kernel):
    return np.array(
        [[(data[y : y + 3, x : x + 3] * kernel).sum() for x in range(len(data) - 2)] for y in range(len(data) - 2)]
    )


@pytest.mark.parametrize("size", [2, 4])
def test_tiles_are_those_of_the_convolution(size):
    transforms, rng = filtering(size), np.random.default_rng(size)
    assert (transforms.outputs, transforms.inputs, transforms.frequencies) == (size, size + 2, (size + 2) ** 2)
    data, kernel = rng.random((size + 2, size + 2)), rng.random((3, 3))
    products = (transforms.kernel @ kernel @ transforms.kernel.T) * (transforms.data @ data @ transforms.data.T)
    np.testing.assert_allclose(transforms.result @ products @ transforms.result.T, correlated(data, kernel), rtol=1e-12)


def test_integers_stay_integers_modulo_two_to_the_32nd():
    """With 2 G in the place of G, and inputs of 16 bits, four times the convolution, however far sums overflow."""
    transforms, rng = filtering(2), np.random.default_rng(0)
    data, kernel = rng.integers(0, 256, (1800, 4, 4)), rng.choice([-128, 127], (1800, 3, 3))
    data[:, :, 1:3], kernel[:900] = 255, -128
    forward, window, back = (
        matrix.astype(np.int64) for matrix in (transforms.data, 2 * transforms.kernel, transforms.result)
    )
    v, u = forward @ data @ forward.T, window @ kernel @ window.T
    assert max(np.abs(v).max(), np.abs(u).max()) < 2**15
    total = np.zeros((4, 4), np.int32)
    for first, second in zip(v.astype(np.int32), u.astype(np.int32), strict=True):
        total += first * second
    outputs = (back.astype(np.int32) @ total @ back.T.astype(np.int32)) >> 2
    assert np.array_equal(outputs, sum(correlated(one, other) for one, other in zip(data, kernel, strict=True)))


def test_operations_are_the_fewest_that_pairs_of_points_allow():
    """Lavin and Gray count 32 and 24 for F(2x2, 3x3); a pair of points takes 4 multiply-adds of one dimension."""
    assert (filtering(2).data_operations, filtering(2).result_operations) == (32, 24)
    assert (filtering(4).data_operations, filtering(4).result_operations) == (2 * 6 * 12, 10 * 12)


@pytest.mark.parametrize(("size", "channels"), [(2, 16), (4, 16), (4, 128)])
def test_measured_errors_stay_below_the_growth(size, channels):
    """In float32, over those of a direct sum in the worst order: 0.35 eps sqrt(9 C) of an element's spread."""
    transforms, rng = filtering(size), np.random.default_rng(0)
    data = (rng.random((400, channels, size + 2, size + 2)) - 0.5).astype(np.float32)
    kernel = (rng.random((400, channels, 3, 3)) - 0.5).astype(np.float32)
    forward, window, back = (
        matrix.astype(np.float32) for matrix in (transforms.data, transforms.kernel, transforms.result)
    )
    total = np.zeros((400, size + 2, size + 2), dtype=np.float32)
    exact = np.zeros((400, size + 2, size + 2))
    for c in range(channels):
        total += (window @ kernel[:, c] @ window.T) * (forward @ data[:, c] @ forward.T)
        wide = transforms.kernel @ kernel[:, c].astype(float) @ transforms.kernel.T
        exact += wide * (transforms.data @ data[:, c].astype(float) @ transforms.data.T)
    error = (back @ total @ back.T) - transforms.result @ exact @ transforms.result.T
    spread = np.sqrt(9 * channels) / 12.0
    direct = 0.35 * 2.0**-23 * np.sqrt(9 * channels) * spread
    measured = np.sqrt(np.square(error).mean())
    growth = transforms.error_growth(channels)
    assert 0.05 * growth * direct < measured < growth * direct


def test_more_points_err_more():
    assert filtering(2).error_growth(64) == 1.0
    assert 2.0 < filtering(4).error_growth(64) < 5.0
    assert filtering(4).error_growth(1) > filtering(4).error_growth(64)
