"""Rows an expert."""

import numpy as np
import pytest

from anatune.core.workload.routing import (
    make_balanced_routing,
    make_power_law_routing,
    make_uniform_routing,
    routing_from_counts,
)
from anatune.errors import WorkloadError
from tests.wording import refuses


@pytest.mark.parametrize(
    "routing",
    [make_uniform_routing(96, 64, 8), make_balanced_routing(96, 64, 8), make_power_law_routing(96, 64, 8, 1.2)],
)
def test_all_rows_are_there(routing):
    assert routing.num_rows == pytest.approx(96 * 8, rel=1e-6)
    assert routing.num_active <= 64
    assert routing.blocks(np.array([1]))[0] == pytest.approx(96 * 8, rel=1e-6)


def test_uniform_is_what_drawing_gives():
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(200):
        chosen = np.argsort(rng.random((20, 32)), axis=1)[:, :4]
        drawn.append(routing_from_counts(np.bincount(chosen.ravel(), minlength=32)).blocks(np.array([2, 16])))
    assert make_uniform_routing(20, 32, 4).blocks(np.array([2, 16])) == pytest.approx(np.mean(drawn, axis=0), rel=0.02)


def test_balanced_activates_as_many_experts_as_there_are_rows():
    assert make_balanced_routing(3, 64, 8).num_active == 24
    assert make_balanced_routing(64, 8, 2).blocks(np.array([16, 32])).tolist() == [8, 8]


def test_a_power_law_has_popular_experts():
    law, even = make_power_law_routing(64, 128, 8, 1.2), make_balanced_routing(64, 128, 8)
    assert law.rows.max() > even.rows.max()
    assert law.rows.max() <= 64
    assert law.num_active < even.num_active


@pytest.mark.parametrize("exponent", [50, 500, 999.5])
def test_a_steep_power_law_is_nearly_balanced(exponent):
    law = make_power_law_routing(64, 128, 8, exponent)
    assert law.rows.tolist() == make_balanced_routing(64, 128, 8).rows.tolist()
    assert make_power_law_routing(1, 8, 2, exponent).num_rows == 2


@pytest.mark.parametrize("counts", [[], [0, 0], [3, -1]])
def test_counts_that_are_none(counts):
    with refuses(WorkloadError):
        routing_from_counts(counts)
