"""Pruning recorded tables: definitions on made-up rows, the committed excerpts, searches of Kernel Tuner."""

import math
from pathlib import Path

import numpy as np
import pytest

from bench.replay import kernel_tuner, pruning, recorded_gpu

RECORDED = Path(__file__).parents[3] / "golden" / "recorded"


@pytest.fixture(scope="module")
def gemms():
    return [group for group in recorded_gpu.load_groups(RECORDED, [], whole=True) if group.kind == "clblast"]


def test_how_many_are_kept():
    assert [pruning.kept_rows(0.01, rows) for rows in (1, 99, 100, 101, 900)] == [1, 1, 1, 2, 9]
    assert pruning.kept_rows(0.05, 1000) == 50


def test_losses_are_over_the_recorded_best():
    times = np.array([3.0, np.nan, 2.0, 4.0])
    assert pruning.loss(times, np.array([0, 1])) == 1.5
    assert pruning.loss(times, np.array([False, True, True, False])) == 1.0
    assert pruning.loss(times, np.array([1])) == math.inf


def test_what_is_copied_was_recorded_on_both(gemms):
    first, second = gemms
    kept = pruning.copied(first, [second])
    assert set(kept) == {"copied best", "copied first n"}
    assert all(kept["copied first n"].loss[s] <= kept["copied best"].loss[s] for s in pruning.KEEP_SHARES)
    assert pruning.copied(first, []) == {}
    itself = pruning.copied(first, [first])
    assert itself["copied best"].loss[0.01] == 1.0


def test_kernel_tuner_searches_recorded_configurations(gemms):
    pytest.importorskip("kernel_tuner", reason="pip install '.[kernel-tuner]'")
    steps = []
    runs = kernel_tuner.simulate(gemms[0], 0.05, 1, 40, lambda: steps.append(1))
    assert [run.strategy for run in runs] == list(kernel_tuner.STRATEGIES)
    assert len(steps) == len(runs)
    for run in runs:
        assert run.final >= 1.0
        assert run.num_kept == math.ceil(0.05 * run.num_configs)
        assert all(value >= 1.0 for value in (*run.needed.values(), *run.reached.values()))
        assert set(run.needed) == set(run.reached) == set(kernel_tuner.SPACES)
    assert kernel_tuner.simulation_table(runs, 0.05).row_count == 2 * len(kernel_tuner.STRATEGIES)
