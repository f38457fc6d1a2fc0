"""Records on a PostgreSQL server: connecting, checking and making tables, and explaining errors in one line.

The server is responsible for durability: an acknowledged COMMIT is on its disk (synchronous_commit and fsync, its
defaults). A lost connection is opened again, also after a restart of the server, until the store's time limit. A COMMIT
without an answer may have succeeded, so that writers check whether their row is there before they repeat it.

An advisory lock lets only one writer have a transaction at a time. Without it a row with a smaller number could appear
after one with a larger number, and readers that continue from the last number they saw would miss it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, Table, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

from anatune.errors import RecordError
from anatune.named import import_optional
from anatune.records.database import KEPT, Database
from anatune.records.place import ServerAddress
from anatune.records.schema import APPLICATION_ID, SCHEMA_VERSION
from anatune.records.tables import TABLES, create_tables

_version = Table("anatune_records", MetaData(), Column("version", Integer, nullable=False))
"""A table of one row with the schema version; its presence marks the tables as those of anatune."""

_CONNECT_S = 10
_IDLE_S = 30
"""Seconds after which the server ends an idle transaction (of a sleeping laptop, say), for which others wait."""
_KEEPALIVE = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""Settings with which a connection that the network dropped is noticed within a minute."""
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_LOST = ("08", "57P0")
"""SQLSTATEs of a lost connection, or of a server that stops or starts."""
_BUSY = ("40", "53300")
"""SQLSTATEs of a transaction that was aborted in favour of others, and of too many connections."""
_REFUSED = "this user may not write or read it ({said}), {doing}; ask for permission (GRANT), or name another database"
_EXPLAINED = {
    "55P03": "another process has written for {waited_s:g} s, {doing}; end that process or wait for it",
    "53100": "the server's disk is full ({said}), {doing}; {kept}: free some space there",
    "42501": _REFUSED,
    "25006": _REFUSED,
}
"""SQLSTATE -> message."""


class PostgresDatabase(Database):
    """A database on a PostgreSQL server; its tables are made if they are missing, unless `read_only`."""

    dialect = "postgresql+psycopg"

    def __init__(self, place: ServerAddress, *, read_only: bool = False, timeout_s: float = 30.0) -> None:
        self._address = place
        self._driver = import_optional("psycopg", "postgres", "a record store on a PostgreSQL server")
        super().__init__(place, read_only=read_only, timeout_s=timeout_s)

    # ---- opening -------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        failure = ""
        try:
            return self._driver.connect(**self._parameters())
        except self._driver.Error as error:
            failure = self._address.hide_secrets(" ".join(str(error).split()))
        # Raised outside the handler, because the frames of the driver's error hold the password.
        if self.connections:  # the server was there before and may come back
            raise self._driver.OperationalError(failure)
        raise RecordError(
            f"{self.place}: no connection ({failure}); check that the server is running, the name of the database, the "
            "user and the password (PGPASSWORD, a service file or ~/.pgpass)"
        )

    def _parameters(self) -> dict[str, object]:
        """Return the connection parameters; those in the URL take precedence."""
        limits = {"lock_timeout": self._timeout_s, "idle_in_transaction_session_timeout": _IDLE_S}
        parameters = self._driver.conninfo.conninfo_to_dict(self._address.reveal())
        options = [f"-c {name}={max(1, round(1000 * seconds))}" for name, seconds in limits.items()]
        if self.read_only:
            options.append("-c default_transaction_read_only=on")
        parameters["options"] = " ".join([*options, str(parameters.get("options") or "")])
        fixed = {"application_name": "anatune", "client_encoding": "utf8"}
        return {"connect_timeout": _CONNECT_S, **_KEEPALIVE, **parameters, **fixed}

    def _prepare(self, connection: Connection) -> Connection:
        with connection.begin():
            version = self._read_version(connection)
        if self.read_only:
            if version == 0:
                raise RecordError(
                    f"{self.place}: has no tables of records; `anatune tune --records {self.place}` makes them"
                )
        elif version == 0:
            with connection.begin():
                self._begin_writing(connection)
                if self._read_version(connection) == 0:  # else another process was first
                    create_tables(connection)
                    _version.create(connection)
                    connection.execute(insert(_version), {"version": SCHEMA_VERSION})
        return connection

    def _read_version(self, connection: Connection) -> int:
        """Return the schema version, 0 without tables; raise RecordError if the tables belong to another program."""
        encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8":
            raise RecordError(
                f"{self.place}: the encoding of the database is {encoding}, expected UTF8; make another database with "
                "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            )
        there = set(inspect(connection).get_table_names())
        if _version.name in there:
            version = int(connection.execute(select(_version.c.version)).scalar_one())
            if version != SCHEMA_VERSION:
                raise self._other_version(version)
            return version
        if others := sorted(there & set(TABLES.tables)):
            raise RecordError(
                f"{self.place}: has tables of another program ({', '.join(others)}), expected records of anatune; name "
                "another database, or a schema: ?options=-csearch_path%3DNAME"
            )
        return 0

    # ---- writing and errors --------------------------------------------------------------------------------

    def _begin_writing(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": APPLICATION_ID})

    def _check_before_writing(self, doing: str) -> None:
        pass  # a server has no file that could be replaced

    def _can_pass(self, error: DBAPIError) -> bool:
        state = _state(error)
        return error.connection_invalidated or state == "" or state.startswith((*_LOST, *_BUSY))

    def _explain(self, error: DBAPIError, doing: str) -> RecordError:
        state = _state(error)
        primary = getattr(getattr(error.orig, "diag", None), "message_primary", None) or str(error.orig)
        said = self._address.hide_secrets(" ".join(primary.split()))
        if state == "" or error.connection_invalidated or state.startswith(_LOST):
            message = f"the connection was lost ({said}) and could not be opened again within {self._timeout_s:g} s"
            return RecordError(f"{self.place}: {message}, {doing}; {KEPT}: continue when the server is running")
        text = _EXPLAINED.get(state, "{said} (SQLSTATE {state}), {doing}; {kept}")
        message = text.format(said=said, state=state, waited_s=self._timeout_s, doing=doing, kept=KEPT)
        return RecordError(f"{self.place}: {message}")


def _state(error: DBAPIError) -> str:
    """Return the SQLSTATE of an error; "" if it does not come from the server."""
    return str(getattr(error.orig, "sqlstate", None) or "")
