"""What earlier sessions took on this machine: a small file in the user's cache folder, which can go at any time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.decoding import converted
from anatune.files import read_file, replace_file
from anatune.records.environment import environment
from anatune.resources import user_cache_folder

__all__ = ["CostHistory", "default_folder", "machine_key"]

_VERSION = 1
_KEPT = 8
"""Latest costs of a key: what a machine does changes with its load and its software."""
_MOST_KEYS = 64
_MOST_BYTES = 1 << 20

CostT = TypeVar("CostT", bound=msgspec.Struct)


def default_folder() -> Path | None:
    """Return the folder of the histories; None: nothing is kept."""
    return user_cache_folder()


def machine_key(hardware: CpuSpec | GpuSpec, *words: str) -> str:
    """Return what costs are kept by: the processor, its cores that this process may use, the device, and more."""
    here = environment()
    return " | ".join((here.cpu, f"{here.cores} cores", hardware.kind, hardware.model, *words))


class CostHistory(Generic[CostT]):
    """Costs by key in a JSON file: the latest few of each.

    A file that is missing, damaged, of another version or cannot be written is none: nobody is bothered. Two processes
    may write at once, and one of them wins.

    Parameters
    ----------
    name : str
        Of the file.
    cost : type
        Of what is kept.
    folder : Path, optional
        None: nothing is kept.
    """

    def __init__(self, name: str, cost: type[CostT], folder: Path | None) -> None:
        self._path = None if folder is None else folder / f"{name}.json"
        self._type = dict[str, list[cost]]  # type: ignore[valid-type]

    def of(self, key: str) -> list[CostT]:
        """Return the latest costs of a key, oldest first."""
        return self._read().get(key, [])

    def add(self, key: str, cost: CostT) -> None:
        """Keep one more cost of a key."""
        if self._path is None:
            return
        known = self._read()
        latest = [*known.pop(key, []), cost][-_KEPT:]
        kept = dict([*known.items(), (key, latest)][-_MOST_KEYS:])  # the key that was used last comes last
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode({"version": _VERSION, "costs": kept}))

    def _read(self) -> dict[str, list[CostT]]:
        if self._path is None:
            return {}
        try:
            found = msgspec.json.decode(read_file(self._path, _MOST_BYTES))
            if not isinstance(found, dict) or found.get("version") != _VERSION:
                return {}
            costs: dict[str, list[CostT]] = converted(found["costs"], self._type)
        except (OSError, msgspec.MsgspecError, KeyError, UnicodeDecodeError):
            return {}
        return costs
