"""Where records are: a file, or a PostgreSQL server by its URL, whose password nothing here ever shows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote

from anatune.arguments import checked_path
from anatune.errors import RecordError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,2}(?=[^/]|/|$)")
_SERVERS = {"postgres", "postgresql", "postgresql+psycopg"}
"""Schemes of a PostgreSQL server's URL: libpq's two and SQLAlchemy's."""
_SHOWN = ("host", "hostaddr", "port", "dbname", "user", "service")
"""Parameters that say which database is meant; others, passwords among them, are never shown."""
_USAGE = "expected postgresql://USER@HOST:PORT/DATABASE"
_PERCENT = "write special characters as %40 (@), %2F (/), %3F (?), or leave the password to PGPASSWORD or ~/.pgpass"


class ServerAddress:
    """The address of a PostgreSQL database as libpq takes it; its text is the address without any password.

    Parameters
    ----------
    url : str
        ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE``: whatever is left out comes from libpq's
        environment variables (PGHOST, PGPASSWORD ...), a service file (PGSERVICE, ``?service=``) or ``~/.pgpass``.

    Raises
    ------
    RecordError
        It is none. The message does not repeat it: what cannot be read may hold a password.
    """

    __slots__ = ("_shown", "_url")

    def __init__(self, url: str) -> None:
        rest = _URL.sub("", url, count=1)
        ends = re.search(r"[/?]", rest)
        authority = rest[: ends.start()] if ends else rest
        after = rest[len(authority) :]
        if authority.count("@") > 1 or "@" in after or not url.isprintable() or " " in url:
            raise RecordError(f"the URL of the records cannot be read (it is not repeated here), {_USAGE}; {_PERCENT}")
        login, _, hosts = authority.rpartition("@")
        ports = [part.rpartition("]")[2].partition(":")[2] for part in hosts.split(",")]
        if not all(port == "" or port.isdigit() for port in ports):
            raise RecordError(
                f"the URL of the records has no number as its port (it is not repeated here), {_USAGE}; {_PERCENT}"
            )
        path, _, query = after.partition("?")
        user = login.partition(":")[0]
        told = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name in _SHOWN]
        shown = f"postgresql://{user}{'@' if user else ''}{hosts}{path}"
        self._shown = shown + ("?" + "&".join(f"{name}={value}" for name, value in told) if told else "")
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
        """Return the URL with what is secret in it, for the one call that connects."""
        return self._url

    def hidden(self, text: str) -> str:
        """Return a text of the server's or of libpq's without the passwords that the URL holds."""
        login, _, _ = self._url.partition("://")[2].rpartition("@")
        query = parse_qsl(self._url.partition("?")[2])
        secrets = [login.partition(":")[2], *(value for name, value in query if "password" in name)]
        for secret in secrets:
            for form in {secret, unquote(secret)} - {""}:
                text = text.replace(form, "***")
        return text


RecordPlace: TypeAlias = Path | ServerAddress
"""Where records are."""


def record_place(place: str | os.PathLike[str] | ServerAddress) -> RecordPlace:
    """Return where records are: the path of a file, or the address of a PostgreSQL server.

    Raises
    ------
    RecordError
        It is neither: no path, a name that means something else to SQLite, a URL of another kind.
    """
    if isinstance(place, ServerAddress):
        return place
    text = str(place) if isinstance(place, (str, os.PathLike)) else ""
    found = _URL.match(text)
    if found is not None and found[1].lower() in _SERVERS:
        if "://" not in text:
            raise RecordError("the place of the records is a URL with one slash, as a Path makes it; give it as text")
        return ServerAddress(text)
    if found is not None and "://" in text[: found.end() + 1]:
        raise RecordError(
            f"the place of the records is a URL of {found[1]}, expected a file, as tuning.sqlite, or a PostgreSQL "
            "server: postgresql://USER@HOST/DATABASE"
        )
    path = checked_path("the record file", place, RecordError)
    text = str(path)
    if text == ":memory:" or text.startswith("file:"):
        raise RecordError(
            f"{text}: is no file but a name of SQLite's, expected a record file, as tuning.sqlite; without records "
            "nothing is kept"
        )
    return path


def is_missing(place: str | os.PathLike[str] | ServerAddress) -> bool:
    """Whether a place is a file that is missing and can be made; where it cannot, opening it at once says why."""
    place = record_place(place)
    return isinstance(place, Path) and not place.exists() and os.access(place.absolute().parent, os.W_OK)
