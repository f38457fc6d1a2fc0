"""A network as a graph of operators on tensors of known sizes.

Operators have the names that TVM's Relax gives them, without ``relax.``. Names of operators with a kernel of anatune
begin with ``anatune.`` (`network.graph.operators`). Values are compared by identity and never changed: a pass builds a
new graph with `rewritten`. Tables about values use the values themselves as keys, which keeps the values alive.

Notation
--------
value : a tensor that a node reads: an input of the network, a constant, or the result of a node.
argument : an operand of a node: a value, a tuple of arguments (the tensors of a concatenation), a shape, a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FOREIGN",
    "HALVES",
    "ITEM",
    "LEADING",
    "WRITTEN",
    "Argument",
    "Array",
    "Constant",
    "Graph",
    "Input",
    "Node",
    "Scalar",
    "Shape",
    "TensorType",
    "Value",
    "drop_repeats",
    "is_unknown",
    "iterate_values",
    "make_unknown",
    "map_argument",
    "rewrite_graph",
    "rewrite_with_originals",
    "select_result",
    "tensor_type",
]

Array = NDArray[Any]

HALVES = ("float16", "bfloat16")
"""The floating-point dtypes of 16 bits."""
FOREIGN = ("bool", *HALVES)
"""Dtypes that CPUs have no arithmetic for."""
ITEM = "item"
"""The operator that selects one result of an operator with several results; attribute ``index``."""
LEADING = "leading"
"""The operator that returns the first elements of a constant; its type says how many, known only at run time."""
WRITTEN = "tir."
"""The prefix of operators that an importer writes as a loop nest; attribute ``function`` is the PrimFunc."""


class TensorType(NamedTuple):
    """The sizes of a row-major tensor and the dtype of its elements."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


class Shape(tuple[int, ...]):
    """Sizes as an argument, for example of a reshape or a broadcast."""

    __slots__ = ()


class Scalar(NamedTuple):
    """A number as an argument, in the dtype that the operator expects ("int64", "float32", ...)."""

    value: int | float | bool
    dtype: str


class Value:
    """A tensor that a node may read. `type` is a tuple if the operator has several results."""

    __slots__ = ("type",)

    def __init__(self, type: TensorType | tuple[TensorType, ...]) -> None:
        self.type = type


class Input(Value):
    """An input of the network."""

    __slots__ = ("name",)

    def __init__(self, name: str, type: TensorType) -> None:
        super().__init__(type)
        self.name = name


class Constant(Value):
    """A tensor of known elements: `array` is read-only, in row-major order of its dimensions, and may be a view."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        super().__init__(TensorType(tuple(array.shape), array.dtype.name))
        self.array = np.asarray(array).view()
        self.array.flags.writeable = False

    def to_dtype(self, dtype: str) -> Constant:
        """Return the constant in another dtype."""
        type = TensorType(self.array.shape, dtype)
        return Constant(make_unknown(type) if is_unknown(self.array) else self.array.astype(dtype))

    def forget(self) -> None:
        """Free the memory of the array. Call this only when nobody reads the values of the graph any more."""
        self.array = np.broadcast_to(np.zeros((), self.array.dtype), self.array.shape)


def drop_repeats(array: Array) -> Array:
    """Return an array without its repetitions along whole dimensions, which broadcasting restores."""
    return array[tuple(slice(None if stride else 1) for stride in array.strides)]


_UNKNOWN: dict[str, Array] = {}
"""Dtype -> the element that every element of an unknown array is a view of."""


def make_unknown(type: TensorType) -> Array:
    """Return an array without memory for unknown elements, such as weights on PyTorch's meta device."""
    return np.broadcast_to(_UNKNOWN.setdefault(type.dtype, np.zeros((), type.dtype)), type.shape)


def is_unknown(array: Array) -> bool:
    """Return whether an array, or the array that it is a view of, is unknown (`make_unknown`)."""
    if not _UNKNOWN:  # names of dtypes take time, and every call of a network asks
        return False
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array is _UNKNOWN.get(array.dtype.name)


Argument = Any
"""`Value`, `Shape`, `Scalar`, or a tuple of arguments."""


class Node(Value):
    """An operator with its arguments.

    Attributes
    ----------
    op : str
    arguments : tuple of Argument
    attributes : dict of str to object
        The attributes by name. Those that are not numbers, text or tuples are TVM objects, which are passed through.
    kind : str
        TVM's name of the type of the attributes, "" without attributes.
    """

    __slots__ = ("arguments", "attributes", "kind", "op")

    def __init__(
        self,
        op: str,
        arguments: tuple[Argument, ...],
        type: TensorType | tuple[TensorType, ...],
        attributes: Mapping[str, object] | None = None,
        kind: str = "",
    ) -> None:
        super().__init__(type)
        self.op, self.arguments, self.kind = op, arguments, kind
        self.attributes: dict[str, Any] = dict(attributes or {})

    def __repr__(self) -> str:
        return f"{self.op} -> {self.type}"

    def of(self, arguments: tuple[Argument, ...], type: TensorType | None = None, **attributes: object) -> Node:
        """Return the same operator on other arguments, with the same type unless `type` is given."""
        return Node(self.op, arguments, type or self.type, {**self.attributes, **attributes}, self.kind)


def tensor_type(value: Value) -> TensorType:
    """Return the type of a value that is one tensor."""
    assert isinstance(value.type, TensorType), value
    return value.type


def select_result(value: Value, index: int) -> Node:
    """Return one result of an operator that has several results."""
    assert not isinstance(value.type, TensorType)
    return Node(ITEM, (value,), value.type[index], {"index": index})


def iterate_values(argument: Argument) -> Iterator[Value]:
    """Yield the values in an argument."""
    if isinstance(argument, Value):
        yield argument
    elif type(argument) is tuple:
        for part in argument:
            yield from iterate_values(part)


def map_argument(argument: Argument, change: Callable[[Argument], Argument]) -> Argument:
    """Return an argument in which each value, shape and number is replaced by the result of `change`."""
    return tuple(map_argument(part, change) for part in argument) if type(argument) is tuple else change(argument)


class Graph:
    """The inputs of a network in order, and the outputs that are computed from them.

    Attributes
    ----------
    inputs : tuple of Input
    outputs : tuple of Value
    is_tuple : bool
        Whether the network returns a tuple, also if it has only one output.
    """

    def __init__(self, inputs: tuple[Input, ...], outputs: tuple[Value, ...], *, is_tuple: bool) -> None:
        self.inputs, self.outputs, self.is_tuple = inputs, outputs, is_tuple

    def nodes(self) -> list[Node]:
        """Return the nodes that the outputs need, each after its arguments."""
        ordered: list[Node] = []
        seen: set[Value] = set()
        stack: list[tuple[Argument, bool]] = [(tuple(self.outputs), False)]
        while stack:
            value, is_complete = stack.pop()
            if type(value) is tuple:
                stack += [(part, False) for part in reversed(value)]
            elif is_complete:
                ordered.append(value)
            elif isinstance(value, Node) and value not in seen:
                seen.add(value)
                stack += ((value, True), (value.arguments, False))
        return ordered

    def constants(self) -> list[Constant]:
        """Return the constants that nodes and outputs read, each only once."""
        operands = [value for node in self.nodes() for value in iterate_values(node.arguments)]
        return list(dict.fromkeys(value for value in (*operands, *self.outputs) if isinstance(value, Constant)))

    def users(self) -> dict[Value, list[Node]]:
        """Return the nodes that read each value, in order. A node that reads a value twice is listed twice."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes():
            for value in iterate_values(node.arguments):
                users.setdefault(value, []).append(node)
        return users

    def only_readers(self) -> dict[Value, Node]:
        """Return the only reader of each value that is read exactly once and is not an output."""
        uses = self.uses()
        return {value: node for node in self.nodes() for value in iterate_values(node.arguments) if uses[value] == 1}

    def uses(self) -> Counter[Value]:
        """Return how often each value is read, counting outputs."""
        counts = Counter(self.outputs)
        for node in self.nodes():
            counts.update(iterate_values(node.arguments))
        return counts


def rewrite_graph(graph: Graph, replace: Callable[[Node], Value]) -> Graph:
    """Return a graph with each node replaced by the result of `replace`, which takes nodes with their new arguments."""
    return rewrite_with_originals(graph, lambda node, _: replace(node))


def rewrite_with_originals(
    graph: Graph, replace: Callable[[Node, Node], Value], new: dict[Value, Value] | None = None
) -> Graph:
    """Return a graph with each node replaced by the result of `replace`.

    Parameters
    ----------
    replace : callable
        Takes a node with its arguments in the new graph, and the same node of the old graph.
    new : dict of Value to Value, optional
        Values of the old graph -> their replacements. Changed inputs are given here; the pass adds the nodes.
    """
    table = {} if new is None else new

    def operand(argument: Argument) -> Argument:
        return table.get(argument, argument)

    for node in graph.nodes():
        table[node] = replace(node.of(map_argument(node.arguments, operand)), node)
    return Graph(graph.inputs, map_argument(graph.outputs, operand), is_tuple=graph.is_tuple)
