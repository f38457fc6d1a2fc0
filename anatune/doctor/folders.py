"""Checks of the folders that anatune reads and writes: its data, compiled models, the user's specs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from anatune.doctor.findings import Finding, Level
from anatune.resources import data_folder, user_cache_folder, user_config_folder

_SECTION = "Folders"


def folder_findings() -> Iterator[Finding]:
    """Yield findings about the packaged data, the cache folder and the configuration folder."""
    for name in ("hwspecs", "models"):
        try:
            data_folder(name)
        except FileNotFoundError as error:
            level: Level = "error" if name == "hwspecs" else "broken"
            fix = "install anatune again: pip install --force-reinstall --no-deps . in its clone"
            yield Finding(_SECTION, level, "packaged data", str(error).partition(";")[0], "everything", fix)
    yield _compiled_code()
    yield _configuration()


def _compiled_code() -> Finding:
    """Return the finding about the cache of compiled code, without which each run compiles models for 5 to 20 s."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(given) if given else user_cache_folder()
    fix = "set NUMBA_CACHE_DIR to a folder that can be written"
    if folder is None:
        text = "there is no home folder, so the analytical models are compiled (5 to 20 s) in every run"
        return Finding(_SECTION, "warning", "compiled code", text, "plan, tune", fix)
    if reason := _unwritable(folder):
        text = f"{folder} cannot be written ({reason}), so the analytical models are compiled (5 to 20 s) in every run"
        return Finding(_SECTION, "warning", "compiled code", text, "plan, tune", fix)
    kept = any(folder.glob("numerics-*/*.code"))
    text = f"cached in {folder}" if kept else f"none yet in {folder}; the first plan compiles its model (5 to 20 s)"
    return Finding(_SECTION, "ok", "compiled code", text)


def _configuration() -> Finding:
    """Return the finding about the user's specs and their folder."""
    folder = user_config_folder()
    fix = "set XDG_CONFIG_HOME to a folder that can be written"
    serves = "hw detect, hw calibrate"
    if folder is None:
        return Finding(_SECTION, "warning", "your specs", "there is no home folder to keep them in", serves, fix)
    folder = folder / "hwspecs"
    if reason := _unwritable(folder):
        return Finding(_SECTION, "warning", "your specs", f"{folder} cannot be written ({reason})", serves, fix)
    spec_names = sorted(path.stem for path in folder.glob("*.toml"))
    if "host" not in spec_names:
        text = f"{', '.join(spec_names)} in {folder}, but none of this machine" if spec_names else f"none in {folder}"
        fix = "anatune hw detect, then anatune hw calibrate"
        return Finding(_SECTION, "note", "your specs", text, "--hw host", fix)
    return Finding(_SECTION, "ok", "your specs", f"{', '.join(spec_names)} in {folder}")


def _unwritable(folder: Path) -> str:
    """Return why a folder, which need not exist yet, cannot be written; "" if it can be."""
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            return ""
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
