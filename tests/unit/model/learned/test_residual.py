"""The residual model on made-up data: what it learns, what it leaves alone, when it says that it does not know."""

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from anatune.model.learned.residual import ResidualModel, ResidualOptions
from tests.wording import refuses

NAMES = ("a", "b", "c", "d")
SMALL = ResidualOptions(num_trees=60, num_leaves=7)


def made_up(rng, num_groups=4, rows=150):
    """Features, log ratios and groups: the ratio follows the first feature, each group has an offset of its own."""
    features = rng.uniform(0.0, 1.0, (num_groups * rows, len(NAMES)))
    groups = np.repeat(np.arange(num_groups), rows)
    truth = np.where(features[:, 0] > 0.5, 0.4, -0.4)
    offsets = np.linspace(-3.0, 5.0, num_groups)[groups]
    return features, truth + offsets + rng.normal(0.0, 0.02, len(groups)), groups, truth


@pytest.fixture(scope="module")
def fitted():
    features, log_ratio, groups, truth = made_up(np.random.default_rng(0))
    return ResidualModel(SMALL).fit(features, NAMES, log_ratio, groups), features, log_ratio, groups, truth


def test_it_learns_what_all_workloads_have_in_common(fitted):
    model, features, _, _, truth = fitted
    found = model.predict(features).log_ratio
    assert np.corrcoef(found, truth)[0, 1] > 0.98
    assert np.ptp(found) == pytest.approx(0.8, abs=0.15)


def test_the_offset_is_that_of_the_median_workload(fitted):
    model, _, log_ratio, groups, _ = fitted
    medians = [np.median(log_ratio[groups == one]) for one in range(4)]
    assert model.offset_ == pytest.approx(np.median(medians), abs=0.5)


def test_offsets_of_workloads_change_nothing_but_the_offset(fitted):
    model, features, log_ratio, groups, _ = fitted
    moved = ResidualModel(SMALL).fit(features, NAMES, log_ratio + 10.0 * groups, groups)
    change = moved.predict(features).log_ratio - model.predict(features).log_ratio
    assert np.ptp(change) < 1e-6


def test_fitting_twice_gives_the_same(fitted):
    model, features, log_ratio, groups, _ = fitted
    again = ResidualModel(SMALL).fit(features, NAMES, log_ratio, groups)
    assert np.array_equal(again.predict(features).log_ratio, model.predict(features).log_ratio)


def test_far_away_nothing_is_corrected(fitted):
    model, features, *_ = fitted
    near, far = model.predict(features[:5]), model.predict(features[:5] + 10.0)
    assert near.support.tolist() == [1.0] * 5
    assert far.support.tolist() == [0.0] * 5
    assert far.log_ratio == pytest.approx([model.offset_] * 5)
    assert (far.std > near.std).all()


def test_failed_trials_are_no_times(fitted):
    _, features, log_ratio, groups, _ = fitted
    fails = features[:, 1] > 0.8
    model = ResidualModel(SMALL).fit(features, NAMES, np.where(fails, np.nan, log_ratio), groups)
    found = model.predict(features)
    assert np.isfinite(found.log_ratio).all()
    assert found.failure[fails].mean() > 0.9
    assert found.failure[~fails].mean() < 0.1


def test_without_failures_none_are_expected(fitted):
    model, features, *_ = fitted
    assert not model.predict(features).failure.any()


def test_one_wild_time_does_not_count_more_than_the_clip(fitted):
    _, features, log_ratio, groups, _ = fitted
    wild = log_ratio.copy()
    wild[::50] += 20.0
    model = ResidualModel(SMALL).fit(features, NAMES, wild, groups)
    truth = np.where(features[:, 0] > 0.5, 0.4, -0.4)
    assert np.corrcoef(model.predict(features).log_ratio, truth)[0, 1] > 0.9


def test_an_update_follows_new_measurements_and_replaces_the_last_one(fitted):
    _, features, log_ratio, groups, _ = fitted
    model = ResidualModel(SMALL).fit(features, NAMES, log_ratio, groups)
    before = model.predict(features).log_ratio
    other = log_ratio + np.where(features[:, 2] > 0.5, 0.3, -0.3)
    model.update(features[:200], other[:200], groups[:200])
    after = model.predict(features).log_ratio - before
    assert np.corrcoef(after, features[:, 2])[0, 1] > 0.6
    model.update(features[:0], other[:0], groups[:0])
    assert np.array_equal(model.predict(features).log_ratio, before)


def test_an_update_of_few_trials_changes_nothing(fitted):
    _, features, log_ratio, groups, _ = fitted
    model = ResidualModel(SMALL).fit(features, NAMES, log_ratio, groups)
    before = model.predict(features).log_ratio
    model.update(features[:8], np.full(8, np.nan), groups[:8])
    assert np.array_equal(model.predict(features).log_ratio, before)


def test_too_little_is_an_error():
    with refuses(ValueError):
        ResidualModel(SMALL).fit(np.zeros((9, 4)), NAMES, np.zeros(9), np.zeros(9, dtype=int))
