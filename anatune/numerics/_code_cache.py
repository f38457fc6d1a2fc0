"""The cache of compiled code on disk. A damaged file is detected, compiled again, and reported once.

numba trusts its files: a truncated index raises EOFError in every command, and damaged machine code is run. Here every
file ends with a digest of its content, its folder and its name. The folder and the name say for what the code was
compiled. A file whose digest does not match is removed and compiled again. If the folder cannot be written, its files
are still read, and all else is compiled in every process.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from numba.core import caching
from numba.core.dispatcher import Dispatcher

from anatune.files import reason

TEMPLATES = "anatune.templates."
"""Package of the compiled functions; each template has them in its folder ``times``."""

_log = logging.getLogger(__name__)
_DIGEST_BYTES = hashlib.sha256().digest_size


def keep_code(dispatcher: Dispatcher, function: Callable[..., object], folder: Path) -> None:
    """Make a compiled function keep its code in a folder.

    Parameters
    ----------
    dispatcher
        The object that ``numba.njit`` returned.
    function : callable
        The function that was compiled.
    folder : Path
        The folder, which is created when it is first written. Its name has to change with all that the code depends on.
    """
    dispatcher._cache = _CodeCache(function, folder)  # type: ignore[attr-defined]


@cache
def _say_once(text: str, folder: str) -> None:
    _log.warning(text, folder)


def _say_damaged(path: str) -> None:
    _say_once("compiled code in %s was damaged; it is compiled again", os.path.dirname(path))


class _Locator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):  # type: ignore[misc]
    """The folder of the code, whether it can be written or not; numba's own locators choose another one then."""

    def __init__(self, function: Callable[..., object], folder: Path) -> None:
        self._py_file, self._lineno, self._folder = (
            function.__code__.co_filename,
            function.__code__.co_firstlineno,
            folder,
        )

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name  # a digest of all sources


class _Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """The name under which a compiled function is stored."""

    def __init__(self, function: Callable[..., object], folder: Path) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function, folder)
        module = function.__module__.removeprefix(TEMPLATES)  # two templates can have modules of the same name
        name = f"{module}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, "")


class _CodeFile(caching.IndexDataCacheFile):  # type: ignore[misc]
    """Index and data files of numba, with a digest at their end (pickle ignores what follows its value)."""

    def save(self, key: object, data: object) -> None:
        """Write code under a name that follows from its key.

        With consecutive numbers, two processes could choose the same name.
        """
        name = self._data_name(int(hashlib.sha256(repr(key).encode()).hexdigest()[:16], 16))
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})

    def _load_index(self) -> dict[object, str]:
        return dict(super()._load_index()) if _is_whole(self._index_path) else {}

    def _load_data(self, name: str) -> object:
        path = self._data_path(name)
        if not _is_whole(path):
            raise OSError(f"{path} is missing or damaged")  # `load` treats both as a missing file
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[IO[bytes]]:
        with super()._open_for_write(filepath) as stream:
            yield stream
            stream.flush()
            stream.write(_digest(filepath, Path(stream.name).read_bytes()))


def _digest(path: str, payload: bytes) -> bytes:
    """Return a digest of content and file name, so that code of another function or of older sources is not run."""
    return hashlib.sha256("\0".join((*Path(path).parts[-2:], "")).encode() + payload).digest()


def _is_whole(path: str) -> bool:
    """Return whether a file exists and is undamaged; remove a damaged one."""
    try:
        content = Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        content = b""
    payload, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if _digest(path, payload) == digest:
        return True
    _say_damaged(path)
    with suppress(OSError):
        os.unlink(path)
    return False


class _CodeCache(caching.FunctionCache):  # type: ignore[misc]
    """The compiled code of one function, in the interface that numba calls."""

    def __init__(self, function: Callable[..., object], folder: Path) -> None:
        self._name, self._py_func = repr(function), function
        self._impl = _Implementation(function, folder)
        self._cache_path = str(folder)
        self._cache_file = _CodeFile(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())
        self.enable()

    def save_overload(self, sig: object, data: object) -> None:
        """Store code. If that fails (full disk, read-only folder), warn and use the code in this process only."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            self.disable()
            text = f"compiled code cannot be saved in %s ({reason(error)}): every run compiles it; set NUMBA_CACHE_DIR"
            _say_once(text, self._cache_path)
