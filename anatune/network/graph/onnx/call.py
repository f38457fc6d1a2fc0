"""One node of an ONNX model, as what reads its operator sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anatune.errors import WorkloadError
from anatune.network.graph.building import RefusedError
from anatune.network.graph.folding import computed
from anatune.network.graph.nodes import Array, Constant, Graph, Input, Node, TensorType, Value, tensor_type, values_in
from anatune.untyped import onnx

__all__ = ["DTYPES", "Attributes", "Call", "Convert", "RefusedError", "UnknownValueError", "check_table", "known_array"]


DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
"""ONNX's numbers of dtypes that graphs have."""


_MOST_KNOWN = 1 << 27
"""Elements of a table that an operator is spelt with."""


class UnknownValueError(WorkloadError):
    """What an operator computes depends on values that are known only when the model runs.

    Attributes
    ----------
    inputs : tuple of str
        Inputs of the model that those come from.
    """

    def __init__(self, text: str, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.inputs = inputs


class Attributes(Mapping[str, Any]):
    """Attributes of a node, which note in `used` the names that a reader asks for."""

    def __init__(self, values: Mapping[str, Any], used: set[str] | None = None) -> None:
        self._values, self.used = values, set() if used is None else used

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def with_defaults(self, defaults: Mapping[str, Any]) -> Attributes:
        """Return these attributes, and others where they have none; names are noted for both."""
        return Attributes({**defaults, **self._values}, self.used)


@dataclass(frozen=True)
class Call:
    """A node with its operands.

    Attributes
    ----------
    op : str
        The operator, without its domain.
    opset : int
        Version of the operators of its domain.
    inputs : tuple of Value or None
        None where an optional one is left out.
    attributes : Attributes
        With the defaults of the standard; text as str, tensors as arrays.
    outputs : tuple of str
        Names; "" for those that nobody reads.
    read : callable
        Reads a graph that the node holds (a branch, a body): takes it and the values of its inputs, returns those of
        its outputs. Values around it are seen inside.
    used : set of int
        Places of the operands that the reader asked for.
    """

    op: str
    opset: int
    inputs: tuple[Value | None, ...]
    attributes: Attributes
    outputs: tuple[str, ...]
    read: Callable[[onnx.GraphProto, Sequence[Value]], list[Value]]
    used: set[int] = field(default_factory=set)

    def __getitem__(self, place: int) -> Value:
        """Return an operand; it has to be there."""
        value = self.get(place)
        if value is None:
            raise RefusedError(f"has no input {place}, which it needs")
        return value

    def get(self, place: int) -> Value | None:
        """Return an operand; None: it is left out."""
        self.used.add(place)
        return self.inputs[place] if place < len(self.inputs) else None

    def kind(self, place: int = 0) -> TensorType:
        """Return the type of an operand."""
        return tensor_type(self[place])

    def dtype(self, name: str, default: str = "float32") -> str:
        """Return the dtype that an attribute names, in ONNX's numbers."""
        kind = self.attributes.get(name)
        if kind is not None and kind not in DTYPES:
            raise RefusedError(f"makes type {kind} of ONNX, expected numbers of 8 bits or more, or truth values")
        return default if kind is None else DTYPES[kind]

    @property
    def rank(self) -> int:
        """The number of dimensions of the first operand."""
        return len(self.kind().shape)

    def known(self, place: int, what: str) -> Array:
        """Return the values of an operand.

        Raises
        ------
        UnknownValueError
            They are known only at run time; `what` they are.
        """
        return known_array(self[place], what)

    def numbers(self, name: str, place: int) -> list[int] | None:
        """Return integers of an attribute, as older operators have them, or of an operand; None: they are left out."""
        given = self.attributes.get(name)
        if given is not None:
            return [int(number) for number in given]
        return None if self.get(place) is None else [int(number) for number in self.known(place, name).reshape(-1)]


def check_table(*sizes: float) -> None:
    """Raise a `RefusedError` where a table of such sizes would be made while a model is read: files may ask for any."""
    count = math.prod(sizes)
    if not count <= _MOST_KNOWN:
        raise RefusedError(f"makes a table of {count:,.0f} elements, expected {_MOST_KNOWN:,} at most")


Convert = Callable[[Call], Value | Sequence[Value]]
"""What reads an operator: returns its results, one or several; raises `RefusedError`."""


def known_array(value: Value, what: str) -> Array:
    """Return the values of a tensor; raises as `Call.known`."""
    known = computed(value) if isinstance(value, Node) else value  # integers with scales are still nodes
    if isinstance(known, Constant):
        return known.array
    raise UnknownValueError(f"takes {what} from values that are known only when the model runs", _inputs_of(value))


def _inputs_of(value: Value) -> tuple[str, ...]:
    """Return the names of the inputs that a value is computed from."""
    if isinstance(value, Input):
        return (value.name,)
    read = (one for node in Graph((), (value,), is_tuple=False).nodes() for one in values_in(node.arguments))
    return tuple(dict.fromkeys(one.name for one in read if isinstance(one, Input)))
