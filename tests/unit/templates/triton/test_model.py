"""The properties of the template: accuracy, operand types, and the templates that it is planned with."""

import pytest

import anatune
from anatune.core.accuracy import RELAXED, STANDARD, accuracy_of, error_of
from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.templates import TRITON, make_model
from tests.wording import refuses

LARGE = anatune.matmul(2048, 2048, 2048, dtype="float16")


def test_float32_has_to_be_asked_for() -> None:
    workload = anatune.matmul(2048, 2048, 2048)
    assert anatune.plan(workload, "a100", 1).templates == ("cuda",)
    relaxed = anatune.plan(workload, "a100", 1, accuracy="relaxed")
    assert relaxed.template == "triton"
    assert accuracy_of(relaxed.best) == RELAXED


def test_what_cannot_win_is_not_searched() -> None:
    plan = anatune.plan(LARGE, "h100", 3, correction="none")
    cuda, triton = plan.joined
    assert (cuda.template, cuda.left_out is not None, triton.left_out) == ("cuda", True, None)
    assert plan.guarantee.kind == "certified"
    floor_s = make_model(LARGE, plan.hardware, "cuda").floor_s
    assert floor_s > plan.predictions[-1].time_s
    assert "cuda was not searched" in plan.explain()
    assert "its illegal points not counted" in plan.explain()
    small = anatune.plan(anatune.matmul(64, 64, 64, dtype="float16"), "h100", 3, correction="none")
    assert not any(space.left_out for space in small.joined)


def test_sums_of_small_floats_leave_hoppers_tensor_cores() -> None:
    workload = anatune.matmul(512, 512, 4096, dtype="float8_e4m3fn")
    standard, relaxed = (anatune.plan(workload, "h100", 1, accuracy=word).best for word in (STANDARD, RELAXED))
    assert standard.options["promote"] == 128
    assert accuracy_of(standard) == STANDARD
    kept = anatune.space(workload, "h100", template="triton").schedule({"m": 64}, promote=0)
    assert accuracy_of(kept) == RELAXED
    assert error_of(kept) > 2 * error_of(standard) > 0.0
    assert relaxed.options["promote"] in (0, 128)
    assert "promote" not in anatune.plan(workload, "b200", 1).best.options


@pytest.mark.parametrize(
    ("device", "dtype", "multiplied"),
    [
        ("mi300x", "float8_e4m3fn", "float16"),
        ("mi300x", "float8_e4m3fnuz", "float8_e4m3fnuz"),
        ("h100", "float8_e5m2", "float8_e5m2"),
        ("a100", "float32", "float32"),
    ],
)
def test_emulated_types_are_named(device: str, dtype: str, multiplied: str) -> None:
    assert TRITON.multiplied_dtype(dtype, anatune.hardware(device)) == multiplied


def test_types_that_a_device_does_not_multiply_are_one_line() -> None:
    for device, dtype in (("h100", "float8_e4m3fnuz"), ("mi210", "float32"), ("mi50", "float16")):
        with refuses(SpaceError):
            anatune.plan(anatune.matmul(256, 256, 256, dtype=dtype), device, template="triton", accuracy="relaxed")


def test_windows_that_overlap_are_read_once() -> None:
    images = anatune.conv2d(8, 64, 56, 56, 64, 3, 3, padding=1, dtype="float16", layout="NHWC")
    assert anatune.plan(images, "h100", 1, template="triton").predictions[0].traffic_over_bound["dram"] < 1.5


def test_batches_are_timed_as_one() -> None:
    single, many = (anatune.batch_matmul(count, 512, 512, 512, dtype="float16") for count in (1, 64))
    first, all_of_them = (anatune.plan(work, "h100", 1, template="triton").predictions[0] for work in (single, many))
    assert 8 * first.time_s < 8 * all_of_them.time_s < 64 * 8 * first.time_s
    assert all_of_them.resources["blocks"] >= 64


def test_a_residual_is_read_from_dram() -> None:
    sizes = {"n": 256, "c": 64, "h": 56, "w": 56, "k": 64, "r": 1, "s": 1, "layout": "NHWC", "dtype": "float16"}
    steps = (("bias", "relu"), ("bias", "add", "relu"))
    workloads = [anatune.conv2d(**sizes, epilogue=epilogue) for epilogue in steps]
    without, residual = (anatune.plan(one, "rtx4090", 1, template="triton").predictions[0] for one in workloads)
    dram = hardware("rtx4090").dram
    read_s = 2 * 256 * 56 * 56 * 64 / (dram.bandwidth_bytes_per_s * dram.reachable_fraction)
    assert residual.time_s - without.time_s == pytest.approx(read_s, rel=0.2)
