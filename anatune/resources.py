"""Finds the data that travels with the package (``hwspecs/``, ``models/``), and the user's own folders.

A wheel holds the data under ``anatune/_data``; a checkout (also an editable install) at the repository root.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["data_folder", "user_cache_folder", "user_config_folder"]

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
    return _user_folder(os.environ.get("XDG_CACHE_HOME"), ".cache")


def user_config_folder(config_home: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the user's folder of what they wrote or measured, below ``$XDG_CONFIG_HOME`` or ``~/.config``.

    Parameters
    ----------
    config_home : str or path, optional
        Instead of these two. None where the system knows no home, and nobody says another.
    """
    return _user_folder(config_home or os.environ.get("XDG_CONFIG_HOME"), ".config")


def _user_folder(base: str | os.PathLike[str] | None, otherwise: str) -> Path | None:
    try:
        return (Path(base) if base else Path.home() / otherwise) / "anatune"
    except RuntimeError:
        return None
