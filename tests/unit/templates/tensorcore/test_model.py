"""Tensor-core model: resources, plausible shares of the peak, exact ranking, and the way it is called."""

from __future__ import annotations

import math

import numpy as np
import pytest

import anatune
from anatune import api
from anatune.core.prediction import Prediction
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.gpu.model import FEATURES, OWN_PARTS
from anatune.templates.tensorcore.model import PARTS, RESOURCES, TensorCoreModel
from anatune.templates.tensorcore.program.layout import TileLayout
from tests.naive_gpu import gpu

LARGE = anatune.matmul(4096, 4096, 4096, dtype="bfloat16")
SMALL = anatune.matmul(64, 48, 32, dtype="float16", epilogue=("bias",))
WORKLOADS = {
    "matmul": anatune.matmul(512, 1024, 1024, dtype="bfloat16"),
    "tf32": anatune.matmul(256, 320, 100),
    "nhwc": anatune.conv2d(2, 32, 28, 28, 64, 3, 3, padding=1, dtype="float16", layout="NHWC"),
    "nchw": anatune.conv2d(2, 32, 28, 28, 64, 3, 3, padding=1, dtype="float16", epilogue=("bias", "relu")),
    "batch": anatune.batch_matmul(12, 128, 100, 64, dtype="float16", transpose_b=True),
}


def best(workload: Workload, device: str) -> Prediction:
    model = TensorCoreModel(workload, gpu(device))
    return model.predictions(model.rank(1).points)[0]


@pytest.mark.parametrize("name", WORKLOADS)
def test_resources_are_those_of_the_generated_kernel(name: str) -> None:
    model = TensorCoreModel(WORKLOADS[name], gpu("a100"))
    points = model.space.sample_points(60, seed=1)
    for point, prediction in zip(points, model.predictions(points), strict=True):
        layout = TileLayout(model.space.schedule_of(point))
        assert tuple(prediction.resources) == RESOURCES
        assert prediction.resources["shared_bytes_per_block"] == layout.shared_bytes
        assert prediction.resources["threads_per_block"] == layout.num_threads
        assert prediction.resources["blocks"] == layout.num_blocks
        assert prediction.resources["accumulators_per_thread"] == 4 * layout.mma["m"] * layout.mma["n"]
        assert prediction.resources["registers_per_thread"] <= 255


@pytest.mark.parametrize("device", ["a100", "rtx3090", "h200"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_predictions_are_whole(name: str, device: str) -> None:
    model = TensorCoreModel(WORKLOADS[name], gpu(device))
    for prediction in model.predictions(model.space.sample_points(100, seed=2)):
        assert prediction.legal
        assert tuple(part for part in prediction.parts if part not in OWN_PARTS) == PARTS
        assert tuple(prediction.features) == FEATURES
        numbers = [prediction.time_s, *prediction.parts.values(), *prediction.features.values()]
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
        assert prediction.time_s >= model.floor_s
        assert 0 < prediction.occupancy <= 1
        assert 0 < prediction.resources["useful_share"] <= 1
        assert all(ratio >= 1 - 1e-9 for ratio in prediction.traffic_over_bound.values())


def test_share_of_the_peak_is_plausible() -> None:
    """Large products: 75 to 95 % of the peak, but never more than mma.sync's share of it on sm_90."""
    for device, least, most in (("a100", 0.75, 0.95), ("rtx3090", 0.75, 0.95), ("h200", 0.4, 0.63)):
        peak = gpu(device).tensor_flop_per_s("bfloat16")
        assert peak is not None
        assert least < best(LARGE, device).gflop_per_s * 1e9 / peak < most


def test_large_products_want_large_tiles_and_several_stages() -> None:
    model = TensorCoreModel(LARGE, gpu("a100"))
    schedule = model.space.schedule_of(model.rank(1).points[0])
    m, n = (math.prod(schedule.tiles[axis][1:]) for axis in "mn")
    assert m * n >= 128 * 128
    assert schedule.options["stages"] == 3
    assert schedule.vector == {"A": 8, "B": 8}


def test_tf32_takes_twice_as_long() -> None:
    half, single = best(LARGE, "a100"), best(anatune.matmul(4096, 4096, 4096), "a100")
    assert 1.7 < single.time_s / half.time_s < 2.3


def test_tensor_cores_beat_cuda_cores() -> None:
    workload, hardware = anatune.matmul(1024, 1024, 1024, dtype="float16"), gpu("a100")
    on_cores = api.plan(workload, hardware, 1, template="cuda", time_limit_s=2)
    assert best(workload, "a100").time_s < 0.5 * on_cores.predictions[0].time_s


def test_ranking_is_that_of_all_points() -> None:
    model = TensorCoreModel(SMALL, gpu("a100"))
    space = model.space
    points = space.decode(np.column_stack(np.unravel_index(np.arange(space.size), space.radices)))
    times, rules = model.times(points)
    ranking = model.rank(20)
    assert ranking.guarantee.kind == "exhaustive"
    assert ranking.num_legal == int((rules == 0).sum())
    assert ranking.rejected is not None
    assert sum(ranking.rejected.values()) + ranking.num_legal == space.size
    assert model.times(ranking.points)[0].tolist() == np.sort(times[rules == 0])[:20].tolist()
    apart = model.times(model.rank(20, distinct=True).points)[0]
    assert (np.diff(apart) > 0).all()


def test_batch_and_single_points_agree() -> None:
    model = TensorCoreModel(WORKLOADS["nhwc"], gpu("h200"))
    points = model.space.sample_points(50, seed=4)
    assert model.times(points)[0].tolist() == [model.times(point[None])[0][0] for point in points]


def test_rules_name_what_is_too_large() -> None:
    model = TensorCoreModel(LARGE, gpu("rtx3090"))
    space = model.space
    for tiles, rule in (
        ({"m": (8, 1), "n": (8, 1), "k": (1,)}, "threads_per_block"),
        ({"m": (2, 8), "n": (2, 8), "k": (8,)}, "shared_bytes_per_block"),
        ({"m": (1, 8), "n": (1, 8), "k": (1,)}, "registers_per_thread"),
    ):
        prediction = model.predictions(space.point_of(space.schedule(tiles)))[0]
        assert (prediction.legal, prediction.rule) == (False, rule)


def test_compiled_numbers_take_the_place_of_estimates() -> None:
    model = TensorCoreModel(LARGE, gpu("a100"))
    point = model.space.point_of(model.space.schedule({"m": (2, 2), "n": (2, 4), "k": (2,)}))
    compiled = np.array([[200.0], [80000.0], [0.0]])
    prediction = model.predictions(point[None], compiled)[0]
    assert prediction.resources["registers_per_thread"] == 200
    assert prediction.resources["shared_bytes_per_block"] == 80000
    assert prediction.time_s >= model.predictions(point)[0].time_s


def test_api_dispatches_on_the_template() -> None:
    hardware = gpu("a100")
    plan = anatune.plan(SMALL, hardware, 3, template="tensorcore")
    assert [schedule.template for schedule in plan.schedules] == ["tensorcore"] * 3
    assert plan.space_size == api.space(SMALL, hardware, template="tensorcore").size
    on_cores = api.space(SMALL, hardware).sample(1, seed=0)
    frame = anatune.predict(SMALL, hardware, [*plan.schedules, *on_cores])
    assert frame["time_s"].tolist()[:3] == [prediction.time_s for prediction in plan.predictions]
    assert frame["mma_s"].notna().tolist() == [True, True, True, False]
    for device, template in ((hardware, "tensor"), (anatune.hardware("epyc_7763"), "tensorcore")):
        with pytest.raises(SpaceError, match="template is"):
            anatune.plan(SMALL, device, template=template)
