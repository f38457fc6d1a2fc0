"""Search of large CPU spaces: the best point is found, few are looked at."""

import numpy as np
import pytest

import anatune
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.model.search import TileLattice


@pytest.fixture(scope="module")
def model():
    hardware = anatune.hardware("xeon_gold_6230r").with_threads(1)
    return CpuModel(anatune.conv2d(1, 128, 56, 56, 128, 3, 3, stride=2, padding=1, layout="NHWC"), hardware)


def test_few_microkernels_are_looked_at(model):
    # Of 10^12 points. A bound that is lost costs seconds: nothing else would show it.
    ranking = model.rank(1)
    assert ranking.guarantee.kind == "certified"
    assert ranking.guarantee.num_evaluated < 500_000
    assert ranking.guarantee.num_bounded < 10_000
    drawn, rules = model.times(model.space.sample_points(20_000, 0))
    assert model.times(ranking.points)[0][0] <= drawn[rules == 0].min()


def test_rows_of_the_lattice_are_numbered_by_divisors(model):
    lattice = TileLattice(model)
    np.testing.assert_array_equal(lattice.divisor_of @ lattice.stride, np.arange(len(lattice.tiles)))
    assert (np.lexsort(lattice.tiles.T[::-1]) == np.arange(len(lattice.tiles))).all()
    large = np.array([0, len(lattice.tiles) - 1, 5])
    fits = lattice.fits(large)
    for tile in range(0, len(lattice.tiles), 7):
        of_axes = fits[np.arange(len(lattice.stride)), lattice.divisor_of[tile]]
        np.testing.assert_array_equal(of_axes, (lattice.tiles[large] % lattice.tiles[tile] == 0).T)
