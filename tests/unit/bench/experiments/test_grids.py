"""Surfaces of equations: their optima against bounds and by hand."""

import numpy as np
import pytest

from anatune.templates.gpu.io_bound import contraction_traffic
from bench.experiments import grids


@pytest.fixture(scope="module")
def surfaces():
    return {one.name: one for one in grids.equation_surfaces()}


def test_io_of_a_matmul_is_above_the_lower_bound_and_near_it(surfaces):
    bound = contraction_traffic(float(grids.N) ** 3, grids.FIRST, 1.0)
    for name in ("one cache", "one cache, any size"):
        assert bound <= surfaces[name].best < 1.05 * bound
    # the boundary behind the second cache cannot move less than that cache allows
    behind = contraction_traffic(float(grids.N) ** 3, grids.SECOND, 1.0)
    assert surfaces["two caches"].best >= bound + behind


def test_the_eight_models_have_the_values_that_their_equations_say(surfaces):
    point = np.array([[6, 11]])
    wanted = {
        "ESS": 32 / 66, "LRW": 1 / 6 + 1 / 11 + 23 / 32, "TSS": 23 / 66, "EUC": 1 / 6 + 1 / 11,
        "MOON": 1 / 6 + 1 / 11 + 17 / 32, "TLI": 1 / 6 + 1 / 11 - 5 / 32 + 66 / 1024 + 3, "WMC": 32 / 66,
        "MHCF": (1 / 6 + 1 / 2) * (1 / 100 + 1 / 32) + 2 / 66,
    }  # fmt: skip
    for name, value in wanted.items():
        assert surfaces[name].model.times(point)[0][0] == pytest.approx(value)


def test_schedules_of_a_grid_lead_back_to_its_points(surfaces):
    model = surfaces["one cache"].model
    for point in model.space.sample_points(20, 0):
        assert model.check(point[None, :])[0] == 0
        assert np.array_equal(model.space.point_of(model.space.schedule_of(point)), point)
