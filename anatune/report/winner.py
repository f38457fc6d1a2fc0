"""Why the winner of a session is what it is, by the model: what binds it, what it does better than the first choice."""

from __future__ import annotations

import numpy as np

from anatune.core.prediction import Prediction
from anatune.core.trial import Trial
from anatune.errors import SpaceError
from anatune.report import units
from anatune.report.explain import binding_text, changed_parts, circumstances_of
from anatune.report.sessions import SessionView
from anatune.report.tables import schedule_items, template_items
from anatune.templates import make_model

__all__ = ["winner_sentences"]

MOST_CIRCUMSTANCES = 6


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
    if first is None or first is best:
        return sentences
    other = _prediction(view, first)
    if other is not None:
        sentences += _against(view, best, first, prediction, other)
    return sentences


def _prediction(view: SessionView, trial: Trial) -> Prediction | None:
    """Return what the analytical model says of a trial's schedule, None where that is no point of its space."""
    device = view.hardware if view.hardware.most_threads is None else view.hardware.with_threads(view.threads)
    try:
        model = make_model(view.workload, device, trial.schedule.template)
        point = model.space.point_of(trial.schedule)
        found: Prediction = model.predictions(np.array([point], dtype=np.int64))[0]
    except (SpaceError, KeyError):
        return None
    return found


def _against(view: SessionView, best: Trial, first: Trial, ours: Prediction, theirs: Prediction) -> list[str]:
    """Return what the winner does otherwise than the plan's first choice, and what the model expected of that."""
    kept = set(schedule_items(first.schedule))
    changed = [item for item in schedule_items(best.schedule) if item not in kept]
    sentences = [
        f"The plan's first choice was trial {first.number}; the winner has instead: {', '.join(changed) or 'the same'}."
    ]
    more, less = changed_parts(ours, theirs)
    for verb, listed in (("more", more), ("less", less)):
        if listed:
            sentences.append(f"By the model the first choice needs {verb}: {listed}.")
    if told := circumstances_of(ours, theirs)[:MOST_CIRCUMSTANCES]:
        sentences.append(f"First choice against winner: {'; '.join(told)}.")
    expected = ours.time_s / theirs.time_s
    speedup = None if view.comparison is None else view.comparison.speedup
    measured = f"; measured in turn, {units.ratio(1 / speedup)} times" if speedup else ""
    sentences.append(
        f"The model predicts {units.ratio(expected)} times the first choice's time for the winner{measured}."
    )
    return sentences
