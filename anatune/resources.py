"""Finds the data that travels with the package: ``hwspecs/`` (later ``models/``).

A wheel holds them under ``anatune/_data``; a checkout (also an editable install) at the repository root.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["data_folder"]

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
