"""Predictions of named schedules on named devices must not change silently."""

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

import anatune
from anatune.api import model

GOLDEN = Path(__file__).parent / "predictions.json"
RELATIVE = 1e-9

MATMUL = anatune.matmul(512, 4096, 1024)
MATMUL_TILES = {"i": (8, 2, 16, 2, 1), "j": (32, 2, 16, 4, 1), "k": (64, 4, 4)}
R2 = anatune.conv2d(1, 64, 56, 56, 64, 3, 3, padding=1)
R2_TILES = {
    "n": (1, 1, 1, 1, 1), "f": (4, 2, 8, 1, 1), "y": (14, 1, 2, 2, 1), "x": (1, 1, 14, 1, 4),
    "rc": (8, 4, 2), "ry": (1, 3, 1), "rx": (1, 1, 3),
}  # fmt: skip
BATCH = anatune.conv2d(128, 128, 28, 28, 128, 3, 3, padding=1)
BATCH_TILES = {
    "n": (64, 1, 1, 2, 1), "f": (2, 2, 16, 1, 2), "y": (7, 1, 2, 1, 2), "x": (7, 1, 4, 1, 1),
    "rc": (16, 4, 2), "ry": (3, 1, 1), "rx": (1, 3, 1),
}  # fmt: skip
WIDE = {"A": 4, "B": 4}
CASES = {
    "rtx3090, matmul": ("rtx3090", MATMUL, MATMUL_TILES, 512, WIDE),
    "rtx3090, matmul, narrow fetches, no unrolling": ("rtx3090", MATMUL, MATMUL_TILES, 0, {}),
    "rtx3090, matmul, one thread a block": (
        "rtx3090", MATMUL, {"i": (128, 1, 1, 4, 1), "j": (1024, 1, 1, 4, 1), "k": (64, 16, 1)}, 64, {},
    ),
    "rtx3090, matmul, too many threads": (
        "rtx3090", MATMUL, {"i": (8, 1, 64, 1, 1), "j": (64, 1, 64, 1, 1), "k": (64, 4, 4)}, 64, {},
    ),
    "rtx3090, matmul, too much shared memory": (
        "rtx3090", MATMUL, {"i": (4, 2, 16, 4, 1), "j": (32, 2, 16, 4, 1), "k": (2, 128, 4)}, 512, WIDE,
    ),
    "a100_sxm, matmul": ("a100_sxm", MATMUL, MATMUL_TILES, 512, WIDE),
    "h100_sxm, matmul": ("h100_sxm", MATMUL, MATMUL_TILES, 512, WIDE),
    "v100_sxm2, conv R2": ("v100_sxm2", R2, R2_TILES, 512, {"data": 1, "weight": 4}),
    "a100_sxm, conv R2": ("a100_sxm", R2, R2_TILES, 512, {"data": 1, "weight": 4}),
    "tx2, conv R2": ("tx2", R2, R2_TILES, 0, {}),
    "rtx4090, conv batch 128": ("rtx4090", BATCH, BATCH_TILES, 64, {"data": 2, "weight": 2}),
    "k80, conv batch 128": ("k80", BATCH, BATCH_TILES, 1024, {}),
    "mi50, conv batch 128": ("mi50", BATCH, BATCH_TILES, 16, {"data": 1, "weight": 2}),
}  # fmt: skip


def predicted(case):
    device, workload, tiles, unroll, vector = CASES[case]
    chosen = model(workload, anatune.hardware(device))
    point = chosen.space.point_of(chosen.space.schedule(tiles, unroll, vector))
    (prediction,) = chosen.predictions(np.array([point]))
    return msgspec.to_builtins(prediction)


def differences(got, wanted, where=""):
    """List what differs by more than `RELATIVE`, as text."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        lines = [f"{where}{key}: only on one side" for key in sorted(set(got) ^ set(wanted))]
        for key in sorted(set(got) & set(wanted)):
            lines += differences(got[key], wanted[key], f"{where}{key}.")
        return lines
    both = isinstance(got, (int, float)) and isinstance(wanted, (int, float))
    same = math.isclose(got, wanted, rel_tol=RELATIVE, abs_tol=1e-18) if both else got == wanted
    return [] if same else [f"{where[:-1]}: {got!r}, was {wanted!r}"]


@pytest.mark.parametrize("case", CASES)
def test_prediction_is_unchanged(case, update_golden):
    got = predicted(case)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if update_golden:
        golden = {name: golden.get(name) for name in CASES} | {case: got}
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
    assert case in golden, "no golden value; run `pytest tests/golden --update-golden`"
    changed = differences(json.loads(json.dumps(got)), golden[case])
    assert not changed, f"{case} changed; if on purpose, `pytest tests/golden --update-golden` and say why"


def test_no_golden_value_is_left_over():
    assert list(json.loads(GOLDEN.read_text())) == list(CASES)


def test_differences_are_found():
    assert differences({"a": 1.0, "b": "x"}, {"a": 1.0 + 1e-12, "b": "x"}) == []
    assert differences({"a": {"b": 1.0}}, {"a": {"b": 1.0 + 1e-8}}) == ["a.b: 1.0, was 1.00000001"]
    assert differences({"a": 1}, {"b": 1}) == ["a: only on one side", "b: only on one side"]
    assert differences({"a": "x"}, {"a": None}) == ["a: 'x', was None"]
