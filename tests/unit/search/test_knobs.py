"""Knobs and genes: steps on sorted lists of values, whatever the space."""

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.search.knobs import make_knobs
from anatune.templates import make_model
from bench.replay.table import TableModel

GPU = anatune.hardware("rtx3090")
CPU = anatune.hardware("xeon_gold_6230r")
MATMUL = model(anatune.matmul(64, 96, 128), GPU)
MODELS = {
    "gpu": MATMUL,
    "cpu": model(anatune.conv2d(n=1, c=8, h=14, w=14, k=17, r=3, s=3, padding=1), CPU),
    "large": model(anatune.conv2d(n=128, c=64, h=224, w=224, k=64, r=3, s=3, padding=1), GPU),
    "pipelined": make_model(anatune.matmul(64, 96, 128), GPU, "pipelined"),
    "tensor cores": make_model(anatune.matmul(64, 128, 64, dtype="float16"), GPU, "triton"),
    "scalar": model(anatune.matmul(1, 1, 1), CPU),
    "table": TableModel(MATMUL, np.unique(MATMUL.space.sample_points(900, 3), axis=0)),
}


@pytest.fixture(params=sorted(MODELS))
def knobs(request):
    return make_knobs(MODELS[request.param])


def test_indices_and_genes_come_back_as_the_same_points(knobs):
    points = knobs.draw(200, (1,))
    for there, back in ((knobs.indices, knobs.at), (knobs.genes, knobs.from_genes)):
        again, legal = back(there(points))
        assert legal.all()
        if len(np.unique(there(points), axis=0)) == len(np.unique(points, axis=0)):
            assert np.array_equal(again, points)
    assert len(np.unique(knobs.genes(points), axis=0)) == len(np.unique(points, axis=0))
    assert (knobs.indices(points) < knobs.radices).all()
    assert (knobs.genes(points) < knobs.gene_radices).all()


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_neighbours_are_legal_and_so_many_steps_away(knobs, hops):
    (point,) = knobs.draw(1, (5,))
    found = knobs.neighbours(point, hops, (1,))
    assert len(np.unique(found, axis=0)) == len(found)
    if len(found):
        assert (knobs.model.check(found) == 0).all()
        away = np.abs(knobs.indices(found) - knobs.indices(point[None, :]))
        assert not (away == 0).all(axis=1).any()
        if not isinstance(knobs.model, TableModel):
            assert (away.sum(axis=1) == hops).all()
            assert (away.max(axis=1) == 1).all()


def test_one_hop_is_the_next_factor():
    knobs = make_knobs(MATMUL)
    space = MATMUL.space
    point = space.point_of(space.schedule({"i": (4, 1, 8, 2, 1), "j": (1, 4, 8, 3, 1), "k": (16, 2, 4)}, 16))
    near = {tuple(row) for row in knobs.neighbours(point, 1).tolist()}
    column = space.columns.index("i.thread")
    grown = point.copy()
    grown[column], grown[column - 2] = 16, 2
    assert tuple(grown.tolist()) in near
    deeper = point.copy()
    deeper[space.columns.index("unroll")] = 64
    assert tuple(deeper.tolist()) in near
    column = space.columns.index("j.thread")
    assert not any(row[column] == 12 for row in near)  # 12 follows 8 in the list, but 12 x 4 x 3 does not divide 96


def test_out_of_range_is_illegal():
    knobs = make_knobs(MATMUL)
    _, legal = knobs.at(np.stack([knobs.radices, np.full(len(knobs.radices), -1)]))
    assert not legal.any()


def test_beyond_repeats_a_step():
    knobs = make_knobs(MATMUL)
    (point,) = knobs.draw(1, (7,))
    for near in knobs.neighbours(point, 1):
        far = knobs.repeat_change(point, near)
        if far is not None:
            steps = knobs.indices(np.stack([point, near, far]))
            assert np.array_equal(steps[2] - steps[1], steps[1] - steps[0])
            assert MATMUL.check(far[None, :])[0] == 0


def test_a_grid_of_recorded_points_has_its_own_steps():
    drawn = np.unique(MATMUL.space.sample_points(60, 1), axis=0)[:36]
    table = TableModel(MATMUL, drawn, {"M": np.repeat([16, 32, 128], 12), "N": np.tile(np.arange(12), 3)})
    knobs = make_knobs(table)
    assert knobs.names == ("M", "N")
    rows = [table.space.row_of(point) for point in knobs.neighbours(drawn[13], 1)]
    assert sorted(rows) == [1, 12, 14, 25]
    assert knobs.values(drawn[:1]).tolist() == [[16.0, 0.0]]


def test_what_was_not_recorded_is_snapped_to_the_nearest():
    drawn = np.unique(MATMUL.space.sample_points(60, 1), axis=0)[:10]
    table = TableModel(MATMUL, drawn, {"M": np.arange(10), "N": np.arange(10) % 2})
    knobs = make_knobs(table)
    points, legal = knobs.at(np.array([[4, 1], [-3, 0]]))
    assert legal.all()
    assert table.space.row_of(points[0]) in (3, 4, 5)
    assert table.space.row_of(points[1]) == 0
