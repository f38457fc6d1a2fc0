"""A space that is a list of points."""

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.errors import SpaceError
from bench.replay.table import TableModel, TableSpace
from tests.wording import refuses

MODEL = model(anatune.matmul(64, 64, 64), anatune.hardware("rtx3090"))
POINTS = np.unique(MODEL.space.sample_points(50, 0), axis=0)
TABLE = TableModel(MODEL, POINTS)


def test_rows_and_points():
    space = TABLE.space
    assert space.size == len(POINTS) == space.radices[0]
    assert np.array_equal(space.decode(space.encode(POINTS)), POINTS)
    schedule = space.schedule_of(POINTS[3])
    assert TABLE.row_of(schedule) == 3
    assert np.array_equal(space.point_of(schedule), POINTS[3])
    assert {space.row_of(point) for point in space.sample_points(300, 1)} <= set(range(len(POINTS)))
    assert len(space.sample(3, 1)) == 3


def test_predictions_are_the_models():
    times, rules = TABLE.times(POINTS)
    assert np.array_equal(times, MODEL.times(POINTS)[0])
    assert not rules.any()
    assert np.array_equal(TABLE.evaluate(POINTS[5:9]).columns["fma_s"], MODEL.evaluate(POINTS[5:9]).columns["fma_s"])
    ranked = TABLE.rank(10).points
    assert np.array_equal(TABLE.times(ranked)[0], np.sort(times)[:10])


def test_points_outside():
    outside = next(p for p in MODEL.space.sample_points(200, 9) if TABLE.space.row_of(p) is None)
    assert TABLE.check(np.stack([POINTS[0], outside])).tolist() == [0, 1]
    assert TABLE.times(outside[None, :])[0][0] == np.inf
    assert TABLE.row_of(MODEL.space.schedule_of(outside)) is None
    with refuses(SpaceError):
        TABLE.space.encode(outside)
    with refuses(SpaceError):
        TABLE.space.point_of(MODEL.space.schedule_of(outside))


def test_illegal_points_that_were_recorded_count():
    illegal = MODEL.space.sample_points(5_000, 0, legal=False)
    illegal = np.unique(illegal[MODEL.check(illegal) != 0], axis=0)
    assert len(illegal)
    table = TableModel(MODEL, illegal)
    assert not table.check(illegal).any()


@pytest.mark.parametrize(
    ("points", "knobs"), [(POINTS[:0], None), (POINTS[:, :3], None), (POINTS[[0, 1, 0]], None), (POINTS, {"M": [1, 2]})]
)
def test_bad_tables(points, knobs):
    with refuses(SpaceError):
        TableSpace(MODEL.space, points, knobs)
