"""Schedules of models' sizes for less work: what stays, and that they are right in the interpreter."""

import pytest

pytest.importorskip("triton", reason="kernels run in Triton's interpreter")

import anatune
from anatune.core.workload.operators.attention import strided_attention
from anatune.network.compiling.targets.smaller import shrink_schedule

STEP = anatune.attention(8, 32, 8, 1, 4096, 128, dtype="bfloat16")
PAGED = anatune.attention(8, 32, 8, 1, 4096, 128, dtype="bfloat16", page_size=16)
CACHE = (4194304, 524288, 128)


@pytest.mark.parametrize(
    ("workload", "flop"),
    [
        (anatune.matmul(2048, 4100, 4096, dtype="bfloat16", epilogue=("add",)), 4e8),
        (anatune.batch_matmul(96, 512, 512, 64, dtype="bfloat16"), 4e8),
        (anatune.conv2d(8, 64, 56, 56, 64, 3, 3, padding=1, dtype="bfloat16", layout="NHWC"), 2e8),
        (strided_attention(STEP, [(4096, 128, 0), CACHE, CACHE], counted="held"), 2e7),
        (strided_attention(PAGED, [(4096, 128, 0), *[(16384, 128, 1024)] * 2], counted="lengths", pool=9000), 2e7),
        (anatune.grouped_matmul(2048, 8, 2, 14336, 4096, activation=True), 4e8),
        (anatune.grouped_matmul(16, 128, 8, 2048, 768, expanded=True), 4e8),
    ],
)
def test_less_work_of_the_same_kernel(workload, flop):
    schedule = anatune.plan(workload, "h100", 1, template="triton").schedules[0]
    made = shrink_schedule(schedule)
    assert made.options == schedule.options
    assert {axis: one[-1] for axis, one in made.tiles.items()} == {a: one[-1] for a, one in schedule.tiles.items()}
    assert made.workload.flop < min(flop, workload.flop)
    assert made.workload.epilogue == workload.epilogue
    assert shrink_schedule(made) == made
    found = anatune.verify(made)
    assert found.ok, found.message


def test_what_is_small_stays():
    schedule = anatune.plan(anatune.matmul(16, 16, 32, dtype="float16"), "h100", 1, template="triton").schedules[0]
    assert shrink_schedule(schedule) is schedule
