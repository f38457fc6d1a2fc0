"""A database on a PostgreSQL server: reached, checked, its tables made, its errors made one clear line.

Durability is the server's: a COMMIT that was answered is on its disk (synchronous_commit and fsync, its defaults). A
connection that is lost is opened anew, also after the server was restarted, for as long as the store's time limit. A
COMMIT that was not answered may have happened: whoever writes looks whether its row is there before the second try.

Writers follow each other, by an advisory lock that ends with the transaction: without it a row with a smaller number
could appear after one with a larger number, and readers that go on from the last number they saw would miss it.
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
"""One row: the schema's version, and by its presence the mark of the program that owns the tables."""

_CONNECT_S = 10
_IDLE_S = 30
"""A writer that stands still in a transaction (a laptop that sleeps) is put off after so long: others wait for it."""
_KEEPALIVE = {"keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""A connection that the network dropped without a word is noticed in a minute."""
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_LOST = ("08", "57P0")
"""SQLSTATEs of a connection or a server that goes away, or is not there yet."""
_BUSY = ("40", "53300")
"""Those of a transaction that was sacrificed for others, of too many connections."""
_REFUSED = (
    "may not be written or read by this user ({said}), {doing}; ask for the rights (GRANT), or name another database"
)
_EXPLAINED = {
    "55P03": "another process has written for {waited_s:g} s, {doing}; end that process or wait for it",
    "53100": "the server's disk is full ({said}), {doing}; {kept}: free space there",
    "42501": _REFUSED,
    "25006": _REFUSED,
}
"""SQLSTATE -> what is said of it."""


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
            failure = self._address.hidden(" ".join(str(error).split()))
        # Outside of the handler: the driver's frames know the password.
        if self.connections:  # the server was there: it may come back
            raise self._driver.OperationalError(failure)
        raise RecordError(
            f"{self.place}: no connection ({failure}); check that the server runs there, the database's name, the user "
            "and the password (PGPASSWORD, a service file or ~/.pgpass)"
        )

    def _parameters(self) -> dict[str, object]:
        """Return what to connect with, the URL's own first."""
        limits = {"lock_timeout": self._timeout_s, "idle_in_transaction_session_timeout": _IDLE_S}
        own = self._driver.conninfo.conninfo_to_dict(self._address.reveal())
        options = [f"-c {name}={max(1, round(1000 * seconds))}" for name, seconds in limits.items()]
        if self.read_only:
            options.append("-c default_transaction_read_only=on")
        own["options"] = " ".join([*options, str(own.get("options") or "")])
        fixed = {"application_name": "anatune", "client_encoding": "utf8"}
        return {"connect_timeout": _CONNECT_S, **_KEEPALIVE, **own, **fixed}

    def _prepared(self, connection: Connection) -> Connection:
        with connection.begin():
            version = self._found_version(connection)
        if self.read_only:
            if version == 0:
                raise RecordError(
                    f"{self.place}: has no records; `anatune tune --records {self.place}` makes their tables"
                )
        elif version == 0:
            with connection.begin():
                self._begin_writing(connection)
                if self._found_version(connection) == 0:  # else another process was first
                    create_tables(connection)
                    _version.create(connection)
                    connection.execute(insert(_version), {"version": SCHEMA_VERSION})
        return connection

    def _found_version(self, connection: Connection) -> int:
        """Return the schema's version, 0 if there are no tables; raise RecordError if they are another program's."""
        encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8":
            raise RecordError(
                f"{self.place}: the database's encoding is {encoding}, expected UTF8; make another with "
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
                f"{self.place}: has tables of another program ({', '.join(others)}), expected anatune's records; name "
                "another database, or a schema: ?options=-csearch_path%3DNAME"
            )
        return 0

    # ---- writing and errors --------------------------------------------------------------------------------

    def _begin_writing(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": APPLICATION_ID})

    def _check_before(self, doing: str) -> None:
        pass  # a server has no file that could be replaced

    def _can_pass(self, error: DBAPIError) -> bool:
        state = _state(error)
        return error.connection_invalidated or state == "" or state.startswith((*_LOST, *_BUSY))

    def _explained(self, error: DBAPIError, doing: str) -> RecordError:
        state = _state(error)
        primary = getattr(getattr(error.orig, "diag", None), "message_primary", None) or str(error.orig)
        said = self._address.hidden(" ".join(primary.split()))
        if state == "" or error.connection_invalidated or state.startswith(_LOST):
            told = f"the connection is lost ({said}) and was not there again in {self._timeout_s:g} s"
            return RecordError(f"{self.place}: {told}, {doing}; {KEPT}: go on when the server runs")
        text = _EXPLAINED.get(state, "{said} (SQLSTATE {state}), {doing}; {kept}")
        told = text.format(said=said, state=state, waited_s=self._timeout_s, doing=doing, kept=KEPT)
        return RecordError(f"{self.place}: {told}")


def _state(error: DBAPIError) -> str:
    """Return the SQLSTATE of an error, "" where there was no server to say it."""
    return str(getattr(error.orig, "sqlstate", None) or "")
