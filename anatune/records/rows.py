"""Sessions and trials as rows: the only statements that write to a record store.

All are called inside a transaction of `records.database.Database.write`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select

from anatune.core.accuracy import STANDARD, accuracy_of
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.records.choice import COMPARED
from anatune.records.environment import Environment
from anatune.records.schema import (
    Record,
    Session,
    content_key,
    digest,
    part_name,
    schedule_text,
    storable,
    trial_text,
)
from anatune.records.tables import parts, sessions, trials
from anatune.templates import TEMPLATES

__all__ = ["SESSION_DIGEST", "TRIAL_DIGEST", "Rows", "TrialRow", "trial_columns", "trial_id", "with_digest"]

_Part = Workload | GpuSpec | CpuSpec | Environment
TrialRow = dict[str, Any]
"""Column -> value, without the number of the row."""

SESSION_DIGEST = tuple(column for column in sessions.columns if column.name not in ("number", "digest"))
TRIAL_DIGEST = tuple(column for column in trials.columns if column.name not in ("id", "digest"))
"""Columns that the digest of a row is made of, in their order."""

_PARTS = ("workload", "hardware")
"""Of a schedule: stored once for many."""
_BATCH = 200
"""Rows of one statement."""
_MOST_PARTS = 256


class Rows:
    """Makes rows; remembers which parts a store has, and what their rows are, so that a trial is one statement."""

    def __init__(self) -> None:
        self._stored: set[str] = set()
        self._made: dict[int, tuple[_Part, dict[str, str]]] = {}

    def forget(self) -> None:
        """Take nothing for stored any more."""
        self._stored.clear()

    def remember(self, *rows: TrialRow) -> None:
        """Take what trials name for stored, after the transaction that stored it."""
        self._stored |= {row[name] for row in rows for name in ("session", "workload", "hardware", "environment")}

    def part(self, kind: str, value: _Part) -> dict[str, str]:
        """Return the row of a part."""
        known = self._made.get(id(value))
        if known is None or known[0] is not value:
            text = msgspec.json.encode(value, order="sorted").decode()
            made = {"key": content_key(kind, text), "kind": kind, "name": part_name(value), "json": text}
            if len(self._made) >= _MOST_PARTS:
                self._made.clear()
            self._made[id(value)] = known = (value, made)
        return known[1]

    def session(self, session: Session) -> dict[str, Any]:
        """Return the row of a session."""
        row: dict[str, Any] = {
            "id": session.id,
            "created_utc": session.created_utc,
            "workload": self.part("workload", session.workload)["key"],
            "hardware": self.part("hardware", session.hardware)["key"],
            "hardware_name": session.hardware.name,
            "threads": session.threads,
            "strategy": session.strategy,
            "seed": session.seed,
            "settings": msgspec.json.encode(session.settings).decode(),
            "environment": self.part("environment", session.environment)["key"],
        }
        return row | {"digest": digest(*(row[column.name] for column in SESSION_DIGEST))}

    def trial(self, session: Session, created: str, ran_under: Environment, trial: Trial) -> TrialRow:
        """Return the row of a trial; raise ValueError if it cannot be stored."""
        trial = storable(trial)
        schedule = trial.schedule
        return with_digest(
            {
                "session": session.id,
                "created_utc": created,
                "workload": self.part("workload", schedule.workload)["key"],
                "hardware": self.part("hardware", schedule.hardware)["key"],
                "device": self.part("hardware", session.hardware)["key"],
                "threads": trial.threads,
                "environment": self.part("environment", ran_under)["key"],
                **trial_columns(session.id, created, trial),
            }
        )

    def has_session(self, connection: Connection, session: Session) -> bool:
        """Whether a session is there."""
        wanted = select(sessions.c.number).where(sessions.c.id == session.id)
        return session.id in self._stored or connection.execute(wanted).first() is not None

    def insert_session(self, connection: Connection, session: Session) -> bool:
        """Insert a session and the parts it names unless it is there; return whether it was new."""
        if self.has_session(connection, session):
            return False
        self._insert_parts(
            connection,
            self.part("workload", session.workload),
            self.part("hardware", session.hardware),
            self.part("environment", session.environment),
        )
        connection.execute(insert(sessions), self.session(session))
        return True

    def insert_trial(self, connection: Connection, row: TrialRow, ran_under: Environment, trial: Trial) -> int:
        """Insert a trial and the parts it names; return its id."""
        self._insert_trial_parts(connection, ran_under, trial)
        key = connection.execute(insert(trials), row).inserted_primary_key
        assert key is not None
        return int(key[0])

    def insert_missing(self, connection: Connection, records: Sequence[Record]) -> int:
        """Insert those records that are not there, in their order; return how many."""
        num_new = 0
        for start in range(0, len(records), _BATCH):
            made: dict[tuple[str, str], tuple[TrialRow, Record]] = {}
            for record in records[start : start + _BATCH]:
                row = self.trial(record.session, record.created_utc, record.environment, record.trial)
                made.setdefault((row["session"], row["identity"]), (row, record))
            wanted = [trials.c[name].in_({key[at] for key in made}) for at, name in enumerate(("session", "identity"))]
            known = {
                tuple(row) for row in connection.execute(select(trials.c.session, trials.c.identity).where(*wanted))
            }
            new = [one for key, one in made.items() if key not in known]
            for _, record in new:
                self._insert_trial_parts(connection, record.environment, record.trial)
            if new:
                connection.execute(insert(trials), [row for row, _ in new])
            num_new += len(new)
        return num_new

    def _insert_trial_parts(self, connection: Connection, ran_under: Environment, trial: Trial) -> None:
        self._insert_parts(
            connection,
            self.part("workload", trial.schedule.workload),
            self.part("hardware", trial.schedule.hardware),
            self.part("environment", ran_under),
        )

    def _insert_parts(self, connection: Connection, *rows: dict[str, str]) -> None:
        """Store parts unless they are there."""
        wanted = {row["key"]: row for row in rows if row["key"] not in self._stored}
        if not wanted:
            return
        known = set(connection.execute(select(parts.c.key).where(parts.c.key.in_(list(wanted)))).scalars())
        if new := [row for key, row in wanted.items() if key not in known]:
            connection.execute(insert(parts), new)


def trial_columns(session_id: str, created: str, trial: Trial) -> TrialRow:
    """Return the columns of a trial that rest on nothing but itself, its session's id and when it was recorded."""
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
        "identity": digest(session_id, created, _told(schedule, *_PARTS), _told(trial, "schedule"), digits=32),
    }


def _told(value: msgspec.Struct, *left_out: str) -> str:
    """Return the JSON of the fields that are not their defaults: a later version, with more fields, writes the same."""
    defaults = _defaults(type(value))
    told = {name: getattr(value, name) for name in value.__struct_fields__ if name not in left_out}
    return msgspec.json.encode({name: one for name, one in told.items() if one != defaults[name]}).decode()


@functools.cache
def _defaults(type_: type[msgspec.Struct]) -> dict[str, Any]:
    """Return field -> default; what has none is equal to nothing."""
    return {
        field.name: field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(type_)
    }


def with_digest(row: TrialRow) -> TrialRow:
    """Return a trial's row with its digest."""
    return row | {"digest": digest(*(row[column.name] for column in TRIAL_DIGEST))}


def trial_id(connection: Connection, row: TrialRow) -> int | None:
    """Return the id of a trial that is there."""
    wanted = trials.c.session == row["session"], trials.c.identity == row["identity"]
    return connection.execute(select(trials.c.id).where(*wanted)).scalar()
