"""Sessions and trials as rows: the only statements that write to a record file.

All are called inside a transaction of `records.database.Database.write`.
"""

from __future__ import annotations

import sqlite3

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Trial
from anatune.core.workload.nest import Workload
from anatune.records.environment import Environment
from anatune.records.schema import (
    Record,
    Session,
    content_key,
    current_text,
    digest,
    schedule_text,
    storable,
    trial_text,
)

__all__ = ["insert_session", "insert_trial", "session_row", "trial_identities", "trial_identity"]


def _part_row(kind: str, value: Workload | GpuSpec | CpuSpec | Environment) -> tuple[str, str, str]:
    text = msgspec.json.encode(value, order="sorted").decode()
    return content_key(kind, text), kind, text


def _insert_part(connection: sqlite3.Connection, kind: str, value: Workload | GpuSpec | CpuSpec | Environment) -> str:
    """Store a part unless it is there; return its key."""
    row = _part_row(kind, value)
    connection.execute("INSERT INTO parts VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING", row)
    return row[0]


def session_row(session: Session) -> tuple[object, ...]:
    """Return the columns of a session, its digest last."""
    columns = (
        session.id,
        session.created_utc,
        _part_row("workload", session.workload)[0],
        _part_row("hardware", session.hardware)[0],
        session.hardware.name,
        session.threads,
        session.strategy,
        session.seed,
        msgspec.json.encode(session.settings).decode(),
        _part_row("environment", session.environment)[0],
    )
    return (*columns, digest(*columns))


def insert_session(connection: sqlite3.Connection, session: Session) -> None:
    """Insert a session and the parts it names."""
    _insert_part(connection, "workload", session.workload)
    _insert_part(connection, "hardware", session.hardware)
    _insert_part(connection, "environment", session.environment)
    connection.execute(
        "INSERT INTO sessions (id, created_utc, workload, hardware, hardware_name, threads, strategy, seed, settings, "
        "environment, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        session_row(session),
    )


def _trial_row(session_id: str, created: str, ran_under: Environment, trial: Trial) -> tuple[object, ...]:
    """Return the columns that the digest covers, in their order."""
    schedule = trial.schedule
    return (
        session_id,
        created,
        _part_row("workload", schedule.workload)[0],
        _part_row("hardware", schedule.hardware)[0],
        trial.threads,
        trial.measurement.outcome.value,
        schedule.key,
        schedule_text(schedule),
        trial_text(trial),
        _part_row("environment", ran_under)[0],
    )


def insert_trial(
    connection: sqlite3.Connection, session_id: str, created: str, ran_under: Environment, trial: Trial
) -> int:
    """Insert a trial and the parts it names; return its id."""
    _insert_part(connection, "workload", trial.schedule.workload)
    _insert_part(connection, "hardware", trial.schedule.hardware)
    _insert_part(connection, "environment", ran_under)
    row = _trial_row(session_id, created, ran_under, trial)
    cursor = connection.execute(
        "INSERT INTO trials (session, created_utc, workload, hardware, threads, outcome, schedule_key, schedule, "
        "result, environment, digest, time_s, relative) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, digest(*row), trial.measurement.time_s, trial.measurement.relative),
    )
    return int(cursor.lastrowid or 0)


def trial_identity(record: Record) -> str:
    """Return what tells a trial from the others of its session: all of it that the file keeps."""
    row = _trial_row(record.session.id, record.created_utc, record.environment, storable(record.trial))
    _, *before, _, text, result, ran_under = row
    return digest(*before, text, result, ran_under)


def trial_identities(connection: sqlite3.Connection, session_id: str) -> set[str]:
    """Return the identities of the trials that the file has of a session."""
    rows = connection.execute(
        "SELECT created_utc, workload, hardware, threads, outcome, schedule, result, environment FROM trials WHERE "
        "session = ?",
        (session_id,),
    )
    # Texts, not keys or digests: those of older rows are of the template's former name.
    return {digest(*before, current_text(text), result, ran_under) for *before, text, result, ran_under in rows}
