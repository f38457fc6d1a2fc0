"""Quantised tensors of 8 bits with scales and zero points, as nodes that readers write and passes recognise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.network.graph.folding import fold
from anatune.network.graph.nodes import Argument, Array, Constant, Graph, Node, TensorType, Value, tensor_type
from anatune.network.graph.operators import DEQUANTIZE, PRODUCTS, QUANTIZE

__all__ = ["QuantisationScale", "constant_scale", "dequantize", "has_integers", "quantize", "scale_of"]


def has_integers(graph: Graph) -> bool:
    """Return whether a graph quantises numbers to 8 bits."""
    return any(node.op == QUANTIZE or (node.op in PRODUCTS and _reads_bytes(node)) for node in graph.nodes())


def _reads_bytes(node: Node) -> bool:
    return tensor_type(node.arguments[0]).dtype in BYTE_DTYPES


class QuantisationScale(NamedTuple):
    """A scale and a zero point: an integer stands for ``(stored - zero) * scale``.

    Attributes
    ----------
    scale : ndarray of float32
        The scale of the whole tensor, (), or one that is broadcast to it.
    zero : ndarray of int32
        The zero point, likewise.
    """

    scale: Array
    zero: Array

    @property
    def is_one(self) -> bool:
        """Return whether the whole tensor has a single scale and zero point."""
        return self.scale.size == self.zero.size == 1

    def equals(self, other: QuantisationScale | None) -> bool:
        """Return whether both have the same scale and zero point."""
        return other is not None and all(
            np.array_equal(first, second) for first, second in zip(self, other, strict=True)
        )


def constant_scale(scale: Argument, zero: Argument, dtype: str) -> QuantisationScale | None:
    """Return the scale of a tensor of 8 bits, or None if it is not constant, negative, or not of 8 bits.

    Raises
    ------
    ValueError
        The scale is zero, infinite or NaN.
    """
    if not isinstance(scale, Constant):
        return None
    if not (np.isfinite(scale.array).all() and scale.array.all()):
        worst = scale.array[~(np.isfinite(scale.array) & (scale.array != 0))].reshape(-1)[0]
        raise ValueError(f"has a scale of {worst:g}, expected finite numbers above 0; quantise the model again")
    if dtype not in BYTE_DTYPES or not (zero is None or isinstance(zero, Constant)) or (scale.array < 0).any():
        return None
    zeros = np.zeros((), np.int32) if zero is None else zero.array.astype(np.int32)
    return QuantisationScale(scale.array.astype(np.float32), zeros)


def quantize(value: Value, scale: QuantisationScale, dtype: str, ends: tuple[int, int] | None = None) -> Value:
    """Return float32 numbers quantised to integers; `ends` is a smaller range than that of the dtype."""
    low, high = ends or INTEGER_RANGE[dtype]
    kind = TensorType(tensor_type(value).shape, dtype)
    node = Node(QUANTIZE, (value, *map(Constant, scale)), kind, {"low": low, "high": high})
    return fold(node)


def dequantize(value: Value, scale: QuantisationScale) -> Node:
    """Return integers as float32 numbers; constants are not folded, because passes look for the integers."""
    return Node(DEQUANTIZE, (value, *map(Constant, scale)), TensorType(tensor_type(value).shape, "float32"))


def scale_of(value: Argument, op: str = DEQUANTIZE) -> QuantisationScale | None:
    """Return the scale of a value that is dequantised, or quantised with `op` QUANTIZE, or None for other values."""
    if not isinstance(value, Node) or value.op != op:
        return None
    return QuantisationScale(value.arguments[1].array, value.arguments[2].array)
