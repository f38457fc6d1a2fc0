"""Products with weights of 8 and 4 bits as nodes, and weights of GGUF's blocks."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.building import elementwise, matmul, permute, reshape
from anatune.network.graph.folding import evaluate_node
from anatune.network.graph.integers.few_bits import gguf_weights, pack_byte_weights, scaled_product, unpack_products
from anatune.network.graph.integers.scaled import QuantisationScale, dequantize
from anatune.network.graph.nodes import Constant, Graph, Input, TensorType
from anatune.network.graph.passes.products import fuse_products
from anatune.network.graph.products import workload_of
from tests.wording import refuses


def drawn(columns, length, bits, group, *, zeros=False):
    numbers = np.random.default_rng(bits + zeros)
    packed = numbers.integers(0, 256, (columns, length * bits // 8), dtype=np.uint8)
    scales = numbers.uniform(0.5, 1.5, (columns, length // group)).astype(np.float32)
    points = numbers.integers(0, 1 << bits, scales.shape).astype(np.uint8) if zeros else None
    plain = packed if bits == 8 else np.stack([packed & 15, packed >> 4], axis=-1).reshape(columns, -1)
    less = float(1 << (bits - 1)) if points is None else points[..., None].astype(float)
    matrix = (plain.reshape(columns, -1, group) - less) * scales[..., None]
    return packed, scales, points, matrix.reshape(columns, -1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_product_keeps_its_weights_packed_and_says_what_it_computes(bits, zeros):
    packed, scales, points, matrix = drawn(5, 64, bits, 32, zeros=zeros)
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    data = Input("x", TensorType(x.shape, "float32"))
    node = scaled_product(data, packed, scales, points, bits=bits, rounded=True)
    assert node.type == TensorType((2, 3, 5), "float32")
    assert [one.type.dtype for one in node.arguments[1:3]] == ["uint8" if bits == 4 else "int8", "float32"]
    result = evaluate_node(node, {data: x.astype(np.float64)})
    assert result == pytest.approx(x @ matrix.T, rel=1e-4, abs=1e-4)
    graph = fuse_products(Graph((data,), (node,), is_tuple=False))
    (product,) = (one for one in graph.nodes() if one.op.startswith("anatune."))
    workload = workload_of(product)
    assert workload.extents == {"i": 6, "j": 5, "k": 64}
    assert (workload.attribute["group"], workload.attribute["rounded"]) == (32, True)
    plain = unpack_products(Graph((data,), (node,), is_tuple=False)).outputs[0]
    assert plain.op == "matmul"
    assert evaluate_node(plain, {data: x}) == pytest.approx(x @ matrix.T, rel=1e-4, abs=1e-4)


def test_what_no_kernel_takes_is_a_plain_product():
    packed, scales, points, matrix = drawn(5, 48, 4, 24)
    data = Input("x", TensorType((1, 48), "float32"))
    assert scaled_product(data, packed, scales, points, bits=4).op == "matmul"
    wide = Input("x", TensorType((1, 48), "float64"))
    result = scaled_product(wide, packed, scales, points, bits=4)
    assert result.type.dtype == "float64"
    assert evaluate_node(result, {wide: np.ones((1, 48))}) == pytest.approx(matrix.sum(axis=1)[None], rel=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_of_gguf_are_what_the_format_says(bits):
    numbers = np.random.default_rng(bits)
    scales = numbers.uniform(0.5, 1.5, (3, 2, 1)).astype(np.float16)
    signed = numbers.integers(-8 if bits == 4 else -127, 8 if bits == 4 else 128, (3, 2, 32))
    if bits == 8:
        stored = signed.astype(np.int8).view(np.uint8)
    else:
        unsigned = (signed + 8).astype(np.uint8)
        stored = unsigned[..., :16] | unsigned[..., 16:] << 4
    blocks = np.concatenate([scales.view(np.uint8).reshape(3, 2, 2), stored], axis=-1).tobytes()
    weights, result = gguf_weights(blocks, 3, bits=bits)
    assert weights.shape == (3, 2, 32 * bits // 8)
    data = Input("x", TensorType((64, 64), "float32"))
    product = scaled_product(data, weights.reshape(3, -1), result, None, bits=bits)
    matrix = (signed * scales.astype(np.float64)).reshape(3, 64)
    assert evaluate_node(product, {data: np.eye(64)}) == pytest.approx(matrix.T, rel=1e-6)


def test_blocks_that_are_none_are_said_in_a_line():
    with refuses(WorkloadError):
        gguf_weights(bytes(35), 1, bits=8)
    broken = np.full((1, 1), np.nan, np.float16).tobytes() + bytes(16)
    with refuses(WorkloadError):
        gguf_weights(broken, 1, bits=4)


def test_whole_numbers_of_8_bits_that_are_scaled_by_columns_are_packed():
    numbers = np.random.default_rng(7)
    weight = numbers.integers(-128, 128, (64, 5)).astype(np.float32)
    scales = numbers.uniform(0.5, 1.5, 5).astype(np.float32)
    data = Input("x", TensorType((2, 3, 64), "float32"))
    rows = reshape(data, (6, 64))

    def scaled(matrix, factor):
        return elementwise("multiply", reshape(matmul(rows, Constant(matrix)), (2, 3, 5)), Constant(factor))

    graph = pack_byte_weights(Graph((data,), (scaled(weight, scales),), is_tuple=False))
    (product,) = (one for one in graph.nodes() if one.op == "scaled_matmul")
    assert product.attributes["group"] == 64
    assert product.arguments[1].type == TensorType((5, 64), "int8")
    x = numbers.standard_normal((2, 3, 64))
    result = evaluate_node(product, {product.arguments[0]: x.reshape(6, 64)})
    assert result == pytest.approx(x.reshape(6, 64) @ weight * scales, rel=1e-5)
    for matrix, factor in ((weight + 0.5, scales), (2 * weight, scales), (weight, np.ones((2, 3, 5), np.float32))):
        graph = pack_byte_weights(Graph((data,), (scaled(matrix, factor),), is_tuple=False))
        assert "matmul" in {one.op for one in graph.nodes()}


@pytest.mark.parametrize(("least", "most", "bits"), [(-8, 7, 4), (-128, 127, 8)])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_integers_with_scales_of_groups_are_packed(least, most, bits, has_zeros):
    """Weights are read as torchao exports them: (n, groups, k of a group) integers, reshaped and transposed."""
    rng = np.random.default_rng(bits)
    numbers = rng.integers(least, most + 1, (5, 2, 32)).astype(np.int8)
    numbers[0, 0, :2] = least, most
    zeros = rng.integers(-8, 8, (5, 2, 1)).astype(np.int32) * has_zeros
    scales = rng.uniform(0.5, 1.5, (5, 2, 1)).astype(np.float32)
    data = Input("x", TensorType((3, 64), "float32"))
    apart = reshape(dequantize(Constant(numbers), QuantisationScale(scales, zeros)), (5, 64))
    plain = matmul(data, permute(apart, (1, 0)))
    (product,) = pack_byte_weights(Graph((data,), (plain,), is_tuple=False)).outputs
    assert (product.op, product.attributes["bits"], product.attributes["group"]) == ("scaled_matmul", bits, 32)
    assert product.attributes["zero_points"] == has_zeros
    x = rng.standard_normal((3, 64))
    want = x @ ((numbers - zeros) * scales).reshape(5, 64).T
    assert evaluate_node(product, {data: x}) == pytest.approx(want, rel=1e-5, abs=1e-5)
    of_all = dequantize(Constant(numbers), QuantisationScale(np.float32(0.5), np.int32(0)))  # as QDQ has them
    for other in (elementwise("add", apart, 1.0), reshape(of_all, (5, 64))):
        graph = Graph((data,), (matmul(data, permute(other, (1, 0))),), is_tuple=False)
        assert "matmul" in {one.op for one in pack_byte_weights(graph).nodes()}
