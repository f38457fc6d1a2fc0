"""One SQLite file: opened, checked, written in whole transactions, its errors made one clear line.

Durability: WAL with synchronous=FULL. A transaction that was acknowledged survives kill -9 with either setting of
synchronous; FULL waits for the disk at each commit and so survives a crash of the system too. That costs 0.3 ms a trial
where it was measured (NORMAL: 0.04 ms, 4 KB rows, one virtual machine's disk, 2026-11), and a trial takes 100 ms or
more. A transaction that was cut off is not there: SQLite's checksums end the log before it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from anatune.arguments import checked_path
from anatune.errors import RecordError
from anatune.files import reason
from anatune.records.schema import APPLICATION_ID, CREATE, SCHEMA_VERSION

__all__ = ["Database", "record_path"]

_T = TypeVar("_T")
_BUSY, _LOCKED, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 5, 6, 8, 10, 11, 13, 14, 26
_TEXTS = {  # sqlite3_errstr(), for Python 3.10, whose exceptions carry no code
    "database is locked": _BUSY,
    "database table is locked": _LOCKED,
    "attempt to write a readonly database": _READONLY,
    "disk I/O error": _IOERR,
    "database disk image is malformed": _CORRUPT,
    "database or disk is full": _FULL,
    "unable to open database file": _CANTOPEN,
    "file is not a database": _NOTADB,
}
_CHECKED_BYTES = 32 << 20
"""Files up to this size are checked as a whole when they are opened (10 ms a MB at most)."""
_SALVAGE = "keep a copy and its -wal file; `sqlite3 FILE .recover | sqlite3 NEW_FILE` saves what can be read"
_abandoned: list[sqlite3.Connection] = []
"""Connections that a fork brought along. Closing one in the child could release or remove files the parent uses."""


def record_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a record file.

    Raises
    ------
    RecordError
        It is no path, or a name that means something else to SQLite: records are kept in files only.
    """
    found = checked_path("the record file", path, RecordError)
    text = str(found)
    if text == ":memory:" or text.startswith("file:"):
        raise RecordError(
            f"{text}: is no file but a name of SQLite's, expected a record file, as tuning.sqlite; without records "
            "nothing is kept"
        )
    return found


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code of an error, 0 if there is none."""
    code = getattr(error, "sqlite_errorcode", None)
    return _TEXTS.get(str(error), 0) if code is None else code & 0xFF


class Database:
    """A record file. Safe to use from several threads, and in a process that was forked after opening.

    Parameters
    ----------
    path : Path
        The file; made if it is missing or empty, unless `read_only`.
    read_only : bool
        Change nothing; a missing file is an error.
    timeout_s : float
        How long to wait for other writers, s.

    Raises
    ------
    RecordError
        The file cannot be read or made, is damaged, of a newer version or another program's.
    """

    def __init__(self, path: Path, *, read_only: bool = False, timeout_s: float = 30.0) -> None:
        self.path = path
        self.read_only = read_only
        self._file = Path(os.path.abspath(path))
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._identity: tuple[int, int] | None = None
        with self._lock:
            self._open()

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is None:
                return
            if self._pid == os.getpid():
                connection.close()
            else:
                _abandoned.append(connection)

    def read(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

        def run(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return connection.execute(statement, parameters).fetchall()

        return self._attempt(run, "reading it failed")

    def write(self, action: Callable[[sqlite3.Connection], _T], doing: str) -> _T:
        """Run `action` in one transaction: either all it wrote is there and on the disk, or nothing.

        Parameters
        ----------
        action : callable
            Gets the connection; may run more than once.
        doing : str
            What is lost if it fails, for the message: "this trial was not recorded".
        """
        if self.read_only:
            raise RecordError(f"{self.path}: is opened for reading only, {doing}; open it without read_only")

        def run(connection: sqlite3.Connection) -> _T:
            self._check_identity(doing)
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = action(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):  # the first error tells more than one of rolling back
                        connection.execute("ROLLBACK")
                raise
            return result

        return self._attempt(run, doing)

    def _attempt(self, run: Callable[[sqlite3.Connection], _T], doing: str) -> _T:
        """Run something on the connection, again while other processes hold the file; make errors one line."""
        deadline = time.monotonic() + self._timeout_s
        with self._lock:
            while True:
                try:
                    return run(self._connected())
                except sqlite3.Error as error:
                    if _code(error) not in (_BUSY, _LOCKED) or time.monotonic() > deadline:
                        raise self._explained(error, doing) from error
                    time.sleep(random.uniform(0.005, 0.05))

    def _connected(self) -> sqlite3.Connection:
        """Return the connection, a new one in a forked process."""
        if self._connection is None:
            raise RecordError(f"{self.path}: is closed; open it again with RecordStore({str(self.path)!r})")
        if self._pid != os.getpid():
            _abandoned.append(self._connection)
            self._open()
        return self._connection

    # ---- opening -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._check_place()
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._connection = self._prepared()
                break
            except sqlite3.Error as error:
                # Not every lock of a new file is waited for by SQLite itself (changing to WAL is not).
                if _code(error) not in (_BUSY, _LOCKED) or time.monotonic() > deadline:
                    raise self._explained(error, "it cannot be opened") from error
                time.sleep(random.uniform(0.005, 0.05))
        self._pid = os.getpid()
        self._identity = self._on_disk()

    def _check_place(self) -> None:
        """Raise RecordError where SQLite's own words would say too little."""
        try:
            mode = self._file.stat().st_mode
        except FileNotFoundError:
            if self.read_only:
                raise RecordError(
                    f"{self.path}: no such file, expected a record file; "
                    f"`anatune tune --records {self.path}` makes one, --records names another"
                ) from None
            folder = self._file.parent
            if not folder.is_dir():
                problem = "is no folder" if folder.exists() else "does not exist"
                raise RecordError(
                    f"{self.path}: the record file cannot be made, {folder} {problem}; make it or name another place"
                ) from None
            return
        except OSError as error:
            raise RecordError(
                f"{self.path}: {reason(error)}, expected a record file or a place for one; name another place"
            ) from error
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise RecordError(f"{self.path}: is {kind}, expected a record file; name a file, as tuning.sqlite")

    def _prepared(self) -> sqlite3.Connection:
        """Return a connection to the file after checking that it is ours and whole; make the tables of a new one."""
        connection = self._connect(f"mode={'rw' if self.read_only else 'rwc'}")
        try:
            try:
                fresh = self._check_owner(connection)
            except sqlite3.OperationalError as error:
                if not (self.read_only and _code(error) in (_CANTOPEN, _READONLY, _IOERR) and self._log_is_empty()):
                    raise
                # Reading a WAL file makes small files beside it; in a read-only folder there is nothing to share with.
                connection.close()
                connection = self._connect("mode=ro&immutable=1")
                fresh = self._check_owner(connection)
            if self.read_only:
                if fresh:
                    raise RecordError(
                        f"{self.path}: is empty, expected a record file; `anatune tune --records {self.path}` fills it"
                    )
                connection.execute("PRAGMA query_only=ON")
            else:
                self._make(connection, fresh)
            if not fresh and self._file.stat().st_size <= _CHECKED_BYTES:
                verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise RecordError(f"{self.path}: is damaged ({' '.join(verdict.split())}); {_SALVAGE}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self._file))}?{mode}",
            uri=True,
            timeout=self._timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        # Damaged text must reach the digests, which name its row, instead of ending a whole query.
        connection.text_factory = lambda text: text.decode(errors="replace")
        return connection

    def _log_is_empty(self) -> bool:
        log = Path(f"{self._file}-wal")
        return not log.exists() or log.stat().st_size == 0

    def _check_owner(self, connection: sqlite3.Connection) -> bool:
        """Return whether the file is new; raise RecordError if it is not a record file of this version."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if not (application or version or tables):
            return True
        if application != APPLICATION_ID:
            shown = ", ".join(tables[:3]) or "none"
            raise RecordError(
                f"{self.path}: is an SQLite file of another program (tables: {shown}), expected anatune's records; "
                "name another file"
            )
        if version > SCHEMA_VERSION:
            raise RecordError(
                f"{self.path}: has schema version {version}, this anatune knows versions up to {SCHEMA_VERSION}; "
                "update anatune or name another file"
            )
        if version < 1 or not {"parts", "sessions", "trials"} <= set(tables):
            raise RecordError(
                f"{self.path}: is damaged (schema version {version}, tables: {', '.join(tables) or 'none'}); {_SALVAGE}"
            )
        return False

    def _make(self, connection: sqlite3.Connection, fresh: bool) -> None:
        """Set how the file is written, and make the tables of a new one in one transaction."""
        # Where shared memory is missing (some network file systems) SQLite keeps its rollback journal: slower, as safe.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        if not fresh:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            if self._check_owner(connection):  # another process may have been first
                for statement in CREATE:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise

    # ---- errors --------------------------------------------------------------------------------------------

    def _on_disk(self) -> tuple[int, int] | None:
        """Return which file the path names now, None if none."""
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_identity(self, doing: str) -> None:
        """Raise RecordError if the file was removed or replaced: what is written now would vanish."""
        if self._on_disk() != self._identity:
            raise RecordError(
                f"{self.path}: was removed or replaced while in use, {doing}; put the file back, or open it anew"
            )

    def _explained(self, error: sqlite3.Error, doing: str) -> RecordError:
        """Return an error of SQLite as one line: the file, what happened, what to do."""
        code, kept = _code(error), "everything recorded before is kept"
        name = getattr(error, "sqlite_errorname", "") or str(error)
        if code == _FULL:
            return RecordError(f"{self.path}: the disk is full ({self._free()}), {doing}; {kept}: free space and go on")
        if code == _IOERR:
            return RecordError(
                f"{self.path}: the system refused to read or write ({name}, {self._free()}), {doing}; {kept}: check "
                "the disk, its quota and `ulimit -f`"
            )
        if code in (_READONLY, _CANTOPEN):
            return RecordError(
                f"{self.path}: the file or its folder cannot be written ({error!s}), {doing}; "
                "change its permissions or name another place"
            )
        if code == _NOTADB:
            return RecordError(
                f"{self.path}: is no SQLite file or its beginning is damaged, {doing}; name another file"
            )
        if code == _CORRUPT:
            return RecordError(f"{self.path}: is damaged ({error!s}), {doing}; {_SALVAGE}")
        if code in (_BUSY, _LOCKED):
            return RecordError(
                f"{self.path}: another process has held the file for {self._timeout_s:g} s, {doing}; "
                "end that process or wait for it"
            )
        return RecordError(f"{self.path}: {error!s} ({name}), {doing}; {kept}")

    def _free(self) -> str:
        """Return how much space is left where the file lies."""
        try:
            free = shutil.disk_usage(self._file.parent).free
        except OSError:
            return "free space unknown"
        return f"{free // 1024:,} KiB free"
