"""Finds the data that travels with the package (``hwspecs/``, ``models/``), and the user's own folder for caches.

A wheel holds the data under ``anatune/_data``; a checkout (also an editable install) at the repository root.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["data_folder", "user_cache_folder"]

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """Return the folder of packaged data called `name`.

    Parameters
    ----------
    name : str
        "hwspecs" or "models".

    Raises
    ------
    FileNotFoundError
        The installation is damaged: neither place holds the folder.
    """
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"anatune's data folder {name!r} is missing beside {_PACKAGE}; reinstall the package")


def user_cache_folder() -> Path | None:
    """Return the user's folder for what can be made again, below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    None where the system knows no home: then nothing is kept.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "anatune"
    except RuntimeError:
        return None
