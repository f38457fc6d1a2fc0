"""Compiled models called by several threads, in children of ``fork``, copied and pickled."""

import copy
import functools
import os
import pickle
import threading

import numpy as np
import pytest

import anatune
from tests.concurrency import at_once, is_true_in_child

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")

from tests.tiers import slow_from  # noqa: E402
from tests.unit.network.compiling.decoders import WORDS, decoder, weights_of  # noqa: E402  after the skip

CALLS = 150
IDS = np.random.default_rng(1).integers(0, WORDS, 17)
_random = np.random.default_rng(0)
W, V = ((_random.standard_normal(shape) / 8).astype(np.float32) for shape in ((64, 48), (48, 9)))


def network(rows, *more, outputs=("y",)):
    """Return ``y = tanh(x W) V`` as an ONNX model; `more`: nodes."""
    helper = onnx.helper
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
        *more,
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [rows, 64])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in (("w", W), ("v", V))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def wanted(x):
    return np.tanh(x.astype(np.float64) @ W) @ V


def views():
    """Return a model of which an output is its input, and one is another's view."""
    node = onnx.helper.make_node
    return network(8, node("Identity", ["x"], ["z"]), node("Transpose", ["y"], ["t"]), outputs=("y", "z", "t"))


def fallback():
    node = onnx.helper.make_node
    more = [node("SplitToSequence", ["y"], ["s"], axis=1), node("ConcatFromSequence", ["s"], ["z"], axis=1)]
    return network(8, *more, outputs=("z",))


MODELS = {
    "small inputs": lambda: anatune.compile(network(8), threads=1),
    "large inputs": lambda: anatune.compile(network(300), threads=1),
    "two threads": lambda: anatune.compile(network(8), threads=2),
    "sizes that vary": lambda: anatune.compile(network("n"), threads=1, sizes={"n": (1, 40)}),
    "views": lambda: anatune.compile(views(), threads=1),
    "parts of onnxruntime": lambda: anatune.compile(fallback(), threads=1, fallback="onnxruntime"),
}


@functools.cache
def model_of(name):
    if name == "parts of onnxruntime":
        pytest.importorskip("onnxruntime")
    return MODELS[name]()


@functools.cache
def with_state():
    return anatune.compile(decoder(weights_of()), threads=1, state="auto", sizes={"past": (0, 400)})


def inputs_of(name, seed):
    rows = {"large inputs": 300, "sizes that vary": 1 + seed % 40}.get(name, 8)
    return np.random.default_rng(seed).standard_normal((rows, 64)).astype(np.float32)


def is_right(model, x):
    found = model(x)
    first, *others = found if isinstance(found, tuple) else (found,)
    want = wanted(x)
    return all(
        np.abs(own - value).max() < 1e-4
        for own, value in zip((first, *others), (want, x, want.T)[: 1 + len(others)], strict=True)
    )


@pytest.mark.parametrize("name", MODELS)
def test_calls_of_several_threads_are_right(name):
    model = model_of(name)
    calls = CALLS if name != "parts of onnxruntime" else 40

    def work(number):
        return [is_right(model, inputs_of(name, number * calls + call)) for call in range(calls)]

    assert all(map(all, at_once(work)))


def test_outputs_stay_what_they_are_while_others_call():
    model = model_of("small inputs")

    def work(number):
        given = [inputs_of("small inputs", number * 50 + call) for call in range(50)]
        return [(x, model(x)) for x in given]

    for pairs in at_once(work):
        assert all(np.abs(found - wanted(x)).max() < 1e-4 for x, found in pairs)


@pytest.mark.slow
def test_a_state_takes_one_call_after_the_other():
    model = with_state()
    model.reset()
    at_once(lambda number: [model(IDS[None, number : number + 1]) for _ in range(40)])
    assert {array.shape[2] for array in model.state.values()} == {160}
    sizes = set()

    def work(number):
        for _ in range(20):
            if number == 0:
                model.reset()
            elif number == 1:
                sizes.update(array.shape[2] for array in model.state.values())
            else:
                model(IDS[None, :1])

    at_once(work)
    assert max(sizes) <= 200


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("name", ["small inputs", "two threads"])
def test_a_child_of_fork_runs_models_while_threads_of_its_parent_do(name):
    model, x, is_over = model_of(name), inputs_of(name, 3), threading.Event()
    assert is_right(model, x)

    def keep_calling(number):
        while not is_over.is_set():
            model(inputs_of(name, number))

    def fork(number):
        if number:
            return keep_calling(number)
        try:
            return [is_true_in_child(lambda: is_right(model, x)) for _ in range(3)]
        finally:
            is_over.set()

    assert is_true_in_child(lambda: is_right(model, x))
    assert all(at_once(fork, 3)[0])
    assert is_right(model, x)


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", slow_from(1, MODELS))
def test_copies_compute_the_same(name, how):
    model = model_of(name)
    x = inputs_of(name, 5)
    assert is_right(COPIES[how](model), x)


@pytest.mark.parametrize("how", COPIES)
def test_copies_begin_with_the_state_and_go_on_alone(how):
    model = with_state()
    model.reset()
    assert np.array_equal(COPIES[how](model)(IDS[None, :3]), model(IDS[None, :3]))
    other = COPIES[how](model)
    before = {name: array.copy() for name, array in model.state.items()}
    assert other(IDS[None, 3:4]).shape == (1, 1, WORDS)
    assert all(np.array_equal(before[name], array) for name, array in model.state.items())
    assert np.array_equal(other(IDS[None, 4:6]), (model(IDS[None, 3:4]), model(IDS[None, 4:6]))[1])


def test_a_copy_outlives_what_it_was_made_of():
    model = anatune.compile(network(3), threads=1)
    other, x = copy.deepcopy(model), np.ones((3, 64), np.float32)
    del model
    assert np.abs(other(x) - wanted(x)).max() < 1e-4
    assert np.array_equal(pickle.loads(pickle.dumps(other))(x), other(x))


def test_threads_that_compile_wait_for_each_other():
    def work(number):
        model = anatune.compile(network(2 + number), threads=1)
        return is_right(model, np.ones((2 + number, 64), np.float32))

    assert all(at_once(work))
