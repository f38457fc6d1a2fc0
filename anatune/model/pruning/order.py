"""The legal points of a space in predicted order, computed as far as they are read.

The order is that of ``model.rank``. What is read of a space of 10^10 points is its beginning: a ranking of few points,
then longer beginnings, each several times as long as the last. With a learned correction, points change places within
pools of the analytical order: pools are as long as those beginnings. Where few points are kept, they are chosen from
such a beginning (`model.pruning.diversity`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from anatune.model.learned.corrected import SHORTLIST
from anatune.model.pruning.diversity import POOL, POOL_SHARE, choose, common_error, error_quantities
from anatune.templates.base.model import Model, Progress, Ranking
from anatune.templates.base.ranking import apart

Points = NDArray[np.int64]
Floats = NDArray[np.float64]

_DRAWN = 50_000
"""Legal points drawn of a space for that."""
_FIRST = 64
"""Points of the first ranking."""
_RANKED = 512
"""Points up to which a GPU space is ranked by ``model.rank``; more of them come in bands of time."""
_GROWTH = 2
_WIDEST = 2.0
"""Most that one band extends the times of the last."""


class Order(Protocol):
    """Points in order."""

    ranking: Ranking
    """The first of them, with the exact counts of the space."""

    def first(self, count: int) -> Points:
        """Return the first `count` points, fewer where there are no more: (num_points, columns) int64."""


class PlainOrder:
    """The order of an analytical model.

    Parameters
    ----------
    time_limit_s : float, optional
        Of the one ranking that is made then: the order ends after `most` points.
    most : int
        Points that a time limit has to reach for.
    distinct : bool
        One point of each predicted time.
    progress : callable, optional
        Called with the share of a ranking that is done, whenever one is made; left behind by pickle.
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
                wanted = max(count, _GROWTH * before)
                self._points = self._model.rank(wanted, distinct=self.distinct, progress=self._progress).points
                self._complete = len(self._points) < wanted
        return self._points[:count]

    def _extend(self) -> bool:
        """Read on to a later time: by more, as long as that does not double the number of points.

        Return whether the model lists all points up to a time.
        """
        before = len(self._points)
        last_s = float(self._model.times(self._points[-1:])[0][0])
        self._limit_s = max(self._limit_s, last_s) * self._share
        found = self._model.points_within(self._limit_s, self._progress)
        if found is None:
            return False
        self._points, times = found
        self._complete = len(self._points) == self.ranking.num_legal
        if self.distinct:
            self._points = self._points[apart(times)]
        if len(self._points) < 2 * before:
            self._share = min(_WIDEST, self._share**2)
        return True


class CorrectedOrder:
    """The order of a corrected model: corrected times, within pools of the analytical order.

    Parameters
    ----------
    plain
        The analytical order.
    pool : int
        Points of the first pool.
    """

    def __init__(self, model: Model, plain: PlainOrder, pool: int) -> None:
        self._model, self._plain = model, plain
        self.ranking = plain.ranking
        self._pool = pool
        self._points: Points = plain.ranking.points[:0]

    def first(self, count: int) -> Points:
        """Return the first `count` points; see `Order`."""
        while len(self._points) < count:
            done = len(self._points)
            more = self._plain.first(max(self._pool, _GROWTH * done))[done:]
            if not len(more):
                break
            order = np.argsort(self._model.times(more)[0], kind="stable")
            self._points = np.concatenate([self._points, more[order]])
        return self._points[:count]


class Likeness(NamedTuple):
    """The chosen point that another one is most like, of those predicted no slower.

    Attributes
    ----------
    place : int
        Of the chosen one, from 1.
    common : float
        What their errors have in common, in [0, 1].
    ratio : float
        Predicted time of the other one over that of the chosen one.
    """

    place: int
    common: float
    ratio: float


class Chosen:
    """A few points chosen from the beginning of an order, in that order.

    Parameters
    ----------
    time_s : (num_points,) float64
        Predicted seconds of the beginning, ascending.
    quantities : (num_points, num_quantities) float64
        What their errors rest on.
    count : int
        How many are chosen.

    Attributes
    ----------
    rows : (count,) int64
        Of the beginning, ascending.
    """

    def __init__(self, time_s: Floats, quantities: Floats, count: int) -> None:
        self.rows: Points = np.sort(choose(time_s, quantities, count))
        self._time_s, self._quantities = time_s[self.rows], quantities[self.rows]

    def likeness(self, time_s: float, quantities: Floats) -> Likeness:
        """Return which chosen point one of these quantities is most like; the first one where none is as fast."""
        faster = np.flatnonzero(self._time_s <= time_s)
        faster = faster if len(faster) else np.zeros(1, dtype=np.int64)
        common = common_error(quantities.reshape(1, -1), self._quantities[faster])[0]
        at = int(np.argmax(common))
        return Likeness(int(faster[at]) + 1, float(common[at]), time_s / float(self._time_s[faster[at]]))


def _pooled(model: Model, parts: Sequence[Points], express: Callable[[Points], Points] | None) -> Points:
    """Return all points of some lists once."""
    points = np.concatenate(parts)
    if express is not None and len(points):
        points = express(points)
        points = points[model.check(points) == 0] if len(points) else points
    pool: Points = np.unique(points, axis=0)
    return pool


class ChosenOrder:
    """A few points of a space, chosen so that they do not all fail for one reason.

    They are chosen from the best points of different predicted times and the fastest of points drawn at random: the
    first thousands of a large space are ties.

    Parameters
    ----------
    model
        Analytical, or corrected.
    plain : PlainOrder
        The analytical order, of points of different times.
    count : int
        How many are chosen; fewer where there are no more.
    distinct : bool
        Only points of different predicted times.
    express : callable, optional
        Points to those that stand for them where not every point will do: some left out, some changed. What breaks a
        rule then is left out.
    """

    def __init__(
        self,
        model: Model,
        plain: PlainOrder,
        count: int,
        *,
        distinct: bool = False,
        express: Callable[[Points], Points] | None = None,
    ) -> None:
        self._model, self.ranking = model, plain.ranking
        analytical = model.plain
        drawn = np.unique(model.space.sample_points(_DRAWN, 0), axis=0)
        fastest = np.argsort(analytical.times(drawn)[0], kind="stable")[: max(POOL, POOL_SHARE * count)]
        parts = [plain.first(max(SHORTLIST, count) if distinct else SHORTLIST), drawn[fastest]]
        pool = _pooled(model, parts, express)
        if len(pool) < POOL_SHARE * count and not distinct:  # a small space: ties, too
            parts.append(PlainOrder(analytical).first(POOL_SHARE * count))
            pool = _pooled(model, parts, express)
        time_s = model.times(pool)[0]
        ahead = np.argsort(time_s, kind="stable")
        pool, time_s = pool[ahead], time_s[ahead]
        if distinct:
            first = apart(time_s)
            pool, time_s = pool[first], time_s[first]
        self.chosen = Chosen(time_s, error_quantities(model, pool), count)
        self._pool = {point.tobytes() for point in pool}
        self._points: Points = pool[self.chosen.rows]

    def first(self, count: int) -> Points:
        """Return the first `count` points; see `Order`."""
        return self._points[:count]

    def considers(self, point: Points) -> bool:
        """Return whether a point was among those that were chosen from."""
        return np.asarray(point, dtype=np.int64).tobytes() in self._pool

    def likeness(self, point: Points) -> Likeness:
        """Return which chosen point a point is most like."""
        quantities = error_quantities(self._model, point[None, :])
        return self.chosen.likeness(float(self._model.times(point[None, :])[0][0]), quantities)
