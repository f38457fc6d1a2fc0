"""The page of a tuning session, and of all sessions of a record file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from anatune import api
from anatune.errors import SpaceError
from anatune.pages.page import Content, Facts, Figure, Page, Section
from anatune.pages.session_tables import (
    best_s,
    failures_table,
    sessions_table,
    trials_table,
    workers_table,
    workloads_table,
)
from anatune.pages.space import space_sections
from anatune.plots.session import (
    plot_comparison,
    plot_convergence,
    plot_drift,
    plot_failures,
    plot_predictions,
    plot_workers,
)
from anatune.report import units
from anatune.report.findings import agreement
from anatune.report.session_words import comparison_sentences, drift_sentences, place_text, session_facts
from anatune.report.sessions import SessionView, Viewed, best_so_far, session_views
from anatune.report.winner import winner_sentences
from anatune.version import __version__

__all__ = ["records_page", "session_page"]

MOST_TRIALS = 1200
"""Trials that one page draws and lists; of more it has the best ones so far and an even choice of the others."""
FEWEST_MEASURED = 24
"""Schedules with a time from which on their distribution says something."""
_PLANNED, _PLAN_S = 64, 20.0
"""Schedules of the plan whose space is shown; how long it may take, s."""
_FOOTER = f"Written by anatune {__version__}. The page needs no network; times are medians of samples."


def session_page(given: Viewed) -> Page:
    """Return the page of one session, or of several of one workload and device over each other.

    Parameters
    ----------
    given : TuningResult, SessionView, or sequence of Trial, Record, TuningResult or SessionView
        What was tuned. A session of which nothing ran has a page, too, and so has an interrupted one.

    Raises
    ------
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    """
    views = session_views(given)
    if not views:
        return Page("No trials", [], ["There is nothing to show: no trial was made."], _FOOTER)
    title = f"Tuning {place_text(views[0])}"
    return Page(title, _sections(views, MOST_TRIALS), _lead(views), _FOOTER)


def records_page(given: Viewed, *, source: str = "") -> Page:
    """Return the page of records: one table of all workloads and devices, and the sessions of each.

    Parameters
    ----------
    given
        As `session_page`, of any number of workloads and devices.
    source : str
        Where the records come from, in words.

    Raises
    ------
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    """
    groups: dict[str, list[SessionView]] = {}
    for view in session_views(given):
        groups.setdefault(place_text(view), []).append(view)
    if len(groups) == 1:
        (views,) = groups.values()
        page, footer = session_page(views), f"{_FOOTER} Records: {source}." if source else _FOOTER
        return replace(page, sections=[*page.sections, *_space_sections(views)], footer=footer)
    num = sum(len(view.trials) for views in groups.values() for view in views)
    lead = [f"{units.count(num)} trials of {len(groups)} workloads and devices{f' in {source}' if source else ''}."]
    most = MOST_TRIALS // max(1, len(groups))
    sections = [Section("Workloads and devices", [], [workloads_table(groups)])] if groups else []
    sections += [_group_section(where, views, most) for where, views in groups.items()]
    return Page("What was measured", sections, lead, _FOOTER)


def _lead(views: Sequence[SessionView]) -> list[str]:
    """Return what the page is about."""
    first = views[0]
    described = f"{first.workload.describe()} on {first.hardware.model} ({first.hardware.arch})."
    begun = [view.begun_utc for view in views if view.begun_utc]
    when = f" begun {min(begun)[:19].replace('T', ' ')} UTC" if begun else ""
    sessions = f"{len(views)} sessions" if len(views) > 1 else f"Session {first.name}"
    return [described, f"{sessions}{when and f',{when}'}."]


def _sections(views: Sequence[SessionView], most: int) -> list[Section]:
    """Return the sections about sessions of one workload and device."""
    several = len(views) > 1
    thin = [_thinned(view, most // len(views)) for view in views]
    words = _left_out(views, thin)
    short: Content = sessions_table(views) if several else Facts(session_facts(views[0]))
    sections = [Section("In short", words, [short])]
    sections.append(_way(thin))
    if any(view.comparison is not None for view in views):
        told = [_named(view, comparison_sentences(view), several) for view in views if view.comparison is not None]
        sections.append(Section("Final comparison", told, [Figure(plot_comparison(views))]))
    sections.append(_prediction_section(views, thin))
    if told := _winners(views):
        sections.append(Section("Why the winner", points=told))
    if any(view.num_failed for view in views):
        sections.append(_failure_section(views))
    told = [_named(view, drift_sentences(view), several) for view in views]
    content: list[Content] = [Figure(plot_drift(thin))] if _has_reference(views) else []
    sections.append(Section("The machine", told, content))
    if any(view.shares for view in views):
        sections.append(Section("Who measured", [], [Figure(plot_workers(views)), workers_table(views)]))
    sections.append(Section("Trials" if words else "All trials", [], [trials_table(thin)]))
    return sections


def _named(view: SessionView, sentences: Sequence[str], several: bool) -> str:
    text = " ".join(sentences)
    return f"{view.name}: {text}" if several else text


def _way(views: Sequence[SessionView]) -> Section:
    """Return how the best came about."""
    words = ["Each point is a trial, the line the best of those up to it, as the session judged them."]
    best = [one for view in views for one in best_so_far(view.trials)]
    times = [one.measurement.time_s or 0.0 for one in best if one is not None]
    if len(views) == 1 and any(later > earlier for earlier, later in pairwise(times)):
        words[0] += " It rises where the machine had slowed: trials are compared with the reference kernel beside them."
    content: list[Content] = [Figure(plot_convergence(views))]
    if any(view.ended_s for view in views):
        words[0] += "".join(f" {told}" for told in dict.fromkeys(view.seconds for view in views if view.ended_s))
        content.append(Figure(plot_convergence(views, against="seconds")))
    return Section("How the best was found", words, content)


def _prediction_section(views: Sequence[SessionView], thin: Sequence[SessionView]) -> Section:
    several = len(views) > 1
    words = [_named(view, [agreement(view.trials).describe()], several) for view in views]
    is_known = any(agreement(view.trials).num for view in views)
    return Section("Predicted against measured", words, [Figure(plot_predictions(thin))] if is_known else [])


def _winners(views: Sequence[SessionView]) -> list[str]:
    """Return why the winner is what it is; of several sessions that of the one with the shortest time."""
    known = [view for view in views if view.best is not None and view.best.measurement.time_s is not None]
    if not known:
        return []
    return winner_sentences(min(known, key=best_s))


def _failure_section(views: Sequence[SessionView]) -> Section:
    num, total = sum(view.num_failed for view in views), sum(len(view.trials) for view in views)
    words = f"{units.count(num)} of {units.count(total)} trials have no time. A failure is a result: it has its reason."
    return Section("Failures", [words], [Figure(plot_failures(views)), failures_table(views)])


def _has_reference(views: Sequence[SessionView]) -> bool:
    return any(trial.measurement.reference_times_s for view in views for trial in view.trials)


def _group_section(where: str, views: Sequence[SessionView], most: int) -> Section:
    """Return the sessions of one workload and device among others."""
    thin = [_thinned(view, most // len(views)) for view in views]
    words = [agreement([trial for view in views for trial in view.trials]).describe(), *_left_out(views, thin)]
    content: list[Content] = [Facts(session_facts(min(views, key=best_s)))]
    if len(views) > 1:
        content.append(sessions_table(views))
    content.append(Figure(plot_convergence(thin)))
    if agreement(trial for view in views for trial in view.trials).num:
        content.append(Figure(plot_predictions(thin)))
    if any(view.num_failed for view in views):
        content.append(Figure(plot_failures(views)))
    content.append(trials_table(thin))
    return Section(where, words, content)


def _space_sections(views: Sequence[SessionView]) -> list[Section]:
    """Return the anatomy of the space that sessions searched, with their times; nothing where few were measured."""
    known = {
        trial.schedule: time_s
        for view in views
        for trial in view.trials
        if (time_s := trial.measurement.time_s) is not None
    }
    first = views[0]
    if len(known) < FEWEST_MEASURED:
        return []
    threads = first.threads if first.hardware.most_threads else None
    try:
        plan = api.plan(first.workload, first.hardware, _PLANNED, threads=threads, time_limit_s=_PLAN_S)
        return space_sections(plan, measured=list(known.items()))
    except SpaceError:  # what was imported may have no space here
        return []


def _left_out(views: Sequence[SessionView], thin: Sequence[SessionView]) -> list[str]:
    """Return how many trials are not shown, in words; nothing where all are."""
    total, drawn = (sum(len(view.trials) for view in some) for some in (views, thin))
    if drawn == total:
        return []
    return [
        f"Of {units.count(total)} trials {units.count(drawn)} are drawn and listed: those that were the best so far, "
        "and an even choice of the others. Numbers in words are of all of them."
    ]


def _thinned(view: SessionView, most: int) -> SessionView:
    """Return a session with about so many trials: the best ones so far and an even choice of the others."""
    if len(view.trials) <= most:
        return view
    named = {id(one) for one in (view.best, view.plan_first, *best_so_far(view.trials)) if one is not None}
    step = math.ceil(len(view.trials) / max(1, most))
    places = [place for place, one in enumerate(view.trials) if place % step == 0 or id(one) in named]
    ended_s = None if view.ended_s is None else tuple(view.ended_s[place] for place in places)
    return replace(view, trials=tuple(view.trials[place] for place in places), ended_s=ended_s)
