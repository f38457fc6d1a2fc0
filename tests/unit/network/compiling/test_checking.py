"""Outputs that differ from the original's: it is said, and whose mistake it is."""

import msgspec
import numpy as np
import pytest

from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.text import workload_to_text
from anatune.errors import RunError
from anatune.network.compiling.checking import compare_outputs
from anatune.network.compiling.session import compile as compile_model
from anatune.network.compiling.targets import cpu
from anatune.network.graph.nodes import Constant, Node, rewrite_graph
from anatune.network.graph.operators import apply_operator
from anatune.network.graph.passes.order import CPU
from anatune.network.relax.frontends import ImportedModel
from tests.wording import refuses

pytest.importorskip("tvm")
pytest.importorskip("onnx")
onnx_models = pytest.importorskip("tests.unit.network.compiling.onnx_models")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def complaint(path):
    with refuses(RunError) as caught:
        compile_model(path, threads=1)
    return str(caught.value)


def test_a_broken_kernel_is_named_with_its_workload_and_schedule(path, monkeypatch):
    onnx_models.resnet18(path)
    good = cpu.model_kernel
    broken = []

    def model_kernel(name, schedule, threads, span=None):
        if name == "anatune_2_conv2d":
            attributes = schedule.workload.attribute
            assert attributes["epilogue"][-1] == "relu"
            other = CONSTRUCTORS["conv2d"](**{**attributes, "epilogue": (*attributes["epilogue"][:-1], "gelu")})
            broken.append(schedule)
            schedule = msgspec.structs.replace(schedule, workload=other)
        return good(name, schedule, threads)

    monkeypatch.setattr(cpu, "model_kernel", model_kernel)
    text = complaint(path)
    (schedule,) = broken
    assert f"the first operator that differs is anatune_2_conv2d, {workload_to_text(schedule.workload)}, " in text
    assert f"schedule {schedule.describe()} (operator " in text
    assert "from float64" in text


def test_a_broken_kernel_of_rows_is_named(path, monkeypatch):
    onnx_models.bert_base(path)
    good = cpu.write_unplanned

    def write_unplanned(graph, *given):
        for node in graph.nodes():
            if node.op == "anatune.softmax":
                node.attributes["scale"] *= 2
        made = good(graph, *given)
        for node in graph.nodes():
            if node.op == "anatune.softmax":
                node.attributes["scale"] /= 2
        return made

    monkeypatch.setattr(cpu, "write_unplanned", write_unplanned)
    assert "the first operator that differs is anatune_rows_0_softmax, anatune.softmax" in complaint(path)


@pytest.mark.slow
def test_a_pass_that_changes_the_model_is_not_blamed_on_a_kernel(path, monkeypatch):
    onnx_models.resnet18(path)

    def halved(graph):
        for node in graph.nodes():
            if node.op == "anatune.matmul":
                node.arguments = (node.arguments[0], Constant(node.arguments[1].array / 2), *node.arguments[2:])
        return graph

    monkeypatch.setattr(cpu, "CPU", (*CPU, halved))
    text = complaint(path)
    assert "each operator is right on its own operands (not checked: none)" in text
    assert "a pass of anatune over the graph changes the results" in text


@pytest.mark.slow
def test_what_tvm_imports_wrongly_is_blamed_on_it(path, monkeypatch):
    onnx_models.vgg16(path)
    good = ImportedModel.graph

    def negated(source, *sizes):
        graph = good(source)
        (output,) = graph.outputs
        graph.outputs = (Node("negative", (output,), output.type),)
        return graph

    monkeypatch.setattr(ImportedModel, "graph", negated)
    assert "without passes and planned kernels the model differs by 2" in complaint(path)


def test_originals_that_do_not_run_are_one_line(path, monkeypatch):
    onnx_models.vgg16(path)

    def refuse(*_):
        raise ValueError("no\nsuch thing")

    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.run", refuse)
    with refuses(RunError):
        compile_model(path, threads=1)
    assert compile_model(path, threads=1, check=False).summary.check is None


def test_an_original_without_float64_is_compared_as_it_is(path, monkeypatch):
    onnx_models.vgg16(path)

    def refuse(*_):
        raise TypeError("no float64")

    monkeypatch.setattr("anatune.network.relax.originals._evaluate_nodes", refuse)
    assert compile_model(path, threads=1).summary.check.reference == "ONNX's reference evaluator"


def test_wrong_outputs_are_found():
    want = [np.array([1.0, 2.0], np.float64), np.array([3])]
    assert compare_outputs([np.array([1.0, 2.0], np.float32), np.array([3])], want, ["a", "b"], "by hand").error == 0.0
    with refuses(RunError):
        compare_outputs([np.array([1.5, 2.0], np.float32), np.array([3])], want, ["a", "b"], "by hand")
    with refuses(RunError):
        compare_outputs([np.array([np.nan, 2.0], np.float32), np.array([3])], want, ["a", "b"], "by hand")
    with refuses(RunError):
        compare_outputs([np.array([1.0, 2.0], np.float32), np.array([4])], want, ["a", "b"], "by hand")


def test_half_precision_may_err_more():
    want = [np.array([1.0, 2.0])]
    assert compare_outputs([np.array([1.001, 2.0], np.float16)], want, ["a"], "by hand").tolerance == 1e-2
    with refuses(RunError):
        compare_outputs([np.array([1.001, 2.0], np.float32)], want, ["a"], "by hand")


def planted(monkeypatch, op, other):
    """Have compilation take one operator of elements for another one."""

    def broken(graph):
        return rewrite_graph(graph, lambda node: other(node) if node.op == op else node)

    monkeypatch.setattr(cpu, "CPU", (broken, *CPU))


def model_of_nodes(path, *nodes, constants=()):
    from onnx import TensorProto, helper, numpy_helper

    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(np.float32(number), name) for name, number in constants]
    graph = helper.make_graph([helper.make_node(*node) for node in nodes], "nodes", kinds[:1], kinds[1:], weights)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())


NORMALISED = [("Abs", ["x"], ["a"]), ("Max", ["a", "least"], ["b"]), ("Div", ["x", "b"], ["y"])]


def test_a_bound_that_vanishes_is_seen_at_zeros(path, monkeypatch):
    model_of_nodes(path, *NORMALISED, constants=[("least", 1e-12)])
    compile_model(path, threads=1)
    planted(monkeypatch, "maximum", lambda node: apply_operator("nn.relu", node.arguments[0]))
    with refuses(RunError):
        compile_model(path, threads=1)


def test_a_variance_of_equal_numbers_may_be_rounded(path):
    """It is 0 in the original and the square of a rounding error here."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)

    class Spread(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(32, 32)

        def forward(self, x):
            return self.layer(x).var((0, 1), unbiased=False)

    model = compile_model(Spread().eval(), torch.randn(2, 9, 32), threads=1)
    assert 0.0 < model(torch.zeros(2, 9, 32)).abs().max() < 1e-12


def test_what_float32_makes_infinite_is_so(path):
    """A power that leaves float32's range, a quotient of zeros, the root of what may be below zero."""
    for nodes in (
        [("Exp", ["x"], ["a"]), ("Exp", ["a"], ["y"])],
        [("Div", ["x", "x"], ["y"])],
        [("Sub", ["x", "least"], ["a"]), ("Sqrt", ["a"], ["y"])],
    ):
        model_of_nodes(path, *nodes, constants=[("least", 1e-6)])
        compile_model(path, threads=1)
