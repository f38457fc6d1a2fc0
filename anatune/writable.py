"""A check whether a folder can be written to."""

from __future__ import annotations

import contextlib
import os


def can_write(folder: str | os.PathLike[str]) -> bool:
    """Return whether a file can be created in a folder: `os.access` tells root that it can even in /proc."""
    import tempfile

    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder):
        return True
    return False
