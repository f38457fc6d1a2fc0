"""GPU model: rules, features of [ICS24] with units and limits right, parts, occupancy, lower bounds."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.prediction import Prediction
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.model.scoring import PARTS, RESOURCES
from anatune.templates.gpu.model import FEATURES
from tests.cases import each
from tests.naive_gpu import DEVICES, WORKLOADS, gpu, random_points

MATMUL = anatune.matmul(512, 1024, 256)
TILES = {"i": (8, 1, 16, 4, 1), "j": (16, 1, 16, 4, 1), "k": (32, 4, 2)}


@pytest.fixture(scope="module")
def model() -> CudaModel:
    return CudaModel(MATMUL, gpu("rtx3090"))


@pytest.fixture(scope="module")
def prediction(model: CudaModel) -> Prediction:
    point = model.space.point_of(model.space.schedule(TILES, unroll=512, vector={"A": 4, "B": 4}))
    return model.predictions(point)[0]


def test_resources(prediction: Prediction) -> None:
    assert tuple(prediction.resources) == RESOURCES
    assert prediction.legal
    assert prediction.rule == ""
    expected = {
        "threads_per_block": 256,
        "blocks": 128,
        "accumulators_per_thread": 16,
        "shared_bytes_per_block": 2 * 64 * 8 * 4,
        "counted_registers": 16 + 8 + 24,
        "spilled_registers": 0,
        "blocks_per_sm": 2,  # 128 blocks on 82 SMs
    }
    assert {name: prediction.resources[name] for name in expected} == expected
    assert prediction.occupancy == 2 * 8 / 48
    assert prediction.occupancy_limiter == "grid"
    assert prediction.waves == pytest.approx(128 / (82 * 5))  # 5 blocks of 8 warps at 48 registers
    assert prediction.gflop_per_s == pytest.approx(MATMUL.flop / prediction.time_s / 1e9)


def test_features(prediction: Prediction) -> None:
    assert tuple(prediction.features) == FEATURES
    expected = {
        "OI_Global_Mem": 2 * 64 * 64 * 8 / (2 * 64 * 8 * 4),
        "Reg_Reuse_Factor": 2 * 256 / 16,  # a warp stores 2 x 16 results, every fourth of a row: 16 sectors
        "ILP": 16,
        "WLP": 16,
        "Estimated_Occupancy": 5 * 8 / 48,
        "Wave_Efficiency": 128 / 82 / 2,  # one block an SM at a time
    }
    assert {name: prediction.features[name] for name in expected} == pytest.approx(expected)
    # 8 rows of A and of B per step: 2 loads of 16 bytes each, one wavefront each; 16 multiply-adds of 32 lanes
    assert prediction.features["OI_Shared_Mem"] == pytest.approx(2 * 16 * 32 / (4 * 128), rel=0.6)


def test_parts(model: CudaModel, prediction: Prediction) -> None:
    assert tuple(prediction.parts) == PARTS
    assert prediction.parts["launch_s"] == model.hardware.launch.overhead_s
    assert max(prediction.parts.values()) == prediction.parts[f"{prediction.bound_by}_s"]
    assert prediction.time_s > max(prediction.parts.values())
    assert all(value >= 0 for value in prediction.parts.values())
    assert msgspec.json.decode(msgspec.json.encode(prediction), type=Prediction) == prediction


def test_illegal_points_are_predicted_with_their_rule(model: CudaModel) -> None:
    space = model.space
    wide = space.schedule(TILES | {"i": (8, 1, 64, 1, 1), "j": (16, 1, 64, 1, 1)})
    deep = space.schedule(TILES | {"k": (1, 256, 1)})
    points = np.array([space.point_of(schedule) for schedule in (wide, deep)])
    predictions = model.predictions(points)
    assert [(p.legal, p.rule) for p in predictions] == [(False, "threads_per_block"), (False, "shared_bytes_per_block")]
    assert all(math.isfinite(p.time_s) and p.time_s > model.floor_s for p in predictions)
    assert model.check(points).tolist() == [1, 2]


def test_limiters(model: CudaModel) -> None:
    points = random_points(model, 4000, seed=0)
    limiters = {prediction.occupancy_limiter for prediction in model.predictions(points)}
    assert limiters == {"threads", "registers", "shared", "blocks", "grid"}


@pytest.mark.parametrize("name", WORKLOADS)
def test_evaluate_times_and_predictions_agree(name: str) -> None:
    model = CudaModel(WORKLOADS[name], gpu("p100"))
    points = random_points(model, 70, seed=1)
    evaluation = model.evaluate(points)
    times, rules = model.times(points)
    assert times.tobytes() == evaluation.time_s.tobytes()
    assert rules.tolist() == evaluation.rule.tolist() == model.check(points).tolist()
    predictions = model.predictions(points)
    assert [p.time_s for p in predictions] == times.tolist()
    assert [p.waves for p in predictions] == evaluation.columns["waves"].tolist()
    assert model.predictions(points[:0]) == []


@pytest.mark.parametrize("name", [*WORKLOADS, "large"])
@each("device", ["rtx3090", "mi50", "tx2"])
def test_ranges(name: str, device: str) -> None:
    model = CudaModel(MATMUL if name == "large" else WORKLOADS[name], gpu(device))
    points = model.space.sample_points(500, 2)
    columns = model.evaluate(points).columns
    assert all(np.isfinite(values).all() and (values >= 0).all() for values in columns.values())
    for share in ("occupancy", "Estimated_Occupancy", "Wave_Efficiency"):
        assert (columns[share] > 0).all(), share
        assert (columns[share] <= 1).all(), share
    whole = columns["blocks"] % model.hardware.compute.num_sms == 0
    assert ((columns["Wave_Efficiency"] == 1) == whole).all()
    assert (columns["occupancy"] <= columns["Estimated_Occupancy"]).all()
    assert (columns["bank_conflicts"] >= 1).all()


@pytest.mark.parametrize("device", DEVICES)
def test_lower_bounds(device: str) -> None:
    for workload in (MATMUL, WORKLOADS["conv2d"], WORKLOADS["elementwise"]):
        model = CudaModel(workload, gpu(device))
        bounds = model.io_bounds
        assert bounds["dram"] <= bounds["l2"]
        assert ("shared" in bounds) == bool(workload.reduction_axes)
        assert bounds["dram"] >= workload.compulsory_bytes
        assert model.floor_s > model.hardware.launch.overhead_s


def test_half_precision_moves_half_the_bytes() -> None:
    tiles = {"i": (4, 1, 16, 1, 1), "j": (4, 1, 16, 1, 1), "k": (4, 16, 1)}
    bytes_of = []
    for dtype in ("float32", "float16"):
        model = CudaModel(anatune.matmul(64, 64, 64, dtype=dtype), gpu("v100_sxm2"))
        point = model.space.point_of(model.space.schedule(tiles))
        bytes_of.append(model.predictions(point)[0].resources)
    for name in ("shared_bytes_per_block", "dram_bytes"):
        assert bytes_of[0][name] == 2 * bytes_of[1][name]
