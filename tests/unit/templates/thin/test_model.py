"""Thin model: resources of the generated kernel, plausible times, the bandwidth it reaches, exact ranking."""

from __future__ import annotations

import math

import numpy as np
import pytest

import anatune
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import reduction
from anatune.templates.gpu.model import FEATURES
from anatune.templates.thin.model import PARTS, RESOURCES, ThinModel
from anatune.templates.thin.program.layout import ThinLayout
from tests.naive_gpu import gpu

WORKLOADS = {
    "vector": anatune.matmul(1, 4096, 1024),
    "rows": anatune.matmul(7, 1000, 777, transpose_b=True, epilogue=("bias", "relu")),
    "float16": anatune.matmul(16, 2048, 520, dtype="float16"),
    "int8": anatune.matmul(2, 2048, 528, dtype="int8", transpose_b=True),
    "batch": anatune.batch_matmul(12, 1, 128, 64),
    "conv": anatune.conv2d(1, 64, 3, 3, 256, 3, 3, padding=1),
    "reduction": reduction((512, 3000), axes=1),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_resources_are_those_of_the_generated_kernel(name: str) -> None:
    model = ThinModel(WORKLOADS[name], gpu("a100"))
    points = model.space.sample_points(60, seed=1)
    for point, prediction in zip(points, model.predictions(points), strict=True):
        layout = ThinLayout(model.space.schedule_of(point))
        assert tuple(prediction.resources) == RESOURCES
        assert prediction.resources["shared_bytes_per_block"] == layout.shared_bytes
        assert prediction.resources["threads_per_block"] == layout.num_threads
        assert prediction.resources["blocks"] == layout.num_blocks
        assert prediction.resources["accumulators_per_thread"] == layout.num_sums
        assert prediction.resources["loads_in_flight"] <= layout.each["n"] * layout.each["k"]
        assert prediction.resources["registers_per_thread"] <= 255


@pytest.mark.parametrize("device", ["a100", "rtx3090", "gtx1080ti"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_predictions_are_whole(name: str, device: str) -> None:
    model = ThinModel(WORKLOADS[name], gpu(device))
    for prediction in model.predictions(model.space.sample_points(100, seed=2)):
        assert prediction.legal
        assert tuple(prediction.parts) == PARTS
        assert tuple(prediction.features) == FEATURES
        numbers = [prediction.time_s, *prediction.parts.values(), *prediction.features.values()]
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
        assert prediction.time_s >= model.floor_s
        assert all(ratio >= 1.0 - 1e-9 for ratio in prediction.traffic_over_bound.values())


@pytest.mark.parametrize("device", ["rtx3090", "a100", "h100"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [4096, 11008])
def test_matrix_times_vector_reaches_the_bandwidth(device: str, transposed: bool, size: int) -> None:
    workload = anatune.matmul(1, size, size, transpose_b=transposed)
    best = ThinModel(workload, gpu(device))
    prediction = best.predictions(best.rank(1).points)[0]
    dram = gpu(device).dram
    rate = workload.compulsory_bytes / prediction.time_s
    assert 0.85 <= rate / (dram.bandwidth_bytes_per_s * dram.reachable_fraction) <= 1.0


def test_too_little_in_flight_is_slow() -> None:
    """By Little's law: 32 blocks of one warp with a load of 4 bytes a lane have 4 KiB in flight on an SM, half
    of what 2.8 TB/s and 720 cycles need."""
    model = ThinModel(anatune.matmul(1, 4096, 4096, transpose_b=True), gpu("h100"))
    slow, fast = (model.space.schedule({"k": (32, 1, 1)}), model.space.schedule({"n": (4, 2, 1), "k": (32, 4, 4)}))
    times = model.times(np.array([model.space.point_of(one) for one in (slow, fast)]))[0]
    assert times[0] > 1.5 * times[1]


def test_one_step_has_few_loads_in_flight() -> None:
    """Nothing follows the only step of a sum, so the compiler moves its loads to where they are used."""
    model = ThinModel(anatune.matmul(1, 4096, 512, transpose_b=True), gpu("a100"))
    one_step, two = (model.space.schedule({"n": (8, 1, 1), "k": (lanes, 8, 4)}) for lanes in (16, 8))
    predictions = model.predictions(np.array([model.space.point_of(schedule) for schedule in (one_step, two)]))
    assert [prediction.resources["loads_in_flight"] for prediction in predictions] == [2, 8]


@pytest.mark.parametrize("name", ["vector", "int8"])
def test_the_ranking_is_exact(name: str) -> None:
    model = ThinModel(WORKLOADS[name], gpu("rtx3090"))
    ranking = model.rank(5)
    points = model.space.points_at(np.arange(model.space.size))
    times, rules = model.times(points)
    assert ranking.guarantee.kind == "exhaustive"
    assert ranking.num_legal == int((rules == 0).sum())
    assert model.times(ranking.points)[0].tolist() == np.sort(times[rules == 0])[:5].tolist()


def workload_of(rows: int) -> Workload:
    return anatune.matmul(rows, 4096, 4096)


def test_plans_hold_it_beside_the_default() -> None:
    plan = anatune.plan(workload_of(1), gpu("rtx3090"), 3)
    assert plan.templates == ("cuda", "thin")
    assert plan.best.template == "thin"
    assert anatune.plan(workload_of(17), gpu("rtx3090"), 1).templates == ("cuda",)
    alone = anatune.plan(workload_of(1), gpu("rtx3090"), 1, template="cuda")
    assert alone.templates == ("cuda",)
    assert alone.predictions[0].time_s > plan.predictions[0].time_s
    assert {one.template for one in plan.joined} == {"cuda", "thin"}
