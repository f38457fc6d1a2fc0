"""What sums in float64 say of a kernel's result."""

import numpy as np
import pytest

import anatune
from bench.fuzz.kernels import _fault

WORKLOAD = anatune.parse_workload("conv2d 1x1x3x3 1x1x2x2 --padding 1x1")
DATA, WEIGHT = np.arange(9.0).reshape(1, 1, 3, 3).astype(np.float32), np.ones((1, 1, 2, 2), np.float32)


def _convolved(weight, padding):
    """Return the convolution; `padding`: the number around, None where its products are left out."""
    around, result = np.full((5, 5), 0.0 if padding is None else padding), np.zeros((1, 1, 4, 4))
    around[1:4, 1:4] = DATA[0, 0]
    is_inside = np.pad(np.ones((3, 3), bool), 1)
    for place in np.ndindex(4, 4):
        window = tuple(slice(one, one + 2) for one in place)
        product = around[window] * weight[0, 0]
        result[0, 0][place] = (product if padding is not None else np.where(is_inside[window], product, 0)).sum()
    return result.astype(np.float32)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [1.0, np.nan, np.inf])
@pytest.mark.parametrize("padding", [0.0, None])
def test_padding_may_count_or_not(number, padding):
    weight = WEIGHT.copy()
    weight[0, 0, 1, 1] = number
    assert not _fault(WORKLOAD, [DATA, weight], _convolved(weight, padding), "cpu")


def test_what_differs_is_wrong():
    weight = WEIGHT.copy()
    weight[0, 0, 1, 1] = np.nan
    assert "elements wrong" in _fault(WORKLOAD, [DATA, weight], np.zeros((1, 1, 4, 4), np.float32), "cpu")
    assert "1 of 16" in _fault(
        WORKLOAD, [DATA, WEIGHT], _convolved(WEIGHT, 0.0) + (np.arange(16).reshape(1, 1, 4, 4) == 5), "cpu"
    )
