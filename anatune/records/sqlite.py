"""Records in an SQLite file: opening and checking it, and explaining its errors in one line.

Durability: WAL with synchronous=FULL. An acknowledged transaction survives kill -9 with either setting of synchronous.
FULL waits for the disk at each commit, so that it also survives a crash of the system. That costs 0.3 ms for each trial
(NORMAL: 0.04 ms; 4 KB rows, the disk of one virtual machine, 2026-11), and a trial takes 100 ms or more. An incomplete
transaction is lost: SQLite's checksums end the log before it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from anatune.errors import RecordError
from anatune.files import reason
from anatune.records.database import KEPT, Database
from anatune.records.schema import APPLICATION_ID, SCHEMA_VERSION
from anatune.records.tables import create_tables

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
"""Largest size of a file that is checked completely when it is opened (at most 10 ms per MB)."""
_SALVAGE = "keep a copy and its -wal file; `sqlite3 FILE .recover | sqlite3 NEW_FILE` saves what can be read"

_HELD = "another process has held the file for {waited_s:g} s, {doing}; end that process or wait for it"
_REFUSED = "the file or its folder cannot be written ({said}), {doing}; change its permissions or name another file"
_EXPLAINED = {
    _FULL: "the disk is full ({free}), {doing}; {kept}: free some space and continue",
    _IOERR: "the system refused to read or write ({name}, {free}), {doing}; {kept}: check the disk, its quota and "
    "`ulimit -f`",
    _READONLY: _REFUSED,
    _CANTOPEN: _REFUSED,
    _NOTADB: "is no SQLite file or its beginning is damaged, {doing}; name another file",
    _CORRUPT: "is damaged ({said}), {doing}; " + _SALVAGE,
    _BUSY: _HELD,
    _LOCKED: _HELD,
}
"""SQLite result code -> message."""


def _code(error: BaseException | None) -> int:
    """Return SQLite's primary result code of an error; 0 if there is none."""
    code = getattr(error, "sqlite_errorcode", None)
    return _TEXTS.get(str(error), 0) if code is None else int(code) & 0xFF


class SqliteDatabase(Database):
    """A record file; made if it is missing or empty, unless `read_only`."""

    dialect = "sqlite+pysqlite"

    def __init__(self, place: Path, *, read_only: bool = False, timeout_s: float = 30.0) -> None:
        self._file = Path(os.path.abspath(place))
        self._identity: tuple[int, int] | None = None
        super().__init__(place, read_only=read_only, timeout_s=timeout_s)

    # ---- opening -------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        self._check_place()
        connection = self._open_file(f"file:{quote(str(self._file))}?mode={'rw' if self.read_only else 'rwc'}")
        try:
            if self.read_only:
                try:
                    connection.execute("PRAGMA user_version").fetchone()
                except sqlite3.OperationalError as error:
                    if not (_code(error) in (_CANTOPEN, _READONLY, _IOERR) and self._log_is_empty()):
                        raise
                    # Reading a WAL file makes small files next to it, which is not possible in a read-only folder.
                    connection.close()
                    connection = self._open_file(f"file:{quote(str(self._file))}?mode=ro&immutable=1")
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_file(self, name: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            name, uri=True, timeout=self._timeout_s, isolation_level=None, check_same_thread=False
        )
        # Do not fail on damaged text: the digests detect it and name its row.
        connection.text_factory = lambda text: text.decode(errors="replace")
        return connection

    def _check_place(self) -> None:
        """Raise RecordError for paths about which SQLite's own messages would be unclear."""
        try:
            mode = self._file.stat().st_mode
        except FileNotFoundError:
            if self.read_only:
                raise RecordError(
                    f"{self.place}: no such file, expected a record file; `anatune tune --records {self.place}` makes "
                    "it, or name another file with --records"
                ) from None
            folder = self._file.parent
            if not folder.is_dir():
                problem = "is not a folder" if folder.exists() else "does not exist"
                raise RecordError(
                    f"{self.place}: the record file cannot be made, {folder} {problem}; make this folder or name "
                    "another file"
                ) from None
            return
        except OSError as error:
            raise RecordError(
                f"{self.place}: {reason(error)}, expected a record file or a path where it can be made; name another "
                "file"
            ) from error
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise RecordError(f"{self.place}: is {kind}, expected a record file; name a file such as tuning.sqlite")

    def _prepare(self, connection: Connection) -> Connection:
        try:
            version = self._read_version(connection)
        except UnicodeDecodeError:  # sqlite3 decodes SQLite's message about a damaged schema
            raise RecordError(f"{self.place}: is damaged (its schema is no text); {_SALVAGE}") from None
        if self.read_only and version == 0:
            raise RecordError(
                f"{self.place}: is empty, expected a record file; `anatune tune --records {self.place}` writes records "
                "to it"
            )
        if version and self._file.stat().st_size <= _CHECKED_BYTES:
            verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
            if verdict != "ok":
                raise RecordError(f"{self.place}: is damaged ({' '.join(verdict.split())}); {_SALVAGE}")
        if not self.read_only:
            # Without shared memory (some network file systems) SQLite keeps its rollback journal, which is slower.
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            connection.exec_driver_sql("PRAGMA synchronous=FULL")
            if version == 0:
                self._make(connection)
        connection.exec_driver_sql(f"PRAGMA {'query_only' if self.read_only else 'foreign_keys'}=ON")
        connection.commit()
        self._identity = self._on_disk()
        return connection

    def _read_version(self, connection: Connection) -> int:
        """Return the file's schema version, 0 for a new file; raise RecordError if it is no record file."""
        application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
        version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
        names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = list(names.scalars())
        if not (application or version or tables):
            return 0
        if application != APPLICATION_ID:
            shown = ", ".join(tables[:3]) or "none"
            raise RecordError(
                f"{self.place}: is an SQLite file of another program (tables: {shown}), expected a record file of "
                "anatune; name another file"
            )
        if version > 0 and version != SCHEMA_VERSION:
            raise self._other_version(version)
        if version < 1 or not {"parts", "sessions", "trials"} <= set(tables):
            raise RecordError(
                f"{self.place}: is damaged (schema version {version}, tables: {', '.join(tables) or 'none'}); "
                f"{_SALVAGE}"
            )
        return version

    def _make(self, connection: Connection) -> None:
        """Make the tables of a new file, in one transaction."""
        connection.commit()
        with connection.begin():
            self._begin_writing(connection)
            if self._read_version(connection):  # another process was first
                return
            create_tables(connection)
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _log_is_empty(self) -> bool:
        log = Path(f"{self._file}-wal")
        return not log.exists() or log.stat().st_size == 0

    # ---- writing and errors --------------------------------------------------------------------------------

    def _begin_writing(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _on_disk(self) -> tuple[int, int] | None:
        """Return the identity of the file at the path now; None if there is none."""
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _check_before_writing(self, doing: str) -> None:
        if self._on_disk() != self._identity:
            raise RecordError(
                f"{self.place}: was removed or replaced while in use, {doing}; restore the file, or open it again"
            )

    def _can_pass(self, error: DBAPIError) -> bool:
        # SQLite itself does not wait for every lock of a new file (not when it changes to WAL).
        return _code(error.orig) in (_BUSY, _LOCKED)

    def _explain(self, error: DBAPIError, doing: str) -> RecordError:
        text = _EXPLAINED.get(_code(error.orig), "{said} ({name}), {doing}; {kept}")
        name = getattr(error.orig, "sqlite_errorname", "") or str(error.orig)
        message = text.format(
            said=error.orig, name=name, free=self._free(), waited_s=self._timeout_s, doing=doing, kept=KEPT
        )
        return RecordError(f"{self.place}: {message}")

    def _free(self) -> str:
        """Return the free space on the file's disk as text."""
        try:
            free = shutil.disk_usage(self._file.parent).free
        except OSError:
            return "free space unknown"
        return f"{free // 1024:,} KiB free"
