"""Ctrl-C ends a command within a second, wherever it is.

Python raises KeyboardInterrupt between two instructions of the main thread, and what unwinds then is the best end: it
says what was kept. But compiled code, LLVM, NVRTC or a thread that is waited for hold that thread for minutes, and
some libraries swallow the exception. So a second thread waits for what Python writes to a pipe as soon as the signal
comes (`signal.set_wakeup_fd`; compiled code leaves Python's lock to others). What has not ended by itself within
`GRACE_S`, or at the second Ctrl-C, it ends: the processes below this one, temporary files, one line, exit status 130.

Nothing is lost by that: files are replaced as a whole, records are rows of finished transactions, and compiled code in
the cache has a digest at its end.
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
"""Exit status: 128 and the number of SIGINT, as shells have it."""
GRACE_S = 0.6
"""Seconds that a command has to end by itself."""
_GENTLY_S = 0.05
"""Seconds between asking processes to end and ending them: compilers remove their temporary files."""
_TURN_S = 0.005
"""Seconds in which the thread that waits has its turn."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


class Interrupts:
    """Waits for SIGINT beside the main thread; one object a process, `watched` makes it.

    Attributes
    ----------
    words : callable
        Returns what is said if the process is ended here; may be set by a command that knows more.
    closing : callable
        Called before it is said: takes what is drawn from the terminal.
    """

    def __init__(self) -> None:
        self.words: Callable[[], str] = lambda: "interrupted"
        self.closing: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._came = threading.Event()
        self._is_over = False
        self._until_s = 0.0
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def start(self) -> None:
        """Begin to wait; in the main thread."""
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        sys.unraisablehook = self._unraisable
        threading.Thread(target=self._wait, name="interrupts", daemon=True).start()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop(self) -> None:
        """Wait no more, and ignore it from here on: the answer is out."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._is_over = True

    def allow(self, seconds: float) -> None:
        """Give a command that was interrupted more time, for a file that it was asked to write in any case.

        A second Ctrl-C ends it all the same.
        """
        self._until_s = time.monotonic() + seconds

    def came(self) -> bool:
        """Whether Ctrl-C was pressed: errors that follow are its consequences."""
        return self._came.wait(_TURN_S)

    def end_here(self, line: str) -> NoReturn:
        """End the process from the main thread, which has unwound; `end` says how."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()  # not where the main thread may be in the middle of a write
        self.end(line)

    def end(self, line: str) -> NoReturn:
        """Say a line and end the process, without what Python does at the end: threads would be waited for."""
        with self._lock:  # of two threads that come here one speaks; the other one ends with the process
            with contextlib.suppress(Exception):
                self.closing()
            _end_processes()
            remove_scratch()
            with contextlib.suppress(OSError, AttributeError):
                os.write(sys.stderr.fileno(), f"error: {line}\n".encode())
            os._exit(INTERRUPTED)

    def _wait(self) -> None:
        while signal.SIGINT not in os.read(self._reading, 64):
            pass
        if self._is_over:
            return
        self._came.set()
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
        except Exception:  # noqa: BLE001  whatever it is, the process ends now
            return "interrupted"

    def _unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Say nothing of a KeyboardInterrupt that a destructor or a callback swallowed: the process ends anyway."""
        if not (isinstance(what.exc_value, KeyboardInterrupt) or self._came.is_set()):
            sys.__unraisablehook__(what)


_present: list[Interrupts] = []


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Wait for Ctrl-C during a block, in the main thread of a process of its own."""
    interrupts = Interrupts()
    _present.append(interrupts)
    try:
        interrupts.start()
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupts.came():
            interrupts.end_here("interrupted")
        raise
    finally:
        interrupts.stop()
        _present.remove(interrupts)


def present() -> Interrupts | None:
    """Return what waits for Ctrl-C in this process; None where nothing does."""
    return _present[-1] if _present else None


def _adopt() -> None:
    """Have the children of processes that end now become this one's, which ends them, too (Linux)."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SUBREAPER, 1)


def _end_processes() -> None:
    """End all processes below this one (Linux; elsewhere they notice that nobody is at the other end)."""
    for number, pause_s in ((signal.SIGTERM, _GENTLY_S), (signal.SIGKILL, 0.0)):
        processes = _descendants()
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(process, number)
        if processes:
            time.sleep(pause_s)


def _descendants() -> list[int]:
    """Return the processes below this one that are alive."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.parent.name)] = int(parent)
    found, newest = [], {os.getpid()}
    while newest:
        newest = {process for process, parent in parents.items() if parent in newest}
        found += sorted(newest)
    return found
