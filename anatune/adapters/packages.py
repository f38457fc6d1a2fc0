"""Optional packages that adapters need, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from anatune.errors import MissingDependencyError

__all__ = ["import_kernel_tuner", "import_optional"]


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
            f"{purpose} needs the package {package}, which cannot be imported ({error}); pip install 'anatune[{extra}]'"
        ) from None


def import_kernel_tuner(module: str = "") -> ModuleType:
    """Return Kernel Tuner, or a module of it (".util"); errors as `import_optional`."""
    return import_optional(f"kernel_tuner{module}", "kernel-tuner", "anatune.adapters.kernel_tuner")
