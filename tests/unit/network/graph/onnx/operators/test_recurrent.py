"""Recurrent layers, against their equations in the standard."""

import numpy as np
import pytest
from scipy import special

from anatune.errors import WorkloadError
from anatune.network.graph import recurrent
from tests.unit.network.graph.onnx.evaluated import check, computed
from tests.wording import refuses

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 2, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def operands(op, directions=1, *, lengths=None, states=False, peepholes=False):
    rows = GATES[op] * HIDDEN
    result = [
        array(STEPS, BATCH, INPUTS), array(directions, rows, INPUTS), array(directions, rows, HIDDEN),
        array(directions, 2 * rows), None if lengths is None else np.array(lengths, np.int32),
    ]  # fmt: skip
    result += [array(directions, BATCH, HIDDEN, seed=1)] if states else [None]
    if op == "LSTM":
        result += [array(directions, BATCH, HIDDEN, seed=2)] if states else [None]
        result += [array(directions, 3 * HIDDEN)] if peepholes else [None]
    while result[-1] is None:
        result.pop()
    return result


def layer(op, x, w, r, b=None, lengths=None, first=None, cells=None, peepholes=None, *, attributes):
    """Return the states of all steps and the last ones, of a layer, sequence by sequence."""
    directions = {"bidirectional": [False, True], "reverse": [True]}.get(attributes.get("direction"), [False])
    everything = np.zeros((STEPS, len(directions), BATCH, HIDDEN))
    last = [np.zeros((len(directions), BATCH, HIDDEN)) for _ in range(2)]
    for d, is_turned in enumerate(directions):
        for n in range(BATCH):
            length = STEPS if lengths is None else lengths[n]
            h, c = (np.zeros(HIDDEN) if one is None else one[d, n] for one in (first, cells))
            p = np.zeros(3 * HIDDEN) if peepholes is None else peepholes[d]
            for t in range(length)[:: -1 if is_turned else 1]:
                h, c = step(op, x[t, n] @ w[d].T, h, c, r[d].T, np.split(b[d], 2), np.split(p, 3), attributes)
                everything[t, d, n] = h
            last[0][d, n], last[1][d, n] = h, c
    return [everything, *last[: 2 if op == "LSTM" else 1]]


def step(op, x, h, c, r, biases, peepholes, attributes):
    """Return the next state and cells."""
    sigmoid, clip = special.expit, attributes.get("clip")

    def cut(value):
        return np.clip(value, -clip, clip) if clip else value

    if op == "RNN":
        return np.tanh(cut(x + h @ r + sum(biases))), c
    (wx, rx), hidden = biases, HIDDEN
    if op == "GRU":
        both = x + wx
        inner = h @ r + rx
        z = sigmoid(cut(both[:hidden] + inner[:hidden]))
        reset = sigmoid(cut(both[hidden : 2 * hidden] + inner[hidden : 2 * hidden]))
        if attributes.get("linear_before_reset"):
            new = np.tanh(cut(both[2 * hidden :] + reset * inner[2 * hidden :]))
        else:
            new = np.tanh(cut(both[2 * hidden :] + (reset * h) @ r[:, 2 * hidden :] + rx[2 * hidden :]))
        return (1 - z) * new + z * h, c
    i, o, f, g = np.split(x + h @ r + wx + rx, 4)
    pi, po, pf = peepholes
    i = sigmoid(cut(i + pi * c))
    f = 1 - i if attributes.get("input_forget") else sigmoid(cut(f + pf * c))
    c = f * c + i * np.tanh(cut(g))
    return sigmoid(cut(o + po * c)) * np.tanh(cut(c)), c


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, [5, 2, 3]])
@pytest.mark.parametrize(
    ("op", "attributes", "more"),
    [
        ("RNN", {}, {}),
        ("RNN", {"clip": 0.5}, {"states": True}),
        ("GRU", {"linear_before_reset": 1}, {"states": True}),
        ("GRU", {"linear_before_reset": 0}, {}),
        ("LSTM", {}, {"states": True, "peepholes": True}),
        ("LSTM", {"input_forget": 1, "clip": 0.4}, {}),
    ],
)
def test_layers(op, attributes, more, lengths, direction):
    attributes = {"hidden_size": HIDDEN, "direction": direction, **attributes}
    given = operands(op, 2 if direction == "bidirectional" else 1, lengths=lengths, **more)
    want = [one.astype(np.float32) for one in layer(op, *given, attributes=attributes)]
    check(op, *given, want=want, outputs=len(want), **attributes)


def test_batches_may_come_first():
    x, *rest = operands("GRU", states=True)
    states, last = layer("GRU", x, *rest, attributes={})
    rest[-1] = rest[-1].swapaxes(0, 1)
    want = [states.transpose(2, 0, 1, 3).astype(np.float32), last.swapaxes(0, 1).astype(np.float32)]
    attributes = {"hidden_size": HIDDEN, "layout": 1}
    check("GRU", x.swapaxes(0, 1), *rest, want=want, outputs=2, **attributes)


def test_activations_have_numbers_of_their_own():
    x, w, r, b = operands("RNN", 2)
    attributes = {
        "hidden_size": HIDDEN, "direction": "bidirectional", "activations": ["Relu", "ScaledTanh"],
        "activation_alpha": [0.5], "activation_beta": [2.0],
    }  # fmt: skip
    _, (states, _) = computed("RNN", x, w, r, b, outputs=2, **attributes)
    position = x[0, 0] @ w[0].T + b[0].reshape(2, -1).sum(0)
    np.testing.assert_allclose(states[0, 0, 0], np.maximum(position, 0), rtol=1e-5, atol=1e-6)
    position = x[-1, 0] @ w[1].T + b[1].reshape(2, -1).sum(0)
    np.testing.assert_allclose(states[-1, 1, 0], 0.5 * np.tanh(2 * position), rtol=1e-5)
    for actual in ("HardSigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "Elu", "Softsign", "Softplus"):
        computed("RNN", x, w, r, b, **{**attributes, "activations": [actual, "Tanh"]})


def test_all_steps_are_one_operator():
    graph, _ = computed("LSTM", *operands("LSTM"), outputs=3, hidden_size=HIDDEN)
    ops = [node.op for node in graph.nodes()]
    assert (ops.count("matmul"), ops.count("recurrent")) == (1, 1)


def test_steps_of_other_activations_are_written_out_in_parts(monkeypatch):
    monkeypatch.setattr(recurrent, "_TOGETHER", 2)
    monkeypatch.setattr(recurrent, "_FUNCTIONS", ())
    given = operands("LSTM")
    want = [layer("LSTM", *given, attributes={})[0].astype(np.float32)]
    check("LSTM", *given, want=want, hidden_size=HIDDEN)


@pytest.mark.parametrize(
    ("changes", "attributes"),
    [
        ({0: np.zeros((2049, 1, INPUTS), np.float32)}, {"clip": 1.0}),
        ({0: np.zeros((0, 1, INPUTS), np.float32)}, {}),
        ({}, {"direction": "bidirectional"}),
        ({}, {"activations": ["Sine"]}),
        ({1: np.zeros((1, 3, INPUTS), np.float32)}, {}),
    ],
)
def test_what_is_refused(changes, attributes):
    given = [changes.get(place, one) for place, one in enumerate(operands("RNN"))]
    with refuses(WorkloadError):
        computed("RNN", *given, hidden_size=HIDDEN, **attributes)
