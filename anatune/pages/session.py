"""The page of a tuning session, and of all sessions of a record file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from anatune import api
from anatune.core.trial import Trial
from anatune.errors import SpaceError
from anatune.pages.page import Cell, Column, Content, Facts, Figure, Page, Section, Table
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
from anatune.report.findings import agreement, failure_kinds
from anatune.report.records import peak_of_threads, when_text
from anatune.report.session_words import (
    comparison_sentences,
    drift_sentences,
    place_text,
    session_facts,
    winner_sentences,
)
from anatune.report.sessions import SessionView, Viewed, best_so_far, session_views
from anatune.report.units import TimeUnit
from anatune.version import __version__

MOST_TRIALS = 1200
"""The most trials on a page; if there are more, it has those that were the best so far and an even sample of others."""
FEWEST_MEASURED = 24
"""The least number of measured schedules for which their distribution is shown."""
_PLAN_SIZE, _PLAN_S = 64, 20.0
"""The number of schedules in the plan for the figures of its space, and the plan's time limit in seconds."""
_FOOTER = f"Written by anatune {__version__}. The page needs no network; times are medians of samples."


def session_page(given: Viewed) -> Page:
    """Return the page of one session, or of several sessions of one workload and device in the same figures.

    Parameters
    ----------
    given : TuningResult, SessionView, or sequence of Trial, Record, TuningResult or SessionView
        The sessions or trials. Sessions without measured trials and interrupted sessions also have a page.

    Raises
    ------
    MissingDependencyError
        A package of the extra ``report`` is not installed.
    """
    views = session_views(given)
    if not views:
        return Page("No trials", [], ["There is nothing to show, because there are no trials."], _FOOTER)
    title = f"Tuning {place_text(views[0])}"
    return Page(title, _sections(views, MOST_TRIALS), _lead(views), _FOOTER)


def records_page(given: Viewed, *, source: str = "") -> Page:
    """Return the page of records: a table of all workloads and devices, and the sessions of each.

    Parameters
    ----------
    given
        The sessions or trials as in `session_page`, for any number of workloads and devices.
    source : str
        The file or folder of the records, as text for the page.

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
    sections = [Section("Workloads and devices", [], [_workloads_table(groups)])] if groups else []
    sections += [_group_section(where, views, most) for where, views in groups.items()]
    return Page("Measurements", sections, lead, _FOOTER)


def _lead(views: Sequence[SessionView]) -> list[str]:
    """Return the description of the sessions under the title."""
    first = views[0]
    described = f"{first.workload.describe()} on {first.hardware.model} ({first.hardware.arch})."
    begun = [view.begun_utc for view in views if view.begun_utc]
    when = f" begun {when_text(min(begun))} UTC" if begun else ""
    sessions = f"{len(views)} sessions" if len(views) > 1 else f"Session {first.name}"
    return [described, f"{sessions}{when and f',{when}'}."]


def _sections(views: Sequence[SessionView], most: int) -> list[Section]:
    """Return the sections about sessions of one workload and device."""
    several = len(views) > 1
    thin = [_thin_out(view, most // len(views)) for view in views]
    words = _omission_note(views, thin)
    short: Content = _sessions_table(views) if several else Facts(session_facts(views[0]))
    sections = [Section("Summary", words, [short])]
    sections.append(_convergence_section(thin))
    if any(view.comparison is not None for view in views):
        texts = [
            _prefix_name(view, comparison_sentences(view), several) for view in views if view.comparison is not None
        ]
        sections.append(Section("Final comparison", texts, [Figure(plot_comparison(views))]))
    sections.append(_prediction_section(views, thin))
    if texts := _winners(views):
        sections.append(Section("Why the winner is the fastest", points=texts))
    if any(view.num_failed for view in views):
        sections.append(_failure_section(views))
    texts = [_prefix_name(view, drift_sentences(view), several) for view in views]
    has_reference = any(trial.measurement.reference_times_s for view in views for trial in view.trials)
    sections.append(Section("The machine", texts, [Figure(plot_drift(thin))] if has_reference else []))
    if any(view.shares for view in views):
        sections.append(Section("Measuring machines", [], [Figure(plot_workers(views)), _workers_table(views)]))
    sections.append(Section("Trials" if words else "All trials", [], [_trials_table(thin)]))
    return sections


def _prefix_name(view: SessionView, sentences: Sequence[str], several: bool) -> str:
    text = " ".join(sentences)
    return f"{view.name}: {text}" if several else text


def _convergence_section(views: Sequence[SessionView]) -> Section:
    """Return the section about the way to the best schedule."""
    words = ["Each point is a trial, and the line is the best trial so far, as the session compared them."]
    if any(any(view.references_s) for view in views):
        words[0] += " Times are scaled to the machine's speed at the first trial by the reference kernel."
    content: list[Content] = [Figure(plot_convergence(views))]
    if any(view.ended_s for view in views):
        words[0] += "".join(f" {text}" for text in dict.fromkeys(view.seconds for view in views if view.ended_s))
        content.append(Figure(plot_convergence(views, against="seconds")))
    return Section("How the best was found", words, content)


def _prediction_section(views: Sequence[SessionView], thin: Sequence[SessionView]) -> Section:
    several = len(views) > 1
    words = [_prefix_name(view, [agreement(view.trials).describe()], several) for view in views]
    is_known = any(agreement(view.trials).num for view in views)
    return Section("Predicted against measured", words, [Figure(plot_predictions(thin))] if is_known else [])


def _winners(views: Sequence[SessionView]) -> list[str]:
    """Return sentences about why the winner is the fastest; the fastest session counts if there are several."""
    measured_views = [view for view in views if view.best is not None and view.best.measurement.time_s is not None]
    if not measured_views:
        return []
    return winner_sentences(min(measured_views, key=_best_s))


def _failure_section(views: Sequence[SessionView]) -> Section:
    num, total = sum(view.num_failed for view in views), sum(len(view.trials) for view in views)
    words = f"{units.count(num)} of {units.count(total)} trials have no time. Each failure has its reason."
    return Section("Failures", [words], [Figure(plot_failures(views)), _failures_table(views)])


def _group_section(where: str, views: Sequence[SessionView], most: int) -> Section:
    """Return the section about the sessions of one workload and device."""
    thin = [_thin_out(view, most // len(views)) for view in views]
    words = [agreement([trial for view in views for trial in view.trials]).describe(), *_omission_note(views, thin)]
    content: list[Content] = [Facts(session_facts(min(views, key=_best_s)))]
    if len(views) > 1:
        content.append(_sessions_table(views))
    content.append(Figure(plot_convergence(thin)))
    if agreement(trial for view in views for trial in view.trials).num:
        content.append(Figure(plot_predictions(thin)))
    if any(view.num_failed for view in views):
        content.append(Figure(plot_failures(views)))
    content.append(_trials_table(thin))
    return Section(where, words, content)


def _space_sections(views: Sequence[SessionView]) -> list[Section]:
    """Return the sections about the searched space with measured times; empty if too few schedules were measured."""
    time_by_schedule = {
        trial.schedule: time_s
        for view in views
        for trial in view.trials
        if (time_s := trial.measurement.time_s) is not None
    }
    first = views[0]
    if len(time_by_schedule) < FEWEST_MEASURED:
        return []
    threads = first.threads if first.hardware.most_threads else None
    try:
        plan = api.plan(first.workload, first.hardware, _PLAN_SIZE, threads=threads, time_limit_s=_PLAN_S)
        return space_sections(plan, measured=list(time_by_schedule.items()))
    except SpaceError:  # an imported workload may have no space here
        return []


def _omission_note(views: Sequence[SessionView], thin: Sequence[SessionView]) -> list[str]:
    """Return the sentence about trials that are not shown; empty if all are shown."""
    total, drawn = (sum(len(view.trials) for view in some) for some in (views, thin))
    if drawn == total:
        return []
    return [
        f"{units.count(drawn)} of {units.count(total)} trials are shown: those that were the best so far, and an even "
        "sample of the others. Numbers in the text count all trials."
    ]


def _thin_out(view: SessionView, most: int) -> SessionView:
    """Return a session with about `most` trials: those that were the best so far and an even sample of the others."""
    if len(view.trials) <= most:
        return view
    named = {id(one) for one in (view.best, view.plan_first, *best_so_far(view.trials)) if one is not None}
    step = math.ceil(len(view.trials) / max(1, most))
    places = [place for place, one in enumerate(view.trials) if place % step == 0 or id(one) in named]
    ended_s = None if view.ended_s is None else tuple(view.ended_s[place] for place in places)
    references_s = tuple(view.references_s[place] for place in places)
    trials = tuple(view.trials[place] for place in places)
    return replace(view, trials=trials, references_s=references_s, ended_s=ended_s)


_ROWS_SHOWN, _WORKLOADS_SHOWN = 10, 25
"""The number of rows of a table that are shown at once."""
_MOST_LETTERS = 400
"""The most characters of a message; a compiler's message may be very long."""


def _best_s(view: SessionView) -> float:
    """Return the time of a session's best trial in seconds; infinite if no trial has a time."""
    return math.inf if view.best_s is None else view.best_s


def _unit(trials: Iterable[Trial | None]) -> TimeUnit:
    """Return the unit that fits the fastest of the trials."""
    times = [time_s for trial in trials if trial and (time_s := trial.measurement.time_s) is not None]
    return TimeUnit.fitting(min(times, default=1e-3))


def _trials_table(views: Sequence[SessionView]) -> Table:
    """Return the table of all trials, with the winners highlighted."""
    trials = [(view, trial) for view in views for trial in view.trials]
    unit, counts = _unit(trial for _, trial in trials), bool(views[0].workload.flop)
    columns = [
        Column("session", is_text=True) if len(views) > 1 else None,
        Column("trial"),
        Column("schedule or message", is_text=True),
        Column("ended", is_text=True),
        Column(f"time ({unit.name})", help="median of the samples, scaled to the machine's speed at the first trial"),
        Column("of peak (%)", help="share of the theoretical peak of the threads' cores") if counts else None,
        Column(f"predicted ({unit.name})"),
        Column(f"corrected ({unit.name})", help="prediction with the correction when the session began")
        if any(trial.corrected_s is not None for _, trial in trials)
        else None,
        Column("asked by", is_text=True, help="the plan's first schedule, records, or the strategy", is_detail=True),
        Column("GFLOP/s", is_detail=True) if counts else None,
        Column("measured / predicted", is_detail=True),
        Column(
            "/ reference",
            help="time over that of the reference kernel next to each sample; trials are compared by it",
            is_detail=True,
        ),
        Column("samples", is_detail=True),
        Column("build (s)", is_detail=True),
        Column("energy (mJ)", help="energy of one run of the whole device", is_detail=True)
        if any(trial.measurement.energy_j is not None for _, trial in trials)
        else None,
        Column("machine", is_text=True, is_detail=True)
        if any(trial.measurement.worker for _, trial in trials)
        else None,
    ]
    rows: list[Sequence[Cell]] = []
    for view, trial in trials:
        measured, time_s = trial.measurement, trial.measurement.time_s
        rate = view.workload.flop / time_s if time_s else None
        peak = peak_of_threads(view.hardware, view.workload.dtype, trial.threads, trial.schedule.template)
        rows.append(
            (
                view.name, trial.number,
                trial.schedule.describe() if time_s is not None else _shorten(measured.message),
                measured.outcome.value, unit.of(time_s), rate and 100 * rate / peak, unit.of(trial.predicted_s),
                unit.of(trial.corrected_s), trial.source, rate and rate / 1e9,
                time_s / trial.predicted_s if time_s is not None and trial.predicted_s else None,
                measured.relative, len(measured.times_s), measured.build_s or None,
                None if measured.energy_j is None else 1e3 * measured.energy_j, measured.worker or None,
            )
        )  # fmt: skip
    marked = [place for place, (view, trial) in enumerate(trials) if trial is view.best]
    return Table.of(columns, rows, "The winner is highlighted" if marked else "", _ROWS_SHOWN, marked)


def _sessions_table(views: Sequence[SessionView]) -> Table:
    """Return the table with a row for each session."""
    unit = _unit(view.best for view in views)
    columns = (
        Column("session", is_text=True), Column("begun (UTC)", is_text=True), Column("trials"),
        Column("without a time"), Column(f"best ({unit.name})"), Column("speedup over the plan's first schedule"),
        Column("took (s)"), Column("rank correlation"),
    )  # fmt: skip
    rows = []
    for view in views:
        rows.append(
            (
                view.name, when_text(view.begun_utc) or None, len(view.trials), view.num_failed,
                unit.of(view.best_s),
                None if view.comparison is None else view.comparison.speedup,
                view.ended_s[-1] if view.ended_s else None, agreement(view.trials).rho,
            )
        )  # fmt: skip
    fastest = min(range(len(views)), key=lambda place: _best_s(views[place]))
    return Table(columns, rows, "Sessions", _ROWS_SHOWN, [fastest])


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_LETTERS else f"{line[:_MOST_LETTERS]} …"


def _failures_table(views: Sequence[SessionView]) -> Table:
    """Return the table of failures: the first line of each message, and its number of trials."""
    kinds = failure_kinds(trial for view in views for trial in view.trials)
    rows = [(kind.outcome.value, count, _shorten(line)) for kind in kinds for line, count in kind.messages]
    columns = (Column("ended", is_text=True), Column("trials"), Column("first line of the message", is_text=True))
    return Table(columns, rows, "Messages of failures", _ROWS_SHOWN)


def _workers_table(views: Sequence[SessionView]) -> Table:
    """Return the table with a row for each measuring machine, and its state if the session has it."""
    shares = [(view, share, share.worker) for view in views for share in view.shares]
    unit, are_known = _unit(share.best for _, share, _ in shares), any(view.workers for view in views)
    columns = [
        Column("session", is_text=True) if len(views) > 1 else None,
        Column("machine", is_text=True),
        Column("trials"),
        Column("without a time"),
        Column(f"best ({unit.name})"),
        *(Column(name, is_text=True) if are_known else None for name in ("state", "device", "why")),
    ]
    rows = [
        (
            view.name, worker.name or "this machine", worker.trials, worker.failed,
            unit.of(None if share.best is None else share.best.measurement.time_s),
            worker.state, worker.device or None, worker.why or None,
        )
        for view, share, worker in shares
    ]  # fmt: skip
    return Table.of(columns, rows)


def _workloads_table(groups: Mapping[str, Sequence[SessionView]]) -> Table:
    """Return the table with a row for each workload and device."""
    columns = (
        Column("workload and device", is_text=True), Column("sessions", is_detail=True), Column("trials"),
        Column("without a time", is_detail=True), Column("best (us)"), Column("GFLOP/s"), Column("of peak (%)"),
        Column("measured / predicted"), Column("rank correlation", is_detail=True),
    )  # fmt: skip
    rows = []
    for where, views in groups.items():
        trials = [trial for view in views for trial in view.trials]
        view, agreed = min(views, key=_best_s), agreement(trials)
        fastest_s = _best_s(view)
        ran = math.isfinite(fastest_s)
        rate = view.workload.flop / fastest_s if ran and view.workload.flop else None
        template = "" if view.best is None else view.best.schedule.template
        peak = peak_of_threads(view.hardware, view.workload.dtype, view.threads, template)
        rows.append(
            (
                where, len(views), len(trials), sum(one.num_failed for one in views), fastest_s * 1e6 if ran else None,
                rate and rate / 1e9, rate and 100 * rate / peak, agreed.ratio, agreed.rho,
            )
        )  # fmt: skip
    return Table(columns, rows, rows_shown=_WORKLOADS_SHOWN)
