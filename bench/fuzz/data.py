"""Numbers that programs are run with: normal ones, and those at the edges of dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.fuzz.program import Array

__all__ = ["EDGES", "drawn", "edged"]

EDGES = ("zeros", "row of zeros", "negative zeros", "millionths", "denormal", "large", "infinite", "NaN", "mixed")
"""Sets of edge inputs. Of integers: their least and greatest and zero, mixed by turns."""


def drawn(random: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Return ordinary numbers of a dtype, some of them alike."""
    shape = tuple(shape)
    if dtype == "bool":
        return random.random(shape) < 0.5
    if dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        return random.integers(max(limits.min, -9), min(limits.max, 10), shape).astype(dtype)
    numbers = random.standard_normal(shape)
    if random.random() < 0.2:
        numbers = np.round(numbers * 2) / 2
    return in_dtype(numbers, dtype)


def in_dtype(numbers: Array, dtype: str) -> Array:
    """Return numbers in a dtype, bfloat16 included."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.asarray(numbers).astype(np.float32).astype(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        return np.asarray(numbers).astype(dtype)


def edged(random: np.random.Generator, array: Array, edge: str) -> Array:
    """Return an array like another one with numbers of a set of `EDGES`."""
    shape, dtype = array.shape, array.dtype.name
    if dtype == "bool":
        return np.full(shape, random.random() < 0.5) if edge != "mixed" else drawn(random, shape, dtype)
    if dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        chosen = {
            "zeros": [0], "negative zeros": [limits.min], "large": [limits.max],
            "infinite": [limits.min, limits.max], "millionths": [-1 if limits.min else 1, 0, 1],
        }.get(edge)  # fmt: skip
        if edge == "row of zeros":
            return _with_zeros(random, array)
        if chosen is None:
            chosen = [limits.min, limits.max, 0, 1, 2]
        return random.choice(np.array(chosen, dtype), shape)
    normal = random.standard_normal(shape)
    numbers = {
        "zeros": lambda: np.zeros(shape),
        "row of zeros": lambda: _with_zeros(random, normal),
        "negative zeros": lambda: np.where(random.random(shape) < 0.7, -0.0, normal),
        "millionths": lambda: normal * 10.0 ** random.integers(-9, -3, shape),
        "denormal": lambda: normal * (1e-40 if dtype in ("float32", "bfloat16") else 1e-6),
        "large": lambda: normal * 10.0 ** (random.integers(3, 31) if dtype != "float16" else random.integers(1, 5)),
        "infinite": lambda: np.where(random.random(shape) < 0.3, np.copysign(np.inf, normal), normal),
        "NaN": lambda: np.where(random.random(shape) < 0.2, np.nan, normal),
        "mixed": lambda: random.choice(
            np.array([0, -0.0, 1, -1, 1e-6, -1e-6, 1e-20, 1e4, -1e4, 0.5, 2.5, -88, 89, 20, -20, 3e-5]), shape
        ),
    }[edge]()
    return in_dtype(numbers, dtype)


def _with_zeros(random: np.random.Generator, array: Array) -> Array:
    """Return an array some of whose rows, along one axis, are zeros."""
    found = np.array(array)
    if found.ndim and found.size:
        axis = int(random.integers(found.ndim))
        index: list[object] = [slice(None)] * found.ndim
        index[axis] = int(random.integers(found.shape[axis]))
        found[tuple(index)] = 0
    return found
