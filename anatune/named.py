"""Objects by name, ``module:object``: imported when they are asked for, wherever what is chosen at run time lies."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from anatune.errors import AnatuneError

__all__ = ["resolve"]


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
