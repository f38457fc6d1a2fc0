"""Numbers of 8 bits with scales and zero points, as nodes: what readers of models write and passes look for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.network.graph.folding import computed
from anatune.network.graph.nodes import Argument, Array, Constant, Graph, Node, TensorType, Value, tensor_type
from anatune.network.graph.operators import DEQUANTIZE, PRODUCTS, QUANTIZE

__all__ = ["Scale", "dequantized", "has_integers", "known_scale", "quantized", "scale_of"]


def has_integers(graph: Graph) -> bool:
    """Whether numbers become integers of 8 bits in a graph."""
    return any(node.op == QUANTIZE or (node.op in PRODUCTS and _reads_bytes(node)) for node in graph.nodes())


def _reads_bytes(node: Node) -> bool:
    return tensor_type(node.arguments[0]).dtype in BYTE_DTYPES


class Scale(NamedTuple):
    """What integers are numbers by: ``(stored - zero) * scale``.

    Attributes
    ----------
    scale : ndarray of float32
        Of the whole tensor, (), or broadcast along it.
    zero : ndarray of int32
        Likewise.
    """

    scale: Array
    zero: Array

    @property
    def is_one(self) -> bool:
        """Whether the whole tensor has it."""
        return self.scale.size == self.zero.size == 1

    def equals(self, other: Scale | None) -> bool:
        """Whether both mean the same."""
        return other is not None and all(np.array_equal(one, two) for one, two in zip(self, other, strict=True))


def known_scale(scale: Argument, zero: Argument, dtype: str) -> Scale | None:
    """Return the scale of a tensor of 8 bits; None: it is known at run time alone, negative, or of other integers.

    Raises
    ------
    ValueError
        It is zero, infinite or no number.
    """
    if not isinstance(scale, Constant):
        return None
    if not (np.isfinite(scale.array).all() and scale.array.all()):
        worst = scale.array[~(np.isfinite(scale.array) & (scale.array != 0))].reshape(-1)[0]
        raise ValueError(f"has a scale of {worst:g}, expected numbers above 0; quantise the model again")
    if dtype not in BYTE_DTYPES or not (zero is None or isinstance(zero, Constant)) or (scale.array < 0).any():
        return None
    zeros = np.zeros((), np.int32) if zero is None else zero.array.astype(np.int32)
    return Scale(scale.array.astype(np.float32), zeros)


def quantized(value: Value, scale: Scale, dtype: str, ends: tuple[int, int] | None = None) -> Value:
    """Return float32 numbers as integers; `ends`: the least and the largest, where the dtype has more."""
    low, high = ends or INTEGER_RANGE[dtype]
    kind = TensorType(tensor_type(value).shape, dtype)
    made = Node(QUANTIZE, (value, *map(Constant, scale)), kind, {"low": low, "high": high})
    return computed(made)


def dequantized(value: Value, scale: Scale) -> Node:
    """Return integers as float32 numbers; constants, too, are a node until passes have seen that they were integers."""
    return Node(DEQUANTIZE, (value, *map(Constant, scale)), TensorType(tensor_type(value).shape, "float32"))


def scale_of(value: Argument, op: str = DEQUANTIZE) -> Scale | None:
    """Return the scale of a value that was converted from integers, or (`op` QUANTIZE) to them; None: it is no such."""
    if not isinstance(value, Node) or value.op != op:
        return None
    return Scale(value.arguments[1].array, value.arguments[2].array)
