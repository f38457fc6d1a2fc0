"""The legal points of a space in predicted order, computed as far as they are read.

The order is that of ``model.rank``. What is read of a space of 10^10 points is its beginning: a ranking of few points,
then longer beginnings, each several times as long as the last. With a learned correction, points change places within
pools of the analytical order: pools are as long as those beginnings.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anatune.model.corrected import CorrectedModel
from anatune.model.evaluation import Ranking
from anatune.model.gpu_bands import points_within
from anatune.model.gpu_model import GpuModel
from anatune.model.gpu_ranking import EQUAL_SHARE

__all__ = ["CorrectedOrder", "Order", "PlainOrder"]

Points = NDArray[np.int64]

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
    """

    def __init__(
        self, model: Any, time_limit_s: float | None = None, most: int = _FIRST, *, distinct: bool = False
    ) -> None:
        self._model, self._distinct = model, distinct
        count = most if time_limit_s is not None else _FIRST
        self.ranking: Ranking = model.rank(count, time_limit_s, distinct=distinct)
        self._points = self.ranking.points
        self._limit_s = 0.0
        self._share = 1.01
        self._complete = time_limit_s is not None or len(self._points) < _FIRST

    def first(self, count: int) -> Points:
        """Return the first `count` points; see `Order`."""
        while len(self._points) < count and not self._complete:
            before = len(self._points)
            if not isinstance(self._model, GpuModel) or count <= _RANKED:
                wanted = max(count, _GROWTH * before)
                self._points = self._model.rank(wanted, distinct=self._distinct).points
                self._complete = len(self._points) < wanted
            else:
                self._extend()
        first: Points = self._points[:count]
        return first

    def _extend(self) -> None:
        """Read on to a later time: by more, as long as that does not double the number of points."""
        before = len(self._points)
        last_s = float(self._model.times(self._points[-1:])[0][0])
        self._limit_s = max(self._limit_s, last_s) * self._share
        self._points, times = points_within(self._model, self._limit_s)
        self._complete = len(self._points) == self.ranking.num_legal
        if self._distinct:
            apart = np.diff(times, prepend=0.0) > EQUAL_SHARE * times
            self._points = self._points[apart]
        if len(self._points) < 2 * before:
            self._share = min(_WIDEST, self._share**2)


class CorrectedOrder:
    """The order of a corrected model: corrected times, within pools of the analytical order.

    Parameters
    ----------
    plain
        The analytical order.
    pool : int
        Points of the first pool.
    """

    def __init__(self, model: CorrectedModel, plain: PlainOrder, pool: int) -> None:
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
