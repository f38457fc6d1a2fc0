"""Keywords that were renamed: the old ones still work, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["renamed"]

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator under which a function also takes keywords by the names they had before.

    Parameters
    ----------
    names
        Former name -> present name. The signature, for people and for type checkers, has the present ones only.

    Examples
    --------
    >>> @renamed(budget_s="time_limit_s")
    ... def search(time_limit_s): ...
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for former in names.keys() & kwargs.keys():
                name = names[former]
                warnings.warn(f"{function.__name__}: {former} is now called {name}", DeprecationWarning, stacklevel=2)
                if name in kwargs:
                    raise TypeError(f"{function.__name__}() got {name} and {former}, which is the same; leave one out")
                kwargs[name] = kwargs.pop(former)
            return function(*args, **kwargs)

        return call

    return decorate
