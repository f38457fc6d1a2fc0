"""What every bench does with its results: what they depend on, one JSON file, tables wide enough to be read."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import anatune

__all__ = ["environment", "matches", "number_text", "progress_bar", "wide_console", "write_json"]

_PACKAGES = ("numpy", "numba", "pandas", "msgspec")


def environment(**settings: Any) -> dict[str, Any]:
    """Return what a result depends on: commit, versions, machine, and the settings given."""
    versions = {"anatune": anatune.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "commit": _git("rev-parse", "HEAD") or None,
        "changed_files": len(_git("status", "--porcelain").splitlines()),
        "versions": versions,
        "machine": platform.machine(),
        "system": platform.platform(),
        **settings,
    }


def _git(*arguments: str) -> str:
    """Return what git says of this folder; nothing where there is no git or no repository."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _jsonable(value: Any) -> Any:
    """Turn dataclasses into dictionaries and NaN or inf into null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as one JSON object; dataclasses become objects, NaN and inf become null."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_jsonable(content)), indent=1) + b"\n")


def matches(text: str, patterns: Sequence[str] | None) -> bool:
    """Return whether a name fits one of some patterns or beginnings; every name does where there are none."""
    return not patterns or any(fnmatch.fnmatch(text, pattern) or text.startswith(pattern) for pattern in patterns)


def number_text(value: float, form: str = "{:.3f}") -> str:
    """Return a number as a cell of a table, "-" for NaN."""
    return "-" if math.isnan(value) else form.format(value)


def wide_console(width: int) -> Console:
    """Return a console of at least so many columns: narrower tables would lose their numbers."""
    console = Console()
    return console if console.width >= width else Console(width=width)


def progress_bar() -> Progress:
    """Return a bar on standard error: what is done, how many of how many, since when."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))
