"""Operands of kernels: types, layouts, descriptors, and what is no product of matrices."""

from types import SimpleNamespace

import numpy as np
import pytest

from anatune.adapters.triton.operands import Operand, check_operands, descriptor_fault, dtype_name, operand_types
from anatune.errors import SpaceError
from anatune.templates.triton.problem import DTYPES, MatmulProblem
from tests.kernel_arguments import Descriptor, Tensor
from tests.wording import refuses


def operand(dtype, shape=(64, 64)):
    return Operand.of(Tensor(shape, dtype))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("torch.float16", "torch.float16", ("float16", 0)),
        ("torch.float32", "torch.float32", ("tf32", 0)),
        ("torch.int8", "torch.int8", ("int8", 0)),
        ("torch.uint8", "torch.int8", ("int8", 0)),
        ("torch.bfloat16", "torch.int8", ("bfloat16", 1)),
        ("torch.float16", "torch.float8_e5m2fnuz", ("float16", 1)),
        ("torch.float32", "torch.uint8", ("tf32", 1)),
    ],
)
def test_types_of_operands(left, right, expected):
    assert operand_types(operand(left), operand(right), ()) == expected


@pytest.mark.parametrize(
    ("torchs", "tritons"),
    [
        ("torch.float8_e4m3fn", "fp8e4nv"),
        ("torch.float8_e5m2", "fp8e5"),
        ("torch.float8_e4m3fnuz", "fp8e4b8"),
        ("torch.float8_e5m2fnuz", "fp8e5b16"),
    ],
)
def test_8_bit_floats_by_either_name(torchs, tritons):
    found = dtype_name(torchs)
    assert found == dtype_name(tritons)
    assert DTYPES[found] == 1
    assert operand_types(operand(torchs), operand("torch.float8_e5m2"), ()) == (found, 0)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("torch.int8", "torch.float16"),
        ("torch.int8", "torch.float8_e5m2"),
        ("torch.float16", "torch.bfloat16"),
        ("torch.float16", "torch.int4"),
        ("torch.float64", "torch.float64"),
    ],
)
def test_other_pairs_are_refused(left, right):
    with pytest.raises(SpaceError) as said:
        operand_types(operand(left), operand(right), ())
    assert "\n" not in str(said.value)


def test_what_the_caller_says_counts():
    half, byte = operand("torch.float16"), operand("torch.int8")
    assert operand_types(half, half, ("bfloat16",)) == ("bfloat16", 0)
    assert operand_types(half, byte, ("float16",)) == ("float16", 1)
    assert operand_types(None, None, ("bfloat16", "int8")) == ("bfloat16", 1)
    with refuses(SpaceError):
        operand_types(None, byte, ())


def test_every_name_is_one_of_the_models():
    assert {dtype_name(name) for name in ("fp8e5", "half", "bf16")} <= set(DTYPES)
    with refuses(SpaceError):
        dtype_name("int4")


def test_a_descriptor_is_what_lies_under_it():
    found = Operand.of(Descriptor((32, 64), "torch.float8_e4m3fn"))
    assert found == ((32, 64), (64, 1), "torch.float8_e4m3fn", 1, True)
    assert found.transpose()[:2] == ((64, 32), (1, 64))


@pytest.mark.parametrize("value", [3, 2.5, None, "x", np.float32(1), np.int64(3), SimpleNamespace(dtype="int32")])
def test_numbers_are_no_operands(value):
    assert Operand.of(value) is None


def test_arrays_of_others_say_their_bytes():
    assert Operand.of(np.zeros((3, 4), np.int8)).element_bytes == 1


def test_a_transpose_of_a_square_is_said():
    square = Operand.of(Tensor((64, 64)))
    assert square.runs_along_second((64, 64))
    assert not square.transpose().runs_along_second((64, 64))
    assert not Operand.of(Tensor((32, 64))).runs_along_second((64, 32))  # stored the other way round


def test_packed_weights_are_refused():
    problem = MatmulProblem(16, 32, 64, "float16", right_bytes=1)
    check_operands(problem, {"b": operand("torch.uint8", (64, 32))})
    with refuses(SpaceError):
        check_operands(problem, {"b": operand("torch.uint8", (32, 32))})


def test_rows_under_descriptors_are_of_16_bytes():
    assert descriptor_fault({}, MatmulProblem(64, 64, 64)) == ""
    assert descriptor_fault({}, MatmulProblem(64, 64, 60)).startswith("rows of a have 120 bytes")
    assert descriptor_fault({}, MatmulProblem(64, 24, 64, right_bytes=1)).startswith("rows of b have 24 bytes")
    padded = {"a": Operand.of(Tensor((64, 60), steps=(64, 1)))}
    assert descriptor_fault(padded, MatmulProblem(64, 64, 60)) == ""
    assert descriptor_fault({}, MatmulProblem(64, 60, 64, b_along_n=False)) == ""
