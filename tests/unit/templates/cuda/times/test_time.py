"""The predicted time: what it must never be below, and how it answers to the device's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import anatune
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.times.batch import PREDICT
from anatune.templates.gpu.times.columns import Col
from anatune.templates.gpu.times.waves import norm4
from tests.cases import each
from tests.naive_gpu import WORKLOADS, gpu, random_points

NAMES = ("matmul", "matmul_int8", "conv2d_stride", "conv2d_nhwc", "depthwise", "max_pool", "row_sum", "elementwise")
PIPES = (Col.FMA_S, Col.ISSUE_S, Col.SHARED_S, Col.SPILL_S, Col.L2_S, Col.DRAM_S)
LARGE = anatune.matmul(512, 1024, 256)


def model_of(name: str, device: str = "rtx3090") -> CudaModel:
    return CudaModel(LARGE if name == "large" else WORKLOADS[name], gpu(device))


def test_norm4_is_a_smooth_maximum() -> None:
    assert norm4(2.0, 0.0, 0.0) == pytest.approx(2.0)
    assert norm4(1.0, 1.0, 0.0) == pytest.approx(2**0.25)
    assert norm4(3.0, 2.0, 1.0) == pytest.approx((81 + 16 + 1) ** 0.25)
    assert norm4(1e-7, 1e-12, 0.0) == pytest.approx(1e-7)


@pytest.mark.parametrize("name", [*NAMES, "large"])
@each("device", ["rtx3090", "mi50", "tx2"])
def test_no_faster_than_any_resource(name: str, device: str) -> None:
    model = model_of(name, device)
    points = random_points(model, 1500, seed=1)
    _, times, columns = model._run(points, PREDICT, full=True)
    launch = model.hardware.launch.overhead_s
    for part in PIPES:
        assert ((times - launch) * (1 + 1e-9) >= columns[part]).all(), part.name
    assert (times >= model.floor_s * (1 - 1e-12)).all()
    assert (columns[[*PIPES, Col.LATENCY_S, Col.TAIL_S]] >= 0).all()


@pytest.mark.parametrize("name", [*NAMES, "large"])
def test_the_multiply_add_part_is_all_lanes_of_all_warps(name: str) -> None:
    model = model_of(name)
    points = random_points(model, 500, seed=2)
    _, _, columns = model._run(points, PREDICT, full=True)
    compute = model.hardware.compute
    rate = model._gpu.fma_per_cycle * compute.num_sms * compute.clock_hz
    lanes = columns[Col.WARPS] * compute.warp_size / columns[Col.THREADS]  # idle lanes of the last warp count
    assert columns[Col.FMA_S] == pytest.approx(model.workload.num_points / rate * lanes)


@pytest.mark.parametrize("name", [*NAMES, "large"])
def test_waves(name: str) -> None:
    model = model_of(name, "tx2")
    points = random_points(model, 1500, seed=3)
    _, _, c = model._run(points, PREDICT, full=True)
    at_once = model.hardware.compute.num_sms * c[Col.RESIDENT]
    assert c[Col.WAVES] == pytest.approx(c[Col.BLOCKS] / at_once)
    assert (c[Col.HELD] == np.minimum(c[Col.RESIDENT], np.ceil(c[Col.BLOCKS] / model.hardware.compute.num_sms))).all()
    whole = c[Col.BLOCKS] % at_once == 0
    assert whole.any() or name != "large"
    assert (c[Col.TAIL_S][whole] <= 1e-12).all()


@pytest.mark.parametrize("name", [*NAMES, "large"])
@each(
    "field, factor, sign",
    [
        ("fma_per_cycle", 2.0, -1),
        ("issue_per_cycle", 2.0, -1),
        ("dram_bytes_cycle", 2.0, -1),
        ("l2_bytes_cycle", 2.0, -1),
        ("clock_hz", 2.0, -1),  # bytes a cycle stay
        ("l2_latency", 2.0, 1),
        ("shared_latency", 2.0, 1),
        ("fma_latency", 2.0, 1),
        ("dram_latency", 2.0, 1),
    ],
)
def test_better_devices_are_no_slower(name: str, field: str, factor: float, sign: int) -> None:
    model = model_of(name, "k80")
    points = random_points(model, 1000, seed=4)
    before, _ = model.times(points)
    model._gpu = model._gpu._replace(**{field: getattr(model._gpu, field) * factor})
    after, _ = model.times(points)
    assert (sign * (after - before) >= -1e-12 * before).all()
    assert (after != before).any() or name != "large"


def test_the_launch_is_added() -> None:
    model = model_of("matmul")
    points = random_points(model, 100, seed=5)
    before, _ = model.times(points)
    model._gpu = model._gpu._replace(launch_s=model._gpu.launch_s + 1.0)
    assert model.times(points)[0] == pytest.approx(before + 1.0, rel=1e-12)


def test_spills_cost_time() -> None:
    model = model_of("large")
    space = model.space
    tiles = {"i": (8, 1, 8, 8, 1), "j": (16, 1, 8, 8, 1), "k": (32, 1, 8)}
    points = np.array([space.point_of(space.schedule(tiles, unroll=unroll)) for unroll in (16, 1024)])
    few = model._gpu._replace(unroll_statements=16)
    model._gpu = few
    _, times, columns = model._run(points, PREDICT, full=True)
    assert columns[Col.DYNAMIC].tolist() == [1, 0]
    assert columns[Col.SPILLED].tolist() == [64, 0]
    assert times[0] > 2 * times[1]
    assert columns[Col.SPILL_S, 1] == 0


def test_epilogue_operands_are_moved() -> None:
    plain, fused = (anatune.matmul(256, 256, 64, epilogue=steps) for steps in ((), ("add",)))
    models = [CudaModel(workload, gpu("rtx3090")) for workload in (plain, fused)]
    points = random_points(models[0], 50, seed=6)
    _, _, before = models[0]._run(points, PREDICT, full=True)
    _, _, after = models[1]._run(points, PREDICT, full=True)
    for column in (Col.L2_BYTES, Col.DRAM_BYTES):
        assert after[column] - before[column] == pytest.approx(256 * 256 * 4)


def test_larger_batches_take_proportionally_longer() -> None:
    """Many whole waves of one kind of block: time grows like their number."""
    times = []
    for size in (2**12, 2**13):
        model = CudaModel(anatune.matmul(size, 4096, 512), gpu("a100_sxm"))
        space = model.space
        tiles = {"i": (size // 64, 4, 16, 1, 1), "j": (64, 4, 16, 1, 1), "k": (64, 4, 2)}
        point = space.point_of(space.schedule(tiles, unroll=512))
        times.append(float(model.times(point)[0][0]) - model.hardware.launch.overhead_s)
    assert math.isclose(times[1] / times[0], 2.0, rel_tol=0.1)
