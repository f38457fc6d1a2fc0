"""What is counted as saved and lost, on a made-up table: no recorded rows are needed."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anatune.core.hardware.files import hardware
from bench.replay.tensorcores_tables import read_choices
from bench.replay.triton_savings import KEEP, filtered, savings, tuning_s

HEADER = [
    *("device", "m", "n", "k", "dtype_a", "dtype_b", "layout", "stride_a", "stride_b", "block_m", "block_n", "block_k"),
    *("group_m", "num_warps", "num_stages", "time_ms", "is_extern", "tf32"),
]
SIZES = [(m, n, k) for m in (16, 64, 128) for n in (64, 128) for k in (32, 64)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        ["A100", 4096, 4096, 4096, "float16", "float16", "NN", "4096x1", "4096x1", *size, 8, 4, 3, time_ms, 0, "False"]
        for time_ms, size in enumerate(SIZES, 1)
    ]
    rows[0][15] = "inf"
    rows.append([*rows[0][:9], *[""] * 6, 0.5, 1, "False"])
    pd.DataFrame(rows, columns=HEADER).to_csv(tmp_path / "autotune_mm__made_up.csv.gz", index=False)
    return tmp_path


def test_what_is_kept_is_counted(folder):
    (choices,) = read_choices(folder, "autotune_mm")
    found = savings(choices, hardware("a100"))
    assert [saving.measured for saving in found] == [8, 4, 0]
    assert len(found) == len(KEEP)
    assert found[-1].saved == 1.0
    assert found[0].saved < found[1].saved < 1.0
    assert all(saving.lost >= 1.0 for saving in found)


def test_filters_leave_more_the_wider_they_are(folder):
    (choices,) = read_choices(folder, "autotune_mm")
    shares, lost = zip(*(filtered(choices, hardware("a100"), within) for within in (1.0, 2.0, 100.0)), strict=True)
    assert 0.0 <= shares[0] < shares[1] < shares[2] == 1.0
    assert lost[0] >= lost[1] >= lost[2] == 1.0


def test_tuning_time_is_that_of_do_bench():
    assert tuning_s(np.array([])) == 0.0
    assert tuning_s(np.array([np.inf])) == 0.0
    assert tuning_s(np.array([1e-3])) == pytest.approx(0.131)  # 6 runs, 25 to warm up, 100 measured
    assert tuning_s(np.array([1.0])) == pytest.approx(8.0)
