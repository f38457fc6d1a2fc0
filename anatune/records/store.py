"""The record store: sessions and trials, in a file or on a server, of any number of writers, never rewritten."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import msgspec
from sqlalchemy import Connection, func, select

from anatune.core.accuracy import STANDARD, checked_accuracy
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.errors import AnatuneError, RecordError
from anatune.records.database import Database
from anatune.records.environment import Environment, environment
from anatune.records.lookup import Wanted, best_of_group, best_of_session, groups
from anatune.records.place import RecordPlace, ServerAddress, record_place
from anatune.records.reader import SESSION_COLUMNS, TRIAL_COLUMNS, OnDamage, RecordReader, tell
from anatune.records.rows import Rows, trial_id
from anatune.records.schema import Record, Session, now_utc
from anatune.records.tables import sessions, trials

_PAGE = 256
"""Rows read at a time: no reader holds back the writers' log for long."""


class RecordStore:
    """A store of records: one row a trial, with everything that is needed to judge, repeat and resume it.

    Guarantees: what `append` returned from survives kill -9 and a crash of the system; a row is whole or absent; rows
    are never changed; several processes and threads may write at once, a trial that is sent twice is recorded once;
    safe after a fork. Order is the order of recording.

    Parameters
    ----------
    path : str, Path or ServerAddress
        A file, or ``postgresql://USER@HOST:PORT/DATABASE``. A missing file is made, and so are the tables of an empty
        database, unless `read_only`. The password of a server comes from PGPASSWORD, a service file, ``~/.pgpass`` or
        the URL, and is shown nowhere.
    read_only : bool
        Change nothing; a missing file is an error.
    timeout_s : float
        How long to wait for other writers, and for a server that went away, s.

    Raises
    ------
    RecordError
        It is damaged, of another version, another program's, or cannot be made or read. All methods raise it when the
        disk is full or fails, or the server does; the message says what was not recorded. What was recorded before is
        kept.
    MissingDependencyError
        The driver of PostgreSQL is not installed.

    Examples
    --------
    >>> with RecordStore("tuning.sqlite") as store:  # doctest: +SKIP
    ...     session = store.new_session(workload, hardware, threads=1, strategy="dgd", seed=0, settings={"trials": 64})
    ...     store.append(session, trial)
    """

    def __init__(self, path: str | Path | ServerAddress, *, read_only: bool = False, timeout_s: float = 30.0) -> None:
        path = record_place(path)  # no frame of ours keeps a text with a password
        self.path: RecordPlace = path
        self._database = _opened(path, read_only=read_only, timeout_s=timeout_s)
        self._reader = RecordReader(self._database)
        self._rows = Rows()
        self._connections = self._database.connections

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RecordStore({str(self.path)!r})"

    def close(self) -> None:
        """Close it; closing twice does nothing."""
        self._database.close()

    def is_same_as(self, other: RecordStore) -> bool:
        """Whether both are one file, or one URL."""
        if isinstance(self.path, Path) and isinstance(other.path, Path):
            return self.path.samefile(other.path)
        return self.path == other.path

    # ---- writing -------------------------------------------------------------------------------------------

    def new_session(
        self,
        workload: Workload,
        hardware: HardwareSpec,
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
            kept = from_json(msgspec.json.encode(dict(settings or {})), dict[str, object])
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.path}: settings of a session: {error}; use JSON's types") from error
        if not 0 <= seed < 1 << 63:
            raise RecordError(f"{self.path}: the session's seed is {seed}, expected 0 <= seed < 2**63; choose another")
        session = Session(
            uuid.uuid4().hex, now_utc(), workload, hardware, int(threads), strategy, int(seed), kept, environment()
        )
        self._database.write(lambda opened: self._rows.insert_session(opened, session), "the session was not recorded")
        self._reader.know(session)
        return session

    def append(self, session: Session, trial: Trial, ran_under: Environment | None = None) -> int:
        """Record a trial and return the record's id; when this returns, the trial is on the disk.

        Parameters
        ----------
        session : Session
            What `new_session` or `sessions` of this file returned.
        trial : Trial
            What came back. Its schedule may come from another device's plan, but must be of the session's workload.
        ran_under : Environment, optional
            Of the process that measured it; by default of this one.
        """
        if trial.schedule.workload != session.workload:
            raise RecordError(
                f"{self.path}: the trial is of {trial.schedule.workload.describe()}, but its session of "
                f"{session.workload.describe()}; begin a session of its own"
            )
        doing = f"trial {trial.number} was not recorded"
        ran_under = ran_under or environment()
        try:
            row = self._rows.trial(session, now_utc(), ran_under, trial)
        except AnatuneError:
            raise
        except ValueError as error:
            raise RecordError(f"{self.path}: {error}; {doing}") from error
        tried = False

        def write(connection: Connection) -> int:
            nonlocal tried
            self._check_memory()
            if tried and (there := trial_id(connection, row)) is not None:
                return there
            tried = True
            if not self._rows.has_session(connection, session):
                raise RecordError(
                    f"{self.path}: has no session {session.id}, {doing}; append with a session of this very file"
                )
            return self._rows.insert_trial(connection, row, ran_under, trial)

        written = self._database.write(write, doing)
        self._rows.remember(row)
        return written

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
        new_sessions: dict[str, Session] = {}
        records: list[Record] = []
        for row in rows:
            session = row if isinstance(row, Session) else row.session
            if new_sessions.setdefault(session.id, session) != session:
                raise self._other_session(session)
            if isinstance(row, Record):
                records.append(row)
        for session in new_sessions.values():
            self._check_same(session)

        def write(connection: Connection) -> tuple[int, int]:
            self._check_memory()
            new = sum(self._rows.insert_session(connection, session) for session in new_sessions.values())
            return new, self._rows.insert_missing(connection, records)

        return self._database.write(write, "nothing of it was recorded")

    def _check_same(self, session: Session) -> None:
        """Raise RecordError if the session of this id has other contents here."""
        there = self._database.read(select(sessions.c.digest).where(sessions.c.id == session.id))
        if there and there[0].digest != self._rows.session(session)["digest"] and self.session(session.id) != session:
            raise self._other_session(session)

    def _check_memory(self) -> None:
        """Forget what is known to be stored if this is another connection: the database may be another one."""
        if self._connections != self._database.connections:
            self._connections = self._database.connections
            self._rows.forget()

    def _other_session(self, session: Session) -> RecordError:
        return RecordError(
            f"{self.path}: session {session.id} is there with other contents; nothing was recorded, "
            "insert into a new file"
        )

    # ---- reading -------------------------------------------------------------------------------------------

    def trials(
        self,
        workload: Workload | None = None,
        hardware: HardwareSpec | str | None = None,
        session: Session | str | None = None,
        threads: int | None = None,
        outcome: Outcome | str | None = None,
        limit: int | None = None,
        *,
        worker: str | None = None,
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
        worker : str, optional
            Name of the worker that measured them; "": measured by the session itself.
        on_damage : callable, optional
            Called with a line for each row that is damaged, which is then left out; without it that is an error.

        Raises
        ------
        RecordError
            The file or one of the rows is damaged.
        """
        asked = workload, hardware, session, threads, outcome, limit
        return list(self.iterate(*asked, worker=worker, on_damage=on_damage))

    def iterate(
        self,
        workload: Workload | None = None,
        hardware: HardwareSpec | str | None = None,
        session: Session | str | None = None,
        threads: int | None = None,
        outcome: Outcome | str | None = None,
        limit: int | None = None,
        *,
        worker: str | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[Record]:
        """Yield what `trials` returns, which takes the same, without holding all of it."""
        wanted = self._reader.of_trials(workload, hardware, session, threads, outcome, worker, on_damage)
        last = 0
        if limit is not None:
            if limit < 1:
                return
            first = select(trials.c.id).where(wanted).order_by(trials.c.id.desc()).limit(1).offset(limit - 1)
            rows = self._database.read(first)
            last = rows[0].id - 1 if rows else 0
        page = select(*TRIAL_COLUMNS).where(wanted).order_by(trials.c.id).limit(_PAGE)
        while True:
            rows = self._database.read(page.where(trials.c.id > last))
            for row in rows:
                try:
                    record = self._reader.record_of(row)
                except RecordError as error:
                    tell(on_damage, error)
                    continue
                yield record
            if len(rows) < _PAGE:
                return
            last = rows[-1].id

    def sessions(
        self,
        workload: Workload | None = None,
        hardware: HardwareSpec | str | None = None,
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
        wanted = self._reader.of_sessions(workload, hardware, threads, strategy, on_damage)
        read = []
        for row in self._database.read(select(*SESSION_COLUMNS).where(wanted).order_by(sessions.c.number)):
            try:
                read.append(self._reader.session_of(row))
            except RecordError as error:
                tell(on_damage, error)
        return read

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
        of_session = trials.c.session == (session if isinstance(session, str) else session.id)
        counted = select(trials.c.outcome, func.count()).where(of_session).group_by(trials.c.outcome)
        counts = {outcome: number for outcome, number in self._database.read(counted)}
        return {outcome: counts[outcome.value] for outcome in Outcome if outcome.value in counts}

    def num_trials(self) -> int:
        """Return how many trials there are."""
        return int(self._database.read(select(func.count()).select_from(trials))[0][0])

    def best(
        self,
        workload: Workload,
        hardware: HardwareSpec | str | None = None,
        threads: int | None = None,
        session: Session | str | None = None,
        *,
        template: str | None = None,
        accuracy: str = STANDARD,
        on_damage: OnDamage | None = None,
    ) -> Record | None:
        """Return the record of the fastest schedule, None if nothing has run; see `records.choice` for the rule."""
        asked = workload, hardware, threads, session
        bests = self.bests(*asked, template=template, accuracy=accuracy, on_damage=on_damage)
        return min(bests, key=_time, default=None)

    def bests(
        self,
        workload: Workload | None = None,
        hardware: HardwareSpec | str | None = None,
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
        wanted = Wanted(template, checked_accuracy("accuracy", accuracy), on_damage)
        if session is not None:
            where = self._reader.of_trials(workload, hardware, session, threads, None, None, on_damage)
            return best_of_session(self._reader, where, wanted)
        return self._leaders(workload, hardware, threads, wanted, 1)

    def leaders(
        self,
        workload: Workload,
        hardware: HardwareSpec | str,
        threads: int,
        count: int,
        *,
        template: str | None = None,
        accuracy: str = STANDARD,
        on_damage: OnDamage | None = None,
    ) -> list[Record]:
        """Return records of the best `count` schedules, fastest first; the first is `best`'s, by the same rule.

        Of sessions that ended with a final comparison there are the winners only.
        """
        wanted = Wanted(template, checked_accuracy("accuracy", accuracy), on_damage)
        return sorted(self._leaders(workload, hardware, threads, wanted, count), key=_time)[:count]

    def _leaders(
        self,
        workload: Workload | None,
        hardware: HardwareSpec | str | None,
        threads: int | None,
        wanted: Wanted,
        count: int,
    ) -> list[Record]:
        """Return the best `count` of each group, read in one transaction."""
        reader, on_damage = self._reader, wanted.on_damage
        keys = reader.workloads.keys_of(workload, on_damage), reader.hardware.keys_of(hardware, on_damage)

        def look() -> list[Record]:
            asked = groups(self._database, *keys, threads)
            return [record for group in asked for record in best_of_group(reader, group, wanted, count)]

        return self._database.together(look)


def _opened(place: RecordPlace, *, read_only: bool, timeout_s: float) -> Database:
    """Open the database at a place; a driver is imported where it is needed only."""
    if isinstance(place, ServerAddress):
        from anatune.records.postgres import PostgresDatabase

        return PostgresDatabase(place, read_only=read_only, timeout_s=timeout_s)
    from anatune.records.sqlite import SqliteDatabase

    return SqliteDatabase(place, read_only=read_only, timeout_s=timeout_s)


def _time(record: Record) -> float:
    time_s = record.trial.measurement.time_s
    return float("inf") if time_s is None else time_s
