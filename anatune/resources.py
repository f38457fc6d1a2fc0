"""The folders of packaged data (``hwspecs/``, ``models/``) and of the user, and the number of usable processors.

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
        The installation is damaged: the folder does not exist.
    """
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"anatune's data folder {name!r} is missing beside {_PACKAGE}; reinstall the package")


def user_cache_folder() -> Path | None:
    """Return the user's cache folder, below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    It is None if the system knows no home folder; then nothing is cached.
    """
    return _user_folder(os.environ.get("XDG_CACHE_HOME"), ".cache")


def user_config_folder(config_home: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the user's configuration folder (own specs, calibrations), below ``$XDG_CONFIG_HOME`` or ``~/.config``.

    Parameters
    ----------
    config_home : str or path, optional
        Base folder to use instead. The result is None if neither is known.
    """
    return _user_folder(config_home or os.environ.get("XDG_CONFIG_HOME"), ".config")


def _user_folder(base: str | os.PathLike[str] | None, otherwise: str) -> Path | None:
    try:
        return (Path(base) if base else Path.home() / otherwise) / "anatune"
    except RuntimeError:
        return None


def allowed_cores() -> int:
    """Return the number of logical processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many logical processors this process should use: the allowed ones within a container's quota.

    A quota of 1.5 processors counts as 1: when a quota is used up, all threads stop until its period of 100 ms ends,
    which is longer than most kernels take, and Python has threads of its own.

    Parameters
    ----------
    root : Path
        Folder that holds ``proc`` and ``sys``; for tests.
    """
    quota = cpu_quota(root)
    return allowed_cores() if quota is None else max(1, min(allowed_cores(), int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the processor quota of this process's control groups, in processors; None: no quota.

    It is the smallest quota of the process's group and all groups around it, for both versions of control groups. Files
    that cannot be read count as no quota.
    """
    quotas = []
    for folder, *files in _control_groups(root):
        with contextlib.suppress(OSError, ValueError):  # "max"
            quota, period = map(int, " ".join((folder / file).read_text() for file in files).split())
            if quota > 0 and period > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def _control_groups(root: Path) -> Iterator[tuple[Path, str] | tuple[Path, str, str]]:
    """Yield the control groups of this process: a folder, and the names of the files with quota and period.

    A container may see its own group as the root, under a path of the host that does not exist in the container.
    """
    lines = ["0::/"]
    with contextlib.suppress(OSError, ValueError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for subfolder in ("/".join(parts[:depth]) for depth in range(len(parts) + 1)):
            if not controllers:
                yield root / "sys/fs/cgroup" / subfolder, "cpu.max"
            elif "cpu" in controllers.split(","):
                for mount in {controllers, "cpu"}:
                    yield root / "sys/fs/cgroup" / mount / subfolder, "cpu.cfs_quota_us", "cpu.cfs_period_us"
