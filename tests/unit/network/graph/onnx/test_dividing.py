"""ONNX models divided into parts that can be read and parts of the nodes between them."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from tests.wording import refuses

onnx = pytest.importorskip("onnx")
helper = onnx.helper
node = helper.make_node


def model_of(nodes, outputs, weights=(), *, inputs=(("x", (1, 4, 8, 8)),)):
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in dict(weights).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def divided(model, **shapes):
    from anatune.network.graph.onnx import dividing

    def infer(item):
        if item.graph.node[0].domain:
            return item.graph.output
        return onnx.shape_inference.infer_shapes(item, data_prop=True).graph.output

    return dividing.divide(model, shapes or {"x": (1, 4, 8, 8)}, "it", infer)


def operators(parts):
    """Return the operators of each part, in brackets where they are left."""
    words = [" ".join(one.op_type for one in part.model.graph.node) for part in parts]
    return [f"[{word}]" if part.left else word for word, part in zip(words, parts, strict=True)]


KERNEL = {"k": np.ones((4, 4, 1, 1), np.float32)}


def through_a_sequence(x, y):
    """Return nodes that turn a tensor into a sequence and back: what comes out has sizes that nothing says."""
    return [
        node("SplitToSequence", [x], [f"{y}_parts"], axis=1),
        node("ConcatFromSequence", [f"{y}_parts"], [f"{y}_joined"], axis=1),
        node("Shape", [x], [f"{y}_sizes"]),
        node("Reshape", [f"{y}_joined", f"{y}_sizes"], [y]),
    ]


def test_a_model_that_can_be_read_is_not_divided():
    nodes = [node("Conv", ["x", "k"], ["y"]), node("Relu", ["y"], ["z"])]
    assert divided(model_of(nodes, ["z"], KERNEL)) == []
    nodes.append(node("SplitToSequence", ["z"], ["unused"]))
    (part,) = divided(model_of(nodes, ["z"], KERNEL))
    assert operators([part]) == ["Conv Relu"]
    assert (part.reads, part.makes, part.left) == (("x",), ("z",), ())


def test_nodes_around_those_that_are_left_are_two_parts():
    nodes = [node("Conv", ["x", "k"], ["c"], name="c1"), *through_a_sequence("c", "y"), node("Conv", ["y", "k"], ["z"])]
    parts = divided(model_of(nodes, ["z"], KERNEL))
    assert operators(parts) == ["Conv", "[SplitToSequence ConcatFromSequence Reshape]", "Conv"]
    assert [(part.reads, part.makes) for part in parts] == [(("x",), ("c",)), (("c",), ("y",)), (("y",), ("z",))]
    whys = dict(parts[1].left)
    assert whys["SplitToSequence (node y_parts)"].startswith("works on sequences")
    assert whys["Reshape (node y)"].startswith("reads text, sequences, or tensors whose sizes depend on data")
    assert "c_sizes" not in {one.name for one in parts[1].model.graph.input}  # the shape of c is known: it is a weight
    for part in parts:
        onnx.checker.check_model(onnx.shape_inference.infer_shapes(part.model))


def test_branches_need_no_more_parts_than_a_chain():
    nodes = [
        node("Conv", ["x", "k"], ["a"]), *through_a_sequence("a", "b"), node("Conv", ["b", "k"], ["c"]),
        node("Conv", ["x", "k"], ["d"]), *through_a_sequence("d", "e"), node("Conv", ["e", "k"], ["f"]),
        node("Add", ["c", "f"], ["z"]),
    ]  # fmt: skip
    parts = divided(model_of(nodes, ["z"], KERNEL))
    assert [bool(part.left) for part in parts] == [False, True, False]
    assert operators(parts)[2] == "Conv Conv Add"


def test_a_node_whose_result_is_needed_late_waits():
    nodes = [node("SequenceEmpty", [], ["none"]), node("Conv", ["x", "k"], ["c"])]
    nodes += [node("SequenceInsert", ["none", "c"], ["one"]), node("ConcatFromSequence", ["one"], ["z"], axis=0)]
    parts = divided(model_of(nodes, ["z"], KERNEL))
    assert operators(parts) == ["Conv", "[SequenceEmpty SequenceInsert ConcatFromSequence]"]


def test_what_stands_between_nodes_that_are_left_without_a_product_is_left():
    nodes = [*through_a_sequence("x", "a"), node("Relu", ["a"], ["b"]), *through_a_sequence("b", "c")]
    parts = divided(model_of([*nodes, node("Conv", ["c", "k"], ["z"])], ["z"], KERNEL))
    assert [bool(part.left) for part in parts] == [True, False]
    assert dict(parts[0].left)["Relu (node b)"].startswith("lies between such nodes")
    nodes[4] = node("Conv", ["a", "k"], ["b"])
    parts = divided(model_of([*nodes, node("Conv", ["c", "k"], ["z"])], ["z"], KERNEL))
    assert operators(parts)[1] == "Conv"


def test_what_is_known_is_known_in_later_parts():
    nodes = [
        node("Shape", ["x"], ["sizes"]), node("Slice", ["sizes", "from", "to"], ["rows"]),
        node("Concat", ["rows", "rest"], ["shape"], axis=0), *through_a_sequence("x", "y"),
        node("Reshape", ["y", "shape"], ["flat"]), node("MatMul", ["flat", "w"], ["z"]),
    ]  # fmt: skip
    weights = {"w": np.ones((256, 3), np.float32)}
    weights |= {name: np.array([value]) for name, value in (("from", 0), ("to", 1), ("rest", -1))}
    parts = divided(model_of(nodes, ["z"], weights))
    assert operators(parts) == ["[SplitToSequence ConcatFromSequence Reshape]", "Reshape MatMul"]
    constants = {one.name: onnx.numpy_helper.to_array(one).tolist() for one in parts[1].model.graph.initializer}
    assert constants["shape"] == [1, -1]


def test_sizes_that_depend_on_data_are_left_with_what_reads_them():
    nodes = [node("Conv", ["x", "k"], ["c"]), node("NonZero", ["c"], ["n"]), node("Cast", ["n"], ["z"], to=1)]
    parts = divided(model_of(nodes, ["z", "c"], KERNEL))
    assert operators(parts) == ["Conv", "[NonZero Cast]"]
    assert parts[0].makes == ("c",)
    assert dict(parts[1].left)["NonZero (node n)"].endswith("known only when the model runs")


def test_branches_see_what_is_around_them():
    def branch(name, *nodes):
        return helper.make_graph(list(nodes), name, [], [helper.make_empty_tensor_value_info(f"{name}_out")])

    yes = branch("yes", node("NonZero", ["c"], ["yes_out"]))
    no = branch("no", node("Cast", ["k"], ["no_out"], to=7))
    nodes = [
        node("Conv", ["x", "k"], ["c"]),
        node("ReduceMax", ["c"], ["most"], keepdims=0),
        node("Greater", ["most", "zero"], ["is"]),
        node("If", ["is"], ["z"], then_branch=yes, else_branch=no),
    ]
    parts = divided(model_of(nodes, ["z"], {**KERNEL, "zero": np.float32(0)}))
    assert operators(parts) == ["Conv ReduceMax Greater", "[If]"]
    assert set(parts[1].reads) == {"is", "c"}
    assert {one.name for one in parts[1].model.graph.initializer} == {"k"}


def test_an_operator_of_nobody_says_that_it_is_not_known():
    nodes = [node("Conv", ["x", "k"], ["c"]), node("Wavelet", ["c"], ["z"], domain="org.example")]
    (_, part) = divided(model_of(nodes, ["z"], KERNEL))
    assert part.left[0].why == "operators that anatune cannot read: org.example.Wavelet (node z)"


def test_a_damaged_model_is_refused():
    with refuses(WorkloadError):
        divided(model_of([node("Relu", ["gone"], ["z"])], ["z"]))
