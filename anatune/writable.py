"""Whether a folder can be written to: told by trying."""

from __future__ import annotations

import contextlib
import os


def can_write(folder: str | os.PathLike[str]) -> bool:
    """Whether a file can be made in a folder; `os.access` says to root that it can, also of /proc."""
    import tempfile

    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder):
        return True
    return False
