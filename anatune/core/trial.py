"""Results of measurements: outcomes, measurements and trials.

A schedule that fails is a result as well: it has an outcome and a message, and no time. No special time marks a
failure.
"""

from __future__ import annotations

import enum
import statistics

import msgspec

from anatune.core.schedule import Schedule
from anatune.core.show import duration


class Outcome(enum.Enum):
    """Result of building, checking and timing a schedule."""

    OK = "ok"
    INVALID = "invalid"
    """The schedule breaks a rule of its space or cannot be lowered; nothing was built."""
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    RUN_ERROR = "run_error"
    """The kernel raised an error, or its process died (a signal, too much memory)."""
    RUN_TIMEOUT = "run_timeout"
    WRONG_RESULT = "wrong_result"
    """The result differs from the float64 reference or contains NaN, or an input was changed."""
    LOST_DEVICE = "lost_device"


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Result of measuring one schedule. Immutable; JSON both ways.

    Attributes
    ----------
    outcome : Outcome
        OK, or why there is no time.
    message : str
        Reason of the failure, in one line; empty without a failure.
    times_s : tuple of float
        Times of single runs of the kernel, s, in the order of measurement.
    reference_times_s : tuple of float
        For each sample the time of the reference kernel that ran beside it, s; it shows the machine's speed at that
        moment.
    max_rel_error : float or None
        Largest error over the largest magnitude of the float64 reference; None if nothing was compared.
    build_s, run_s : float
        Wall-clock times: of building, and of checking and timing, s.
    stopped_early : bool
        Whether timing ended after few samples, because the schedule was clearly slower than the best.
    worker : str
        Name of the worker that measured; empty for the machine of the session.
    energy_j : float or None
        Energy of one run in joules, of the whole device (`measure.energy`); None if it was not measured.
    """

    outcome: Outcome
    message: str = ""
    times_s: tuple[float, ...] = ()
    reference_times_s: tuple[float, ...] = ()
    max_rel_error: float | None = None
    build_s: float = 0.0
    run_s: float = 0.0
    stopped_early: bool = False
    worker: str = ""
    energy_j: float | None = None

    def __repr__(self) -> str:
        return f"Measurement({self.describe()})"

    def describe(self) -> str:
        """Return one line: the time, or the failure."""
        if self.time_s is None:
            return f"{self.outcome.value}: {' '.join(self.message.split())[:80]}".rstrip(": ")
        return f"{duration(self.time_s)}, {len(self.times_s)} samples"

    @property
    def time_s(self) -> float | None:
        """Median of the samples, s; None unless the outcome is OK."""
        return statistics.median(self.times_s) if self.outcome is Outcome.OK and self.times_s else None

    @property
    def relative(self) -> float | None:
        """Median ratio of the samples to the reference kernel's times; comparable even if the speed drifts."""
        if self.outcome is not Outcome.OK or not self.times_s or len(self.times_s) != len(self.reference_times_s):
            return None
        return statistics.median(t / r for t, r in zip(self.times_s, self.reference_times_s, strict=True))


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule that a tuning session built, checked and timed, and the result. Immutable; JSON both ways.

    Attributes
    ----------
    schedule : Schedule
        The schedule, with its workload and hardware.
    measurement : Measurement
        The result.
    number : int
        Position in the session, from 0.
    source : str
        Origin of the schedule: "plan" (the model's ranking), the name of a strategy, or "user".
    predicted_s : float or None
        Time that the model predicted before the measurement, s.
    threads : int
        Number of threads that the kernel ran with.
    corrected_s : float or None
        Predicted time with the correction that the session had learned from records when it began, s; None without
        such a correction.
    """

    schedule: Schedule
    measurement: Measurement
    number: int = 0
    source: str = "plan"
    predicted_s: float | None = None
    threads: int = 1
    corrected_s: float | None = None

    def __repr__(self) -> str:
        return f"Trial({self.number} by {self.source}: {self.measurement.describe()}, {self.schedule!r})"
