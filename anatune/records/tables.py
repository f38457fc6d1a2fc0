"""The SQLAlchemy tables of a record store, which are the same in SQLite and PostgreSQL.

parts : workloads, hardware specs and environments as JSON, each once, by content key.
sessions : one row for each session.
trials : one row for each trial. ``schedule`` and ``result`` are the JSON of `Schedule` and `Trial` without the parts
that
    other columns name by key. Other columns repeat some values for look-ups (`records.lookup`) and for people.

Every row of sessions and trials has a digest of its text. Triggers refuse to change or delete rows.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

AnyColumn: TypeAlias = Column[Any]
_Id = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows of type INTEGER by itself."""

TABLES = MetaData()

parts = Table(
    "parts",
    TABLES,
    Column("key", Text, primary_key=True),  # first 16 hexadecimal digits of the SHA-256 of kind and json
    Column("kind", Text, nullable=False),  # 'workload', 'hardware' or 'environment'
    Column("name", Text, nullable=False),  # the same for equal parts of all versions (`schema.part_name`)
    Column("json", Text, nullable=False),
    Index("parts_named", "kind", "name"),
)

sessions = Table(
    "sessions",
    TABLES,
    Column("number", _Id, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("created_utc", Text, nullable=False),  # ISO 8601
    Column("workload", Text, ForeignKey("parts.key"), nullable=False),
    Column("hardware", Text, ForeignKey("parts.key"), nullable=False),
    Column("hardware_name", Text, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("strategy", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("settings", Text, nullable=False),  # JSON object
    Column("environment", Text, ForeignKey("parts.key"), nullable=False),
    Column("digest", Text, nullable=False),
    Index("sessions_of_workload", "workload", "hardware", "threads"),
    sqlite_autoincrement=True,
)

trials = Table(
    "trials",
    TABLES,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("session", Text, ForeignKey("sessions.id"), nullable=False),
    Column("created_utc", Text, nullable=False),  # ISO 8601
    Column("workload", Text, ForeignKey("parts.key"), nullable=False),
    Column("hardware", Text, ForeignKey("parts.key"), nullable=False),  # of the schedule
    Column("device", Text, nullable=False),  # hardware of the session: where it was measured
    Column("threads", Integer, nullable=False),
    Column("template", Text, nullable=False),
    Column("accuracy", Text, nullable=False),  # that admits it
    Column("outcome", Text, nullable=False),
    Column("compared", SmallInteger, nullable=False),  # 1: of a final comparison
    Column("stopped_early", SmallInteger, nullable=False),
    Column("time_s", Double),  # median of the samples; NULL unless ok
    Column("relative", Double),  # median of the samples over the reference kernel's; NULL without
    Column("worker", Text, nullable=False),  # name of the worker that measured it; empty: this machine's own
    Column("schedule_key", Text, nullable=False),
    Column("schedule", Text, nullable=False),  # JSON
    Column("result", Text, nullable=False),  # JSON
    Column("environment", Text, ForeignKey("parts.key"), nullable=False),
    Column("identity", Text, nullable=False),  # of its contents: a trial that is sent twice is recorded once
    Column("digest", Text, nullable=False),
    UniqueConstraint("session", "identity", name="trials_once"),
    Index("trials_of_session", "session", "id"),
    Index("trials_of_workload", "workload", "id"),
    Index("trials_of_schedule", "schedule_key", "id"),
    sqlite_autoincrement=True,
)
_ran = trials.c.outcome == "ok"
Index(
    "trials_ranked",
    *(trials.c[name] for name in ("workload", "device", "threads", "template", "relative", "time_s")),
    sqlite_where=_ran,
    postgresql_where=_ran,
)

_REFUSAL = "rows of a record store are never rewritten"
_FREEZE = {
    "sqlite": (
        "CREATE TRIGGER %(table)s_UPDATE BEFORE UPDATE ON %(table)s BEGIN SELECT RAISE(ABORT, '" + _REFUSAL + "'); END",
        "CREATE TRIGGER %(table)s_DELETE BEFORE DELETE ON %(table)s BEGIN SELECT RAISE(ABORT, '" + _REFUSAL + "'); END",
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION anatune_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '" + _REFUSAL + "'; END $$",
        "CREATE TRIGGER %(table)s_frozen BEFORE UPDATE OR DELETE OR TRUNCATE ON %(table)s "
        "FOR EACH STATEMENT EXECUTE FUNCTION anatune_refuse()",
    ),
}
"""Dialect -> statements after which the rows of a table cannot be changed."""


def create_tables(connection: Connection) -> None:
    """Make all tables, their indices and triggers, inside the caller's transaction."""
    TABLES.create_all(connection, checkfirst=False)
    for table in TABLES.sorted_tables:
        freeze(connection, table)


def freeze(connection: Connection, table: Table) -> None:
    """Make the triggers that refuse to change the rows of a table."""
    for statement in _FREEZE[connection.dialect.name]:
        connection.execute(DDL(statement).against(table))  # type: ignore[no-untyped-call]
