"""A node of an exported program, as the reader of its operator sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anatune.network.graph.building import RefusedError, cast, constant, elementwise
from anatune.network.graph.nodes import Array, Constant, TensorType, Value, tensor_type

__all__ = ["Convert", "RefusedError", "TorchArgument", "TorchCall", "is_float", "to_dtype"]

TorchArgument = Any
"""An argument: a value, a number, text, None, or a list of them."""


@dataclass(frozen=True)
class TorchCall:
    """A node and its operands.

    Attributes
    ----------
    name : str
        The operator with its overload, such as "add.Tensor".
    arguments : mapping of str to object
        The arguments by their names in the operator's schema, including defaults.
    kinds : tuple of TensorType
        The types of the results, as PyTorch declares them.
    common : callable
        Takes names of arguments and returns the dtype to which PyTorch promotes them.
    users : int
        One more than the index of the last result that is read.
    """

    name: str
    arguments: Mapping[str, TorchArgument]
    kinds: tuple[TensorType, ...]
    common: Callable[..., str]
    users: int

    def __getitem__(self, name: str) -> TorchArgument:
        """Return an argument."""
        return self.arguments[name]

    def get(self, name: str, default: TorchArgument = None) -> TorchArgument:
        """Return an argument, or the default if the operator has none of that name."""
        return self.arguments.get(name, default)

    @property
    def kind(self) -> TensorType:
        """The type of the first result."""
        return self.kinds[0]

    def operand(self, name: str, dtype: str = "") -> Value:
        """Return a tensor or a number as a value of a dtype; "" stands for that of the result."""
        argument, dtype = self[name], dtype or self.kind.dtype
        return to_dtype(argument, dtype) if isinstance(argument, Value) else constant(argument, dtype)

    def shape(self, name: str = "self") -> tuple[int, ...]:
        """Return the sizes of an argument."""
        return tensor_type(self[name]).shape

    def axes(self, name: str = "dim", of: str = "self") -> list[int]:
        """Return the dimensions in an argument, none negative; all dimensions if it is empty or None."""
        rank, dims = len(self.shape(of)), self.get(name)
        dimensions = [dims] if isinstance(dims, int) else dims
        return sorted({axis % rank for axis in dimensions}) if dimensions and rank else list(range(rank))

    def constant_values(self, name: str, what: str) -> Array:
        """Return the values of a constant argument.

        Raises
        ------
        RefusedError
            They are known only at run time; `what` describes them in the message.
        """
        value = self[name]
        if isinstance(value, Constant):
            return value.array
        raise RefusedError(f"computes {what} from values that are known only when the model runs")


Convert = Callable[[TorchCall], Value | Sequence[Value | None] | int | float]
"""A reader of an operator: returns its results, one or several (None: unread), or raises `RefusedError`."""


def is_float(dtype: str) -> bool:
    """Return whether a dtype has fractions."""
    return "float" in dtype


def to_dtype(value: Value, dtype: str) -> Value:
    """Return a value in another dtype with PyTorch's conversion: all numbers except zero become true."""
    value_dtype = tensor_type(value).dtype
    return elementwise("not_equal", value, 0) if dtype == "bool" != value_dtype else cast(value, dtype)
