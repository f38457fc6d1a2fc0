"""PyTorch's recurrent layers: stacked, in one direction or both."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.network.graph.building import concat, constant, matmul, permute, reshape, sliced, taken
from anatune.network.graph.nodes import Value, tensor_type
from anatune.network.graph.recurrent import GATES, RecurrentLayer, States, add_biases, recurrence
from anatune.network.graph.torch.call import Call, Convert

__all__ = ["READERS"]

_ORDERS = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}
"""Where graphs' gates are among PyTorch's, which are reset, update, new and input, forget, cell, output."""


def _gates(kind: str, value: Value) -> Value:
    """Return weights or terms with their gates, of the first dimension, in the order of graphs."""
    size = tensor_type(value).shape[0] // GATES[kind]
    return concat([sliced(value, [0], [at * size], [(at + 1) * size]) for at in _ORDERS[kind]], 0)


def _direction(
    kind: str, functions: Sequence[str], data: Value, parameters: Sequence[Value], state: States, *, is_turned: bool
) -> tuple[Value, States]:
    """Return the states of all steps and the last ones; data: (steps, batch, inputs)."""
    steps, batch, inputs = tensor_type(data).shape
    of_inputs, of_state, *biases = (_gates(kind, one) for one in parameters)
    product = matmul(reshape(data, (steps * batch, inputs)), permute(of_inputs, (1, 0)))
    term = None
    if biases:
        product, term = add_biases(product, biases[0], biases[1], is_late=kind == "gru")
    layer = RecurrentLayer(
        kind, reshape(product, (steps, batch, -1)), permute(of_state, (1, 0)), functions, term=term,
        is_late=kind == "gru", is_turned=is_turned,
    )  # fmt: skip
    return recurrence(layer, state)


def _reader(kind: str, *functions: str) -> Convert:
    def read(call: Call) -> Sequence[Value]:
        data, given = call["input"], call["hx"]
        given = [given] if isinstance(given, Value) else given
        if call["batch_first"]:
            data = permute(data, (1, 0, 2))
        parameters, directions = list(call["params"]), 2 if call["bidirectional"] else 1
        count = 4 if call["has_biases"] else 2
        ends: list[States] = []
        for _ in range(call["num_layers"]):
            found = []
            for direction in range(directions):
                state = tuple(taken(one, constant(len(ends), "int64"), 0) for one in given)
                own, parameters = parameters[:count], parameters[count:]
                states, last = _direction(kind, functions, data, own, state, is_turned=direction == 1)
                found.append(states)
                ends.append(last)
            data = concat(found, 2)
        if call["batch_first"]:
            data = permute(data, (1, 0, 2))
        lasts = zip(*ends, strict=True)
        return [data, *(concat([reshape(one, (1, *tensor_type(one).shape)) for one in last], 0) for last in lasts)]

    return read


READERS: dict[str, Convert] = {
    "gru": _reader("gru", "sigmoid", "tanh"),
    "lstm": _reader("lstm", "sigmoid", "tanh", "tanh"),
    "rnn_relu": _reader("rnn", "nn.relu"),
    "rnn_tanh": _reader("rnn", "tanh"),
}
"""Operator without its overload -> what reads it."""
