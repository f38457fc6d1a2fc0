import math

import numpy as np
import pytest

import anatune
from anatune.core.accuracy import EPS
from anatune.core.workload.access import DTYPE_BYTES
from anatune.core.workload.kernels import KERNELS
from anatune.core.workload.nest import Access, Axis, Term, Workload
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.errors import RunError
from anatune.measure.run import correctness
from anatune.measure.run.correctness import array_dtype, compare, compute_expected, fill_bytes, random_inputs
from anatune.measure.run.reference import reference
from tests.naive_workload import convolve, evaluate
from tests.wording import refuses

WORKLOADS = [
    anatune.matmul(3, 5, 4),
    anatune.matmul(3, 5, 4, transpose_a=True, transpose_b=True, epilogue=("bias", "relu")),
    anatune.matmul(3, 5, 4, dtype="int8", epilogue=("bias",)),
    anatune.matmul(3, 5, 4, dtype="bfloat16"),
    anatune.matmul(3, 5, 4, dtype="float8_e4m3fnxfloat8_e5m2", epilogue=("scale", "bias", "relu")),
    anatune.matmul(3, 5, 4, dtype="float16xint8", transpose_b=True, epilogue=("add", "scale")),
    anatune.conv2d(1, 3, 6, 7, 4, 3, 2, padding=1, layout="NHWC", dtype="float8_e4m3fnuz:float32", epilogue=("scale",)),
    anatune.batch_matmul(2, 3, 4, 5, transpose_a=True, epilogue=("add",)),
    anatune.conv1d(n=2, c=4, w=9, k=6, s=3, stride=2, padding=(2, 1), dilation=2, groups=2),
    anatune.conv2d(n=1, c=3, h=6, w=7, k=4, r=3, s=2, padding=1, epilogue=("bias", "add", "relu")),
    anatune.conv2d(n=1, c=4, h=6, w=6, k=6, r=3, s=3, padding="SAME", dilation=2, groups=2, layout="NHWC"),
    anatune.conv2d(n=1, c=2, h=3, w=3, k=2, r=3, s=3, padding=3),
    anatune.conv3d(n=1, c=2, d=4, h=4, w=4, k=2, t=2, r=2, s=3, stride=(1, 2, 1), padding=1),
    anatune.depthwise_conv2d(n=2, c=3, h=5, w=5, r=3, s=3, multiplier=2, padding=1, epilogue=("bias",)),
    anatune.max_pool1d(n=1, c=2, w=9, s=3, stride=2, padding=1),
    anatune.max_pool2d(n=1, c=3, h=7, w=6, r=3, s=2, stride=2, padding=1, dilation=2),
    anatune.max_pool3d(n=1, c=2, d=4, h=4, w=5, t=2, r=2, s=2, layout="NDHWC"),
    anatune.avg_pool1d(n=1, c=2, w=9, s=3, padding=1),
    anatune.avg_pool2d(n=1, c=3, h=7, w=6, r=3, s=3, padding=1, layout="NHWC"),
    anatune.avg_pool3d(n=1, c=2, d=4, h=4, w=5, t=2, r=2, s=2, dtype="int8"),
    anatune.reduction((4, 5, 6), axes=1),
    anatune.reduction((4, 5, 6), axes=(0, 2), kind="max"),
    anatune.reduction((4, 5), kind="mean"),
    *(anatune.elementwise((3, 4, 5), op) for op in ("relu", "copy", "add", "multiply", "maximum")),
    anatune.elementwise((3, 4), "multiply", dtype="int8"),
    anatune.einsum("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    anatune.einsum("ij,jk,kl->li", [(3, 4), (4, 2), (2, 5)]),
    anatune.einsum("ij,kl->", [(3, 4), (2, 5)]),
    anatune.einsum("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], dtype="bfloat16xfloat8_e5m2fnuz"),
    anatune.einsum("ij->j", [(3, 4)]),
    anatune.einsum("ijk->kji", [(3, 4, 2)]),
    anatune.einsum("i,j,ij->ij", [(3,), (4,), (3, 4)]),
    anatune.einsum("bi,bi->b", [(3, 4), (3, 4)]),
]


def label(workload):
    return f"{workload.operator}-{workload.body}-{workload.formats}-{'x'.join(map(str, workload.write.shape))}"


@pytest.mark.parametrize("workload", WORKLOADS, ids=label)
def test_reference_agrees_with_point_by_point_evaluation(workload):
    inputs = {name: array.astype(np.float64) for name, array in random_inputs(workload, 3).items()}
    np.testing.assert_allclose(reference(workload, inputs), evaluate(workload, inputs), rtol=1e-12, atol=1e-12)


def test_every_constructor_is_checked():
    left = set(CONSTRUCTORS) - {workload.operator for workload in WORKLOADS}
    assert left <= {*KERNELS, "quantise_groups"}  # test_kernel_references.py


@pytest.mark.parametrize("most", [1, 7, 40])
def test_products_in_parts_are_the_same(most, monkeypatch):
    workloads = [workload for workload in WORKLOADS if workload.body == "multiply_add" and workload.dtype == "float32"]
    whole = [reference(workload, random_inputs(workload)) for workload in workloads]
    monkeypatch.setattr("anatune.measure.run.reference._COPIED_ELEMENTS", most)
    for workload, result in zip(workloads, whole, strict=True):
        np.testing.assert_allclose(reference(workload, random_inputs(workload)), result, rtol=1e-12, atol=1e-12)


def test_convolution_agrees_with_padding_and_slicing():
    workload = anatune.conv2d(n=2, c=6, h=12, w=11, k=8, r=3, s=3, stride=2, padding=2, dilation=2, groups=2)
    inputs = random_inputs(workload)
    result = convolve(
        inputs["data"].astype(float), inputs["weight"].astype(float), (2, 2), (2, 2), (2, 2), (2, 2), groups=2
    )
    np.testing.assert_allclose(reference(workload, inputs), result, rtol=1e-12, atol=1e-12)


def test_an_axis_that_no_operand_has_repeats_the_sum():
    repeated = Workload(
        "repeat",
        (Axis("i", 3, "spatial"), Axis("k", 4, "reduction"), Axis("t", 5, "reduction")),
        (
            Access("A", "float32", (3, 4), ((Term("i"),), (Term("k"),)), (0, 0)),
            Access("B", "float32", (4,), ((Term("k"),),), (0,)),
        ),
        Access("C", "float32", (3,), ((Term("i"),),), (0,)),
        "multiply_add",
        2,
    )
    inputs = random_inputs(repeated)
    exact = {name: array.astype(np.float64) for name, array in inputs.items()}
    np.testing.assert_allclose(reference(repeated, inputs), evaluate(repeated, exact), rtol=1e-12)


def test_inputs_are_reproducible_and_have_the_workloads_dtypes():
    for workload in WORKLOADS:
        first, again, other = (random_inputs(workload, seed) for seed in (1, 1, 2))
        for access in (*workload.reads, *workload.epilogue_reads):
            array = first[access.tensor]
            assert array.shape == access.shape
            assert array.dtype == array_dtype(access.dtype)
            assert array.tobytes() == again[access.tensor].tobytes()
        assert any(first[name].tobytes() != other[name].tobytes() for name in first)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz:float16"])
@pytest.mark.parametrize("depth", [1, 7, 512, 4608])
def test_a_sequential_sum_in_the_accumulators_dtype_is_within_tolerance(dtype, depth):
    workload = anatune.matmul(8, 24, depth, dtype=dtype)
    inputs = random_inputs(workload)
    answer = compare(workload, scaled_sum(workload, inputs), compute_expected(workload, inputs))
    assert answer.ok
    assert answer.message == ""


MIXED = ["float8_e4m3fnxfloat8_e5m2", "float8_e4m3fn:float32", "bfloat16xint8", "float16xint8", "float16xfloat8_e4m3fn"]


def scaled_sum(workload, inputs):
    """Return what a kernel makes: products one after another in the sums' dtype, the steps in float32, rounded once."""
    left, right = (inputs[access.tensor].astype(np.float64) for access in workload.reads)
    total = np.zeros(workload.write.shape, np.int32 if workload.dtype == "int8" else np.float32)
    for k in range(left.shape[1]):
        total += (left[:, k : k + 1] * right[k]).astype(total.dtype)
    values = total.astype(np.float32)
    for access in workload.epilogue_reads:
        operand = inputs[access.tensor].astype(np.float32)
        values = values * operand if access.tensor == "scale" else values + operand
    return values.astype(array_dtype(workload.write.dtype))


@pytest.mark.parametrize("word", [*MIXED, "int8:float16", "int8:bfloat16"])
@pytest.mark.parametrize("depth", [1, 64, 4608])
def test_scaled_products_of_8_bits_are_checked(word, depth):
    workload = anatune.matmul(8, 24, depth, dtype=word, epilogue=("scale", "bias"))
    inputs = random_inputs(workload)
    want, made = compute_expected(workload, inputs), scaled_sum(workload, inputs)
    assert compare(workload, made, want).ok
    assert 0.1 < np.std(want.result) < 10  # which float16 holds
    unscaled = scaled_sum(workload, inputs | {"scale": np.roll(inputs["scale"], 1)})
    assert not compare(workload, unscaled, want).ok


def test_a_scaled_sum_that_cancels_is_no_error():
    workload = anatune.matmul(1, 1, 2, dtype="float8_e4m3fn:float32", epilogue=("scale",))
    one = array_dtype("float8_e4m3fn").type(1)
    inputs = {"A": np.array([[one, one]]), "B": np.array([[one], [-one]]), "scale": np.array([8.0], np.float32)}
    want = compute_expected(workload, inputs)
    assert want.result == 0.0
    assert want.scale == pytest.approx(8 * math.sqrt(2))


@pytest.mark.parametrize(
    ("dtype", "largest", "least", "nan"),
    [
        ("float8_e4m3fn", (0x7E, 448.0), (0x01, 2.0**-9), 0x7F),
        ("float8_e5m2", (0x7B, 57344.0), (0x01, 2.0**-16), 0x7F),
        ("float8_e4m3fnuz", (0x7F, 240.0), (0x01, 2.0**-10), 0x80),
        ("float8_e5m2fnuz", (0x7F, 57344.0), (0x01, 2.0**-17), 0x80),
    ],
)
def test_8_bit_floats_are_those_of_the_papers(dtype, largest, least, nan):
    kind = array_dtype(dtype)
    assert kind.itemsize == DTYPE_BYTES[dtype] == 1
    for byte, value in (largest, least):
        assert float(np.array([byte], np.uint8).view(kind)[0]) == value
    assert np.isnan(np.array([nan], np.uint8).view(kind).astype(np.float32)[0])
    one = np.array([1.0], np.float32).astype(kind)
    after = (one.view(np.uint8) + 1).view(kind)
    assert float(after[0]) - 1.0 == EPS[dtype]


@pytest.mark.parametrize("depth", [1, 64, 4608])
def test_one_missing_product_is_found(depth):
    workload = anatune.matmul(16, 16, depth)
    inputs = random_inputs(workload)
    left = inputs["A"].astype(np.float64)
    left[:, -1] = 0
    answer = compare(workload, (left @ inputs["B"]).astype(np.float32), compute_expected(workload, inputs))
    assert not answer.ok
    assert "elements are wrong" in answer.message


def test_the_message_names_the_first_wrong_element():
    workload = anatune.matmul(4, 6, 8)
    want = compute_expected(workload, random_inputs(workload))
    result = want.result.astype(np.float32)
    result[2, 3] += 1
    answer = compare(workload, result, want)
    assert not answer.ok
    assert answer.message.startswith("C[2, 3] is ")
    assert "1 of 24 elements" in answer.message
    result[1, 0] = np.nan
    answer = compare(workload, result, want)
    assert math.isnan(answer.max_rel_error)
    assert answer.message.startswith("C[1, 0] is NaN or was never written")
    assert "shape" in compare(workload, result[:2], want).message
    assert not compare(workload, np.full((4, 6), np.inf, np.float32), want).ok


def test_cancellation_does_not_shrink_the_scale():
    workload = anatune.matmul(1, 1, 1000, epilogue=("relu",))
    inputs = random_inputs(workload)
    inputs["A"][:] = -np.abs(inputs["A"])
    inputs["B"][:] = np.abs(inputs["B"])
    want = compute_expected(workload, inputs)
    assert want.result.item() == 0
    assert want.scale > 1


def test_integers_and_copies_must_be_exact_and_means_of_integers_may_round():
    whole = anatune.matmul(3, 3, 3, dtype="int8")
    want = compute_expected(whole, random_inputs(whole))
    assert compare(whole, want.result.astype(np.int32), want).ok
    assert not compare(whole, want.result.astype(np.int32) + np.eye(3, dtype=np.int32), want).ok
    pool = anatune.avg_pool2d(n=1, c=1, h=4, w=4, r=3, s=3, dtype="int8")
    want = compute_expected(pool, random_inputs(pool))
    for rounding in (np.floor, np.ceil, np.trunc):
        assert compare(pool, rounding(want.result).astype(np.int32), want).ok
    assert not compare(pool, (np.floor(want.result) - 1).astype(np.int32), want).ok
    assert correctness.tolerance(anatune.max_pool2d(n=1, c=1, h=4, w=4, r=3, s=3)) == 0


def test_fills_tell_unwritten_elements():
    for dtype in ("float32", "float16", "bfloat16"):
        (byte,) = fill_bytes(dtype)
        assert np.isnan(np.full(4, byte, np.uint8).view(array_dtype(dtype)).astype(np.float64)).all()
    for dtype in ("int8", "int32"):
        first, second = fill_bytes(dtype)
        assert first != second


def test_wrong_operands_are_refused():
    workload = anatune.matmul(3, 4, 5)
    inputs = random_inputs(workload)
    with refuses(RunError):
        reference(workload, {"A": inputs["A"]})
    with refuses(RunError):
        reference(workload, {"A": inputs["A"].T, "B": inputs["B"]})


def test_the_allowed_error_grows_with_the_root_of_the_sum():
    """Four roundings of a sum of K products, and one of the result."""
    eps = 2.0**-23
    for k in (1, 64, 1024):
        workload = anatune.matmul(8, 8, k)
        assert correctness.tolerance(workload) == pytest.approx((4 * k**0.5 + 1) * eps)
    assert correctness.tolerance(anatune.matmul(8, 8, 64, dtype="int8")) == 0.0


def test_nan_and_infinities_have_to_stand_where_they_should():
    workload = anatune.elementwise((2, 3), "copy")
    data = np.array([[np.nan, np.inf, -np.inf], [1.0, 2.0, 3.0]], np.float32)
    want = compute_expected(workload, {workload.reads[0].tensor: data})
    assert want.scale == 3.0
    assert compare(workload, data, want).ok
    for place, value in (((0, 0), 0.0), ((0, 1), -np.inf), ((0, 1), 9e9), ((0, 2), np.nan), ((1, 0), np.nan)):
        wrong = data.copy()
        wrong[place] = value
        found = compare(workload, wrong, want)
        assert not found.ok
        assert f"[{place[0]}, {place[1]}]" in found.message
        assert "1 of 6 elements" in found.message
