"""Steps through a CPU space and the first pool."""

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.search.neighbours import Moves, make_first_pool

CPU = anatune.hardware("xeon_gold_6230r")
MODELS = {
    "matmul": model(anatune.matmul(96, 128, 64), CPU),
    "conv2d": model(anatune.conv2d(n=1, c=8, h=14, w=14, k=16, r=3, s=3, padding=1), CPU),
}


@pytest.fixture(params=sorted(MODELS))
def made(request):
    return MODELS[request.param]


def test_neighbours_are_points_of_the_space(made):
    moves = Moves(made.space)
    for point in made.space.sample_points(5, 2):
        at = made.space.encode(point)[0]
        near = moves.neighbours(at, 50, np.random.default_rng(0))
        assert (near >= 0).all()
        assert (near < np.array(made.space.radices)).all()
        changed = (near != at).sum(axis=1)
        assert set(changed[:-50].tolist()) == {1}
        assert set(changed[-50:].tolist()) <= {1, 2}
        again = moves.neighbours(at, 50, np.random.default_rng(0))
        assert np.array_equal(near, again)


def test_a_step_moves_a_factor_between_two_levels_or_changes_the_pair(made):
    moves, space = Moves(made.space), made.space
    at = space.encode(space.sample_points(1, 7))[0]
    for index, axis in enumerate(space.axes):
        levels = len(space.levels[axis])
        table = space.table(axis)
        for other in moves.nearby_tilings(at, index):
            differing = (table[other][:levels] != table[at[index]][:levels]).sum()
            assert differing in (0, 2)


def test_changes_keep_to_the_space_and_often_to_the_microkernel(made):
    moves, space = Moves(made.space), made.space
    parents = space.encode(space.sample_points(400, 3))
    children = moves.mutate_rows(parents, np.random.default_rng(1))
    assert (space.encode(space.decode(children)) == children).all()
    same = moves.kernel_ids(parents) == moves.kernel_ids(children)
    assert 0.2 < same.mean() < 0.95


def test_first_pool_has_many_microkernels_near_the_best(made):
    start = made.rank(4).points
    moves = Moves(made.space)
    pool = make_first_pool(made, moves, start, 0)
    times, rules = made.times(pool)
    assert (rules == 0).all()
    assert np.array_equal(pool[: len(start)], start)
    assert times.max() <= 1.61 * times.min()
    assert len(np.unique(moves.kernel_ids(made.space.encode(pool)))) > 40
    assert np.array_equal(pool, make_first_pool(made, moves, start, 0))
