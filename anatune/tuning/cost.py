"""Estimate of the time of a session before it begins, and of its largest possible gain.

A session starts processes, builds and times trials (`measure.run.measurer` builds some while another is timed), and
compares the best ones. The times of these parts come from earlier sessions on this machine (`tuning.cost_history`). The
time for timing a kernel follows from its predicted time and the timing protocol.

Notation
--------
build, run : wall seconds of building a trial; of loading, checking and timing it.
pace : wall seconds per trial over those that `seconds_a_trial` expects from its build and run times.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Measurement
from anatune.core.workload.nest import Workload
from anatune.measure.run.cores import CorePlan
from anatune.model.bound import TimeBound

if TYPE_CHECKING:
    from anatune.measure.run.timing import TimingProtocol

_FIRST = {
    # Intel Emerald Rapids, one of 2 virtual cores, matmul 256x512x512, 16 trials, 2026-11 (bench.estimates).
    "cpu": (0.45, 1.1, 5.0, 1.1, 1.6),
    # Not measured by this bench: NVRTC takes about a second a kernel on one core, and a context is opened.
    "gpu": (1.0, 1.5, 8.0, 1.2, 2.0),
}
"""Kind of device -> build, run over `run_seconds`, start, pace and comparison on an unknown machine."""
_FIRST_FACTOR = 2.5
"""Factor by which a first estimate on a machine may be wrong."""
_FEW_FACTOR, _LEAST_FACTOR = 1.5, 1.15
"""Factors for an estimate from one or two sessions, and for the best estimate. Source: bench.estimates."""
_FEW = 3
_DEVIATIONS = 2.0
"""Standard deviations of the logarithm of times over their estimates: the range holds 95 % of the times."""
_SLOWER = 1.25
"""Time of an average trial over the prediction of the plan's first choice. Source: bench.estimates."""
_CHECKED_RUNS = 3
"""Runs of a kernel before it is timed: its result is compared twice, then it is sampled."""
_COMPARED_S = 1e-8
"""Seconds to compare one element of the result in float64."""
_CALL_S = 2e-4
"""Seconds of one call of the reference kernel. Source: `codegen.cpu.probes.build_reference`, 0.1 to 0.3 ms."""
_FIRST_RUN_S = 0.1
"""Seconds to run an unknown kernel. Source: as `_FIRST`."""
_ENOUGH = 4
"""Number of trials from which the next ones are estimated."""


class SessionCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measured times of one session. Immutable; JSON both ways.

    Attributes
    ----------
    trials : int
        Number of measured trials.
    build_s : float
        Mean build time of its trials.
    run_ratio : float
        Mean of the run time over `run_seconds` of the trial's time.
    start_s : float
        Seconds from the estimate to the first trial.
    pace : float
        See `anatune.tuning.cost`.
    compare_s : float or None
        Seconds of the final comparison; None if there was none.
    total_s : float
        Seconds from the estimate to the end.
    estimated_s : float
        The estimate of `total_s`.
    """

    trials: int
    build_s: float
    run_ratio: float
    start_s: float
    pace: float
    compare_s: float | None
    total_s: float
    estimated_s: float


class CostEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An estimate of the time that a session takes from now, and of its gain. Immutable; JSON both ways.

    Attributes
    ----------
    trials : int
        Largest number of trials left.
    seconds, low_s, high_s : float or None
        Wall time left, and its range. None if other machines build or measure.
    start_s, trial_s, compare_s : float
        Parts of it: starting processes, each trial, the final comparison.
    build_s, run_s : float
        Assumed times of one trial; builds overlap with runs and with each other if there are enough cores.
    basis : str
        Source of the estimate: "session" (trials of the resumed session), "machine" (earlier sessions on this machine),
        "first" (constants of another machine), "elsewhere" (no estimate).
    sessions : int
        Number of earlier sessions on this machine that it uses.
    may_end_early : bool
        Whether `stop_at`, `patience` or a time limit may end the session earlier.
    predicted_s : float or None
        Predicted time of the plan's first choice.
    bound : TimeBound
        Lower bound on the time of every schedule.
    """

    trials: int
    seconds: float | None
    low_s: float | None
    high_s: float | None
    start_s: float
    trial_s: float
    compare_s: float
    build_s: float
    run_s: float
    basis: Literal["session", "machine", "first", "elsewhere"]
    sessions: int
    may_end_early: bool
    predicted_s: float | None
    bound: TimeBound

    @property
    def over_bound(self) -> float | None:
        """Predicted time of the plan's first choice over the bound."""
        return None if self.predicted_s is None else self.predicted_s / self.bound.time_s

    @property
    def most_gain(self) -> float | None:
        """Largest share of the predicted time that tuning can save, if the prediction is right."""
        over = self.over_bound
        return None if over is None else max(0.0, 1.0 - 1.0 / over)


class ModelEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An estimate of the time that compiling a network takes. Immutable; JSON both ways.

    Attributes
    ----------
    products : int
        Number of convolutions and matrix products in the network.
    trials : int
        Largest number of trials of their kernels.
    plan_s, build_s, check_s, tune_s : float
        Seconds for choosing layouts and schedules; building the library (twice if kernels are measured); comparing
        outputs; measuring kernels and both builds.
    seconds, low_s, high_s, basis, may_end_early
        As in `CostEstimate`.
    compile_s : float
        Part of it: compiling the analytical model, unless an earlier run has cached its code.
    calibrate_s : float
        Part of it: planning and building the network twice more for the ranges of its activations (precision int8),
        without running it on the data.
    """

    products: int
    trials: int
    plan_s: float
    build_s: float
    check_s: float
    tune_s: float
    seconds: float | None
    low_s: float | None
    high_s: float | None
    basis: Literal["machine", "first", "elsewhere"]
    may_end_early: bool
    compile_s: float = 0.0
    calibrate_s: float = 0.0


def run_seconds(time_s: float, workload: Workload, protocol: TimingProtocol) -> float:
    """Return the wall seconds for checking and timing a kernel of `time_s` by a protocol.

    The number of samples depends on the noise; the mean of the fewest and the most is assumed.
    """
    runs = math.ceil(protocol.sample_s / time_s)
    reference_s = protocol.reference_s + 3 * _CALL_S  # three parts, each after a call that is not timed
    sample_s = time_s * (runs + (runs > 1)) + reference_s
    within = math.ceil(protocol.budget_s / sample_s)
    most = min(protocol.most_samples, max(protocol.least_samples, within))
    if protocol.least_samples * sample_s > protocol.patience_s:
        most = max(1, math.ceil(protocol.patience_s / sample_s))
    samples = (min(protocol.least_samples, most) + most) / 2
    return _CHECKED_RUNS * time_s + _COMPARED_S * math.prod(workload.write.shape) + samples * sample_s


def seconds_a_trial(build_s: float, run_s: float, cores: CorePlan) -> float:
    """Return the wall seconds between two trials if builders and runner have the cores of a plan."""
    if not cores.overlap:  # they take turns
        return run_s + build_s / cores.num_builders
    # Guests are builders that use the runner's cores while nothing runs there.
    builders = cores.num_builders + cores.num_guests
    return max(run_s, (build_s + cores.num_guests * run_s) / builders)


class MeasuringSetup(NamedTuple):
    """The workload, device and measuring method of a session.

    Attributes
    ----------
    workload, hardware
        The workload; the device.
    protocol : TimingProtocol
        The timing protocol.
    cores : CorePlan or None
        The cores of builders and runner; None if other machines measure.
    is_built : bool
        Whether kernels were built before.
    """

    workload: Workload
    hardware: HardwareSpec
    protocol: TimingProtocol
    cores: CorePlan | None
    is_built: bool = False


def estimate_session(
    measuring: MeasuringSetup,
    trials: int,
    predicted_s: float | None,
    bound: TimeBound,
    *,
    earlier: Sequence[SessionCost] = (),
    resumed: Sequence[Measurement] = (),
    time_limit_s: float | None = None,
    may_end_early: bool = False,
) -> CostEstimate:
    """Return an estimate of a session of `trials` new trials.

    Parameters
    ----------
    predicted_s : float, optional
        Predicted time of the plan's first choice.
    earlier : sequence of SessionCost
        Earlier sessions on this machine with this kind of device and these templates.
    resumed : sequence of Measurement
        Measurements that the session has already.
    time_limit_s : float, optional
        Seconds that are left of the time limit.
    may_end_early : bool
        Whether something else may end the session early.
    """
    workload, hardware, protocol, cores, is_built = measuring
    build_s, run_ratio, start_s, pace, compare_s = _FIRST[hardware.kind]
    if earlier:
        build_s, run_ratio, start_s, pace = (
            statistics.median(getattr(cost, name) for cost in earlier)
            for name in ("build_s", "run_ratio", "start_s", "pace")
        )
        compare_s = statistics.median([cost.compare_s for cost in earlier if cost.compare_s is not None] or [compare_s])
    run_s = run_ratio * run_seconds(_SLOWER * (predicted_s or bound.time_s), workload, protocol)
    ran = [measurement for measurement in resumed if measurement.time_s is not None]
    is_known = len(ran) >= _ENOUGH
    if is_known:
        build_s, run_s = _mean_seconds(ran)
    build_s = 0.0 if is_built else build_s
    may_end_early |= time_limit_s is not None
    basis: Literal["session", "machine", "first", "elsewhere"]
    basis = "session" if is_known else "machine" if earlier else "first"
    trial_s = 0.0 if cores is None else pace * seconds_a_trial(build_s, run_s, cores)
    limit_s = math.inf if time_limit_s is None else time_limit_s
    factor = error_factor([(cost.total_s, cost.estimated_s) for cost in earlier], is_known=is_known)
    low_s, seconds, high_s = (
        min(share * (start_s + trials * trial_s), limit_s) + share * compare_s for share in (1 / factor, 1.0, factor)
    )
    estimate = CostEstimate(
        trials, seconds, low_s, high_s, start_s, trial_s, compare_s, build_s, run_s, basis, len(earlier),
        may_end_early, predicted_s, bound,
    )  # fmt: skip
    if cores is not None:
        return estimate
    return msgspec.structs.replace(estimate, seconds=None, low_s=None, high_s=None, basis="elsewhere")


def first_trial_seconds(hardware: HardwareSpec, cores: CorePlan, part: int) -> float:
    """Return the wall seconds of a trial of an unknown kernel on an unknown machine.

    Parameters
    ----------
    part : int
        Number of trials after which processes are started again.
    """
    build_s, _, start_s, pace, compare_s = _FIRST[hardware.kind]
    return pace * seconds_a_trial(build_s, _FIRST_RUN_S, cores) + (start_s + compare_s) / part


def error_factor(earlier: Sequence[tuple[float, float]], *, is_known: bool = False) -> float:
    """Return the factor by which an estimate may be wrong.

    Parameters
    ----------
    earlier : sequence of (float, float)
        Measured and estimated seconds of earlier sessions, > 0.
    is_known : bool
        Whether the estimate has another source.
    """
    errors = [math.log(took_s / told_s) for took_s, told_s in earlier if took_s > 0 < told_s]  # a file may hold zeros
    if len(errors) < _FEW:
        return _FEW_FACTOR if earlier or is_known else _FIRST_FACTOR
    return max(_LEAST_FACTOR, math.exp(_DEVIATIONS * math.sqrt(statistics.fmean(error**2 for error in errors))))


def session_cost(
    measuring: MeasuringSetup,
    measurements: Sequence[Measurement],
    *,
    start_s: float,
    measure_s: float,
    compare_s: float | None,
    estimated_s: float,
) -> SessionCost | None:
    """Return the measured times of a session for the next estimate; None after too few trials, or on other machines.

    Parameters
    ----------
    measurements
        Measurements of the session's trials.
    start_s, measure_s, compare_s : float
        Wall times of its parts.
    estimated_s : float
        The estimate of its total time.
    """
    workload, _, protocol, cores, _ = measuring
    ran = [measurement for measurement in measurements if measurement.time_s is not None]
    if len(ran) < _ENOUGH or cores is None:
        return None
    build_s, run_s = _mean_seconds(ran)
    if not all(value > 0 for value in (build_s, run_s, start_s, measure_s, estimated_s)):
        return None
    modelled_s = statistics.fmean(run_seconds(measurement.time_s or 0.0, workload, protocol) for measurement in ran)
    pace = measure_s / len(measurements) / seconds_a_trial(build_s, run_s, cores)
    total_s = start_s + measure_s + (compare_s or 0.0)
    return SessionCost(
        len(measurements), build_s, run_s / modelled_s, start_s, pace, compare_s, total_s, estimated_s
    )  # fmt: skip


def _mean_seconds(ran: Sequence[Measurement]) -> tuple[float, float]:
    """Return the mean seconds of building trials, and of running them."""
    return (
        statistics.fmean(measurement.build_s for measurement in ran),
        statistics.fmean(measurement.run_s for measurement in ran),
    )
