"""Tuning as text: one line of progress, the summary at the end."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Trial
from anatune.model.bound import TimeBound
from anatune.report import units
from anatune.report.plans import joined_text, template_text
from anatune.report.records import peak_of_threads, rate_text
from anatune.report.schedules import schedule_items, template_items
from anatune.report.text import Line, paragraph, wrapped_items
from anatune.report.workers import failures_text, fleet_text, share_lines
from anatune.tuning.cost import CostEstimate, ModelEstimate
from anatune.tuning.ending import FinalComparison, speed_over, time_beside
from anatune.tuning.result import ModelProgress, TuningProgress, TuningResult

_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
_MOST_OF_UNIT = 90.0
"""Of a unit, from which on the next one is told."""


def measured_rate(hardware: CpuSpec | GpuSpec, trial: Trial, time_s: float) -> str:
    """Return the rate of a trial's kernel and its share of the peak; an empty text where operations are not counted."""
    workload = trial.schedule.workload
    if not workload.flop:
        return ""
    peak = peak_of_threads(hardware, workload.dtype, trial.threads, trial.schedule.template)
    return rate_text(workload.flop / time_s, peak)


def progress_text(progress: TuningProgress) -> str:
    """Return one line: trial, the last rate, the best so far, failures, devices, time left."""
    if progress.stage == "plan":
        return "planning"
    if progress.stage == "start":
        return "starting" if progress.estimate is None else cost_text(progress.estimate)
    if progress.stage == "compare":
        return "measuring the best and the plan's first choice once more, in turn: this decides"
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
    """Return how many devices measure how fast, and the time left, as far as they are known."""
    fleet = fleet_text(progress.workers, progress.trials_per_s)
    left = "" if progress.left_s is None else f"{progress.left_s:.0f} s left"
    return [word for word in (fleet, left) if word]


def _trial_text(trial: Trial, first: Trial) -> str:
    """Return how fast a trial ran at the machine's speed beside the first one, and its speed over the first one's."""
    flop, time_s = trial.schedule.workload.flop, time_beside(trial.measurement, first.measurement)
    rate = units.flop_rate(flop / time_s) if flop else units.duration(time_s)
    return rate if trial is first else f"{rate}, {_over_first(trial, first)}"


def _best_text(best: Trial | None, first: Trial | None) -> str:
    if best is None or first is None:
        return "nothing ran yet"
    return "best: the first" if best is first else f"best: number {best.number}, {_over_first(best, first)}"


def _over_first(trial: Trial, first: Trial) -> str:
    return f"{speed_over(trial, first):.3f} x the first"


def cost_text(estimate: CostEstimate) -> str:
    """Return one line: about how long a session takes, and what it can win at most."""
    trials = units.many(estimate.trials, "trial")
    return f"{span_text(trials, estimate)}; {worth_text(estimate.predicted_s, estimate.bound)}"


def span_text(what: str, estimate: CostEstimate | ModelEstimate) -> str:
    """Return how long something takes, with the range, and how much is known of that."""
    if estimate.seconds is None or estimate.low_s is None or estimate.high_s is None:
        return f"{what}, on other machines: how long that takes is told after the first ones"
    unit, name = next((unit for unit in _UNITS if estimate.seconds < _MOST_OF_UNIT * unit[0]), _UNITS[-1])
    low, middle, high = (_rounded(seconds / unit) for seconds in (estimate.low_s, estimate.seconds, estimate.high_s))
    known = "" if estimate.basis != "first" else ", the first estimate on this machine"
    early = ", less if it ends early" if estimate.may_end_early else ""
    return f"about {middle} {name} for {what} ({low} to {high}{known}{early})"


def model_cost_text(estimate: ModelEstimate) -> str:
    """Return one line: about how long compiling a model takes, and what of it."""
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


def _rounded(value: float) -> str:
    """Return two digits of a number: an estimate knows no more."""
    return f"{value:.1f}" if value < 9.95 else f"{float(f'{value:.2g}'):.0f}"


def worth_text(predicted_s: float | None, bound: TimeBound, what: str = "the plan's first choice is") -> str:
    """Return what tuning can win at most: the distance of a prediction from its bound, where that holds."""
    if predicted_s is None:
        return "there is no prediction to compare with the lower bound"
    over = predicted_s / bound.time_s
    if bound.unverified:
        return (
            f"{what} predicted at {over:.2f} of a lower bound that rests on numbers nobody has verified "
            f"({', '.join(bound.unverified)}): what tuning can win is not known; `anatune hw calibrate` measures them"
        )
    if over < 1.005:
        return f"{what} predicted at the lower bound: by the model there is nothing to win"
    return (
        f"{what} predicted at {over:.2f} of the lower bound: if that is right, tuning can win at most "
        f"{units.percent(1.0 - 1.0 / over)}"
    )


def model_progress_text(progress: ModelProgress) -> str:
    """Return one line: trials, what is tuned, the model's predicted and measured time, time left."""
    measured = f", {units.duration(progress.measured_s)} with what was measured" if progress.done else ""
    words = [
        f"trial {progress.done}/{progress.total}",
        f"kernels predicted {units.duration(progress.predicted_s)}{measured}",
    ]
    return "; ".join([*words, *_pace(progress), progress.kernel])


def result_lines(result: TuningResult, hints: Sequence[str] = (), *, width: int = 80) -> list[Line]:
    """Return the summary of a session.

    Parameters
    ----------
    result
        What `tune` returned.
    hints : sequence of str
        Lines for the end: files, what to do next.
    width : int
        Characters a line.
    """
    lines = paragraph(_heading(result), width, "bold")
    if result.trials:
        template = result.trials[0].schedule.template
        told = (
            joined_text(result.templates, result.accuracy)
            if len(result.templates) > 1
            else template_text(result.workload, result.hardware, template)
        )
        lines += paragraph(told, width)
    outcomes = ", ".join(f"{number} {outcome.value}" for outcome, number in result.outcomes.items())
    resumed = f" ({result.num_resumed} of them resumed)" if result.num_resumed else ""
    lines.append(
        Line(f"{len(result.trials)} trials{resumed} in {units.duration(result.elapsed_s)}: {outcomes or 'none'}")
    )
    lines += [*paragraph(ended_text(result), width), *share_lines(result.shares, width)]
    if result.correction is not None:
        lines += paragraph(f"the ranking that it started from is corrected by {result.correction}", width)
    if result.learned_trials:
        told = units.many(result.learned_workloads, "workload")
        told = (
            f"learned from {result.learned_trials} recorded trials of {told} of this device and from its own; "
            "--no-reuse does without records"
        )
        lines += paragraph(told, width)
    lines += _best_lines(result, width)
    for told in (_speed_of_times(result), _energy(result), _told(result), _against_bound(result), *hints):
        lines += paragraph(told, width)
    return lines


def _best_lines(result: TuningResult, width: int) -> list[Line]:
    """Return the best trial, its schedule, and how it compares with the plan's first choice; nothing if none ran."""
    best, best_s = result.best_trial, result.best_s
    if best is None or best_s is None:
        return []
    who = "the plan's own first choice" if best is result.plan_first else f"asked for by {best.source!r}"
    rate = measured_rate(best.schedule.hardware, best, best_s)
    told = f"best: trial {best.number}, {who}: {units.duration(best_s)}{rate and f', {rate}'}"
    among_several = len(result.templates) > 1
    items = template_items(best.schedule, among_several=among_several) + schedule_items(best.schedule)
    return [
        *paragraph(told, width, "green"),
        *map(Line, wrapped_items(items, width, indent="  ")),
        *paragraph(_against_plan(result, best), width),
    ]


def _heading(result: TuningResult) -> str:
    threads = f", {units.threads(result.threads)}" if result.hardware.most_threads else ""
    return f"{result.workload.describe()} on {result.hardware.name} ({result.hardware.model}){threads}"


def _against_plan(result: TuningResult, best: Trial) -> str:
    plan, comparison = result.plan_first, result.compare
    if plan is None:
        return "the plan's own first choice was not measured"
    if plan.measurement.time_s is None:
        return f"the plan's own first choice did not run: {plan.measurement.outcome.value}, {plan.measurement.message}"
    if comparison is None or comparison.speedup is None:
        if best is plan:
            return "no trial was faster"
        return f"{speed_over(best, plan):.3f} times as fast as the plan's own first choice, by one trial of each"
    if comparison.best == plan.number:
        others = len(comparison.contenders) - 1
        return f"measured in turn with the {others} next best, the plan's own first choice stays ahead"
    return f"against the plan's own first choice, measured in turn: {_speedup(comparison)}"


def ended_text(result: TuningResult) -> str:
    """Return why a session ended before its trials were used up; an empty text if it did not."""
    if result.ended == "stop_at" and result.stop_at is not None:
        return f"ended early: a kernel reached {units.percent(result.stop_at)} of the lower bound, as asked"
    return {
        "patience": f"ended early: {result.patience} trials without one that is better beyond noise",
        "time_limit": "ended by the time limit",
        "space": "ended early: there are no more schedules",
    }.get(result.ended, "")


def _speed_of_times(result: TuningResult) -> str:
    """Return what the session's times are; an empty text where no reference kernel ran beside its best."""
    if result.best_trial is None or result.best_trial.measurement.relative is None:
        return ""
    return "all times are at the machine's speed beside the first trial, by the reference kernel that ran beside each"


def _energy(result: TuningResult) -> str:
    """Return what was counted of energy; an empty text where nothing counts."""
    run_j = None if result.best_trial is None else result.best_trial.measurement.energy_j
    parts = [f"{units.energy(run_j)} a run of the best"] if run_j is not None else []
    if result.energy_j is not None:
        parts.append(f"{units.energy(result.energy_j)} in all ({', '.join(result.energy_of)})")
    return f"energy, of whole devices and all that they did: {'; '.join(parts)}" if parts else ""


def _told(result: TuningResult) -> str:
    """Return how long measuring took beside the estimate; an empty text without one."""
    estimate, took_s = result.estimate, result.measure_s
    if estimate is None or took_s is None or estimate.seconds is None or result.ended != "trials":
        return ""
    return f"measuring took {units.duration(took_s)}, estimated beforehand at {units.duration(estimate.seconds)}"


def bound_text(bound: TimeBound) -> str:
    """Return a lower bound and what it is made of."""
    return f"{units.duration(bound.time_s)} ({bound_by_text(bound)})"


def bound_by_text(bound: TimeBound) -> str:
    """Return what a lower bound is made of."""
    return "arithmetic at the peak" if bound.bound_by == "fma" else f"transfers from {bound.bound_by.upper()}"


def _against_bound(result: TuningResult) -> str:
    """Return how near the best trial is to its bound; an empty text if nothing ran."""
    share, bound = result.share_of_bound, result.bound
    if share is None or bound is None:
        return ""
    if share > 1.0:
        return (
            f"the best is faster than the lower bound of {bound_text(bound)}, {units.percent(share)} of it: the device "
            "does more than its spec says; `anatune hw calibrate` measures it"
        )
    return f"lower bound: {bound_text(bound)}; the best is at {units.percent(share)} of it"


def _speedup(comparison: FinalComparison) -> str:
    assert comparison.speedup is not None
    if not comparison.decided:
        faster = f"{comparison.speedup:.3f} times as fast; {interval_text(comparison)}"
        return f"no difference that measuring could show ({faster})"
    return f"{comparison.speedup:.3f} times as fast ({interval_text(comparison)})"


def interval_text(comparison: FinalComparison) -> str:
    """Return how sure the speed of a winner over the plan's first choice is."""
    return f"95 % confidence: {comparison.low:.3f} to {comparison.high:.3f}"
