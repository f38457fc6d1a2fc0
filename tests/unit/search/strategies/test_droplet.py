"""Coordinate descent: steps, significance, speculation, end."""

import numpy as np
import pytest
from scipy import stats

from anatune.search.knobs import make_knobs
from anatune.search.stepwise import TrialAnswer
from anatune.search.strategies.droplet import DropletStrategy, is_faster
from tests.unit.search.worlds import GPU, RANKED, search, varied

KNOBS = make_knobs(GPU)


def distance(point):
    """Seconds that fall steadily towards one point."""
    goal = KNOBS.indices(RANKED[:1])[0]
    return 1.0 + float(np.abs(KNOBS.indices(point[None, :])[0] - goal).sum())


def answer(*samples):
    return TrialAnswer(float(np.median(samples)), samples)


def test_starts_at_the_origin_as_published():
    (first,), _ = search(DropletStrategy(GPU, start="paper"), 1)
    assert KNOBS.indices(first[None, :]).sum() == 0
    (first,), _ = search(DropletStrategy(GPU, ranked=RANKED), 1)
    assert np.array_equal(first, RANKED[0])


def test_neighbours_come_in_batches():
    strategy = DropletStrategy(GPU, start="paper")
    points, _ = search(strategy, 13)
    away = np.abs(KNOBS.indices(np.array(points[1:])) - KNOBS.indices(points[0][None, :]))
    assert (away.sum(axis=1) == 1).all()
    assert len(DropletStrategy(GPU, ranked=RANKED).ask(20)) == 1


def test_descends_and_ends():
    points, best = search(varied(DropletStrategy, published_batch=64)(GPU, start="paper"), 5_000, distance)
    assert best[-1] < 0.6 * best[0]
    last = min(points, key=distance)
    near = KNOBS.neighbours(last, 1)
    assert all(distance(point) >= distance(last) for point in near)
    assert len(points) < 1_000


def test_goes_on_from_the_ranking():
    points, _ = search(DropletStrategy(GPU, ranked=RANKED), 600, lambda point: 1.0)
    assert len(points) == 600
    assert {point.tobytes() for point in RANKED} <= {point.tobytes() for point in points}


def test_too_many_failures_end_it():
    def measure(point):
        return None if KNOBS.indices(point[None, :]).sum() else 1.0

    points, _ = search(varied(DropletStrategy, published_batch=2, most_failed=3)(GPU, start="paper"), 500, measure)
    assert len(points) == 1 + 2 * 4


def test_failures_between_successes_do_not_end_it():
    """What counts is batches in a row: of two, one has failures only."""
    seen = []

    def measure(point):
        seen.append(point)
        return None if len(seen) % 4 in (2, 3) else 1.0

    points, _ = search(varied(DropletStrategy, published_batch=2, most_failed=1)(GPU, start="paper"), 30, measure)
    assert len(points) == len(KNOBS.neighbours(points[0], 1)) + 1


@pytest.mark.parametrize(
    ("one", "other"),
    [((1.0, 1.1, 1.2), (1.3, 1.4, 1.5)), ((1.0, 1.1, 1.2), (1.05, 1.2, 1.25)), ((1.0, 1.2), (1.4, 1.5, 1.6))],
)
def test_the_test_is_students(one, other):
    wanted = bool(stats.ttest_ind(one, other).pvalue <= 0.05)
    assert is_faster(answer(*one), answer(*other), 0.05) == wanted
    assert not is_faster(answer(*other), answer(*one), 0.05)
    assert is_faster(answer(*one), answer(*other), 1.0)


def test_without_samples_the_mean_decides():
    assert is_faster(answer(1.0), answer(2.0), 0.05)
    assert is_faster(answer(1.0, 1.0), answer(2.0, 2.0), 0.05)
    assert not is_faster(answer(1.0), answer(1.0), 0.05)
    assert is_faster(answer(1.0), TrialAnswer(None), 0.05)
    assert not is_faster(TrialAnswer(None), answer(1.0), 0.05)


def test_noise_does_not_move_it():
    draws = np.random.default_rng(0)

    def measure(_):
        return tuple(1.0 + 0.1 * draws.standard_normal(3))

    strategy = varied(DropletStrategy, significance=1e-6)(GPU, start="paper")
    points, _ = search(strategy, 2_000, measure)
    away = np.abs(KNOBS.indices(np.array(points)) - KNOBS.indices(points[0][None, :])).sum(axis=1)
    assert away.max() == 1


def test_speculation_fills_a_batch_beyond_the_last_step():
    strategy = varied(DropletStrategy, published_batch=40)(GPU, start="paper")
    points, _ = search(strategy, 200, distance)
    first = KNOBS.indices(points[0][None, :])[0]
    num_near = len(KNOBS.neighbours(points[0], 1))
    second = KNOBS.indices(np.array(points[1 + num_near : 1 + num_near + 40]))
    assert np.abs(second - first).sum(axis=1).max() > 2
