"""Products of matrices and convolutions, as ONNX's reference computes them."""

import numpy as np
import pytest

from anatune.adapters.onnx import Backend
from anatune.errors import WorkloadError
from anatune.network.graph.operators import CONVOLUTION
from anatune.network.graph.passes.order import CPU, run_passes
from tests.unit.network.graph.onnx.evaluated import check, computed
from tests.unit.network.graph.onnx.one_node import model_of, read
from tests.wording import refuses


def array(*shape, dtype=np.float32):
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("first", "second"), [((2, 3), (3, 4)), ((3,), (3,)), ((3,), (2, 3, 4)), ((2, 3), (3,)), ((5, 1, 2, 3), (4, 3, 2))]
)
def test_matrices(first, second):
    check("MatMul", array(*first), array(*second), unknown=(0, 1))


def test_products_of_16_bits_are_summed_in_float32():
    graph = check("MatMul", array(2, 3, dtype=np.float16), array(3, 4, dtype=np.float16), atol=1e-2)
    (node,) = (one for one in graph.nodes() if one.op == "matmul")
    assert node.type.dtype == "float32"


@pytest.mark.parametrize(
    ("attributes", "term"),
    [
        ({}, None),
        ({"transA": 1, "alpha": 0.5, "beta": 2.0}, (4,)),
        ({"transB": 1}, (3, 1)),
        ({"transA": 1, "transB": 1, "beta": 0.0}, ()),
    ],
)
def test_gemm(attributes, term):
    first = array(*((2, 3) if attributes.get("transA") else (3, 2)))
    second = array(*((4, 2) if attributes.get("transB") else (2, 4)))
    check("Gemm", first, second, *([] if term is None else [array(*term)]), **attributes)


def test_factors_of_gemm_are_in_its_weights():
    graph, _ = computed("Gemm", array(3, 2), array(2, 4), array(4), alpha=0.5, beta=2.0)
    assert [node.op for node in graph.nodes()] == ["matmul", "add"]


def test_fused_matmul_turns_batches():
    x, y = array(3, 2, 4), array(2, 5, 4)
    want = 0.5 * np.moveaxis(x, 0, 1) @ y.swapaxes(1, 2)
    attributes = {"transBatchA": 1, "transB": 1, "alpha": 0.5}
    check("FusedMatMul", x, y, domain="com.microsoft", opset=1, want=[want], **attributes)


@pytest.mark.parametrize("equation", ["bij,jk->bik", "...ij->...ji", "bii->b", "bij->"])
def test_einsum(equation):
    operands = [array(2, 3, 3), *([array(3, 4)] if "," in equation else [])]
    check("Einsum", *operands, equation=equation)


@pytest.mark.parametrize(
    ("x", "weight", "attributes"),
    [
        ((1, 2, 7), (3, 2, 3), {"pads": [1, 2], "strides": [2], "dilations": [2]}),
        ((2, 4, 6, 5), (6, 2, 3, 2), {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((1, 2, 6, 5), (3, 2, 2, 2), {"auto_pad": "SAME_LOWER"}),
        ((1, 2, 6, 5), (3, 2, 2, 2), {"auto_pad": "VALID"}),
        ((1, 2, 4, 5, 4), (3, 2, 2, 3, 1), {"pads": [1, 0, 0, 1, 1, 0]}),
    ],
)
def test_convolutions(x, weight, attributes):
    check("Conv", array(*x), array(*weight), array(weight[0]), **attributes)


def test_a_bias_is_fused_into_its_convolution():
    graph = read(model_of("Conv", array(1, 2, 6, 6), array(3, 2, 3, 3), array(3), unknown=(0,)))
    (node,) = run_passes(CPU, graph).nodes()
    assert (node.op, node.attributes["epilogue"]) == (CONVOLUTION, ("bias",))


@pytest.mark.parametrize(
    ("x", "weight", "attributes"),
    [
        ((1, 2, 5), (2, 3, 4), {"strides": [3], "pads": [1, 2]}),
        ((2, 2, 3, 4), (2, 2, 3, 3), {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 1, 1]}),
        ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": [3, 2], "output_shape": [10, 8]}),
        ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((1, 2, 3, 3), (2, 2, 2, 2), {"dilations": [2, 2]}),
        ((1, 2, 2, 3, 2), (2, 1, 2, 2, 3), {"strides": [2, 1, 2]}),
    ],
)
def test_transposed_convolutions(x, weight, attributes):
    check("ConvTranspose", array(*x), array(*weight), array(weight[1]), **attributes)


def test_transposed_convolutions_are_own_products_and_right():
    x, weight, bias = array(1, 4, 5, 6), array(4, 2, 3, 3), array(4)
    attributes = {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0], "group": 2}
    model = model_of("ConvTranspose", x, weight, bias, unknown=(0,), **attributes)
    assert sum(node.op == CONVOLUTION for node in run_passes(CPU, read(model)).nodes()) == 4
    (got,) = Backend.prepare(model).run([x])
    np.testing.assert_allclose(
        got, computed("ConvTranspose", x, weight, bias, **attributes)[1][0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("groups", "parts"), [(1, 1), (2, 2), (1, 2)])
def test_deformed_convolutions(groups, parts):
    """Offsets are whole pixels and halves: what is between two pixels is their mean."""
    x, weight, factors = array(2, 4, 5, 4), array(2, 4 // groups, 2, 2), array(2, 4 * parts, 4, 3)
    offsets = np.random.default_rng(0).integers(-3, 4, (2, 8 * parts, 4, 3)).astype(np.float32) / 2
    attributes = {"group": groups, "offset_group": parts, "kernel_shape": [2, 2]}
    padded = np.pad(x, [(0, 0), (0, 0), (4, 4), (4, 4)])
    want = np.zeros((2, 2, 4, 3))
    for n, k, c, i, j, y, z in np.ndindex(2, 2, 4, 2, 2, 4, 3):
        if c // (4 // groups) != k // (2 // groups):
            continue
        part, tap = c // (4 // parts), 2 * i + j
        down, across = (offsets[n, part * 8 + 2 * tap + axis, y, z] for axis in range(2))
        rows = [int(np.floor(4 + y + i + down + half)) for half in (0, 0.5)]
        columns = [int(np.floor(4 + z + j + across + half)) for half in (0, 0.5)]
        read_there = padded[n, c][np.ix_(rows, columns)].mean()
        want[n, k, y, z] += read_there * weight[k, c % (4 // groups), i, j] * factors[n, part * 4 + tap, y, z]
    check("DeformConv", x, weight, offsets, None, factors, want=[want.astype(np.float32)], opset=22, **attributes)


def test_what_does_not_fit_is_refused():
    with refuses(WorkloadError):
        computed("Conv", array(1, 3, 6, 6), array(4, 2, 3, 3))
    with refuses(WorkloadError):
        computed("ConvTranspose", array(1, 1, 2, 2, 2, 2), array(1, 1, 1, 1, 1, 1))
