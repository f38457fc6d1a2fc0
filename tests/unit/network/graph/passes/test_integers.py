"""Products, moves and functions of quantised models have integers, and compute what the model says, to one unit."""

import numpy as np
import pytest

from anatune.network.graph.nodes import tensor_type
from anatune.network.graph.operators import DEQUANTIZE, PRODUCTS, QUANTIZE
from anatune.network.graph.passes.integers import move_conversions
from tests.naive_graph import run
from tests.unit.network.graph.quantised import Model


def products(nodes):
    return [node for node in nodes if node.op in PRODUCTS]


def ops(nodes):
    return [node.op for node in nodes]


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 117), ("int8", -128), ("int8", 3)])
@pytest.mark.parametrize(("padding", "groups"), [(0, 1), (1, 1), (1, 2)])
def test_convolutions_with_biases_and_rectifiers(axis, dtype, zero, padding, groups):
    m = Model(2, 4, 6, 5)
    x, weight = m.through("x", 0.02, zero, dtype), m.weight(8, 4 // groups, 3, 3, axis=axis)
    y = m.node("Conv", x, weight, m.bias(8, weight, 0.02), pads=[padding] * 4, group=groups)
    nodes = m.check(m.through(m.node("Relu", y), 0.03, zero, dtype), unit=0.03)
    (product,) = products(nodes)
    rectifier = () if zero == np.iinfo(dtype).min else ("relu",)
    assert product.attributes["epilogue"] == ("bias", *rectifier, "requantize")
    assert [tensor_type(value).dtype for value in (*product.arguments[:2], product)] == [dtype, "int8", dtype]
    # without padding a zero point is a part of the bias
    assert product.attributes.get("input_zero_point", 0) == (zero if padding else 0)
    assert ops(nodes).count(QUANTIZE) == ops(nodes).count(DEQUANTIZE) == 1


@pytest.mark.parametrize(("upper", "is_fused"), [(0.03 * 255, True), (0.02 * 255, False)])
def test_an_upper_bound_is_free_where_it_is_that_of_the_integers(upper, is_fused):
    m = Model(1, 4, 5, 5)
    y = m.node("Conv", m.through("x", 0.02, 128), m.weight(8, 4, 1, 1))
    y = m.node("Clip", y, m.known(np.float32(0)), m.known(np.float32(upper)))
    (product,) = products(m.check(m.through(y, 0.03, 0), unit=0.03))
    assert product.attributes["epilogue"][-1] == ("requantize" if is_fused else "relu")


def test_a_term_behind_an_upper_bound_is_no_bias():
    m = Model(3, 8)
    y = m.node("Min", m.node("MatMul", m.through("x", 0.02, 128), m.weight(8, 4)), m.known(np.float32(0.1)))
    y = m.node("Add", y, m.known(np.float32([0.2, 0.3, 0.4, 0.5])))
    m.check(m.through(y, 0.01, 128), unit=0.01)


@pytest.mark.parametrize("turned", [0, 1])
def test_matrix_products_whose_results_stay_numbers(turned):
    m = Model(3, 7)
    weight = m.weight(5, 7, axis=0) if turned else m.weight(7, 5, axis=1)
    bias = m.known(m.random.standard_normal(5).astype(np.float32))
    y = m.node("Gemm", m.through("x", 0.02, 100), weight, bias, transB=turned)
    (product,) = products(m.check(y, unit=1e-5))
    assert product.attributes["epilogue"] == ("scale", "bias")
    assert product.attributes["input_zero_point"] == 100  # as a part of the bias it would take digits from it


def test_large_units_of_sums_leave_biases_as_they_are():
    m = Model(4, 6)
    x = m.through("x", 2.0, 128)
    bias = m.known(np.float32([0.004, -0.003, 0.002, 0.001]))
    y = m.node("Gemm", x, m.weight(6, 4), bias)
    (product,) = products(m.check(m.through(y, 0.01, 128), unit=0.01))
    assert product.attributes["epilogue"] == ("scale", "bias", "requantize")


def test_biases_that_are_no_whole_units_of_sums_keep_their_digits():
    """Rounded to a unit of the sums, a hundredth of the result's here, one result of 400 would be another integer."""
    m = Model(96, 16)
    bias = m.known(m.random.standard_normal(64).astype(np.float32))
    y = m.node("MatMul", m.through("x", 0.03, 90, "int8"), m.weight(16, 64, axis=1))
    plain, new_graph = m.graphs(m.through(m.node("Add", y, bias), 0.03, 90, "int8"))
    x = m.random.standard_normal(m.shape).astype(np.float32)
    assert products(new_graph.nodes())[0].attributes["epilogue"] == ("scale", "bias", "requantize")
    assert np.count_nonzero(np.abs(run(new_graph, x)[0] - run(plain, x)[0]) > 0.015) <= 1


def test_weights_with_zero_points_that_int8_has_no_room_for_are_numbers():
    m = Model(4, 6)
    y = m.node("MatMul", m.through("x", 0.02, 128), m.weight(6, 4, dtype="uint8", zero=3))
    (product,) = products(m.check(m.through(y, 0.01, 128), unit=0.01))
    assert tensor_type(product.arguments[0]).dtype == "float32"


def test_what_moves_or_compares_has_integers():
    m = Model(1, 4, 8, 8)
    y = m.node("Conv", m.through("x", 0.02, 128), m.weight(8, 4, 1, 1))
    y = m.through(m.node("MaxPool", m.through(y, 0.03, 120), kernel_shape=[2, 2], strides=[2, 2]), 0.03, 120)
    y = m.through(m.node("Concat", y, m.node("Transpose", y, perm=[0, 1, 3, 2]), axis=1), 0.03, 120)
    y = m.node("MatMul", m.through(m.node("Reshape", y, m.known(np.array([16, 16]))), 0.03, 120), m.weight(16, 4))
    nodes = m.check(m.through(y, 0.05, 128), unit=0.05)
    assert ops(nodes).count(QUANTIZE) == ops(nodes).count(DEQUANTIZE) == 1
    assert len(products(nodes)) == 2


def test_conversions_come_before_what_only_moves():
    m = Model(1, 4, 6)
    y = m.node("Transpose", m.node("Relu", "x"), perm=[0, 2, 1])
    new_graph = move_conversions(m.graphs(m.through(y, 0.02, 0))[0])
    assert ops(new_graph.nodes()) == ["nn.relu", QUANTIZE, "permute_dims", DEQUANTIZE]


def test_residual_sums_are_converted_at_once():
    m = Model(1, 4, 5, 5)
    x = m.through("x", 0.02, 128)
    y = m.through(m.node("Conv", x, m.weight(4, 4, 1, 1)), 0.03, 117)
    nodes = m.check(m.through(m.node("Relu", m.node("Add", y, x)), 0.04, 0), unit=0.04)
    assert ops(nodes)[-4:] == ["add", "nn.relu", QUANTIZE, DEQUANTIZE]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "Gelu"])
def test_dear_functions_are_tables(op, dtype):
    m = Model(3, 50)
    zero = 128 if dtype == "uint8" else 5
    nodes = m.check(m.through(m.node(op, m.through("x", 0.03, zero, dtype)), 0.008, 20, dtype), unit=0.008)
    assert ops(nodes) == [QUANTIZE, "lookup", DEQUANTIZE]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_formulas_that_are_rounded_on_their_way_are_one_table(dtype):
    """GPT-2's GELU as quantisers leave it: x is used three times, and what lies between has 8 bits."""
    m = Model(3, 50)
    zero = 128 if dtype == "uint8" else 0
    x = m.through("x", 0.03, zero, dtype)
    half = m.through(m.node("Mul", x, m.known(np.float32(0.5))), 0.015, zero, dtype)
    cube = m.through(m.node("Mul", m.through(m.node("Mul", x, x), 0.06, 0 if dtype == "uint8" else -128, dtype), x),
                     0.5, zero, dtype)  # fmt: skip
    inner = m.through(m.node("Add", x, m.node("Mul", cube, m.known(np.float32(0.044715)))), 0.05, zero, dtype)
    tanh = m.through(m.node("Tanh", inner), 0.008, zero, dtype)
    y = m.node("Mul", half, m.node("Add", tanh, m.known(np.float32(1.0))))
    nodes = m.check(m.through(y, 0.03, 20, dtype), unit=0.03)
    assert ops(nodes) == [QUANTIZE, "lookup", DEQUANTIZE]


def test_a_sum_of_two_tensors_is_no_table():
    m = Model(3, 50)
    x = m.through("x", 0.03, 128)
    y = m.through(m.node("Softmax", x, axis=1), 0.004, 0)
    nodes = m.check(m.through(m.node("Tanh", m.node("Add", x, y)), 0.008, 128), unit=0.008)
    assert "lookup" not in ops(nodes)
