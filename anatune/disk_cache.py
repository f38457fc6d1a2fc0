"""A folder of what can be made again, by the hash of what it was made from.

One file an entry: a digest, then the content. Files appear whole (they are renamed into their place), so many processes
may use one folder; an entry that is damaged all the same is as good as none. The folder is kept below a size by
removing what was used longest ago.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from anatune.files import replace_file

__all__ = ["DiskCache"]

_KEPT_SHARE = 0.8
"""Share of the limit that is left after a cleaning, so that not every entry has to clean."""
_CLEANED_EVERY = 256
"""Entries of one process between two looks at the folder's size; the first one looks."""
_DIGEST_BYTES = 32


class DiskCache:
    """A folder of entries; safe for many processes and threads.

    A folder that cannot be read or written to means that nothing is kept, not an error.

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
        self.folder, self.most_bytes = folder, most_bytes
        self._suffix, self._stored = suffix, 0

    def _path(self, folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}{self._suffix}"

    def read(self, key: str) -> bytes | None:
        """Return what was written under `key`, a hash in hexadecimal digits; None if that is nothing or damaged."""
        if self.folder is None:
            return None
        path = self._path(self.folder, key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return payload

    def write(self, key: str, payload: bytes) -> None:
        """Keep content under `key`; now and then remove the oldest entries."""
        if self.folder is None:
            return
        path = self._path(self.folder, key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, (hashlib.sha256(payload).digest(), payload))
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
