"""What a session costs, told before it begins: about how long it takes on this machine, and what it can win at most.

A session starts processes, builds and times trials (`measure.run.measurer`: who builds while another is timed), and
compares the best ones. How long its parts took in earlier sessions on this machine says how long they will take
(`tuning.cost_history`); what depends on the kernel, its timing, follows from the predicted time and the protocol.

Notation
--------
build, run : wall seconds of building a trial; of loading, checking and timing it.
pace : wall seconds a trial over those that `seconds_a_trial` expects of its build and run: what it leaves out.
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
"""Kind of device -> build, run over `run_seconds`, start, pace, comparison, where nothing is known of a machine."""
_FIRST_FACTOR = 2.5
"""A first estimate may be wrong by this factor: other machines, other compilers."""
_FEW_FACTOR, _LEAST_FACTOR = 1.5, 1.15
"""One from one or two sessions; the least that any estimate claims. Source: bench.estimates."""
_FEW = 3
_DEVIATIONS = 2.0
"""Of the logarithm of times over their estimates, root mean square: a range holds 95 % of them."""
_SLOWER = 1.25
"""Time of a middling trial over the prediction of the plan's first choice. Source: bench.estimates."""
_CHECKED_RUNS = 3
"""Runs of a kernel before it is timed: its result is compared twice, then it is sampled."""
_COMPARED_S = 1e-8
"""Of an element of the result, compared in float64."""
_CALL_S = 2e-4
"""Of the reference kernel. Source: `codegen.cpu.probes.build_reference`, 0.1 to 0.3 ms."""
_FIRST_RUN_S = 0.1
"""Run of a kernel of which nothing is known. Source: as `_FIRST`."""
_ENOUGH = 4
"""Trials of a session whose times say something of the next ones."""


class SessionCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one session took. Immutable; JSON both ways.

    Attributes
    ----------
    trials : int
        That it measured.
    build_s : float
        Mean of its trials.
    run_ratio : float
        Mean of run over `run_seconds` of the trial's time.
    start_s : float
        From the estimate to the first question.
    pace : float
        See `anatune.tuning.cost`.
    compare_s : float or None
        The final comparison; None: there was none.
    total_s : float
        From the estimate to the end.
    estimated_s : float
        What was told of that.
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
    """How long a session will take from here, about, and what it can win. Immutable; JSON both ways.

    Attributes
    ----------
    trials : int
        Still to be made, at most.
    seconds, low_s, high_s : float or None
        Wall time of all that is left, and a range for it. None where other machines build or measure.
    start_s, trial_s, compare_s : float
        Parts of it: starting processes, each trial, the final comparison.
    build_s, run_s : float
        Of one trial, as it was taken to be; builds overlap with runs and with each other where there are cores.
    basis : str
        What it comes from: "session" (trials of the session that is resumed), "machine" (earlier sessions on this
        machine), "first" (nothing is known of this machine: constants of another one), "elsewhere" (no estimate).
    sessions : int
        How many earlier ones on this machine it rests on.
    may_end_early : bool
        Whether a share of the bound, patience or a time limit may end it before that.
    predicted_s : float or None
        Of the plan's first choice.
    bound : TimeBound
        What no schedule undercuts.
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
        """Share of the predicted time that tuning can win at most, if the prediction is right."""
        over = self.over_bound
        return None if over is None else max(0.0, 1.0 - 1.0 / over)


class ModelEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long compiling a model will take, about. Immutable; JSON both ways.

    Attributes
    ----------
    products : int
        Convolutions and matrix products of the model.
    trials : int
        Measurements of their kernels, at most.
    plan_s, build_s, check_s, tune_s : float
        Choosing layouts and schedules; building the library (twice if kernels are measured); comparing outputs;
        measuring kernels and both builds.
    seconds, low_s, high_s, basis, may_end_early
        As `CostEstimate` has them.
    compile_s : float
        Of that, compiling the analytical model itself, where no earlier run left its code.
    calibrate_s : float
        Of that, planning and building the model twice more for the ranges of its activations (precision int8); running
        it on the data is not in it.
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
    """Return the wall seconds in which a kernel of `time_s` is checked and timed by a protocol.

    Sampling ends where its precision is reached, which the noise decides: halfway between the fewest and most samples.
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
    """Return the wall seconds between two trials, where builders and runner have the cores of a plan."""
    if not cores.overlap:  # they take turns
        return run_s + build_s / cores.num_builders
    # Guests build on the runner's cores while nothing runs there.
    builders = cores.num_builders + cores.num_guests
    return max(run_s, (build_s + cores.num_guests * run_s) / builders)


class Measuring(NamedTuple):
    """What a session measures, and how.

    Attributes
    ----------
    workload, hardware
        What is tuned; the device.
    protocol : TimingProtocol
        How trials are timed.
    cores : CorePlan or None
        Who works where; None: elsewhere.
    is_built : bool
        Whether kernels were built before.
    """

    workload: Workload
    hardware: HardwareSpec
    protocol: TimingProtocol
    cores: CorePlan | None
    is_built: bool = False


def estimate_session(
    measuring: Measuring,
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
        Of the plan's first choice.
    earlier : sequence of SessionCost
        Of this machine, kind of device and templates.
    resumed : sequence of Measurement
        Trials that the session has already.
    time_limit_s : float, optional
        What is left of it: asks for nothing new after that.
    may_end_early : bool
        Whether there are other rules that end it.
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
    """Return the wall seconds of a trial of some kernel on a machine of which nothing is known.

    Parameters
    ----------
    part : int
        Trials for which processes are started anew.
    """
    build_s, _, start_s, pace, compare_s = _FIRST[hardware.kind]
    return pace * seconds_a_trial(build_s, _FIRST_RUN_S, cores) + (start_s + compare_s) / part


def error_factor(earlier: Sequence[tuple[float, float]], *, is_known: bool = False) -> float:
    """Return by which factor an estimate may be wrong.

    Parameters
    ----------
    earlier : sequence of (float, float)
        What earlier ones took, and what was told of them, s, > 0.
    is_known : bool
        Whether there is something else that it rests on.
    """
    errors = [math.log(took_s / told_s) for took_s, told_s in earlier if took_s > 0 < told_s]  # a file may hold zeros
    if len(errors) < _FEW:
        return _FEW_FACTOR if earlier or is_known else _FIRST_FACTOR
    return max(_LEAST_FACTOR, math.exp(_DEVIATIONS * math.sqrt(statistics.fmean(error**2 for error in errors))))


def session_cost(
    measuring: Measuring,
    measurements: Sequence[Measurement],
    *,
    start_s: float,
    measure_s: float,
    compare_s: float | None,
    estimated_s: float,
) -> SessionCost | None:
    """Return what a session took, for the next estimate; None where it made too few trials to say, or elsewhere.

    Parameters
    ----------
    measurements
        Of the trials that it made.
    start_s, measure_s, compare_s : float
        Wall times of its parts.
    estimated_s : float
        What was told of all of it.
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
