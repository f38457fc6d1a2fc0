"""State: tensors that a network returns and reads again in its next call, kept inside the compiled network.

A pair is an output and the input that it becomes. A state of fixed size stays in the same memory in all calls if the
graph only replaces rows of it. A growing state has memory for its largest size and holds elements in the first rows:
the graph appends rows and reads the first ones as a slice. The node that writes rows (`PUT`) writes into its operand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.arguments import quote
from anatune.errors import WorkloadError
from anatune.network.graph.building import concat, reshape
from anatune.network.graph.nodes import (
    Array,
    Graph,
    Input,
    Node,
    Scalar,
    TensorType,
    Value,
    rewrite_with_originals,
    tensor_type,
)
from anatune.network.graph.operators import OPERATORS, PUT

__all__ = ["AUTO", "StatePair", "attach_state", "choose_probes", "find_growth", "find_pairs"]

AUTO = "auto"
"""The argument that asks for the pairs that follow from the names which exporters of decoders use."""
_PRESENT = re.compile(r"present(_key_values)?(?=[._]|$)")
_PAST = ("past_key_values", "past")
_PRIMES = [number for number in range(5, 2000) if all(number % other for other in range(2, 45) if other < number)]


class StatePair(NamedTuple):
    """An output that becomes an input of the next call.

    Attributes
    ----------
    name : str
        The name of the input.
    output, input : int
        Their indices in the network as it was read.
    initial : ndarray, optional
        The initial content; None: zeros, or an empty tensor if it grows.
    axis : int
        The axis along which it grows; -1: it has a fixed size.
    symbol : str
        The symbol of the number of elements that it holds along `axis`.
    most : int
        The largest value of `symbol`.
    by : str
        The symbol of the number of elements that a call appends; "": this number is fixed.
    """

    name: str
    output: int
    input: int
    initial: Array | None = None
    axis: int = -1
    symbol: str = ""
    most: int = 0
    by: str = ""


def find_pairs(
    mapping: str | Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str], name: str
) -> list[tuple[int, int]]:
    """Return the pairs (output, input) that a caller asks for: `AUTO`, or a mapping of output names to input names.

    Raises
    ------
    WorkloadError
        A name does not exist or is used twice, or no names fit `AUTO`.
    """
    if not isinstance(mapping, str | Mapping):
        raise WorkloadError(f"state is {quote(mapping)}, expected {AUTO!r} or names of outputs and of their inputs")
    if isinstance(mapping, str):
        if mapping != AUTO:
            raise WorkloadError(f"state is {mapping!r:.60}, expected {AUTO!r} or names of outputs and of their inputs")
        words: dict[str, str] = {}
        for output in outputs:
            candidates = [_PRESENT.sub(past, output, count=1) for past in _PAST if _PRESENT.match(output)]
            words.update((output, word) for word in candidates if word in inputs)
        if not words:
            raise WorkloadError(
                f"{name} has no outputs such as present.0.key with inputs such as past_key_values.0.key; map "
                f"outputs to inputs; outputs: {_names(outputs)}; inputs: {_names(inputs)}"
            )
        mapping = words
    for what, names, existing in (("output", mapping.keys(), outputs), ("input", mapping.values(), inputs)):
        for word in names:
            if word not in existing:
                raise WorkloadError(f"state: {name} has no {what} {word!r:.80}, expected one of {_names(existing)}")
    taken_inputs = list(mapping.values())
    repeated = next((word for word in taken_inputs if taken_inputs.count(word) > 1), None)
    if repeated is not None:
        raise WorkloadError(f"state: two outputs are mapped to the input {repeated}, expected one")
    return [(outputs.index(output), inputs.index(word)) for output, word in mapping.items()]


def _names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"


def choose_probes(ranges: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """Return two assignments of values to all symbols, in which no two values are equal."""
    count = len(ranges)
    return [
        {
            symbol: ends[0] if ends[0] == ends[1] else _PRIMES[index + round * count]
            for index, (symbol, ends) in enumerate(ranges.items())
        }
        for round in (0, 1)
    ]


def find_growth(
    graphs: Sequence[Graph], sizes: Sequence[Mapping[str, int]], pairs: Sequence[StatePair], name: str
) -> list[StatePair]:
    """Return pairs with the axis and the symbols by which they grow.

    Parameters
    ----------
    graphs, sizes
        The graph of the network for several values of its symbols, and these values.

    Raises
    ------
    WorkloadError
        The type of an output does not fit its input.
    """

    def symbol_of(values: Sequence[int]) -> str:
        """Return the symbol that has the given values."""
        names = (name for name in sizes[0] if [values_of_names[name] for values_of_names in sizes] == list(values))
        return next(names, "") if len(set(values)) > 1 else ""

    result = []
    for pair in pairs:
        past = [tensor_type(graph.inputs[pair.input]) for graph in graphs]
        new = [tensor_type(graph.outputs[pair.output]) for graph in graphs]
        before, after = past[0], new[0]
        axes = [d for d, ends in enumerate(zip(before.shape, after.shape, strict=False)) if ends[0] != ends[1]]
        description = f"state: {name} reads {pair.name} as {before} and returns it as {after}"
        if before.dtype != after.dtype or len(before.shape) != len(after.shape) or len(axes) > 1:
            raise WorkloadError(f"{description}, expected the same type, or more elements along one axis")
        if not axes:
            result.append(pair)
            continue
        axis = axes[0]
        symbol = symbol_of([one.shape[axis] for one in past])
        if not symbol or after.shape[axis] < before.shape[axis]:
            raise WorkloadError(
                f"{description}; to grow along axis {axis}, its size there has to vary from 0 on (sizes, --size), and "
                "new elements have to be appended"
            )
        by = symbol_of([one.shape[axis] - other.shape[axis] for one, other in zip(new, past, strict=True)])
        result.append(pair._replace(axis=axis, symbol=symbol, by=by))
    return result


def attach_state(graph: Graph, pairs: Sequence[StatePair], name: str) -> Graph:
    """Return a graph whose last inputs and outputs are its state, in the order of the pairs.

    Raises
    ------
    WorkloadError
        A growing state is not the concatenation of the old state and new elements. The message mentions `name`.
    """
    uses = graph.uses()
    inputs = list(graph.inputs)
    replacements: dict[Value, Value] = {}
    put_pairs: dict[Value, StatePair] = {}
    for pair in pairs:
        past, new = graph.inputs[pair.input], graph.outputs[pair.output]
        if pair.axis >= 0:
            if not _is_appended(new, past, pair.axis):
                raise WorkloadError(
                    f"state: the output that {name} returns for {pair.name} does not append new elements to it along "
                    f"axis {pair.axis}, expected a concatenation (torch.cat, Concat) with {pair.name} first"
                )
            kind = tensor_type(past)
            most = (*kind.shape[: pair.axis], pair.most, *kind.shape[pair.axis + 1 :])
            inputs[pair.input] = memory = Input(past.name, TensorType(most, kind.dtype))
            replacements[past] = _first_elements(memory, pair.axis, kind)
            put_pairs[new] = pair
        elif (put := _find_put(new, past, uses)) is not None:
            put_pairs[put] = pair

    def replace(node: Node, old: Node) -> Value:
        pair = put_pairs.get(old)
        return node if pair is None else _make_put(node, inputs[pair.input], pair, graph)

    outputs = list(rewrite_with_originals(graph, replace, replacements).outputs)
    for pair in pairs:
        part = outputs[pair.output]
        if pair.axis >= 0:
            assert isinstance(part, Node)
            outputs[pair.output] = part.arguments[0]  # the whole memory instead of the part that holds elements
    of_inputs, state_outputs = {pair.input for pair in pairs}, {pair.output for pair in pairs}
    return Graph(
        (
            *(value for index, value in enumerate(inputs) if index not in of_inputs),
            *(inputs[pair.input] for pair in pairs),
        ),
        (
            *(value for index, value in enumerate(outputs) if index not in state_outputs),
            *(outputs[pair.output] for pair in pairs),
        ),
        is_tuple=graph.is_tuple,
    )


def _is_appended(new: Value, past: Value, axis: int) -> bool:
    """Return whether a value is the concatenation of the old state and new elements."""
    if not isinstance(new, Node) or new.op != "concat" or new.attributes["axis"] != axis:
        return False
    first, *others = new.arguments[0]
    return first is past and all(one is not past for one in others)


def _find_put(new: Value, past: Value, uses: Mapping[Value, int]) -> Value | None:
    """Return the node that replaces rows of a state with no other reader, maybe in pages that are rows; else None."""
    put: Value = new
    while isinstance(put, Node) and put.op == "reshape":
        put = put.arguments[0]
    written: Value | None = put.arguments[0] if isinstance(put, Node) and _put_indices(put) is not None else None
    while isinstance(written, Node) and written.op == "reshape" and uses[written] == 1:
        written = written.arguments[0]
    return put if written is past and uses[past] == 1 else None


def _put_indices(new: Value) -> Value | None:
    """Return the list of indices of the rows that a node replaces, or None if the node does something else."""
    if not isinstance(new, Node) or new.op != "scatter_elements" or new.attributes["reduction"] != "update":
        return None
    data, indices, updates = new.arguments
    indices_of_axis = indices.arguments[0] if isinstance(indices, Node) and indices.op == "broadcast_to" else indices
    axis, shape, whole = new.attributes["axis"], tensor_type(updates).shape, tensor_type(data).shape
    sizes = tensor_type(indices_of_axis).shape
    same = (*whole[:axis], shape[axis], *whole[axis + 1 :])
    is_list = len(sizes) == len(shape) and all(size == 1 for dimension, size in enumerate(sizes) if dimension != axis)
    return indices_of_axis if shape == same and is_list else None


def _first_elements(whole: Value, axis: int, kind: TensorType) -> Node:
    """Return the first elements along an axis, of a given type; the slice stays a node even if it is empty."""
    numbers = (tuple([Scalar(number, "int64")]) for number in (axis, 0, kind.shape[axis], 1))
    return Node(
        "strided_slice", (whole, *numbers), kind, {"assume_inbound": True}, OPERATORS["strided_slice"].kind
    )  # fmt: skip


def _make_put(node: Node, memory: Input, pair: StatePair, graph: Graph) -> Node:
    """Return the node that writes the new rows of a pair into its state, or for a growing state its used part."""
    if pair.axis < 0:
        indices = _put_indices(node)
        assert indices is not None
        flat = reshape(indices, (-1,))
        return Node(PUT, (node.arguments[0], node.arguments[2], flat), node.type, {"axis": node.attributes["axis"]})
    before = tensor_type(graph.inputs[pair.input]).shape[pair.axis]
    _, *rows = node.arguments[0]
    put = Node(
        PUT, (memory, concat(rows, pair.axis), Scalar(before, "int64")), tensor_type(memory), {"axis": pair.axis}
    )  # fmt: skip
    return _first_elements(put, pair.axis, tensor_type(node))
