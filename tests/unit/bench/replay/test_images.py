"""Scores of recorded convolutions by the size of their images."""

import json
import math

import pytest

from bench.replay import images


def row(workload, rho, loss, *, kind="autotvm", table="t", device="d"):
    return {
        "table": table, "device": device, "kind": kind, "workload_id": workload, "spearman": rho,
        "regret": {"1": 9.0, "8": loss, "32": 1.0},
    }  # fmt: skip


def conv(side, channels=64):
    return f"conv_n1_c{channels}_h{side}x{side}_k64_r1x1_s1x1_o{side}x{side}"


@pytest.fixture
def written(tmp_path):
    rows = [
        row(conv(7), 0.5, 1.25),
        row(conv(7, 32), 0.75, None),
        row(conv(17), None, 1.5),
        row(conv(56), 1.0, 1.0),
        row("conv_n1_c64_h8x7_k64_r1x1_s1x1_o8x7", 0.0, 1.0),
        row("mm_m7_n7_k7_nn", 0.0, 9.0),
        row(conv(7), 0.0, 9.0, kind="tophub"),
    ]
    path = tmp_path / "ranking.json"
    path.write_text(json.dumps({"workloads": rows}))
    return path


def test_groups(written):
    groups = images.by_image(images.read_scores(written), [7, 17])
    assert {key: len(part) for key, part in groups.items()} == {
        ("t", "d", "7x7"): 2, ("t", "d", "17x17"): 1, ("t", "d", "the others"): 2,
        ("all tables", "", "7x7"): 2, ("all tables", "", "17x17"): 1, ("all tables", "", "the others"): 2,
    }  # fmt: skip
    small = groups["t", "d", "7x7"]
    assert sorted(one.loss for one in small) == [1.25, math.inf]  # all of the first 8 failed
    assert math.isnan(groups["t", "d", "17x17"][0].spearman)
