"""Search for the best recorded schedules of a workload, device and number of threads without reading all trials.

The rule is that of `records.choice`. A schedule's score is a median over the samples of all its trials, so it is not
below the smallest median of a single trial, and those medians are in an index. Schedules are judged in the order of
that smallest median until it exceeds the best score. Of a session only the end is read, and only if a candidate for
the best schedule needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Select, bindparam, func, select

from anatune.core.accuracy import ACCURACIES, admits
from anatune.core.trial import Outcome
from anatune.decoding import from_json
from anatune.errors import RecordError
from anatune.records.choice import RecordedTrial, Score, fastest, final_winner, score
from anatune.records.database import Database, Row
from anatune.records.reader import Condition, OnDamage, RecordReader, tell
from anatune.records.schema import Record
from anatune.records.tables import AnyColumn, trials

_FIRST_PAGE, _GROWTH = 16, 8
_RAN = Outcome.OK.value
_T = trials.c
_ENDING = (_T.id, _T.schedule_key, _T.session, _T.outcome, _T.compared, _T.stopped_early, _T.relative)
"""The columns that determine how a session ended."""


class _Samples(msgspec.Struct, frozen=True):
    """The part of a stored measurement that the choice needs."""

    times_s: tuple[float, ...] = ()
    reference_times_s: tuple[float, ...] = ()


class _Result(msgspec.Struct, frozen=True):
    """The part of a stored trial that the choice needs."""

    measurement: _Samples


class WantedTrials(NamedTuple):
    """The schedules that compete: those of one template (None: of all) and of an accuracy; and where damage goes."""

    template: str | None
    accuracy: str
    on_damage: OnDamage | None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions on trials that are judged."""
        conditions: list[Condition] = [(_T.outcome == _RAN) | (_T.outcome == Outcome.WRONG_RESULT.value)]
        fine = [needed for needed in ACCURACIES if admits(self.accuracy, needed)]
        if len(fine) < len(ACCURACIES):
            conditions.append(_T.accuracy.in_(fine))
        if self.template is not None:
            conditions.append(_T.template == self.template)
        return tuple(conditions)


class TrialGroup(NamedTuple):
    """A group of trials that compete: keys of a workload and of the device that measured, and threads."""

    workload: str
    device: str
    threads: int

    @property
    def condition(self) -> Condition:
        """The condition on the trials of the group."""
        return (_T.workload == self.workload) & (_T.device == self.device) & (_T.threads == self.threads)


def groups(
    database: Database, workloads: Sequence[str] | None, devices: Sequence[str] | None, threads: int | None
) -> list[TrialGroup]:
    """Return the groups in which a trial ran, in the order of their first trials; None does not restrict them."""
    if threads is not None and workloads is not None and devices is not None and len(workloads) * len(devices) == 1:
        return [TrialGroup(workloads[0], devices[0], threads)]
    ran = [
        TrialGroup(workload, device, number)
        for workload in (workloads if workloads is not None else _values(database, _T.workload))
        for device in (devices if devices is not None else _values(database, _T.device, _T.workload == workload))
        for number in _values(
            database, _T.threads, _T.workload == workload, _T.device == device,
            *(() if threads is None else (_T.threads == threads,)),
        )
    ]  # fmt: skip
    if len(ran) < 2:
        return ran

    def first(group: TrialGroup) -> int:
        earliest = select(_T.id).where(group.condition).order_by(_T.id).limit(1)
        return int(database.read(earliest)[0].id)

    return sorted(ran, key=first)


def _values(database: Database, column: AnyColumn, *where: Condition) -> Iterator[Any]:
    """Yield the distinct values of an indexed column, each by one query, without reading the rows between them."""
    after: tuple[Condition, ...] = ()
    while True:
        least = database.read(select(func.min(column)).where(_T.outcome == _RAN, *where, *after))[0][0]
        if least is None:
            return
        yield least
        after = (column > least,)


def best_of_session(reader: RecordReader, where: Condition, wanted: WantedTrials) -> list[Record]:
    """Return the best record of each group among the trials of one session, all of which are read."""
    columns = (*_ENDING, _T.result, _T.workload, _T.device, _T.threads)
    by_group: dict[TrialGroup, list[RecordedTrial]] = {}
    for row in reader.database.read(select(*columns).where(where, *wanted.conditions).order_by(_T.id)):
        try:
            trial = _with_samples(row)
        except msgspec.DecodeError as error:
            tell(wanted.on_damage, reader.damage_error(row.id, error))
            continue
        by_group.setdefault(TrialGroup(row.workload, row.device, row.threads), []).append(trial)
    bests = []
    for trials_of in by_group.values():
        while (row_id := fastest(trials_of)) is not None:
            try:
                bests.append(reader.record(row_id))
                break
            except RecordError as error:
                tell(wanted.on_damage, error)
                trials_of = [trial for trial in trials_of if trial.id != row_id]
    return bests


def best_of_group(reader: RecordReader, group: TrialGroup, wanted: WantedTrials, count: int = 1) -> list[Record]:
    """Return the readable records of the best schedules of a group, best first."""
    search = _Search(reader, group, wanted)
    while True:
        bests = []
        for row_id in search.best(count):
            try:
                bests.append(reader.record(row_id))
            except RecordError as error:
                tell(wanted.on_damage, error)
                search.left_out.add(row_id)
                break
        else:
            return bests


class _Search:
    """The search for the best schedules of a group; `left_out` are the ids of damaged trials."""

    def __init__(self, reader: RecordReader, group: TrialGroup, wanted: WantedTrials) -> None:
        self._database, self._reader, self._group, self._on_damage = reader.database, reader, group, wanted.on_damage
        # The workload is no condition here: with it SQLite would read all rows of the workload.
        where = (_T.device == group.device, _T.threads == group.threads, *wanted.conditions)
        self._templates = [wanted.template]
        if wanted.template is None:
            self._templates = list(_values(self._database, _T.template, group.condition))
        of_schedule = _T.schedule_key == bindparam("schedule"), *where
        self._of_schedule = select(*_ENDING, _T.result).where(*of_schedule).order_by(_T.id)
        self._last_of_schedule = select(_T.outcome).where(*of_schedule).order_by(_T.id.desc()).limit(1)
        self._ends = (
            select(*_ENDING, _T.result).where(_T.session == bindparam("session"), *where).order_by(_T.id.desc())
            .limit(bindparam("size"))
        )  # fmt: skip
        self._winners: dict[str, str | None] = {}
        self._wrong: dict[str, bool] = {}
        self.left_out: set[int] = set()

    def best(self, count: int) -> list[int]:
        """Return the ids of the trials of the best schedules, best first."""
        self._winners.clear()
        self._wrong.clear()
        with_reference = self._least(_T.relative, _T.relative.is_not(None), count, is_ratio=True)
        without = self._least(_T.time_s, _T.relative.is_(None), count, is_ratio=False)
        first: list[int] = []
        while (with_reference or without) and len(first) < count:  # merge both lists by their times
            heads = [pool for pool in (with_reference, without) if pool]
            first.append(min(heads, key=lambda pool: pool[0].time_s).pop(0).id)
        return first

    def _least(self, column: AnyColumn, where: Condition, count: int, *, is_ratio: bool) -> list[Score]:
        best: list[Score] = []
        for template in self._templates:  # the index is sorted within a template
            ranked = (
                select(_T.schedule_key, column)
                .where(self._group.condition, _T.template == template, _T.outcome == _RAN, where)
                .order_by(column)
            )
            judged: set[str] = set()
            for schedule, least in self._read_pages(ranked):
                limit = best[-1] if len(best) == count else None
                if limit is not None and least is not None and least > limit.value:
                    break
                if schedule in judged:
                    continue
                judged.add(schedule)
                judgement = self._judge(schedule, limit)
                if judgement is not None and judgement.is_ratio is is_ratio:
                    best = sorted([*best, judgement])[:count]
        return best

    def _read_pages(self, statement: Select[tuple[object, ...]]) -> Iterator[Row]:
        """Yield the rows of an ordered query in growing pages; rows may be repeated."""
        size = _FIRST_PAGE
        while True:
            rows = self._database.read(statement.limit(size))
            yield from rows
            if len(rows) < size:
                return
            size *= _GROWTH

    def _judge(self, schedule: str, limit: Score | None) -> Score | None:
        """Return the score of a schedule; None if its result is wrong, or it is not better than `limit` or excluded."""
        own_trials = self._trials(schedule)
        self._wrong[schedule] = not own_trials or not own_trials[-1].ok
        if self._wrong[schedule]:
            return None
        judged = score(own_trials)
        if judged is None or (limit is not None and judged > limit):
            return None
        competes = any(
            self._winner(session) in (None, schedule) for session in dict.fromkeys(t.session for t in own_trials)
        )
        return judged if competes else None

    def _winner(self, session: str) -> str | None:
        """Return the winner of a session's final comparison; None if it ended without one."""
        if session not in self._winners:
            size = _FIRST_PAGE
            while True:
                rows = self._database.read(self._ends, {"session": session, "size": size})
                read = (self._read(row) if row.compared else _without_samples(row) for row in reversed(rows))
                tail = [trial for trial in read if trial is not None and trial.id not in self.left_out]
                if len(rows) < size or not all(trial.compared for trial in tail):
                    break
                size *= _GROWTH
            self._winners[session] = final_winner(tail, self._is_wrong)
        return self._winners[session]

    def _is_wrong(self, schedule: str) -> bool:
        if schedule not in self._wrong:
            last = self._database.read(self._last_of_schedule, {"schedule": schedule})[0]
            self._wrong[schedule] = bool(last.outcome != _RAN)
        return self._wrong[schedule]

    def _trials(self, schedule: str) -> list[RecordedTrial]:
        rows = self._database.read(self._of_schedule, {"schedule": schedule})
        return [trial for row in rows if (trial := self._read(row)) is not None]

    def _read(self, row: Row) -> RecordedTrial | None:
        """Return a trial with its samples; None if they are damaged, which is reported once."""
        if row.id in self.left_out:
            return None
        try:
            return _with_samples(row)
        except msgspec.DecodeError as error:
            tell(self._on_damage, self._reader.damage_error(row.id, error))
            self.left_out.add(row.id)
            return None


def _without_samples(row: Row) -> RecordedTrial:
    """Return a trial without its samples."""
    ran, compared, stopped_early = row.outcome == _RAN, bool(row.compared), bool(row.stopped_early)
    return RecordedTrial(row.id, row.schedule_key, row.session, ran, compared, stopped_early, row.relative)


def _with_samples(row: Row) -> RecordedTrial:
    """Return a trial with its samples, if it ran; raise msgspec.DecodeError if they are damaged."""
    trial, samples = _without_samples(row), from_json(row.result, _Result).measurement
    if not trial.ok:
        return trial
    return trial._replace(times_s=samples.times_s, reference_times_s=samples.reference_times_s)
