"""Sessions that several threads call: new sizes are compiled once; sessions are copied and pickled."""

import copy
import pickle
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")

from anatune.network.backends.onnx import InferenceSession  # noqa: E402  after the skips
from tests.concurrency import at_once  # noqa: E402

helper = onnx.helper


def network(nodes, inputs):
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32) * 2, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture
def session():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    return InferenceSession(network(nodes, {"x": (onnx.TensorProto.FLOAT, ["n", 4])}), threads=1)


def rows(count, seed):
    return np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)


def is_right(session, x):
    return np.abs(session.run(None, {"x": x})[0] - np.tanh(2 * x.astype(np.float64))).max() < 1e-5


def test_new_sizes_are_compiled_once_whoever_comes_first(session):
    compiled, compile_model = Counter(), session._compile

    def counted(model, examples):
        compiled[examples[0].shape] += 1
        return compile_model(model, examples)

    session._compile = counted
    assert all(
        map(all, at_once(lambda n: [is_right(session, rows(1 + call % 3, n * 60 + call)) for call in range(60)]))
    )
    assert compiled == {(1, 4): 1, (2, 4): 1, (3, 4): 1}


def test_models_that_go_while_others_are_called(session, monkeypatch):
    monkeypatch.setattr("anatune.network.backends.onnx._MOST_MODELS", 1)
    assert all(map(all, at_once(lambda n: [is_right(session, rows(1 + n % 2, n * 4 + call)) for call in range(4)], 3)))
    assert len(session._compiled) == 1


def test_values_that_sizes_depend_on_are_each_callers_own():
    inputs = {"x": (onnx.TensorProto.FLOAT, [4, 4]), "sizes": (onnx.TensorProto.INT64, [2])}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Reshape", ["a", "sizes"], ["y"])]
    session = InferenceSession(network(nodes, inputs), threads=1)
    shapes = [(2, 8), (16, 1), (8, 2)]

    def work(number):
        shape, x = shapes[number], rows(4, number)
        return [
            np.array_equal(session.run(None, {"x": x, "sizes": np.array(shape)})[0], (2 * x).reshape(shape))
            for _ in range(20)
        ]

    assert all(map(all, at_once(work, 3)))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda session: pickle.loads(pickle.dumps(session))])
def test_copies_run(session, how):
    assert is_right(session, rows(2, 0))
    other = how(session)
    assert len(other._compiled) == 1
    assert all(at_once(lambda number: is_right(other, rows(2 + number % 2, number))))
