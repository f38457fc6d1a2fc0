"""Handling of Ctrl-C, which ends a command within a second.

Python raises KeyboardInterrupt between two instructions of the main thread. A command that unwinds then can report
what it kept. But compiled code, LLVM, NVRTC or a join can hold the main thread for minutes, and some libraries swallow
the exception. So a second thread waits on a pipe to which Python writes when the signal comes
(`signal.set_wakeup_fd`; compiled code releases Python's lock). If the command has not ended within `GRACE_S`, or at a
second Ctrl-C, the thread ends the child processes, removes temporary files, prints one line and exits with status 130.

This loses nothing: files are replaced as a whole, records are written in transactions, and compiled code in the cache
ends with a digest.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from anatune.files import remove_scratch

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 plus the number of SIGINT, as in shells."""
GRACE_S = 0.6
"""Seconds that a command has to end by itself."""
_GENTLY_S = 0.05
"""Seconds between SIGTERM and SIGKILL, in which compilers remove their temporary files."""
_TURN_S = 0.005
"""Seconds that the main thread waits so that the waiting thread can run."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


class InterruptWatcher:
    """A thread that waits for SIGINT; each process has at most one, which `watch_interrupts` makes.

    Attributes
    ----------
    words : callable
        Returns the line that is printed when the process is ended here; a command may set it.
    closing : callable
        Called before the line is printed, to clear a progress bar.
    """

    def __init__(self) -> None:
        self.words: Callable[[], str] = lambda: "interrupted"
        self.closing: Callable[[], None] = lambda: None
        self._lock, self._pipe_lock = threading.Lock(), threading.Lock()
        self._signal_came = threading.Event()
        self._is_over = False
        self._until_s = 0.0
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def start(self) -> None:
        """Begin to wait; call this in the main thread."""
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        sys.unraisablehook = self._drop_interrupt
        threading.Thread(target=self._wait, name="interrupts", daemon=True).start()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop(self) -> None:
        """Stop waiting and ignore SIGINT from now on, because the answer is complete."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._is_over = True

    def allow(self, seconds: float) -> None:
        """Give an interrupted command more time to write a file; a second Ctrl-C still ends it."""
        self._until_s = time.monotonic() + seconds

    def has_come(self) -> bool:
        """Return whether Ctrl-C was pressed, so that errors which follow are consequences of it."""
        with self._pipe_lock:  # on a busy machine the waiting thread may not have read the signal yet
            pending = os.read(self._reading, 64) if select.select([self._reading], [], [], 0)[0] else b""
            os.write(self._writing, pending)
        return signal.SIGINT in pending or self._signal_came.wait(_TURN_S)

    def flush_and_end(self, line: str) -> NoReturn:
        """Flush stdout and end the process; called from the main thread after it has unwound."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()  # only here: at other times the main thread may be in the middle of a write
        self.end(line)

    def end(self, line: str) -> NoReturn:
        """Print a line and end the process at once, without waiting for threads."""
        with self._lock:  # only one of two threads prints; the other one ends with the process
            with contextlib.suppress(Exception):
                self.closing()
            _end_processes()
            remove_scratch()
            with contextlib.suppress(OSError, AttributeError):
                os.write(sys.stderr.fileno(), f"error: {line}\n".encode())
            os._exit(INTERRUPTED)

    def _wait(self) -> None:
        while not self._signal_came.is_set():
            select.select([self._reading], [], [])
            with self._pipe_lock:
                is_ready = bool(select.select([self._reading], [], [], 0)[0])
                if is_ready and signal.SIGINT in os.read(self._reading, 64):
                    self._signal_came.set()
        if self._is_over:
            return
        _adopt()
        self._until_s = max(self._until_s, time.monotonic() + GRACE_S)  # the main thread may have been here before
        while (left_s := self._until_s - time.monotonic()) > 0:
            if select.select([self._reading], [], [], left_s)[0] and signal.SIGINT in os.read(self._reading, 64):
                break
        if not self._is_over:
            self.end(self._last_words())

    def _last_words(self) -> str:
        try:
            return self.words()
        except Exception:  # noqa: BLE001  the process ends in any case
            return "interrupted"

    def _drop_interrupt(self, what: sys.UnraisableHookArgs) -> None:
        """Do not report a KeyboardInterrupt in a destructor or a callback, because the process ends anyway."""
        if not (isinstance(what.exc_value, KeyboardInterrupt) or self._signal_came.is_set()):
            sys.__unraisablehook__(what)


_watchers: list[InterruptWatcher] = []


@contextlib.contextmanager
def watch_interrupts() -> Iterator[None]:
    """Handle Ctrl-C during a block; call this in the main thread."""
    interrupts = InterruptWatcher()
    _watchers.append(interrupts)
    try:
        interrupts.start()
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupts.has_come():
            interrupts.flush_and_end("interrupted")
        raise
    finally:
        interrupts.stop()
        _watchers.remove(interrupts)


def current_watcher() -> InterruptWatcher | None:
    """Return the object that waits for Ctrl-C in this process; None if there is none."""
    return _watchers[-1] if _watchers else None


def _adopt() -> None:
    """Make this process the parent of orphaned descendants, so that it can end them (Linux)."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SUBREAPER, 1)


def _end_processes() -> None:
    """End all descendants of this process (Linux; on other systems they end when their pipe is closed)."""
    for number, pause_s in ((signal.SIGTERM, _GENTLY_S), (signal.SIGKILL, 0.0)):
        processes = _descendants()
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(process, number)
        if processes:
            time.sleep(pause_s)


def _descendants() -> list[int]:
    """Return the ids of the living descendants of this process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.parent.name)] = int(parent)
    descendants, newest = [], {os.getpid()}
    while newest:
        newest = {process for process, parent in parents.items() if parent in newest}
        descendants += sorted(newest)
    return descendants
