"""What grows a random program step by step: draws of sizes, values and operands, and the inputs of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.fuzz.data import EDGES, drawn, edged
from bench.fuzz.program import Array, Program, Step

__all__ = ["MOST_ELEMENTS", "VARYING", "Builder", "Draw", "Skip"]

MOST_ELEMENTS = 8192
"""Elements of an operand; results may have four times as many."""
VARYING = 7
"""The size that varies, where one does: dimensions of inputs that have it are one size."""


class Skip(Exception):  # noqa: N818  not an error: the operator does not fit here
    """An operator cannot be added to what there is."""


class Builder:
    """A program that grows, with the values of all there is so far."""

    kind = ""
    dtypes = ("float32",) * 8 + ("float16", "float64")

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng([*self.kind.encode(), seed])
        self.seed = seed
        self.dtype = str(self.random.choice(self.dtypes))
        self.varies = self.random.random() < 0.15
        self.steps: list[Step] = []
        self.arrays: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}
        self.weights: dict[str, Array] = {}
        self.limits: dict[str, tuple[int, int] | None] = {}
        self._count = 0

    # ---- draws ----

    def chance(self, share: float) -> bool:
        """Return true in so many of all cases."""
        return bool(self.random.random() < share)

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return int(self.random.integers(low, high + 1))

    def choice(self, items: Sequence[Any]) -> Any:
        """Return one of some items."""
        return items[int(self.random.integers(len(items)))]

    def size(self) -> int:
        """Return an extent: small, odd, a power of two, now and then 1, seldom 0."""
        sizes = [1, 2, 3, 4, 5, 7, 8, 8, 11, 13, 16, 17, 19, 32]
        return 0 if self.chance(0.004) else VARYING if self.varies and self.chance(0.4) else int(self.choice(sizes))

    def shape(self, low: int = 1, high: int = 4) -> tuple[int, ...]:
        """Return sizes of a tensor of few elements."""
        while True:
            shape = tuple(self.size() for _ in range(self.integer(low, high)))
            if np.prod(shape) <= MOST_ELEMENTS:
                return shape

    # ---- values ----

    def _named(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def given(self, array: Array, *, weight: bool | None = None, limits: tuple[int, int] | None = None) -> str:
        """Return the name of a new input or weight; one with limits holds integers in [low, high) in all runs."""
        name = self._named()
        is_weight = self.chance(0.5) if weight is None else weight
        array = np.asarray(array)
        (self.weights if is_weight else self.inputs)[name] = array
        self.arrays[name] = array
        if limits is not None:
            self.limits[name] = limits
        return name

    def new(self, shape: Sequence[int], dtype: str | None = None, *, weight: bool | None = None) -> str:
        """Return the name of a new tensor of ordinary numbers."""
        return self.given(drawn(self.random, shape, dtype or self.dtype), weight=weight)

    def positive(self, shape: Sequence[int], *, weight: bool = True) -> str:
        """Return the name of a weight of positive numbers."""
        return self.given(np.abs(drawn(self.random, shape, self.dtype)) + np.array(0.5, self.dtype), weight=weight)

    def long(self) -> str:
        """Return the name of an input of very many equal numbers, which stay what they are in all runs."""
        shape = (200_000, 3) if self.chance(0.4) else (1_000_000,)
        name = self.given(np.full(shape, 0.1, "float32"), weight=False)
        self.limits[name] = None
        return name

    def indices(
        self, shape: Sequence[int], low: int, high: int, *, dtype: str = "int64", weight: bool | None = None
    ) -> str:
        """Return the name of a tensor of integers in [low, high)."""
        if high <= low:
            raise Skip
        array = self.random.integers(low, high, tuple(shape)).astype(dtype)
        return self.given(array, weight=weight, limits=(low, high))

    def numbers(self, values: Sequence[int], dtype: str = "int64") -> str:
        """Return the name of a weight of these integers: axes, sizes."""
        return self.given(np.array(values, dtype), weight=True)

    def pick(self, dtypes: Sequence[str] | None = None, low: int = 0, high: int = 6) -> str:
        """Return the name of a value of some dtype and rank: a late one, or a new input."""
        dtypes = (self.dtype,) if dtypes is None else dtypes
        fit = [
            name for name, array in self.arrays.items()
            if array.dtype.name in dtypes and low <= array.ndim <= high and name not in self.limits
            and (name not in self.weights) and array.size <= MOST_ELEMENTS
        ]  # fmt: skip
        if fit and self.chance(0.85):
            return fit[-1] if self.chance(0.6) else str(self.choice(fit))
        return self.new(self.shape(max(low, 1), min(high, 4)) if high else (), str(self.choice(dtypes)), weight=False)

    def like(self, name: str) -> str:
        """Return the name of a value that can be broadcast to another one."""
        array = self.arrays[name]
        fit = [
            other for other, one in self.arrays.items()
            if one.dtype == array.dtype and one.shape == array.shape and other != name and other not in self.limits
        ]  # fmt: skip
        if fit and self.chance(0.5):
            return str(self.choice(fit))
        shape = array.shape[self.integer(0, array.ndim) :] if self.chance(0.5) else array.shape
        shape = tuple(1 if self.chance(0.2) else size for size in shape)
        return self.new(shape, array.dtype.name)

    # ---- programs ----

    def finished(self) -> Program:
        """Return the program: outputs are what nobody reads, and now and then more; inputs of several runs."""
        read = {name for step in self.steps for name in step.inputs}
        produced = [name for step in self.steps for name in step.outputs if name in self.arrays]
        outputs = [name for name in produced if name not in read or self.chance(0.1)] or produced[-1:]
        edges = ["", *(str(one) for one in self.random.choice(EDGES, 3, replace=False))]
        sizes = [VARYING] * len(edges)
        if self.varies:
            sizes = [VARYING, 1, 2, *(int(one) for one in self.random.integers(1, 17, len(edges) - 3))]
        if not self.inputs:
            self.new((3,), weight=False)
        inputs = {
            name: tuple(self._run_of(name, array, edge, size) for edge, size in zip(edges, sizes, strict=True))
            for name, array in self.inputs.items()
        }
        return Program(self.kind, self.seed, tuple(self.steps), inputs, self.weights, tuple(outputs), self.settings())

    def settings(self) -> dict[str, Any]:
        """Return how the program is run."""
        return {"varies": self.varies, "threads": 2 if self.chance(0.1) else 1}

    def _run_of(self, name: str, array: Array, edge: str, size: int) -> Array:
        shape = tuple(size if self.varies and one == VARYING else one for one in array.shape)
        if name in self.limits:
            limits = self.limits[name]
            if limits is None:
                return array
            low, high = limits
            if not edge and shape == array.shape:
                return array
            return self.random.integers(low, high, shape).astype(array.dtype)
        if not edge and shape == array.shape:
            return array
        other = array if shape == array.shape else drawn(self.random, shape, array.dtype.name)
        return edged(self.random, other, edge) if edge and self.chance(0.8) else other

    def drop_unused(self) -> None:
        """Forget values that no step reads or makes."""
        used = {name for step in self.steps for name in (*step.inputs, *step.outputs)}
        for group in (self.inputs, self.weights, self.arrays):
            for name in [name for name in group if name not in used]:
                del group[name]

    def grow(self, operators: Mapping[str, Callable[[Any], object]], count: int) -> None:
        """Add steps of operators that are drawn, until there are so many or nothing fits."""
        names, tries = sorted(operators), 0
        while len(self.steps) < count and tries < 60:
            tries += 1
            before = len(self.steps)
            try:
                operators[str(self.choice(names))](self)
            except Skip:
                for step in self.steps[before:]:
                    for name in step.outputs:
                        self.arrays.pop(name, None)
                del self.steps[before:]
        self.drop_unused()


Draw = Callable[[Any], object]
"""Adds an operator to a builder; may raise `Skip`."""
