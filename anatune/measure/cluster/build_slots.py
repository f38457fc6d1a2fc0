"""Threads that build, each on a core of its own, and stand back while a kernel is timed on that core."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["BuildSlots"]

_Answer = TypeVar("_Answer")

_PATIENCE_S = 10.0
"""A build that waited so long goes before the next kernel: where every core times, sessions still get built."""


class _Work:
    def __init__(self, call: Callable[[int], Any]) -> None:
        self.call = call
        self.future: Future[Any] = Future()
        self.since = time.monotonic()


class BuildSlots:
    """A few threads that run what is submitted, first come, first served; they live until `close`.

    Processes that they start end with them, not with the thread that submits. Safe to share between threads.

    Parameters
    ----------
    cores : sequence of collections of int
        For each thread the logical CPUs that its work runs on; empty: anywhere, and nothing is in its way.
    """

    def __init__(self, cores: Sequence[Collection[int]]) -> None:
        self._cores = [frozenset(one) for one in cores]
        self._condition = threading.Condition()
        self._waiting: deque[_Work] = deque()
        self._busy: set[int] = set()
        self._wanted: list[frozenset[int]] = []
        self._timed: frozenset[int] = frozenset()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"build-{slot}", daemon=True)
            for slot in range(len(self._cores))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[int], _Answer]) -> Future[_Answer]:
        """Have a thread call `call` with its own number."""
        work = _Work(call)
        with self._condition:
            self._waiting.append(work)
            self._condition.notify_all()
        return work.future

    @contextlib.contextmanager
    def apart(self, cores: Collection[int]) -> Iterator[None]:
        """Return when nothing is built on some cores, and let nothing begin there until the block ends.

        One block at a time.
        """
        wanted = frozenset(cores)
        with self._condition:
            self._wanted.append(wanted)
            self._condition.wait_for(lambda: not any(self._cores[slot] & wanted for slot in self._busy))
            self._wanted.remove(wanted)
            self._timed = wanted
        try:
            yield
        finally:
            with self._condition:
                self._timed = frozenset()
                self._condition.notify_all()

    def close(self) -> None:
        """End the threads when what they are at is done; what waits is cancelled."""
        with self._condition:
            self._closed = True
            for work in self._waiting:
                work.future.cancel()
            self._waiting.clear()
            self._condition.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, at most so long each."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _serve(self, slot: int) -> None:
        while (work := self._next(slot)) is not None:
            if work.future.set_running_or_notify_cancel():
                try:
                    answer = work.call(slot)
                except BaseException as error:  # noqa: BLE001  it is whose work it is that hears of it
                    work.future.set_exception(error)
                else:
                    work.future.set_result(answer)
            del work
            with self._condition:
                self._busy.discard(slot)
                self._condition.notify_all()

    def _next(self, slot: int) -> _Work | None:
        """Wait for work that may begin here, and return it; None at the end."""
        with self._condition:
            while not self._closed:
                pause: float | None = None
                if self._waiting and not self._cores[slot] & self._timed:
                    pause = self._waiting[0].since + _PATIENCE_S - time.monotonic()
                    if pause <= 0 or not any(self._cores[slot] & one for one in self._wanted):
                        self._busy.add(slot)
                        return self._waiting.popleft()
                self._condition.wait(pause)
            return None
