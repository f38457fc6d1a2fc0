"""Operators that make tensors of numbers, and Fourier transforms."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from anatune.errors import WorkloadError
from anatune.network.graph.onnx.call import UnknownValueError
from tests.unit.network.graph.onnx.one_node import FLOAT, check, found, model_of, read
from tests.wording import refuses

SIGNAL = np.random.default_rng(0).standard_normal((2, 9, 1)).astype(np.float32)
COMPLEX = np.random.default_rng(1).standard_normal((2, 6, 4, 2)).astype(np.float32)


def int64(number):
    return np.array(number, np.int64)


@pytest.mark.parametrize(
    ("attributes", "want"),
    [
        ({"value_float": 2.5}, np.float32(2.5)),
        ({"value_floats": [1.0, 2.0]}, np.array([1, 2], np.float32)),
        ({"value_int": 3}, np.array(3)),
        ({"value_ints": [3, 4]}, np.array([3, 4])),
        ({"value": numpy_helper.from_array(np.array([True]))}, np.array([True])),
        (
            {
                "sparse_value": helper.make_sparse_tensor(
                    helper.make_tensor("v", FLOAT, [1], [7.0]), numpy_helper.from_array(np.array([2])), [4]
                )
            },
            np.array([0, 0, 7, 0], np.float32),
        ),
    ],
)
def test_constants(attributes, want):
    check("Constant", want=[want], **attributes)


def test_text_is_refused():
    for attributes in ({"value_string": "x"}, {"value": helper.make_tensor("v", 8, [1], [b"x"])}):
        with refuses(WorkloadError):
            read(model_of("Constant", **attributes))


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("ConstantOfShape", (np.array([2, 3]),), {}),
        ("ConstantOfShape", (np.array([2]),), {"value": numpy_helper.from_array(np.array([True]))}),
        ("Range", (np.float32(1), np.float32(3), np.float32(0.5)), {}),
        ("Range", (int64(10), int64(4), int64(-3)), {}),
        ("Range", (int64(4), int64(4), int64(1)), {}),
        ("EyeLike", (np.zeros((3, 4), np.int32),), {"k": 1}),
        ("EyeLike", (np.zeros((2, 2), np.int32),), {"dtype": FLOAT}),
        ("HannWindow", (int64(8),), {"periodic": 0}),
        ("HammingWindow", (int64(8),), {}),
        ("BlackmanWindow", (int64(8),), {}),
        ("DFT", (COMPLEX, None, int64(1)), {}),
        ("DFT", (COMPLEX, int64(8), int64(2)), {"inverse": 1}),
        ("DFT", (COMPLEX, int64(6), int64(2)), {"inverse": 1, "onesided": 1}),
        ("DFT", (SIGNAL, int64(4), int64(-2)), {"onesided": 1}),
        ("DFT", (SIGNAL,), {"axis": 1, "opset": 17}),
        ("STFT", (SIGNAL, int64(2), None, int64(4)), {}),
        ("STFT", (SIGNAL, int64(3), np.hanning(4).astype(np.float32), int64(4)), {"onesided": 0}),
    ],
)
def test_as_the_reference_evaluator(op, operands, attributes):
    check(op, *operands, rtol=1e-4, **attributes)


def test_a_transform_of_halves_is_of_their_dtype():
    (output,) = read(model_of("STFT", SIGNAL.astype(np.float16), int64(2), None, int64(4))).outputs
    assert (output.type.shape, output.type.dtype) == ((2, 3, 3, 2), "float16")


def test_how_long_a_range_is_has_to_be_known():
    with refuses(UnknownValueError):
        read(model_of("Range", int64(0), int64(3), int64(1), unknown=(1,)))


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Range", [np.int64(0), np.int64(1 << 40), np.int64(1)], {}),
        ("OneHot", [np.int64([0]), np.int64(1 << 40), np.float32([0, 1])], {}),
        ("Pad", [np.zeros(4, np.float32), np.int64([0, 1 << 40])], {"mode": "edge"}),
        ("Resize", [np.zeros(4, np.float32), None, np.float32([1e12])], {}),
        ("DFT", [np.zeros((1, 9, 1), np.float32), np.int64(1 << 30)], {}),
    ],
)
def test_tables_of_gigabytes_are_refused(op, operands, attributes):
    with refuses(WorkloadError):
        found(op, *operands, **attributes)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("Det", (np.eye(3, dtype=np.float32),)),
        ("MelWeightMatrix", (int64(8), int64(16), int64(8192), np.float32(0), np.float32(4096))),
    ],
)
def test_what_only_onnxruntime_computes_is_refused_in_one_line(op, operands):
    with refuses(WorkloadError) as error:
        read(model_of(op, *operands))
    assert "\n" not in str(error.value)
