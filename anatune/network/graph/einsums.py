"""Sums of products by Einstein's notation, as products of matrices."""

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
    reduced,
    reshape,
    taken,
)
from anatune.network.graph.nodes import Constant, Value, tensor_type

__all__ = ["einsum", "product"]

_Named = tuple[Value, str]
"""A tensor with a letter for each dimension."""


def product(first: Value, second: Value) -> Value:
    """Return products of matrices as NumPy's ``matmul``, of 16 bits in float32; vectors are matrices meanwhile."""
    dtype = tensor_type(first).dtype
    if dtype in ("float16", "bfloat16"):
        return cast(product(cast(first, "float32"), cast(second, "float32")), dtype)
    one, other = tensor_type(first).shape, tensor_type(second).shape
    shape = tensor_type(matmul(first, second)).shape
    left = reshape(first, (1, *one)) if len(one) == 1 else first
    right = reshape(second, (*other, 1)) if len(other) == 1 else second
    return reshape(matmul(left, right), shape)


def einsum(equation: str, values: Sequence[Value]) -> Value:
    """Return what an equation says of tensors of one dtype, as NumPy's ``einsum``.

    Raises
    ------
    ValueError
        The equation does not fit the tensors.
    """
    terms, output = _terms(equation, [len(tensor_type(value).shape) for value in values])
    parts = [_diagonal(value, term) for value, term in zip(values, terms, strict=True)]
    sizes: dict[str, int] = {}
    for value, term in parts:
        for letter, size in zip(term, tensor_type(value).shape, strict=True):
            if size != sizes.setdefault(letter, size) and 1 not in (size, sizes[letter]):
                raise ValueError(f"{letter} of {equation} is {sizes[letter]} and {size}")
            sizes[letter] = max(size, sizes[letter])
    made = parts.pop(0)
    while parts:
        needed = set(output).union(*(term for _, term in parts[1:]))
        made = _contracted(made, parts.pop(0), needed, sizes)
    value, term = _summed(made, set(output))
    return permute(value, [term.index(letter) for letter in output]) if term else value


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return letters of each tensor's dimensions and of the result's; those of an ellipsis are no letters of people."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{equation} is of {len(terms)} tensors, got {len(ranks)}")
    wide = 0
    found = []
    for term, rank in zip(terms, ranks, strict=True):
        more = rank - len(term.replace("...", ""))
        if more < 0 or (more and "..." not in term):
            raise ValueError(f"{term or 'nothing'} of {equation} is a tensor of {rank} dimensions")
        wide = max(wide, more) if "..." in term else wide
        found.append(term.replace("...", _others(more)))
    if not arrow:
        whole = left.replace("...", "").replace(",", "")
        return found, _others(wide) + "".join(sorted(one for one in set(whole) if whole.count(one) == 1))
    return found, output.replace("...", _others(wide))


def _others(count: int) -> str:
    """Return names of the dimensions of an ellipsis, of which the last ones are the same in all tensors."""
    return "".join(chr(0x100 + place) for place in reversed(range(count)))


def _diagonal(value: Value, term: str) -> _Named:
    """Return a tensor without the dimensions whose letter another one has."""
    for letter in term:
        while term.count(letter) > 1:
            first, second = term.index(letter), term.rindex(letter)
            kept = [axis for axis in range(len(term)) if axis not in (first, second)]
            turned = permute(value, (*kept, first, second))
            *sizes, size, _ = tensor_type(turned).shape
            flat = reshape(turned, (*sizes, size * size))
            value = taken(flat, constant(np.arange(size) * (size + 1), "int64"), -1)
            term = "".join(term[axis] for axis in kept) + letter
    return value, term


def _summed(part: _Named, kept: set[str]) -> _Named:
    """Return a tensor summed along the dimensions that are not kept."""
    value, term = part
    axes = [axis for axis, letter in enumerate(term) if letter not in kept]
    return reduced("sum", value, axes, keepdims=False), "".join(letter for letter in term if letter in kept)


def _contracted(first: _Named, second: _Named, needed: set[str], sizes: dict[str, int]) -> _Named:
    """Return the product of two tensors, summed along what is not needed."""
    if isinstance(first[0], Constant) and not isinstance(second[0], Constant):
        first, second = second, first  # weights are the second matrix
    left = _summed(first, needed | set(second[1]))
    right = _summed(second, needed | set(left[1]))
    summed = [letter for letter in left[1] if letter in right[1] and letter not in needed]
    batch = [letter for letter in left[1] if letter in right[1] and letter in needed]
    rows = [letter for letter in left[1] if letter not in right[1]]
    columns = [letter for letter in right[1] if letter not in left[1]]
    one, other = _ordered(left, [*batch, *rows, *summed]), _ordered(right, [*batch, *summed, *columns])
    named = "".join((*batch, *rows, *columns))
    if not summed:
        places = (len(batch) + len(rows), len(batch))
        one = reshape(one, (*tensor_type(one).shape, *(1,) * len(columns)))
        shape = tensor_type(other).shape
        other = reshape(other, (*shape[: places[1]], *(1,) * len(rows), *shape[places[1] :]))
        return elementwise("multiply", one, other), named
    count, length = len(batch), [sizes[letter] for letter in summed]
    shape = tensor_type(one).shape
    one = broadcast(one, (*shape[: count + len(rows)], *length))
    one = reshape(one, (*shape[:count], math.prod(shape[count : count + len(rows)]), math.prod(length)))
    shape = tensor_type(other).shape
    ends = shape[count + len(summed) :]
    other = reshape(
        broadcast(other, (*shape[:count], *length, *ends)), (*shape[:count], math.prod(length), math.prod(ends))
    )
    found = product(one, other)
    return reshape(found, [sizes[letter] for letter in named]), named


def _ordered(part: _Named, letters: Sequence[str]) -> Value:
    value, term = part
    return permute(value, [term.index(letter) for letter in letters]) if letters else value
