"""Writing sessions and trials as rows of a record store, inside transactions of `records.database.Database.write`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select

from anatune.core.accuracy import STANDARD, accuracy_of
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.records.choice import COMPARED
from anatune.records.environment import Environment
from anatune.records.schema import Record, Session, content_key, digest, part_name, schedule_text, storable, trial_text
from anatune.records.tables import AnyColumn, parts, sessions, trials
from anatune.templates import TEMPLATES

_Part = Workload | HardwareSpec | Environment
TrialRow = dict[str, Any]
"""The columns of a row with their values, without the number of the row."""

SESSION_DIGEST = tuple(column for column in sessions.columns if column.name not in ("number", "digest"))
TRIAL_DIGEST = tuple(column for column in trials.columns if column.name not in ("id", "digest"))
"""The columns that the digest of a row covers, in their order."""

_PART_FIELDS = ("workload", "hardware")
"""Fields of a schedule that are stored once for many trials."""
_BATCH = 200
"""Number of rows in one statement."""
_MOST_PARTS = 256


class RowWriter:
    """A writer of rows, which remembers the parts that a store has, so that a trial needs only one statement."""

    def __init__(self) -> None:
        self._stored: set[str] = set()
        self._cached_rows: dict[int, tuple[_Part, dict[str, str]]] = {}

    def forget(self) -> None:
        """Forget which parts are stored."""
        self._stored.clear()

    def remember(self, row: TrialRow) -> None:
        """Remember the parts of a trial as stored, after its transaction."""
        self._stored |= {row[name] for name in ("session", "workload", "hardware", "environment")}

    def part(self, kind: str, value: _Part) -> dict[str, str]:
        """Return the row of a part."""
        cached = self._cached_rows.get(id(value))
        if cached is None or cached[0] is not value:
            text = msgspec.json.encode(value, order="sorted").decode()
            row = {"key": content_key(kind, text), "kind": kind, "name": part_name(value), "json": text}
            if len(self._cached_rows) >= _MOST_PARTS:
                self._cached_rows.clear()
            self._cached_rows[id(value)] = cached = (value, row)
        return cached[1]

    def session(self, session: Session) -> TrialRow:
        """Return the row of a session."""
        row: TrialRow = {
            "id": session.id,
            "created_utc": session.created_utc,
            "hardware_name": session.hardware.name,
            "threads": session.threads,
            "strategy": session.strategy,
            "seed": session.seed,
            "settings": msgspec.json.encode(session.settings).decode(),
            **self._keys(session, session.environment),
        }
        return _with_digest(row, SESSION_DIGEST)

    def trial(self, session: Session, created: str, ran_under: Environment, trial: Trial) -> TrialRow:
        """Return the row of a trial; raise ValueError if it cannot be stored."""
        trial = storable(trial)
        row: TrialRow = {
            "session": session.id,
            "created_utc": created,
            "device": self.part("hardware", session.hardware)["key"],
            "threads": trial.threads,
            **self._keys(trial.schedule, ran_under),
            **_trial_columns(session.id, created, trial),
        }
        return _with_digest(row, TRIAL_DIGEST)

    def has_session(self, connection: Connection, session: Session) -> bool:
        """Return whether the store has a session."""
        wanted = select(sessions.c.number).where(sessions.c.id == session.id)
        return session.id in self._stored or connection.execute(wanted).first() is not None

    def insert_session(self, connection: Connection, session: Session) -> bool:
        """Insert a session and its parts unless it is stored; return whether it was new."""
        if self.has_session(connection, session):
            return False
        self._insert_parts(connection, session, session.environment)
        connection.execute(insert(sessions), self.session(session))
        return True

    def insert_trial(self, connection: Connection, row: TrialRow, ran_under: Environment, trial: Trial) -> int:
        """Insert a trial and its parts; return its id."""
        self._insert_parts(connection, trial.schedule, ran_under)
        key = connection.execute(insert(trials), row).inserted_primary_key
        assert key is not None
        return int(key[0])

    def insert_missing(self, connection: Connection, records: Sequence[Record]) -> int:
        """Insert the records that are not stored, in their order; return their number."""
        num_new = 0
        for start in range(0, len(records), _BATCH):
            rows: dict[tuple[str, str], tuple[TrialRow, Record]] = {}
            for record in records[start : start + _BATCH]:
                row = self.trial(record.session, record.created_utc, record.environment, record.trial)
                rows.setdefault((row["session"], row["identity"]), (row, record))
            wanted = [trials.c[name].in_({key[at] for key in rows}) for at, name in enumerate(("session", "identity"))]
            stored = {
                tuple(row) for row in connection.execute(select(trials.c.session, trials.c.identity).where(*wanted))
            }
            new = [each for key, each in rows.items() if key not in stored]
            for _, record in new:
                self._insert_parts(connection, record.trial.schedule, record.environment)
            if new:
                connection.execute(insert(trials), [row for row, _ in new])
            num_new += len(new)
        return num_new

    def _parts(self, owner: Session | Schedule, ran_under: Environment) -> dict[str, dict[str, str]]:
        """Return the rows of the parts that a session or a trial names, by kind."""
        values: dict[str, _Part] = {"workload": owner.workload, "hardware": owner.hardware, "environment": ran_under}
        return {kind: self.part(kind, value) for kind, value in values.items()}

    def _keys(self, owner: Session | Schedule, ran_under: Environment) -> dict[str, str]:
        """Return the columns that name parts."""
        return {kind: part["key"] for kind, part in self._parts(owner, ran_under).items()}

    def _insert_parts(self, connection: Connection, owner: Session | Schedule, ran_under: Environment) -> None:
        """Insert the parts of a session or a trial unless they are stored."""
        wanted = {row["key"]: row for row in self._parts(owner, ran_under).values() if row["key"] not in self._stored}
        if not wanted:
            return
        stored_keys = set(connection.execute(select(parts.c.key).where(parts.c.key.in_(list(wanted)))).scalars())
        if new := [row for key, row in wanted.items() if key not in stored_keys]:
            connection.execute(insert(parts), new)


def _trial_columns(session_id: str, created: str, trial: Trial) -> TrialRow:
    """Return the columns of a trial that depend only on itself, its session's id and the time of recording."""
    schedule, measurement = trial.schedule, trial.measurement
    return {
        "template": schedule.template,
        "accuracy": accuracy_of(schedule) if schedule.template in TEMPLATES else STANDARD,
        "outcome": measurement.outcome.value,
        "compared": int(trial.source == COMPARED),
        "stopped_early": int(measurement.stopped_early),
        "time_s": measurement.time_s,
        "relative": measurement.relative,
        "worker": measurement.worker,
        "schedule_key": schedule.key,
        "schedule": schedule_text(schedule),
        "result": trial_text(trial),
        "identity": digest(
            session_id, created, _changed_json(schedule, *_PART_FIELDS), _changed_json(trial, "schedule"), digits=32
        ),
    }


def _changed_json(value: msgspec.Struct, *left_out: str) -> str:
    """Return the JSON of fields that differ from their defaults, which is the same in versions with more fields."""
    defaults = _defaults(type(value))
    fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in left_out}
    return msgspec.json.encode({name: one for name, one in fields.items() if one != defaults[name]}).decode()


@functools.cache
def _defaults(type_: type[msgspec.Struct]) -> dict[str, object]:
    """Return field -> default; fields without a default map to a marker that equals no value."""
    return {
        field.name: field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(type_)
    }


def _with_digest(row: TrialRow, columns: Sequence[AnyColumn]) -> TrialRow:
    """Return a row with the digest of its columns."""
    return row | {"digest": digest(*(row[column.name] for column in columns))}


def trial_id(connection: Connection, row: TrialRow) -> int | None:
    """Return the id of a stored trial; None if it is not stored."""
    wanted = trials.c.session == row["session"], trials.c.identity == row["identity"]
    return connection.execute(select(trials.c.id).where(*wanted)).scalar()
