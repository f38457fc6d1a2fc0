"""Progress on stderr: a bar with the time left on a terminal, and a line from time to time elsewhere.

Work that ends within `QUIET_S` shows nothing. On a terminal a thread redraws the bar four times a second, also while
compiled code runs. While kernels are timed (`ticking` is false) the bar is redrawn only when something changed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from anatune.cli.interrupts import current_watcher
from anatune.cli.output import note
from anatune.printable import printable

if TYPE_CHECKING:
    import rich.progress

QUIET_S = 1.5
"""Seconds before a terminal shows anything."""
_FIRST_LINE_S, _EVERY_S = 3.0, 10.0
"""Seconds before the first line and between lines if stderr is no terminal."""
_TICK_S = 0.25
_LEAST_SHARE, _LEAST_S = 0.005, 1.0
"""The share of the work and the seconds after which the time left is estimated."""
_COMPILING = "compiling the analytical model (once)"
_shown: list[Progress] = []
"""The progress objects that are shown now, the innermost last."""
_WIPE = b"\r\x1b[2K\x1b[?25h"
"""Terminal codes that clear the line and show the cursor."""


def is_terminal() -> bool:
    """Return whether stderr is a terminal that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def time_text(seconds: float) -> str:
    """Return seconds as 0:42 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def say(text: str) -> None:
    """Write a line that stays, above the progress bar if there is one."""
    if _shown:
        _shown[-1].print_above(text)
    else:
        note(text)


class _Activity:
    """A long piece of work and the share that is done."""

    def __init__(self, what: str, hint: str = "", ends_s: float | None = None) -> None:
        self.what, self.hint, self.ends_s = what, hint, ends_s
        self.began = time.monotonic()
        self.share: float | None = None
        self.done = ""

    def left_text(self, now: float) -> str:
        """Return the time left as text; "" if it is unknown."""
        if self.ends_s is not None:
            return f"at most {time_text(max(0.0, self.ends_s - now))} left"
        elapsed_s = now - self.began
        if self.share is None or self.share < _LEAST_SHARE or elapsed_s < _LEAST_S:
            return ""
        return f"{time_text(elapsed_s * (1.0 - self.share) / self.share)} left"


class Progress:
    """A context manager that shows progress while a command works. Callbacks may be called from any thread.

    Parameters
    ----------
    compiles : bool
        Whether the analytical model may be compiled in the block, which is then shown.
    ticking : bool
        Whether a thread redraws the bar; may be changed at any time.
    """

    def __init__(self, *, compiles: bool = False, ticking: bool = True) -> None:
        self._compiles, self._ticking = compiles, ticking
        self._terminal = is_terminal()
        self._lock = threading.RLock()
        self._activities: dict[str, _Activity] = {}  # by the callback's name; the last one is shown
        self._tick, self._is_over = threading.Event(), False
        self._next_line_s = time.monotonic() + _FIRST_LINE_S
        self._ticker: threading.Thread | None = None
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID
        self._callbacks = contextlib.ExitStack()
        self._said_phases: set[str] = set()
        self._compiled_s = 0.0

    def __enter__(self) -> Progress:
        _shown.append(self)
        if self._terminal:
            if self._compiles:
                from anatune.numerics._compiling import report_compilation

                self._callbacks.enter_context(report_compilation(self._show_compilation))
            if self._ticking:
                self._start_ticking()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _shown.remove(self)
        self._is_over = True
        self._tick.set()
        self._callbacks.close()
        self.clear()

    @property
    def ticking(self) -> bool:
        """True if a thread redraws the bar."""
        return self._ticking

    @ticking.setter
    def ticking(self, value: bool) -> None:
        if value and not self._ticking and self._terminal:
            self._ticking = value
            self._start_ticking()
        self._ticking = value

    # -- callbacks that commands pass to the library --------------------------------------------------------------

    def share(self, what: str, hint: str = "") -> Callable[[float], None]:
        """Return a callback that takes the share that is done, in [0, 1]; without a terminal `hint` ends each line."""

        def report(share: float) -> None:
            self._report(what, share, f"{100 * share:.0f} %", hint, is_over=share >= 1.0)

        return report

    def search(self) -> Callable[[float], None]:
        """Return the callback for ranking a space."""
        self.begin("searching")
        return self.share("searching", "--time-limit SECONDS ends the search earlier")

    def count(self, what: str, then: str = "") -> Callable[[int, int], None]:
        """Return a callback that takes (done, total); `then` names the work of unknown length that follows."""

        def report(done: int, total: int) -> None:
            self._report(what, done / max(1, total), f"{done} of {total}", is_over=done >= total)
            if then and done >= total:
                self.begin(then)

        return report

    def stages(self, what: str, budget_s: float | None = None) -> Callable[[str, float], None]:
        """Return a callback that takes (phase, share of it that is done); all phases take at most `budget_s`."""
        ends_s = None if budget_s is None else time.monotonic() + budget_s
        shown_phase = ""

        def report(phase: str, share: float) -> None:
            nonlocal shown_phase
            if not self._terminal:
                if phase not in self._said_phases:
                    self._said_phases.add(phase)
                    note(f"{what}: {phase}")
                return
            with self._lock:
                if phase != shown_phase:
                    self._activities.pop(what, None)
                    shown_phase = phase
                self._report(what, share, f"{100 * share:.0f} %", words=f"{what}: {phase}", ends_s=ends_s)

        return report

    def begin(self, what: str) -> None:
        """Show work of unknown length until the next report; without a terminal, write a line from time to time."""
        with self._lock:
            self._activities.pop("begun", None)
            self._activities["begun"] = _Activity(what)  # the last entry is the one that is shown
        if self._ticking:
            self._start_ticking()

    def show(self, text: str, done: int, total: int, *, news: bool) -> bool:
        """Show a line at once; without a terminal only if it is news or some time passed. Return whether it was."""
        now = time.monotonic()
        if self._terminal:
            with self._lock:
                self._activities.pop("begun", None)
                activity = self._activities.setdefault("shown", _Activity(""))
                activity.what, activity.share, activity.ends_s = text, done / total if total else None, None
                self._draw(now, at_once=True)
            return False
        if news or now >= self._next_line_s:
            self._activities.pop("begun", None)
            note(text)
            self._next_line_s = now + _EVERY_S
            return True
        return False

    def print_above(self, line: str) -> None:
        """Write a line that stays above the bar."""
        with self._lock:
            if self._bar is None:
                note(line)
            else:
                self._bar.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def clear(self) -> None:
        """Remove the bar from the terminal until the next report, so that something else can be written."""
        with self._lock:
            self._activities.clear()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    # -- drawing --------------------------------------------------------------------------------------------------

    def _report(
        self,
        key: str,
        share: float,
        done: str,
        hint: str = "",
        *,
        words: str = "",
        ends_s: float | None = None,
        is_over: bool = False,
    ) -> None:
        if not self._terminal:
            self._say(key, share, done, hint, is_over=is_over)
            return
        with self._lock:
            begun = self._activities.pop("begun", None)
            if is_over:
                self._activities.pop(key, None)
                return
            activity = self._activities.get(key)
            if activity is None:
                activity = self._activities[key] = _Activity(words or key, hint, ends_s)
                if begun is not None and begun.what == activity.what:
                    activity.began = begun.began
            activity.share, activity.done = share, done
            if not self._ticking:
                self._draw(time.monotonic())

    def _say(self, what: str, share: float, done: str, hint: str, *, is_over: bool) -> None:
        """Write a line if the last one is old enough."""
        with self._lock:
            self._activities.pop("begun", None)
            activity = self._activities.setdefault(what, _Activity(what))
            now = time.monotonic()
            if is_over or now < max(self._next_line_s, activity.began + _FIRST_LINE_S):
                return
            self._next_line_s = now + _EVERY_S
            activity.share = share
        left_text = activity.left_text(now)
        words = [f"{what}: {done}, {now - activity.began:.0f} s", *([left_text] if left_text else [])]
        note(", ".join(words) + (f"; {hint}" if hint else ""))

    def _show_compilation(self, done: int, total: int, share: float | None) -> None:
        """Show the compilation of the analytical model; called from any thread."""
        with self._lock:
            now, activity = time.monotonic(), self._activities.pop(_COMPILING, None)
            if share is None:
                self._compiled_s = now - activity.began if activity is not None else 0.0
                return
            if activity is None:
                activity = _Activity(_COMPILING)
                activity.began = now - self._compiled_s
            activity.share, activity.done = share, f"{done} of {total}"
            self._activities[_COMPILING] = activity  # the last entry: the other work waits for it

    def _start_ticking(self) -> None:
        if self._ticker is None or not self._ticker.is_alive():
            self._ticker = threading.Thread(target=self._go, name="progress", daemon=True)
            self._ticker.start()

    def _go(self) -> None:
        """Redraw from time to time until the block ends or `ticking` is false."""
        while not self._tick.wait(_TICK_S):
            with self._lock:
                if self._is_over or not self._ticking:
                    return
                if self._terminal:
                    self._draw(time.monotonic())
                else:
                    self._say_activity(time.monotonic())

    def _say_activity(self, now: float) -> None:
        """Write a line about work of unknown length if the last line is old enough."""
        activity = self._activities.get("begun")
        if activity is not None and now >= max(self._next_line_s, activity.began + _FIRST_LINE_S):
            self._next_line_s = now + _EVERY_S
            note(f"{activity.what}: {now - activity.began:.0f} s so far")

    def _draw(self, now: float, *, at_once: bool = False) -> None:
        """Draw the bar; a new one only if the work has taken `QUIET_S`."""
        if self._is_over or not self._activities:
            return
        activity = next(reversed(self._activities.values()))
        if self._bar is None:
            if not at_once and now - activity.began < QUIET_S:
                return
            self._bar = _bar()
            self._task = self._bar.add_task("", total=None, done="", left="")
            self._bar.start()
        left_text = activity.left_text(now) or ("" if at_once else f"{time_text(now - activity.began)} so far")
        self._bar.update(
            self._task, description=printable(activity.what), total=None if activity.share is None else 1.0,
            completed=activity.share or 0.0, done=activity.done, left=left_text, refresh=True,
        )  # fmt: skip


def _bar() -> rich.progress.Progress:
    """Return a progress bar of rich, which is imported only here because that is slow."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    if (interrupts := current_watcher()) is not None:
        interrupts.closing = _wipe
    one_line = Column(no_wrap=True, overflow="ellipsis")
    return Progress(
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False, table_column=one_line),
        TextColumn("{task.fields[done]}", markup=False, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[left]}", markup=False, table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,  # the answer goes to stdout; notes are written above the bar
    )


def _wipe() -> None:
    """Clear the bar and show the cursor, even while the bar is being drawn."""
    os.write(sys.stderr.fileno(), _WIPE)
