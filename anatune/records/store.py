"""The record store: sessions and trials in one file, written by any number of processes, never rewritten."""

from __future__ import annotations

import datetime
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from anatune.core.accuracy import STANDARD, admits, checked_accuracy
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, RecordError
from anatune.records.choice import RecordedTrial, fastest, recorded_trial
from anatune.records.conditions import of_sessions, of_trials
from anatune.records.database import Database, record_path
from anatune.records.environment import Environment, environment
from anatune.records.reader import SESSION_COLUMNS, TRIAL_COLUMNS, OnDamage, RecordReader, tell
from anatune.records.rows import insert_session, insert_trial, session_row, trial_identities, trial_identity
from anatune.records.schema import (
    Record,
    Session,
    current_text,
    storable,
    template_in,
)

__all__ = ["RecordStore", "now_utc"]

_PAGE = 256
"""Rows read at a time: no reader holds back the writers' log for long."""


class RecordStore:
    """A record file: one row a trial, with everything that is needed to judge, repeat and resume it.

    Guarantees: what `append` returned from survives kill -9 and a crash of the system; a row is whole or absent; rows
    are never changed; several processes and threads may write at once; safe after a fork. Order is the order of
    recording.

    Parameters
    ----------
    path : str or Path
        The file. It is made if it is missing, unless `read_only`.
    read_only : bool
        Change nothing; a missing file is an error.
    timeout_s : float
        How long to wait for other writers, s.

    Raises
    ------
    RecordError
        The file is damaged, of a newer version, another program's, or cannot be made or read. All methods raise it when
        the disk is full or fails; the message says what was not recorded. What was recorded before is kept.

    Examples
    --------
    >>> with RecordStore("tuning.sqlite") as store:  # doctest: +SKIP
    ...     session = store.new_session(workload, hardware, threads=1, strategy="dgd", seed=0, settings={"trials": 64})
    ...     store.append(session, trial)
    """

    def __init__(self, path: str | Path, *, read_only: bool = False, timeout_s: float = 30.0) -> None:
        self.path = record_path(path)
        self._database = Database(self.path, read_only=read_only, timeout_s=timeout_s)
        self._reader = RecordReader(self._database)

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RecordStore({str(self.path)!r})"

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        self._database.close()

    # ---- writing -------------------------------------------------------------------------------------------

    def new_session(
        self,
        workload: Workload,
        hardware: GpuSpec | CpuSpec,
        threads: int,
        strategy: str,
        seed: int,
        settings: Mapping[str, object] | None = None,
    ) -> Session:
        """Record that a tuning session begins and return it.

        Parameters
        ----------
        workload, hardware
            What is tuned; the device that measures.
        threads : int
            Threads that kernels run with, >= 1.
        strategy : str
            Who asks for candidates.
        seed : int
            Of its random choices, in [0, 2**63).
        settings : mapping, optional
            Whatever else a resume needs to know; must be JSON's own types.
        """
        try:
            kept = msgspec.json.decode(msgspec.json.encode(dict(settings or {})), type=dict[str, object])
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.path}: settings of a session: {error}; use JSON's types") from error
        if not 0 <= seed < 1 << 63:
            raise RecordError(f"{self.path}: the session's seed is {seed}, expected 0 <= seed < 2**63; choose another")
        session = Session(
            uuid.uuid4().hex, now_utc(), workload, hardware, int(threads), strategy, int(seed), kept, environment()
        )
        self._database.write(lambda connection: insert_session(connection, session), "the session was not recorded")
        self._reader.know(session)
        return session

    def append(self, session: Session, trial: Trial, ran_under: Environment | None = None) -> int:
        """Record a trial; when this returns, the trial is on the disk.

        Parameters
        ----------
        session : Session
            What `new_session` or `sessions` of this file returned.
        trial : Trial
            What came back. Its schedule may come from another device's plan, but must be of the session's workload.
        ran_under : Environment, optional
            Of the process that measured it; by default of this one.

        Returns
        -------
        int
            The record's id.
        """
        if trial.schedule.workload != session.workload:
            raise RecordError(
                f"{self.path}: the trial is of {trial.schedule.workload.describe()}, but its session of "
                f"{session.workload.describe()}; begin a session of its own"
            )
        created = now_utc()
        doing = f"trial {trial.number} was not recorded"

        def write(connection: sqlite3.Connection) -> int:
            if connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).fetchone() is None:
                raise RecordError(
                    f"{self.path}: has no session {session.id}, {doing}; append with a session of this very file"
                )
            return insert_trial(connection, session.id, created, ran_under or environment(), kept)

        try:
            kept = storable(trial)
            return self._database.write(write, doing)
        except ValueError as error:
            if isinstance(error, AnatuneError):
                raise
            raise RecordError(f"{self.path}: {error}; {doing}") from error

    def insert(self, rows: Iterable[Session | Record]) -> tuple[int, int]:
        """Record sessions and records of another file, as they are, in one transaction: all of them or none.

        What this file already has is left out, so that inserting twice does no harm.

        Parameters
        ----------
        rows : iterable of Session or Record
            The sessions of records may come separately or not; the ids of records are given anew.

        Returns
        -------
        num_sessions, num_trials : int
            How many were new.
        """
        kept = list(rows)

        def write(connection: sqlite3.Connection) -> tuple[int, int]:
            counts = [0, 0]
            known: dict[str, Session] = {}
            recorded: dict[str, set[str]] = {}
            for row in kept:
                session = row if isinstance(row, Session) else row.session
                if session.id not in known:
                    counts[0] += self._insert_missing_session(connection, session)
                    known[session.id] = session
                    recorded[session.id] = trial_identities(connection, session.id)
                elif known[session.id] != session:
                    raise self._other_session(session)
                if isinstance(row, Record) and (own := trial_identity(row)) not in recorded[session.id]:
                    recorded[session.id].add(own)
                    insert_trial(connection, session.id, row.created_utc, row.environment, storable(row.trial))
                    counts[1] += 1
            return counts[0], counts[1]

        return self._database.write(write, "nothing of it was recorded")

    def _insert_missing_session(self, connection: sqlite3.Connection, session: Session) -> int:
        """Insert a session that the file lacks; return how many rows that were."""
        found = connection.execute("SELECT digest FROM sessions WHERE id = ?", (session.id,)).fetchone()
        if found is None:
            insert_session(connection, session)
            return 1
        if found[0] != session_row(session)[-1] and self.session(session.id) != session:
            raise self._other_session(session)
        return 0

    def _other_session(self, session: Session) -> RecordError:
        return RecordError(
            f"{self.path}: session {session.id} is there with other contents; nothing was recorded, "
            "insert into a new file"
        )

    # ---- reading -------------------------------------------------------------------------------------------

    def trials(
        self,
        workload: Workload | None = None,
        hardware: GpuSpec | CpuSpec | str | None = None,
        session: Session | str | None = None,
        threads: int | None = None,
        outcome: Outcome | str | None = None,
        limit: int | None = None,
        *,
        on_damage: OnDamage | None = None,
    ) -> list[Record]:
        """Return the records that meet all conditions given, in the order of recording.

        Parameters
        ----------
        workload : Workload, optional
            What is computed.
        hardware : spec or str, optional
            Where it was measured: a spec's name and contents, or only the name.
        session : Session or str, optional
            The session or its id.
        threads : int, optional
            Threads of the kernels.
        outcome : Outcome or str, optional
            How they ended ("ok", "build_error", ...).
        limit : int, optional
            Return only the last ones, at most this many.
        on_damage : callable, optional
            Called with a line for each row that is damaged, which is then left out; without it that is an error.

        Raises
        ------
        RecordError
            The file or one of the rows is damaged.
        """
        return list(self.iterate(workload, hardware, session, threads, outcome, limit, on_damage=on_damage))

    def iterate(
        self,
        workload: Workload | None = None,
        hardware: GpuSpec | CpuSpec | str | None = None,
        session: Session | str | None = None,
        threads: int | None = None,
        outcome: Outcome | str | None = None,
        limit: int | None = None,
        *,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Record]:
        """Yield what `trials` returns without holding all of it.

        Parameters
        ----------
        workload, hardware, session, threads, outcome, limit
            As for `trials`.
        on_damage : callable, optional
            Called with a line for each row that is damaged, which is then left out; without it that is an error.
        """
        wanted = of_trials(self._reader, workload, hardware, session, threads, outcome, on_damage)
        source = f"FROM trials t LEFT JOIN sessions s ON s.id = t.session WHERE {wanted.text}"
        last = 0
        if limit is not None:
            if limit < 1:
                return
            rows = self._database.read(
                f"SELECT t.id {source} ORDER BY t.id DESC LIMIT 1 OFFSET ?", (*wanted.parameters, limit - 1)
            )
            last = rows[0][0] - 1 if rows else 0
        while True:
            rows = self._database.read(
                f"SELECT {TRIAL_COLUMNS} {source} AND t.id > ? ORDER BY t.id LIMIT {_PAGE}",
                (*wanted.parameters, last),
            )
            for row in rows:
                try:
                    record = self._reader.record_of(row)
                except RecordError as error:
                    tell(on_damage, error)
                    continue
                yield record
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def sessions(
        self,
        workload: Workload | None = None,
        hardware: GpuSpec | CpuSpec | str | None = None,
        threads: int | None = None,
        strategy: str | None = None,
        *,
        on_damage: OnDamage | None = None,
    ) -> list[Session]:
        """Return the sessions that meet all conditions given, in the order in which they began.

        Parameters
        ----------
        workload, hardware, threads
            As for `trials`.
        strategy : str, optional
            Who asked for candidates.
        on_damage : callable, optional
            Called with a line for each row that is damaged, which is then left out; without it that is an error.
        """
        wanted = of_sessions(self._reader, workload, hardware, threads, strategy, on_damage)
        rows = self._database.read(
            f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE {wanted.text} ORDER BY s.number", wanted.parameters
        )
        found = []
        for row in rows:
            try:
                found.append(self._reader.session_of(row))
            except RecordError as error:
                tell(on_damage, error)
        return found

    def session(self, session_id: str) -> Session:
        """Return one session by its id.

        Raises
        ------
        RecordError
            There is no such session, or its row is damaged.
        """
        return self._reader.session(session_id)

    def counts(self, session: Session | str) -> dict[Outcome, int]:
        """Return how many trials of a session ended how; outcomes that did not occur are left out."""
        found = dict(
            self._database.read(
                "SELECT outcome, count(*) FROM trials WHERE session = ? GROUP BY outcome",
                (_session_id(session),),
            )
        )
        return {outcome: found[outcome.value] for outcome in Outcome if outcome.value in found}

    def best(
        self,
        workload: Workload,
        hardware: GpuSpec | CpuSpec | str | None = None,
        threads: int | None = None,
        session: Session | str | None = None,
        *,
        template: str | None = None,
        accuracy: str = STANDARD,
        on_damage: OnDamage | None = None,
    ) -> Record | None:
        """Return the record of the fastest schedule, None if nothing has run; see `records.choice` for the rule."""
        found = self.bests(
            workload, hardware, threads, session, template=template, accuracy=accuracy, on_damage=on_damage
        )
        return min(found, key=_time, default=None)

    def bests(
        self,
        workload: Workload | None = None,
        hardware: GpuSpec | CpuSpec | str | None = None,
        threads: int | None = None,
        session: Session | str | None = None,
        *,
        template: str | None = None,
        accuracy: str = STANDARD,
        on_damage: OnDamage | None = None,
    ) -> list[Record]:
        """Return the best record of each workload, hardware and number of threads, in the order of first trials.

        With `template`, the best of it. What needs less accurate arithmetic than `accuracy` admits is left out.

        With `on_damage`, called with a line for each row that is damaged, the best is chosen among the others.
        """
        accuracy = checked_accuracy("accuracy", accuracy)
        wanted = of_trials(self._reader, workload, hardware, session, threads, None, on_damage)
        rows = self._database.read(
            "SELECT t.id, t.session, t.hardware, t.schedule, t.outcome, t.result, t.workload, s.hardware, t.threads "
            f"FROM trials t JOIN sessions s ON s.id = t.session WHERE {wanted.text} "
            "AND t.outcome IN ('ok', 'wrong_result') ORDER BY t.id",
            wanted.parameters,
        )
        groups: dict[tuple[object, ...], list[RecordedTrial]] = {}
        for row_id, session_id, made_for, schedule, outcome, result, *group in rows:
            try:
                same = f"{made_for} {current_text(schedule)}"
                if template not in (None, template_in(schedule)):
                    continue
                if not admits(accuracy, self._reader.accuracy(schedule, group[0], made_for)):
                    continue
                trial = recorded_trial(row_id, same, session_id, Outcome(outcome), result)
            except msgspec.DecodeError as error:
                tell(on_damage, self._reader.damaged(row_id, error))
                continue
            except RecordError as error:  # of a part that the schedule's accuracy rests on
                tell(on_damage, error)
                continue
            groups.setdefault(tuple(group), []).append(trial)
        found = (self._fastest(trials, on_damage) for trials in groups.values())
        return [record for record in found if record is not None]

    def _fastest(self, trials: list[RecordedTrial], on_damage: OnDamage | None) -> Record | None:
        """Return the best record of those that can be read."""
        while (row_id := fastest(trials)) is not None:
            try:
                return self._reader.record(row_id)
            except RecordError as error:
                tell(on_damage, error)
                trials = [one for one in trials if one.id != row_id]
        return None


def now_utc() -> str:
    """Return the time as records have it: ISO 8601, microseconds, "Z"."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time(record: Record) -> float:
    time_s = record.trial.measurement.time_s
    return float("inf") if time_s is None else time_s


def _session_id(session: Session | str) -> str:
    return session if isinstance(session, str) else session.id
