"""The models' ranking of recorded measurements must stay as good as it was when the limits were set."""

import json
import math
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from bench.replay import metrics, recorded_gpu
from bench.replay.recorded import model_of, table_files

HERE = Path(__file__).parent
LIMITS = HERE / "ranking_limits.json"
MARGIN = {"spearman": -0.03, "top8_regret": 0.03}
"""Limit minus reached value."""


@pytest.fixture(scope="module")
def reached():
    """ "table, device" -> measure -> median over its workloads."""
    values = defaultdict(lambda: defaultdict(list))
    for group in recorded_gpu.load_groups(HERE / "recorded"):
        scored = model_of(group.workload, group.hardware).evaluate(group.points)
        name = f"{group.table}, {group.device}"
        values[name]["spearman"].append(metrics.spearman_measured(scored.time_s, group.time_s, group.unbiased))
        regret = metrics.top_k_regret(scored.time_s, group.time_s, scored.rule == 0, (8,))[8]
        values[name]["top8_regret"].append(regret)
    return {
        name: {measure: metrics.quantile(listed, 0.5) for measure, listed in measures.items()}
        for name, measures in values.items()
    }


def test_ranking_stays_within_its_limits(reached, update_golden):
    if update_golden:
        content = {
            name: {
                measure: {"reached": round(value, 4), "limit": round(value + MARGIN[measure], 3)}
                for measure, value in measures.items()
            }
            for name, measures in reached.items()
        }
        LIMITS.write_text(json.dumps(content, indent=1) + "\n")
    limits = json.loads(LIMITS.read_text())
    assert set(limits) == set(reached)
    missed = []
    for name, measures in limits.items():
        for measure, numbers in measures.items():
            value = reached[name][measure]
            assert math.isfinite(value)
            good = value >= numbers["limit"] if measure == "spearman" else value <= numbers["limit"]
            if not good:
                missed.append(f"{name}: {measure} is {value:.4f}, limit {numbers['limit']}")
    assert not missed


def test_scoring_is_deterministic_and_pointwise():
    group = next(iter(recorded_gpu.load_groups(HERE / "recorded")))
    first = model_of(group.workload, group.hardware).evaluate(group.points)
    again = model_of(group.workload, group.hardware).evaluate(group.points[::-1].copy())
    np.testing.assert_array_equal(first.time_s, again.time_s[::-1])
    np.testing.assert_array_equal(first.rule, again.rule[::-1])
    one = model_of(group.workload, group.hardware).evaluate(group.points[7:8])
    assert one.time_s[0] == first.time_s[7]


def test_every_recorded_table_names_its_source():
    source = msgspec.toml.decode((HERE / "SOURCE.toml").read_text())
    tables = {path.name.split(".")[0]: path for path in table_files(HERE / "recorded")}
    assert set(tables) == set(source["table"])
    for name, path in tables.items():
        assert name.endswith(("__mit", "__apache2"))
        devices = source["table"][name]["devices"]
        assert set(pd.read_csv(path)["gpu"]) == set(devices)
        for repository in devices.values():
            entry = source["repository"][repository]
            assert entry["commit"]
            assert entry["licence"].startswith(("MIT", "Apache-2.0"))
            assert "licence_file" not in entry or (HERE / entry["licence_file"]).is_file()
    assert sum(path.stat().st_size for path in tables.values()) < 300_000


def test_all_rows_of_the_excerpts_are_used():
    notes = []
    groups = list(recorded_gpu.load_groups(HERE / "recorded", notes))
    assert notes == []
    files = table_files(HERE / "recorded")
    assert sum(len(group.points) for group in groups) == sum(len(pd.read_csv(path)) for path in files)
