"""Time limit and progress of a long search."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Progress", "Watch"]

Progress = Callable[[float], None]
"""Called with the share of a search that is done, in [0, 1]."""


class Watch:
    """A time limit and a progress callback.

    Parameters
    ----------
    time_limit_s : float, optional
        Seconds from now; without it there is no limit.
    progress : callable, optional
        Called with the share that is done, in [0, 1], which never decreases.
    """

    def __init__(self, time_limit_s: float | None = None, progress: Progress | None = None) -> None:
        self._deadline = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
        self._progress = progress
        self._share = 0.0

    @property
    def is_over(self) -> bool:
        """True if the time limit has passed."""
        return time.monotonic() > self._deadline

    @property
    def left_s(self) -> float | None:
        """Seconds left, at least a millisecond; None if there is no limit."""
        return None if math.isinf(self._deadline) else max(1e-3, self._deadline - time.monotonic())

    def report(self, share: float) -> None:
        """Report the share of the work that is done."""
        self._share = max(self._share, min(share, 1.0))
        if self._progress is not None:
            self._progress(self._share)

    def part(self, start: float, stop: float, time_limit_s: float | None = None) -> Watch:
        """Return the watch of a part of the work: it maps progress to the given shares, and ends no later.

        Parameters
        ----------
        start, stop : float
            Shares of the whole work at which the part begins and ends.
        time_limit_s : float, optional
            Time limit of the part; without it, the time that is left.
        """
        limit_s = min((s for s in (time_limit_s, self.left_s) if s is not None), default=None)
        return Watch(limit_s, lambda share: self.report(start + (stop - start) * share))
