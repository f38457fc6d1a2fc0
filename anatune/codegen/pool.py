"""TVM's pool of threads, for parallel loops.

Each thread that starts a parallel loop has a pool of its own, which stays when the thread ends, and which is dead in a
child of ``fork``: a loop would wait for it for ever. So the main thread starts loops itself, and one more thread starts
those of all others: of a process's other threads, and of the main thread of a child whose parent had loaded TVM. Such
a child should end by ``os._exit``, as those of `multiprocessing` do: else TVM may wait for the dead pool when it ends.
Source: TVM 0.27, runtime/thread_pool.cc.
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
    """What threads the loops of this process run on.

    Attributes
    ----------
    starter : int
        The thread that starts loops itself; 0: none does.
    threads : int
        How many threads loops are to have.
    is_used : bool
        Whether there is a pool, of this process or of one that it was forked from.
    other : ThreadPoolExecutor or None
        The thread that starts the loops of all others.
    """

    def __init__(self) -> None:
        self.starter = threading.main_thread().ident or 0
        self.threads, self.is_used = 0, False
        self.other: ThreadPoolExecutor | None = None


_pools, _lock = _Pools(), new_lock()
_own = threading.local()
"""`threads`: how many the pool of the present thread has."""


def _forget() -> None:
    """Give a child of ``fork`` new pools."""
    was_starter, old = threading.get_ident() == _pools.starter, dict(vars(_pools))
    _own.__dict__.clear()
    _pools.__init__()  # type: ignore[misc]
    _pools.threads, _pools.is_used = old["threads"], old["is_used"]
    if was_starter and "tvm" in sys.modules:
        _pools.starter = 0
        if _pools.is_used:
            atexit.register(_end_late)


def _end_late() -> None:
    """End this process in some seconds: TVM's library may wait for ever for the threads of the parent's pool."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_PATIENCE_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def set_threads(threads: int) -> None:
    """Let parallel loops run on `threads` threads from here on, whichever thread starts them."""
    _pools.threads = threads


def call_parallel(function: Callable[..., Result], *arguments: object) -> Result:
    """Return ``function(*arguments)``, which starts parallel loops; errors are its own."""
    if threading.get_ident() == _pools.starter:
        return _call(function, arguments)
    with _lock:
        if _pools.other is None:
            _pools.other = ThreadPoolExecutor(1, "anatune-loops")
        future = _pools.other.submit(_call, function, arguments)
    try:
        return future.result()
    except BaseException:  # Ctrl-C, too: the loop still writes into the arguments
        wait([future])
        raise


def _call(function: Callable[..., Result], arguments: tuple[object, ...]) -> Result:
    if getattr(_own, "threads", 0) != _pools.threads:
        _own.threads, _pools.is_used = _pools.threads, True
        set_pool_threads(_own.threads)
    return function(*arguments)
