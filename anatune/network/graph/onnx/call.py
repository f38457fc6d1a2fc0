"""A node of an ONNX model, as the reader of its operator sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anatune.errors import WorkloadError
from anatune.network.graph.building import RefusedError
from anatune.network.graph.folding import fold
from anatune.network.graph.nodes import (
    Array,
    Constant,
    Graph,
    Input,
    Node,
    TensorType,
    Value,
    iterate_values,
    tensor_type,
)
from anatune.untyped import onnx

__all__ = [
    "DTYPES", "Attributes", "Convert", "OnnxCall", "RefusedError", "UnknownValueError", "check_table", "constant_array",
]  # fmt: skip


DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
"""ONNX's number of a dtype -> NumPy's name, for the dtypes that graphs support."""


_MOST_KNOWN = 1 << 27
"""The most elements of a table that a reader may create."""


class UnknownValueError(WorkloadError):
    """The result of an operator depends on values that are known only when the model runs.

    Attributes
    ----------
    inputs : tuple of str
        The inputs of the model from which those values are computed.
    """

    def __init__(self, text: str, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.inputs = inputs


class Attributes(Mapping[str, Any]):
    """The attributes of a node; `used` collects the names that a reader asks for."""

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
        """Return these attributes and defaults for missing ones; both mappings share `used`."""
        return Attributes({**defaults, **self._values}, self.used)


@dataclass(frozen=True)
class OnnxCall:
    """A node and its operands.

    Attributes
    ----------
    op : str
        The name of the operator, without its domain.
    opset : int
        The version of the operators of its domain.
    inputs : tuple of Value or None
        The operands; None: an optional one is omitted.
    attributes : Attributes
        The attributes with the defaults of the standard; text as str, tensors as arrays.
    outputs : tuple of str
        The names of the results; "" for those that nobody reads.
    read : callable
        Reads a graph in the node (a branch or a body): takes the graph and the values of its inputs, and returns the
        values of its outputs. The graph can read values around it.
    used : set of int
        The indices of the operands that the reader asked for.
    """

    op: str
    opset: int
    inputs: tuple[Value | None, ...]
    attributes: Attributes
    outputs: tuple[str, ...]
    read: Callable[[onnx.GraphProto, Sequence[Value]], list[Value]]
    used: set[int] = field(default_factory=set)

    def __getitem__(self, index: int) -> Value:
        """Return an operand, which must not be omitted."""
        value = self.get(index)
        if value is None:
            raise RefusedError(f"has no input {index}, which is required")
        return value

    def get(self, index: int) -> Value | None:
        """Return an operand, or None if it is omitted."""
        self.used.add(index)
        return self.inputs[index] if index < len(self.inputs) else None

    def kind(self, index: int = 0) -> TensorType:
        """Return the type of an operand."""
        return tensor_type(self[index])

    def dtype(self, name: str, default: str = "float32") -> str:
        """Return the dtype that an attribute gives as ONNX's number."""
        kind = self.attributes.get(name)
        if kind is not None and kind not in DTYPES:
            raise RefusedError(f"has results of ONNX type {kind}, expected numbers of 8 bits or more, or booleans")
        return default if kind is None else DTYPES[kind]

    @property
    def rank(self) -> int:
        """The number of dimensions of the first operand."""
        return len(self.kind().shape)

    def constant_values(self, index: int, what: str) -> Array:
        """Return the values of a constant operand.

        Raises
        ------
        UnknownValueError
            They are known only at run time; `what` describes them in the message.
        """
        return constant_array(self[index], what)

    def numbers(self, name: str, index: int) -> list[int] | None:
        """Return the integers of an attribute (older operators) or of an operand, or None if both are omitted."""
        values = self.attributes.get(name)
        if values is not None:
            return [int(number) for number in values]
        return (
            None
            if self.get(index) is None
            else [int(number) for number in self.constant_values(index, name).reshape(-1)]
        )


def check_table(*sizes: float) -> None:
    """Raise `RefusedError` if a table that a reader creates would be too large; files may ask for any size."""
    count = math.prod(sizes)
    if not count <= _MOST_KNOWN:
        raise RefusedError(f"needs a table of {count:,.0f} elements, expected at most {_MOST_KNOWN:,}")


Convert = Callable[[OnnxCall], Value | Sequence[Value]]
"""A reader of an operator: returns its results, one or several, or raises `RefusedError`."""


def constant_array(value: Value, what: str) -> Array:
    """Return the values of a constant; raise the errors of `OnnxCall.constant_values`."""
    folded = fold(value) if isinstance(value, Node) else value  # dequantised integers are still nodes
    if isinstance(folded, Constant):
        return folded.array
    raise UnknownValueError(f"computes {what} from values that are known only when the model runs", _find_inputs(value))


def _find_inputs(value: Value) -> tuple[str, ...]:
    """Return the names of the inputs that a value is computed from."""
    if isinstance(value, Input):
        return (value.name,)
    read = (
        operand for node in Graph((), (value,), is_tuple=False).nodes() for operand in iterate_values(node.arguments)
    )
    return tuple(dict.fromkeys(operand.name for operand in read if isinstance(operand, Input)))
