"""Objects and packages by name, imported when they are asked for: what is chosen at run time, what is optional.

The optional packages of anatune (whole networks, servers, fleets, exports, adapters, pages) register what they offer
as entry points in pyproject.toml. The core (what plans, prunes, tunes, measures, builds and records) imports none of
them: it asks here. A folder that is missing takes its entry points along, and the core works without it.
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
    """Return the object called ``module:object``.

    Raises
    ------
    AnatuneError
        There is none.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if isinstance(error, AnatuneError):  # a missing package, told with the line that installs it
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
    """Return all groups of entry points: those of a checkout's pyproject.toml, else those of the installation."""
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
    """Return what an optional package of anatune registers under a name; `purpose`: what asks, for the message.

    Raises
    ------
    MissingDependencyError
        No package of this installation registers it.
    """
    if name not in entries(group):
        raise MissingDependencyError(
            f"{purpose or name} belongs to a package of anatune that this installation leaves out; install all of it: "
            "pip install . in a clone of anatune"
        )
    return resolve(entries(group)[name])


def check_all(*checks: Callable[[], object]) -> None:
    """Run checks, and say in one error of all packages that are missing.

    Raises
    ------
    MissingDependencyError
        Packages cannot be imported; the message has the pip command of each.
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
    """Return a package that an extra of anatune installs.

    Parameters
    ----------
    package, extra : str
        Its name, and that of the extra.
    purpose : str
        What needs it, for the message.

    Raises
    ------
    MissingDependencyError
        It cannot be imported; the message has the pip command.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs the package {package}, which cannot be imported ({error}); {pip_line(extra)}"
        ) from None
