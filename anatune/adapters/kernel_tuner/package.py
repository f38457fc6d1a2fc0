"""Kernel Tuner itself, imported where it is used."""

from __future__ import annotations

from types import ModuleType

from anatune.adapters.packages import import_optional

__all__ = ["import_kernel_tuner"]


def import_kernel_tuner(module: str = "") -> ModuleType:
    """Return Kernel Tuner, or a module of it.

    Raises
    ------
    MissingDependencyError
        It is not installed; the message has the pip command.
    """
    return import_optional(f"kernel_tuner{module}", "kernel-tuner", "anatune.adapters.kernel_tuner")
