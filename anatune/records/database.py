"""A database of records: transactions that are repeated after conflicts with other writers or lost connections.

SQLite and PostgreSQL have one subclass each (`records.sqlite`, `records.postgres`), which connects, checks the tables
and explains errors.
"""

from __future__ import annotations

import abc
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Executable, NullPool, create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from anatune.errors import RecordError
from anatune.records.place import RecordPlace
from anatune.records.schema import SCHEMA_VERSION

_T = TypeVar("_T")
Row: TypeAlias = Any
"""A row that was read, whose column types SQLAlchemy does not know."""
KEPT = "everything recorded before is kept"
_PAUSE_S = (0.005, 0.05)
_abandoned: list[Connection] = []
"""Connections inherited from a parent process, which may still use them, so that they must not be closed."""


class Database(abc.ABC):
    """A database of records, for several threads, and for processes forked after it was opened.

    Parameters
    ----------
    place : Path or ServerAddress
        The file or server.
    read_only : bool
        Change nothing.
    timeout_s : float
        How long to wait for other writers, and for a lost server, s.

    Attributes
    ----------
    connections : int
        Number of connections that were opened; after a new one the contents of the database may have changed.

    Raises
    ------
    RecordError
        The database cannot be read or made, is damaged, has another version or belongs to another program.
    """

    dialect: str
    """SQLAlchemy's name of the dialect and driver."""

    def __init__(self, place: RecordPlace, *, read_only: bool = False, timeout_s: float = 30.0) -> None:
        self.place = place
        self.read_only = read_only
        self.connections = 0
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._transaction: Connection | None = None
        self._is_closed = False
        self._pid = os.getpid()
        self._attempt(lambda connection: None, "it cannot be opened")

    def close(self) -> None:
        """Close the database; closing twice does nothing."""
        with self._lock:
            self._is_closed = True
            self._drop_connection()

    def read(self, statement: Executable, parameters: Mapping[str, object] | None = None) -> Sequence[Row]:
        """Return the rows of a query."""

        def run(connection: Connection) -> Sequence[Row]:
            if connection.in_transaction():  # inside `together`
                return connection.execute(statement, parameters).fetchall()
            with connection.begin():
                return connection.execute(statement, parameters).fetchall()

        with self._lock:
            if self._transaction is not None:
                return run(self._transaction)
            return self._attempt(run, "reading it failed")

    def together(self, action: Callable[[], _T]) -> _T:
        """Run `action`, which reads several times, in one transaction, which saves round trips to a server."""

        def run(connection: Connection) -> _T:
            with connection.begin():
                self._transaction = connection
                try:
                    return action()
                finally:
                    self._transaction = None

        return self._attempt(run, "reading it failed")

    def write(self, action: Callable[[Connection], _T], doing: str) -> _T:
        """Run `action` in one transaction, so that all it wrote is on the disk, or nothing.

        Only one writer has a transaction at a time, so that the numbers of rows are in the order of recording.

        Parameters
        ----------
        action : callable
            Gets the connection. It may run again after a transaction whose end is not known, so it has to check whether
            its rows are there.
        doing : str
            The consequence of a failure, for the message: "this trial was not recorded".
        """
        if self.read_only:
            raise RecordError(f"{self.place}: was opened for reading only, {doing}; open it without read_only")

        def run(connection: Connection) -> _T:
            self._check_before_writing(doing)
            with connection.begin():
                self._begin_writing(connection)
                return action(connection)

        return self._attempt(run, doing)

    def _attempt(self, run: Callable[[Connection], _T], doing: str) -> _T:
        """Run something on the connection; repeat it after errors that may pass, explain other errors."""
        deadline = time.monotonic() + self._timeout_s
        with self._lock:
            while True:
                try:
                    return run(self._open_connection())
                except DBAPIError as error:
                    failure = self._explain(error, doing)
                    again = self._can_pass(error)
                    if error.connection_invalidated:
                        self._drop_connection()
                # Raised outside the handler, so that the driver's error, whose frames hold the password, is not
                # chained.
                if not again or time.monotonic() > deadline:
                    raise failure
                time.sleep(random.uniform(*_PAUSE_S))

    def _open_connection(self) -> Connection:
        """Return the connection; open a new one in a forked process and after the last one was lost."""
        if self._is_closed:
            raise RecordError(f"{self.place}: is closed; open it again with RecordStore({str(self.place)!r})")
        if self._connection is not None and self._pid != os.getpid():
            _abandoned.append(self._connection)
            self._connection = None
        if self._connection is None:
            self._pid = os.getpid()
            engine = create_engine(
                f"{self.dialect}://", creator=self._connect, poolclass=NullPool, hide_parameters=True
            )
            connection = engine.connect()
            try:
                connection = self._prepare(connection)
            except BaseException:
                with contextlib.suppress(SQLAlchemyError):  # the first error is more helpful
                    connection.close()
                raise
            self._connection = connection
            self.connections += 1
        return self._connection

    def _drop_connection(self) -> None:
        """Close the connection, or leave it to the process that opened it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._pid != os.getpid():
            _abandoned.append(connection)
            return
        with contextlib.suppress(SQLAlchemyError):  # the connection may be lost
            connection.close()

    def _other_version(self, version: int) -> RecordError:
        """Return the error for a schema version that this version of anatune does not know."""
        step = (
            "update anatune" if version > SCHEMA_VERSION else "export it as JSON lines with the anatune that wrote it"
        )
        return RecordError(
            f"{self.place}: has schema version {version}, but this version of anatune reads version {SCHEMA_VERSION}; "
            f"{step}, or name another record file or server"
        )

    # ---- parts of the subclasses -----------------------------------------------------------------------------

    @abc.abstractmethod
    def _connect(self) -> Any:
        """Return a new connection of the driver."""

    @abc.abstractmethod
    def _prepare(self, connection: Connection) -> Connection:
        """Check the database, make tables if needed, and return the connection to use."""

    @abc.abstractmethod
    def _begin_writing(self, connection: Connection) -> None:
        """Wait for other writers and lock them out until this transaction ends."""

    @abc.abstractmethod
    def _check_before_writing(self, doing: str) -> None:
        """Raise RecordError if writing now would be lost."""

    @abc.abstractmethod
    def _can_pass(self, error: DBAPIError) -> bool:
        """Return whether a repetition may succeed a moment later."""

    @abc.abstractmethod
    def _explain(self, error: DBAPIError, doing: str) -> RecordError:
        """Return an error whose one line names the place, what happened and what to do."""
