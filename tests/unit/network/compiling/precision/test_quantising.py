"""Quantised models, and models that are quantised when they are compiled."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from anatune.errors import RunError, SpaceError, WorkloadError
from anatune.network.compiling.costs import STAGES
from anatune.network.compiling.precision.quantising import read_calibration
from anatune.network.compiling.session import compile as compile_model
from anatune.network.compiling.targets import cpu
from anatune.network.graph.nodes import Input, TensorType
from anatune.network.graph.operators import PRODUCTS
from anatune.network.graph.passes.order import CPU
from tests.unit.network.graph.quantised import Model
from tests.wording import refuses

pytest.importorskip("tvm")


def network(path, seed=0):
    """Write a residual network whose tensors become 8-bit integers wherever onnxruntime's quantiser makes them so."""
    m = Model(1, 4, 8, 8, seed=seed)
    x = m.through("x", 0.03, 128)
    y = m.node("Conv", x, m.weight(16, 4, 3, 3, axis=0), m.known(m.random.standard_normal(16).astype(np.float32)),
               pads=[1, 1, 1, 1])  # fmt: skip
    y = m.through(m.node("Relu", y), 0.05, 0)
    z = m.node("Conv", y, m.weight(16, 16, 1, 1, axis=0))
    z = m.through(m.node("Relu", m.node("Add", m.through(z, 0.05, 120), y)), 0.05, 0)
    z = m.through(m.node("MaxPool", z, kernel_shape=[2, 2], strides=[2, 2]), 0.05, 0)
    z = m.through(m.node("Flatten", m.node("GlobalAveragePool", z)), 0.03, 0)
    z = m.node("Gemm", z, m.weight(10, 16, axis=0), transB=1)
    onnx.save(m.model(m.through(z, 0.1, 128)), path)


@pytest.mark.parametrize("opset", [13, 20])
def test_a_quantised_network_is_compiled_to_products_of_integers(tmp_path, opset):
    network(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    model.opset_import[0].version = opset
    onnx.save(model, tmp_path / "model.onnx")
    summary = compile_model(tmp_path / "model.onnx", threads=1).summary
    assert [kernel.epilogue[-1] for kernel in summary.kernels] == ["requantize"] * 3
    assert all("uint8xint8" in kernel.workload for kernel in summary.kernels)
    assert summary.check.error <= 0.03
    assert summary.check.reference == "ONNX's reference evaluator in float64"


def test_a_wrong_zero_point_is_no_rounding(tmp_path, monkeypatch):
    network(tmp_path / "model.onnx")

    def moved(graph):
        product = next(node for node in graph.nodes() if node.op in PRODUCTS)
        assert product.attributes["output_zero_point"] == 0
        product.attributes["output_zero_point"] = 12
        return graph

    monkeypatch.setattr(cpu, "CPU", (*CPU, moved))
    with refuses(RunError):
        compile_model(tmp_path / "model.onnx", threads=1)


def plain(path):
    """Write a network of float32."""
    random = np.random.default_rng(3)
    weights = {
        "w": random.standard_normal((8, 3, 3, 3)), "b": random.standard_normal(8), "v": random.standard_normal((8, 5)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


@pytest.mark.slow
@pytest.mark.parametrize("percentile", [None, 99.9])
def test_a_network_is_quantised_by_what_it_computes(tmp_path, percentile):
    plain(tmp_path / "model.onnx")
    data = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=data)
    own = {"threads": 1, "precision": "int8", "percentile": percentile}
    told, check = [], percentile is None
    compiled = compile_model(
        tmp_path / "model.onnx", calibrate=tmp_path / "data.npz", check=check,
        on_estimate=lambda estimate: told.append(estimate.calibrate_s > 0), on_stage=told.append, **own,
    )  # fmt: skip
    assert told[:2] == [True, STAGES["calibrate"]]  # the estimate comes first, and once
    assert told.count(True) == 1
    assert (STAGES["check"] in told) == check
    assert [kernel.epilogue for kernel in compiled.summary.kernels] == [("scale", "bias", "requantize"), ("scale",)]
    assert [loss.layer for loss in compiled.summary.losses] == ["1 conv2d 1x8x8x8 float32", "2 matmul 1x5 float32"]
    assert all(30 < loss.signal_db < 60 for loss in compiled.summary.losses)
    want, got = (model(data[:1]) for model in (compile_model(tmp_path / "model.onnx", threads=1), compiled))
    assert 0 < np.abs(got - want).max() <= 0.03 * np.abs(want).max()
    report = " ".join(compiled.report().split())
    assert ("largest difference from the float32 model in 4 calls of the calibration data" in report) == check
    assert compiled.summary.check is None or 0 < compiled.summary.check.error < 0.05
    assert "quantised to 8 bits: signal-to-noise ratio of 2 layers' outputs, lowest: " in compiled.report().replace(
        "\n", " "
    )


X, IDS = Input("x", TensorType((2, 3), "float32")), Input("ids", TensorType((1, 4), "int64"))


def test_calibration_data_by_name_and_in_order(tmp_path):
    x, ids = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(8).reshape(2, 4)
    np.savez(tmp_path / "named.npz", ids=ids, x=x)
    np.savez(tmp_path / "listed.npz", x, ids)
    for given in (tmp_path / "named.npz", tmp_path / "listed.npz", [x, ids], {"ids": ids, "x": x}):
        parts = read_calibration(given, [X, IDS], "model")
        assert [[one.shape for one in part] for part in parts] == [[(2, 3), (1, 4)]] * 2
        np.testing.assert_array_equal(parts[1][0], x[2:])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (np.zeros((2, 4), np.float32), "calibrate: x has the shape 2x4, expected 2x3, or a multiple of that along the"),
        (np.zeros((3, 3), np.float32), "calibrate: x has the shape 3x3, expected 2x3"),
        (np.zeros((2, 3), np.int64), "calibrate: x is of int64, expected float32"),
        (np.full((2, 3), np.nan, np.float32), "calibrate: x has NaN or infinite numbers; leave such samples out"),
        ({"y": np.zeros((2, 3), np.float32)}, "calibrate has y, expected the inputs of model: x"),
        ([np.zeros((2, 3), np.float32)] * 2, "calibrate has 2 arrays, expected one for each input of model: x"),
        ("missing.npz", "calibrate: missing.npz cannot be read: "),
        (None, "compile: precision int8 needs calibrate, inputs of the model"),
    ],
)
def test_data_that_does_not_fit_is_one_line(data, told):
    with refuses(WorkloadError) as caught:
        read_calibration(data, [X], "model")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_quantised_is_named(tmp_path):
    plain(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / "model.onnx")
    own = {"threads": 1, "precision": "int8", "calibrate": np.zeros((2, 3, 8, 8), np.float32)}
    with refuses(SpaceError):
        compile_model(tmp_path / "model.onnx", **own)
    with refuses(SpaceError):
        compile_model(tmp_path / "model.onnx", np.zeros((2, 3, 8, 8), np.float32), fallback="onnxruntime", **own)


def test_arguments_that_do_not_fit_are_one_line(tmp_path):
    plain(tmp_path / "model.onnx")
    with refuses(SpaceError):
        compile_model(tmp_path / "model.onnx", precision="int7")
    with refuses(SpaceError):
        compile_model(tmp_path / "model.onnx", calibrate="data.npz")
    with refuses(SpaceError):
        compile_model(tmp_path / "model.onnx", precision="int8", percentile=3)
