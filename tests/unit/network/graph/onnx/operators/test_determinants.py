"""Determinants."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from tests.unit.network.graph.onnx.one_node import found, model_of, read


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 2, 5, 5), (12, 12)])
def test_as_numpy(shape):
    matrices = np.random.default_rng(0).standard_normal(shape)
    np.testing.assert_allclose(found("Det", matrices)[0], np.linalg.det(matrices), rtol=1e-9)


def test_zeros_on_the_diagonal_and_singular_matrices():
    matrices = np.array([[[0, 2, 0], [3, 0, 0], [0, 0, 5]], [[1, 2, 3], [2, 4, 6], [0, 0, 1]], np.zeros((3, 3))])
    np.testing.assert_array_equal(found("Det", matrices)[0], [-30, 0, 0])


def test_large_matrices_are_refused():
    with pytest.raises(WorkloadError, match="is of 65 rows, expected 64 at most"):
        read(model_of("Det", np.zeros((65, 65), np.float32)))


@pytest.mark.parametrize("size", [1.0, 1e12])
def test_digits_that_cancel_and_products_that_overflow(size):
    matrix = np.array([[89, -1e4, 20, 1], [-20, 0, 0, 1], [20, 0.5, 1e-6, 0], [3e-5, 1, 89, 1e4]], np.float32)
    matrix = matrix * np.array([size, size, size, size**-3], np.float32)[:, None]
    (output,) = read(model_of("Det", matrix)).outputs
    np.testing.assert_allclose(output.array, np.linalg.det(matrix.astype(np.float64)), rtol=1e-6)
