"""Recorded points answer with what was recorded, others with an outcome of their own."""

import numpy as np
import pytest

import anatune
from anatune import api
from anatune.core.trial import Outcome
from anatune.errors import RecordError
from bench.replay.runner import NOT_RECORDED, ReplayRunner
from bench.replay.table import TableModel
from tests.wording import refuses


@pytest.fixture
def table():
    model = api.model(anatune.matmul(64, 96, 128), anatune.hardware("rtx3090"))
    return TableModel(model, np.unique(model.space.sample_points(6, 0), axis=0)[:4])


def test_what_was_recorded_comes_back(table):
    runner = ReplayRunner(table, np.array([3e-6, np.nan, 1e-6, 2e-6]), np.array([0.1, np.nan, np.nan, 0.0]))
    schedules = [table.space.schedule_of(point) for point in table.space.points]
    first, failed, third, fourth = runner.run(schedules)
    assert first.time_s == pytest.approx(3e-6)
    assert np.std(first.times_s, ddof=1) / np.mean(first.times_s) == pytest.approx(0.1)
    assert (failed.outcome, failed.time_s) == (Outcome.RUN_ERROR, None)
    assert (third.times_s, fourth.times_s) == ((1e-6,), (2e-6,))
    assert runner.best_s == 1e-6


def test_a_point_that_nobody_recorded_has_no_time(table):
    runner = ReplayRunner(table, np.ones(4))
    known = {point.tobytes() for point in table.space.points}
    other = next(p for p in table.model.space.sample_points(50, 9) if p.tobytes() not in known)
    (measurement,) = runner.run([table.model.space.schedule_of(other)])
    assert (measurement.outcome, measurement.message, measurement.time_s) == (Outcome.INVALID, NOT_RECORDED, None)


def test_times_of_another_length_are_refused(table):
    with refuses(RecordError):
        ReplayRunner(table, np.ones(3))
