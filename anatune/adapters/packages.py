"""Optional packages that several files of an adapter need, imported where they are used."""

from __future__ import annotations

from types import ModuleType

from anatune.named import import_optional

__all__ = ["import_kernel_tuner"]


def import_kernel_tuner(module: str = "") -> ModuleType:
    """Return Kernel Tuner, or a module of it (".util"); errors as `import_optional`."""
    return import_optional(f"kernel_tuner{module}", "kernel-tuner", "anatune.adapters.kernel_tuner")
