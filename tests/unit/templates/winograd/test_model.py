"""The Winograd model: whole predictions, physics, exact ranking."""

import math
import pickle

import msgspec
import numpy as np
import pytest

import anatune
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.winograd.model import FEATURES, PARTS, RESOURCES, WinogradModel

HARDWARE = anatune.hardware("amd_ryzen_7950x")
WORKLOADS = {
    "nchw": anatune.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1),
    "nhwc": anatune.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1, layout="NHWC"),
    "bytes": anatune.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1, layout="NHWC", dtype="uint8xint8"),
    "odd": anatune.conv2d(2, 19, 13, 17, 35, 3, 3, epilogue=("bias", "add", "relu")),
}


def one_core(hardware=HARDWARE):
    return msgspec.structs.replace(
        hardware,
        compute=msgspec.structs.replace(
            hardware.compute,
            num_cores=1,
            fp32_peak_flop_per_s=hardware.compute.fp32_peak_flop_per_s / hardware.compute.num_cores,
        ),
    )


def at(model, p=(2, 14), f=(1, 2), unroll=4, size=2, split=None):
    schedule = model.space.schedule({"p": p, "f": f, "c": (unroll,)}, size, split)
    return model.predictions(model.space.point_of(schedule)[None])[0]


@pytest.mark.parametrize("name", WORKLOADS)
def test_predictions_are_whole(name):
    hardware = anatune.hardware("epyc_7763") if name == "bytes" else HARDWARE  # without VNNI
    model = WinogradModel(WORKLOADS[name], hardware)
    for prediction in model.predictions(model.space.sample_points(200, seed=2)):
        assert prediction.legal
        assert (tuple(prediction.parts), tuple(prediction.features)) == (PARTS, FEATURES)
        assert tuple(prediction.resources) == RESOURCES
        numbers = [*prediction.parts.values(), *prediction.features.values(), *prediction.resources.values()]
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
        assert all(share >= 1.0 for share in (prediction.traffic_over_bound["l1"],))
        assert prediction.time_s >= model.floor_s
        assert 0.0 < prediction.features["useful_share"] <= 1.0


@pytest.mark.parametrize("name", ["nchw", "odd"])
def test_the_ranking_is_that_of_all_points(name):
    model = WinogradModel(WORKLOADS[name], one_core())
    points = model.space.points_at(np.arange(model.space.size))
    times, rules = model.times(points)
    ranking = model.rank(20)
    assert ranking.guarantee.kind == "exhaustive"
    np.testing.assert_array_equal(model.times(ranking.points)[0], np.sort(times[rules == 0])[:20])
    assert ranking.num_legal == (rules == 0).sum()
    assert ranking.rejected == {rule.id: int((rules == at).sum()) for at, rule in enumerate(model.rules, start=1)}
    assert model.check(ranking.points).sum() == 0


def test_rules():
    model = WinogradModel(WORKLOADS["nchw"], HARDWARE)
    assert at(model, p=(1, 14), f=(1, 2)).legal  # 28 accumulators, 2 vectors, 1 element: 31
    assert at(model, p=(1, 15), f=(1, 2)).rule == "microkernel_registers"
    assert at(model, p=(15, 14)).rule == "block_size"  # 196 tiles are 14 calls
    assert at(model, p=(14, 14)).legal
    assert at(model, f=(2, 4), p=(2, 5)).rule == "block_size"  # 4 vectors
    assert at(model, p=(14, 14), split="tiles").rule == "parallel_cores"
    assert at(model, p=(7, 14), split="tiles").legal
    alone = WinogradModel(WORKLOADS["nchw"], one_core())
    assert at(alone, p=(7, 14), split="tiles").rule == "parallel_cores"


def test_larger_tiles_have_fewer_products_and_dearer_transforms():
    model = WinogradModel(WORKLOADS["nhwc"], HARDWARE)
    small, large = at(model, size=2, p=(2, 7)), at(model, size=4, p=(2, 7))
    assert large.parts["product_s"] == pytest.approx(small.parts["product_s"] * 36 * 49 / (16 * 196), rel=0.02)
    assert large.features["error_growth"] > small.features["error_growth"] == 1.0


def test_turning_columns_costs():
    nchw, nhwc = (at(WinogradModel(WORKLOADS[name], HARDWARE), size=4, p=(2, 7)) for name in ("nchw", "nhwc"))
    assert nchw.parts["input_s"] > 1.1 * nhwc.parts["input_s"]
    assert nchw.parts["output_s"] > nhwc.parts["output_s"]
    assert nchw.parts["product_s"] == nhwc.parts["product_s"]


def test_partial_tiles_and_idle_lanes_are_paid_for():
    whole = at(WinogradModel(anatune.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1), HARDWARE), p=(2, 7), size=4)
    cut = at(WinogradModel(anatune.conv2d(1, 64, 25, 25, 64, 3, 3, padding=1), HARDWARE), p=(2, 7), size=4)
    assert cut.time_s == pytest.approx(whole.time_s, rel=0.03)
    assert (
        at(WinogradModel(anatune.conv2d(1, 64, 28, 28, 49, 3, 3, padding=1), HARDWARE), p=(2, 7)).time_s
        > 0.97 * at(WinogradModel(anatune.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1), HARDWARE), p=(2, 7)).time_s
    )


def test_weights_stream_once_for_each_block():
    workload = anatune.conv2d(1, 256, 14, 14, 256, 3, 3, padding=1)
    model = WinogradModel(workload, one_core())
    few, many = at(model, p=(7, 7)), at(model, p=(1, 7))
    assert few.resources["weight_bytes"] == many.resources["weight_bytes"] == 16 * 256 * 256 * 4
    assert many.parts["l3_s"] > 2 * few.parts["l3_s"]  # of few blocks V is read from there instead


def test_threads_share_the_time():
    model = WinogradModel(WORKLOADS["nhwc"], HARDWARE)
    alone = at(model, p=(1, 14), f=(1, 1))
    for split, most in (("tiles", 14), ("channels", 4)):
        shared = at(model, p=(1, 14), f=(1, 1), split=split)
        assert shared.resources["threads"] == min(most, HARDWARE.compute.num_cores)
        assert shared.parts["product_s"] == pytest.approx(alone.parts["product_s"] / shared.resources["threads"])


def test_direct_kernels_are_faster_where_there_are_few_channels():
    """3 input channels fill 3 of 16 lanes of the transforms; 64 on both sides and 28 x 28 tiles pay."""
    few, many = anatune.conv2d(1, 3, 64, 64, 16, 3, 3, padding=1), WORKLOADS["nhwc"]
    hardware = one_core()
    times = {}
    for workload in (few, many):
        winograd, direct = WinogradModel(workload, hardware, accuracy="standard"), CpuModel(workload, hardware)
        times[workload] = [model.times(model.rank(1).points)[0][0] for model in (winograd, direct)]
    assert times[few][0] > times[few][1]
    assert times[many][0] < times[many][1] / 1.35


def test_a_model_is_sent_to_another_process():
    model = WinogradModel(WORKLOADS["odd"], HARDWARE, accuracy="standard")
    again = pickle.loads(pickle.dumps(model))
    points = model.space.sample_points(50, seed=1)
    assert np.array_equal(again.times(points)[0], model.times(points)[0])
    assert again.space.choices == model.space.choices
