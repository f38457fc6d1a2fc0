"""What every strategy asks, as published, must not change silently: it depends on the seed and the trials only."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.search.base import DEFAULT_STRATEGY, STRATEGIES, make_strategy

GOLDEN = Path(__file__).parent / "first_asks.json"
TASKS = {
    "rtx3090": anatune.matmul(64, 96, 128),
    "xeon_gold_6230r": anatune.conv2d(n=1, c=8, h=14, w=14, k=16, r=3, s=3, padding=1),
}
NUM_FIRST = 20
NUM_ALL = 140
LEARNING = ("dgd", "genetic", "bayes")
"""What these ask after their random programs depends on the version of the library that learns."""
NAMES = sorted(set(STRATEGIES) - {DEFAULT_STRATEGY, "structured"})
"""Without those that look at predictions, which may change."""


def asked(device, name, seed):
    """Return the points of a search on a world that no model computes."""
    made = model(TASKS[device], anatune.hardware(device))
    # No point of the ranking: predictions may change, the published searches may not.
    strategy = make_strategy(name, made, seed=seed, start="paper", ranked=np.empty((0, len(made.space.columns))))
    points = []
    while len(points) < (NUM_FIRST if name in LEARNING else NUM_ALL):
        batch = strategy.ask(4)
        if not batch:
            break
        found = [made.space.point_of(schedule) for schedule in batch]
        times = [1e-6 * float(np.log2(1.0 + np.abs(point - 4)).sum() + 1.0) for point in found]
        strategy.tell(
            [
                Trial(
                    schedule, Measurement(Outcome.OK, times_s=(time_s, 1.01 * time_s, 0.99 * time_s)), len(points) + at
                )
                for at, (schedule, time_s) in enumerate(zip(batch, times, strict=True))
            ]
        )
        points += [point.tolist() for point in found]
    return points


def summary(points):
    digest = hashlib.sha256(json.dumps(points).encode()).hexdigest()[:16]
    return {"first": points[:NUM_FIRST], "number": len(points), "all": digest}


@pytest.mark.parametrize("device", TASKS)
@pytest.mark.parametrize("name", NAMES)
def test_first_asks(name, device, update_golden):
    found = {str(seed): summary(asked(device, name, seed)) for seed in (0, 1)}
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if update_golden:
        golden[f"{name}, {device}"] = found
        lines = [f" {json.dumps(key)}: {json.dumps(golden[key])}" for key in sorted(golden)]
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        pytest.skip("golden first asks written")
    assert found == golden[f"{name}, {device}"]
