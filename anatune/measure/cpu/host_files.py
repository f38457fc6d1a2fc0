"""Writing detected and calibrated specs to the user's spec folder, where they are found by name."""

from __future__ import annotations

from pathlib import Path

from anatune.core.hardware.files import spec_to_toml, user_spec_folder
from anatune.core.hardware.spec import HardwareSpec
from anatune.errors import DeviceError
from anatune.files import Output, OutputKind, read_file, reason
from anatune.measure.cpu.detect import detect_cpu

_MARK = "# Written by `anatune hw`, which replaces it; without this line it is yours and is kept."
_KIND = OutputKind("a spec that `anatune hw` wrote", lambda path: read_file(path).startswith(_MARK.encode()))
CALIBRATED = "anatune hw calibrate"
"""The beginning of the source of measured numbers."""


def calibrated_file(spec: HardwareSpec, folder: str | Path | None = None) -> Path | None:
    """Return the file that `write_host_spec` would replace if it holds measured numbers; else None."""
    path = (Path(folder) if folder is not None else user_spec_folder()) / f"{spec.name}.toml"
    try:
        return path if f'source = "{CALIBRATED}' in path.read_text(encoding="utf-8") else None
    except (OSError, UnicodeDecodeError):
        return None


def write_host_spec(folder: str | Path | None = None, spec: HardwareSpec | None = None) -> Path:
    """Write a spec of this machine or of a board to ``NAME.toml``, and return the path of the file.

    The file is written as a whole or not at all, also if several processes write at once. It replaces only a file that
    anatune wrote, never one that a person wrote.

    Parameters
    ----------
    folder
        The folder; `user_spec_folder()` by default. Created if missing.
    spec
        The spec; by default `detect_cpu()`.

    Raises
    ------
    DeviceError
        The CPU cannot be detected, the file cannot be written, or a file that a person wrote is there.
    """
    spec = spec or detect_cpu()
    content = f"{_MARK}\n{spec_to_toml(spec)}".encode()
    target = check_host_spec(spec.name, folder)
    try:
        target.write(content)
    except OSError as error:
        raise DeviceError(f"cannot write {target.path}: {reason(error)}") from None
    return target.path


def check_host_spec(name: str, folder: str | Path | None = None) -> Output:
    """Return the output file of a spec after checking, before a long measurement, that it can be written.

    Raises
    ------
    DeviceError
        The file cannot be written, or a file that a person wrote is there.
    """
    folder = Path(folder) if folder is not None else user_spec_folder()
    path = folder / f"{name}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Output(path, _KIND)
    except OSError as error:
        raise DeviceError(f"cannot write {path}: {reason(error)}") from None
