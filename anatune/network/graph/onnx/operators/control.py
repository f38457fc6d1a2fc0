"""Readers of branches and loops, and the operators that graphs do not support."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.network.graph.building import broadcast, concat, constant, reshape, slice_axes, where
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError, constant_array

__all__ = ["OUTSIDE", "READERS", "REFUSED"]

_MOST_STEPS = 1024
"""The most steps of a loop that is unrolled."""


def _if(call: OnnxCall) -> Sequence[Value]:
    """Return the results of a branch; if the condition is unknown, select from the results of both branches."""
    branches = [call.attributes["then_branch"], call.attributes["else_branch"]]
    condition = call[0]
    if not isinstance(condition, Constant):
        results = [call.read(branch, []) for branch in branches]
        if [value.type for value in results[0]] == [value.type for value in results[1]]:
            is_true = reshape(condition, ())
            return [where(is_true, yes, no) for yes, no in zip(*results, strict=True)]
    return call.read(branches[0 if call.constant_values(0, "the branch").all() else 1], [])


def _operands(call: OnnxCall, begin: int) -> list[Value]:
    return [call[index] for index in range(begin, len(call.inputs))]


def _stack(rows: Sequence[Value], axis: int = 0) -> Value:
    """Return tensors of one type stacked along a new dimension."""
    shape = list(tensor_type(rows[0]).shape)
    axis %= len(shape) + 1
    return concat([reshape(row, (*shape[:axis], 1, *shape[axis:])) for row in rows], axis)


def _empty_stack(kind: Value, axis: int = 0) -> Value:
    """Return an empty stack of tensors of a type along a new dimension."""
    shape, dtype = list(tensor_type(kind).shape), tensor_type(kind).dtype
    shape.insert(axis % (len(shape) + 1), 0)
    return broadcast(constant(0, dtype), shape)


def _slice_at(value: Value, axis: int, index: int) -> Value:
    """Return a slice of a tensor at an index along an axis, without that axis."""
    shape = list(tensor_type(value).shape)
    del shape[axis % len(tensor_type(value).shape)]
    return reshape(slice_axes(value, [axis], [index], [index + 1]), shape)


def _loop(call: OnnxCall) -> Sequence[Value]:
    """Return the final values of a loop, then the stacked results of its steps."""
    body = call.attributes["body"]
    count = None if call.get(0) is None else int(call.constant_values(0, "how often it runs").item())
    goes_on = call.get(1) is None or bool(call.constant_values(1, "whether it runs").all())
    values, rows, step = _operands(call, 2), list[list[Value]](), 0
    shape = () if call.get(1) is None else call.kind(1).shape

    def results() -> list[Value]:
        return call.read(body, [constant(step, "int64"), broadcast(constant(True, "bool"), shape), *values])

    while goes_on and (count is None or step < count):
        if step == _MOST_STEPS:
            raise RefusedError(f"runs more than {_MOST_STEPS} times, which is the limit for unrolling")
        condition, *results_of_step = results()
        rows.append(results_of_step[len(values) :])
        values = results_of_step[: len(values)]
        step += 1
        if count is None or step < count:
            goes_on = bool(constant_array(condition, "whether it goes on").all())
    if rows:
        return [*values, *(_stack(column) for column in zip(*rows, strict=True))]
    return [*values, *(_empty_stack(result) for result in results()[1 + len(values) :])]


def _scan(call: OnnxCall) -> Sequence[Value]:
    """Return the final states of a scan, then the stacked results of its steps; version 8 has batches with lengths."""
    attrs, count = call.attributes, int(call.attributes["num_scan_inputs"])
    values = _operands(call, 1 if call.opset < 9 else 0)
    states, inputs = values[: len(values) - count], values[len(values) - count :]
    outputs = len(attrs["body"].output) - len(states)
    if call.opset >= 9:
        axes = attrs.get("scan_input_axes") or [0] * count
        directions = attrs.get("scan_input_directions") or [0] * count
        out_axes = attrs.get("scan_output_axes") or [0] * outputs
        out_directions = attrs.get("scan_output_directions") or [0] * outputs
        steps = tensor_type(inputs[0]).shape[axes[0]]
        return _run_scan(call, states, inputs, [axes, directions, out_axes, out_directions], steps)
    batch, longest = tensor_type(inputs[0]).shape[:2]
    lengths = [longest] * batch if call.get(0) is None else call.constant_values(0, "the lengths").tolist()
    rows = []
    for sequence in range(batch):
        own_states, own_inputs = ([_slice_at(value, 0, sequence) for value in group] for group in (states, inputs))
        numbers = [[0] * count, attrs.get("directions") or [0] * count, [0] * outputs, [0] * outputs]
        results = list(_run_scan(call, own_states, own_inputs, numbers, lengths[sequence]))
        for number in range(len(states), len(results)):
            kind = tensor_type(results[number])
            zeros = broadcast(constant(0, kind.dtype), (longest - lengths[sequence], *kind.shape[1:]))
            results[number] = concat([results[number], zeros], 0)
        rows.append(results)
    return [_stack(column) for column in zip(*rows, strict=True)]


def _run_scan(
    call: OnnxCall, states: list[Value], inputs: list[Value], numbers: Sequence[Sequence[int]], steps: int
) -> Sequence[Value]:
    """Return the results of a scan of `steps` steps; `numbers` holds axes and directions of inputs, then of outputs."""
    axes, directions, out_axes, out_directions = numbers
    if steps > _MOST_STEPS:
        raise RefusedError(f"runs {steps} times, expected at most {_MOST_STEPS}, which is the limit for unrolling")
    count, rows = len(states), list[list[Value]]()
    for step in range(steps):
        parts = [
            _slice_at(value, axis, tensor_type(value).shape[axis] - 1 - step if back else step)
            for value, axis, back in zip(inputs, axes, directions, strict=True)
        ]
        results = call.read(call.attributes["body"], [*states, *parts])
        states = results[:count]
        rows.append(results[count:])
    if not rows:
        raise RefusedError("runs over no elements, expected at least one")
    columns = [list(column) for column in zip(*rows, strict=True)]
    directed = zip(columns, out_axes, out_directions, strict=True)
    return [*states, *(_stack(column[::-1] if back else column, axis) for column, axis, back in directed)]


def _identity(call: OnnxCall) -> Value:
    """Return an optional value that is present; graphs do not support missing ones."""
    return call[0]


_REASONS = {
    ("", "works on sequences, which anatune does not support; expected tensors"): (
        "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
        "SequenceLength", "SequenceMap", "SplitToSequence",
    ),
    ("", "works on text, which anatune does not support; expected numbers"): (
        "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    ),
    ("", "selects boxes by their values, so that sizes depend on data; select them outside of the model"): (
        "NonMaxSuppression",
    ),
    ("", "makes random numbers, which anatune does not support; pass them as an input of the model"): (
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    ),
    ("", "decodes image files, which anatune does not support; pass pixels to the model"): ("ImageDecoder",),
    ("ai.onnx.ml", "belongs to classic machine learning (ai.onnx.ml), which anatune does not support"): (
        "ArrayFeatureExtractor", "Binarizer", "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer",
        "Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder",
        "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor",
        "ZipMap",
    ),
}  # fmt: skip
"""(domain, reason) -> the operators that are refused for this reason."""
OUTSIDE = {(domain, name): reason for (domain, reason), names in _REASONS.items() for name in names}
"""(domain, operator) -> the reason why graphs do not support it."""


def _refuse(reason: str) -> Convert:
    def read(call: OnnxCall) -> Value:
        raise RefusedError(reason)

    return read


REFUSED = {key: _refuse(reason) for key, reason in OUTSIDE.items()}
READERS: dict[str, Convert] = {
    "If": _if,
    "Loop": _loop,
    "Optional": _identity,
    "OptionalGetElement": _identity,
    "OptionalHasElement": lambda call: constant(call.get(0) is not None, "bool"),
    "Scan": _scan,
}
