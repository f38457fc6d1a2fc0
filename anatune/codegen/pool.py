"""Threads for TVM's parallel loops.

Each thread that starts a parallel loop has its own pool in TVM. The pool outlives the thread, and is dead in a child of
``fork``, where a loop would wait for it forever. Therefore the main thread starts loops itself, and one further thread
starts the loops of all others: of the process's other threads, and of the main thread of a child whose parent had
loaded TVM. Such a child should end with ``os._exit``, as those of `multiprocessing` do; otherwise TVM may wait for the
dead pool at exit. Source: TVM 0.27, runtime/thread_pool.cc.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from anatune.codegen.compat import set_pool_threads
from anatune.threads import new_lock

__all__ = ["call_parallel", "set_threads"]

_PATIENCE_S = 5
Result = TypeVar("Result")


class _Pools:
    """The state of this process's pools.

    Attributes
    ----------
    starter : int
        Id of the thread that starts loops itself; 0: none does.
    threads : int
        Number of threads that loops shall have.
    is_used : bool
        Whether a pool exists, in this process or in the one that it was forked from.
    other : ThreadPoolExecutor or None
        The thread that starts the loops of all other threads.
    """

    def __init__(self) -> None:
        self.starter = threading.main_thread().ident or 0
        self.threads, self.is_used = 0, False
        self.other: ThreadPoolExecutor | None = None


_pools, _lock = _Pools(), new_lock()
_thread_state = threading.local()
"""`threads`: size of the present thread's pool."""


def _forget() -> None:
    """Reset the pools in a child of ``fork``."""
    was_starter, old = threading.get_ident() == _pools.starter, dict(vars(_pools))
    _thread_state.__dict__.clear()
    _pools.__init__()  # type: ignore[misc]
    _pools.threads, _pools.is_used = old["threads"], old["is_used"]
    if was_starter and "tvm" in sys.modules:
        _pools.starter = 0
        if _pools.is_used:
            atexit.register(_end_late)


def _end_late() -> None:
    """End this process after some seconds, because TVM may wait forever for the threads of the parent's pool."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_PATIENCE_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def set_threads(threads: int) -> None:
    """Set the number of threads for parallel loops, whichever thread starts them."""
    _pools.threads = threads


def call_parallel(function: Callable[..., Result], *arguments: object) -> Result:
    """Return ``function(*arguments)`` for a function that starts parallel loops; its errors are raised unchanged."""
    if threading.get_ident() == _pools.starter:
        return _call(function, arguments)
    with _lock:
        if _pools.other is None:
            _pools.other = ThreadPoolExecutor(1, "anatune-loops")
        future = _pools.other.submit(_call, function, arguments)
    try:
        return future.result()
    except BaseException:  # also Ctrl-C: the loop still writes into the arguments
        wait([future])
        raise


def _call(function: Callable[..., Result], arguments: tuple[object, ...]) -> Result:
    if getattr(_thread_state, "threads", 0) != _pools.threads:
        _thread_state.threads, _pools.is_used = _pools.threads, True
        set_pool_threads(_thread_state.threads)
    return function(*arguments)
