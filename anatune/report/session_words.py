"""Sessions in words and numbers, for the terminal and for pages: the best, the end, drift, failures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from anatune.records.export import workload_text
from anatune.report import units
from anatune.report.findings import agreement, contests, failure_kinds, reference_speeds
from anatune.report.sessions import SessionView
from anatune.report.text import Line, wrapped
from anatune.report.tuning import bound_by_text, measured_rate
from anatune.report.winner import winner_sentences

__all__ = [
    "Fact",
    "comparison_sentences",
    "drift_sentences",
    "failure_sentences",
    "place_text",
    "report_dict",
    "report_lines",
    "session_facts",
]

Fact = tuple[str, str, str]
"""What, its value, a remark or ""."""
_HALVES_FROM = 8
"""Measurements from which on the halves of a session are compared."""
_MATERIAL = 0.02
"""Share by which the halves differ before it is said."""
_MOST_LINES = 3
"""First lines of failures that text tells of each kind; a page has them all."""


def place_text(view: SessionView) -> str:
    """Return what was tuned where: "matmul 512x512x512 on host, 2 threads"."""
    threads = f", {units.threads(view.threads)}" if view.hardware.most_threads else ""
    return f"{workload_text(view.workload)} on {view.hardware.name}{threads}"


def session_facts(view: SessionView) -> list[Fact]:
    """Return the numbers that a person wants first."""
    num, failed = len(view.trials), view.num_failed
    facts: list[Fact] = []
    best, comparison, plan = view.best, view.comparison, view.plan_first
    time_s = view.best_s
    if best is not None and time_s is not None:
        facts.append(
            ("best", units.duration(time_s), measured_rate(view.workload, view.hardware, view.threads, time_s))
        )
        if comparison is not None and comparison.speedup is not None and plan is not None:
            if comparison.best == plan.number:
                facts.append(("against the plan's first choice", "it won", "nothing that was measured is faster"))
            else:
                interval = f"95 % confidence: {comparison.low:.3f} to {comparison.high:.3f}"
                facts.append(("against the plan's first choice", f"{comparison.speedup:.3f} x as fast", interval))
        if best.predicted_s:
            ratio = f"measured: {units.ratio(time_s / best.predicted_s)} times that"
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
    told = f"{failed} without a time" if failed else "all of them ran"
    if view.ended:
        told += f"; {view.ended}"
    facts.append(("trials", f"{units.count(num)}{took}", told))
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
    found = contests(view.comparison)
    plan = None if view.plan_first is None else view.plan_first.number
    winner = found[0]
    named = f"trial {winner.number}" + (" (the plan's own first choice)" if winner.number == plan else "")
    sentences = [f"The best trials took turns on one machine; {named} won with {units.duration(winner.time_s)}."]
    alike = [one for one in found[1:] if one.low <= 1.0 <= one.high]
    if alike:
        numbers = ", ".join(f"trial {one.number}" for one in alike)
        count = max(one.num_samples for one in alike)
        sentences.append(f"Within 95 % confidence as fast, by {count} samples: {numbers}.")
    for one in found[1:]:
        if one not in alike:
            whose = " (the plan's first choice)" if one.number == plan else ""
            sentences.append(
                f"Trial {one.number}{whose} takes {one.ratio:.3f} times as long, with 95 % confidence "
                f"{one.low:.3f} to {one.high:.3f}."
            )
    return sentences


def drift_sentences(view: SessionView) -> list[str]:
    """Return how the machines' speed changed; a sentence for each, one where no reference kernel ran."""
    samples = reference_speeds(view)
    if not samples:
        return ["No reference kernel ran beside these trials: times are as they were, whatever the machine's speed."]
    sentences = []
    for worker in dict.fromkeys(one.worker for one in samples):
        speeds = [one.median for one in samples if one.worker == worker]
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
    sentences.append("Trials are compared by their time over the reference kernel's beside them.")
    return sentences


def failure_sentences(view: SessionView, most: int = _MOST_LINES) -> list[str]:
    """Return the trials without a time by kind, with the first lines of what they said, the most frequent first."""
    sentences = []
    for kind in failure_kinds(view.trials):
        told = "; ".join(f"{line} ({count})" if count > 1 else line for line, count in kind.messages[:most])
        more = f"; and {len(kind.messages) - most} more" if len(kind.messages) > most else ""
        sentences.append(f"{kind.num} {kind.outcome.value}: {told}{more}")
    return sentences


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
    for view in sorted(views, key=lambda one: (place_text(one), one.begun_utc)):
        if (where := place_text(view)) != last:
            lines += [*([Line("")] if lines else []), Line(where, "bold")]
            last = where
        begun = f", begun {view.begun_utc[:19].replace('T', ' ')} UTC" if view.begun_utc else ""
        lines.append(Line(f"  session {view.name}{begun}", "bold"))
        facts = [f"{what}: {value}{f' ({remark})' if remark else ''}" for what, value, remark in session_facts(view)]
        failures = failure_sentences(view)
        sentences = [
            *facts, *comparison_sentences(view), agreement(view.trials).describe(), *failures, *drift_sentences(view),
            *winner_sentences(view),
        ]  # fmt: skip
        for sentence in sentences:
            for text in wrapped(sentence, width, indent="  - ", hanging="    "):
                lines.append(Line(text, "yellow" if sentence in failures else ""))
    return lines
