"""Rows of `list_loops` are equal exactly where the loop nests are."""

import pytest

import anatune
from anatune.templates.cpu.model.order import loop_nest, loop_nests
from tests.naive_cpu import loop_nest as plain_loop_nest

WORKLOADS = [
    anatune.matmul(12, 34, 18),
    anatune.conv2d(n=2, c=4, h=6, w=6, k=17, r=3, s=3, padding=1),
    anatune.reduction((12, 64), axes=(1,)),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.operator)
@pytest.mark.parametrize("device", ["cortex_a72", "epyc_7763"])
def test_rows_are_equal_where_loop_nests_are(workload, device):
    space = anatune.space(workload, anatune.hardware(device))
    points = space.sample_points(3000, 0, legal=False)
    twins = points.copy()  # a factor moved to the neighbouring level is often the same loop
    for axis in space.axes:
        outer, inner = (space.columns.index(f"{axis}.{level}") for level in space.levels[axis][:2])
        twins[:, inner] *= twins[:, outer]
        twins[:, outer] = 1
    points = [*points, *twins]
    rows = loop_nests(space, points)
    plain = [plain_loop_nest(space, point) for point in points]
    assert len(set(rows)) == len(set(plain)) == len(set(zip(rows, plain, strict=True)))
    assert len(set(rows)) < len(rows)
    assert loop_nest(space, points[7]) == rows[7]
