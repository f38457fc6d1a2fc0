"""Objects and packages by name, imported when they are asked for: what is chosen at run time, what is optional."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from anatune.errors import AnatuneError, MissingDependencyError
from anatune.requirements import pip_line

__all__ = ["check_all", "import_optional", "resolve"]


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
