"""A cache on disk for data that can be computed again, found by a hash of what it was computed from.

An entry is one file: a digest of key and content, then the content. Files are written elsewhere and renamed, so that
several processes can share a folder. A damaged entry, or one whose digest belongs to another key, is ignored. The
oldest entries are removed when the folder grows beyond a size.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from anatune.files import read_file, replace_file

_KEPT_SHARE = 0.8
"""Share of the size limit that remains after a cleaning, so that not every new entry triggers one."""
_CLEANED_EVERY = 256
"""Number of entries that a process writes between two checks of the folder's size; the first entry checks, too."""
_DIGEST_BYTES = 32
_FORMAT = "anatune 2"
"""Part of every digest: entries of other versions of this format are ignored."""

_DISTRIBUTIONS = {"tvm": "apache-tvm", "tvm_ffi": "apache-tvm-ffi"}
"""Package -> name of its distribution, where the two differ."""


@functools.cache
def sources_of(*folders: str) -> str:
    """Return a digest of anatune's own source files in `folders`, by default in all of its folders.

    Raises
    ------
    FileNotFoundError
        A folder does not exist: the digest would never change.
    """
    root, digest = Path(__file__).parent, hashlib.sha256()
    for folder in folders or (".",):
        if not (root / folder).is_dir():
            raise FileNotFoundError(f"{root / folder} is no folder of anatune, whose sources a digest needs")
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def versions_of(*packages: str) -> str:
    """Return a text that changes when one of some packages changes: versions, sizes and dates of their libraries.

    Parameters
    ----------
    packages
        Import names; packages that are not installed count, too.
    """
    words = []
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            words.append(f"{name} {metadata.version(_DISTRIBUTIONS.get(name, name))}")
        spec = find_spec(name)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            for file in sorted([*Path(folder).glob("__init__.py"), *Path(folder).glob("lib/*.so")]):
                status = file.stat()
                words.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(words)


class DiskCache:
    """A folder of cache entries; safe for several processes and threads.

    If the folder cannot be read or written, nothing is cached and no error is raised; the environment variable
    ANATUNE_CACHE=off has the same effect.

    Parameters
    ----------
    folder : Path or None
        Created when it is first needed; None disables the cache.
    suffix : str
        Ending of the files' names.
    most_bytes : int
        Largest size of the folder, bytes.
    """

    def __init__(self, folder: Path | None, suffix: str, most_bytes: int) -> None:
        is_off = os.environ.get("ANATUNE_CACHE", "").lower() == "off"
        self.folder, self.most_bytes = None if is_off else folder, most_bytes
        self._suffix, self._stored = suffix, 0

    def _path(self, folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}{self._suffix}"

    def _digest(self, key: str, parts: Iterable[bytes | memoryview]) -> bytes:
        """Return a digest of key and content, which tells an entry from those of other keys."""
        digest = hashlib.sha256("\0".join((_FORMAT, self._suffix, key, "")).encode())
        for part in parts:
            digest.update(part)
        return digest.digest()

    def read(self, key: str) -> bytes | None:
        """Return the content stored under `key` (hexadecimal digits), or None if there is none or it is damaged."""
        if self.folder is None:
            return None
        path = self._path(self.folder, key)
        try:
            content = read_file(path, self.most_bytes + _DIGEST_BYTES)  # does not block if it is a pipe
        except OSError:
            return None
        payload = content[_DIGEST_BYTES:]
        if content[:_DIGEST_BYTES] != self._digest(key, (payload,)):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # marks it as used now
        return payload

    def write(self, key: str, *parts: bytes | memoryview) -> None:
        """Store content, in one part or several, under `key`; every `_CLEANED_EVERY` entries remove the oldest ones."""
        if self.folder is None or sum(len(part) for part in parts) > self.most_bytes:
            return
        path = self._path(self.folder, key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, (self._digest(key, parts), *parts))
        if self._stored % _CLEANED_EVERY == 0:
            self.clean()
        self._stored += 1

    def clean(self) -> None:
        """Remove the least recently used entries, and what killed processes left, if the folder is too large."""
        files: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("*/*") if self.folder is not None else ():
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        if total <= self.most_bytes:
            return
        for _, size, path in sorted(files):
            if total <= _KEPT_SHARE * self.most_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
