"""Exactness of 8-bit sums and of the steps behind them: rounding ties, saturation, zero points, wrapping sums."""

import numpy as np
import pytest

import anatune
from anatune.measure.run.correctness import compare, compute_expected, random_inputs, tolerance
from anatune.measure.run.reference import reference

F = np.float32


def product(dtype, steps, a, b, **operands):
    """Return the reference of ``a @ b`` with the given steps, operands and zero points."""
    zeros = {name: operands.pop(name) for name in ("input_zero_point", "output_zero_point") if name in operands}
    workload = anatune.matmul(len(a), len(b[0]), len(b), dtype=dtype, epilogue=steps, **zeros)
    kinds = {access.tensor: access.dtype for access in workload.operands}
    arrays = {"A": a, "B": b, **operands}
    return reference(workload, {name: np.array(array, kinds[name]) for name, array in arrays.items()})


def test_ties_go_to_even_before_the_zero_point_is_added():
    sums = np.arange(-7, 8)
    rows = sums[:, None]
    halves = product("int8:int8", ("requantize",), rows, [[1]], multiplier=[0.5])
    assert halves[:, 0].tolist() == [-4, -3, -2, -2, -2, -1, 0, 0, 0, 1, 2, 2, 2, 3, 4]
    odd = product("int8:int8", ("requantize",), rows, [[1]], multiplier=[0.5], output_zero_point=1)
    assert (odd - 1 == halves).all()  # rounding after adding would turn the ties the other way


@pytest.mark.parametrize(("dtype", "low", "high"), [("int8:int8", -128, 127), ("int8:uint8", 0, 255)])
@pytest.mark.parametrize("zero_point", [0, 5, 100])
def test_results_saturate(dtype, low, high, zero_point):
    sums = np.array([[-128], [-127], [-126], [0], [1], [126], [127]])
    made = product(dtype, ("requantize",), sums, [[3]], multiplier=[1.0], output_zero_point=zero_point)
    assert made[:, 0].tolist() == [min(max(3 * int(s[0]) + zero_point, low), high) for s in sums]
    far = product(dtype, ("requantize",), sums, [[3]], multiplier=[1e30], output_zero_point=zero_point)[[0, -1], 0]
    assert far.tolist() == [low, high]


def test_int32_sums_become_float32_to_nearest_even():
    depth = 520  # 2**24 < 520 * 255 * 127 = 16840200: not every such sum is a float32
    a, b = np.full((1, depth), 255), np.full((depth, 1), 127)
    exact = product("uint8xint8", ("bias", "scale"), a, b, bias=[1], scale=[1.0])[0, 0]
    whole = depth * 255 * 127 + 1
    assert float(exact) == float(F(whole)) == whole - 1


def test_scale_and_bias_are_rounded_apart():
    """A fused multiply-add would keep what the rounded product loses."""
    scale, bias = F(1 / 3), F(-1 / 3 * 3)
    made = product("int8", ("scale", "bias"), [[3]], [[1]], scale=[scale], bias=[bias])[0, 0]
    assert made == F(F(3) * scale) + bias
    assert made != float(F(3)) * float(scale) + float(bias)


def test_the_input_zero_point_stands_in_the_padding():
    data = np.full((1, 1, 2, 2), 9, np.uint8)
    weight = np.arange(9, dtype=np.int8).reshape(1, 1, 3, 3)
    workload = anatune.conv2d(1, 1, 2, 2, 1, 3, 3, padding=1, dtype="uint8xint8", input_zero_point=9)
    assert (reference(workload, {"data": data, "weight": weight}) == 0).all()
    plain = anatune.conv2d(1, 1, 2, 2, 1, 3, 3, padding=1, dtype="uint8xint8")
    assert (reference(plain, {"data": data, "weight": weight}) != 0).all()


def test_sums_wrap_as_int32_does():
    depth = 70000  # 70000 * 255 * 127 > 2**31
    made = product("uint8xint8", (), np.full((1, depth), 255), np.full((depth, 1), 127))[0, 0]
    assert made == depth * 255 * 127 - 2**32


def test_one_unit_off_is_found():
    workload = anatune.matmul(7, 9, 33, dtype="uint8xint8", epilogue=("bias", "requantize"), output_zero_point=128)
    want = compute_expected(workload, random_inputs(workload, 1))
    assert tolerance(workload) == 0.0
    right = want.result.astype(np.uint8)
    assert compare(workload, right, want).ok
    wrong = right.copy()
    wrong[3, 4] += 1 if wrong[3, 4] < 255 else -1
    assert not compare(workload, wrong, want).ok


@pytest.mark.parametrize("dtype", ["int8:int8", "uint8xint8:int8", "int8:uint8"])
def test_random_operands_reach_every_value_and_both_ends(dtype):
    workload = anatune.matmul(64, 64, 256, dtype=dtype, epilogue=("bias", "requantize"), output_zero_point=100)
    inputs = random_inputs(workload, 0)
    for access in workload.reads:
        info = np.iinfo(access.dtype)
        assert inputs[access.tensor].min() == info.min
        assert inputs[access.tensor].max() == info.max
    result = reference(workload, inputs)
    counts = np.unique(result)
    assert len(counts) > 100
    top = np.iinfo(workload.write.dtype).max
    assert 0 < (result == top).mean() < 0.7


def test_half_operands_with_float32_results_keep_their_sums():
    workload = anatune.matmul(16, 16, 512, dtype="bfloat16:float32")
    narrow = anatune.matmul(16, 16, 512, dtype="bfloat16")
    assert tolerance(workload) < 0.1 * tolerance(narrow)
