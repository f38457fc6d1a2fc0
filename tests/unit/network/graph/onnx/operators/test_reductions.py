"""Readers of reductions and norms."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import tensor_type
from tests.unit.network.graph.onnx.one_node import check, found, model_of, read
from tests.wording import refuses

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceMax", "ReduceProd"])
def test_axes_are_attributes_and_then_operands(op):
    check(op, X, opset=11, axes=[-1, 0])
    check(op, X, np.array([1], np.int64), keepdims=0)
    check(op, X)


@pytest.mark.parametrize("op", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_roots_and_logarithms_of_integers_are_of_fractions(op):
    graph = read(model_of(op, np.ones((2, 3), np.int32), unknown=(0,)))
    assert {tensor_type(node).dtype for node in graph.nodes()[:-1]} <= {"float64", "bool"}
    assert tensor_type(graph.outputs[0]).dtype == "int32"


@pytest.mark.parametrize(
    ("op", "more", "attributes"),
    [
        ("ReduceMean", 0, {}),
        ("ReduceSum", 0, {}),
        ("InstanceNormalization", 2, {}),
        ("MeanVarianceNormalization", 0, {"axes": [0, 2]}),
        ("LpNormalization", 0, {}),
        ("LRN", 0, {"size": 3}),
    ],
)
def test_sums_of_16_bits_are_of_32(op, more, attributes):
    operands = [X.astype(np.float16), *[np.ones(3, np.float16)] * more]
    graph = read(model_of(op, *operands, unknown=range(1 + more), **attributes))
    sums = [node for node in graph.nodes() if node.op in ("sum", "mean", "sqrt", "power", "nn.layer_norm")]
    assert {tensor_type(node).dtype for node in sums} == {"float32"}
    assert tensor_type(graph.outputs[0]).dtype == "float16"


_LIMITS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "int8": (-128, 127), "uint8": (0, 255),
           "bool": (False, True), "float32": (-np.inf, np.inf), "float64": (-np.inf, np.inf)}  # fmt: skip


@pytest.mark.parametrize(("axes", "shape"), [([1], (2, 3)), ([0, 1], (3,)), ([0, 1, 2], ())])
@pytest.mark.parametrize("dtype", sorted(_LIMITS))
def test_reductions_of_no_elements(dtype, axes, shape):
    nothing, axes = np.zeros((2, 0, 3), dtype), np.array(axes)
    want = dict(zip(("ReduceMax", "ReduceMin"), _LIMITS[dtype], strict=True))
    if dtype not in ("bool", "int8", "uint8"):
        want |= {"ReduceSum": 0, "ReduceMean": 0, "ReduceProd": 1, "ReduceL1": 0, "ReduceL2": 0, "ReduceSumSquare": 0}
    if dtype.startswith("float"):
        want |= {"ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf}
    for op, number in want.items():
        for unknown in ((), (0,)):  # known only after reading, too
            output = read(model_of(op, nothing, axes, opset=20, keepdims=0, unknown=unknown)).outputs[0]
            assert output.array.dtype == dtype
            np.testing.assert_array_equal(output.array, np.full(shape, number, dtype))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_no_element_is_the_largest_of_none(op):
    with refuses(WorkloadError):
        read(model_of(op, np.zeros((2, 0), np.float32), unknown=(0,), axis=1))
    assert read(model_of(op, np.zeros((2, 0), np.float32), unknown=(0,), axis=0, keepdims=0)).outputs


_NORMS = [
    ("InstanceNormalization", "", (3, 3), {}),
    ("GroupNormalization", "", (3, 3), {"num_groups": 3}),
    ("LayerNormalization", "", (4, 4), {}),
    ("LayerNormalization", "", ((3, 4), (3, 4)), {"axis": 1}),
    ("SkipLayerNormalization", "com.microsoft", (X.shape, 4, 4), {}),
]


@pytest.mark.parametrize(("op", "domain", "sizes", "attributes"), _NORMS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_norms_are_computed_in_their_dtype_where_tvm_has_none(op, domain, sizes, attributes, dtype):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    operands = [RNG.standard_normal(size).astype(dtype) for size in (X.shape, *sizes)]
    nodes = read(model_of(op, *operands, unknown=range(len(operands)), domain=domain, **attributes)).nodes()
    assert {tensor_type(node).dtype for node in nodes if node.op == "nn.layer_norm"} <= {"float32"}
    if dtype == "float64":
        assert {tensor_type(node).dtype for node in nodes} == {"float64"}
        x = (operands[0] + operands[1] if domain else operands[0]).reshape(2, 3, 4)
        axes = (1, 2) if attributes.get("axis") else (2,)
        factor, term = operands[-2:] if axes == (1, 2) or op.endswith("LayerNormalization") else (
            one.reshape(3, 1) for one in operands[-2:]
        )  # fmt: skip
        want = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + (1e-12 if domain else 1e-5))
        got = found(op, *operands, domain=domain, **attributes)[0]
        np.testing.assert_allclose(got, want * factor + term, rtol=1e-7)


def test_softmax_of_old_versions_is_of_matrices():
    power = np.exp(X)
    check("Softmax", X, want=[power / power.sum(axis=(1, 2), keepdims=True)], opset=12, axis=1)
    check("Softmax", X, want=[power / power.sum(axis=1, keepdims=True)], opset=13, axis=1)


def test_the_largest_ones():
    x = np.array([[3, 1, 2, 0], [4, 5, 5, 5]], np.float32)
    want = [np.array([[3, 2], [5, 5]], np.float32), np.array([[0, 2], [1, 2]], np.int64)]
    check("TopK", x, want=want, outputs=2, opset=9, k=2)
    check("TopK", x, np.array([2], np.int64), want=want, outputs=2)


@pytest.mark.parametrize("count", [5, -1])
def test_more_than_there_are_cannot_be_chosen(count):
    with refuses(WorkloadError):
        read(model_of("TopK", X, np.array([count], np.int64), outputs=2, unknown=(0,)))


def test_a_batch_norm_of_each_element():
    data, numbers = RNG.standard_normal((2, 1, 3)).astype(np.float32), [RNG.random((1, 3)).astype(np.float32) + 1] * 4
    want = (data - numbers[2]) / np.sqrt(numbers[3] + 1e-5) * numbers[0] + numbers[1]
    check("BatchNormalization", data, *numbers, want=[want], opset=7, spatial=0)
    with refuses(WorkloadError):
        read(model_of("BatchNormalization", data, *[np.ones(2, np.float32)] * 4, opset=15))


def test_norms_by_more_channels_than_there_are():
    x = X[:, :, :, None]
    check("LRN", x, want=[x / (1 + 1e-4 / 9 * (x * x).sum(axis=1, keepdims=True)) ** 0.75], size=9)
    graph = read(model_of("LRN", X[:, :, :, None], size=1 << 30, unknown=(0,)))
    assert len(graph.nodes()) < 20


def test_axes_that_a_tensor_has_not():
    for op, attributes in (("ReduceSum", {"axes": [3]}), ("ArgMax", {"axis": 3}), ("Transpose", {"perm": [0, 0, 1]})):
        with refuses(WorkloadError):
            read(model_of(op, X, opset=11, **attributes))


@pytest.mark.parametrize("reverse", [0, 1])
def test_sums_of_those_before_lose_nothing(reverse):
    x = np.array([[1, 1e20, 1, np.inf], [1, 2, 3, 4]])[:, :: -1 if reverse else 1]
    want = np.array([[0, 1, 1e20, 1e20], [0, 1, 3, 6]])[:, :: -1 if reverse else 1]
    check("CumSum", x, np.int64(1), want=[want], exclusive=1, reverse=reverse)


def test_a_layer_norm_by_factors_of_other_dimensions():
    factors = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    away = X - X.mean(-1, keepdims=True)
    check("LayerNormalization", X, factors, want=[away / np.sqrt((away**2).mean(-1, keepdims=True) + 1e-5) * factors])
    with refuses(WorkloadError):
        read(model_of("LayerNormalization", X, np.ones((5, 1, 1, 1), np.float32), unknown=(0,)))
