"""State: tensors that a model returns and takes again in its next call, which stay inside it.

A pair is an output and the input that it becomes. What has one size is the same memory in all calls where the graph
does no more than put rows into it; what grows lies in memory for the most rows, of which the first ones are held: the
graph puts new rows behind them, and reads the first ones as a part. Such a node (`PUT`) writes where its operand lies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.arguments import shown
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
    rewritten_beside,
    tensor_type,
)
from anatune.network.graph.operators import OPERATORS, PUT

__all__ = ["AUTO", "StatePair", "grown", "paired", "probes", "with_state"]

AUTO = "auto"
"""Asks for the pairs that exported decoders' names say."""
_PRESENT = re.compile(r"present(_key_values)?(?=[._]|$)")
_PAST = ("past_key_values", "past")
_PRIMES = [number for number in range(5, 2000) if all(number % other for other in range(2, 45) if other < number)]


class StatePair(NamedTuple):
    """An output that is an input of the next call.

    Attributes
    ----------
    name : str
        Of the input.
    output, input : int
        Which ones of the model as it was read.
    initial : ndarray, optional
        What it is at first; None: zeros, or nothing where it grows.
    axis : int
        Along which it grows; -1: it has one size.
    symbol : str
        Of how many elements are held along that.
    most : int
        Of these, at most.
    by : str
        Symbol of how many come in a call; "": their number is fixed.
    """

    name: str
    output: int
    input: int
    initial: Array | None = None
    axis: int = -1
    symbol: str = ""
    most: int = 0
    by: str = ""


def paired(
    asked: str | Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str], name: str
) -> list[tuple[int, int]]:
    """Return the pairs (output, input) that a caller asks for: `AUTO`, or names of outputs and what they become.

    Raises
    ------
    WorkloadError
        A name is none of the model's, or stands twice; there are no names that `AUTO` knows.
    """
    if not isinstance(asked, str | Mapping):
        raise WorkloadError(f"state is {shown(asked)}, expected {AUTO!r} or names of outputs and of their inputs")
    if isinstance(asked, str):
        if asked != AUTO:
            raise WorkloadError(f"state is {asked!r:.60}, expected {AUTO!r} or names of outputs and of their inputs")
        words: dict[str, str] = {}
        for output in outputs:
            own = [_PRESENT.sub(past, output, count=1) for past in _PAST if _PRESENT.match(output)]
            words.update((output, word) for word in own if word in inputs)
        if not words:
            raise WorkloadError(
                f"{name} has no outputs such as present.0.key beside inputs such as past_key_values.0.key; say which "
                f"become which: outputs {_listed(outputs)}, inputs {_listed(inputs)}"
            )
        asked = words
    for what, given, known in (("output", asked.keys(), outputs), ("input", asked.values(), inputs)):
        for word in given:
            if word not in known:
                raise WorkloadError(f"state: {name} has no {what} {word!r:.80}, expected some of {_listed(known)}")
    taken = list(asked.values())
    twice = next((word for word in taken if taken.count(word) > 1), None)
    if twice is not None:
        raise WorkloadError(f"state: two outputs become the input {twice}, expected one")
    return [(outputs.index(output), inputs.index(word)) for output, word in asked.items()]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"


def probes(ranges: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """Return two values of each symbol, none of which another one has."""
    count = len(ranges)
    return [
        {
            symbol: ends[0] if ends[0] == ends[1] else _PRIMES[place + turn * count]
            for place, (symbol, ends) in enumerate(ranges.items())
        }
        for turn in (0, 1)
    ]


def grown(
    graphs: Sequence[Graph], sizes: Sequence[Mapping[str, int]], pairs: Sequence[StatePair], name: str
) -> list[StatePair]:
    """Return pairs with how they grow.

    Parameters
    ----------
    graphs, sizes
        The model as it was read at some values of its symbols, and these.

    Raises
    ------
    WorkloadError
        An output does not fit its input.
    """

    def symbol_of(values: Sequence[int]) -> str:
        """Return the symbol that has these values."""
        names = (one for one in sizes[0] if [known[one] for known in sizes] == list(values))
        return next(names, "") if len(set(values)) > 1 else ""

    found = []
    for pair in pairs:
        own = [tensor_type(graph.inputs[pair.input]) for graph in graphs]
        new = [tensor_type(graph.outputs[pair.output]) for graph in graphs]
        before, after = own[0], new[0]
        axes = [place for place, ends in enumerate(zip(before.shape, after.shape, strict=False)) if ends[0] != ends[1]]
        what = f"state: {name} takes {pair.name} as {before} and returns {after}"
        if before.dtype != after.dtype or len(before.shape) != len(after.shape) or len(axes) > 1:
            raise WorkloadError(f"{what}, expected the same, or more elements along one axis")
        if not axes:
            found.append(pair)
            continue
        axis = axes[0]
        symbol = symbol_of([one.shape[axis] for one in own])
        if not symbol or after.shape[axis] < before.shape[axis]:
            raise WorkloadError(
                f"{what}; what grows along axis {axis} needs a size there that varies, from 0 on (sizes, --size), to "
                "which new elements are appended"
            )
        by = symbol_of([one.shape[axis] - other.shape[axis] for one, other in zip(new, own, strict=True)])
        found.append(pair._replace(axis=axis, symbol=symbol, by=by))
    return found


def with_state(graph: Graph, pairs: Sequence[StatePair], name: str) -> Graph:
    """Return a graph whose last inputs and outputs are its state, in the order of the pairs; `name` for messages.

    Raises
    ------
    WorkloadError
        What grows is no concatenation of what was held and of what is new.
    """
    uses = graph.uses()
    inputs = list(graph.inputs)
    made: dict[Value, Value] = {}
    changed: dict[Value, StatePair] = {}
    for pair in pairs:
        past, new = graph.inputs[pair.input], graph.outputs[pair.output]
        if pair.axis >= 0:
            if not _is_appended(new, past, pair.axis):
                raise WorkloadError(
                    f"state: what {name} returns for {pair.name} is no concatenation of that and of what is new along "
                    f"axis {pair.axis}, expected one (torch.cat, Concat)"
                )
            kind = tensor_type(past)
            most = (*kind.shape[: pair.axis], pair.most, *kind.shape[pair.axis + 1 :])
            inputs[pair.input] = held = Input(past.name, TensorType(most, kind.dtype))
            made[past] = _first(held, pair.axis, kind)
            changed[new] = pair
        elif (put := _put_into(new, past, uses)) is not None:
            changed[put] = pair

    def replace(own: Node, old: Node) -> Value:
        pair = changed.get(old)
        return own if pair is None else _put(own, inputs[pair.input], pair, graph)

    outputs = list(rewritten_beside(graph, replace, made).outputs)
    for pair in pairs:
        part = outputs[pair.output]
        if pair.axis >= 0:
            assert isinstance(part, Node)
            outputs[pair.output] = part.arguments[0]  # all of it, of which that is the part that is held
    taken, held_at = {pair.input for pair in pairs}, {pair.output for pair in pairs}
    return Graph(
        (*(one for place, one in enumerate(inputs) if place not in taken), *(inputs[pair.input] for pair in pairs)),
        (
            *(one for place, one in enumerate(outputs) if place not in held_at),
            *(outputs[pair.output] for pair in pairs),
        ),
        is_tuple=graph.is_tuple,
    )


def _is_appended(new: Value, past: Value, axis: int) -> bool:
    """Whether a value is something behind what was held."""
    if not isinstance(new, Node) or new.op != "concat" or new.attributes["axis"] != axis:
        return False
    first, *others = new.arguments[0]
    return first is past and all(one is not past for one in others)


def _put_into(new: Value, past: Value, uses: Mapping[Value, int]) -> Value | None:
    """Return the node that replaces rows of a tensor, or of its pages as rows, which nothing else reads; or None."""
    put: Value = new
    while isinstance(put, Node) and put.op == "reshape":
        put = put.arguments[0]
    held: Value | None = put.arguments[0] if isinstance(put, Node) and _places(put) is not None else None
    while isinstance(held, Node) and held.op == "reshape" and uses[held] == 1:
        held = held.arguments[0]
    return put if held is past and uses[past] == 1 else None


def _places(new: Value) -> Value | None:
    """Return which rows of a tensor a node replaces, a list of numbers; None: it does something else."""
    if not isinstance(new, Node) or new.op != "scatter_elements" or new.attributes["reduction"] != "update":
        return None
    data, indices, updates = new.arguments
    spread = indices.arguments[0] if isinstance(indices, Node) and indices.op == "broadcast_to" else indices
    axis, shape, whole = new.attributes["axis"], tensor_type(updates).shape, tensor_type(data).shape
    sizes = tensor_type(spread).shape
    same = (*whole[:axis], shape[axis], *whole[axis + 1 :])
    is_list = len(sizes) == len(shape) and all(size == 1 for place, size in enumerate(sizes) if place != axis)
    return spread if shape == same and is_list else None


def _first(whole: Value, axis: int, kind: TensorType) -> Node:
    """Return the first elements along an axis, as many as a type has; none of them, too, is no constant here."""
    numbers = (tuple([Scalar(number, "int64")]) for number in (axis, 0, kind.shape[axis], 1))
    return Node(
        "strided_slice", (whole, *numbers), kind, {"assume_inbound": True}, OPERATORS["strided_slice"].kind
    )  # fmt: skip


def _put(own: Node, held: Input, pair: StatePair, graph: Graph) -> Node:
    """Return what puts the new rows of a pair into what is held; where that grows, the part of it that is held then."""
    if pair.axis < 0:
        places = _places(own)
        assert places is not None
        flat = reshape(places, (-1,))
        return Node(PUT, (own.arguments[0], own.arguments[2], flat), own.type, {"axis": own.attributes["axis"]})
    before = tensor_type(graph.inputs[pair.input]).shape[pair.axis]
    _, *rows = own.arguments[0]
    put = Node(
        PUT, (held, concat(rows, pair.axis), Scalar(before, "int64")), tensor_type(held), {"axis": pair.axis}
    )  # fmt: skip
    return _first(put, pair.axis, tensor_type(own))
