import dataclasses

import numpy as np
import pytest

import anatune
from anatune.plots.candidates import candidates_of
from anatune.plots.spaces import canberra, plot_distances, plot_distribution, plot_rejections


@pytest.fixture(scope="module")
def plan():
    return anatune.plan(anatune.matmul(64, 64, 64), "rtx3090", 20, distinct=True, correction="none")


def test_shares_of_times_add_up(plan):
    figure = plot_distribution(plan, measured=[(plan.best, 1e-5), (plan.schedules[1], 2e-5)], cut_s=3e-5)
    predicted, measured, best, cut = figure.data
    assert predicted.y.sum() == pytest.approx(100.0)
    assert (measured.name, measured.y.sum(), np.count_nonzero(measured.y)) == ("measured", pytest.approx(100.0), 2)
    assert cut.x[0] / best.x[0] == pytest.approx(3e-5 / plan.predictions[0].time_s)
    assert [trace.name for trace in plot_distribution(plan).data] == ["predicted", "best predicted"]


def test_points_are_legal_or_rejected(plan):
    figure = plot_rejections(plan)
    bars = figure.data[0]
    assert bars.y[0] == "legal"
    assert sum(bars.x) == pytest.approx(100.0)
    assert plot_rejections(dataclasses.replace(plan, num_legal=None, rejected=None)) is None


def test_rules_of_several_templates_are_told_apart():
    plan = anatune.plan(anatune.conv2d(1, 8, 8, 8, 8, 3, 3, padding=1), "xeon_gold_6230r", 3)
    names = plot_rejections(plan).data[0].y
    assert {"legal<br>(cpu)", "legal<br>(winograd)"} <= set(names)


def test_canberra_is_the_papers_distance():
    points = np.array([[1, 2, 0], [3, 2, 0], [1, 0, 4]])
    naive = [
        sum(abs(x - z) / (abs(x) + abs(z)) if x or z else 0.0 for x, z in zip(one, other, strict=True)) / 3
        for at, one in enumerate(points.tolist())
        for other in points[at + 1 :].tolist()
    ]
    assert canberra(points) == pytest.approx(naive)


def test_distances_are_of_good_and_of_drawn_points(plan):
    shown = candidates_of(plan)
    figure = plot_distances(plan, shown)
    assert [trace.name for trace in figure.data] == ["drawn at random", "the best ones"]
    assert all(sum(trace.y) == pytest.approx(100.0) for trace in figure.data)
    assert plot_distances(plan.first(2), shown) is None
