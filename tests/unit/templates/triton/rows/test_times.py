"""Times of kernels on rows: bounds, passes, what L2 keeps."""

from __future__ import annotations

import numpy as np
import pytest

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.report.explain import explain
from anatune.templates.triton.rows.model import RowModel
from anatune.templates.triton.rows.times import score_rows


def spec(name: str = "h100") -> GpuSpec:
    device = anatune.hardware(name)
    assert isinstance(device, GpuSpec)
    return device


@pytest.mark.parametrize(
    "text", ["softmax 512x3000", "rotary 64x8x128 --dtype bfloat16", "quantise_groups 64x7168x128"]
)
def test_no_time_is_below_the_floor_and_no_traffic_below_the_bound(text: str) -> None:
    model = RowModel(anatune.parse_workload(text), spec())
    points = model.space.points_at(np.arange(model.space.size))
    scores = score_rows(model.workload, points, model.hardware)
    assert (scores.time_s >= model.floor_s).all()
    assert (scores.moved.dram >= model.workload.compulsory_bytes).all()


def test_a_row_that_is_read_twice_takes_longer() -> None:
    workload = anatune.rms_norm(4096, 8192)
    whole, steps = score_rows(workload, np.array([[1, 8192, 8], [1, 512, 8]]), spec()).time_s
    assert whole < steps


def test_few_rows_leave_most_of_the_device_idle() -> None:
    points = np.array([[1, 4096, 4]])
    single, many = (float(score_rows(anatune.softmax(rows, 4096), points, spec()).time_s[0]) for rows in (1, 132))
    assert many < 1.5 * single


def test_l2_keeps_small_tensors_of_repeated_kernels_only() -> None:
    points = np.array([[1, 4096, 4]])
    for rows, kept in ((256, True), (65536, False)):
        cold, warm = (score_rows(anatune.softmax(rows, 4096), points, spec(), warm=warm) for warm in (False, True))
        assert (warm.moved.dram[0] == 0.0) == kept
        assert (warm.time_s[0] < cold.time_s[0]) == kept


def test_plans_name_what_binds() -> None:
    best = anatune.plan(anatune.rms_norm(4096, 8192, "bfloat16"), "h100")
    assert best.predictions[0].bound_by == "dram"
    assert "dram" in explain(best)
