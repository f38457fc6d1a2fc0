"""The least time of a workload as it is timed: by hand, and below every prediction of the analytical models."""

import msgspec
import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.model.bound import time_bound

CPU = anatune.hardware("xeon_gold_6230r")
ONE = CPU.with_threads(1)
GPU = anatune.hardware("rtx3090")


def test_arithmetic_at_the_peak():
    work = anatune.matmul(512, 512, 512)
    found = time_bound(work, ONE)
    assert found.bound_by == "fma"
    assert found.time_s == pytest.approx(2 * 512**3 / (CPU.compute.fp32_peak_flop_per_s / CPU.compute.num_cores))
    assert time_bound(work, CPU).time_s == pytest.approx(found.time_s / CPU.compute.num_cores)


def doubting(hardware, group, *keys):
    return msgspec.structs.replace(
        hardware, **{group: msgspec.structs.replace(getattr(hardware, group), unverified=keys)}
    )


def test_a_bound_names_the_unverified_numbers_that_it_rests_on():
    work, vector = anatune.matmul(512, 512, 512), anatune.matmul(1, 32768, 8192)
    sure = doubting(doubting(ONE, "compute"), "dram")
    assert time_bound(work, sure).unverified == ()
    guessed = doubting(sure, "compute", "clock_hz", "issue_width", "fma_per_cycle")
    assert time_bound(work, guessed).unverified == ("compute.clock_hz", "compute.fma_per_cycle")
    slow = doubting(sure, "dram", "core_bandwidth_bytes_per_s", "latency_s")
    assert time_bound(vector, slow).unverified == ("dram.core_bandwidth_bytes_per_s",)
    assert time_bound(work, slow).unverified == ()
    pairs = anatune.hardware("xeon_8480")
    assert "vdpbf16ps.rate" in time_bound(anatune.matmul(512, 512, 512, dtype="bfloat16"), pairs).unverified


def test_caches_keep_what_fits_them():
    vector = anatune.matmul(1, 32768, 8192)  # 1 GiB of weights
    near = ONE.l1.size_bytes + ONE.l2.size_bytes
    num_bytes = 4 * (8192 + 8192 * 32768)
    times = {
        "l3": (num_bytes - near) / ONE.l3.bandwidth_bytes_per_cycle / ONE.compute.clock_hz,
        "dram": (num_bytes - near - ONE.l3.size_bytes) / ONE.dram.core_bandwidth_bytes_per_s,
    }
    found = time_bound(vector, ONE)
    assert found.bound_by == max(times, key=times.__getitem__)
    assert found.time_s == pytest.approx(max(times.values()))
    assert time_bound(anatune.matmul(1, 64, 64), ONE).bound_by == "fma"  # 16 KiB: nothing has to come from anywhere


def test_cold_weights_come_from_where_they_lie():
    work = anatune.matmul(1, 256, 256)
    found = time_bound(work, ONE, cold="dram", constants=("B",))
    assert (found.bound_by, found.time_s) == ("dram", pytest.approx(4 * 256**2 / ONE.dram.core_bandwidth_bytes_per_s))
    assert time_bound(work, ONE, cold="l3", constants=("B",)).bound_by == "l3"


def test_gpus_with_an_empty_and_a_warm_cache():
    work = anatune.matmul(64, 64, 64)
    flushed = time_bound(work, GPU, l2="flush")
    assert (flushed.bound_by, flushed.time_s) == ("dram", pytest.approx(2 * 4 * 64**2 / GPU.dram.bandwidth_bytes_per_s))
    assert time_bound(work, GPU, l2="warm").bound_by == "fma"


def test_transforms_and_padding_need_fewer_operations():
    conv = anatune.conv2d(n=1, c=64, h=14, w=14, k=64, r=3, s=3, padding=1)
    direct, saved = (model(conv, ONE, template=name).least_flop for name in ("cpu", "winograd"))
    assert direct == pytest.approx(conv.flop * (40 / 42) ** 2)
    tiles_of_4 = 16 * 36 / (14 * 14 * 9)  # 4 x 4 tiles of 36 products each, in the place of 9 for an output
    assert saved == pytest.approx(conv.flop * tiles_of_4)
    assert time_bound(conv, ONE, {"winograd": saved}).time_s < time_bound(conv, ONE, {"cpu": direct}).time_s


@pytest.mark.parametrize(
    ("workload", "hardware"),
    [
        (anatune.matmul(48, 64, 36), ONE),
        (anatune.matmul(1, 2048, 512), ONE),
        (anatune.conv2d(n=1, c=16, h=9, w=9, k=32, r=3, s=3, padding=1), CPU.with_threads(4)),
        (anatune.matmul(512, 256, 128), GPU),
    ],
)
def test_no_prediction_undercuts_it(workload, hardware):
    found = model(workload, hardware)
    times, rules = found.times(np.array(found.space.sample_points(400, seed=1)))
    bound = time_bound(
        workload, hardware, {found.space.template: found.least_flop}, l2="flush" if hardware is GPU else None
    )
    assert (times[rules == 0] >= bound.time_s).all()


@pytest.mark.parametrize(
    ("device", "dtype", "multiplied"),
    [
        ("mi300x", "float8_e4m3fnuz", "fp8"),
        ("mi300x", "float8_e4m3fn", "float16"),  # which its matrix units know as the other format only
        ("mi355x", "float8_e4m3fnuz", "float16"),
        ("h100", "float8_e4m3fn", "fp8"),
    ],
)
def test_operands_are_multiplied_at_the_rate_of_what_a_device_makes_of_them(device, dtype, multiplied):
    work, gpu = anatune.matmul(4096, 4096, 4096, dtype=dtype), anatune.hardware(device)
    rate = getattr(gpu.tensor_cores, f"{multiplied}_flop_per_s")
    found = time_bound(work, gpu, {"triton": work.flop}, l2="flush")
    assert (found.bound_by, found.time_s) == ("fma", pytest.approx(work.flop / rate))


def test_the_fastest_unit_counts():
    work, gpu = anatune.matmul(4096, 4096, 4096, dtype="float16"), anatune.hardware("a100")
    alone, joined = (time_bound(work, gpu, dict.fromkeys(names, work.flop)) for names in (["cuda"], ["cuda", "triton"]))
    assert alone.time_s == pytest.approx(work.flop / gpu.compute.fp32_peak_flop_per_s)
    assert joined.time_s == pytest.approx(work.flop / gpu.tensor_cores.float16_flop_per_s)
