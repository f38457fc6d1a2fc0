"""What will go: names that were renamed or replaced still work, with a warning that says what to use, and until when.

The policy is CONTRIBUTING.md's ("Versions"): what is deprecated works at least until the next version that may
break callers. `tests/contracts/test_public_names.py` fails when that version has come and the name is still there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["deprecated", "renamed"]

P = ParamSpec("P")
R = TypeVar("R")


def renamed(until: str, /, **names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator under which a function also takes keywords by the names they had before.

    Parameters
    ----------
    until : str
        Version in which the former names go: "1.0".
    names
        Former name -> present name. The signature, for people and for type checkers, has the present ones only.

    Examples
    --------
    >>> @renamed("1.0", budget_s="time_limit_s")
    ... def search(time_limit_s): ...
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for former in names.keys() & kwargs.keys():
                name = names[former]
                _warn(f"{function.__name__}: {former} is now called {name}", until)
                if name in kwargs:
                    raise TypeError(f"{function.__name__}() got {name} and {former}, which is the same; leave one out")
                kwargs[name] = kwargs.pop(former)
            return function(*args, **kwargs)

        call.__goes_in__ = until  # type: ignore[attr-defined]
        return call

    return decorate


def deprecated(until: str, instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator under which a function still works, and says at each call what to use instead.

    Parameters
    ----------
    until : str
        Version in which the function goes: "1.0".
    instead : str
        What to use: "anatune.plan".
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            _warn(f"{function.__name__} is deprecated, use {instead}", until)
            return function(*args, **kwargs)

        call.__goes_in__ = until  # type: ignore[attr-defined]
        return call

    return decorate


def _warn(text: str, until: str) -> None:
    warnings.warn(f"{text}; what was before goes in anatune {until}", DeprecationWarning, stacklevel=3)
