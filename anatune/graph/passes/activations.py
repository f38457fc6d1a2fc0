"""Activations that a model spells out, such as GELU of multiplications and a tanh, by their names.

What a few element-wise operators on one value compute together is told from their values at some numbers, not from
their order: exporters spell the same function in many ways.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from anatune.core.activations import ACTIVATIONS
from anatune.graph.folding import computed
from anatune.graph.nodes import Argument, Constant, Graph, Node, Scalar, TensorType, Value, rewritten, values_in
from anatune.graph.operators import applied, operator_of

__all__ = ["with_activations"]

Floats = NDArray[np.float64]
_SAMPLES: Floats = np.concatenate([np.linspace(-9.0, 9.0, 61), np.linspace(-1.0, 1.0, 20)])
_TOLERANCE = 1e-5
"""Of the largest magnitude: constants are written in float32, and two forms of GELU differ by 5e-4."""
_DEEPEST = 12
"""Operators between an activation's result and its argument."""
_LAST = ("multiply", "divide", "minimum", "maximum", "clip", "add")
"""Operators that spelt activations end with."""


def with_activations(graph: Graph) -> Graph:
    """Return a graph in which activations of several operators are one."""

    def replace(own: Node) -> Value:
        if own.op not in _LAST or not isinstance(own.type, TensorType) or own.type.dtype != "float32":
            return own
        for source in _sources(own):
            values = _values(own, source, _SAMPLES)
            if values is None:
                continue
            for name, function in ACTIVATIONS.items():
                want = function(_SAMPLES)
                if np.abs(values - want).max() <= _TOLERANCE * np.abs(want).max() and _keeps_bounds(own, source, name):
                    return applied(f"nn.{name}", source)
        return own

    return rewritten(graph, replace)


def _spells(value: Value) -> TypeGuard[Node]:
    return isinstance(value, Node) and operator_of(value).spells_activations


def _keeps_bounds(node: Node, source: Value, name: str) -> bool:
    """Whether a node is an activation around its own bounds, too: clip(x, 0, 100) is no relu."""
    bounds = _bounds(node, source)
    if not bounds:
        return True
    points = np.concatenate([np.array(bounds) * factor for factor in (0.5, 1.0, 2.0)])
    values = _values(node, source, points)
    want = ACTIVATIONS[name](points)
    return values is not None and bool((np.abs(values - want) <= _TOLERANCE * np.maximum(1.0, np.abs(want))).all())


def _bounds(node: Node, source: Value) -> list[float]:
    """Return the finite numbers that a node's argument and what is made of it are bounded by."""
    found: list[float] = []
    stack: list[Value] = [node]
    while stack:
        value = stack.pop()
        if value is source or not _spells(value):
            continue
        stack += values_in(value.arguments)
        if value.op in ("clip", "maximum", "minimum"):
            for argument in value.arguments[1:]:
                number = argument.value if isinstance(argument, Scalar) else None
                if isinstance(argument, Constant) and argument.array.size == 1:
                    number = argument.array.reshape(()).item()
                if number is not None and np.isfinite(number):
                    found.append(float(number))
    return found


def _sources(node: Node) -> list[Value]:
    """Return what a node may be a function of: what it reads, however indirectly, of its own type."""
    found: dict[int, Value] = {}
    level: list[Value] = [node]
    for _ in range(_DEEPEST):
        following: list[Value] = []
        for value in level:
            if _spells(value):
                for one in values_in(value.arguments):
                    if one.type == node.type and id(one) not in found and not isinstance(one, Constant):
                        found[id(one)] = one
                        following.append(one)
        level = following
    return list(found.values())


def _values(node: Node, source: Value, samples: Floats) -> Floats | None:
    """Return a node's values where `source` has those of `samples`; None: it depends on something else."""
    known: dict[int, Constant | None] = {id(source): Constant(samples)}

    def value_of(value: Argument, deep: int) -> Constant | Scalar | None:
        if isinstance(value, Scalar):
            return value
        if not isinstance(value, Value) or deep > _DEEPEST:
            return None
        if id(value) not in known:
            known[id(value)] = None
            if isinstance(value, Constant):
                known[id(value)] = (
                    Constant(value.array.astype(np.float64).reshape(())) if value.array.size == 1 else None
                )
            elif _spells(value):
                arguments: list[Constant | Scalar] = []
                for argument in value.arguments:
                    if (one := value_of(argument, deep + 1)) is None:  # the others do not matter, and may be many
                        break
                    arguments.append(one)
                else:
                    made = computed(value.of(tuple(arguments), TensorType(samples.shape, "float64")))
                    known[id(value)] = made if isinstance(made, Constant) else None
        return known[id(value)]

    found = value_of(node, 0)
    return found.array if isinstance(found, Constant) and np.isfinite(found.array).all() else None
