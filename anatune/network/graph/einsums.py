"""Einstein summation as products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    broadcast,
    cast,
    constant,
    elementwise,
    matmul,
    permute,
    reduce_axes,
    reshape,
    take_slices,
)
from anatune.network.graph.nodes import Constant, Value, tensor_type

__all__ = ["einsum", "product"]

_NamedTensor = tuple[Value, str]
"""A tensor and a letter for each of its dimensions."""


def product(first: Value, second: Value) -> Value:
    """Return the matrix product as NumPy's ``matmul``; 16-bit floats are multiplied in float32."""
    dtype = tensor_type(first).dtype
    if dtype in ("float16", "bfloat16"):
        return cast(product(cast(first, "float32"), cast(second, "float32")), dtype)
    first_shape, second_shape = tensor_type(first).shape, tensor_type(second).shape
    shape = tensor_type(matmul(first, second)).shape
    left = reshape(first, (1, *first_shape)) if len(first_shape) == 1 else first
    right = reshape(second, (*second_shape, 1)) if len(second_shape) == 1 else second
    return reshape(matmul(left, right), shape)


def einsum(equation: str, values: Sequence[Value]) -> Value:
    """Return the einsum of tensors of one dtype, as NumPy's ``einsum``.

    Raises
    ------
    ValueError
        The equation does not fit the tensors.
    """
    terms, output = _parse_terms(equation, [len(tensor_type(value).shape) for value in values])
    parts = [_take_diagonals(value, term) for value, term in zip(values, terms, strict=True)]
    sizes: dict[str, int] = {}
    for value, term in parts:
        for letter, size in zip(term, tensor_type(value).shape, strict=True):
            if size != sizes.setdefault(letter, size) and 1 not in (size, sizes[letter]):
                raise ValueError(f"axis {letter} of {equation} has the sizes {sizes[letter]} and {size}")
            sizes[letter] = max(size, sizes[letter])
    joined = parts.pop(0)
    while parts:
        needed = set(output).union(*(term for _, term in parts[1:]))
        joined = _contract(joined, parts.pop(0), needed, sizes)
    value, term = _sum_axes(joined, set(output))
    return permute(value, [term.index(letter) for letter in output]) if term else value


def _parse_terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of the dimensions of each tensor and of the result; ellipses get unused letters."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{equation} is an equation of {len(terms)} tensors, got {len(ranks)}")
    rest = 0
    full = []
    for term, rank in zip(terms, ranks, strict=True):
        missing = rank - len(term.replace("...", ""))
        if missing < 0 or (missing and "..." not in term):
            raise ValueError(f"{term or 'an empty term'} of {equation} does not fit a tensor of {rank} dimensions")
        rest = max(rest, missing) if "..." in term else rest
        full.append(term.replace("...", _ellipsis_letters(missing)))
    if not arrow:
        whole = left.replace("...", "").replace(",", "")
        return full, _ellipsis_letters(rest) + "".join(
            sorted(letter for letter in set(whole) if whole.count(letter) == 1)
        )
    return full, output.replace("...", _ellipsis_letters(rest))


def _ellipsis_letters(count: int) -> str:
    """Return letters for the dimensions of an ellipsis; the last letters are the same for all tensors."""
    return "".join(chr(0x100 + index) for index in reversed(range(count)))


def _take_diagonals(value: Value, term: str) -> _NamedTensor:
    """Return the diagonal of a tensor along dimensions that share a letter."""
    for letter in term:
        while term.count(letter) > 1:
            first, second = term.index(letter), term.rindex(letter)
            kept = [axis for axis in range(len(term)) if axis not in (first, second)]
            transposed = permute(value, (*kept, first, second))
            *sizes, size, _ = tensor_type(transposed).shape
            flat = reshape(transposed, (*sizes, size * size))
            value = take_slices(flat, constant(np.arange(size) * (size + 1), "int64"), -1)
            term = "".join(term[axis] for axis in kept) + letter
    return value, term


def _sum_axes(part: _NamedTensor, kept: set[str]) -> _NamedTensor:
    """Return a tensor summed along the dimensions whose letters are not in `kept`."""
    value, term = part
    axes = [axis for axis, letter in enumerate(term) if letter not in kept]
    return reduce_axes("sum", value, axes, keepdims=False), "".join(letter for letter in term if letter in kept)


def _contract(first: _NamedTensor, second: _NamedTensor, needed: set[str], sizes: dict[str, int]) -> _NamedTensor:
    """Return the product of two tensors, summed along the letters that are not needed."""
    if isinstance(first[0], Constant) and not isinstance(second[0], Constant):
        first, second = second, first  # weights are the second matrix
    left = _sum_axes(first, needed | set(second[1]))
    right = _sum_axes(second, needed | set(left[1]))
    summed = [letter for letter in left[1] if letter in right[1] and letter not in needed]
    batch = [letter for letter in left[1] if letter in right[1] and letter in needed]
    rows = [letter for letter in left[1] if letter not in right[1]]
    columns = [letter for letter in right[1] if letter not in left[1]]
    matrix, factor = (_order_axes(left, [*batch, *rows, *summed]), _order_axes(right, [*batch, *summed, *columns]))
    letters = "".join((*batch, *rows, *columns))
    if not summed:
        ranks = (len(batch) + len(rows), len(batch))
        matrix = reshape(matrix, (*tensor_type(matrix).shape, *(1,) * len(columns)))
        shape = tensor_type(factor).shape
        factor = reshape(factor, (*shape[: ranks[1]], *(1,) * len(rows), *shape[ranks[1] :]))
        return elementwise("multiply", matrix, factor), letters
    count, length = len(batch), [sizes[letter] for letter in summed]
    shape = tensor_type(matrix).shape
    matrix = broadcast(matrix, (*shape[: count + len(rows)], *length))
    matrix = reshape(matrix, (*shape[:count], math.prod(shape[count : count + len(rows)]), math.prod(length)))
    shape = tensor_type(factor).shape
    ends = shape[count + len(summed) :]
    factor = reshape(
        broadcast(factor, (*shape[:count], *length, *ends)), (*shape[:count], math.prod(length), math.prod(ends))
    )
    result = product(matrix, factor)
    return reshape(result, [sizes[letter] for letter in letters]), letters


def _order_axes(part: _NamedTensor, letters: Sequence[str]) -> Value:
    value, term = part
    return permute(value, [term.index(letter) for letter in letters]) if letters else value
