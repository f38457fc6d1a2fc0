"""Simulated annealing over the knobs of a space, by scipy: a rival that anatune's strategies do not contain."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import dual_annealing

from anatune.search.knobs import make_knobs
from anatune.templates.base.model import Model
from bench.experiments.surfaces import Search

__all__ = ["anneal"]

_ILLEGAL = 1e30
"""What annealing is told of a point that is not legal. It knows no rules; such a point is no trial."""
_CALLS = 50
"""Calls for each trial, at most: points come again, others are not legal."""


class _Enough(Exception):  # noqa: N818 - no error: scipy has no other way to end after so many different points
    pass


def anneal(model: Model, trials: int, found: Search) -> Search:
    """Anneal over the numbers of the knobs' values, rounded, from a random point; fill in `found`.

    Scipy's generalised annealing with its own settings, without its local search. A program that comes again is no
    trial.
    """
    knobs = make_knobs(model)
    known: dict[Hashable, float] = {}
    """Program -> time over the optimum: about 1, the scale that scipy's temperatures are made for."""

    def ratio_of(place: NDArray[np.float64]) -> float:
        points, legal = knobs.at(np.rint(place).astype(np.int64)[None, :])
        if not legal[0]:
            return _ILLEGAL
        key = model.program_key(points[0])
        if key not in known:
            if found.num_trials >= trials:
                raise _Enough
            ratio = float(model.times(points)[0][0]) / found.best_s
            found.num_trials += 1
            if not found.steps or ratio < found.steps[-1][1]:
                found.steps.append((found.num_trials, ratio))
            known[key] = ratio
        return known[key]

    first = knobs.indices(knobs.draw(1, (found.seed, 0)))[0].astype(np.float64)
    bounds = [(0.0, float(count - 1)) for count in knobs.radices]
    with suppress(_Enough):
        dual_annealing(ratio_of, bounds, x0=first, seed=found.seed, no_local_search=True, maxfun=_CALLS * trials)
    return found
