"""Kernels of 8-bit products: every way that sums are finished and stored gives the exact result."""

import msgspec
import pytest

import anatune
from anatune.templates.cpu.rules import REDUCTION_LEVELS

pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from anatune.codegen.cpu.lower import lower
from tests.unit.codegen.cpu.test_lower import check, schedule_of

STEPS = ("bias", "relu", "requantize")


def product(m=12, n=50, k=64, dtype="uint8xint8", epilogue=STEPS, **options):
    return anatune.matmul(m, n, k, dtype=dtype, epilogue=epilogue, **options)


@pytest.mark.parametrize("epilogue", [STEPS, ("scale", "bias", "relu"), ("scale", "add", "requantize"), ("bias",)])
@pytest.mark.parametrize("dtype", ["int8", "uint8xint8"])
def test_partial_sums_are_finished_once(dtype, epilogue):
    schedule = schedule_of(
        product(dtype=dtype, epilogue=epilogue, input_zero_point=3),
        i=(1, 1, 1, 3, 4),
        j=(1, 1, 1, 1, 50),
        k=(2, 2, 8, 2),
    )
    assert len(schedule.tiles["k"]) == len(REDUCTION_LEVELS)
    assert ("C_sums" in lower(schedule).program.main) == (epilogue != ("bias",))
    check(schedule)


def test_results_stored_across_vectors():
    """The vectors run along the rows of C: stores are transposed."""
    workload = anatune.conv2d(
        1, 12, 9, 9, 20, 3, 3, padding=1, dtype="int8:uint8", epilogue=STEPS, output_zero_point=77
    )
    schedule = schedule_of(workload, f=(1, 1, 1, 1, 20), x=(1, 1, 1, 1, 9))
    assert any(kernel.result.groups for kernel in lower(schedule).program.kernels)
    check(schedule)
    check(schedule, prepacked=False, threads=2)


@pytest.mark.parametrize("zero_point", [-128, 0, 127])
@pytest.mark.parametrize("own", [{}, {"vpmaddwd": msgspec.UNSET}])
def test_padding_of_any_zero_point_is_copied(zero_point, own):
    workload = anatune.conv2d(
        1, 16, 7, 7, 32, 3, 3, padding=1, layout="NHWC", dtype="int8", input_zero_point=zero_point, epilogue=STEPS
    )
    plain = msgspec.structs.replace(anatune.hardware("amd_ryzen_3700x"), **own)
    rows = schedule_of(
        workload, plain, f=(1, 1, 1, 2, 16), y=(1, 1, 1, 7, 1), x=(1, 1, 1, 1, 7), rc=(1, 1, 16, 1), ry=(1, 3, 1),
        rx=(1, 1, 3),
    )  # fmt: skip
    for schedule in (rows, schedule_of(workload, f=(1, 1, 1, 2, 16), y=(1, 1, 7, 1, 1), x=(1, 1, 7, 1, 1))):
        assert "data_copy" in lower(schedule).program.main
        check(schedule)


def test_sums_and_products_are_not_fused():
    """Scale, then bias: fused multiply-adds would round once where the definition rounds twice."""
    check(
        schedule_of(
            product(64, 64, 300, dtype="int8", epilogue=("scale", "bias")), i=(1, 1, 1, 16, 4), j=(1, 1, 1, 2, 32)
        )
    )


def test_avx2_code_is_exact_too():
    hardware = anatune.hardware("amd_ryzen_3700x")
    check(schedule_of(product(epilogue=STEPS, output_zero_point=9), hardware, i=(1, 1, 1, 3, 4), j=(1, 1, 1, 2, 25)))
