"""When a session ends before its trials are used up: near enough to the bound, or nothing better for a while."""

from __future__ import annotations

import math
import statistics
from typing import Literal

from anatune.core.trial import Measurement

__all__ = ["Ended", "Ending", "beyond_noise"]

Ended = Literal["trials", "stop_at", "patience", "time_limit", "space", "interrupted"]
"""Why a session ended: all trials were made; the best one is as near to its bound as was asked for; nothing better for
as many trials as was asked for; the time was up; there are no more schedules; Ctrl-C."""

_SAME = 0.005
"""Times that differ by less are no news, as in the final comparison (`measure.run.timing.alternate`)."""
_DEVIATIONS = 2.0
"""Standard errors of a difference that one in forty of equal kernels exceeds."""


def beyond_noise(trial: Measurement, leader: Measurement) -> bool:
    """Whether a trial is faster than another by more than their samples explain.

    By times over the reference kernel's, where both have that. A single sample says nothing of its noise.
    """
    relative = trial.relative is not None and leader.relative is not None
    (log_s, error), (leading_s, leading_error) = (_log_time(each, relative=relative) for each in (trial, leader))
    return leading_s - log_s > max(_SAME, _DEVIATIONS * math.hypot(error, leading_error))


def _log_time(measurement: Measurement, *, relative: bool) -> tuple[float, float]:
    """Return the logarithm of a time that was measured, and its standard error."""
    samples = measurement.times_s
    if relative:
        samples = tuple(sample / base for sample, base in zip(samples, measurement.reference_times_s, strict=True))
    logs = [math.log(sample) for sample in samples]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return statistics.median(logs), error


class Ending:
    """Judges a session's trials as they come.

    A better one, for `patience`, is one that is faster than the last better one by more than their noise. What was on
    its way when that one came could not know of it, and does not count: with many devices a session goes on until as
    many trials were asked for since and came back.

    Parameters
    ----------
    bound_s : float
        Time that no kernel undercuts.
    stop_at : float, optional
        Share of the bound, in (0, 1]: the session ends when bound over the best time is at least that.
    patience : int, optional
        Trials without a better one, >= 1.
    """

    def __init__(self, bound_s: float, stop_at: float | None = None, patience: int | None = None) -> None:
        self._enough_s = None if stop_at is None else bound_s / stop_at
        self._patience = patience
        self._leader: Measurement | None = None
        self._done = self._since = 0
        self._is_near = False

    def add(self, measurement: Measurement, num_asked: int) -> None:
        """Take in a trial; `num_asked` schedules were asked for by then, it and earlier ones included."""
        self._done += 1
        time_s = measurement.time_s
        if time_s is None:
            return
        self._is_near |= self._enough_s is not None and time_s <= self._enough_s
        if self._patience is not None and (self._leader is None or beyond_noise(measurement, self._leader)):
            self._leader, self._since = measurement, max(num_asked, self._done)

    @property
    def reason(self) -> Ended | None:
        """Why nothing more is asked for; None: go on."""
        if self._is_near:
            return "stop_at"
        return "patience" if self._patience is not None and self._done - self._since >= self._patience else None
