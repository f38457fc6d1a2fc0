"""Rows and aims of the GPU benchmark."""

import pytest

import anatune
from bench.gpu import tables as tables_gpu
from bench.gpu.dry_run import DrySystem
from bench.gpu.state import LayerState, State, entry_name, is_right


def state_with(**entries):
    state = State("GPU", "sm_90", anatune.hardware("h200"))
    for name, (dtype, samples, kernels, errors) in entries.items():
        entry = LayerState(name, dtype, name, 10**9)
        entry.samples, entry.kernels, entry.errors = {"flush": samples}, kernels, errors
        state.layers[entry_name(name, dtype)] = entry
    return state


def test_rows_and_aims():
    samples = {
        "anatune:plan": [2e-5] * 3,
        "anatune:16": [1.6e-5] * 3,
        "anatune:64": [1.5e-5] * 3,
        "torch:nchw": [1.2e-5] * 3,
        "torch:nhwc": [1.8e-5] * 3,
    }
    matmul = {"anatune:plan": [1e-5] * 3, "torch:mm": [1.3e-5] * 3, "triton:matmul": [2e-5] * 3}
    state = state_with(
        R2=("float32", samples, {"torch:nchw": ["cudnn_winograd_nonfused"]}, {}),
        M1=("float32", matmul, {"torch:mm": ["sgemm"]}, {"anatune:plan": 1e-6}),
        M2=("bfloat16", matmul, {}, {"torch:mm": 0.5}),
    )
    winograd, exact, wrong = tables_gpu.rows_of(state)
    assert winograd.library == "torch:nchw"
    assert not winograd.same_arithmetic
    assert winograd.plan_of_best == pytest.approx(0.75)
    assert winograd.over_library == pytest.approx(0.8)
    assert exact.over_library == pytest.approx(1.3)
    assert exact.over_triton == pytest.approx(2.0)
    assert exact.plan_of_best is None
    assert exact.flop_per_s == pytest.approx(1e14)
    assert wrong.over_library is None
    found = {aim.text: aim for aim in tables_gpu.aims([winograd, exact, wrong])}
    assert found["flush: fp32, plan's first choice over the best found"].reached == pytest.approx(0.75)
    assert found["flush: fp32, tuned over cuBLAS/cuDNN, same arithmetic"].layers == 1
    assert found["warm: fp32, tuned over cuBLAS/cuDNN, same arithmetic"].reached is None


def test_a_wrong_result_is_not_compared():
    samples = {"anatune:plan": [1e-5], "anatune:16": [1e-6], "torch:mm": [1e-5]}
    state = state_with(M1=("float32", samples, {}, {"anatune:16": 0.1}))
    (row,) = tables_gpu.rows_of(state)
    assert "16" not in row.times_s
    assert row.over_library == pytest.approx(1.0)


def test_the_peak_is_the_measured_one():
    state = state_with()
    spec = anatune.hardware("h200")
    assert tables_gpu.peak_of(state, "float32") == spec.compute.fp32_peak_flop_per_s * spec.compute.reachable_fraction
    assert tables_gpu.peak_of(state, "tfloat32") == 494.7e12
    state.numbers = DrySystem(spec).calibrate(1.0).numbers
    assert tables_gpu.peak_of(state, "float32") == pytest.approx(0.95 * spec.compute.fp32_peak_flop_per_s)


def test_a_result_that_is_not_finite_is_not_right():
    """It is None in the file, as JSON has no infinity; 8-bit integers have to be exact."""
    entry = LayerState("M1", "int8", "M1", 1, errors={"anatune:plan": None, "anatune:choice2": 1e-9, "torch:mm": 0.0})
    assert [is_right(entry, method) for method in entry.errors] == [False, False, True]
