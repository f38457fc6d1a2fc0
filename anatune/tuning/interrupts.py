"""Ctrl-C between steps, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """A context manager that turns SIGINT into KeyboardInterrupt, but not while something is `held`.

    Does nothing outside the main thread, where the program handles SIGINT itself, or where it is ignored: who starts a
    program with ``nohup`` or in the background of a script does not want it ended from a keyboard.
    """

    def __init__(self) -> None:
        self._holding = False
        self._pending = False
        self._installed = False

    def __enter__(self) -> Interrupts:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holding:
            self._pending = True
        else:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put off an interrupt until the block is done."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
