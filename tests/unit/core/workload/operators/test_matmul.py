from __future__ import annotations

import itertools

import numpy as np
import pytest

from anatune.core.workload.operators import CONSTRUCTORS, batch_matmul, matmul
from anatune.errors import WorkloadError
from tests.naive_workload import evaluate, random_arrays
from tests.wording import refuses


@pytest.mark.parametrize(("flip_a", "flip_b"), list(itertools.product((False, True), repeat=2)))
def test_matmul_is_the_matrix_product(flip_a: bool, flip_b: bool) -> None:
    workload = matmul(3, 4, 5, transpose_a=flip_a, transpose_b=flip_b)
    arrays = random_arrays(workload)
    assert arrays["A"].shape == ((5, 3) if flip_a else (3, 5))
    a, b = (arrays["A"].T if flip_a else arrays["A"]), (arrays["B"].T if flip_b else arrays["B"])
    np.testing.assert_array_equal(evaluate(workload, arrays), a @ b)


def test_batch_matmul_is_the_stacked_product() -> None:
    workload = batch_matmul(2, 3, 4, 5, transpose_b=True)
    arrays = random_arrays(workload)
    assert workload.extents == {"b": 2, "i": 3, "j": 4, "k": 5}
    np.testing.assert_array_equal(evaluate(workload, arrays), arrays["A"] @ arrays["B"].transpose(0, 2, 1))


@pytest.mark.parametrize(
    "steps", [(), ("bias",), ("relu", "bias"), ("bias", "add", "relu"), ("add", "relu"), ("relu",)]
)
def test_epilogue_steps_run_in_order(steps: tuple[str, ...]) -> None:
    workload = matmul(3, 4, 2, epilogue=steps)
    arrays = random_arrays(workload)
    expected = arrays["A"] @ arrays["B"]
    for step in steps:
        if step == "relu":
            expected = np.maximum(expected, 0)
        else:
            expected = expected + arrays["bias" if step == "bias" else "residual"]
    np.testing.assert_array_equal(evaluate(workload, arrays), expected)


def test_dtypes_of_operands_and_result() -> None:
    for dtype, made in (("float32", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16"), ("int8", "int32")):
        workload = matmul(2, 2, 2, dtype=dtype, epilogue=("bias",))
        assert (workload.dtype, workload.write.dtype, workload.epilogue_reads[0].dtype) == (dtype, made, made)


def test_numpy_integers_become_python_integers() -> None:
    workload = matmul(np.int64(512), np.int32(64), np.uint8(8))  # type: ignore[arg-type]
    assert workload == matmul(512, 64, 8)
    assert all(type(axis.extent) is int for axis in workload.axes)


def test_huge_extents_are_exact() -> None:
    workload = matmul(10**9, 10**9, 10**9)
    assert workload.flop == 2 * 10**27
    assert workload.compulsory_bytes == 12 * 10**18


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "3", None, np.float32(2), np.bool_(True)])
def test_bad_extents_are_named(bad: object) -> None:
    with refuses(WorkloadError) as caught:
        matmul(2, bad, 2)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"dtype": "float64"},
        {"dtype": "int32"},
        {"epilogue": ("bias", "bias")},
        {"epilogue": ("tanh",)},
        {"epilogue": "bias"},
        {"transpose_a": 1},
    ],
)
def test_bad_options_are_named(arguments: dict[str, object]) -> None:
    with refuses(WorkloadError):
        matmul(2, 2, 2, **arguments)  # type: ignore[arg-type]


def test_attributes_rebuild_the_workload() -> None:
    workload = batch_matmul(2, 3, 4, 5, transpose_a=True, dtype="int8", epilogue=["relu"])
    assert CONSTRUCTORS[workload.operator](**workload.attribute) == workload


@pytest.mark.parametrize("step", ["relu6", "silu", "gelu", "gelu_tanh"])
def test_functions_are_of_floating_point_sums(step: str) -> None:
    assert matmul(4, 4, 4, epilogue=("bias", step)).epilogue == ("bias", step)
    with refuses(WorkloadError):
        matmul(4, 4, 4, dtype="int8", epilogue=("scale", step))
