"""The place of records: a file, or a PostgreSQL server by its URL, whose password is never shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote

from anatune.arguments import check_path
from anatune.errors import RecordError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,2}(?=[^/]|/|$)")
_SERVERS = {"postgres", "postgresql", "postgresql+psycopg"}
"""Schemes of a PostgreSQL server's URL: libpq's two and SQLAlchemy's."""
_SHOWN = ("host", "hostaddr", "port", "dbname", "user", "service")
"""Parameters of the URL that are shown; others, which may hold passwords, are not."""
_USAGE = "expected postgresql://USER@HOST:PORT/DATABASE"
_PERCENT = "write special characters as %40 (@), %2F (/), %3F (?), or put the password into PGPASSWORD or ~/.pgpass"


class ServerAddress:
    """The address of a PostgreSQL database; its text is the address without any password.

    Parameters
    ----------
    url : str
        ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE``. Missing parts come from the environment
        variables of libpq (PGHOST, PGPASSWORD ...), a service file (PGSERVICE, ``?service=``) or ``~/.pgpass``.

    Raises
    ------
    RecordError
        The URL cannot be read. The message does not repeat it, because it may hold a password.
    """

    __slots__ = ("_shown", "_url")

    def __init__(self, url: str) -> None:
        rest = _URL.sub("", url, count=1)
        ends = re.search(r"[/?]", rest)
        authority = rest[: ends.start()] if ends else rest
        after = rest[len(authority) :]
        if authority.count("@") > 1 or "@" in after or not url.isprintable() or " " in url:
            raise RecordError(
                f"the URL of the records cannot be read (not shown here, it may hold a password), {_USAGE}; {_PERCENT}"
            )
        login, _, hosts = authority.rpartition("@")
        ports = [part.rpartition("]")[2].partition(":")[2] for part in hosts.split(",")]
        if not all(port == "" or port.isdigit() for port in ports):
            raise RecordError(
                f"the port in the URL of the records is no number (not shown here, it may hold a password), {_USAGE}; "
                f"{_PERCENT}"
            )
        path, _, query = after.partition("?")
        user = login.partition(":")[0]
        parameters = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name in _SHOWN]
        shown = f"postgresql://{user}{'@' if user else ''}{hosts}{path}"
        self._shown = shown + ("?" + "&".join(f"{name}={value}" for name, value in parameters) if parameters else "")
        self._url = f"postgresql://{rest}"

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"ServerAddress({self._shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerAddress) and self._url == other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __reduce__(self) -> tuple[object, ...]:
        return ServerAddress, (self._url,)  # to processes of the same session

    def reveal(self) -> str:
        """Return the URL with its password, for the call that connects."""
        return self._url

    def hide_secrets(self, text: str) -> str:
        """Return a message of the server or of libpq without the passwords in the URL."""
        login, _, _ = self._url.partition("://")[2].rpartition("@")
        query = parse_qsl(self._url.partition("?")[2])
        secrets = [login.partition(":")[2], *(value for name, value in query if "password" in name)]
        for secret in secrets:
            for form in {secret, unquote(secret)} - {""}:
                text = text.replace(form, "***")
        return text


RecordPlace: TypeAlias = Path | ServerAddress
"""A record file or server."""


def record_place(location: str | os.PathLike[str] | ServerAddress) -> RecordPlace:
    """Return the path of a record file, or the address of a PostgreSQL server.

    Raises
    ------
    RecordError
        The argument is no path, a name with another meaning in SQLite, or a URL of another kind.
    """
    if isinstance(location, ServerAddress):
        return location
    text = str(location) if isinstance(location, (str, os.PathLike)) else ""
    url = _URL.match(text)
    if url is not None and url[1].lower() in _SERVERS:
        if "://" not in text:
            raise RecordError("the URL of the records has one slash, because it was made a Path; pass it as a string")
        return ServerAddress(text)
    if url is not None and "://" in text[: url.end() + 1]:
        raise RecordError(
            f"the records cannot be on a server of {url[1]}, expected a file such as tuning.sqlite, or a PostgreSQL "
            "server: postgresql://USER@HOST/DATABASE"
        )
    path = check_path("the record file", location, RecordError)
    text = str(path)
    if text == ":memory:" or text.startswith("file:"):
        raise RecordError(
            f"{text}: is a special name of SQLite, expected a record file such as tuning.sqlite; to keep nothing, "
            "leave records out"
        )
    return path


def is_missing(location: str | os.PathLike[str] | ServerAddress) -> bool:
    """Return whether a place is a missing file that can be made; if it cannot, opening it raises an error."""
    location = record_place(location)
    return isinstance(location, Path) and not location.exists() and os.access(location.absolute().parent, os.W_OK)
