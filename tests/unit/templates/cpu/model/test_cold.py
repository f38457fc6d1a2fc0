"""Weights that come from far away once a run: what they add to a prediction of runs that follow each other."""

import pytest

import anatune
from anatune.templates import make_model
from anatune.templates.cpu.model.cold import with_cold_weights

MIB = 1 << 20


@pytest.fixture(scope="module")
def hardware():
    return anatune.hardware("xeon_gold_6230r").with_threads(1)  # L2 of 1 MiB, L3 of 35.75 MiB


def first(workload, hardware, template="cpu"):
    model = make_model(workload, hardware, template)
    return model.predictions(model.rank(1).points)[0]


@pytest.mark.parametrize("template", ["cpu", "winograd"])
def test_weights_that_stay_near_add_nothing(hardware, template):
    warm = first(anatune.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1, layout="NHWC"), hardware, template)
    assert with_cold_weights(warm, 64 * 64 * 9 * 4, 16 * 1024, hardware) == warm


@pytest.mark.parametrize("template", ["cpu", "winograd"])
def test_weights_from_memory_take_its_bandwidth(hardware, template):
    warm = first(anatune.conv2d(1, 512, 7, 7, 512, 3, 3, padding=1, layout="NHWC"), hardware, template)
    weights = 512 * 512 * 9 * 4
    overlap = template == "winograd"
    near = with_cold_weights(warm, weights, 30 * MIB, hardware, levels_overlap=overlap)  # L3 holds them
    far = with_cold_weights(warm, weights, 300 * MIB, hardware, levels_overlap=overlap)
    assert warm.time_s <= near.time_s < far.time_s
    dram_s = weights / hardware.dram.core_bandwidth_bytes_per_s
    assert far.parts["dram_s"] == pytest.approx(dram_s)
    assert max(warm.time_s, dram_s) <= far.time_s <= warm.time_s + near.parts["l3_s"] + dram_s
    assert far.gflop_per_s * far.time_s == pytest.approx(warm.gflop_per_s * warm.time_s)


@pytest.mark.parametrize("template", ["cpu", "winograd"])
@pytest.mark.parametrize("channels", [64, 512, 1024])
def test_a_little_more_to_transfer_takes_little_more_time(hardware, template, channels):
    workload = anatune.conv2d(1, channels, 7, 7, channels, 3, 3, padding=1, layout="NHWC")
    warm = first(workload, hardware, template)
    overlap = template == "winograd"
    fill_s = 1.0 / (hardware.l3.bandwidth_bytes_per_cycle * hardware.compute.clock_hz)
    weights = warm.parts["l3_s"] / fill_s + 64  # a line more than what comes from L3 already
    cold = with_cold_weights(warm, weights, 2 * MIB, hardware, levels_overlap=overlap)
    assert warm.time_s <= cold.time_s
    added = sum(cold.parts[part] - warm.parts[part] for part in ("l2_s", "l3_s", "dram_s"))
    assert cold.time_s - warm.time_s <= added * (1.0 + 1e-9) + 1e-12


def test_what_is_counted_already_is_not_counted_again(hardware):
    workload = anatune.matmul(64, 4096, 4096)  # 64 MiB of weights: every run reads them from memory
    warm = first(workload, hardware)
    assert warm.parts["dram_s"] > 0.0
    cold = with_cold_weights(warm, 4096 * 4096 * 4, 400 * MIB, hardware)
    assert cold.parts["dram_s"] == pytest.approx(warm.parts["dram_s"])


def test_a_product_of_transfers_is_bound_by_them(hardware):
    warm = first(anatune.matmul(1, 1024, 1024), hardware)
    far = with_cold_weights(warm, 4 * MIB, 400 * MIB, hardware)
    assert far.bound_by == "dram"


def test_threads_share_the_weights():
    hardware = anatune.hardware("xeon_gold_6230r").with_threads(4)
    warm = first(anatune.matmul(256, 1024, 1024), hardware)
    assert warm.occupancy == 1.0
    cold = with_cold_weights(warm, 4 * MIB, 400 * MIB, hardware)
    rate = min(hardware.dram.core_bandwidth_bytes_per_s, hardware.dram.bandwidth_bytes_per_s / 4)
    assert cold.parts["dram_s"] == pytest.approx(1 * MIB / rate)
