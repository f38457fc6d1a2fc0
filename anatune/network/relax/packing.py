"""Pack operands by NumPy: packing functions that only move elements become copies between strided views.

A loop nest around ``packed[a * i + b * j] = operand[c * i, j]`` is one copy: loops are dimensions, factors are strides.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from anatune.network.graph.nodes import Array

__all__ = ["Copy", "apply_copies", "copies_of"]

_IGNORED = {"func_attr", "reads", "writes"}
"""Names of calls that move nothing."""
_Affine = tuple[int, dict[str, int]]
"""The constant and the factors of variables in an affine expression."""


class Copy(NamedTuple):
    """One copy between flat arrays.

    Attributes
    ----------
    extents : tuple of int
        Extents of the loops.
    to, source : (int, tuple of int)
        Index of the first element, and the stride of each loop.
    """

    extents: tuple[int, ...]
    to: tuple[int, tuple[int, ...]]
    source: tuple[int, tuple[int, ...]]


class _NotCopyingError(Exception):
    """The function does not only move elements."""


def copies_of(text: str) -> tuple[Copy, ...] | None:
    """Return the copies that a CPU template's packing function makes into zeros; None if it does anything else.

    Parameters
    ----------
    text : str
        TVMScript of a function of (operand, packed).
    """
    try:
        (function,) = ast.parse(text).body
        if not isinstance(function, ast.FunctionDef):
            return None
        operand, packed = function.args.args
        reader = _PackingReader(operand.arg, _shape(operand), packed.arg, math.prod(_shape(packed)))
        reader.walk(function.body, {})
    except (_NotCopyingError, SyntaxError, ValueError):
        return None
    return tuple(reader.copies)


def apply_copies(copies: Sequence[Copy], operand: Array, packed: Array) -> None:
    """Copy an operand's elements into zeroed memory."""
    word = f"u{operand.itemsize}"
    source, target = np.ascontiguousarray(operand).reshape(-1).view(word), packed.reshape(-1).view(word)
    for copy in copies:
        packed_view, source_view = (
            as_strided(memory[start:], copy.extents, [stride * memory.itemsize for stride in strides])
            for memory, (start, strides) in ((target, copy.to), (source, copy.source))
        )
        packed_view[...] = source_view


def _shape(parameter: ast.arg) -> tuple[int, ...]:
    """Return the shape of a parameter ``T.Buffer(shape, dtype)``."""
    if not isinstance(parameter.annotation, ast.Call):
        raise _NotCopyingError
    shape = ast.literal_eval(parameter.annotation.args[0])
    return tuple(shape)


class _PackingReader:
    """Reads the statements of one packing function."""

    def __init__(self, operand: str, shape: tuple[int, ...], packed: str, size: int) -> None:
        self._operand, self._shape, self._packed, self._size = operand, shape, packed, size
        self._pitches = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
        self.copies: list[Copy] = []

    def walk(self, body: Sequence[ast.stmt], loops: Mapping[str, int]) -> None:
        """Read statements inside loops, which map a variable to its number of iterations."""
        for node in body:
            if isinstance(node, ast.With):
                self.walk(node.body, loops)
            elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                self.walk(node.body, {**loops, node.target.id: _iterations(node.iter)})
            elif isinstance(node, ast.Assign):
                self._assign(node, loops)
            elif not isinstance(node, ast.Expr) or _called_name(node.value) not in _IGNORED:
                raise _NotCopyingError

    def _assign(self, node: ast.Assign, loops: Mapping[str, int]) -> None:
        value, extents = node.value, dict(loops)
        if _is_zero(value):
            return
        if _called_name(value) == "if_then_else" and isinstance(value, ast.Call) and _is_zero(value.args[2]):
            for condition in _conditions(value.args[0]):
                variable, most = _limit(condition)
                extents[variable] = min(extents[variable], most)
            value = value.args[1]
        (target,) = node.targets
        to, source = self._flat_index(target, self._packed, (1,)), self._flat_index(value, self._operand, self._pitches)
        sizes = tuple(extents.values())
        for (start, factors), size in ((to, self._size), (source, math.prod(self._shape))):
            if start < 0 or start + sum((extents[name] - 1) * factor for name, factor in factors.items()) >= size:
                raise _NotCopyingError
        places = ((start, tuple(factors.get(name, 0) for name in extents)) for start, factors in (to, source))
        self.copies.append(Copy(sizes, *places))

    def _flat_index(self, node: ast.expr, tensor: str, pitches: Sequence[int]) -> _Affine:
        """Return the flat index of an element as an affine expression."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or node.value.id != tensor:
            raise _NotCopyingError
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        start, factors = 0, dict[str, int]()
        for index, pitch in zip(places, pitches, strict=True):
            constant, factors_of_index = _affine(index)
            start += constant * pitch
            for name, factor in factors_of_index.items():
                factors[name] = factors.get(name, 0) + factor * pitch
        return start, factors


def _called_name(node: ast.expr) -> str:
    """Return x for ``T.x(...)``, and "" for anything else."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _is_zero(node: ast.expr) -> bool:
    return _called_name(node) == "Cast" and isinstance(node, ast.Call) and ast.unparse(node.args[1]) == "0"


def _iterations(node: ast.expr) -> int:
    """Return the number of iterations of a loop that begins at 0."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("range", "T.parallel") or len(node.args) != 1:
        raise _NotCopyingError
    return int(ast.literal_eval(node.args[0]))


def _conditions(node: ast.expr) -> list[ast.expr]:
    return node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) else [node]


def _limit(node: ast.expr) -> tuple[str, int]:
    """Return the variable of a condition ``variable < number``, and the number."""
    if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and isinstance(node.ops[0], ast.Lt):
        return node.left.id, int(ast.literal_eval(node.comparators[0]))
    raise _NotCopyingError


def _affine(node: ast.expr) -> _Affine:
    """Return the constant and the factors of an affine expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value, {}
    if isinstance(node, ast.Name):
        return 0, {node.id: 1}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        (first, left), (second, right) = _affine(node.left), _affine(node.right)
        if isinstance(node.op, ast.Add):
            return first + second, {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}
        if not right:
            return first * second, {name: factor * second for name, factor in left.items()}
    raise _NotCopyingError
