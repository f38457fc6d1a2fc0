"""Older schemas made new, one step a version, inside the caller's transaction.

Version 1 (SQLite files only): trials had no columns for look-ups and no identity, templates could have former names.
Version 2: those columns; every row as this version would write it.

A row that is damaged stays as it is and stays damaged: its digest does not become right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, insert, text

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, RecordError
from anatune.records.environment import Environment
from anatune.records.rows import trial_columns, with_digest
from anatune.records.schema import digest, part_name, schedule_of, trial_of
from anatune.records.tables import create_tables, parts, sessions, trials

__all__ = ["migrate"]

_PAGE = 1000
_KINDS: dict[str, Any] = {"workload": Workload, "hardware": GpuSpec | CpuSpec, "environment": Environment}
_Row = Mapping[str, Any]


def migrate(connection: Connection, version: int) -> None:
    """Make the tables of an older version those of this one."""
    for step in _STEPS[version - 1 :]:
        step(connection)


def _from_1_to_2(connection: Connection) -> None:
    own = "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'index') AND sql IS NOT NULL"
    for kind, name in connection.execute(text(own)).fetchall():
        connection.execute(text(f"DROP {kind} {name}"))
    for table in ("trials", "sessions", "parts"):
        connection.execute(text(f"ALTER TABLE {table} RENAME TO {table}_1"))
    create_tables(connection)
    known: dict[str, Any] = {}

    def part(row: _Row) -> _Row:
        try:
            known[row["key"]] = value = msgspec.json.decode(row["json"], type=_KINDS[row["kind"]])
        except (msgspec.DecodeError, AnatuneError, KeyError):
            value = None
        return {**row, "name": part_name(value)}

    def trial(row: _Row) -> _Row:
        try:
            if digest(*(row[name] for name in _DIGEST_1)) != row["digest"]:
                raise RecordError("damaged")
            found = trial_of(
                row["result"], schedule_of(row["schedule"], known[row["workload"]], known[row["hardware"]])
            )
            return with_digest({**row, **trial_columns(row["session"], row["created_utc"], found)})
        except (msgspec.DecodeError, AnatuneError, KeyError):
            columns = dict.fromkeys(("template", "accuracy", "worker"), "") | dict.fromkeys(_FLAGS, 0)
            return {**row, **columns, "device": row["device"] or "", "identity": f"damaged {row['id']}"}

    _copy(connection, "SELECT * FROM parts_1 WHERE key > :last ORDER BY key", "key", parts, part)
    _copy(connection, "SELECT * FROM sessions_1 WHERE number > :last ORDER BY number", "number", sessions, dict)
    _copy(
        connection,
        "SELECT t.*, s.hardware AS device FROM trials_1 t LEFT JOIN sessions_1 s ON s.id = t.session "
        "WHERE t.id > :last ORDER BY t.id",
        "id",
        trials,
        trial,
    )
    for table in ("trials", "sessions", "parts"):
        connection.execute(text(f"DROP TABLE {table}_1"))


def _copy(connection: Connection, query: str, key: str, table: Table, made: Callable[[_Row], _Row]) -> None:
    """Insert what `made` makes of the rows of a query, by pages."""
    last: object = "" if key == "key" else 0
    while rows := connection.execute(text(f"{query} LIMIT {_PAGE}"), {"last": last}).mappings().fetchall():
        connection.execute(insert(table), [dict(made(dict(row))) for row in rows])
        last = rows[-1][key]


_FLAGS = ("compared", "stopped_early")
_DIGEST_1 = (
    "session", "created_utc", "workload", "hardware", "threads", "outcome", "schedule_key", "schedule", "result",
    "environment",
)  # fmt: skip
"""What the digest of a trial covered in version 1, in this order."""
_STEPS = (_from_1_to_2,)
"""From version 1 on."""
