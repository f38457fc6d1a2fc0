"""A database of records: whole transactions, again where another writer or a lost connection is in the way.

What differs between SQLite and PostgreSQL is one subclass each (`records.sqlite`, `records.postgres`): how to connect,
whose tables these are, what an error means.
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
Found: TypeAlias = Any
"""A row that was read: its columns by their names and in their order, whose types SQLAlchemy does not know."""
KEPT = "everything recorded before is kept"
_PAUSE_S = (0.005, 0.05)
_abandoned: list[Connection] = []
"""Connections that a fork brought along. Closing one in the child could end what the parent uses."""


class Database(abc.ABC):
    """Safe to use from several threads, and in a process that was forked after opening.

    Parameters
    ----------
    place : Path or ServerAddress
        Where it is.
    read_only : bool
        Change nothing.
    timeout_s : float
        How long to wait for other writers, and for a server that went away, s.

    Attributes
    ----------
    connections : int
        How many were opened: after another one nothing that was known of the database is certain.

    Raises
    ------
    RecordError
        It cannot be read or made, is damaged, of another version or another program's.
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
        self._together: Connection | None = None
        self._is_closed = False
        self._pid = os.getpid()
        self._attempt(lambda connection: None, "it cannot be opened")

    def close(self) -> None:
        """Close it; closing twice does nothing."""
        with self._lock:
            self._is_closed = True
            self._let_go()

    def read(self, statement: Executable, parameters: Mapping[str, object] | None = None) -> Sequence[Found]:
        """Return the rows of a query."""

        def run(connection: Connection) -> Sequence[Found]:
            if connection.in_transaction():  # of `together`
                return connection.execute(statement, parameters).fetchall()
            with connection.begin():
                return connection.execute(statement, parameters).fetchall()

        with self._lock:
            if self._together is not None:
                return run(self._together)
            return self._attempt(run, "reading it failed")

    def together(self, action: Callable[[], _T]) -> _T:
        """Run something that reads several times, in one transaction: a server is asked less often."""

        def run(connection: Connection) -> _T:
            with connection.begin():
                self._together = connection
                try:
                    return action()
                finally:
                    self._together = None

        return self._attempt(run, "reading it failed")

    def write(self, action: Callable[[Connection], _T], doing: str) -> _T:
        """Run `action` in one transaction: either all it wrote is there and on the disk, or nothing.

        Transactions follow each other, whoever writes: the numbers of rows are the order in which they appear.

        Parameters
        ----------
        action : callable
            Gets the connection. It may run more than once, also after a transaction whose end is not known: it has to
            look whether what it writes is there.
        doing : str
            What is lost if it fails, for the message: "this trial was not recorded".
        """
        if self.read_only:
            raise RecordError(f"{self.place}: is opened for reading only, {doing}; open it without read_only")

        def run(connection: Connection) -> _T:
            self._check_before(doing)
            with connection.begin():
                self._begin_writing(connection)
                return action(connection)

        return self._attempt(run, doing)

    def _attempt(self, run: Callable[[Connection], _T], doing: str) -> _T:
        """Run something on the connection, again where that can help; make errors one line."""
        deadline = time.monotonic() + self._timeout_s
        with self._lock:
            while True:
                try:
                    return run(self._connected())
                except DBAPIError as error:
                    failure = self._explained(error, doing)
                    again = self._can_pass(error)
                    if error.connection_invalidated:
                        self._let_go()
                # Outside of the handler: the driver's own error, whose frames know the password, is not chained.
                if not again or time.monotonic() > deadline:
                    raise failure
                time.sleep(random.uniform(*_PAUSE_S))

    def _connected(self) -> Connection:
        """Return the connection, a new one in a forked process and after the last one was lost."""
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
                connection = self._prepared(connection)
            except BaseException:
                with contextlib.suppress(SQLAlchemyError):  # the first error tells more
                    connection.close()
                raise
            self._connection = connection
            self.connections += 1
        return self._connection

    def _let_go(self) -> None:
        """Close the connection, or leave it to the process that opened it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._pid != os.getpid():
            _abandoned.append(connection)
            return
        with contextlib.suppress(SQLAlchemyError):  # a lost one
            connection.close()

    def _other_version(self, version: int) -> RecordError:
        """Return the error of a schema that this version does not know."""
        step = (
            "update anatune" if version > SCHEMA_VERSION else "export it as JSON lines with the anatune that wrote it"
        )
        return RecordError(
            f"{self.place}: has schema version {version}, this anatune reads version {SCHEMA_VERSION}; {step}, or name "
            "another place"
        )

    # ---- what a kind of database says ------------------------------------------------------------------------

    @abc.abstractmethod
    def _connect(self) -> Any:
        """Return a new connection of the driver."""

    @abc.abstractmethod
    def _prepared(self, connection: Connection) -> Connection:
        """Check that what is there is ours and whole, make or migrate tables; return the connection to use."""

    @abc.abstractmethod
    def _begin_writing(self, connection: Connection) -> None:
        """Wait for other writers; none of them writes until this transaction ends."""

    @abc.abstractmethod
    def _check_before(self, doing: str) -> None:
        """Raise RecordError if what is written now would vanish."""

    @abc.abstractmethod
    def _can_pass(self, error: DBAPIError) -> bool:
        """Whether the same may succeed a moment later."""

    @abc.abstractmethod
    def _explained(self, error: DBAPIError, doing: str) -> RecordError:
        """Return an error as one line: the place, what happened, what to do."""
