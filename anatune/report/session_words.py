"""Sessions in words and numbers, for the terminal and for pages: the best, why it won, the end, drift, failures."""

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
"""What, its value, a remark or ""."""
_HALVES_FROM = 8
"""Measurements from which on the halves of a session are compared."""
_MATERIAL = 0.02
"""Share by which the halves differ before it is said."""
_MOST_CIRCUMSTANCES = 6
_MOST_LINES = 3
"""First lines of failures that text tells of each kind; a page has them all."""


def place_text(view: SessionView) -> str:
    """Return what was tuned where: "matmul 512x512x512 on host, 2 threads"."""
    threads = f", {units.threads(view.threads)}" if view.hardware.most_threads else ""
    return f"{workload_text(view.workload)} on {view.hardware.name}{threads}"


def session_facts(view: SessionView) -> list[Fact]:
    """Return the numbers that a person wants first."""
    facts: list[Fact] = []
    best, comparison, plan, time_s = view.best, view.comparison, view.plan_first, view.best_s
    if best is not None and time_s is not None:
        rate = measured_rate(view.hardware, best, time_s)
        facts.append(("best", units.duration(time_s), rate))
        if comparison is not None and comparison.speedup is not None and plan is not None:
            if comparison.best == plan.number:
                facts.append(("against the plan's first choice", "it won", "nothing that was measured is faster"))
            else:
                faster = f"{comparison.speedup:.3f} x as fast"
                facts.append(("against the plan's first choice", faster, interval_text(comparison)))
        if best.predicted_s:
            ratio = f"measured: {units.ratio(time_s / best.predicted_s)} times that"
            if best.corrected_s:
                ratio += f", {units.ratio(time_s / best.corrected_s)} times what records had corrected it to"
            facts.append(("predicted for the best", units.duration(best.predicted_s), ratio))
        bound = view.bound
        share = f"the best is at {units.percent(bound.time_s / time_s)} of it"
        if time_s < bound.time_s:
            share = "the best is faster: the device does more than its spec says"
        facts.append(("lower bound", units.duration(bound.time_s), f"{bound_by_text(bound)}; {share}"))
    else:
        facts.append(("best", "nothing ran", f"{view.num_failed} failed"))
    if (energy := _energy_fact(view)) is not None:
        facts.append(energy)
    took = f" in {units.duration(view.ended_s[-1])}" if view.ended_s else ""
    told = f"{view.num_failed} without a time" if view.num_failed else "all of them ran"
    told += f"; {view.ended}" if view.ended else ""
    facts.append(("trials", f"{units.count(len(view.trials))}{took}", told))
    return facts


def _energy_fact(view: SessionView) -> Fact | None:
    """Return what was counted of energy, None where nothing counts."""
    run_j = None if view.best is None else view.best.measurement.energy_j
    in_all = "" if view.energy_j is None else f"{units.energy(view.energy_j)} in all"
    if run_j is not None:
        return "energy of a run", units.energy(run_j), f"of the whole device{in_all and f'; {in_all}'}"
    return ("energy", units.energy(view.energy_j), "of whole devices, in all") if view.energy_j is not None else None


def comparison_sentences(view: SessionView) -> list[str]:
    """Return what the final comparison says; one sentence where there was none."""
    if view.comparison is None:
        return ["The session ended without measuring its best trials once more, in turn."]
    winner, *others = contests(view.comparison, view.best_s)
    plan = None if view.plan_first is None else view.plan_first.number
    named = f"trial {winner.number}" + (" (the plan's own first choice)" if winner.number == plan else "")
    sentences = [f"The best trials took turns on one machine; {named} won with {units.duration(winner.time_s)}."]
    alike = [contest for contest in others if contest.low <= 1.0 <= contest.high]
    if alike:
        numbers = ", ".join(f"trial {contest.number}" for contest in alike)
        count = max(contest.num_samples for contest in alike)
        sentences.append(f"Within 95 % confidence as fast, by {count} samples: {numbers}.")
    for contest in others:
        if contest not in alike:
            whose = " (the plan's first choice)" if contest.number == plan else ""
            sentences.append(
                f"Trial {contest.number}{whose} takes {contest.ratio:.3f} times as long, with 95 % confidence "
                f"{contest.low:.3f} to {contest.high:.3f}."
            )
    return sentences


def drift_sentences(view: SessionView) -> list[str]:
    """Return how the machines' speed changed; a sentence for each, one where no reference kernel ran."""
    samples = reference_speeds(view)
    if not samples:
        return ["No reference kernel ran beside these trials: times are as they were, whatever the machine's speed."]
    sentences = []
    for worker in dict.fromkeys(sample.worker for sample in samples):
        speeds = [sample.median for sample in samples if sample.worker == worker]
        text = (
            f"On {worker or 'the machine of the session'} the reference kernel took {min(speeds):.3f} to "
            f"{max(speeds):.3f} times its usual time beside the {len(speeds)} measurements."
        )
        half = len(speeds) // 2
        if len(speeds) >= _HALVES_FROM:
            change = statistics.median(speeds[half:]) / statistics.median(speeds[:half]) - 1
            if abs(change) >= _MATERIAL:
                word = "slower" if change > 0 else "faster"
                text += f" The second half of the session ran {units.percent(abs(change))} {word} than the first."
        sentences.append(text)
    sentences.append(
        "All times of this session are at the speed that the machine had beside the first trial, by the reference "
        "kernel that ran beside each."
    )
    return sentences


def failure_sentences(view: SessionView, most: int = _MOST_LINES) -> list[str]:
    """Return the trials without a time by kind, with the first lines of what they said, the most frequent first."""
    sentences = []
    for kind in failure_kinds(view.trials):
        told = "; ".join(f"{line} ({count})" if count > 1 else line for line, count in kind.messages[:most])
        more = f"; and {len(kind.messages) - most} more" if len(kind.messages) > most else ""
        sentences.append(f"{kind.num} {kind.outcome.value}: {told}{more}")
    return sentences


def winner_sentences(view: SessionView) -> list[str]:
    """Return why a session's winner is what it is, in sentences; empty where nothing ran.

    What is said of parts and traffic is the analytical model's word for the schedule that was measured to be the best;
    where the device's model has no such point (an imported kernel), the schedule alone is told.
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
    sentences.append(f"By the model: {binding_text(prediction, 'it')}")
    other = None if first is None or first is best else _prediction(view, first)
    return sentences if first is None or other is None else sentences + _against(view, best, first, prediction, other)


def _prediction(view: SessionView, trial: Trial) -> Prediction | None:
    """Return what the analytical model says of a trial's schedule, None where that is no point of its space."""
    device = view.hardware if view.hardware.most_threads is None else view.hardware.with_threads(view.threads)
    try:
        model = make_model(view.workload, device, trial.schedule.template)
        point = model.space.point_of(trial.schedule)
        return model.predictions(np.array([point], dtype=np.int64))[0]
    except (SpaceError, KeyError):
        return None


def _against(view: SessionView, best: Trial, first: Trial, ours: Prediction, theirs: Prediction) -> list[str]:
    """Return what the winner does otherwise than the plan's first choice, and what the model expected of that."""
    kept = set(schedule_items(first.schedule))
    changed = [item for item in schedule_items(best.schedule) if item not in kept]
    sentences = [
        f"The plan's first choice was trial {first.number}; the winner has instead: {', '.join(changed) or 'the same'}."
    ]
    for verb, listed in zip(("more", "less"), changed_parts(ours, theirs), strict=True):
        if listed:
            sentences.append(f"By the model the first choice needs {verb}: {listed}.")
    if told := circumstances_of(ours, theirs)[:_MOST_CIRCUMSTANCES]:
        sentences.append(f"First choice against winner: {'; '.join(told)}.")
    speedup = None if view.comparison is None else view.comparison.speedup
    measured = f"; measured in turn, {units.ratio(1 / speedup)} times" if speedup else ""
    expected = units.ratio(ours.time_s / theirs.time_s)
    return [*sentences, f"The model predicts {expected} times the first choice's time for the winner{measured}."]


def report_dict(view: SessionView) -> dict[str, object]:
    """Return a session's findings as plain values; times in seconds."""
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
    """Return sessions as text, under a heading for each workload, device and number of threads."""
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
