"""Locks that a child of ``fork`` can use, attributes that one thread computes, functions that run one at a time."""

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
    """Return a lock that is free in a child of ``fork`` even if another thread of the parent held it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _renew() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # type: ignore[attr-defined]  # as the standard library does for its locks
            lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

if TYPE_CHECKING:
    LockedProperty = functools.cached_property
else:

    class LockedProperty(functools.cached_property):
        """A cached property that one thread computes, under the object's `_lock`, while other threads wait."""

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            with instance._lock:
                return super().__get__(instance, owner)


def run_in_turn(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a method so that it runs under its object's `_lock`: one such method of the object at a time."""

    @functools.wraps(method)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with args[0]._lock:  # type: ignore[attr-defined]
            return method(*args, **kwargs)

    return run


def compute_once(function: Callable[[_A], _R]) -> Callable[[_A], _R]:
    """Wrap a function so that one thread computes the result of an argument while other threads wait for it."""
    cached, lock = functools.cache(function), new_lock()

    @functools.wraps(function)
    def run(argument: _A) -> _R:
        with lock:
            return cached(argument)

    return run


_compilers = new_lock()
"""The lock for compiling: TVM keeps its state in variables of the process, so one thread compiles at a time."""


def compile_in_turn(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a function that compiles, so that it waits while another thread is in such a function."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _compilers:
            return function(*args, **kwargs)

    return run
