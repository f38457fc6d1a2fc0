"""Scaled integers: conversions and products, as the standard's equations say, exactly."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.onnx.call import UnknownValueError
from tests.unit.network.graph.onnx.evaluated import check, computed
from tests.unit.network.graph.onnx.one_node import model_of, read
from tests.wording import refuses

MICROSOFT = {"domain": "com.microsoft", "opset": 1}


def integers(*shape, dtype=np.uint8, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def floats(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_halves_are_rounded_to_even_and_ends_are_kept(dtype):
    x = np.array([-1e6, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e6], np.float32)
    zero = dtype(3)
    limits = np.iinfo(dtype)
    want = np.clip(np.array([-1e6, -2, -2, 0, 0, 2, 2, 1e6]) + 3, limits.min, limits.max).astype(dtype)
    check("QuantizeLinear", x, np.float32(1), zero, want=[want])


@pytest.mark.parametrize(
    ("scales", "attributes"),
    [((), {}), ((4,), {"axis": 1}), ((3,), {"axis": -3}), ((3, 2, 2), {"axis": 1, "block_size": 3})],
)
def test_scales_of_tensors_axes_and_blocks(scales, attributes):
    x = 10 * floats(3, 4, 2)
    scale, zero = np.abs(floats(*scales)) + np.float32(0.5), integers(*scales, dtype=np.int8)
    check("QuantizeLinear", x, scale, zero, **attributes)
    check("DequantizeLinear", integers(3, 4, 2, dtype=np.int8), scale, zero, **attributes)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("scales", [(), (1,)])
def test_any_axis_stands_beside_one_scale_of_a_vector(axis, scales):
    """onnxruntime's quantiser writes axis = 0 for biases, whose only axis is 0, whatever the default is."""
    scale, zero = np.full(scales, 0.5, np.float32), np.zeros(scales, np.int8)
    x = np.array([1, -2, 3], np.int8)[: 1 if scales else 3]
    for attributes in ({}, MICROSOFT):
        check("DequantizeLinear", x, scale, zero, want=[x * np.float32(0.5)], axis=axis, **attributes)
        check("QuantizeLinear", x * np.float32(0.5), scale, zero, want=[x], axis=axis, **attributes)


def test_scales_of_a_vectors_elements_have_axis_0():
    x, scale = np.array([1, -2, 3], np.int32), np.array([0.5, 1.0, 2.0], np.float32)
    check("DequantizeLinear", x, scale, np.zeros(3, np.int32), axis=0)


def test_dtypes_of_conversions():
    check("QuantizeLinear", floats(3), np.float32(0.1), output_dtype=5)
    check("DequantizeLinear", np.array([-70000, 3, 40000], np.int32), np.float16(0.1), atol=10)
    with refuses(WorkloadError):
        computed("QuantizeLinear", floats(3), np.float32(1), output_dtype=17)


@pytest.mark.parametrize("x", [floats(3, 4), np.abs(floats(5)), -np.abs(floats(5)), np.zeros(3, np.float32)])
def test_scales_of_what_is_there(x):
    high, low = max(0, x.max()), min(0, x.min())
    scale = np.float32((high - low) / 255)
    zero = np.uint8(np.clip(np.rint(-low / (scale or 1)), 0, 255))
    want = np.clip(np.rint(x / (scale or 1)) + zero, 0, 255).astype(np.uint8)
    check("DynamicQuantizeLinear", x, want=[want, scale, zero], outputs=3)


@pytest.mark.parametrize("length", [5, 300, 66000])
def test_sums_of_products_are_exact(length):
    """All of the largest magnitude: float32 would lose the odd ones."""
    x, weight = np.full((2, length), 255, np.uint8), np.full((length, 3), -127, np.int8)
    want = np.full((2, 3), -255 * 127 * length, np.int32)
    graph = check("MatMulInteger", x, weight, opset=10, want=[want], atol=0)
    dtypes = {node.type.dtype for node in graph.nodes() if node.op == "matmul"}
    assert dtypes == ({"float64"} if length > 50000 else {"float32"})


def test_zero_points_of_rows_and_columns():
    x, weight = integers(4, 3), integers(3, 2, dtype=np.int8)
    rows, columns = integers(4), integers(2, dtype=np.int8)
    want = (x.astype(np.int32) - rows[:, None]) @ (weight.astype(np.int32) - columns)
    check("MatMulInteger", x, weight, rows, columns, opset=10, want=[want], atol=0)
    wide = integers(4, 3, dtype=np.uint16), integers(3, 2, dtype=np.uint16)
    want = wide[0].astype(np.uint32) @ wide[1].astype(np.uint32)
    check("MatMulInteger16", *wide, want=[want], atol=0, **MICROSOFT)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [2, 40])
def test_convolutions_of_integers(groups, channels):
    x, weight = integers(1, channels, 5, 4), integers(4, channels // groups, 3, 3)
    attributes = {"pads": [1, 1, 1, 1], "strides": [2, 1], "group": groups}
    plain = computed("Conv", x.astype(np.float64) - 7, weight.astype(np.float64) - 9, **attributes)[1]
    check(
        "ConvInteger",
        x,
        weight,
        np.uint8(7),
        np.uint8(9),
        want=[plain[0].astype(np.int32)],
        opset=10,
        atol=0,
        **attributes,
    )


def test_products_with_scales():
    x, weight = integers(4, 3), integers(3, 2, dtype=np.int8)
    total = (x.astype(np.int32) - 5) @ weight.astype(np.int32)
    want = np.clip(np.rint(total * np.float32(0.2 * 0.1 / 0.7)) + 100, 0, 255).astype(np.uint8)
    scales = [np.float32(one) for one in (0.2, 0.1, 0.7)]
    operands = [x, scales[0], np.uint8(5), weight, scales[1], np.int8(0), scales[2], np.uint8(100)]
    check("QLinearMatMul", *operands, want=[want])


def test_convolutions_with_scales_of_channels():
    x, weight, bias = integers(1, 3, 4, 4), integers(2, 3, 2, 2, dtype=np.int8), np.array([500, -900], np.int32)
    scale = np.array([0.5, 0.25], np.float32)
    total = computed("Conv", x.astype(np.float64) - 5, weight.astype(np.float64), bias.astype(np.float64))[1][0]
    want = np.clip(np.rint(total * scale[:, None, None] * 0.5 / 64) - 3, -128, 127).astype(np.int8)
    operands = [x, np.float32(0.5), np.uint8(5), weight, scale, np.zeros(2, np.int8), np.float32(64), np.int8(-3), bias]
    check("QLinearConv", *operands, want=[want])


def test_elements_with_scales():
    x, y = integers(3, 4), integers(4)
    numbers = [np.float32(0.5), np.uint8(100)]
    for op, compute in (("QLinearAdd", np.add), ("QLinearMul", np.multiply)):
        result = compute((x.astype(int) - 100) * 0.5, (y.astype(int) - 100) * 0.5)
        want = np.clip(np.rint(result / 0.5) + 100, 0, 255).astype(np.uint8)
        check(op, x, *numbers, y, *numbers, *numbers, want=[want], **MICROSOFT)
    plain = (x.astype(int) - 100) * 0.5
    want = np.clip(np.rint(np.where(plain < 0, 0.125 * plain, plain) / 0.5) + 100, 0, 255).astype(np.uint8)
    check("QLinearLeakyRelu", x, *numbers, *numbers, want=[want], alpha=0.125, **MICROSOFT)


def scaled(array, scale, zero):
    return (array.astype(np.float64) - zero) * scale


def back(numbers, scale, zero):
    return np.clip(np.rint(numbers / scale) + zero, 0, 255).astype(np.uint8)


def test_products_of_onnxruntime_with_scales():
    a, weight, term = integers(3, 4), integers(5, 4, dtype=np.int8), np.array([300, -20, 7, 0, 90], np.int32)
    scales = np.array([0.5, 0.25, 0.125, 1, 2], np.float32)
    result = scaled(a, 0.5, 9) @ scaled(weight, scales[:, None], 0).T + term * 0.5 * scales
    operands = [a, np.float32(0.5), np.uint8(9), weight, scales, np.zeros(5, np.int8), term]
    want = back(result, 8.0, 100)
    check("QGemm", *operands, np.float32(8), np.uint8(100), want=[want], transB=1, **MICROSOFT)
    check("QGemm", *operands, want=[result.astype(np.float32)], transB=1, **MICROSOFT)


def test_pools_and_moves_of_onnxruntime_with_scales():
    x, numbers, result = integers(1, 3, 4, 6), [np.float32(0.5), np.uint8(100)], [np.float32(0.25), np.uint8(60)]
    plain = scaled(x, 0.5, 100)
    mean = plain.mean(axis=(2, 3), keepdims=True)
    check("QLinearGlobalAveragePool", x, *numbers, *result, want=[back(mean, 0.25, 60)], **MICROSOFT)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    want = np.moveaxis(back(mean, 0.25, 60), 1, -1)
    check("QLinearGlobalAveragePool", last, *numbers, *result, want=[want], channels_last=1, **MICROSOFT)
    parts = plain.reshape(1, 3, 2, 2, 3, 2).mean(axis=(3, 5))
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], **MICROSOFT}
    check("QLinearAveragePool", x, *numbers, *result, want=[back(parts, 0.25, 60)], **attributes)
    both = back(np.concatenate([plain, scaled(x, 0.125, 3)], axis=1), 0.25, 60)
    check("QLinearConcat", *result, x, *numbers, x, np.float32(0.125), np.uint8(3), want=[both], axis=1, **MICROSOFT)
    choice = integers(1, 3, 4, 6, seed=5) > 99
    want = back(np.where(choice, plain, scaled(x, 0.125, 3)), 0.25, 60)
    check("QLinearWhere", choice, x, *numbers, x, np.float32(0.125), np.uint8(3), *result, want=[want], **MICROSOFT)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0])
def test_scales_that_are_none_are_refused(scale):
    with refuses(WorkloadError):
        computed("QuantizeLinear", floats(3), np.float32(scale), np.uint8(3))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_weights_of_few_bits_are_constants(bits, has_zeros):
    length, columns, block = 40, 3, 16
    numbers = np.random.default_rng(bits)
    plain = numbers.integers(0, 1 << bits, (columns, 3, block)).astype(np.uint8)
    zeros = numbers.integers(0, 1 << bits, (columns, 4)).astype(np.uint8)
    scales = np.abs(floats(columns, 3))
    used = zeros[:, :3, None].astype(np.float32) if has_zeros else np.float32(1 << (bits - 1))
    matrix = ((plain - used) * scales[..., None]).reshape(columns, -1)[:, :length]

    def packed(array):
        return array[..., ::2] | array[..., 1::2] << 4 if bits == 4 else array

    attributes = {"K": length, "N": columns, "bits": bits, "block_size": block, **MICROSOFT}
    x, bias = floats(2, length), floats(columns)
    zeros = packed(zeros if bits == 4 else zeros[:, :3]).reshape(-1) if has_zeros else None
    operands = [x, packed(plain), scales.reshape(-1), zeros, None, bias]
    graph = check("MatMulNBits", *operands, want=[x @ matrix.T + bias], atol=1e-3, **attributes)
    assert [node.op for node in graph.nodes()] == ["matmul", "add"]
    with refuses(UnknownValueError):
        read(model_of("MatMulNBits", *operands, unknown=(0, 1), **attributes))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_even", [True, False])
def test_rows_of_a_group_may_lie_apart(bits, is_even):
    """GPTQ's order of rows: groups of equal sizes become neighbours, others are unpacked."""
    length, columns, block = 64, 3, 32
    numbers = np.random.default_rng(bits)
    plain = numbers.integers(0, 1 << bits, (columns, length)).astype(np.uint8)
    groups = np.arange(length) % 2 if is_even else (np.arange(length) % 3 == 0).astype(int)
    groups = groups.astype(np.int32)
    scales, x = np.abs(floats(columns, 2)), floats(2, length)
    want = x @ ((plain - np.float32(1 << (bits - 1))) * scales[:, groups]).T
    packed = (plain[:, ::2] | plain[:, 1::2] << 4 if bits == 4 else plain).reshape(columns, 2, -1)
    attributes = {"K": length, "N": columns, "bits": bits, "block_size": block, **MICROSOFT}
    graph = check("MatMulNBits", x, packed, scales.reshape(-1), None, groups, want=[want], atol=1e-3, **attributes)
    assert [node.op for node in graph.nodes()] == (["take", "scaled_matmul"] if is_even else ["matmul"])
    with refuses(WorkloadError):
        read(model_of("MatMulNBits", x, packed, scales.reshape(-1), None, groups + 1, unknown=(0,), **attributes))


def test_weights_that_kernels_take_stay_packed():
    packed = np.random.default_rng(1).integers(0, 256, (3, 2, 16), dtype=np.uint8)
    scales, x = np.abs(floats(6)), floats(2, 64)
    matrix = np.stack([packed & 15, packed >> 4], axis=-1).reshape(3, 2, 32) - 8.0
    want = (x @ (matrix * scales.reshape(3, 2, 1)).reshape(3, 64).T).astype(np.float32)
    attributes = {"K": 64, "N": 3, "bits": 4, "block_size": 32, "accuracy_level": 4, **MICROSOFT}
    graph = check("MatMulNBits", x, packed, scales, want=[want], atol=1e-3, **attributes)
    (node,) = graph.nodes()
    assert (node.op, node.attributes["rounded"], node.attributes["group"]) == ("scaled_matmul", True, 32)
    scales[2] = np.inf
    with refuses(WorkloadError):
        read(model_of("MatMulNBits", x, packed, scales, unknown=(0,), **attributes))
