"""ONNX models as graphs: what is around the operators."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import Constant, Node, TensorType
from anatune.network.graph.onnx import reading
from anatune.network.graph.onnx.call import UnknownValueError
from anatune.network.graph.onnx.reading import graph_of_onnx
from tests.wording import refuses

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
helper, numpy_helper = onnx.helper, onnx.numpy_helper


def model_of(*nodes, x=(2, 3), weights=None, opset=22, outputs=("y",), **more):
    """Return a model on the input ``x``; `more`: shapes of int64 inputs."""
    graph = helper.make_graph(
        list(nodes),
        "network",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x),
            *(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, shape) for name, shape in more.items()),
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def read(model, **shapes):
    shapes = {"x": (2, 3), **shapes}
    return graph_of_onnx(model, shapes, "network.onnx")


def test_a_node_becomes_what_graphs_have():
    graph = read(model_of(helper.make_node("Add", ["x", "w"], ["y"]), weights={"w": np.ones(3, np.float32)}))
    (node,) = graph.nodes()
    assert (node.op, node.type, graph.is_tuple) == ("add", TensorType((2, 3), "float32"), False)
    assert isinstance(node.arguments[1], Constant)


def test_what_is_known_is_computed_when_it_is_read():
    nodes = [helper.make_node("Add", ["w", "w"], ["twice"]), helper.make_node("Mul", ["x", "twice"], ["y"])]
    (node,) = read(model_of(*nodes, weights={"w": np.ones(3, np.float32)})).nodes()
    np.testing.assert_array_equal(node.arguments[1].array, np.full(3, 2, np.float32))


def test_operators_without_a_reader_are_spelt_by_their_bodies():
    labels = np.array([0, 2], np.int64)
    (output,) = read(
        model_of(helper.make_node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"]), weights={"t": labels})
    ).outputs
    assert output.type == TensorType((), "float32")


def test_functions_of_the_model_are_spelt():
    function = helper.make_function(
        "mine", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 22)]
    )
    model = model_of(helper.make_node("Double", ["x"], ["y"], domain="mine"))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    assert [node.op for node in read(model).nodes()] == ["add"]


def test_values_known_at_run_time_only_name_their_inputs():
    nodes = [
        helper.make_node("Add", ["k", "k"], ["twice"]),
        helper.make_node("TopK", ["x", "twice"], ["y", ""], name="best"),
    ]
    with refuses(UnknownValueError) as caught:
        read(model_of(*nodes, k=(1,)), k=(1,))
    assert caught.value.inputs == ("k",)


def test_inputs_that_are_weights_too_are_weights():
    model = model_of(helper.make_node("Neg", ["x"], ["y"]), weights={"x": np.ones((2, 3), np.float32)})
    assert read(model).inputs == ()


def test_sparse_weights():
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
    places = numpy_helper.from_array(np.array([[0, 1], [1, 2]], np.int64))
    model = model_of(helper.make_node("Neg", ["w"], ["y"]))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    (output,) = read(model).outputs
    np.testing.assert_array_equal(output.array, [[0, -5, 0], [0, 0, -7]])


RELU = helper.make_node("Relu", ["x"], ["y"])
BROKEN = {
    "an operator that nobody knows": model_of(helper.make_node("Frobnicate", ["x"], ["y"], name="middle")),
    "a domain that nobody knows": model_of(helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")),
    "a cycle": model_of(
        helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"]), outputs=("b",)
    ),
    "an output that nothing computes": model_of(RELU, outputs=("z",)),
    "operators of the future": model_of(RELU, opset=99),
    "sizes that contradict each other": model_of(
        helper.make_node("Add", ["x", "w"], ["y"]), weights={"w": np.ones(4, np.float32)}
    ),
    "an input too few": model_of(helper.make_node("Add", ["x"], ["y"])),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_models_are_one_line(name):
    with refuses(WorkloadError) as caught:
        read(BROKEN[name])
    assert "\n" not in str(caught.value)


_UNSORTED = """
<ir_version: 10, opset_import: ["" : 21]>
unsorted (float[3] x, bool c) => (float[3] y) {
  y = Add(chosen, last)
  chosen = If (c) <
    then_branch = then () => (float[3] t) { t = Mul(inner, inner)  inner = Exp(last) },
    else_branch = other () => (float[3] e) { e = Neg(last) }
  >
  last = Relu(first)
  first = Sin(x)
}"""


@pytest.mark.parametrize("seed", range(6))
def test_nodes_in_any_order_are_put_behind_those_that_they_read(seed):
    model = onnx.parser.parse_model(_UNSORTED)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[place] for place in np.random.default_rng(seed).permutation(len(nodes)))
    reading.sort_nodes(model.graph)
    onnx.checker.check_model(model)
    x = np.float32([-1, 0.5, 2])
    last = np.maximum(np.sin(x), 0)
    for chosen, want in ((True, last + np.exp(last) ** 2), (False, np.zeros(3))):
        (result,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x, "c": np.array(chosen)})
        np.testing.assert_allclose(result, want, rtol=1e-6)


def test_a_cycle_and_nodes_in_order_stay_as_they_stand():
    twice = [helper.make_node(op, [x], ["a"]) for op, x in (("Sin", "x"), ("Exp", "x"))]
    twice.insert(1, helper.make_node("Neg", ["a"], ["y"]))  # reads the first of two values of one name
    for model in (BROKEN["a cycle"], BROKEN["operators of the future"], model_of(*twice)):
        before = model.SerializeToString(deterministic=True)
        reading.sort_nodes(model.graph)
        assert model.SerializeToString(deterministic=True) == before


def test_a_tensor_of_gigabytes_in_a_file_of_bytes():
    model = model_of(helper.make_node("Add", ["x", "w"], ["y"]))
    model.graph.initializer.append(onnx.TensorProto(name="w", data_type=1, dims=[1 << 20, 1 << 12]))
    with refuses(WorkloadError):
        read(model)


def test_a_result_of_gigabytes():
    shape = np.array([1 << 20, 1 << 13], np.int64)
    model = model_of(helper.make_node("ConstantOfShape", ["s"], ["y"]), weights={"s": shape})
    with refuses(WorkloadError):
        read(model)


def test_older_models_are_converted():
    model = model_of(helper.make_node("Relu", ["x"], ["y"], consumed_inputs=[0]), opset=5)
    (node,) = read(model).nodes()
    assert isinstance(node, Node)
    assert node.op == "nn.relu"


def test_large_weights_are_not_copied_where_bodies_are_spelt():
    function = helper.make_function(
        "mine", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 22)]
    )
    weight = np.arange(3 << 12, dtype=np.float32).reshape(1 << 12, 3)
    model = model_of(
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Double", ["z"], ["y"], domain="mine"),
        weights={"w": weight.T, "sizes": np.array([1], np.int64)},
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    before = model.SerializeToString()
    stripped, (large,) = reading.inline_bodies(model, "it")
    assert stripped.ByteSize() < 4096
    assert large.name == "w"
    graph = read(model)
    assert [one.name for one in graph.inputs] == ["x"]
    np.testing.assert_array_equal(graph.nodes()[0].arguments[1].array, weight.T)
    assert model.SerializeToString() == before


def test_loops_in_loops_end(monkeypatch):
    monkeypatch.setattr(reading, "_MOST_NODES", 100)

    def loop(*nodes, count="m"):
        kinds = [helper.make_tensor_value_info(word, kind, []) for word, kind in (("i", 7), ("c", 9))]
        body = helper.make_graph(
            [*nodes, helper.make_node("Identity", ["c"], ["d"])],
            "body",
            kinds,
            [helper.make_empty_tensor_value_info(word) for word in ("d", "y")],
        )
        return helper.make_node("Loop", [count], ["y"], body=body)

    inner = loop(helper.make_node("Neg", ["x"], ["y"]))
    model = model_of(loop(inner), weights={"m": np.array(30, np.int64)})
    with refuses(WorkloadError):
        read(model)
