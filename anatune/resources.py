"""Finds the data that travels with the package (``hwspecs/``, ``models/``), the user's own folders, and the cores.

A wheel holds the data under ``anatune/_data``; a checkout (also an editable install) at the repository root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

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


def allowed_cores() -> int:
    """Return the logical processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many logical processors this process should keep busy: those allowed, but for a container's quota.

    Of 1.5 processors it is 1: where a quota is used up, all threads stop until its period of 100 ms ends, which is
    longer than most kernels, and Python has threads of its own.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    """
    quota = cpu_quota(root)
    return allowed_cores() if quota is None else max(1, min(allowed_cores(), int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the processors' worth of time that control groups grant this process; None: as much as there is.

    The least quota of its group and all around it, of both versions of control groups. What cannot be read grants all.
    """
    quotas = []
    for folder, *files in _control_groups(root):
        with contextlib.suppress(OSError, ValueError):  # "max"
            quota, period = map(int, " ".join((folder / file).read_text() for file in files).split())
            if quota > 0 and period > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def _control_groups(root: Path) -> Iterator[tuple[Path, str] | tuple[Path, str, str]]:
    """Yield folders of control groups that hold this process, and the files that a quota and its period are in.

    A container may see its own group as the top, under a path of the host's that is not there.
    """
    lines = ["0::/"]
    with contextlib.suppress(OSError, ValueError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for below in ("/".join(parts[:depth]) for depth in range(len(parts) + 1)):
            if not controllers:
                yield root / "sys/fs/cgroup" / below, "cpu.max"
            elif "cpu" in controllers.split(","):
                for mount in {controllers, "cpu"}:
                    yield root / "sys/fs/cgroup" / mount / below, "cpu.cfs_quota_us", "cpu.cfs_period_us"
