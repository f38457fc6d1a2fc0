"""Orders of spaces: every beginning is the beginning of the ranking."""

import numpy as np
import pytest

import anatune
from anatune import api
from anatune.model.pruning.order import AnalyticalOrder


def model(extents, device, template=None, dtype="float32"):
    return api.model(anatune.matmul(*extents, dtype=dtype), anatune.hardware(device), template)


@pytest.mark.parametrize(
    ("extents", "template"), [((512, 1024, 256), None), ((16, 16, 8), None), ((32, 32, 32), "pipelined")]
)
def test_points_within_a_time_are_the_beginning_of_the_ranking(extents, template):
    chosen = model(extents, "rtx3090", template)
    ranked = chosen.rank(400).points
    times, _ = chosen.times(ranked)
    limit_s = float(times[300])
    points, found = chosen.points_within(limit_s)
    assert (found <= limit_s).all()
    assert (np.diff(found) >= 0).all()
    count = int((times <= limit_s).sum()) if times[-1] > limit_s else 400
    np.testing.assert_array_equal(points[:count], ranked[:count])


@pytest.mark.parametrize(
    ("extents", "device", "template", "dtype"),
    [
        ((512, 1024, 256), "rtx3090", None, "float32"),
        ((64, 64, 64), "rtx3090", "pipelined", "float32"),
        ((128, 128, 64), "a100", "triton", "float16"),
        ((512, 512, 512), "intel_xeon_gold_6130", None, "float32"),
    ],
)
def test_beginnings_agree(extents, device, template, dtype):
    chosen = model(extents, device, template, dtype)
    order = AnalyticalOrder(chosen)
    most = 600 if device == "intel_xeon_gold_6130" else 1500
    ten, hundred, many = (order.first(count) for count in (10, 100, most))
    assert len(many) == most
    np.testing.assert_array_equal(ten, hundred[:10])
    np.testing.assert_array_equal(hundred, many[:100])
    np.testing.assert_array_equal(hundred, chosen.rank(100).points)
    assert len(np.unique(many, axis=0)) == most


def test_distinct_points_have_times_of_their_own():
    chosen = model((512, 1024, 256), "rtx3090")
    points = AnalyticalOrder(chosen, distinct=True).first(700)
    assert len(points) == 700
    assert (np.diff(chosen.times(points)[0]) > 0).all()
    np.testing.assert_array_equal(points[:50], chosen.rank(50, distinct=True).points)


def test_a_space_ends():
    chosen = model((4, 4, 4), "rtx3090")
    order = AnalyticalOrder(chosen)
    assert len(order.first(10**9)) == order.ranking.num_legal
