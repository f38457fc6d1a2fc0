"""Models that hold state between calls: caches that grow, in place, and what is asked for wrongly."""

import functools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import anatune
from anatune.errors import RunError, WorkloadError
from anatune.network.compiling.memory import new_memory
from anatune.network.compiling.sizes.called import shape_at
from anatune.network.graph.summary import TensorSummary
from tests.unit.network.compiling.decoders import WORDS, decoder, logits_of, weights_of
from tests.wording import refuses

pytest.importorskip("tvm")

MOST = 24
IDS = np.random.default_rng(1).integers(0, WORDS, 17)


@functools.cache
def compiled():
    return anatune.compile(decoder(weights_of()), threads=1, state="auto", sizes={"past": (0, MOST)})


def in_steps(model, prompt=7):
    """Return the logits of a prompt and of one token after the other."""
    parts = [IDS[None, :prompt], *(IDS[None, place : place + 1] for place in range(prompt, len(IDS)))]
    return np.concatenate([model(part) for part in parts], axis=1)[0]


def error_of(got):
    want = logits_of(weights_of(), IDS)
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.slow
def test_a_decoder_runs_its_prompt_and_steps_from_one_model(tmp_path):
    model = compiled()
    model.reset()
    assert error_of(in_steps(model)) < 1e-5
    assert {array.shape for array in model.state.values()} == {(1, 2, len(IDS), 8)}
    model.reset()
    assert error_of(in_steps(model, prompt=1)) < 1e-5
    model.save(tmp_path / "saved")
    other = anatune.load(tmp_path / "saved")
    assert error_of(other(IDS[None])[0]) < 1e-5
    held = other.state
    model.reset()
    model(IDS[None, :4])
    model.state = held  # goes on where the other one is
    assert np.array_equal(model(IDS[None, :1]), other(IDS[None, :1]))


def test_caches_are_written_in_place():
    model = compiled()
    model.reset()
    model(IDS[None, :3])
    first = [tensor.data_ptr() for tensor in model._state.tensors]
    before = model.state
    model.benchmark(IDS[None, 3:4], runs=2)  # leaves the state as it is
    assert all(np.array_equal(before[name], array) for name, array in model.state.items())
    model(IDS[None, 3:4])
    assert [tensor.data_ptr() for tensor in model._state.tensors] == first
    assert all(np.array_equal(before[name], array[:, :, :3]) for name, array in model.state.items())


def test_state_that_does_not_fit():
    model = compiled()
    model.reset()
    model(IDS[None])
    with refuses(RunError):
        model(IDS[None, :8])
    with refuses(RunError):
        model.random_inputs(sizes={"past": 3})
    with refuses(RunError):
        model.state = {"a": np.zeros(3)}
    wrong = {**model.state, "past_key_values.1.key": np.zeros((1, 2, 3, 8), np.float32)}
    with refuses(RunError):
        model.state = wrong
    model.reset()
    assert model.state["past_key_values.0.key"].shape == (1, 2, 0, 8)


def small(*nodes, held=("tokens",), new=("all",)):
    """Return a model of x and past, whose outputs are y and present."""
    tensor = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"]), *nodes], "small",
        [tensor("x", shape=[4]), tensor("past", shape=held)], [tensor("y", shape=[4]), tensor("present", shape=new)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


SUM = small(helper.make_node("Add", ["x", "past"], ["present"]), held=[4], new=[4])


def test_state_of_one_size_is_the_result_of_the_call_before():
    model = anatune.compile(SUM, threads=1, state={"present": "past"})
    for times in (1, 2, 3):
        assert np.array_equal(model(np.full(4, 2, np.float32)), [2] * 4)
        assert np.array_equal(model.state["past"], [2 * times] * 4)
    assert [one.name for one in model.summary.inputs] == ["x"]
    assert "state: past 4" in model.report()


@pytest.mark.parametrize("size", [4, 6000])  # of 6,000 the input is taken where it lies
def test_state_is_not_memory_of_an_input(size):
    last = small(helper.make_node("Identity", ["x"], ["present"]), held=[size], new=[size])
    for value in (*last.graph.input, *last.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    model = anatune.compile(last, threads=1, state={"present": "past"})
    x = new_memory(4 * size).view(np.float32)
    for number in (1, 2, 3):
        x[...] = number
        model(x)
        x[...] = 7
        assert np.array_equal(model.state["past"], [number] * size)
    (kept,) = model._state.tensors
    model(x)
    assert kept.numpy()[0] == number


def test_sizes_are_sums_products_and_quotients():
    tensor = TensorSummary("x", "float32", ("rows", "-2 + 3*rows + (rows + 1)//2", 5))
    assert [shape_at(tensor, {"rows": rows}) for rows in (3, 4)] == [(3, 9, 5), (4, 12, 5)]
    for size in ("rows + 1", "rows ** 2", "f(rows)"):
        with refuses(RunError):
            shape_at(TensorSummary("x", "float32", (size,)), {"other": 1})


@pytest.mark.parametrize(
    ("model", "state", "message"),
    [
        (SUM, "auto", ""),
        (SUM, "all", "state is 'all', expected 'auto' or names of outputs and of their inputs"),
        (SUM, {"new": "past"}, "state: ONNX model has no output 'new', expected some of y, present"),
        (SUM, {"present": "old"}, "state: ONNX model has no input 'old', expected some of x, past"),
        (SUM, {"present": "past", "y": "past"}, "state: two outputs become the input past, expected one"),
        (SUM, {"present": "past", "y": "x"}, "state: ONNX model returns nothing beside its state"),
        (
            small(helper.make_node("Reshape", ["past", "s"], ["present"]), held=[4], new=[2, 2]),
            {"present": "past"},
            "state: ONNX model takes past as 4 float32 and returns 2x2 float32, expected the same, or more",
        ),
        (
            small(helper.make_node("Concat", ["past", "x"], ["present"], axis=0), held=[4], new=[8]),
            {"present": "past"},
            "what grows along axis 0 needs a size there that varies, from 0 on",
        ),
        (
            small(helper.make_node("Concat", ["x", "past"], ["present"], axis=0)),
            {"present": "past"},
            "is no concatenation of that and of what is new along axis 0",
        ),
    ],
)
def test_pairs_that_are_none(model, state, message):
    if "Reshape" in str(model):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 2]), "s"))
    if not message:
        assert anatune.network.relax.frontends.import_model(model, state=state).state[0].name == "past"
        return
    with refuses(WorkloadError) as caught:
        anatune.compile(model, threads=1, state=state)
    assert "\n" not in str(caught.value)


def test_state_begins_with_nothing():
    model = small(helper.make_node("Concat", ["past", "x"], ["present"], axis=0))
    with refuses(WorkloadError):
        anatune.compile(model, threads=1, state="auto", sizes={"tokens": "1..9"})
