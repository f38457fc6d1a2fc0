"""The record store: sessions and trials in a file or on a server, for any number of writers; rows never change."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import msgspec
from sqlalchemy import Connection, func, select

from anatune.core.accuracy import STANDARD, validate_accuracy
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.trial import Outcome, Trial
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.errors import AnatuneError, RecordError
from anatune.records.database import Database
from anatune.records.environment import Environment, environment
from anatune.records.lookup import WantedTrials, best_of_group, best_of_session, groups
from anatune.records.place import RecordPlace, ServerAddress, record_place
from anatune.records.reader import SESSION_COLUMNS, TRIAL_COLUMNS, OnDamage, RecordReader, tell
from anatune.records.rows import RowWriter, trial_id
from anatune.records.schema import Record, Session, now_utc
from anatune.records.tables import sessions, trials

_PAGE = 256
"""Number of rows read at a time, so that no reader keeps the writers' log long."""


class RecordStore:
    """A store of records: one row for each trial, with everything that is needed to judge, repeat and resume it.

    Guarantees: a trial for which `append` returned survives kill -9 and a crash of the system. A row is complete or
    absent, and never changes. Several processes and threads may write at once. A trial that is sent twice is recorded
    once. The store can be used after a fork. Records are in the order of recording.

    Parameters
    ----------
    path : str, Path or ServerAddress
        A file, or ``postgresql://USER@HOST:PORT/DATABASE``. A missing file and the tables of an empty database are
        made, unless `read_only`. The password of a server comes from PGPASSWORD, a service file, ``~/.pgpass`` or the
        URL, and is never shown.
    read_only : bool
        Change nothing; a missing file is an error.
    timeout_s : float
        How long to wait for other writers, and for a lost server, s.

    Raises
    ------
    RecordError
        The store is damaged, has another version, belongs to another program, or cannot be made or read. All methods
        raise it if the disk is full, or the disk or the server fails; the message names the lost trials.
        Everything recorded before is kept.
    MissingDependencyError
        The driver of PostgreSQL is not installed.

    Examples
    --------
    >>> with RecordStore("tuning.sqlite") as store:  # doctest: +SKIP
    ...     session = store.new_session(workload, hardware, threads=1, strategy="dgd", seed=0, settings={"trials": 64})
    ...     store.append(session, trial)
    """

    def __init__(self, path: str | Path | ServerAddress, *, read_only: bool = False, timeout_s: float = 30.0) -> None:
        path = record_place(path)  # so that no frame keeps a text with a password
        self.path: RecordPlace = path
        self._database = _open_database(path, read_only=read_only, timeout_s=timeout_s)
        self._reader = RecordReader(self._database)
        self._rows = RowWriter()
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
        """Close the store; closing twice does nothing."""
        self._database.close()

    def is_same_as(self, other: RecordStore) -> bool:
        """Return whether both stores are one file, or one URL."""
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
            The workload; the device that measures.
        threads : int
            Number of threads of a kernel, >= 1.
        strategy : str
            The search strategy.
        seed : int
            Seed of its random choices, in [0, 2**63).
        settings : mapping, optional
            Other settings that resuming needs, as JSON types.
        """
        try:
            stored = from_json(msgspec.json.encode(dict(settings or {})), dict[str, object])
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.path}: session settings cannot be stored: {error}; use JSON types") from error
        if not 0 <= seed < 1 << 63:
            raise RecordError(f"{self.path}: the session's seed is {seed}, expected 0 <= seed < 2**63; choose another")
        session = Session(
            uuid.uuid4().hex, now_utc(), workload, hardware, int(threads), strategy, int(seed), stored, environment()
        )
        self._database.write(lambda opened: self._rows.insert_session(opened, session), "the session was not recorded")
        self._reader.know(session)
        return session

    def append(self, session: Session, trial: Trial, ran_under: Environment | None = None) -> int:
        """Record a trial and return the record's id; when this returns, the trial is on the disk.

        Parameters
        ----------
        session : Session
            A result of `new_session` or `sessions` of this store.
        trial : Trial
            The trial. Its schedule may come from another device's plan, but must be of the session's workload.
        ran_under : Environment, optional
            Environment of the process that measured it; by default of this process.
        """
        if trial.schedule.workload != session.workload:
            raise RecordError(
                f"{self.path}: the trial is of {trial.schedule.workload.describe()}, but its session is of "
                f"{session.workload.describe()}; record it in a session of its workload"
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
                    f"{self.path}: has no session {session.id}, {doing}; use a session of this record file"
                )
            return self._rows.insert_trial(connection, row, ran_under, trial)

        written = self._database.write(write, doing)
        self._rows.remember(row)
        return written

    def insert(self, rows: Iterable[Session | Record]) -> tuple[int, int]:
        """Record sessions and records of another store, all or none; rows that this store already has are left out.

        Parameters
        ----------
        rows : iterable of Session or Record
            The rows. Sessions of records need not be listed; records get new ids.

        Returns
        -------
        num_sessions, num_trials : int
            Number of new sessions and trials.
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
        """Raise RecordError if this store has a session of this id with other contents."""
        there = self._database.read(select(sessions.c.digest).where(sessions.c.id == session.id))
        if there and there[0].digest != self._rows.session(session)["digest"] and self.session(session.id) != session:
            raise self._other_session(session)

    def _check_memory(self) -> None:
        """Forget which rows are stored if there is a new connection, because the database may be another one."""
        if self._connections != self._database.connections:
            self._connections = self._database.connections
            self._rows.forget()

    def _other_session(self, session: Session) -> RecordError:
        return RecordError(
            f"{self.path}: there is a session {session.id} with other contents; nothing was recorded, use a new record "
            "file"
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
        """Return the records that meet all given conditions, in the order of recording.

        Parameters
        ----------
        workload : Workload, optional
            The workload.
        hardware : spec or str, optional
            The device that measured: a spec (name and contents), or only its name.
        session : Session or str, optional
            The session or its id.
        threads : int, optional
            Number of threads of a kernel.
        outcome : Outcome or str, optional
            The outcome ("ok", "build_error", ...).
        limit : int, optional
            Return only the last `limit` records.
        worker : str, optional
            Name of the worker that measured; "" for the session's own machine.
        on_damage : callable, optional
            Called with a line for each damaged row, which is left out; without it a damaged row is an error.

        Raises
        ------
        RecordError
            The file or one of the rows is damaged.
        """
        conditions = workload, hardware, session, threads, outcome, limit
        return list(self.iterate(*conditions, worker=worker, on_damage=on_damage))

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
        """Yield the records that `trials` returns, without holding all of them; the parameters are the same."""
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
        """Return the sessions that meet all given conditions, in the order in which they began.

        Parameters
        ----------
        workload, hardware, threads
            As for `trials`.
        strategy : str, optional
            The search strategy.
        on_damage : callable, optional
            Called with a line for each damaged row, which is left out; without it a damaged row is an error.
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
        """Return the number of trials of a session by outcome; outcomes that did not occur are left out."""
        of_session = trials.c.session == (session if isinstance(session, str) else session.id)
        counted = select(trials.c.outcome, func.count()).where(of_session).group_by(trials.c.outcome)
        counts = {outcome: number for outcome, number in self._database.read(counted)}
        return {outcome: counts[outcome.value] for outcome in Outcome if outcome.value in counts}

    def num_trials(self) -> int:
        """Return the number of trials."""
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
        """Return the record of the fastest schedule; None if no trial ran. `records.choice` describes the rule."""
        conditions = workload, hardware, threads, session
        bests = self.bests(*conditions, template=template, accuracy=accuracy, on_damage=on_damage)
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

        `template` restricts the choice to one template. Schedules of less accurate arithmetic than `accuracy` are left
        out. `on_damage` is called with a line for each damaged row, which is left out.
        """
        wanted = WantedTrials(template, validate_accuracy("accuracy", accuracy), on_damage)
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
        """Return records of the best `count` schedules, fastest first; a compared session contributes its winner."""
        wanted = WantedTrials(template, validate_accuracy("accuracy", accuracy), on_damage)
        return sorted(self._leaders(workload, hardware, threads, wanted, count), key=_time)[:count]

    def _leaders(
        self,
        workload: Workload | None,
        hardware: HardwareSpec | str | None,
        threads: int | None,
        wanted: WantedTrials,
        count: int,
    ) -> list[Record]:
        """Return the best `count` of each group, read in one transaction."""
        reader, on_damage = self._reader, wanted.on_damage
        keys = reader.workloads.keys_of(workload, on_damage), reader.hardware.keys_of(hardware, on_damage)

        def look() -> list[Record]:
            found_groups = groups(self._database, *keys, threads)
            return [record for group in found_groups for record in best_of_group(reader, group, wanted, count)]

        return self._database.together(look)


def _open_database(place: RecordPlace, *, read_only: bool, timeout_s: float) -> Database:
    """Open the database at a place; import only the driver that it needs."""
    if isinstance(place, ServerAddress):
        from anatune.records.postgres import PostgresDatabase

        return PostgresDatabase(place, read_only=read_only, timeout_s=timeout_s)
    from anatune.records.sqlite import SqliteDatabase

    return SqliteDatabase(place, read_only=read_only, timeout_s=timeout_s)


def _time(record: Record) -> float:
    time_s = record.trial.measurement.time_s
    return float("inf") if time_s is None else time_s
