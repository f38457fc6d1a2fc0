"""Compiled models keep NaN and infinities as ONNX says: operators alone, fused into products, pools, rows."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from anatune.network.compiling.session import compile as compile_model

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.tiers import slow_from  # noqa: E402

NUMBERS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 7.0, -7.0, 0.5, -0.5, 3.0, -3.0, 1e-40], np.float32)
ALONE = {
    **{name: (name, [], {}) for name in (
        "Relu", "LeakyRelu", "Elu", "Selu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Softplus", "Softsign",
        "Gelu", "Erf", "Exp", "Log", "Sqrt", "Abs", "Neg", "Reciprocal", "Floor", "Ceil", "Round", "Mish",
    )},
    "gelu_tanh": ("Gelu", [], {"approximate": "tanh"}),
    "relu6": ("Clip", [0.0, 6.0], {}),
    "clip": ("Clip", [-1.0, 1.0], {}),
    "clip_below": ("Clip", [0.5], {}),
    "maximum": ("Max", [np.roll(NUMBERS, 5)], {}),
    "minimum": ("Min", [np.roll(NUMBERS, 5)], {}),
    "maximum_of_a_number": ("Max", [0.25], {}),
    "power": ("Pow", [2.0], {}),
    "negative_slope": ("PRelu", [0.25], {}),
}  # fmt: skip
"""Name -> operator, constants behind the data, attributes."""


def data(*shape, seed=0):
    """Normal numbers, a few of them NaN and infinite; the first rows and columns of images are ``-inf``."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape).astype(np.float32)
    for number in (np.nan, np.inf, -np.inf):
        x.reshape(-1)[random.choice(x.size, max(1, x.size // 60), replace=False)] = number
    if len(shape) == 4:
        x[..., :5, :5] = -np.inf
    return x


def written(nodes, weights, x, outputs):
    """Return a model of the input ``x``."""
    known = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    graph = helper.make_graph(nodes, "network", [data], results, known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def results(model, x, path):
    """Return what a compiled model returns, and what ONNX's reference evaluator does, by output."""
    onnx.save(onnx.shape_inference.infer_shapes(model), str(path))
    compiled = compile_model(path, threads=1)
    assert not compiled.summary.unscheduled
    names = [one.name for one in model.graph.output]
    got = compiled(x)
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(model).run(None, {"x": x})
    listed = got if compiled.summary.is_tuple else [got]
    return dict(zip(names, listed, strict=True)), dict(zip(names, want, strict=True))


def check(got, want, what):
    """NaN and infinities stand where they should; everything else is near."""
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=what)


def test_operators_alone(tmp_path):
    x = np.tile(NUMBERS, 20).reshape(4, 60)
    nodes, weights = [], {}
    for name, (operator, constants, attributes) in ALONE.items():
        own = {
            f"{name}_{place}": np.resize(one, 60) if np.size(one) > 1 else one for place, one in enumerate(constants)
        }
        nodes.append(helper.make_node(operator, ["x", *own], [name], **attributes))
        weights |= own
    got, want = results(written(nodes, weights, x, ALONE), x, tmp_path / "alone.onnx")
    for name in ALONE:
        check(got[name], want[name], name)


@pytest.mark.parametrize("operator", ["Equal", "IsNaN"])
def test_what_asks_for_nan_finds_it(operator, tmp_path):
    x = np.tile(NUMBERS, 5).reshape(4, 15)
    inputs = ["x", "x"] if operator == "Equal" else ["x"]
    nodes = [
        helper.make_node(operator, inputs, ["condition"]),
        helper.make_node("Where", ["condition", "yes", "no"], ["y"]),
    ]
    got, want = results(written(nodes, {"yes": [1.0], "no": [2.0]}, x, ["y"]), x, tmp_path / "asks.onnx")
    check(got["y"], want["y"], operator)
    assert set(np.unique(want["y"])) == {1.0, 2.0}


def pooled(x, kernel, strides, pads, dilations=(1, 1)):
    """Return the largest of each window, NaN if there is one in it."""
    padded = np.pad(x, [(0, 0), (0, 0), (pads, pads), (pads, pads)], constant_values=-np.inf)
    spans = [(size - 1) * step + 1 for size, step in zip((kernel, kernel), dilations, strict=True)]
    windows = sliding_window_view(padded, spans, axis=(2, 3))
    windows = windows[:, :, ::strides, ::strides, :: dilations[0], :: dilations[1]]
    return windows.max(axis=(4, 5))


@pytest.mark.parametrize("behind", slow_from(1, ["", "Conv"]))
def test_pools(behind, tmp_path):
    """Behind a convolution channels come last, and kernels are anatune's; alone they are TVM's."""
    sizes = {"padded": (3, 2, 1), "dense": (3, 1, 1), "plain": (2, 2, 0)}
    x = data(1, 20, 11, 13)
    nodes, weights, source = [], {}, "x"
    if behind:
        x = np.where(np.isfinite(x), x, np.float32(0.5))
        x[0, :, 4, 4], x[0, 3, 8, 9] = np.nan, np.inf
        weights["w"] = np.random.default_rng(1).standard_normal((20, 20, 1, 1))
        nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["source"])]
        source = "source"
    for name, (kernel, stride, pad) in sizes.items():
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        nodes.append(helper.make_node("MaxPool", [source], [name], **attributes))
    nodes.append(helper.make_node("GlobalMaxPool", [source], ["all"]))
    names = [*sizes, "all", *(["source"] if behind else [])]
    got, want = results(written(nodes, weights, x, names), x, tmp_path / "pools.onnx")
    before = got["source"] if behind else x
    if behind:
        check(before, want["source"], "Conv")
    assert np.isnan(before).any()
    for name, size in sizes.items():
        check(got[name], pooled(before, *size), name)
    check(got["all"], before.max(axis=(2, 3), keepdims=True), "all")
    assert behind or np.isneginf(got["plain"]).any()


STEPS = {"Relu": {}, "Clip": {"low": 0.0, "high": 6.0}, "Gelu": {}, "HardSwish": {}, "LeakyRelu": {}, "Sigmoid": {}}


@pytest.mark.parametrize("product", slow_from(2, ["Gemm", "Conv3x3", "Conv1x1", "Depthwise"]))
def test_steps_fused_into_products(product, tmp_path):
    """A stride, for the convolution of 3x3 to be no Winograd kernel: its transforms make NaN of infinities."""
    random = np.random.default_rng(3)
    if product == "Gemm":
        x, weights, attributes = data(17, 32), {"w": random.standard_normal((32, 24)), "b": random.random(24)}, {}
        x[3:] = random.standard_normal(x[3:].shape)
    else:
        x = random.standard_normal((1, 8, 12, 13)).astype(np.float32)
        x[0, 0, 0, 0], x[0, 1, 6, 6], x[0, 2, 10, 10] = np.nan, np.inf, -np.inf
        taps, group = {"Conv1x1": (1, 1), "Conv3x3": (3, 1), "Depthwise": (3, 8)}[product]
        weights = {"w": random.standard_normal((24 if group == 1 else 8, 8 // group, taps, taps)), "b": np.ones(24)}
        weights["b"] = weights["b"][: len(weights["w"])]
        attributes = {"group": group, "pads": [taps // 2] * 4, "strides": [2] * 2}
    operator = product if product == "Gemm" else "Conv"
    nodes, known = [], {}
    for step, constants in STEPS.items():  # weights of its own for each: equal products would be one
        own = {f"{step}_{name}": array for name, array in weights.items()}
        own[f"{step}_b"] = own[f"{step}_b"] + len(known)
        more = {f"{step}_{name}": array for name, array in constants.items()}
        nodes.append(helper.make_node(operator, ["x", *own], [f"{step}_sums"], **attributes))
        nodes.append(helper.make_node(step, [f"{step}_sums", *more], [step]))
        known |= own | more
    got, want = results(written(nodes, known, x, STEPS), x, tmp_path / "fused.onnx")
    for step in STEPS:
        check(got[step], want[step], f"{product}, {step}")
    assert np.isnan(want["Relu"]).any()
    assert np.isposinf(want["Relu"]).any()


def test_rows_and_reductions(tmp_path):
    x = data(1, 9, 12, 40)
    x[0, 1:, 5:] = np.random.default_rng(5).standard_normal(x[0, 1:, 5:].shape)
    x[0, 3, :, 7], x[0, 4, 6, 3] = -np.inf, np.inf
    kinds = ("ReduceMax", "ReduceMin", "ReduceMean")
    nodes = [
        helper.make_node("Softmax", ["x"], ["rows"], axis=-1),
        helper.make_node("Softmax", ["x"], ["columns"], axis=1),
    ]
    nodes.append(helper.make_node("LayerNormalization", ["x", "ones", "zeros"], ["norms"], axis=-1))
    for kind in kinds:
        for axes in ((1,), (2, 3), (3,)):
            name = f"{kind}_{axes[0]}"
            nodes.append(helper.make_node(kind, ["x", f"axes_{axes[0]}"], [name], keepdims=0))
    outputs = [name for node in nodes for name in node.output]
    model = written(nodes, {"ones": np.ones(40), "zeros": np.zeros(40)}, x, outputs)
    for axes in ((1,), (2, 3), (3,)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), f"axes_{axes[0]}"))
    got, want = results(model, x, tmp_path / "rows.onnx")
    for name in outputs:
        check(got[name], want[name], name)
