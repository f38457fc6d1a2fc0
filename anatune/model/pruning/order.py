"""The legal points of a space in predicted order, computed only when they are read.

The order is that of ``model.rank``. Only the beginning of a space of 10^10 points is read: first a short ranking, then
longer ones, each several times as long as the last. With a learned correction, points change places within pools of the
analytical order, which are as long as these rankings. If few points are kept, they are chosen from the beginning
(`model.pruning.diversity`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from anatune.model.learned.corrected import SHORTLIST
from anatune.model.pruning.diversity import POOL, POOL_SHARE, choose_diverse, common_error, error_quantities
from anatune.templates.base.model import Model, Progress, Ranking
from anatune.templates.base.ranking import mark_distinct_times

Points = NDArray[np.int64]
Floats = NDArray[np.float64]

_DRAWN = 50_000
"""Number of legal points that are drawn from a space for that choice."""
_FIRST = 64
"""Number of points of the first ranking."""
_RANKED = 512
"""Number of points up to which a GPU space is ranked by ``model.rank``; further ones are listed up to a time."""
_GROWTH = 2
_WIDEST = 2.0
"""Largest factor by which the limit on times grows at once."""


class PointOrder(Protocol):
    """An order of points."""

    ranking: Ranking
    """The first points, with exact counts of the space."""

    def first(self, count: int) -> Points:
        """Return the first `count` points, or fewer if there are no more: (num_points, columns) int64."""


class AnalyticalOrder:
    """The order of an analytical model.

    Parameters
    ----------
    time_limit_s : float, optional
        Time limit of a single ranking, s; the order then ends after `most` points.
    most : int
        Number of points to rank if there is a time limit.
    distinct : bool
        Whether to list only one point of each predicted time.
    progress : callable, optional
        Function to call with the finished share of each ranking; not pickled.
    """

    def __init__(
        self,
        model: Model,
        time_limit_s: float | None = None,
        most: int = _FIRST,
        *,
        distinct: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._model, self.distinct, self._progress = model, distinct, progress
        count = most if time_limit_s is not None else _FIRST
        self.ranking = model.rank(count, time_limit_s, distinct=distinct, progress=progress)
        self._points = self.ranking.points
        self._limit_s = 0.0
        self._share = 1.01
        self._complete = time_limit_s is not None or len(self._points) < _FIRST

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_progress": None}

    def first(self, count: int) -> Points:
        """Return the first `count` points; see `Order`."""
        while len(self._points) < count and not self._complete:
            before = len(self._points)
            if count <= _RANKED or not self._extend():
                target = max(count, _GROWTH * before)
                self._points = self._model.rank(target, distinct=self.distinct, progress=self._progress).points
                self._complete = len(self._points) < target
        return self._points[:count]

    def _extend(self) -> bool:
        """List all points up to a later time; the limit grows faster as long as few points are added.

        Return whether the model can list all points up to a time.
        """
        before = len(self._points)
        last_s = float(self._model.times(self._points[-1:])[0][0])
        self._limit_s = max(self._limit_s, last_s) * self._share
        listing = self._model.points_within(self._limit_s, self._progress)
        if listing is None:
            return False
        self._points, times = listing
        self._complete = len(self._points) == self.ranking.num_legal
        if self.distinct:
            self._points = self._points[mark_distinct_times(times)]
        if len(self._points) < 2 * before:
            self._share = min(_WIDEST, self._share**2)
        return True


class CorrectedOrder:
    """The order of a corrected model: by corrected times, within pools of the analytical order.

    Parameters
    ----------
    plain
        The analytical order.
    pool : int
        Number of points of the first pool.
    """

    def __init__(self, model: Model, plain: AnalyticalOrder, pool: int) -> None:
        self._model, self._plain = model, plain
        self.ranking = plain.ranking
        self._pool = pool
        self._points: Points = plain.ranking.points[:0]

    def first(self, count: int) -> Points:
        """Return the first `count` points; see `Order`."""
        while len(self._points) < count:
            num_ordered = len(self._points)
            pool = self._plain.first(max(self._pool, _GROWTH * num_ordered))[num_ordered:]
            if not len(pool):
                break
            order = np.argsort(self._model.times(pool)[0], kind="stable")
            self._points = np.concatenate([self._points, pool[order]])
        return self._points[:count]


class Likeness(NamedTuple):
    """The chosen point that is most similar to another point, among those predicted at least as fast.

    Attributes
    ----------
    place : int
        Place of the chosen point, from 1.
    common : float
        Correlation of their errors, in [0, 1].
    ratio : float
        Predicted time of the other point over that of the chosen one.
    """

    place: int
    common: float
    ratio: float


class ChosenPoints:
    """Few points chosen from the beginning of an order, in that order.

    Parameters
    ----------
    time_s : (num_points,) float64
        Predicted seconds of the points at the beginning, ascending.
    quantities : (num_points, num_quantities) float64
        Quantities that their errors depend on.
    count : int
        Number of points to choose.

    Attributes
    ----------
    rows : (count,) int64
        Rows of the chosen points, ascending.
    """

    def __init__(self, time_s: Floats, quantities: Floats, count: int) -> None:
        self.rows: Points = np.sort(choose_diverse(time_s, quantities, count))
        self._time_s, self._quantities = time_s[self.rows], quantities[self.rows]

    def likeness(self, time_s: float, quantities: Floats) -> Likeness:
        """Return the chosen point most similar to one with these quantities; the first one if none is as fast."""
        faster = np.flatnonzero(self._time_s <= time_s)
        faster = faster if len(faster) else np.zeros(1, dtype=np.int64)
        common = common_error(quantities.reshape(1, -1), self._quantities[faster])[0]
        nearest = int(np.argmax(common))
        return Likeness(int(faster[nearest]) + 1, float(common[nearest]), time_s / float(self._time_s[faster[nearest]]))


def _merge_points(model: Model, parts: Sequence[Points], express: Callable[[Points], Points] | None) -> Points:
    """Return the points of several lists without repetition."""
    points = np.concatenate(parts)
    if express is not None and len(points):
        points = express(points)
        points = points[model.check(points) == 0] if len(points) else points
    pool: Points = np.unique(points, axis=0)
    return pool


class ChosenOrder:
    """Few points of a space, chosen so that they do not share one error of the model.

    They are chosen from the best points of different predicted times and the fastest of randomly drawn points, because
    the first thousands of a large space are ties.

    Parameters
    ----------
    model
        The analytical model, or a corrected one.
    plain : PlainOrder
        The analytical order, with points of different times.
    count : int
        Number of points to choose; fewer if there are no more.
    distinct : bool
        Whether to choose only points of different predicted times.
    express : callable, optional
        Function from points to the points that represent them, if not every point is acceptable: it may leave some out
        and change others. Resulting points that break a rule are left out.
    """

    def __init__(
        self,
        model: Model,
        plain: AnalyticalOrder,
        count: int,
        *,
        distinct: bool = False,
        express: Callable[[Points], Points] | None = None,
    ) -> None:
        self._model, self.ranking = model, plain.ranking
        analytical = model.plain
        samples = np.unique(model.space.sample_points(_DRAWN, 0), axis=0)
        fastest = np.argsort(analytical.times(samples)[0], kind="stable")[: max(POOL, POOL_SHARE * count)]
        parts = [plain.first(max(SHORTLIST, count) if distinct else SHORTLIST), samples[fastest]]
        pool = _merge_points(model, parts, express)
        if len(pool) < POOL_SHARE * count and not distinct:  # a small space: also ties
            parts.append(AnalyticalOrder(analytical).first(POOL_SHARE * count))
            pool = _merge_points(model, parts, express)
        time_s = model.times(pool)[0]
        order = np.argsort(time_s, kind="stable")
        pool, time_s = pool[order], time_s[order]
        if distinct:
            first = mark_distinct_times(time_s)
            pool, time_s = pool[first], time_s[first]
        self.chosen = ChosenPoints(time_s, error_quantities(model, pool), count)
        self._pool = {point.tobytes() for point in pool}
        self._points: Points = pool[self.chosen.rows]

    def first(self, count: int) -> Points:
        """Return the first `count` points; see `Order`."""
        return self._points[:count]

    def considers(self, point: Points) -> bool:
        """Return whether a point was among those to choose from."""
        return np.asarray(point, dtype=np.int64).tobytes() in self._pool

    def likeness(self, point: Points) -> Likeness:
        """Return the chosen point that is most similar to a point."""
        quantities = error_quantities(self._model, point[None, :])
        return self.chosen.likeness(float(self._model.times(point[None, :])[0][0]), quantities)
