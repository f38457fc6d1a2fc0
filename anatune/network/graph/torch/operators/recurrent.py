"""Readers of PyTorch's recurrent layers: stacked, in one or both directions."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.network.graph.building import concat, constant, matmul, permute, reshape, slice_axes, take_slices
from anatune.network.graph.nodes import Value, tensor_type
from anatune.network.graph.recurrent import GATES, RecurrentLayer, States, add_biases, recurrence
from anatune.network.graph.torch.call import Convert, TorchCall

__all__ = ["READERS"]

_ORDERS = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}
"""PyTorch's gates (reset, update, new; input, forget, cell, output) in the order of graphs."""


def _reorder_gates(kind: str, value: Value) -> Value:
    """Return weights or biases with the gates along the first dimension in the order of graphs."""
    size = tensor_type(value).shape[0] // GATES[kind]
    return concat([slice_axes(value, [0], [gate * size], [(gate + 1) * size]) for gate in _ORDERS[kind]], 0)


def _run_direction(
    kind: str, functions: Sequence[str], data: Value, parameters: Sequence[Value], state: States, *, is_turned: bool
) -> tuple[Value, States]:
    """Return the states of all steps and the last ones; data is (steps, batch, inputs)."""
    steps, batch, inputs = tensor_type(data).shape
    of_inputs, of_state, *biases = (_reorder_gates(kind, parameter) for parameter in parameters)
    product = matmul(reshape(data, (steps * batch, inputs)), permute(of_inputs, (1, 0)))
    term = None
    if biases:
        product, term = add_biases(product, biases[0], biases[1], is_late=kind == "gru")
    layer = RecurrentLayer(
        kind, reshape(product, (steps, batch, -1)), permute(of_state, (1, 0)), functions, term=term,
        is_late=kind == "gru", is_turned=is_turned,
    )  # fmt: skip
    return recurrence(layer, state)


def _read_layer(kind: str, *functions: str) -> Convert:
    def read(call: TorchCall) -> Sequence[Value]:
        data, initial = call["input"], call["hx"]
        initial = [initial] if isinstance(initial, Value) else initial
        if call["batch_first"]:
            data = permute(data, (1, 0, 2))
        parameters, directions = list(call["params"]), 2 if call["bidirectional"] else 1
        count = 4 if call["has_biases"] else 2
        ends: list[States] = []
        for _ in range(call["num_layers"]):
            outputs = []
            for direction in range(directions):
                state = tuple(take_slices(part, constant(len(ends), "int64"), 0) for part in initial)
                weights, parameters = parameters[:count], parameters[count:]
                states, last = _run_direction(kind, functions, data, weights, state, is_turned=direction == 1)
                outputs.append(states)
                ends.append(last)
            data = concat(outputs, 2)
        if call["batch_first"]:
            data = permute(data, (1, 0, 2))
        lasts = zip(*ends, strict=True)
        return [data, *(concat([reshape(part, (1, *tensor_type(part).shape)) for part in last], 0) for last in lasts)]

    return read


READERS: dict[str, Convert] = {
    "gru": _read_layer("gru", "sigmoid", "tanh"),
    "lstm": _read_layer("lstm", "sigmoid", "tanh", "tanh"),
    "rnn_relu": _read_layer("rnn", "nn.relu"),
    "rnn_tanh": _read_layer("rnn", "tanh"),
}
"""Operator without its overload -> reader."""
