"""Replays recorded measurements: a runner that needs no device, and never makes up a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.errors import RecordError
from bench.replay.table import TableModel

__all__ = ["NOT_RECORDED", "ReplayRunner"]

NOT_RECORDED = "never recorded"
"""Message of the outcome of a point that is not in the table."""


class ReplayRunner:
    """Answers with what was recorded. A point that nobody recorded is an outcome of its own, INVALID.

    Parameters
    ----------
    table
        The recorded points.
    time_s : (num_points,) float64
        Recorded seconds, NaN where the trial failed.
    spread : (num_points,) float64, optional
        Standard deviation over mean of the recorded runs, NaN where unknown. Where it is known a measurement has three
        samples of that mean and deviation, so that strategies can test differences; elsewhere one.

    Raises
    ------
    RecordError
        The times are not one for each point.
    """

    def __init__(
        self, table: TableModel, time_s: NDArray[np.float64], spread: NDArray[np.float64] | None = None
    ) -> None:
        for name, values in (("time_s", time_s), ("spread", spread)):
            if values is not None and values.shape != (table.space.size,):
                raise RecordError(
                    f"replay: {name} has shape {values.shape}, expected one value for each of {table.space.size} points"
                )
        self._table = table
        self.time_s = time_s
        self._spread = spread

    @property
    def best_s(self) -> float:
        """The recorded optimum, s."""
        return float(np.nanmin(self.time_s))

    def run(self, schedules: Sequence[Schedule]) -> list[Measurement]:
        """Return what was recorded of each schedule."""
        return [self._one(schedule) for schedule in schedules]

    def _one(self, schedule: Schedule) -> Measurement:
        row = self._table.row_of(schedule)
        if row is None:
            return Measurement(Outcome.INVALID, NOT_RECORDED)
        time_s = float(self.time_s[row])
        if not math.isfinite(time_s):
            return Measurement(Outcome.RUN_ERROR, "recorded as failed")
        spread = 0.0 if self._spread is None else float(self._spread[row])
        if not 0.0 < spread < 1.0:
            return Measurement(Outcome.OK, times_s=(time_s,))
        return Measurement(Outcome.OK, times_s=(time_s * (1.0 - spread), time_s, time_s * (1.0 + spread)))
