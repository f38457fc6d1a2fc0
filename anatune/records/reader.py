"""Reading a record store: conditions on rows, and rows as objects, each checked against its digest.

Workloads, specs and environments that many rows share are read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import msgspec
from sqlalchemy import ColumnElement, select, true

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Outcome
from anatune.core.workload.nest import Workload
from anatune.decoding import from_json
from anatune.errors import AnatuneError, RecordError
from anatune.records.database import Database, Row
from anatune.records.environment import Environment
from anatune.records.rows import SESSION_DIGEST, TRIAL_DIGEST
from anatune.records.schema import Record, Session, content_key, digest, part_name, schedule_of, trial_of
from anatune.records.tables import AnyColumn, parts, sessions, trials

_T = TypeVar("_T")
OnDamage = Callable[[str], None]
"""A function that is called with a line for each damaged row."""
Condition: TypeAlias = ColumnElement[bool]
"""A condition on rows in SQLAlchemy."""
_Hardware: TypeAlias = GpuSpec | CpuSpec

SESSION_COLUMNS = (*SESSION_DIGEST, sessions.c.digest)
TRIAL_COLUMNS = (trials.c.id, *TRIAL_DIGEST, trials.c.digest)
_LEFT_OUT = "`anatune records export --format jsonl` saves all rows that can be read"


def tell(on_damage: OnDamage | None, error: RecordError) -> None:
    """Report a damaged row to `on_damage`; raise its error if that is None."""
    if on_damage is None:
        raise error
    on_damage(str(error))


class _Parts(Generic[_T]):
    """The workloads, specs or environments of a store, by key."""

    def __init__(self, database: Database, kind: str, type_: object) -> None:
        self._database, self._kind, self._type = database, kind, type_
        self._known: dict[str, _T] = {}

    def get(self, key: str) -> _T:
        if key not in self._known:
            rows = self._database.read(select(parts.c.json).where(parts.c.key == key))
            what = f"{self._database.place}: {self._kind} {key}"
            if not rows or content_key(self._kind, rows[0][0]) != key:
                raise RecordError(f"{what} {'is damaged' if rows else 'is missing'}; {_LEFT_OUT}")
            try:
                self._known[key] = from_json(rows[0][0], self._type)
            except (msgspec.DecodeError, AnatuneError) as error:
                raise RecordError(f"{what} cannot be read ({error}); {_LEFT_OUT}") from error
        return self._known[key]

    def keys_of(self, value: _T | str | None, on_damage: OnDamage | None) -> list[str] | None:
        """Return the keys of the stored objects that equal `value` or have this name; None if `value` is None (any).

        Objects are compared instead of keys, because a newer anatune may write the same spec with one more field.
        """
        if value is None:
            return None
        name = value if isinstance(value, str) else part_name(value)
        named = select(parts.c.key).where(parts.c.kind == self._kind, parts.c.name == name)
        named_keys = [key for (key,) in self._database.read(named)]
        if isinstance(value, str):
            return named_keys
        keys = []
        for key in named_keys:
            try:
                if self.get(key) == value:
                    keys.append(key)
            except RecordError as error:
                tell(on_damage, error)
        return keys


class RecordReader:
    """A reader of the objects in one record store; damaged rows raise RecordError.

    Attributes
    ----------
    database : Database
        The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self.database, self._path = database, database.place
        self.workloads: _Parts[Workload] = _Parts(database, "workload", Workload)
        self.hardware: _Parts[_Hardware] = _Parts(database, "hardware", _Hardware)
        self._environments: _Parts[Environment] = _Parts(database, "environment", Environment)
        self._sessions: dict[str, Session] = {}

    def of_trials(
        self,
        workload: Workload | None,
        hardware: _Hardware | str | None,
        session: Session | str | None,
        threads: int | None,
        outcome: Outcome | str | None,
        worker: str | None,
        on_damage: OnDamage | None,
    ) -> Condition:
        """Return the condition on trials; arguments that are None do not restrict it."""
        return _all(
            (trials.c.workload, self.workloads.keys_of(workload, on_damage)),
            (trials.c.device, self.hardware.keys_of(hardware, on_damage)),
            (trials.c.session, session.id if isinstance(session, Session) else session),
            (trials.c.threads, threads),
            (trials.c.outcome, None if outcome is None else _outcome(outcome).value),
            (trials.c.worker, worker),
        )

    def of_sessions(
        self,
        workload: Workload | None,
        hardware: _Hardware | str | None,
        threads: int | None,
        strategy: str | None,
        on_damage: OnDamage | None,
    ) -> Condition:
        """Return the condition on sessions; arguments that are None do not restrict it."""
        return _all(
            (sessions.c.workload, self.workloads.keys_of(workload, on_damage)),
            (sessions.c.hardware, self.hardware.keys_of(hardware, on_damage)),
            (sessions.c.threads, threads),
            (sessions.c.strategy, strategy),
        )

    def session(self, session_id: str) -> Session:
        """Return one session by its id.

        Raises
        ------
        RecordError
            There is no such session, or its row is damaged.
        """
        if session_id not in self._sessions:
            rows = self.database.read(select(*SESSION_COLUMNS).where(sessions.c.id == session_id))
            if not rows:
                raise RecordError(
                    f"{self._path}: has no session {session_id!r}; `anatune records list --sessions` lists its sessions"
                )
            self.session_of(rows[0])
        return self._sessions[session_id]

    def session_of(self, row: Row) -> Session:
        """Return the session of a row of `SESSION_COLUMNS`."""
        session_id, created, workload, hardware, _, threads, strategy, seed, settings, ran_under, stored = row
        if session_id not in self._sessions:
            if digest(*row[:-1]) != stored:
                raise RecordError(f"{self._path}: session {session_id} is damaged; {_LEFT_OUT}")
            self._sessions[session_id] = Session(
                session_id,
                created,
                self.workloads.get(workload),
                self.hardware.get(hardware),
                threads,
                strategy,
                seed,
                from_json(settings, dict[str, object]),
                self._environments.get(ran_under),
            )
        return self._sessions[session_id]

    def know(self, session: Session) -> None:
        """Remember a session that was just written."""
        self._sessions[session.id] = session

    def record(self, row_id: int) -> Record:
        """Return a record by its id."""
        return self.record_of(self.database.read(select(*TRIAL_COLUMNS).where(trials.c.id == row_id))[0])

    def record_of(self, row: Row) -> Record:
        """Return the record of a row of `TRIAL_COLUMNS`."""
        row_id = row.id
        if digest(*row[1:-1]) != row.digest:
            raise self.damage_error(row_id)
        try:
            schedule = schedule_of(row.schedule, self.workloads.get(row.workload), self.hardware.get(row.hardware))
            trial = trial_of(row.result, schedule)
        except RecordError:  # its message names the damaged workload or spec
            raise
        except (msgspec.DecodeError, AnatuneError) as error:
            raise self.damage_error(row_id, error) from error
        return Record(
            row_id, row.created_utc, self.session(row.session), self._environments.get(row.environment), trial
        )

    def damage_error(self, row_id: int, error: Exception | None = None) -> RecordError:
        """Return the error of a damaged trial."""
        why = f" ({error})" if error else ""
        return RecordError(f"{self._path}: trial with id {row_id} is damaged{why}; {_LEFT_OUT}")


def _all(*terms: tuple[AnyColumn, list[str] | str | int | None]) -> Condition:
    """Return the condition that each column equals a value or one of a list; None does not restrict a column."""
    condition: Condition = true()
    for column, wanted in terms:
        if wanted is not None:
            condition &= column.in_(wanted) if isinstance(wanted, list) else column == wanted
    return condition


def _outcome(outcome: Outcome | str) -> Outcome:
    try:
        return Outcome(outcome)
    except ValueError:
        outcomes = ", ".join(outcome.value for outcome in Outcome)
        raise RecordError(f"outcome is {outcome!r}, expected one of {outcomes}") from None
