"""Macro quantities of points (what follows from block, thread and stage sizes) against enumeration in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

import anatune
from anatune.numerics.columns import CHUNK_SIZE
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.times.batch import PREDICT
from anatune.templates.gpu.times.columns import Col, new_chunk
from anatune.templates.gpu.times.waves import sector_bytes_one
from tests.cases import each
from tests.naive_gpu import WORKLOADS, Point, gpu, has_rounds, random_points, with_limits

DEVICES = ("rtx3090", "k80", "mi50", "p100", "tx2")


@pytest.mark.parametrize("name", WORKLOADS)
@each("device", DEVICES)
def test_macro_quantities(name: str, device: str) -> None:
    model = CudaModel(WORKLOADS[name], gpu(device))
    points = random_points(model, 25, seed=3)
    _, _, columns = model._run(points, PREDICT, full=True)
    for number, point in enumerate(points):
        if not has_rounds(model, point):
            assert columns[Col.RULE, number] > 0
            continue
        schedule = model.space.schedule_of(point)
        expected = Point(model.workload, model.hardware, schedule).macro()
        quantities = {key: columns[Col[key], number] for key in expected}
        assert quantities == pytest.approx(expected, rel=1e-12), schedule.describe()


@pytest.mark.parametrize(
    "workload",
    [
        anatune.matmul(96, 128, 32),
        anatune.batch_matmul(4, 48, 64, 16, transpose_b=True),
        anatune.conv2d(2, 8, 20, 20, 16, 3, 3, padding=1),
        anatune.conv2d(2, 8, 20, 20, 16, 3, 3, stride=2, layout="NHWC"),
    ],
    ids=lambda workload: workload.describe(),
)
def test_traffic_where_operands_exceed_the_cache(workload: anatune.Workload) -> None:
    """No small workload exceeds a real L2, so it is shrunk."""
    whole, model = CudaModel(workload, gpu("tx2")), CudaModel(workload, gpu("tx2"))
    model._gpu = model._gpu._replace(l2_bytes=2048.0)
    points = random_points(model, 60, seed=4)
    _, _, columns = model._run(points, PREDICT, full=True)
    once = whole._run(points, PREDICT, full=True)[2][Col.DRAM_BYTES]
    assert (columns[Col.DRAM_BYTES] >= once * (1 - 1e-12)).all()
    assert (columns[Col.DRAM_BYTES] > 1.5 * once).any()

    for number, point in enumerate(points):
        if not has_rounds(model, point):
            continue
        naive = Point(model.workload, model.hardware, model.space.schedule_of(point), l2_bytes=2048)
        assert columns[Col.DRAM_BYTES, number] == pytest.approx(naive.macro()["DRAM_BYTES"], rel=1e-12)


def test_rules_in_their_order() -> None:
    model = CudaModel(anatune.matmul(2**12, 2**12, 2**10), gpu("rtx3090"))

    def rule(i: tuple[int, ...], j: tuple[int, ...], k: tuple[int, ...]) -> str:
        code = int(model.check(model.space.point_of(model.space.schedule({"i": i, "j": j, "k": k})))[0])
        return model.rules[code - 1].id if code else ""

    assert rule((256, 1, 16, 1, 1), (256, 1, 16, 1, 1), (64, 16, 1)) == ""
    assert rule((128, 1, 32, 1, 1), (128, 1, 32, 1, 1), (64, 16, 1)) == ""
    assert rule((64, 1, 64, 1, 1), (128, 1, 32, 1, 1), (64, 16, 1)) == "threads_per_block"
    assert rule((256, 1, 16, 1, 1), (256, 1, 16, 1, 1), (1, 1024, 1)) == "shared_bytes_per_block"
    assert rule((4, 32, 1, 32, 1), (4, 32, 1, 32, 1), (1024, 1, 1)) == "local_bytes_per_thread"
    assert rule((2, 1, 64, 32, 1), (2, 1, 64, 32, 1), (1, 1024, 1)) == "threads_per_block"  # the first one broken
    huge = CudaModel(anatune.matmul(2**17, 2**17, 1), gpu("rtx3090"))
    grid = {"i": (2**17, 1, 1, 1, 1), "j": (2**15, 1, 4, 1, 1), "k": (1, 1, 1)}
    assert huge.check(huge.space.point_of(huge.space.schedule(grid))).tolist() == [3]
    grid["j"] = (2**13, 1, 16, 1, 1)
    assert huge.check(huge.space.point_of(huge.space.schedule(grid))).tolist() == [0]


def test_limits_are_the_devices() -> None:
    workload = anatune.matmul(64, 64, 64)
    small = with_limits(gpu("rtx3090"), compute={"max_threads_per_block": 64}, shared={"per_block_bytes": 8192})
    model = CudaModel(workload, small, plain=True)
    points = random_points(model, 2000, seed=0)
    columns = model.evaluate(points)
    threads, shared = columns.columns["threads_per_block"], columns.columns["shared_bytes_per_block"]
    expected = np.where(threads > 64, 1, np.where(shared > 8192, 2, 0))
    assert columns.rule.tolist() == expected.tolist()
    assert [rule.limit for rule in model.rules[:2]] == [64, 8192]


@pytest.mark.parametrize(
    ("footprint", "run", "misaligned", "element", "expected"),
    [
        (256, 32, 0, 4, 1024.0),  # whole sectors
        (256, 8, 0, 4, 1024.0),
        (256, 4, 0, 4, 2048.0),  # half a sector is used
        (256, 1, 0, 4, 8192.0),
        (60, 12, 0, 4, 5 * (48 + 28)),  # rows of one and a half sectors
        (256, 8, 1, 4, 32 * (32 + 28)),  # rows may start anywhere
        (64, 16, 0, 2, 128.0),
        (64, 16, 1, 1, 4 * (16 + 31)),
    ],
)
def test_sector_bytes(footprint: int, run: int, misaligned: int, element: int, expected: float) -> None:
    assert sector_bytes_one(float(footprint), float(run), misaligned, float(element)) == expected


def test_chunks_have_room_for_every_column() -> None:
    chunk = new_chunk(4, 7, 2)
    assert [len(part) for part in chunk[:10]] == [4, 4, 4, 4, 7, 4, 2, 2, 2, 2]
    assert chunk.values.shape == (Col.COUNT, CHUNK_SIZE)
    assert all(part.shape[1] == CHUNK_SIZE for part in chunk)
