"""Reports about tuning: the line of progress, and the summary at the end of a session."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Trial
from anatune.model.bound import TimeBound
from anatune.report import units
from anatune.report.plans import joined_text, template_text
from anatune.report.records import peak_of_threads, rate_text
from anatune.report.schedules import schedule_items, template_items
from anatune.report.text import Line, paragraph, wrap_items
from anatune.report.workers import failures_text, fleet_text, share_lines
from anatune.tuning.cost import CostEstimate, ModelEstimate
from anatune.tuning.ending import FinalComparison, speed_over, time_beside
from anatune.tuning.result import ModelProgress, TuningProgress, TuningResult

_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
_MOST_OF_UNIT = 90.0
"""The number of a unit from which on the next larger unit is used."""


def measured_rate(hardware: CpuSpec | GpuSpec, trial: Trial, time_s: float) -> str:
    """Return the rate of a kernel and its share of the peak as text; "" for workloads without operations."""
    workload = trial.schedule.workload
    if not workload.flop:
        return ""
    peak = peak_of_threads(hardware, workload.dtype, trial.threads, trial.schedule.template)
    return rate_text(workload.flop / time_s, peak)


def progress_text(progress: TuningProgress) -> str:
    """Return one line: number of the trial, its rate, the best so far, failures, devices, time left."""
    if progress.stage == "plan":
        return "ranking schedules by the model"
    if progress.stage == "start":
        return "starting the measurement" if progress.estimate is None else cost_text(progress.estimate)
    if progress.stage == "compare":
        return "final comparison: measuring the best schedules and the plan's first choice again, in turn"
    words = [f"trial {progress.done}/{progress.total}"]
    if progress.trial is not None:
        measurement = progress.trial.measurement
        if measurement.time_s is not None:
            words.append(_trial_text(progress.trial, progress.first or progress.trial))
        else:
            words.append(f"{measurement.outcome.value} ({measurement.message:.80})")
    words.append(_best_text(progress.best, progress.first))
    words.append(failures_text(progress.failures, progress.workers))
    return "; ".join([*words, *_pace(progress)])


def _pace(progress: TuningProgress | ModelProgress) -> list[str]:
    """Return the number of devices, their trials per second, and the time left, without unknown ones."""
    fleet = fleet_text(progress.workers, progress.trials_per_s)
    left = "" if progress.left_s is None else f"{progress.left_s:.0f} s left"
    return [word for word in (fleet, left) if word]


def _trial_text(trial: Trial, first: Trial) -> str:
    """Return the rate of a trial, scaled to the machine's speed during the first one, and its speed over the first."""
    flop, time_s = trial.schedule.workload.flop, time_beside(trial.measurement, first.measurement)
    rate = units.flop_rate(flop / time_s) if flop else units.duration(time_s)
    return rate if trial is first else f"{rate}, {_over_first(trial, first)}"


def _best_text(best: Trial | None, first: Trial | None) -> str:
    if best is None or first is None:
        return "no successful trial yet"
    return "best: the first trial" if best is first else f"best: trial {best.number}, {_over_first(best, first)}"


def _over_first(trial: Trial, first: Trial) -> str:
    return f"{speed_over(trial, first):.3f} x as fast as the first"


def cost_text(estimate: CostEstimate) -> str:
    """Return one line: the estimated time of a session, and its largest possible gain."""
    trials = units.many(estimate.trials, "trial")
    return f"{span_text(trials, estimate)}; {worth_text(estimate.predicted_s, estimate.bound)}"


def span_text(what: str, estimate: CostEstimate | ModelEstimate) -> str:
    """Return an estimated time with its range, and its basis if that is uncertain."""
    if estimate.seconds is None or estimate.low_s is None or estimate.high_s is None:
        return f"{what} on other machines; the time left is estimated after the first trials"
    unit, name = next((unit for unit in _UNITS if estimate.seconds < _MOST_OF_UNIT * unit[0]), _UNITS[-1])
    low, middle, high = (
        _round_estimate(seconds / unit) for seconds in (estimate.low_s, estimate.seconds, estimate.high_s)
    )
    basis_text = "" if estimate.basis != "first" else ", a first estimate, because this machine has no records yet"
    early_text = ", less if the session ends early" if estimate.may_end_early else ""
    return f"about {middle} {name} for {what} ({low} to {high}{basis_text}{early_text})"


def model_cost_text(estimate: ModelEstimate) -> str:
    """Return one line: the estimated time of compiling a network, and of its parts."""
    parts = {
        "compile the analytical model, once": estimate.compile_s,
        "calibrate": estimate.calibrate_s,
        "plan": estimate.plan_s,
        "measure": estimate.tune_s,
        "build": estimate.build_s,
        "check": estimate.check_s,
    }
    shares = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts.items() if seconds >= 1.0)
    number = units.many(estimate.products, "product")
    trials = f" and at most {estimate.trials} trials" if estimate.trials else ""
    return span_text(f"{number}{trials}", estimate) + (f": {shares}" if shares and estimate.seconds is not None else "")


def _round_estimate(value: float) -> str:
    """Return a number with two digits, because an estimate is not more precise."""
    return f"{value:.1f}" if value < 9.95 else f"{float(f'{value:.2g}'):.0f}"


def worth_text(predicted_s: float | None, bound: TimeBound, what: str = "the plan's first choice is") -> str:
    """Return the most time that tuning can save: the distance of a prediction from the lower bound."""
    if predicted_s is None:
        return "the predicted time is unknown, so it cannot be compared with the lower bound on the time"
    over = predicted_s / bound.time_s
    if bound.unverified:
        return (
            f"{what} predicted to take {over:.2f} times the lower bound on the time, but that bound depends on "
            f"unverified numbers of the spec ({', '.join(bound.unverified)}), so it does not tell how much time tuning "
            "can save; `anatune hw calibrate` measures these numbers"
        )
    if over < 1.005:
        return f"{what} predicted to reach the lower bound on the time: by the model, tuning cannot save any time"
    return (
        f"{what} predicted to take {over:.2f} times the lower bound on the time: if that is right, tuning can save at "
        f"most {units.percent(1.0 - 1.0 / over)} of it"
    )


def model_progress_text(progress: ModelProgress) -> str:
    """Return one line: trials, predicted and measured time of all kernels of a network, time left, the kernel."""
    measured = f", {units.duration(progress.measured_s)} with measured times" if progress.done else ""
    words = [
        f"trial {progress.done}/{progress.total}",
        f"all kernels: {units.duration(progress.predicted_s)} predicted{measured}",
    ]
    return "; ".join([*words, *_pace(progress), progress.kernel])


def result_lines(result: TuningResult, hints: Sequence[str] = (), *, width: int = 80) -> list[Line]:
    """Return the summary of a session.

    Parameters
    ----------
    result
        The result of `tune`.
    hints : sequence of str
        Lines at the end that name files and next commands.
    width : int
        Characters a line.
    """
    lines = paragraph(_heading(result), width, "bold")
    if result.trials:
        template = result.trials[0].schedule.template
        sentence = (
            joined_text(result.templates, result.accuracy)
            if len(result.templates) > 1
            else template_text(result.workload, result.hardware, template)
        )
        lines += paragraph(sentence, width)
    outcomes = ", ".join(f"{number} {outcome.value}" for outcome, number in result.outcomes.items())
    resumed = f" ({result.num_resumed} of them resumed)" if result.num_resumed else ""
    lines.append(
        Line(f"{len(result.trials)} trials{resumed} in {units.duration(result.elapsed_s)}: {outcomes or 'none'}")
    )
    lines += [*paragraph(ended_text(result), width), *share_lines(result.shares, width)]
    if result.correction is not None:
        lines += paragraph(f"predicted times were corrected by the learned correction {result.correction}", width)
    if result.learned_trials:
        workloads_text = units.many(result.learned_workloads, "workload")
        sentence = (
            f"the search learned from {result.learned_trials} recorded trials of {workloads_text} on this device "
            "and from its own trials; --no-reuse ignores the records"
        )
        lines += paragraph(sentence, width)
    lines += _best_lines(result, width)
    for sentence in (_scaling_text(result), _energy(result), _duration_text(result), _against_bound(result), *hints):
        lines += paragraph(sentence, width)
    return lines


def _best_lines(result: TuningResult, width: int) -> list[Line]:
    """Return lines with the best trial, its schedule, and its speed over the plan's first choice; empty if none ran."""
    best, best_s = result.best_trial, result.best_s
    if best is None or best_s is None:
        return []
    who = "the plan's first choice" if best is result.plan_first else f"proposed by {best.source!r}"
    rate = measured_rate(best.schedule.hardware, best, best_s)
    sentence = f"best: trial {best.number}, {who}: {units.duration(best_s)}{rate and f', {rate}'}"
    among_several = len(result.templates) > 1
    items = template_items(best.schedule, among_several=among_several) + schedule_items(best.schedule)
    return [
        *paragraph(sentence, width, "green"),
        *map(Line, wrap_items(items, width, indent="  ")),
        *paragraph(_against_plan(result, best), width),
    ]


def _heading(result: TuningResult) -> str:
    threads = f", {units.threads(result.threads)}" if result.hardware.most_threads else ""
    return f"{result.workload.describe()} on {result.hardware.name} ({result.hardware.model}){threads}"


def _against_plan(result: TuningResult, best: Trial) -> str:
    plan, comparison = result.plan_first, result.compare
    if plan is None:
        return "the plan's first choice was not measured"
    if plan.measurement.time_s is None:
        return f"the plan's first choice failed: {plan.measurement.outcome.value}, {plan.measurement.message}"
    if comparison is None or comparison.speedup is None:
        if best is plan:
            return "no trial was faster than the plan's first choice"
        return f"{speed_over(best, plan):.3f} times as fast as the plan's first choice, judged by one trial of each"
    if comparison.best == plan.number:
        others = len(comparison.contenders) - 1
        return f"final comparison, measured in turn with the {others} next best: the plan's first choice is the fastest"
    return f"final comparison with the plan's first choice, measured in turn: {_speedup(comparison)}"


def ended_text(result: TuningResult) -> str:
    """Return why a session ended before all its trials were measured; "" if it did not."""
    if result.ended == "stop_at" and result.stop_at is not None:
        return (
            f"the session ended early: the lower bound on the time is {units.percent(result.stop_at)} or more of the "
            "best time, as requested"
        )
    return {
        "patience": f"the session ended early: no kernel was faster beyond noise in the last {result.patience} trials",
        "time_limit": "the session ended at its time limit",
        "space": "the session ended early: the search strategy has no more schedules to measure",
    }.get(result.ended, "")


def _scaling_text(result: TuningResult) -> str:
    """Return a sentence about the scaling of the session's times; "" if no reference kernel ran with its best trial."""
    if result.best_trial is None or result.best_trial.measurement.relative is None:
        return ""
    return (
        "all times are scaled to the machine's speed during the first trial, by a reference kernel run with each trial"
    )


def _energy(result: TuningResult) -> str:
    """Return the measured energy as text; "" if there is none."""
    run_j = None if result.best_trial is None else result.best_trial.measurement.energy_j
    parts = [f"{units.energy(run_j)} for one run of the best"] if run_j is not None else []
    if result.energy_j is not None:
        parts.append(f"{units.energy(result.energy_j)} for the session ({', '.join(result.energy_of)})")
    return f"energy of whole devices, other programs included: {'; '.join(parts)}" if parts else ""


def _duration_text(result: TuningResult) -> str:
    """Return the duration of the session and its estimate; "" without an estimate."""
    estimate, took_s = result.estimate, result.measure_s
    if estimate is None or took_s is None or estimate.seconds is None or result.ended != "trials":
        return ""
    return f"measuring took {units.duration(took_s)}; the estimate was {units.duration(estimate.seconds)}"


def bound_text(bound: TimeBound) -> str:
    """Return a lower bound and its cause as text."""
    return f"{units.duration(bound.time_s)} ({bound_by_text(bound)})"


def bound_by_text(bound: TimeBound) -> str:
    """Return the cause of a lower bound: arithmetic, or transfers from a level of memory."""
    return "arithmetic at the peak" if bound.bound_by == "fma" else f"transfers from {bound.bound_by.upper()}"


def _against_bound(result: TuningResult) -> str:
    """Return the lower bound on the time and its share of the best time; "" if no trial ran."""
    share, bound = result.share_of_bound, result.bound
    if share is None or bound is None:
        return ""
    if share > 1.0:
        return (
            f"the best is faster than the lower bound on the time, {bound_text(bound)}, which is "
            f"{units.percent(share)} of its time: the device is faster than its spec; "
            "`anatune hw calibrate` measures it"
        )
    return f"lower bound on the time: {bound_text(bound)}, {units.percent(share)} of the best time"


def _speedup(comparison: FinalComparison) -> str:
    assert comparison.speedup is not None
    if not comparison.decided:
        faster = f"{comparison.speedup:.3f} times as fast; {interval_text(comparison)}"
        return f"no significant difference ({faster})"
    return f"{comparison.speedup:.3f} times as fast ({interval_text(comparison)})"


def interval_text(comparison: FinalComparison) -> str:
    """Return the confidence interval of the winner's speed over the plan's first choice."""
    return f"95 % confidence: {comparison.low:.3f} to {comparison.high:.3f}"
