"""Locks that a child of ``fork`` gets anew, attributes that threads compute once, and functions that run one by one."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakSet

_A = TypeVar("_A", bound=Hashable)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_locks: WeakSet[threading.RLock] = WeakSet()


def new_lock() -> threading.RLock:
    """Return a lock; in a child of ``fork`` it is free where another thread of the parent held it, which is gone."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _renew() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # type: ignore[attr-defined]  # as locks of the standard library
            lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

if TYPE_CHECKING:
    LockedProperty = functools.cached_property
else:

    class LockedProperty(functools.cached_property):
        """A cached property that one thread computes, under the object's `_lock`, while others wait for it."""

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            with instance._lock:
                return super().__get__(instance, owner)


def in_turn(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a method that runs under its object's `_lock`: of all those of the object, one at a time."""

    @functools.wraps(method)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with args[0]._lock:  # type: ignore[attr-defined]
            return method(*args, **kwargs)

    return run


def once(function: Callable[[_A], _R]) -> Callable[[_A], _R]:
    """Return a function whose result for an argument one thread computes, while others wait for it."""
    kept, lock = functools.cache(function), new_lock()

    @functools.wraps(function)
    def run(argument: _A) -> _R:
        with lock:
            return kept(argument)

    return run


_compilers = new_lock()
"""TVM compiles in one thread at a time: it keeps what it is at in variables of the process."""


def one_by_one(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that compiles, and that waits while another thread is in one of this kind."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _compilers:
            return function(*args, **kwargs)

    return run
