"""Report of a session for the terminal and for pages: the best schedule, why it won, the end, drift, failures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from anatune.core.prediction import Prediction
from anatune.core.trial import Trial
from anatune.errors import SpaceError
from anatune.records.export import workload_text
from anatune.report import units
from anatune.report.explain import binding_text, changed_parts, circumstances_of
from anatune.report.findings import agreement, contests, failure_kinds, reference_speeds
from anatune.report.records import when_text
from anatune.report.schedules import schedule_items, template_items
from anatune.report.sessions import SessionView
from anatune.report.text import Line, Style, paragraph
from anatune.report.tuning import bound_by_text, interval_text, measured_rate
from anatune.templates import make_model

Fact = tuple[str, str, str]
"""A name, its value, and a remark or ""."""
_HALVES_FROM = 8
"""Fewest measurements for a comparison of the two halves of a session."""
_LEAST_DRIFT = 0.02
"""Relative difference of the halves above which it is reported."""
_MOST_CIRCUMSTANCES = 6
_MOST_LINES = 3
"""Number of messages that the text shows for each outcome; a page shows all."""


def place_text(view: SessionView) -> str:
    """Return the workload, device and threads as text: "matmul 512x512x512 on host, 2 threads"."""
    threads = f", {units.threads(view.threads)}" if view.hardware.most_threads else ""
    return f"{workload_text(view.workload)} on {view.hardware.name}{threads}"


def session_facts(view: SessionView) -> list[Fact]:
    """Return the most important numbers of a session."""
    facts: list[Fact] = []
    best, comparison, plan, time_s = view.best, view.comparison, view.plan_first, view.best_s
    if best is not None and time_s is not None:
        rate = measured_rate(view.hardware, best, time_s)
        facts.append(("best", units.duration(time_s), rate))
        if comparison is not None and comparison.speedup is not None and plan is not None:
            if comparison.best == plan.number:
                facts.append(("best against the plan's first choice", "the same schedule", "no other one is faster"))
            else:
                faster = f"{comparison.speedup:.3f} times as fast"
                facts.append(("best against the plan's first choice", faster, interval_text(comparison)))
        if best.predicted_s:
            ratio = f"the measured time is {units.ratio(time_s / best.predicted_s)} times that"
            if best.corrected_s:
                ratio += f", and {units.ratio(time_s / best.corrected_s)} times the prediction corrected by records"
            facts.append(("predicted time of the best", units.duration(best.predicted_s), ratio))
        bound = view.bound
        share = f"{units.percent(bound.time_s / time_s)} of the best time"
        if time_s < bound.time_s:
            share = "the best is faster: the device is faster than its spec"
        facts.append(("lower bound on the time", units.duration(bound.time_s), f"{bound_by_text(bound)}; {share}"))
    else:
        facts.append(("best", "no trial ran successfully", f"{view.num_failed} failed"))
    if (energy := _energy_fact(view)) is not None:
        facts.append(energy)
    took = f" in {units.duration(view.ended_s[-1])}" if view.ended_s else ""
    failures_text = f"{view.num_failed} failed" if view.num_failed else "all of them ran"
    failures_text += f"; {view.ended}" if view.ended else ""
    facts.append(("trials", f"{units.count(len(view.trials))}{took}", failures_text))
    return facts


def _energy_fact(view: SessionView) -> Fact | None:
    """Return the measured energy; None if there is none."""
    run_j = None if view.best is None else view.best.measurement.energy_j
    in_all = "" if view.energy_j is None else f"{units.energy(view.energy_j)} for the session"
    if run_j is not None:
        return "energy of one run of the best", units.energy(run_j), f"of the whole device{in_all and f'; {in_all}'}"
    return (
        ("energy of the session", units.energy(view.energy_j), "of whole devices")
        if view.energy_j is not None
        else None
    )


def comparison_sentences(view: SessionView) -> list[str]:
    """Return sentences about the final comparison, or one sentence if there was none."""
    if view.comparison is None:
        return ["The session ended without a final comparison, which measures the best schedules again in turn."]
    winner, *others = contests(view.comparison, view.best_s)
    plan = None if view.plan_first is None else view.plan_first.number
    named = f"trial {winner.number}" + (" (the plan's first choice)" if winner.number == plan else "")
    sentences = [
        f"Final comparison, measured in turn on one machine: {named} won with {units.duration(winner.time_s)}."
    ]
    not_slower = [contest for contest in others if contest.low <= 1.0 <= contest.high]
    if not_slower:
        numbers = ", ".join(f"trial {contest.number}" for contest in not_slower)
        count = max(contest.num_samples for contest in not_slower)
        sentences.append(f"Not significantly slower (95 % confidence, {count} samples): {numbers}.")
    for contest in others:
        if contest not in not_slower:
            whose = " (the plan's first choice)" if contest.number == plan else ""
            sentences.append(
                f"Trial {contest.number}{whose} takes {contest.ratio:.3f} times as long (95 % confidence: "
                f"{contest.low:.3f} to {contest.high:.3f})."
            )
    return sentences


def drift_sentences(view: SessionView) -> list[str]:
    """Return a sentence about the drift of each machine's speed, or one sentence if no reference kernel ran."""
    samples = reference_speeds(view)
    if not samples:
        return ["No reference kernel ran with these trials, so times are not scaled to one speed of the machine."]
    sentences = []
    for worker in dict.fromkeys(sample.worker for sample in samples):
        speeds = [sample.median for sample in samples if sample.worker == worker]
        text = (
            f"On {worker or 'the machine of the session'} the reference kernel took {min(speeds):.3f} to "
            f"{max(speeds):.3f} times its median time during the {len(speeds)} measurements."
        )
        half = len(speeds) // 2
        if len(speeds) >= _HALVES_FROM:
            change = statistics.median(speeds[half:]) / statistics.median(speeds[:half]) - 1
            if abs(change) >= _LEAST_DRIFT:
                word = "slower" if change > 0 else "faster"
                text += f" The second half of the session ran {units.percent(abs(change))} {word} than the first."
        sentences.append(text)
    sentences.append(
        "All times of this session are scaled to the machine's speed during the first trial, by a reference kernel "
        "that ran with each trial."
    )
    return sentences


def failure_sentences(view: SessionView, most: int = _MOST_LINES) -> list[str]:
    """Return the failed trials by outcome, the most frequent first, with the first lines of their messages."""
    sentences = []
    for kind in failure_kinds(view.trials):
        messages = "; ".join(f"{line} ({count})" if count > 1 else line for line, count in kind.messages[:most])
        more = f"; and {len(kind.messages) - most} more" if len(kind.messages) > most else ""
        sentences.append(f"{kind.num} {kind.outcome.value}: {messages}{more}")
    return sentences


def winner_sentences(view: SessionView) -> list[str]:
    """Return sentences that explain why a session's winner is fast; empty if no trial ran.

    Parts of the time and traffic are the analytical model's predictions for the winner. If the model has no such point
    (an imported kernel), only the schedule is named.
    """
    best, first = view.best, view.plan_first
    if best is None or best.measurement.time_s is None:
        return []
    among = len({trial.schedule.template for trial in view.trials}) > 1
    items = ", ".join(template_items(best.schedule, among_several=among) + schedule_items(best.schedule))
    how = "was the fastest" if view.comparison is None else "won"
    sentences = [f"Trial {best.number} {how}: {items}."]
    prediction = _prediction(view, best)
    if prediction is None:
        return sentences
    sentences.append(f"Prediction: {binding_text(prediction, 'it')}")
    other = None if first is None or first is best else _prediction(view, first)
    return sentences if first is None or other is None else sentences + _against(view, best, first, prediction, other)


def _prediction(view: SessionView, trial: Trial) -> Prediction | None:
    """Return the analytical model's prediction for a trial; None if its schedule is no point of the space."""
    device = view.hardware if view.hardware.most_threads is None else view.hardware.with_threads(view.threads)
    try:
        model = make_model(view.workload, device, trial.schedule.template)
        point = model.space.point_of(trial.schedule)
        return model.predictions(np.array([point], dtype=np.int64))[0]
    except (SpaceError, KeyError):
        return None


def _against(view: SessionView, best: Trial, first: Trial, ours: Prediction, theirs: Prediction) -> list[str]:
    """Return sentences that compare the winner with the plan's first choice."""
    first_items = set(schedule_items(first.schedule))
    changed = [item for item in schedule_items(best.schedule) if item not in first_items]
    sentences = [
        f"The plan's first choice was trial {first.number}; the winner differs in: {', '.join(changed) or 'nothing'}."
    ]
    for verb, listed in zip(("more", "less"), changed_parts(ours, theirs), strict=True):
        if listed:
            sentences.append(f"By the model the first choice against the winner needs {verb} time for: {listed}.")
    if circumstances := circumstances_of(ours, theirs)[:_MOST_CIRCUMSTANCES]:
        sentences.append(f"First choice against winner: {'; '.join(circumstances)}.")
    speedup = None if view.comparison is None else view.comparison.speedup
    measured = f" and measured in turn {units.ratio(1 / speedup)} times" if speedup else ""
    expected = units.ratio(ours.time_s / theirs.time_s)
    return [*sentences, f"The winner is predicted to take {expected} times{measured} the time of the first choice."]


def report_dict(view: SessionView) -> dict[str, object]:
    """Return the report of a session as plain values; times in seconds."""
    agreed, comparison = agreement(view.trials), view.comparison
    return {
        "session": view.id or None,
        "begun_utc": view.begun_utc or None,
        "workload": workload_text(view.workload),
        "hardware": view.hardware.name,
        "threads": view.threads,
        "strategy": view.strategy,
        "trials": len(view.trials),
        "elapsed_s": view.ended_s[-1] if view.ended_s else None,
        "best": None if view.best is None else view.best.number,
        "best_s": view.best_s,
        "bound_s": view.bound.time_s,
        "plan_first": None if view.plan_first is None else view.plan_first.number,
        "energy_j": None if view.best is None else view.best.measurement.energy_j,
        "speedup": None if comparison is None else [comparison.speedup, comparison.low, comparison.high],
        "measured_over_predicted": agreed.ratio if agreed.num else None,
        "rank_correlation": None if agreed.rho is None else [agreed.rho, agreed.low, agreed.high],
        "failures": [
            {"outcome": kind.outcome.value, "trials": kind.num, "messages": dict(kind.messages)}
            for kind in failure_kinds(view.trials)
        ],
    }


def report_lines(views: Sequence[SessionView], *, width: int = 80) -> list[Line]:
    """Return the report of sessions, under a heading for each workload, device and number of threads."""
    lines: list[Line] = []
    last = ""
    for view in sorted(views, key=lambda view: (place_text(view), view.begun_utc)):
        if (where := place_text(view)) != last:
            lines += [*([Line("")] if lines else []), Line(where, "bold")]
            last = where
        begun = f", begun {when_text(view.begun_utc)} UTC" if view.begun_utc else ""
        lines.append(Line(f"  session {view.name}{begun}", "bold"))
        facts = [f"{what}: {value}{f' ({remark})' if remark else ''}" for what, value, remark in session_facts(view)]
        failures = failure_sentences(view)
        sentences = [
            *facts, *comparison_sentences(view), agreement(view.trials).describe(), *failures, *drift_sentences(view),
            *winner_sentences(view),
        ]  # fmt: skip
        for sentence in sentences:
            style: Style = "yellow" if sentence in failures else ""
            lines += paragraph(sentence, width, style, indent="  - ", hanging="    ")
    return lines
