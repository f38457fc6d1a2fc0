"""What was tried and what came back: outcomes, measurements, trials.

A candidate that fails is data: it has an outcome and a message, and no time. No sentinel time stands for a failure.
"""

from __future__ import annotations

import enum
import statistics

import msgspec

from anatune.core.schedule import Schedule
from anatune.core.show import duration


class Outcome(enum.Enum):
    """How a candidate ended."""

    OK = "ok"
    INVALID = "invalid"
    """Breaks a rule of its space or cannot be lowered: nothing was built."""
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    RUN_ERROR = "run_error"
    """The kernel raised, or its process died (a signal, too much memory)."""
    RUN_TIMEOUT = "run_timeout"
    WRONG_RESULT = "wrong_result"
    """The result differs from the float64 reference, holds NaN, or an input was changed."""
    LOST_DEVICE = "lost_device"


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What came back for one candidate. Immutable; JSON both ways.

    Attributes
    ----------
    outcome : Outcome
        OK, or why there is no time.
    message : str
        Why it failed, in one line; empty if it did not.
    times_s : tuple of float
        Samples of one run of the kernel, s, in the order they were taken.
    reference_times_s : tuple of float
        For each sample the time of the reference kernel that ran next to it, s: the machine's speed just then.
    max_rel_error : float or None
        Largest error over the largest magnitude of the float64 reference; None if nothing was compared.
    build_s, run_s : float
        Wall time of building; of checking and timing, s.
    stopped_early : bool
        The candidate was clearly slower than the best and got few samples.
    worker : str
        Who measured it, as the fleet calls it; empty: the machine of the session.
    energy_j : float or None
        Joules of one run, of all that the device did meanwhile (`measure.energy`); None where nothing counts them.
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
        """One line: the time, or how it failed."""
        if self.time_s is None:
            return f"{self.outcome.value}: {' '.join(self.message.split())[:80]}".rstrip(": ")
        return f"{duration(self.time_s)}, {len(self.times_s)} samples"

    @property
    def time_s(self) -> float | None:
        """Median of the samples, s; None unless the outcome is OK."""
        return statistics.median(self.times_s) if self.outcome is Outcome.OK and self.times_s else None

    @property
    def relative(self) -> float | None:
        """Median of the samples over the reference kernel's time beside each: comparable while the speed drifts."""
        if self.outcome is not Outcome.OK or not self.times_s or len(self.times_s) != len(self.reference_times_s):
            return None
        return statistics.median(t / r for t, r in zip(self.times_s, self.reference_times_s, strict=True))


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One candidate of a tuning run and its outcome. Immutable; JSON both ways.

    Attributes
    ----------
    schedule : Schedule
        What was asked for (it holds its workload and hardware).
    measurement : Measurement
        What came back.
    number : int
        Position in its run, from 0.
    source : str
        Who asked: "plan" (the model's ranking), the name of a strategy, "user".
    predicted_s : float or None
        The model's time before the measurement, s.
    threads : int
        Threads the kernel ran with.
    corrected_s : float or None
        The model's time, corrected by what the session had learned from records when it began, s; None where it had
        learned nothing.
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
