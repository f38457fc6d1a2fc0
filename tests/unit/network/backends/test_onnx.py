"""``anatune.network.backends.onnx``: sessions as onnxruntime's, and the backend that runs the standard's tests."""

import numpy as np
import pytest

from anatune.errors import RunError, WorkloadError
from tests.wording import refuses

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
helper = onnx.helper


def model_of(*nodes, inputs, outputs):
    kinds = {name: (onnx.TensorProto.INT64 if name == "sizes" else onnx.TensorProto.FLOAT) for name in inputs}
    graph = helper.make_graph(
        list(nodes),
        "network",
        [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(scope="module")
def network():
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Add", ["x", "y"], ["z"])]
    return model_of(*nodes, inputs={"x": ["n", 4]}, outputs=["y", "z"])


@pytest.fixture(scope="module")
def session(network, tmp_path_factory):
    from anatune.network.backends.onnx import InferenceSession

    path = tmp_path_factory.mktemp("session") / "network.onnx"
    onnx.save(network, str(path))
    return InferenceSession(path, threads=1)


def test_nodes_may_stand_in_any_order(network, tmp_path):
    """As in onnxruntime, whose converter to float16 writes such files; the reference evaluator checks them, too."""
    import anatune
    from anatune.network.backends.onnx import InferenceSession

    turned = onnx.ModelProto()
    turned.CopyFrom(network)
    del turned.graph.node[:]
    turned.graph.node.extend(reversed(network.graph.node))
    onnx.save(turned, tmp_path / "turned.onnx")
    x = np.float32([[-1, 2, 3, -4]])
    compiled = anatune.compile(tmp_path / "turned.onnx", [x], threads=1)
    for given in (tmp_path / "turned.onnx", turned.SerializeToString(), turned):
        for found in (InferenceSession(given, threads=1).run(None, {"x": x}), compiled(x)):
            np.testing.assert_array_equal(found[1], x + np.maximum(x, 0))


def test_a_session_runs_for_each_size(session):
    for rows in (2, 3, 2):
        x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
        y, z = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.maximum(x, 0))
        np.testing.assert_array_equal(z, x + np.maximum(x, 0))
        (only,) = session.run(["z"], {"x": x})
        np.testing.assert_array_equal(only, z)
    assert len(session._compiled) == 2


def test_a_session_says_what_it_takes_and_returns(session):
    assert [tuple(one) for one in session.get_inputs()] == [("x", ["n", 4], "tensor(float)")]
    assert [one.name for one in session.get_outputs()] == ["y", "z"]


@pytest.mark.parametrize(
    ("names", "feed", "error"),
    [
        (["w"], {"x": np.zeros((1, 4), np.float32)}, RunError),
        (None, {}, RunError),
        (None, {"x": np.zeros((1, 4))}, RunError),
        (None, {"x": np.zeros((1, 5, 4, 4), np.float32)}, RunError),
    ],
)
def test_wrong_calls_are_one_line(session, names, feed, error):
    with refuses(error):
        session.run(names, feed)


def test_values_that_sizes_depend_on_are_compiled_for():
    from anatune.network.backends.onnx import InferenceSession

    model = model_of(
        helper.make_node("Reshape", ["x", "sizes"], ["y"]), inputs={"x": [2, 6], "sizes": [2]}, outputs=["y"]
    )
    session, x = InferenceSession(model.SerializeToString(), threads=1), np.arange(12, dtype=np.float32).reshape(2, 6)
    for sizes in ([3, 4], [4, 3], [3, 4]):
        (y,) = session.run(None, {"x": x, "sizes": np.array(sizes, np.int64)})
        np.testing.assert_array_equal(y, x.reshape(sizes))
    assert len(session._compiled) == 2


def test_what_is_no_model_is_one_line(tmp_path):
    from anatune.network.backends.onnx import InferenceSession

    with refuses(WorkloadError):
        InferenceSession(b"no model!")
    with refuses(WorkloadError):
        InferenceSession(tmp_path / "nowhere.onnx")


def test_the_backend_runs_nodes_and_models(network):
    from anatune.network.backends.onnx import Backend

    x = np.array([[-1, 0, 1, 2]], np.float32)
    (found,) = Backend.run_node(helper.make_node("Neg", ["x"], ["y"]), [x])
    np.testing.assert_array_equal(found, -x)
    np.testing.assert_array_equal(Backend.run_model(network, [x])[1], x + np.maximum(x, 0))
    assert Backend.supports_device("CPU:0")
    assert not Backend.supports_device("CUDA")
    with refuses(WorkloadError):
        Backend.prepare(network, "CUDA")


def test_an_input_may_be_of_any_number_of_dimensions():
    from anatune.network.backends.onnx import InferenceSession

    model = model_of(helper.make_node("Neg", ["x"], ["y"]), inputs={"x": None}, outputs=["y"])
    session, x = InferenceSession(model, threads=1), np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x)
    with refuses(RunError):
        session.run(None, {"x": 1.0})
