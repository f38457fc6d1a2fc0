"""What recorded tables are scored by."""

import numpy as np
import pytest

import anatune
from anatune import api
from bench.replay.recorded import model_of, workload_of

WORKLOAD = workload_of("conv_n1_c512_h7x7_k512_r3x3_s1x1_o7x7")


def test_recorded_kernels_are_points_of_divisors_that_are_not_split():
    device = anatune.hardware("rtx3080")
    plain, whole = model_of(WORKLOAD, device), api.model(WORKLOAD, device)
    assert len(plain.space.columns) == 32
    assert plain.space.size < whole.space.size
    points = plain.space.sample_points(50, 1)
    schedules = [plain.space.schedule_of(point) for point in points]
    same = np.array([whole.space.point_of(schedule) for schedule in schedules])
    np.testing.assert_array_equal(plain.evaluate(points).time_s, whole.evaluate(same).time_s)
    with pytest.raises(AssertionError):
        whole.evaluate(points)  # rows without the columns of splits
    cpu = anatune.hardware("xeon_8480")
    assert model_of(WORKLOAD, cpu).space.size == api.model(WORKLOAD, cpu).space.size
