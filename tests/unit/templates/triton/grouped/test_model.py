import pytest

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.templates.triton.grouped.model import GroupedModel


def best(words: str, device: str) -> Prediction:
    return anatune.plan(anatune.parse_workload(words), device, top_k=1).predictions[0]


@pytest.mark.parametrize(
    ("words", "device"),
    [
        ("scaled_matmul 512x4096x7168 --scales blocks", "h100"),
        ("scaled_matmul 2048x4096x4096 --dtype nvfp4", "b200"),
        ("scaled_matmul 16x4096x4096 --dtype bfloat16xint4 --group 32 --zero-points", "a100"),
        ("grouped_matmul 512x256x8x2048x7168 --dtype float8_e4m3fn --scales blocks --activation", "h200"),
        ("grouped_matmul 512x8x2x14336x4096 --dtype int8 --scales rows --routing power:1.2", "mi300x"),
    ],
)
def test_plans_are_ranked_whole_and_move_no_less_than_they_must(words: str, device: str) -> None:
    plan = anatune.plan(anatune.parse_workload(words), device, top_k=20)
    assert {schedule.template for schedule in plan.schedules} == {"triton"}
    assert plan.guarantee.kind == "exhaustive"
    assert isinstance(plan.hardware, GpuSpec)
    times = [told.time_s for told in plan.predictions]
    assert times == sorted(times)
    assert all(ratio >= 0.999 for told in plan.predictions for ratio in told.traffic_over_bound.values())
    floor_s = GroupedModel(plan.workload, plan.hardware).floor_s
    assert all(told.time_s >= max(floor_s, told.parts["dram_s"]) for told in plan.predictions)


def test_narrower_operands_are_faster() -> None:
    times = [best(f"scaled_matmul 8192x8192x8192 --dtype {dtype}", "b200").time_s for dtype in ("mxfp8", "nvfp4")]
    assert times[0] > 1.6 * times[1]
    few = [f"scaled_matmul 16x8192x8192 --dtype bfloat16x{kind}" for kind in ("int8", "int4")]
    assert best(few[0], "h100").time_s > best(few[1], "h100").time_s


def test_scales_cost_what_they_move() -> None:
    plain, scaled = (best(f"scaled_matmul 4096x4096x4096 {words}", "h100") for words in ("", "--scales blocks"))
    assert scaled.time_s > plain.time_s
    assert scaled.resources["l2_bytes"] > 0.9 * plain.resources["l2_bytes"]
    coarse, fine = (
        best(f"scaled_matmul 16x8192x8192 --dtype bfloat16xint4 --group {group}", "a100") for group in (256, 32)
    )
    assert fine.resources["dram_bytes"] - coarse.resources["dram_bytes"] > 0.5 * 8192 * (256 - 32) * 2


def test_rows_of_few_experts_read_few_weights() -> None:
    words = "grouped_matmul 16x64x2x2048x4096 --routing "
    even, skewed = best(f"{words}balanced", "h100"), best(f"{words}{','.join(['16', '16', *62 * ['0']])}", "h100")
    assert even.resources["dram_bytes"] > 10 * skewed.resources["dram_bytes"]
    assert even.time_s > 5 * skewed.time_s
