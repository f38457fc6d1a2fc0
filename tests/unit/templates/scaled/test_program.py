"""Programs of products with weights of 8 and 4 bits, executed and beside float64."""

import platform

import numpy as np
import pytest

import anatune
from anatune import api
from anatune.measure.cpu.features import lacking_features
from anatune.templates.scaled.model import ScaledModel
from anatune.templates.scaled.program.program import program_of
from anatune.templates.scaled.rules import product_of

pytest.importorskip("tvm")

HOST = anatune.hardware("host")
if platform.machine() != "x86_64" or lacking_features(["avx2"]):
    pytest.skip("needs a processor with AVX2, whose integers the template multiplies", allow_module_level=True)
CASES = {
    "one row": ((1, 72, 96), "float32xint4", 32, {}, {"j": (2,)}),
    "rows left over": ((7, 61, 128), "float32xint4", 64, {"zero_points": True}, {"i": (1, 4), "j": (2,)}),
    "few in a group": ((3, 9, 48), "float32xint4", 16, {"epilogue": ("bias", "silu", "add")}, {"i": (2, 2)}),
    "8 bits": ((6, 40, 128), "float32xint8", 32, {"epilogue": ("add",)}, {"i": (1, 4), "j": (4,)}),
    "a scale a column": ((2, 24, 64), "float32xint8", 0, {"zero_points": True}, {"i": (1, 2)}),
}


FLOATS = {
    "parts of k": ((13, 61, 2048), "float32xint4", 64, {"zero_points": True}, {"j": (4,)}),
    "steps and pieces": ((200, 24, 64), "float32xint8", 32, {"epilogue": ("bias", "silu", "add")}, {"j": (2,)}),
}


@pytest.mark.parametrize("name", FLOATS)
def test_many_rows_of_unpacked_weights_are_those_of_float32(name):
    shape, dtype, group, options, tiles = FLOATS[name]
    workload = anatune.scaled_matmul(*shape, dtype=dtype, group=group, **options)
    verification = anatune.verify(
        api.model(workload, HOST, "scaled").space.schedule(tiles, floats=True, parallel=True), threads=2
    )
    assert verification.ok, verification.message


@pytest.mark.parametrize("name", CASES)
def test_it_is_as_exact_as_float32(name):
    shape, dtype, group, options, tiles = CASES[name]
    workload = anatune.scaled_matmul(*shape, dtype=dtype, group=group, **options)
    schedule = api.model(workload, HOST, "scaled").space.schedule(tiles)
    verification = anatune.verify(schedule)
    assert verification.ok, verification.message
    assert verification.max_rel_error < 1e-6


@pytest.mark.parametrize("dtype", ["float32xint4", "float32xint8"])
def test_a_single_digit_errs_by_its_bits(dtype):
    workload = anatune.scaled_matmul(5, 32, 256, dtype=dtype, group=32)
    # 8 bits, but of weights of 8 bits on processors without VNNI: these have 16
    least, most = (1e-4, 0.02) if product_of(workload, HOST).digit_bits == 8 else (1e-7, 2e-4)
    verification = anatune.verify(
        api.model(workload, HOST, "scaled").space.schedule({"i": (1, 4)}, 1, parallel=True), threads=2
    )
    assert verification.ok
    assert least < verification.max_rel_error < most


def test_activations_of_any_size_stay_numbers_and_what_is_none_is_seen():
    workload = anatune.scaled_matmul(4, 8, 64, dtype="float32xint8", group=32)
    kernel = anatune.build(api.model(workload, HOST, "scaled").space.schedule({"i": (1, 4)}))
    weight = np.ones((8, 64), np.int8)
    scales = np.ones((8, 2), np.float32)
    data = np.zeros((4, 64), np.float32)
    data[1, 3], data[2, :32], data[3, 40] = 1e30, 1e-30, np.nan
    with np.errstate(invalid="ignore"):
        result = np.asarray(kernel(data, weight, scales))
    assert not result[0].any()
    # VNNI's weights are 129 of 1 to 255, of which 128 times the activation are subtracted in float32
    assert result[1] == pytest.approx(1e30, rel=1e-6 if product_of(workload, HOST).digit_bits == 16 else 129 * 2**-24)
    assert result[2] == pytest.approx(32e-30, rel=1e-3)
    assert np.isnan(result[3]).all()


def test_prefetches_are_for_products_that_take_longer_than_their_weights():
    """One row with one digit needs none; others prefetch as many bytes as arrive within the memory's latency."""
    for name, bits, rows, ahead in (
        ("xeon_8480", 4, 1, 0), ("xeon_8480", 8, 1, 0), ("xeon_8480", 4, 4, 2048), ("xeon_8480", 8, 16, 2048),
        ("ryzen_7950x", 4, 4, 4096), ("epyc_7763", 4, 1, 2048), ("epyc_7763", 8, 1, 2048),
    ):  # fmt: skip
        workload = anatune.scaled_matmul(rows, 256, 64, dtype=f"float32xint{bits}", group=32)
        space = ScaledModel(workload, anatune.hardware(name)).space
        tiles = {"i": (max(1, rows // 4), min(rows, 4)), "j": (2,)}
        text = program_of(space.schedule(tiles, 1)).llvm
        assert ("call void @llvm.prefetch" in text) == bool(ahead), name
        assert not ahead or f", i64 {ahead}\n" in text, name
