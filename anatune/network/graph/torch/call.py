"""One node of an exported program, as what reads its operator sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anatune.network.graph.building import RefusedError, cast, constant, elementwise
from anatune.network.graph.nodes import Array, Constant, TensorType, Value, tensor_type

__all__ = ["Call", "Convert", "Given", "RefusedError", "converted", "is_float"]

Given = Any
"""An argument: a value, a number, text, None, or a list of them."""


@dataclass(frozen=True)
class Call:
    """A node with its operands.

    Attributes
    ----------
    name : str
        The operator with its overload, as "add.Tensor".
    arguments : mapping of str to object
        By the names of the operator's schema, with its defaults.
    kinds : tuple of TensorType
        Of the results, as PyTorch says.
    common : callable
        Takes names of arguments and returns the dtype that PyTorch brings them to.
    users : int
        Which results are read: one past the last.
    """

    name: str
    arguments: Mapping[str, Given]
    kinds: tuple[TensorType, ...]
    common: Callable[..., str]
    users: int

    def __getitem__(self, name: str) -> Given:
        """Return an argument."""
        return self.arguments[name]

    def get(self, name: str, default: Given = None) -> Given:
        """Return an argument; the default where the operator has none of the name."""
        return self.arguments.get(name, default)

    @property
    def kind(self) -> TensorType:
        """The type of the first result."""
        return self.kinds[0]

    def operand(self, name: str, dtype: str = "") -> Value:
        """Return an argument, a tensor or a number, in a dtype; "": that of the result."""
        given, dtype = self[name], dtype or self.kind.dtype
        return converted(given, dtype) if isinstance(given, Value) else constant(given, dtype)

    def shape(self, name: str = "self") -> tuple[int, ...]:
        """Return the sizes of an argument."""
        return tensor_type(self[name]).shape

    def axes(self, name: str = "dim", of: str = "self") -> list[int]:
        """Return dimensions that an argument names, none negative; all where it names none."""
        rank, given = len(self.shape(of)), self.get(name)
        named = [given] if isinstance(given, int) else given
        return sorted({axis % rank for axis in named}) if named and rank else list(range(rank))

    def known(self, name: str, what: str) -> Array:
        """Return the values of an argument.

        Raises
        ------
        RefusedError
            They are known only at run time; `what` they are.
        """
        value = self[name]
        if isinstance(value, Constant):
            return value.array
        raise RefusedError(f"takes {what} from values that are known only when the model runs")


Convert = Callable[[Call], Value | Sequence[Value | None] | int | float]
"""What reads an operator: returns its results, one or several (None: nobody reads it); raises `RefusedError`."""


def is_float(dtype: str) -> bool:
    """Whether numbers of a dtype have fractions."""
    return "float" in dtype


def converted(value: Value, dtype: str) -> Value:
    """Return a value in another dtype, as PyTorch converts: what is no zero is true."""
    own = tensor_type(value).dtype
    return elementwise("not_equal", value, 0) if dtype == "bool" != own else cast(value, dtype)
