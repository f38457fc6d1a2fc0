"""Micro quantities of points (loads, conflicts, fetches, spills) against enumeration in plain Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import anatune
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.times.batch import BOUND, MACRO_BOUND, PREDICT
from anatune.templates.cuda.times.micro import fetch_one, is_dynamic_one, warp_sectors_one
from anatune.templates.gpu.times.columns import Col
from tests.cases import each
from tests.naive_gpu import WORKLOADS, Point, gpu, random_points

DEVICES = ("rtx3090", "k80", "mi50", "p100", "tx2")
LARGE = {
    "matmul": anatune.matmul(256, 512, 128),
    "conv2d": anatune.conv2d(4, 32, 28, 28, 64, 3, 3, padding=1),
    "conv2d_nhwc": anatune.conv2d(2, 16, 32, 32, 32, 5, 3, stride=2, padding=2, layout="NHWC", dtype="float16"),
    "elementwise": anatune.elementwise((256, 1024)),
}


@pytest.mark.parametrize("name", WORKLOADS)
@each("device", DEVICES)
def test_micro_quantities(name: str, device: str) -> None:
    check(CudaModel(WORKLOADS[name], gpu(device)), 25)


@pytest.mark.parametrize("device", ["k80", "mi50"])
@pytest.mark.parametrize("name", LARGE)
def test_micro_quantities_of_large_tiles(name: str, device: str) -> None:
    """Tiles that spill and are not unrolled."""
    check(CudaModel(LARGE[name], gpu(device)), 40, largest_tile=1e5)


def check(model: CudaModel, count: int, largest_tile: float = 1e9) -> None:
    points = random_points(model, count, seed=5)
    _, _, columns = model._run(points, PREDICT, full=True)
    for number, row in enumerate(points):
        if columns[Col.TILE_BYTES, number] > largest_tile:
            continue  # too many addresses to enumerate
        schedule = model.space.schedule_of(row)
        point = Point(model.workload, model.hardware, schedule)
        expected = point.micro(int(columns[Col.REGISTER_CAP, number]))
        quantities = {key: columns[Col[key], number] for key in expected}
        assert quantities == pytest.approx(expected, rel=1e-12), schedule.describe()


def test_dynamic_indexing_follows_the_unrolled_loops() -> None:
    model = CudaModel(anatune.matmul(64, 64, 64), gpu("k80"))  # its compiler unrolls 320 statements
    space = model.space

    def is_dynamic(i: tuple[int, ...], j: tuple[int, ...], k2: int, unroll: int) -> bool:
        point = space.point_of(space.schedule({"i": i, "j": j, "k": (64 // k2, 1, k2)}, unroll=unroll))
        return bool(model._run(point, PREDICT, full=True)[2][Col.DYNAMIC, 0])

    assert not is_dynamic((4, 1, 4, 1, 4), (4, 1, 4, 1, 4), 16, 0)  # 16 results; k2 stays a loop without harm
    assert not is_dynamic((4, 1, 4, 2, 2), (4, 1, 4, 1, 4), 8, 0)  # 2*4*8*2 = 128
    assert is_dynamic((4, 1, 4, 4, 1), (4, 1, 4, 1, 4), 64, 0)  # 4*64*4 = 1024 > 320 at reg_outer
    assert not is_dynamic((4, 1, 4, 4, 1), (4, 1, 4, 1, 4), 64, 1024)
    assert is_dynamic((4, 1, 4, 4, 1), (4, 1, 4, 1, 4), 64, 512)
    assert is_dynamic((1, 1, 1, 1, 64), (4, 1, 1, 1, 16), 1, 512)  # 1024 statements in reg_inner
    assert not is_dynamic((1, 64, 1, 1, 1), (4, 16, 1, 1, 1), 64, 0)  # virtual threads are always unrolled
    assert is_dynamic((1, 32, 1, 1, 2), (4, 16, 1, 1, 1), 1, 0)  # but count as statements


def test_is_dynamic_one() -> None:
    assert not is_dynamic_one(4.0, 8.0, 2.0, 5.0, 320.0)
    assert is_dynamic_one(4.0, 8.0, 2.0, 5.0, 319.0)  # reg_outer stays a loop
    assert not is_dynamic_one(4.0, 8.0, 100.0, 1.0, 32.0)  # k2 stays a loop, which indexes no results
    assert is_dynamic_one(4.0, 8.0, 1.0, 1.0, 31.0)  # reg_inner stays a loop
    assert not is_dynamic_one(64.0, 1.0, 9.0, 1.0, 0.0)  # nothing but virtual threads


def test_fetches_wider_never_need_more_loads() -> None:
    for footprint, threads in itertools.product((1, 7, 64, 1000, 4096), (1, 32, 48, 256, 1024)):
        warps = float(-(-threads // 32))
        rows = [fetch_one(float(footprint), float(width), float(threads), warps, 32.0) for width in (1, 2, 4, 8)]
        assert rows == sorted(rows, reverse=True)
        assert all(each >= 1 and block <= each * warps for each, block in rows)
    assert fetch_one(1024.0, 4.0, 64.0, 2.0, 32.0) == (4.0, 8.0)
    assert fetch_one(16.0, 4.0, 256.0, 8.0, 32.0) == (1.0, 3.0)  # one warp's load; the others test and skip


def test_warp_sectors() -> None:
    assert warp_sectors_one(32.0, 32.0, 1.0, 4.0) == 4.0  # 128 consecutive bytes
    assert warp_sectors_one(32.0, 8.0, 1.0, 4.0) == 4.0  # four rows of one sector each
    assert warp_sectors_one(32.0, 1.0, 1.0, 4.0) == 32.0
    assert warp_sectors_one(32.0, 32.0, 4.0, 16.0) == 16.0
    assert warp_sectors_one(32.0, 32.0, 16.0, 64.0) == 32.0
    assert warp_sectors_one(64.0, 64.0, 1.0, 4.0) == 8.0


@pytest.mark.parametrize("name", [*LARGE, "matmul_int8", "max_pool", "row_sum"])
def test_best_micro_quantities_are_lower_bounds(name: str) -> None:
    model = CudaModel((LARGE | WORKLOADS)[name], gpu("mi50"))
    points = random_points(model, 1500, seed=6)
    best, bound, real = (model._run(points, task, full=True)[2] for task in (MACRO_BOUND, BOUND, PREDICT))
    slack = 1 - 1e-12
    for column in (Col.LOADS, Col.WAVEFRONTS, Col.FETCHES, Col.FETCHES_BLOCK, Col.STORE_SECTORS, Col.SPILLED):
        assert (best[column] * slack <= bound[column]).all(), column.name
        assert (bound[column] * slack <= real[column]).all(), column.name
    assert (real[Col.REUSE] <= bound[Col.REUSE]).all()
    assert (real[Col.CONFLICT] >= 1).all()
    assert np.isin(real[Col.DYNAMIC], (0, 1)).all()
