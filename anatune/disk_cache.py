"""A folder of what can be made again, by the hash of what it was made from.

One file an entry: a digest of key and content, then the content. Files appear whole (they are renamed into their
place), so many processes may use one folder; an entry that is damaged, or another key's, is as good as none. The folder
is kept below a size by removing what was used longest ago.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from anatune.files import open_file, replace_file

_KEPT_SHARE = 0.8
"""Share of the limit that is left after a cleaning, so that not every entry has to clean."""
_CLEANED_EVERY = 256
"""Entries of one process between two looks at the folder's size; the first one looks."""
_DIGEST_BYTES = 32
_FORMAT = "anatune 2"
"""In each digest: what older and newer versions wrote otherwise is none."""

_DISTRIBUTIONS = {"tvm": "apache-tvm", "tvm_ffi": "apache-tvm-ffi"}
"""Package -> what it is installed as, where that differs."""


@functools.cache
def sources_of(*folders: str) -> str:
    """Return a digest of the package's own sources in some of its folders; none named: of all.

    Raises
    ------
    FileNotFoundError
        There is no such folder: a digest of nothing would never change.
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
    """Return what changes when one of some packages does: versions, and when their libraries were written.

    Parameters
    ----------
    packages
        Names to import them by; those that are not there count, too.
    """
    words = []
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            words.append(f"{name} {metadata.version(_DISTRIBUTIONS.get(name, name))}")
        spec = find_spec(name)
        for place in () if spec is None else spec.submodule_search_locations or ():
            for file in sorted([*Path(place).glob("__init__.py"), *Path(place).glob("lib/*.so")]):
                status = file.stat()
                words.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(words)


class DiskCache:
    """A folder of entries; safe for many processes and threads.

    A folder that cannot be read or written to means that nothing is kept, not an error; so does ANATUNE_CACHE=off in
    the environment.

    Parameters
    ----------
    folder : Path or None
        Made when first needed; None keeps nothing.
    suffix : str
        Of the files' names.
    most_bytes : int
        Size that it is kept below.
    """

    def __init__(self, folder: Path | None, suffix: str, most_bytes: int) -> None:
        is_off = os.environ.get("ANATUNE_CACHE", "").lower() == "off"
        self.folder, self.most_bytes = None if is_off else folder, most_bytes
        self._suffix, self._stored = suffix, 0

    def _path(self, folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}{self._suffix}"

    def _digest(self, key: str, parts: Iterable[bytes | memoryview]) -> bytes:
        """Return what binds content to its key: the file of another entry is none of this one."""
        digest = hashlib.sha256("\0".join((_FORMAT, self._suffix, key, "")).encode())
        for part in parts:
            digest.update(part)
        return digest.digest()

    def read(self, key: str) -> bytes | None:
        """Return what was written under `key`, a hash in hexadecimal digits; None if that is not there as it was."""
        content = self.mapped(key)
        return None if content is None else bytes(content)

    def mapped(self, key: str) -> memoryview | None:
        """Return the same without reading it into memory: the file's pages, which stay when the entry is removed."""
        if self.folder is None:
            return None
        path = self._path(self.folder, key)
        try:
            with open_file(path, self.most_bytes + _DIGEST_BYTES) as stream:  # never waits for a pipe
                content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
        except (OSError, ValueError):  # an empty file cannot be mapped
            return None
        payload = content[_DIGEST_BYTES:]
        if content[:_DIGEST_BYTES] != self._digest(key, (payload,)):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return payload

    def write(self, key: str, *parts: bytes | memoryview) -> None:
        """Keep content, in one part or several, under `key`; now and then remove the oldest entries."""
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
        """Remove what was used longest ago if the folder is too large; also what killed processes left behind."""
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
