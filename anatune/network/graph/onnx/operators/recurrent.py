"""Recurrent layers: one product for the inputs of all steps, then the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anatune.network.graph.building import (
    broadcast,
    cast,
    concat,
    constant,
    elementwise,
    matmul,
    permute,
    reshape,
    sliced,
    taken,
    where,
)
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.onnx.call import Attributes, Call, Convert, RefusedError
from anatune.network.graph.onnx.operators import elements
from anatune.network.graph.recurrent import GATES, Activation, Layer, States, recurrence, with_biases

__all__ = ["READERS"]

_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_NUMBERS: Mapping[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0), "Elu": (1.0, None), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, None),
    "Relu": (None, None), "ScaledTanh": (1.0, 1.0), "Sigmoid": (None, None), "Softplus": (None, None),
    "Softsign": (None, None), "Tanh": (None, None), "ThresholdedRelu": (1.0, None),
}  # fmt: skip
"""Activation -> alpha and beta where a layer gives none; None: it has no such number."""


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
    plain = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "nn.relu"}
    if word in plain and not clip:
        return plain[word]

    def compute(value: Value) -> Value:
        if clip:
            value = elementwise("minimum", elementwise("maximum", value, -clip), clip)
        if word == "Affine":
            return elementwise("add", elementwise("multiply", value, alpha or 0.0), beta or 0.0)
        if word == "ScaledTanh":
            return elementwise(
                "multiply", elementwise("tanh", elementwise("multiply", value, beta or 0.0)), alpha or 0.0
            )
        own = Call(word, call.opset, (value,), Attributes({"alpha": alpha, "beta": beta}), ("",), call.read)
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
    if not steps:
        raise RefusedError("has no steps")
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
    if own.get("hidden_size", hidden) != hidden:
        raise RefusedError(f"has hidden_size {own['hidden_size']} for weights of {hidden}, expected the same")
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
    """Return the states of all steps, (steps, batch, hidden), and the last ones, of one direction."""
    (steps, batch, inputs), dtype = tensor_type(data).shape, tensor_type(data).dtype
    mirrors = is_turned and lengths is not None
    if lengths is not None and is_turned:
        data = reshape(_turned(reshape(data, (steps * batch, inputs)), lengths, steps), (steps, batch, inputs))
    layer = _layer(call, data, direction, functions)._replace(lengths=lengths, is_turned=is_turned and not mirrors)
    zeros = broadcast(constant(0, dtype), (batch, layer.hidden))
    state: States = ()
    for place in (5, 6)[: 2 if call.op == "LSTM" else 1]:
        given = call.get(place)
        if given is not None and call.attributes.get("layout"):
            given = permute(given, (1, 0, 2))
        first = None if given is None else taken(cast(given, dtype), constant(direction, "int64"), 0)
        state = (*state, zeros if first is None else first)
    whole, state = recurrence(layer, state)
    if lengths is not None and is_turned:
        whole = _turned(reshape(whole, (steps * batch, layer.hidden)), lengths, steps)
    return whole, state


def _layer(call: Call, data: Value, direction: int, functions: list[Activation]) -> Layer:
    """Return one direction of a layer with its inputs, in the order of the data."""
    (steps, batch, inputs), dtype = tensor_type(data).shape, tensor_type(data).dtype
    hidden, gates = call.kind(2).shape[-1], GATES[call.op.lower()]
    weight, state = _part(call, 1, direction, dtype), _part(call, 2, direction, dtype)
    assert weight is not None
    assert state is not None
    if tensor_type(weight).shape != (gates * hidden, inputs) or tensor_type(state).shape != (gates * hidden, hidden):
        raise RefusedError(f"has weights {tensor_type(weight)} and {tensor_type(state)} for {inputs} inputs")
    product = matmul(reshape(data, (steps * batch, inputs)), permute(weight, (1, 0)))
    bias = _part(call, 3, direction, dtype)
    is_late = call.op == "GRU" and bool(call.attributes.get("linear_before_reset"))
    term = None
    if bias is not None:
        size = gates * hidden
        terms = (sliced(bias, [0], [first], [first + size]) for first in (0, size))
        product, term = with_biases(product, *terms, is_late=is_late)
    return Layer(
        call.op.lower(),
        reshape(product, (steps, batch, gates * hidden)),
        permute(state, (1, 0)),
        functions,
        term=term,
        peepholes=_part(call, 7, direction, dtype) if call.op == "LSTM" else None,
        is_late=is_late,
        joins_forget=bool(call.attributes.get("input_forget")),
    )


def _turned(rows: Value, lengths: Value, steps: int) -> Value:
    """Return the rows of sequences, (steps * batch, ...), each turned around within its length."""
    batch = tensor_type(lengths).shape[0]
    step = constant(np.arange(steps)[:, None], "int64")
    mirrored = elementwise("subtract", elementwise("subtract", reshape(lengths, (1, batch)), 1), step)
    place = where(elementwise("greater_equal", mirrored, 0), mirrored, broadcast(step, (steps, batch)))
    flat = elementwise("add", elementwise("multiply", place, batch), constant(np.arange(batch), "int64"))
    return taken(rows, reshape(flat, (steps * batch,)), 0)


READERS: dict[str, Convert] = dict.fromkeys(_DEFAULTS, _recurrent)
