"""Readers of recurrent layers: one product for the inputs of all steps, then the steps."""

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
    slice_axes,
    take_slices,
    where,
)
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.onnx.call import Attributes, Convert, OnnxCall, RefusedError
from anatune.network.graph.onnx.operators import elements
from anatune.network.graph.recurrent import GATES, Activation, RecurrentLayer, States, add_biases, recurrence

__all__ = ["READERS"]

_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_NUMBERS: Mapping[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0), "Elu": (1.0, None), "HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01, None),
    "Relu": (None, None), "ScaledTanh": (1.0, 1.0), "Sigmoid": (None, None), "Softplus": (None, None),
    "Softsign": (None, None), "Tanh": (None, None), "ThresholdedRelu": (1.0, None),
}  # fmt: skip
"""Activation -> default alpha and beta; None: it has no such parameter."""


def _activations(call: OnnxCall, directions: int) -> list[list[Activation]]:
    """Return the activations of each direction; parameters are assigned in order to those that have some."""
    default = _DEFAULTS[call.op]
    names = call.attributes.get("activations") or list(default) * directions
    parameters = [list(call.attributes.get(f"activation_{word}") or ()) for word in ("alpha", "beta")]
    names_by_lower = {name.lower(): name for name in _NUMBERS}
    clip = float(call.attributes.get("clip") or 0.0)
    activations = []
    for name in names[: len(default) * directions]:
        if name.lower() not in names_by_lower:
            raise RefusedError(f"has the activation {name}, expected one of {', '.join(_NUMBERS)}")
        word = names_by_lower[name.lower()]
        numbers = [
            None if default_number is None else float(numbers_left.pop(0)) if numbers_left else default_number
            for default_number, numbers_left in zip(_NUMBERS[word], parameters, strict=True)
        ]
        activations.append(_activation(call, word, numbers, clip))
    if len(activations) < len(default) * directions:
        raise RefusedError(f"has {len(activations)} activations, expected {len(default)} for each direction")
    return [activations[direction * len(default) : (direction + 1) * len(default)] for direction in range(directions)]


def _activation(call: OnnxCall, word: str, numbers: Sequence[float | None], clip: float) -> Activation:
    """Return an activation; its argument is clipped to `clip` if that is not 0."""
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
        inner = OnnxCall(word, call.opset, (value,), Attributes({"alpha": alpha, "beta": beta}), ("",), call.read)
        result = elements.READERS[word](inner)
        assert isinstance(result, Value)
        return result

    return compute


def _operand(call: OnnxCall, index: int, direction: int, dtype: str) -> Value | None:
    """Return an operand of one direction."""
    value = call.get(index)
    return None if value is None else take_slices(cast(value, dtype), constant(direction, "int64"), 0)


def _lengths(call: OnnxCall, steps: int) -> Value | None:
    """Return the lengths of sequences, or None if all sequences have all steps."""
    lengths = call.get(4)
    if lengths is None or (isinstance(lengths, Constant) and (lengths.array >= steps).all()):
        return None
    return cast(lengths, "int64")


def _recurrent(call: OnnxCall) -> Sequence[Value]:
    """Return the states of all steps, (steps, directions, batch, hidden), and the last states of each direction."""
    attrs = call.attributes
    data = call[0]
    if attrs.get("layout"):
        data = permute(data, (1, 0, 2))
    dtype = "float32" if call.kind().dtype in ("float16", "bfloat16") else call.kind().dtype
    data = cast(data, dtype)
    steps, batch, _ = tensor_type(data).shape
    if not steps:
        raise RefusedError("has no steps, expected at least one")
    words = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    directions = words.get(attrs["direction"], [])
    count = call.kind(1).shape[0]
    if len(directions) != count:
        raise RefusedError(f"has the direction {attrs['direction']}, but weights for {count} directions")
    lengths = _lengths(call, steps)
    results = [
        _direction(call, data, direction, is_turned, functions, lengths)
        for direction, (is_turned, functions) in enumerate(zip(directions, _activations(call, count), strict=True))
    ]
    hidden = call.kind(2).shape[-1]
    if attrs.get("hidden_size", hidden) != hidden:
        raise RefusedError(f"has hidden_size {attrs['hidden_size']}, but weights for {hidden} units")
    outputs: list[Value] = [concat([reshape(r[0], (steps, 1, batch, hidden)) for r in results], 1)]
    outputs += [
        concat([reshape(r[1][index], (1, batch, hidden)) for r in results], 0) for index in range(len(results[0][1]))
    ]
    if attrs.get("layout"):
        outputs = [permute(outputs[0], (2, 0, 1, 3)), *(permute(r, (1, 0, 2)) for r in outputs[1:])]
    return [cast(r, call.kind().dtype) for r in outputs][: len(call.outputs)]


def _direction(
    call: OnnxCall, data: Value, direction: int, is_turned: bool, functions: list[Activation], lengths: Value | None
) -> tuple[Value, States]:
    """Return the states of all steps of one direction, (steps, batch, hidden), and the last states."""
    (steps, batch, inputs), dtype = tensor_type(data).shape, tensor_type(data).dtype
    mirrors = is_turned and lengths is not None
    if lengths is not None and is_turned:
        data = reshape(_reverse(reshape(data, (steps * batch, inputs)), lengths, steps), (steps, batch, inputs))
    layer = _layer(call, data, direction, functions)._replace(lengths=lengths, is_turned=is_turned and not mirrors)
    zeros = broadcast(constant(0, dtype), (batch, layer.hidden))
    state: States = ()
    for index in (5, 6)[: 2 if call.op == "LSTM" else 1]:
        initial = call.get(index)
        if initial is not None and call.attributes.get("layout"):
            initial = permute(initial, (1, 0, 2))
        first = None if initial is None else take_slices(cast(initial, dtype), constant(direction, "int64"), 0)
        state = (*state, zeros if first is None else first)
    whole, state = recurrence(layer, state)
    if lengths is not None and is_turned:
        whole = _reverse(reshape(whole, (steps * batch, layer.hidden)), lengths, steps)
    return whole, state


def _layer(call: OnnxCall, data: Value, direction: int, functions: list[Activation]) -> RecurrentLayer:
    """Return one direction of a layer with its inputs, in the order of the data."""
    (steps, batch, inputs), dtype = tensor_type(data).shape, tensor_type(data).dtype
    hidden, gates = call.kind(2).shape[-1], GATES[call.op.lower()]
    weight, state = _operand(call, 1, direction, dtype), _operand(call, 2, direction, dtype)
    assert weight is not None
    assert state is not None
    if tensor_type(weight).shape != (gates * hidden, inputs) or tensor_type(state).shape != (gates * hidden, hidden):
        raise RefusedError(f"has weights {tensor_type(weight)} and {tensor_type(state)}, for {inputs} inputs")
    product = matmul(reshape(data, (steps * batch, inputs)), permute(weight, (1, 0)))
    bias = _operand(call, 3, direction, dtype)
    is_late = call.op == "GRU" and bool(call.attributes.get("linear_before_reset"))
    term = None
    if bias is not None:
        size = gates * hidden
        terms = (slice_axes(bias, [0], [first], [first + size]) for first in (0, size))
        product, term = add_biases(product, *terms, is_late=is_late)
    return RecurrentLayer(
        call.op.lower(),
        reshape(product, (steps, batch, gates * hidden)),
        permute(state, (1, 0)),
        functions,
        term=term,
        peepholes=_operand(call, 7, direction, dtype) if call.op == "LSTM" else None,
        is_late=is_late,
        joins_forget=bool(call.attributes.get("input_forget")),
    )


def _reverse(rows: Value, lengths: Value, steps: int) -> Value:
    """Return the rows of sequences, (steps * batch, ...), in reverse order within the length of each sequence."""
    batch = tensor_type(lengths).shape[0]
    step = constant(np.arange(steps)[:, None], "int64")
    mirrored = elementwise("subtract", elementwise("subtract", reshape(lengths, (1, batch)), 1), step)
    step_index = where(elementwise("greater_equal", mirrored, 0), mirrored, broadcast(step, (steps, batch)))
    flat = elementwise("add", elementwise("multiply", step_index, batch), constant(np.arange(batch), "int64"))
    return take_slices(rows, reshape(flat, (steps * batch,)), 0)


READERS: dict[str, Convert] = dict.fromkeys(_DEFAULTS, _recurrent)
