"""Recurrent layers as kernels, beside their meaning in NumPy."""

import numpy as np
import pytest

from anatune.network.graph import building as b
from anatune.network.graph.meanings import recurrent
from anatune.network.graph.nodes import Graph, Input, TensorType
from anatune.network.graph.passes.recurrent import block_recurrent_weights, unroll_recurrent_layers
from anatune.network.graph.recurrent import GATES, RecurrentLayer, layer_of, recurrence, unroll
from tests.unit.network.relax.rest.test_loops import THREADS, host, run
from tests.wording import refuses

pytest.importorskip("tvm")


def layer(kind, steps, batch, hidden, *, lengths=False, peepholes=False, **options):
    """Return arrays of a layer, and what makes its results of inputs."""
    rng = np.random.default_rng(5)
    gates = GATES[kind]
    shapes = [
        (steps, batch, gates * hidden),
        (hidden, gates * hidden),
        *[(batch, hidden)] * (2 if kind == "lstm" else 1),
    ]
    shapes += [(hidden,)] * (kind == "gru" and options.get("is_late", False)) + [(3 * hidden,)] * peepholes
    arrays = [(rng.standard_normal(shape) / 2).astype(np.float32) for shape in shapes]
    if lengths:
        arrays.append(rng.integers(1, steps + 1, batch))

    def make(*values):
        inputs, weight, *others = values
        state = tuple(others.pop(0) for _ in range(2 if kind == "lstm" else 1))
        term = others.pop(0) if kind == "gru" and options.get("is_late") else None
        peeps = others.pop(0) if peepholes else None
        functions = {"rnn": ("nn.relu",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}[kind]
        built_node = RecurrentLayer(kind, inputs, weight, functions, term=term, peepholes=peeps,
                     lengths=others.pop(0) if lengths else None, **options)  # fmt: skip
        whole, ends = recurrence(built_node, state)
        return (whole, *ends)

    return arrays, make


def block_weights(graph):
    """Return a graph with the weights of this machine's kernels."""
    return block_recurrent_weights(graph, host().fp32_lanes)


CASES = {
    "lstm": ("lstm", 5, 1, 40, {}),
    "lstm_rows": ("lstm", 3, 7, 21, {"is_turned": True}),
    "lstm_peepholes": ("lstm", 3, 2, 5, {"peepholes": True, "joins_forget": True}),
    "lstm_lengths": ("lstm", 6, 4, 17, {"lengths": True}),
    "gru": ("gru", 4, 3, 33, {"is_late": True}),
    "gru_early": ("gru", 4, 3, 33, {}),
    "gru_lengths": ("gru", 5, 3, 9, {"lengths": True}),
    "rnn": ("rnn", 9, 13, 6, {"is_turned": True}),
    "rnn_rows_of_threads": ("rnn", 3, 37, 6, {}),
    "gru_rows_of_threads": ("gru", 3, 9, 20, {"lengths": True}),
}


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_what_numpy_does(case, threads, monkeypatch):
    kind, steps, batch, hidden, options = CASES[case]
    monkeypatch.setattr("anatune.network.kernels.recurrent._PARALLEL_FROM", 1)
    arrays, make = layer(kind, steps, batch, hidden, **options)
    result = run(make, *arrays, threads=threads, passes=block_weights)
    wanted = run_numpy(make, arrays)
    for actual, want in zip(result, wanted, strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-5, atol=2e-6)


def run_numpy(make, arrays):
    """Return the results in float64, by the meaning of the operator for all steps."""
    inputs = [Input(f"x{n}", TensorType(one.shape, one.dtype.name)) for n, one in enumerate(arrays)]
    outputs = make(*inputs)
    (node,) = [one for one in Graph(tuple(inputs), outputs, is_tuple=True).nodes() if one.op == "recurrent"]
    wide = [one.astype(np.float64) if one.dtype.kind == "f" else one for one in arrays]
    whole = recurrent(*wide, **node.attributes)
    steps = arrays[0].shape[0]
    return [whole[:steps], *whole[steps:]]


@pytest.mark.parametrize("case", CASES)
def test_steps_that_are_written_out_compute_the_same(case):
    kind, steps, batch, hidden, options = CASES[case]
    arrays, make = layer(kind, steps, batch, hidden, **options)
    constants = [b.constant(one, one.dtype.name) for one in arrays]
    outputs = make(*(Input(f"x{n}", TensorType(one.shape, one.dtype.name)) for n, one in enumerate(arrays)))
    (node,) = [one for one in Graph((), outputs, is_tuple=True).nodes() if one.op == "recurrent"]
    result = unroll(*layer_of(node.of(tuple(constants))))
    for actual, want in zip((result[0], *result[1]), run_numpy(make, arrays), strict=True):
        np.testing.assert_allclose(actual.array, want, rtol=1e-4, atol=2e-6)
    graph = unroll_recurrent_layers(Graph((), outputs, is_tuple=True))
    assert "recurrent" not in {one.op for one in graph.nodes()}


def test_many_steps_are_a_kernel_and_other_dtypes_are_refused():
    arrays, make = layer("rnn", 4000, 1, 3)
    assert len(run(make, *arrays, passes=block_weights)) == 2
    with refuses(b.RefusedError):
        make(*(b.constant(one, "float64") for one in arrays))
