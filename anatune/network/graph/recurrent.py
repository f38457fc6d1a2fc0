"""Recurrent layers for the readers of networks: one operator for all steps, or unrolled steps.

Gates are in ONNX's order: input, output, forget, cell for LSTM; update, reset, hidden for GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from anatune.network.graph.building import (
    RefusedError,
    broadcast,
    concat,
    constant,
    elementwise,
    matmul,
    reshape,
    slice_axes,
    split,
    where,
)
from anatune.network.graph.nodes import Node, TensorType, Value, tensor_type
from anatune.network.graph.operators import RECURRENT

__all__ = ["GATES", "Activation", "RecurrentLayer", "States", "add_biases", "layer_of", "recurrence", "unroll"]

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_MOST_STEPS = 2048
"""The most steps that are unrolled; each of them becomes operators in the compiled network."""
_TOGETHER = 64
"""The number of steps that are split from the inputs, and concatenated to the outputs, by one operator."""
_FUNCTIONS = ("sigmoid", "tanh", "nn.relu")
"""Activations that the operator for all steps supports."""

Activation = str | Callable[[Value], Value]
"""The name of an operator, or a function that builds nodes."""
States = tuple[Value, ...]
"""The state, and for an LSTM its cells; each (batch, hidden)."""


class RecurrentLayer(NamedTuple):
    """A recurrent layer in one direction.

    Attributes
    ----------
    kind : {"rnn", "gru", "lstm"}
    inputs : Value
        The inputs times their weights plus all terms that do not depend on the state, (steps, batch, gates * hidden).
    weight : Value
        The weights of the state, (hidden, gates * hidden).
    activations : sequence of str or callable
    term : Value, optional
        The bias of the state's part of a GRU's last gate, (hidden,), if the gate is reset after the product.
    peepholes : Value, optional
        Peephole weights of an LSTM, (3 * hidden,).
    lengths : Value, optional
        Steps of each sequence, (batch,) int64. After its last step a sequence keeps its state and returns zeros.
    is_late : bool
        Whether a GRU resets the product of the state instead of the state.
    is_turned : bool
        Whether the steps run in reverse order.
    joins_forget : bool
        Whether the forget gate of an LSTM is one minus the input gate.
    """

    kind: str
    inputs: Value
    weight: Value
    activations: Sequence[Activation]
    term: Value | None = None
    peepholes: Value | None = None
    lengths: Value | None = None
    is_late: bool = False
    is_turned: bool = False
    joins_forget: bool = False

    @property
    def hidden(self) -> int:
        """The number of units of the state."""
        return tensor_type(self.weight).shape[0]

    def gate(self, value: Value, first: int, count: int = 1) -> Value:
        """Return the columns of some gates."""
        axis = len(tensor_type(value).shape) - 1
        return slice_axes(value, [axis], [first * self.hidden], [(first + count) * self.hidden])

    def activate(self, index: int, value: Value) -> Value:
        """Return an activation applied to a value."""
        function = self.activations[index]
        return elementwise(function, value) if isinstance(function, str) else function(value)


def recurrence(layer: RecurrentLayer, state: States) -> tuple[Value, States]:
    """Return the states of all steps, (steps, batch, hidden), and the last states."""
    steps, batch, _ = tensor_type(layer.inputs).shape
    dtype = tensor_type(layer.inputs).dtype
    if dtype != "float32" or any(operand not in _FUNCTIONS for operand in layer.activations) or not steps * batch:
        if steps > _MOST_STEPS:
            raise RefusedError(f"has {steps} steps, expected at most {_MOST_STEPS} of {dtype} with these activations")
        return unroll(layer, state)
    optional = {"term": layer.term, "peepholes": layer.peepholes, "lengths": layer.lengths}
    options = [operand for operand in optional.values() if operand is not None]
    attrs = {
        "kind": layer.kind,
        "functions": tuple(str(operand) for operand in layer.activations),
        "is_late": layer.is_late,
        "is_turned": layer.is_turned,
        "joins_forget": layer.joins_forget,
        **{f"has_{name}": operand is not None for name, operand in optional.items()},
    }
    shape = (steps + len(state), batch, layer.hidden)
    whole = Node(RECURRENT, (layer.inputs, layer.weight, *state, *options), TensorType(shape, dtype), attrs)
    ends = [
        reshape(slice_axes(whole, [0], [steps + index], [steps + index + 1]), shape[1:]) for index in range(len(state))
    ]
    return slice_axes(whole, [0], [0], [steps]), tuple(ends)


def add_biases(product: Value, of_inputs: Value, of_state: Value, *, is_late: bool) -> tuple[Value, Value | None]:
    """Return the product of the inputs plus all terms that do not depend on the state, and the other term.

    Parameters
    ----------
    product : Value
        (steps * batch, gates * hidden).
    of_inputs, of_state : Value
        (gates * hidden,).
    is_late : bool
        Whether the state's bias of the last gate is reset as well, so that it is returned separately.
    """
    term = None
    if is_late:
        size = tensor_type(of_state).shape[0]
        first = size // 3 * 2
        term = slice_axes(of_state, [0], [first], [size])
        none = broadcast(constant(0, tensor_type(of_state).dtype), (size - first,))
        of_state = concat([slice_axes(of_state, [0], [0], [first]), none], 0)
    return elementwise("add", product, elementwise("add", of_inputs, of_state)), term


def layer_of(node: Node) -> tuple[RecurrentLayer, States]:
    """Return the layer and the initial states of an operator for all steps."""
    attributes, (inputs, weight, *others) = dict(node.attributes), node.arguments
    state = tuple(others.pop(0) for _ in range(2 if attributes["kind"] == "lstm" else 1))
    optional = {name: others.pop(0) for name in ("term", "peepholes", "lengths") if attributes.pop(f"has_{name}")}
    return RecurrentLayer(
        attributes.pop("kind"), inputs, weight, attributes.pop("functions"), **optional, **attributes
    ), state


def unroll(layer: RecurrentLayer, state: States) -> tuple[Value, States]:
    """Return the result of `recurrence` with operators for each step."""
    steps, batch, _ = tensor_type(layer.inputs).shape
    dtype = tensor_type(layer.inputs).dtype
    rows = _split_steps(reshape(layer.inputs, (steps * batch, -1)), steps, batch)
    results = []
    for step in range(steps):
        new = _STEPS[layer.kind](layer, rows[steps - 1 - step if layer.is_turned else step], state)
        result = new[0]
        if layer.lengths is not None:
            is_inside = reshape(elementwise("greater", layer.lengths, step), (batch, 1))
            result = where(is_inside, result, constant(0, dtype))
            new = tuple(where(is_inside, new_state, old_state) for new_state, old_state in zip(new, state, strict=True))
        state = new
        results.append(result)
    whole = _concatenate_steps(results[::-1] if layer.is_turned else results)
    return reshape(whole, (steps, batch, layer.hidden)), state


def _rnn_step(layer: RecurrentLayer, step: Value, state: States) -> States:
    return (layer.activate(0, elementwise("add", matmul(state[0], layer.weight), step)),)


def _gru_step(layer: RecurrentLayer, step: Value, state: States) -> States:
    (before,) = state
    product = matmul(before, layer.weight if layer.is_late else layer.gate(layer.weight, 0, 2))
    gates = layer.activate(0, elementwise("add", layer.gate(product, 0, 2), layer.gate(step, 0, 2)))
    update, reset = layer.gate(gates, 0), layer.gate(gates, 1)
    if layer.is_late:
        inner = layer.gate(product, 2)
        inner = inner if layer.term is None else elementwise("add", inner, layer.term)
        inner = elementwise("multiply", reset, inner)
    else:
        inner = matmul(elementwise("multiply", reset, before), layer.gate(layer.weight, 2))
    new = layer.activate(1, elementwise("add", inner, layer.gate(step, 2)))
    complement = elementwise("subtract", constant(1, tensor_type(update).dtype), update)
    return (elementwise("add", elementwise("multiply", complement, new), elementwise("multiply", update, before)),)


def _lstm_step(layer: RecurrentLayer, step: Value, state: States) -> States:
    before, cells = state
    gates = elementwise("add", matmul(before, layer.weight), step)

    def peephole_gate(gate_index: int, cells_seen: Value, order: int) -> Value:
        gate = layer.gate(gates, gate_index)
        if layer.peepholes is None:
            return gate
        return elementwise("add", gate, elementwise("multiply", cells_seen, layer.gate(layer.peepholes, order)))

    input_gate = layer.activate(0, peephole_gate(0, cells, 0))
    if layer.joins_forget:
        forget_gate = elementwise("subtract", constant(1, tensor_type(input_gate).dtype), input_gate)
    else:
        forget_gate = layer.activate(0, peephole_gate(2, cells, 2))
    new = elementwise("multiply", input_gate, layer.activate(1, layer.gate(gates, 3)))
    cells = elementwise("add", elementwise("multiply", forget_gate, cells), new)
    return elementwise("multiply", layer.activate(0, peephole_gate(1, cells, 1)), layer.activate(2, cells)), cells


_STEPS = {"rnn": _rnn_step, "gru": _gru_step, "lstm": _lstm_step}


def _split_steps(rows: Value, steps: int, batch: int) -> list[Value]:
    """Return the rows of each step; splits are nested, so that groups of steps are split by the same code."""
    sizes = [min(_TOGETHER, steps - first) for first in range(0, steps, _TOGETHER)]
    whole = split(rows, [size * batch for size in sizes], 0)
    return [step_rows for size, part in zip(sizes, whole, strict=True) for step_rows in split(part, [batch] * size, 0)]


def _concatenate_steps(parts: Sequence[Value]) -> Value:
    """Return the concatenation of matrices; concatenations are nested, so that groups are copied by the same code."""
    whole = [concat(parts[first : first + _TOGETHER], 0) for first in range(0, len(parts), _TOGETHER)]
    if len(whole) == 1:
        return whole[0]
    columns = tensor_type(parts[0]).shape[1]
    return reshape(concat([reshape(part, (1, -1, columns)) for part in whole], 1), (-1, columns))
