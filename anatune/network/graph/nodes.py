"""A model as a graph of operators on tensors of known sizes.

Operators are named as TVM's Relax names them, without ``relax.``; those that anatune has kernels for begin with
``anatune.`` (`network.graph.operators`). Values are compared by identity and never changed: a pass builds a new graph
with `rewritten`. Tables of what is known of values have the values themselves as keys, which keeps these alive.

Notation
--------
value : what an operator reads: an input of the model, a constant, or the result of a node.
argument : what a node takes: a value, a tuple of arguments (the tensors of a concatenation), a shape, a number.
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
    "is_unknown",
    "item_of",
    "mapped",
    "once",
    "rewritten",
    "rewritten_beside",
    "tensor_type",
    "unknown",
    "values_in",
]

Array = NDArray[Any]

HALVES = ("float16", "bfloat16")
"""Dtypes of 16 bits that have fractions."""
FOREIGN = ("bool", *HALVES)
"""Dtypes without arithmetic of their own on CPUs."""
ITEM = "item"
"""The operator that takes one tensor of an operator that has several results; attribute ``index``."""
LEADING = "leading"
"""The operator that names the first elements of a constant as a tensor of its type, which is known at run time."""
WRITTEN = "tir."
"""What names of operators begin with that importers write out as a loop nest; attribute ``function``, a PrimFunc."""


class TensorType(NamedTuple):
    """Sizes, row-major, and the element's dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


class Shape(tuple[int, ...]):
    """Sizes as an argument: of a reshape, a broadcast."""

    __slots__ = ()


class Scalar(NamedTuple):
    """A number as an argument, in the dtype that the operator wants ("int64", "float32", ...)."""

    value: int | float | bool
    dtype: str


class Value:
    """What a node may read. `type` is a tuple where an operator has several results."""

    __slots__ = ("type",)

    def __init__(self, type: TensorType | tuple[TensorType, ...]) -> None:
        self.type = type


class Input(Value):
    """An input of the model."""

    __slots__ = ("name",)

    def __init__(self, name: str, type: TensorType) -> None:
        super().__init__(type)
        self.name = name


class Constant(Value):
    """A tensor that is known: `array` in row-major meaning (it may be a view); nobody can write to it through this."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        super().__init__(TensorType(tuple(array.shape), array.dtype.name))
        self.array = np.asarray(array).view()
        self.array.flags.writeable = False

    def converted(self, dtype: str) -> Constant:
        """Return it in another dtype."""
        kind = TensorType(self.array.shape, dtype)
        return Constant(unknown(kind) if is_unknown(self.array) else self.array.astype(dtype))

    def forget(self) -> None:
        """Give the memory of the array back: what the graph is for has been built, nobody reads its values again."""
        self.array = np.broadcast_to(np.zeros((), self.array.dtype), self.array.shape)


def once(array: Array) -> Array:
    """Return an array without what it repeats along whole dimensions, as broadcasting does."""
    return array[tuple(slice(None if stride else 1) for stride in array.strides)]


_UNKNOWN: dict[str, Array] = {}
"""Dtype -> the one element that all of an unknown array's are."""


def unknown(kind: TensorType) -> Array:
    """Return an array, without memory, for one whose elements nobody knows: weights on PyTorch's meta device."""
    return np.broadcast_to(_UNKNOWN.setdefault(kind.dtype, np.zeros((), kind.dtype)), kind.shape)


def is_unknown(array: Array) -> bool:
    """Whether an array, or what it is a view of, is `unknown`."""
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
        By name; what is no number, text or tuple of them is an object of TVM's, passed through.
    kind : str
        TVM's name of the attributes' type, "" where there are none.
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

    def of(self, arguments: tuple[Argument, ...], type: TensorType | None = None, **changed: object) -> Node:
        """Return the same operator on other arguments: with the same type unless one is given, attributes changed."""
        return Node(self.op, arguments, type or self.type, {**self.attributes, **changed}, self.kind)


def tensor_type(value: Value) -> TensorType:
    """Return the type of a value that is one tensor."""
    assert isinstance(value.type, TensorType), value
    return value.type


def item_of(value: Value, index: int) -> Node:
    """Return one result of an operator that has several."""
    assert not isinstance(value.type, TensorType)
    return Node(ITEM, (value,), value.type[index], {"index": index})


def values_in(argument: Argument) -> Iterator[Value]:
    """Yield the values of an argument."""
    if isinstance(argument, Value):
        yield argument
    elif type(argument) is tuple:
        for part in argument:
            yield from values_in(part)


def mapped(argument: Argument, change: Callable[[Argument], Argument]) -> Argument:
    """Return an argument with what `change` makes of each value, shape and number of it."""
    return tuple(mapped(part, change) for part in argument) if type(argument) is tuple else change(argument)


class Graph:
    """Inputs in order, and what is computed from them.

    Attributes
    ----------
    inputs : tuple of Input
    outputs : tuple of Value
    is_tuple : bool
        Whether the model returns a tuple, of one output too.
    """

    def __init__(self, inputs: tuple[Input, ...], outputs: tuple[Value, ...], *, is_tuple: bool) -> None:
        self.inputs, self.outputs, self.is_tuple = inputs, outputs, is_tuple

    def nodes(self) -> list[Node]:
        """Return the nodes that the outputs need, each behind its arguments."""
        found: list[Node] = []
        seen: set[Value] = set()
        stack: list[tuple[Value, bool]] = [(value, False) for value in reversed(self.outputs)]
        while stack:
            value, is_complete = stack.pop()
            if not isinstance(value, Node):
                continue
            if is_complete:
                found.append(value)
            elif value not in seen:
                seen.add(value)
                stack.append((value, True))
                stack += [(one, False) for one in reversed(list(values_in(value.arguments)))]
        return found

    def constants(self) -> list[Constant]:
        """Return the constants that nodes and outputs read, each once."""
        read = [one for node in self.nodes() for one in values_in(node.arguments)]
        return list(dict.fromkeys(one for one in (*read, *self.outputs) if isinstance(one, Constant)))

    def users(self) -> dict[Value, list[Node]]:
        """Return the nodes that read each value, in order; a node that reads it twice is there twice."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes():
            for value in values_in(node.arguments):
                users.setdefault(value, []).append(node)
        return users

    def only_readers(self) -> dict[Value, Node]:
        """Return the node that reads a value where nothing else does: it is read once, and is no output."""
        uses = self.uses()
        return {value: node for node in self.nodes() for value in values_in(node.arguments) if uses[value] == 1}

    def uses(self) -> Counter[Value]:
        """Return how often each value is read, outputs included."""
        found = Counter(self.outputs)
        for node in self.nodes():
            found.update(values_in(node.arguments))
        return found


def rewritten(graph: Graph, replace: Callable[[Node], Value]) -> Graph:
    """Return a graph in which each node is what `replace` makes of it; the node has its arguments of the new graph."""
    return rewritten_beside(graph, lambda node, _: replace(node))


def rewritten_beside(
    graph: Graph, replace: Callable[[Node, Node], Value], new: dict[Value, Value] | None = None
) -> Graph:
    """Return a graph in which each node is what `replace` makes of it.

    Parameters
    ----------
    replace : callable
        Takes a node with its arguments of the new graph, and the node of the old one.
    new : dict of Value to Value, optional
        Values of the old graph -> what stands for each in the new one: inputs that change; nodes are put there, too.
    """
    table = {} if new is None else new

    def operand(argument: Argument) -> Argument:
        return table.get(argument, argument)

    for node in graph.nodes():
        table[node] = replace(node.of(mapped(node.arguments, operand)), node)
    return Graph(graph.inputs, mapped(graph.outputs, operand), is_tuple=graph.is_tuple)
