"""No row is scored by a model that has seen its workload (its device)."""

import msgspec
import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

from anatune.model.learned import cross_fit as module
from anatune.model.learned.cross_fit import MeasuredPoints, cross_fit, fit_residual, fit_shrunk_residual
from anatune.model.learned.residual import ResidualOptions
from anatune.templates.base.features import FeatureTable
from tests.wording import refuses

OPTIONS = ResidualOptions(num_trees=30, num_leaves=7)


def measured(rng, workload, device, rows=80):
    values = rng.uniform(0.0, 1.0, (rows, 3))
    table = FeatureTable(np.ones(rows), np.zeros(rows, dtype=np.int64), ("a", "b", "c"), values)
    return MeasuredPoints(workload, device, table, np.exp(0.5 * (values[:, 0] > 0.5)))


@pytest.fixture
def four():
    rng = np.random.default_rng(0)
    return [measured(rng, f"w{at % 3}", f"d{at % 2}") for at in range(4)]


@pytest.mark.parametrize("by", ["workload", "device"])
def test_what_is_left_out_is_never_seen(four, by, monkeypatch):
    fits = []

    def noted(some, options=None):
        fits.append({getattr(one, by) for one in some})
        return fit_residual(some, options)

    monkeypatch.setattr(module, "fit_residual", noted)
    times = cross_fit(four, by, OPTIONS)
    assert all(np.corrcoef(found, one.time_s)[0, 1] > 0.9 for one, found in zip(four, times, strict=True))
    everything = {getattr(one, by) for one in four}
    assert sorted(map(sorted, fits)) == sorted(sorted(everything - {out}) for out in everything)


def test_alone_nothing_can_be_left_out(four):
    assert cross_fit(four[:1], "workload", OPTIONS) == [None]


def test_points_of_different_templates_are_refused(four):
    other = four[1].table._replace(names=("x", "y", "z"))
    with refuses(ValueError):
        fit_residual([four[0], four[1]._replace(table=other)])


def test_as_much_is_used_as_helps_on_workloads_left_out():
    rng = np.random.default_rng(1)
    same = [measured(rng, f"w{at}", "d", 60) for at in range(6)]
    model = fit_shrunk_residual(same, OPTIONS)
    assert 0.8 < model.options.share <= 1.0
    noise = [
        fit_shrunk_residual([one._replace(time_s=np.exp(rng.normal(0.0, 0.3, 60))) for one in same], OPTIONS)
        for _ in range(6)
    ]
    assert sum(found is not None for found in noise) <= 1  # one standard error: one in six by chance
    opposed = [one._replace(time_s=one.time_s ** (0.4 * (-1) ** at)) for at, one in enumerate(same)]
    assert fit_shrunk_residual(opposed, OPTIONS) is None
    assert fit_shrunk_residual(same[:2], OPTIONS) is None


def test_a_share_scales_what_is_said():
    rng = np.random.default_rng(1)
    same = [measured(rng, f"w{at}", "d", 60) for at in range(6)]
    model, whole = fit_shrunk_residual(same, OPTIONS), fit_residual(same, OPTIONS)
    features = same[0].table.values
    model.options = msgspec.structs.replace(model.options, share=0.5)
    said, all_of_it = (one.predict(features).log_ratio - one.offset_ for one in (model, whole))
    np.testing.assert_allclose(said, 0.5 * all_of_it)
    assert model.leaves(features).shape == (60, OPTIONS.num_trees * OPTIONS.num_members)
