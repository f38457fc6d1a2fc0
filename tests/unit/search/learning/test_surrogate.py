"""Trees that learn times while a strategy searches."""

import sys

import numpy as np
import pytest

from anatune.errors import MissingDependencyError
from anatune.search.knobs import make_knobs
from anatune.search.learning.surrogate import Surrogate
from anatune.search.stepwise import TrialAnswer
from anatune.templates.gpu.model import FEATURES
from tests.unit.search.worlds import GPU, seconds
from tests.wording import refuses

KNOBS = make_knobs(GPU)
POINTS = KNOBS.draw(400, (0,))
ANSWERS = [TrialAnswer(seconds(point)) for point in POINTS]
LATER = KNOBS.draw(200, (1,))


def order(values):
    return np.argsort(np.argsort(values))


@pytest.mark.parametrize(("kind", "on_model"), [("program", False), ("analytical", False), ("all", True)])
def test_it_learns(kind, on_model):
    surrogate = Surrogate(KNOBS, kind, on_model=on_model)
    surrogate.add(POINTS, ANSWERS)
    truth = np.log([seconds(point) for point in LATER])
    assert np.corrcoef(order(surrogate.predict(LATER)), order(truth))[0, 1] > 0.75
    assert np.abs(surrogate.predict(LATER) - truth).mean() < 1.0


def test_before_trials_the_model_speaks():
    assert np.array_equal(Surrogate(KNOBS, "all", on_model=True).predict(LATER), np.log(GPU.times(LATER)[0]))
    assert not Surrogate(KNOBS, "program", on_model=False).predict(LATER).any()


def test_failures_are_no_times():
    one, other = (Surrogate(KNOBS, "all", on_model=True) for _ in range(2))
    one.add(POINTS[:60], ANSWERS[:60])
    other.add(POINTS[:80], [*ANSWERS[:60], *(TrialAnswer(None) for _ in range(20))])
    assert np.array_equal(one.predict(LATER), other.predict(LATER))


def test_without_lightgbm(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    surrogate = Surrogate(KNOBS, "all", on_model=True)
    surrogate.add(POINTS, ANSWERS)
    with refuses(MissingDependencyError):
        surrogate.predict(LATER)


def test_the_published_trees_see_seven_features_and_the_product_of_two():
    columns = GPU.evaluate(POINTS).columns
    rows = Surrogate(KNOBS, "analytical", on_model=False)._features(POINTS)
    assert np.array_equal(rows[:, :7], np.column_stack([columns[name] for name in FEATURES]))
    assert np.array_equal(rows[:, 7:], (columns["WLP"] * columns["ILP"])[:, None])
    assert (rows.min(axis=0) < rows.max(axis=0)).all()  # none of them is dead


@pytest.mark.parametrize(("on_model", "is_fitted_again"), [(False, True), (True, False)])
def test_published_trees_learn_every_batch(on_model, is_fitted_again):
    surrogate = Surrogate(KNOBS, "all", on_model=on_model)
    surrogate.add(POINTS[:200], ANSWERS[:200])
    before = surrogate.predict(LATER)
    surrogate.add(POINTS[200:203], ANSWERS[200:203])
    assert np.array_equal(before, surrogate.predict(LATER)) is not is_fitted_again
