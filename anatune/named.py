"""Objects and packages that are imported by name when they are needed, because they are chosen at run time or optional.

The optional packages of anatune (networks, servers, fleets, exports, adapters, pages, plots) register what they offer
as entry points in pyproject.toml. The core (planning, pruning, tuning, measuring, building, records) never imports
them; it looks them up here. If the folder of an optional package is missing, so are its entry points, and the core
still works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from anatune.errors import AnatuneError, MissingDependencyError
from anatune.requirements import pip_line, read_project


def resolve(name: str) -> Any:
    """Import and return the object called ``module:object``.

    Raises
    ------
    AnatuneError
        The object does not exist or cannot be imported.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if isinstance(error, AnatuneError):  # a missing package: the message contains the pip command
            raise
        raise AnatuneError(f"{name!r} cannot be imported: {error}") from None


def entries(group: str) -> Mapping[str, str]:
    """Return the entry points of a group: name -> "module:object".

    Parameters
    ----------
    group : str
        "boards", "calls", "commands", "figures", "formats", "logs", "pages" or "places".
    """
    return _read_entry_points().get(f"anatune.{group}", {})


@cache
def _read_entry_points() -> Mapping[str, Mapping[str, str]]:
    """Return all groups of entry points: from the checkout's pyproject.toml, or else from the installed metadata."""
    project = read_project()
    if project is not None:
        return dict(project.get("entry-points", {}))
    from importlib import metadata

    try:
        points = metadata.distribution("anatune").entry_points
    except metadata.PackageNotFoundError:
        return {}
    groups: dict[str, dict[str, str]] = {}
    for point in points:
        groups.setdefault(point.group, {})[point.name] = point.value
    return groups


def load(group: str, name: str, purpose: str = "") -> Any:
    """Return the object that an optional package registers under a name; `purpose` names the caller in the message.

    Raises
    ------
    MissingDependencyError
        No installed package of anatune registers the name.
    """
    if name not in entries(group):
        raise MissingDependencyError(
            f"{purpose or name} belongs to an optional package of anatune that is not installed here; install "
            "all of them: pip install . in a clone of anatune"
        )
    return resolve(entries(group)[name])


def check_all(*checks: Callable[[], object]) -> None:
    """Run checks, and report all missing packages in one error.

    Raises
    ------
    MissingDependencyError
        Packages cannot be imported; the message contains the pip command of each.
    """
    missing = []
    for check in checks:
        try:
            check()
        except MissingDependencyError as error:
            missing.append(str(error))
    if missing:
        raise MissingDependencyError("; ".join(dict.fromkeys("; ".join(missing).split("; "))))


def import_optional(package: str, extra: str, purpose: str) -> ModuleType:
    """Import and return a package that an extra of anatune installs.

    Parameters
    ----------
    package, extra : str
        Name of the package, and of the extra.
    purpose : str
        The feature that needs it, for the message.

    Raises
    ------
    MissingDependencyError
        The package cannot be imported; the message contains the pip command.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs the package {package}, which cannot be imported ({error}); {pip_line(extra)}"
        ) from None
