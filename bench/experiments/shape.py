"""The shape of a surface as coordinate descent sees it: lines along one knob, and ways down.

Notation
--------
line : the legal points that differ in one knob only, in the order of its values.
down : a step to a neighbour (one knob, one step) of strictly smaller cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anatune.search.knobs import Knobs, make_knobs
from anatune.templates.base.model import Model
from bench.experiments.grids import Surface

__all__ = ["REACHED", "Shape", "shape_of", "way_down"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

REACHED = 1.001
"""Cost over the optimum that counts as the optimum: the models take times within 0.1 % as equal."""
_EQUAL = 1.0 + 1e-9
"""Costs that differ by less are rounding."""


@dataclass
class Shape:
    """What was seen of a surface.

    Attributes
    ----------
    single_valley : dict of str to float
        Knob -> share of its lines (at least three points) that fall, then rise: no second valley.
    convex : dict of str to float
        Knob -> share of neighbouring triples of its lines whose middle is at most the mean of its ends.
    reached : dict of str to float
        Share of the steepest descents from random points that end within 0.1, 1, 5, 10 % of the optimum.
    from_origin : float
        End of the steepest descent from the first values of all knobs (where legal), over the optimum.
    chain : float
        Best end of random ways down from there, over the optimum: 1 if a descending chain leads to the optimum
        (all points where `is_exact`, else a sample of ways, so that a chain may have been missed).
    num_minima : int, optional
        Points without a smaller neighbour, of all, where all were looked at.
    """

    surface: str
    group: str
    size: float
    num_knobs: int
    single_valley: dict[str, float] = field(default_factory=dict)
    convex: dict[str, float] = field(default_factory=dict)
    reached: dict[str, float] = field(default_factory=dict)
    from_origin: float | None = None
    steps_from_origin: int = 0
    chain: float | None = None
    is_exact: bool = False
    num_minima: int | None = None

    def mean(self, name: str) -> float:
        """Return the mean of a share over the knobs."""
        values = list(getattr(self, name).values())
        return float(np.mean(values)) if values else float("nan")


def shape_of(surface: Surface, *, samples: int, seed: int, most_points: int = 20_000) -> Shape:
    """Look at lines through `samples` random points and at ways down from them; whole grids up to `most_points`."""
    model, knobs = surface.model, make_knobs(surface.model)
    shape = Shape(surface.name, surface.group, float(model.space.size), len(knobs.names))
    drawn = knobs.draw(samples, (seed, 0))
    for knob, name in enumerate(knobs.names):
        lines = [line for line in _lines(model, knobs, drawn, knob) if len(line) >= 3]
        if lines:
            shape.single_valley[name] = float(np.mean([_is_single_valley(line) for line in lines]))
            triples = np.concatenate([line[1:-1] <= 0.5 * (line[:-2] + line[2:]) * _EQUAL for line in lines])
            shape.convex[name] = float(np.mean(triples))
    ends = np.array([way_down(model, knobs, point)[1] for point in drawn]) / surface.best
    for share in (REACHED, 1.01, 1.05, 1.1):
        shape.reached[f"{share:g}"] = float(np.mean(ends <= share))
    origin, legal = knobs.at(np.zeros((1, len(knobs.names)), dtype=np.int64))
    if legal[0]:
        way, end = way_down(model, knobs, origin[0])
        shape.steps_from_origin, shape.from_origin = len(way) - 1, end / surface.best
        shape.is_exact = model.space.size <= most_points
        if shape.is_exact:
            shape.chain = _chain(model, knobs, origin[0]) / surface.best
        else:
            rngs = [np.random.default_rng([seed, 1, way]) for way in range(samples)]
            shape.chain = min(way_down(model, knobs, origin[0], rng)[1] for rng in rngs) / surface.best
    if model.space.size <= most_points:
        points = model.space.points_at(np.arange(model.space.size))
        points = points[model.check(points) == 0]
        shape.num_minima = sum(not len(_down(model, knobs, point)[0]) for point in points)
    return shape


def _lines(model: Model, knobs: Knobs, points: Integers, knob: int) -> Iterator[Floats]:
    """Yield the costs of the line of each point along a knob."""
    count = int(knobs.radices[knob])
    indices = np.repeat(knobs.indices(points), count, axis=0)
    indices[:, knob] = np.tile(np.arange(count), len(points))
    found, legal = knobs.at(indices)
    costs = np.full(len(found), np.nan)
    if legal.any():
        costs[legal] = model.times(found[legal])[0]
    for line in costs.reshape(len(points), count):
        yield line[np.isfinite(line)]


def _is_single_valley(line: Floats) -> bool:
    """Say whether costs never fall again after they have risen."""
    rises, falls = line[1:] > line[:-1] * _EQUAL, line[1:] * _EQUAL < line[:-1]
    return not rises.any() or not falls[int(np.argmax(rises)) :].any()


def _down(model: Model, knobs: Knobs, point: Integers) -> tuple[Integers, Floats]:
    """Return the neighbours of smaller cost, and their costs."""
    near = knobs.neighbours(point, 1)
    if not len(near):
        return near, np.empty(0)
    costs = model.times(np.concatenate([point[None, :], near]))[0]
    smaller = costs[1:] * _EQUAL < costs[0]
    return near[smaller], costs[1:][smaller]


def way_down(
    model: Model, knobs: Knobs, point: Integers, rng: np.random.Generator | None = None
) -> tuple[list[Integers], float]:
    """Go down, steepest first or (with `rng`) any way, until there is none; return (points, cost of the last)."""
    way, cost = [point], float(model.times(point[None, :])[0][0])
    while True:
        near, costs = _down(model, knobs, way[-1])
        if not len(near):
            return way, cost
        at = int(np.argmin(costs)) if rng is None else int(rng.integers(len(near)))
        way.append(near[at])
        cost = float(costs[at])


def _chain(model: Model, knobs: Knobs, origin: Integers) -> float:
    """Return the smallest cost that any way down from a point leads to."""
    met, waiting, best = {origin.tobytes()}, [origin], float(model.times(origin[None, :])[0][0])
    while waiting:
        near, costs = _down(model, knobs, waiting.pop())
        best = min([best, *costs.tolist()])
        for one in near:
            if one.tobytes() not in met:
                met.add(one.tobytes())
                waiting.append(one)
    return best
