"""Branches and loops, and the kinds of operators that graphs cannot say."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.network.graph.building import broadcast, concat, constant, reshape, sliced, where
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.onnx.call import Call, Convert, RefusedError, known_array

__all__ = ["OUTSIDE", "READERS", "REFUSED"]

_MOST_STEPS = 1024
"""Of a loop that is written out."""


def _if(call: Call) -> Sequence[Value]:
    """Return the results of a branch; of both, of which the condition chooses, where it is not known."""
    branches = [call.attributes["then_branch"], call.attributes["else_branch"]]
    condition = call[0]
    if not isinstance(condition, Constant):
        found = [call.read(branch, []) for branch in branches]
        if [value.type for value in found[0]] == [value.type for value in found[1]]:
            is_true = reshape(condition, ())
            return [where(is_true, yes, no) for yes, no in zip(*found, strict=True)]
    return call.read(branches[0 if call.known(0, "the branch").all() else 1], [])


def _operands(call: Call, begin: int) -> list[Value]:
    return [call[place] for place in range(begin, len(call.inputs))]


def _stacked(rows: Sequence[Value], axis: int = 0) -> Value:
    """Return tensors of one type behind each other along a new dimension."""
    shape = list(tensor_type(rows[0]).shape)
    axis %= len(shape) + 1
    return concat([reshape(row, (*shape[:axis], 1, *shape[axis:])) for row in rows], axis)


def _none(kind: Value, axis: int = 0) -> Value:
    """Return no tensors of a type along a new dimension."""
    shape, dtype = list(tensor_type(kind).shape), tensor_type(kind).dtype
    shape.insert(axis % (len(shape) + 1), 0)
    return broadcast(constant(0, dtype), shape)


def _part(value: Value, axis: int, place: int) -> Value:
    """Return a tensor without a dimension, at a place in that."""
    shape = list(tensor_type(value).shape)
    del shape[axis % len(tensor_type(value).shape)]
    return reshape(sliced(value, [axis], [place], [place + 1]), shape)


def _loop(call: Call) -> Sequence[Value]:
    """Return what a loop leaves: its values, then what each step yields, behind each other."""
    body = call.attributes["body"]
    count = None if call.get(0) is None else int(call.known(0, "how often it runs").item())
    goes_on = call.get(1) is None or bool(call.known(1, "whether it runs").all())
    values, rows, step = _operands(call, 2), list[list[Value]](), 0
    shape = () if call.get(1) is None else call.kind(1).shape

    def results() -> list[Value]:
        return call.read(body, [constant(step, "int64"), broadcast(constant(True, "bool"), shape), *values])

    while goes_on and (count is None or step < count):
        if step == _MOST_STEPS:
            raise RefusedError(f"runs more than {_MOST_STEPS} times, expected fewer")
        condition, *found = results()
        rows.append(found[len(values) :])
        values = found[: len(values)]
        step += 1
        if count is None or step < count:
            goes_on = bool(known_array(condition, "whether it goes on").all())
    if rows:
        return [*values, *(_stacked(column) for column in zip(*rows, strict=True))]
    return [*values, *(_none(one) for one in results()[1 + len(values) :])]


def _scan(call: Call) -> Sequence[Value]:
    """Return what a scan leaves: its states, then what each step yields; version 8 has batches and lengths of them."""
    own, scanned = call.attributes, int(call.attributes["num_scan_inputs"])
    values = _operands(call, 1 if call.opset < 9 else 0)
    states, inputs = values[: len(values) - scanned], values[len(values) - scanned :]
    yielded = len(own["body"].output) - len(states)
    if call.opset >= 9:
        axes = own.get("scan_input_axes") or [0] * scanned
        turned = own.get("scan_input_directions") or [0] * scanned
        out_axes = own.get("scan_output_axes") or [0] * yielded
        out_turned = own.get("scan_output_directions") or [0] * yielded
        steps = tensor_type(inputs[0]).shape[axes[0]]
        return _scanned(call, states, inputs, [axes, turned, out_axes, out_turned], steps)
    batch, most = tensor_type(inputs[0]).shape[:2]
    lengths = [most] * batch if call.get(0) is None else call.known(0, "the lengths").tolist()
    rows = []
    for place in range(batch):
        first, each = ([_part(one, 0, place) for one in group] for group in (states, inputs))
        numbers = [[0] * scanned, own.get("directions") or [0] * scanned, [0] * yielded, [0] * yielded]
        found = list(_scanned(call, first, each, numbers, lengths[place]))
        for number in range(len(states), len(found)):
            kind = tensor_type(found[number])
            rest = broadcast(constant(0, kind.dtype), (most - lengths[place], *kind.shape[1:]))
            found[number] = concat([found[number], rest], 0)
        rows.append(found)
    return [_stacked(column) for column in zip(*rows, strict=True)]


def _scanned(
    call: Call, states: list[Value], inputs: list[Value], numbers: Sequence[Sequence[int]], steps: int
) -> Sequence[Value]:
    """Return what so many steps of a scan leave; `numbers` are axes and directions of inputs, then of outputs."""
    axes, turned, out_axes, out_turned = numbers
    if steps > _MOST_STEPS:
        raise RefusedError(f"runs {steps} times, expected {_MOST_STEPS} at most")
    count, rows = len(states), list[list[Value]]()
    for step in range(steps):
        parts = [
            _part(value, axis, tensor_type(value).shape[axis] - 1 - step if back else step)
            for value, axis, back in zip(inputs, axes, turned, strict=True)
        ]
        found = call.read(call.attributes["body"], [*states, *parts])
        states = found[:count]
        rows.append(found[count:])
    if not rows:
        raise RefusedError("runs over no elements, expected some")
    columns = [list(column) for column in zip(*rows, strict=True)]
    directed = zip(columns, out_axes, out_turned, strict=True)
    return [*states, *(_stacked(column[::-1] if back else column, axis) for column, axis, back in directed)]


def _same(call: Call) -> Value:
    """Return an optional value that is there; those that are not stay outside."""
    return call[0]


_REASONS = {
    ("", "handles sequences, which stay outside: expected tensors"): (
        "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
        "SequenceLength", "SequenceMap", "SplitToSequence",
    ),
    ("", "handles text or counts parts of it, which stays outside: expected numbers"): (
        "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    ),
    ("", "keeps boxes by values, so that sizes depend on data, which stays outside: choose them behind the model"): (
        "NonMaxSuppression",
    ),
    ("", "makes random numbers, which stay outside: give them to the model as an input"): (
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    ),
    ("", "decodes files of images, which stays outside: give the model pixels"): ("ImageDecoder",),
    ("ai.onnx.ml", "is no tensor operator but one of classic machine learning (ai.onnx.ml), which stays outside"): (
        "ArrayFeatureExtractor", "Binarizer", "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer",
        "Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder",
        "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor",
        "ZipMap",
    ),
}  # fmt: skip
"""Domain, and why its operators are refused -> those."""
OUTSIDE = {(domain, name): reason for (domain, reason), names in _REASONS.items() for name in names}
"""Domain and operator that graphs cannot say -> why."""


def _refused(reason: str) -> Convert:
    def read(call: Call) -> Value:
        raise RefusedError(reason)

    return read


REFUSED = {key: _refused(reason) for key, reason in OUTSIDE.items()}
READERS: dict[str, Convert] = {
    "If": _if,
    "Loop": _loop,
    "Optional": _same,
    "OptionalGetElement": _same,
    "OptionalHasElement": lambda call: constant(call.get(0) is not None, "bool"),
    "Scan": _scan,
}
