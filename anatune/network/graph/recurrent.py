"""Recurrent layers as readers of models write them: one operator for all steps, or the steps written out.

Gates are in ONNX's order: of an LSTM input, output, forget and cell, of a GRU update, reset and hidden.
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
    sliced,
    split,
    where,
)
from anatune.network.graph.nodes import Node, TensorType, Value, tensor_type
from anatune.network.graph.operators import RECURRENT

__all__ = ["GATES", "Activation", "Layer", "States", "layer_of", "recurrence", "with_biases", "written_out"]

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_MOST_STEPS = 2048
"""That are written out: each is operators of its own in the compiled model."""
_TOGETHER = 64
"""Steps whose inputs are cut apart, and whose states are put behind each other, at once."""
_FUNCTIONS = ("sigmoid", "tanh", "nn.relu")
"""Activations that one operator for all steps can have."""

Activation = str | Callable[[Value], Value]
"""An operator's name, or what makes more of a value."""
States = tuple[Value, ...]
"""The state, and an LSTM's cells, (batch, hidden)."""


class Layer(NamedTuple):
    """One direction of a layer.

    Attributes
    ----------
    kind : {"rnn", "gru", "lstm"}
    inputs : Value
        Inputs times weights, with all terms that are added before the state has a part, (steps, batch, gates * hidden).
    weight : Value
        Of the state, (hidden, gates * hidden).
    activations : sequence of str or callable
    term : Value, optional
        Of the state alone, (hidden,): of a GRU's last gate that is reset behind the product.
    peepholes : Value, optional
        (3 * hidden,).
    lengths : Value, optional
        Steps of each sequence, (batch,) int64: its state stays behind them, and its results are zeros.
    is_late : bool
        Whether a GRU resets what the state contributes, not the state.
    is_turned : bool
        Whether the last step comes first.
    joins_forget : bool
        Whether an LSTM forgets as much as it does not take in.
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
        """Units of the state."""
        return tensor_type(self.weight).shape[0]

    def gate(self, value: Value, first: int, count: int = 1) -> Value:
        """Return the columns of gates."""
        axis = len(tensor_type(value).shape) - 1
        return sliced(value, [axis], [first * self.hidden], [(first + count) * self.hidden])

    def activated(self, place: int, value: Value) -> Value:
        """Return an activation of a value."""
        function = self.activations[place]
        return elementwise(function, value) if isinstance(function, str) else function(value)


def recurrence(layer: Layer, state: States) -> tuple[Value, States]:
    """Return the states of all steps, (steps, batch, hidden), and the last ones."""
    steps, batch, _ = tensor_type(layer.inputs).shape
    dtype = tensor_type(layer.inputs).dtype
    if dtype != "float32" or any(one not in _FUNCTIONS for one in layer.activations) or not steps * batch:
        if steps > _MOST_STEPS:
            raise RefusedError(f"has {steps} steps, expected at most {_MOST_STEPS} of {dtype} and such activations")
        return written_out(layer, state)
    optional = {"term": layer.term, "peepholes": layer.peepholes, "lengths": layer.lengths}
    given = [one for one in optional.values() if one is not None]
    own = {
        "kind": layer.kind,
        "functions": tuple(str(one) for one in layer.activations),
        "is_late": layer.is_late,
        "is_turned": layer.is_turned,
        "joins_forget": layer.joins_forget,
        **{f"has_{name}": one is not None for name, one in optional.items()},
    }
    shape = (steps + len(state), batch, layer.hidden)
    whole = Node(RECURRENT, (layer.inputs, layer.weight, *state, *given), TensorType(shape, dtype), own)
    ends = [reshape(sliced(whole, [0], [steps + place], [steps + place + 1]), shape[1:]) for place in range(len(state))]
    return sliced(whole, [0], [0], [steps]), tuple(ends)


def with_biases(product: Value, of_inputs: Value, of_state: Value, *, is_late: bool) -> tuple[Value, Value | None]:
    """Return the product of the inputs with all terms that do not depend on the state, and the term that does.

    Parameters
    ----------
    product : Value
        (steps * batch, gates * hidden).
    of_inputs, of_state : Value
        (gates * hidden,).
    is_late : bool
        Whether the last gate's term of the state is reset with it.
    """
    term = None
    if is_late:
        size = tensor_type(of_state).shape[0]
        first = size // 3 * 2
        term = sliced(of_state, [0], [first], [size])
        none = broadcast(constant(0, tensor_type(of_state).dtype), (size - first,))
        of_state = concat([sliced(of_state, [0], [0], [first]), none], 0)
    return elementwise("add", product, elementwise("add", of_inputs, of_state)), term


def layer_of(node: Node) -> tuple[Layer, States]:
    """Return the layer that an operator for all steps is, and the states that it begins with."""
    own, (inputs, weight, *others) = dict(node.attributes), node.arguments
    state = tuple(others.pop(0) for _ in range(2 if own["kind"] == "lstm" else 1))
    more = {name: others.pop(0) for name in ("term", "peepholes", "lengths") if own.pop(f"has_{name}")}
    return Layer(own.pop("kind"), inputs, weight, own.pop("functions"), **more, **own), state


def written_out(layer: Layer, state: States) -> tuple[Value, States]:
    """Return what `recurrence` does with each step as operators of its own."""
    steps, batch, _ = tensor_type(layer.inputs).shape
    dtype = tensor_type(layer.inputs).dtype
    rows = _parts(reshape(layer.inputs, (steps * batch, -1)), steps, batch)
    found = []
    for place in range(steps):
        new = _STEPS[layer.kind](layer, rows[steps - 1 - place if layer.is_turned else place], state)
        shown = new[0]
        if layer.lengths is not None:
            is_inside = reshape(elementwise("greater", layer.lengths, place), (batch, 1))
            shown = where(is_inside, shown, constant(0, dtype))
            new = tuple(where(is_inside, one, old) for one, old in zip(new, state, strict=True))
        state = new
        found.append(shown)
    whole = _behind(found[::-1] if layer.is_turned else found)
    return reshape(whole, (steps, batch, layer.hidden)), state


def _rnn_step(layer: Layer, step: Value, state: States) -> States:
    return (layer.activated(0, elementwise("add", matmul(state[0], layer.weight), step)),)


def _gru_step(layer: Layer, step: Value, state: States) -> States:
    (before,) = state
    product = matmul(before, layer.weight if layer.is_late else layer.gate(layer.weight, 0, 2))
    gates = layer.activated(0, elementwise("add", layer.gate(product, 0, 2), layer.gate(step, 0, 2)))
    update, reset = layer.gate(gates, 0), layer.gate(gates, 1)
    if layer.is_late:
        inner = layer.gate(product, 2)
        inner = inner if layer.term is None else elementwise("add", inner, layer.term)
        inner = elementwise("multiply", reset, inner)
    else:
        inner = matmul(elementwise("multiply", reset, before), layer.gate(layer.weight, 2))
    new = layer.activated(1, elementwise("add", inner, layer.gate(step, 2)))
    rest = elementwise("subtract", constant(1, tensor_type(update).dtype), update)
    return (elementwise("add", elementwise("multiply", rest, new), elementwise("multiply", update, before)),)


def _lstm_step(layer: Layer, step: Value, state: States) -> States:
    before, cells = state
    gates = elementwise("add", matmul(before, layer.weight), step)

    def peeped(place: int, seen: Value, order: int) -> Value:
        gate = layer.gate(gates, place)
        if layer.peepholes is None:
            return gate
        return elementwise("add", gate, elementwise("multiply", seen, layer.gate(layer.peepholes, order)))

    taken_in = layer.activated(0, peeped(0, cells, 0))
    if layer.joins_forget:
        kept = elementwise("subtract", constant(1, tensor_type(taken_in).dtype), taken_in)
    else:
        kept = layer.activated(0, peeped(2, cells, 2))
    new = elementwise("multiply", taken_in, layer.activated(1, layer.gate(gates, 3)))
    cells = elementwise("add", elementwise("multiply", kept, cells), new)
    return elementwise("multiply", layer.activated(0, peeped(1, cells, 1)), layer.activated(2, cells)), cells


_STEPS = {"rnn": _rnn_step, "gru": _gru_step, "lstm": _lstm_step}


def _parts(rows: Value, steps: int, batch: int) -> list[Value]:
    """Return the rows of each step: parts of parts, which are cut by the same code."""
    sizes = [min(_TOGETHER, steps - first) for first in range(0, steps, _TOGETHER)]
    whole = split(rows, [size * batch for size in sizes], 0)
    return [one for size, part in zip(sizes, whole, strict=True) for one in split(part, [batch] * size, 0)]


def _behind(parts: Sequence[Value]) -> Value:
    """Return matrices behind each other: parts of parts, which are copied by the same code, hence not one step."""
    whole = [concat(parts[first : first + _TOGETHER], 0) for first in range(0, len(parts), _TOGETHER)]
    if len(whole) == 1:
        return whole[0]
    columns = tensor_type(parts[0]).shape[1]
    return reshape(concat([reshape(one, (1, -1, columns)) for one in whole], 1), (-1, columns))
