"""Detected specs are written to the user's spec folder, where their names are found."""

from __future__ import annotations

from pathlib import Path

from anatune.core.hardware.files import spec_to_toml, user_spec_folder
from anatune.core.hardware.spec import HardwareSpec
from anatune.errors import DeviceError
from anatune.files import replace_file
from anatune.measure.cpu.detect import detect_cpu

__all__ = ["calibrated_file", "write_host_spec"]


CALIBRATED = "anatune hw calibrate"
"""How the sources of measured numbers begin."""


def calibrated_file(spec: HardwareSpec, folder: str | Path | None = None) -> Path | None:
    """Return the file that `write_host_spec` would replace if it holds measured numbers."""
    path = _path(spec, Path(folder) if folder is not None else user_spec_folder())
    try:
        return path if f'source = "{CALIBRATED}' in path.read_text(encoding="utf-8") else None
    except (OSError, UnicodeDecodeError):
        return None


def _path(spec: HardwareSpec, folder: Path) -> Path:
    return folder / f"{spec.name}.toml"


def write_host_spec(folder: str | Path | None = None, spec: HardwareSpec | None = None) -> Path:
    """Write a spec of the present machine, or a board, and return the file's path: ``<its name>.toml``, ``host.toml``.

    The file appears whole or not at all, also when several processes write at once; an older one is replaced.

    Parameters
    ----------
    folder
        Where to; `user_spec_folder()` by default. Created if missing.
    spec
        What to write; by default `detect_cpu()`.

    Raises
    ------
    DeviceError
        The CPU cannot be detected, or the file cannot be written.
    """
    folder = Path(folder) if folder is not None else user_spec_folder()
    spec = spec or detect_cpu()
    path = _path(spec, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, spec_to_toml(spec).encode())
    except OSError as error:
        raise DeviceError(f"cannot write {path}: {(error.strerror or 'unknown reason').lower()}") from None
    return path
