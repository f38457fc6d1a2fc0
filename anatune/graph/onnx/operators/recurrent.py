"""Recurrent layers, all steps written out: one product for the inputs of all steps, then one for the state of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anatune.graph.building import (
    broadcast,
    cast,
    concat,
    constant,
    elementwise,
    matmul,
    permute,
    reshape,
    sliced,
    split,
    taken,
    where,
)
from anatune.graph.nodes import Constant, Value, tensor_type
from anatune.graph.onnx.call import Call, Convert, RefusedError
from anatune.graph.onnx.operators import elements

__all__ = ["READERS"]

_MOST_STEPS = 2048
"""Each is operators of its own in the compiled model."""
_TOGETHER = 64
"""Steps whose inputs are cut apart, and whose states are put behind each other, at once."""
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_NUMBERS: Mapping[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0), "Elu": (1.0, None), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, None),
    "Relu": (None, None), "ScaledTanh": (1.0, 1.0), "Sigmoid": (None, None), "Softplus": (None, None),
    "Softsign": (None, None), "Tanh": (None, None), "ThresholdedRelu": (1.0, None),
}  # fmt: skip
"""Activation -> alpha and beta where a layer gives none; None: it has no such number."""

Activation = Callable[[Value], Value]


class _Layer(NamedTuple):
    """One direction of a layer.

    Attributes
    ----------
    steps : list of Value
        Inputs times weights, with all terms that are added before the state has a part, (batch, gates * hidden) each.
    weight : Value
        Of the state, (hidden, gates * hidden).
    term : Value, optional
        Of the state alone, (hidden,): of a GRU's last gate that is reset behind the product.
    peepholes : Value, optional
        (3 * hidden,).
    activations : list of callable
    own : mapping
        Attributes.
    hidden : int
    """

    steps: list[Value]
    weight: Value
    term: Value | None
    peepholes: Value | None
    activations: list[Activation]
    own: Mapping[str, object]
    hidden: int

    def gate(self, value: Value, first: int, count: int = 1) -> Value:
        """Return the columns of gates."""
        axis = len(tensor_type(value).shape) - 1
        return sliced(value, [axis], [first * self.hidden], [(first + count) * self.hidden])


States = tuple[Value, ...]
"""The state, and an LSTM's cells."""


def _rnn_step(layer: _Layer, step: Value, state: States) -> States:
    return (layer.activations[0](elementwise("add", matmul(state[0], layer.weight), step)),)


def _gru_step(layer: _Layer, step: Value, state: States) -> States:
    """Return the next state; gates are update, reset, hidden."""
    first, second = layer.activations
    (before,) = state
    is_late = layer.term is not None
    product = matmul(before, layer.weight if is_late else layer.gate(layer.weight, 0, 2))
    gates = first(elementwise("add", layer.gate(product, 0, 2), layer.gate(step, 0, 2)))
    update, reset = layer.gate(gates, 0), layer.gate(gates, 1)
    if layer.term is not None:
        inner = elementwise("multiply", reset, elementwise("add", layer.gate(product, 2), layer.term))
    else:
        inner = matmul(elementwise("multiply", reset, before), layer.gate(layer.weight, 2))
    new = second(elementwise("add", inner, layer.gate(step, 2)))
    rest = elementwise("subtract", constant(1, tensor_type(update).dtype), update)
    return (elementwise("add", elementwise("multiply", rest, new), elementwise("multiply", update, before)),)


def _lstm_step(layer: _Layer, step: Value, state: States) -> States:
    """Return the next state and cells; gates are input, output, forget, cell."""
    first, second, third = layer.activations
    before, cells = state
    gates = elementwise("add", matmul(before, layer.weight), step)

    def peeped(place: int, seen: Value, order: int) -> Value:
        gate = layer.gate(gates, place)
        if layer.peepholes is None:
            return gate
        return elementwise("add", gate, elementwise("multiply", seen, layer.gate(layer.peepholes, order)))

    taken_in = first(peeped(0, cells, 0))
    if layer.own.get("input_forget"):
        kept = elementwise("subtract", constant(1, tensor_type(taken_in).dtype), taken_in)
    else:
        kept = first(peeped(2, cells, 2))
    new = elementwise("multiply", taken_in, second(layer.gate(gates, 3)))
    cells = elementwise("add", elementwise("multiply", kept, cells), new)
    return elementwise("multiply", first(peeped(1, cells, 1)), third(cells)), cells


_STEPS = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}


def _activations(call: Call, directions: int) -> list[list[Activation]]:
    """Return the functions of each direction; numbers are given in order to those that have some."""
    default = _DEFAULTS[call.op]
    names = call.attributes.get("activations") or list(default) * directions
    given = [list(call.attributes.get(f"activation_{word}") or ()) for word in ("alpha", "beta")]
    known = {name.lower(): name for name in _NUMBERS}
    clip = float(call.attributes.get("clip") or 0.0)
    found = []
    for name in names[: len(default) * directions]:
        if name.lower() not in known:
            raise RefusedError(f"has the activation {name}, expected some of {', '.join(_NUMBERS)}")
        word = known[name.lower()]
        numbers = [
            None if own is None else float(more.pop(0)) if more else own
            for own, more in zip(_NUMBERS[word], given, strict=True)
        ]
        found.append(_activation(call, word, numbers, clip))
    if len(found) < len(default) * directions:
        raise RefusedError(f"has {len(found)} activations, expected {len(default)} for each direction")
    return [found[place * len(default) : (place + 1) * len(default)] for place in range(directions)]


def _activation(call: Call, word: str, numbers: Sequence[float | None], clip: float) -> Activation:
    """Return a function; what it is given is cut off at `clip` where that is not 0."""
    alpha, beta = numbers

    def compute(value: Value) -> Value:
        if clip:
            value = elementwise("minimum", elementwise("maximum", value, -clip), clip)
        if word == "Affine":
            return elementwise("add", elementwise("multiply", value, alpha or 0.0), beta or 0.0)
        if word == "ScaledTanh":
            return elementwise(
                "multiply", elementwise("tanh", elementwise("multiply", value, beta or 0.0)), alpha or 0.0
            )
        own = Call(word, call.opset, (value,), {"alpha": alpha, "beta": beta}, ("",), call.read)
        found = elements.READERS[word](own)
        assert isinstance(found, Value)
        return found

    return compute


def _part(call: Call, place: int, direction: int, dtype: str) -> Value | None:
    """Return an operand of one direction."""
    value = call.get(place)
    return None if value is None else taken(cast(value, dtype), constant(direction, "int64"), 0)


def _lengths(call: Call, steps: int) -> Value | None:
    """Return the lengths of sequences; None: all are whole."""
    lengths = call.get(4)
    if lengths is None or (isinstance(lengths, Constant) and (lengths.array >= steps).all()):
        return None
    return cast(lengths, "int64")


def _recurrent(call: Call) -> Sequence[Value]:
    """Return states of all steps, (steps, directions, batch, hidden), the last one of each direction, and its cells."""
    own = call.attributes
    data = call[0]
    if own.get("layout"):
        data = permute(data, (1, 0, 2))
    dtype = "float32" if call.kind().dtype in ("float16", "bfloat16") else call.kind().dtype
    data = cast(data, dtype)
    steps, batch, _ = tensor_type(data).shape
    if not 0 < steps <= _MOST_STEPS:
        raise RefusedError(f"has {steps:,} steps, expected 1 to {_MOST_STEPS:,}: all are written out")
    words = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    turns = words.get(own["direction"], [])
    count = call.kind(1).shape[0]
    if len(turns) != count:
        raise RefusedError(f"has the direction {own['direction']} and weights of {count} directions")
    lengths = _lengths(call, steps)
    found = [
        _direction(call, data, direction, is_turned, functions, lengths)
        for direction, (is_turned, functions) in enumerate(zip(turns, _activations(call, count), strict=True))
    ]
    hidden = call.kind(2).shape[-1]
    outputs: list[Value] = [concat([reshape(one[0], (steps, 1, batch, hidden)) for one in found], 1)]
    outputs += [
        concat([reshape(one[1][place], (1, batch, hidden)) for one in found], 0) for place in range(len(found[0][1]))
    ]
    if own.get("layout"):
        outputs = [permute(outputs[0], (2, 0, 1, 3)), *(permute(one, (1, 0, 2)) for one in outputs[1:])]
    return [cast(one, call.kind().dtype) for one in outputs][: len(call.outputs)]


def _direction(
    call: Call, data: Value, direction: int, is_turned: bool, functions: list[Activation], lengths: Value | None
) -> tuple[Value, States]:
    """Return the states of all steps, (steps * batch, hidden), and the last ones, of one direction."""
    (steps, batch, inputs), dtype = tensor_type(data).shape, tensor_type(data).dtype
    layer = _layer(call, data, direction, functions)
    if is_turned:
        layer = layer._replace(steps=layer.steps[::-1])
        if lengths is not None:
            turned = _turned(reshape(data, (steps * batch, inputs)), lengths, steps)
            layer = _layer(call, reshape(turned, (steps, batch, inputs)), direction, functions)
    zeros = broadcast(constant(0, dtype), (batch, layer.hidden))
    state: States = ()
    for place in (5, 6)[: 2 if call.op == "LSTM" else 1]:
        given = call.get(place)
        if given is not None and call.attributes.get("layout"):
            given = permute(given, (1, 0, 2))
        first = None if given is None else taken(cast(given, dtype), constant(direction, "int64"), 0)
        state = (*state, zeros if first is None else first)
    found = []
    for place, step in enumerate(layer.steps):
        new = _STEPS[call.op](layer, step, state)
        shown = new[0]
        if lengths is not None:
            is_inside = reshape(elementwise("greater", lengths, place), (batch, 1))
            shown = where(is_inside, shown, zeros)
            new = tuple(where(is_inside, one, old) for one, old in zip(new, state, strict=True))
        state = new
        found.append(shown)
    if is_turned and lengths is None:
        found = found[::-1]
    whole = _behind(found)
    return (_turned(whole, lengths, steps) if is_turned and lengths is not None else whole), state


def _layer(call: Call, data: Value, direction: int, functions: list[Activation]) -> _Layer:
    """Return one direction of a layer with its inputs, in the order of the data."""
    (steps, batch, inputs), dtype = tensor_type(data).shape, tensor_type(data).dtype
    hidden, gates = call.kind(2).shape[-1], _GATES[call.op]
    weight, state = _part(call, 1, direction, dtype), _part(call, 2, direction, dtype)
    assert weight is not None
    assert state is not None
    if tensor_type(weight).shape != (gates * hidden, inputs) or tensor_type(state).shape != (gates * hidden, hidden):
        raise RefusedError(f"has weights {tensor_type(weight)} and {tensor_type(state)} for {inputs} inputs")
    product = matmul(reshape(data, (steps * batch, inputs)), permute(weight, (1, 0)))
    bias = _part(call, 3, direction, dtype)
    is_late = call.op == "GRU" and bool(call.attributes.get("linear_before_reset"))
    term = broadcast(constant(0, dtype), (hidden,)) if is_late else None
    if bias is not None:
        size = gates * hidden
        of_inputs, of_state = sliced(bias, [0], [0], [size]), sliced(bias, [0], [size], [2 * size])
        if is_late:
            term = sliced(of_state, [0], [2 * hidden], [3 * hidden])
            none = broadcast(constant(0, dtype), (hidden,))
            of_state = concat([sliced(of_state, [0], [0], [2 * hidden]), none], 0)
        product = elementwise("add", product, elementwise("add", of_inputs, of_state))
    rows = _parts(product, steps, batch)
    peepholes = _part(call, 7, direction, dtype) if call.op == "LSTM" else None
    return _Layer(rows, permute(state, (1, 0)), term, peepholes, functions, call.attributes, hidden)


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


def _turned(rows: Value, lengths: Value, steps: int) -> Value:
    """Return the rows of sequences, (steps * batch, ...), each turned around within its length."""
    batch = tensor_type(lengths).shape[0]
    step = constant(np.arange(steps)[:, None], "int64")
    mirrored = elementwise("subtract", elementwise("subtract", reshape(lengths, (1, batch)), 1), step)
    place = where(elementwise("greater_equal", mirrored, 0), mirrored, broadcast(step, (steps, batch)))
    flat = elementwise("add", elementwise("multiply", place, batch), constant(np.arange(batch), "int64"))
    return taken(rows, reshape(flat, (steps * batch,)), 0)


READERS: dict[str, Convert] = dict.fromkeys(_GATES, _recurrent)
