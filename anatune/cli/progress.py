"""How far something long is, on stderr: a bar with the time left on a terminal, elsewhere a line now and then.

Nothing is shown of what is done within `QUIET_S`. On a terminal a thread draws, four times a second, also while
compiled code runs; while kernels are timed (`ticking` is false) the line changes only when there is news.
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

from anatune.cli.interrupts import present
from anatune.cli.output import note
from anatune.printable import printable

if TYPE_CHECKING:
    import rich.progress

QUIET_S = 1.5
"""Seconds before a terminal shows anything."""
_FIRST_LINE_S, _EVERY_S = 3.0, 10.0
"""Without a terminal: seconds before the first line, and between lines."""
_TICK_S = 0.25
_LEAST_SHARE, _LEAST_S = 0.005, 1.0
"""Nothing is said of the time left before so much is done."""
_COMPILING = "compiling the model (once)"
_shown: list[Progress] = []
"""Whose lines are on the terminal now, the last one innermost."""
_WIPE = b"\r\x1b[2K\x1b[?25h"
"""Clears the line and shows the cursor."""


def on_terminal() -> bool:
    """Whether stderr is a terminal that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def time_text(seconds: float) -> str:
    """Return seconds as 0:42 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def say(text: str) -> None:
    """Write a line that stays, above the bar that is drawn just now, if there is one."""
    if _shown:
        _shown[-1].above(text)
    else:
        note(text)


class _Stage:
    """One thing that takes long, and how far it is."""

    def __init__(self, what: str, hint: str = "", ends_s: float | None = None) -> None:
        self.what, self.hint, self.ends_s = what, hint, ends_s
        self.began = time.monotonic()
        self.share: float | None = None
        self.done = ""

    def left(self, now: float) -> str:
        """Return the time left as text, "" where it is unknown."""
        if self.ends_s is not None:
            return f"at most {time_text(max(0.0, self.ends_s - now))} left"
        elapsed_s = now - self.began
        if self.share is None or self.share < _LEAST_SHARE or elapsed_s < _LEAST_S:
            return ""
        return f"{time_text(elapsed_s * (1.0 - self.share) / self.share)} left"


class Progress:
    """What a command shows while it works; a context manager. Callbacks may be called from any thread.

    Parameters
    ----------
    compiles : bool
        The models may be compiled in the block, for the first time: their functions are counted.
    ticking : bool
        Whether a thread draws; may be changed at any time.
    """

    def __init__(self, *, compiles: bool = False, ticking: bool = True) -> None:
        self._compiles, self._ticking = compiles, ticking
        self._terminal = on_terminal()
        self._lock = threading.RLock()
        self._stages: dict[str, _Stage] = {}  # by the callback's name; the last one is shown
        self._tick, self._is_over = threading.Event(), False
        self._following = time.monotonic() + _FIRST_LINE_S
        self._ticker: threading.Thread | None = None
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID
        self._files = contextlib.ExitStack()
        self._said: set[str] = set()
        self._compiled_s = 0.0

    def __enter__(self) -> Progress:
        _shown.append(self)
        if self._terminal:
            if self._compiles:
                from anatune.numerics._compiling import told_compilation

                self._files.enter_context(told_compilation(self._compiled))
            if self._ticking:
                self._start_ticking()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _shown.remove(self)
        self._is_over = True
        self._tick.set()
        self._files.close()
        self.clear()

    @property
    def ticking(self) -> bool:
        """Whether a thread draws."""
        return self._ticking

    @ticking.setter
    def ticking(self, value: bool) -> None:
        if value and not self._ticking and self._terminal:
            self._ticking = value
            self._start_ticking()
        self._ticking = value

    # -- what commands hand to the library ------------------------------------------------------------------------

    def share(self, what: str, hint: str = "") -> Callable[[float], None]:
        """Return a callback that takes the share that is done, in [0, 1]; `hint` follows lines without a terminal."""

        def report(share: float) -> None:
            self._report(what, share, f"{100 * share:.0f} %", hint, is_over=share >= 1.0)

        return report

    def search(self) -> Callable[[float], None]:
        """Return the callback of a ranking."""
        self.begin("searching")
        return self.share("searching", "--time-limit SECONDS ends it with a proven gap")

    def count(self, what: str, then: str = "") -> Callable[[int, int], None]:
        """Return a callback that takes (done, of how many); `then` is what follows them, of unknown length."""

        def report(done: int, total: int) -> None:
            self._report(what, done / max(1, total), f"{done} of {total}", is_over=done >= total)
            if then and done >= total:
                self.begin(then)

        return report

    def stages(self, what: str, budget_s: float | None = None) -> Callable[[str, float], None]:
        """Return a callback that takes (a stage, the share of it that is done); all take `budget_s` at most."""
        ends_s = None if budget_s is None else time.monotonic() + budget_s
        known = ""

        def report(stage: str, share: float) -> None:
            nonlocal known
            if not self._terminal:
                if stage not in self._said:
                    self._said.add(stage)
                    note(f"{what}: {stage}")
                return
            with self._lock:
                if stage != known:
                    self._stages.pop(what, None)
                    known = stage
                self._report(what, share, f"{100 * share:.0f} %", words=f"{what}: {stage}", ends_s=ends_s)

        return report

    def begin(self, what: str) -> None:
        """Say what goes on, where nobody knows how long; the next report replaces it. Logs get a line now and then."""
        with self._lock:
            self._stages.pop("begun", None)
            self._stages["begun"] = _Stage(what)  # the last one
        if self._ticking:
            self._start_ticking()

    def show(self, text: str, done: int, total: int, *, news: bool) -> bool:
        """Show a line at once; without a terminal only news, or after some time. Return whether it was written."""
        now = time.monotonic()
        if self._terminal:
            with self._lock:
                self._stages.pop("begun", None)
                stage = self._stages.setdefault("shown", _Stage(""))
                stage.what, stage.share, stage.ends_s = text, done / total if total else None, None
                self._draw(now, at_once=True)
            return False
        if news or now >= self._following:
            self._stages.pop("begun", None)
            note(text)
            self._following = now + _EVERY_S
            return True
        return False

    def above(self, line: str) -> None:
        """Write a line that stays."""
        with self._lock:
            if self._bar is None:
                note(line)
            else:
                self._bar.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def clear(self) -> None:
        """Take the line from the terminal, until the next report: something else is written there."""
        with self._lock:
            self._stages.clear()
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
            begun = self._stages.pop("begun", None)
            if is_over:
                self._stages.pop(key, None)
                return
            stage = self._stages.get(key)
            if stage is None:
                stage = self._stages[key] = _Stage(words or key, hint, ends_s)
                if begun is not None and begun.what == stage.what:
                    stage.began = begun.began
            stage.share, stage.done = share, done
            if not self._ticking:
                self._draw(time.monotonic())

    def _say(self, what: str, share: float, done: str, hint: str, *, is_over: bool) -> None:
        """Write a line if it is time for one."""
        with self._lock:
            self._stages.pop("begun", None)
            stage = self._stages.setdefault(what, _Stage(what))
            now = time.monotonic()
            if is_over or now < max(self._following, stage.began + _FIRST_LINE_S):
                return
            self._following = now + _EVERY_S
            stage.share = share
        left = stage.left(now)
        words = [f"{what}: {done}, {now - stage.began:.0f} s", *([left] if left else [])]
        note(", ".join(words) + (f"; {hint}" if hint else ""))

    def _compiled(self, done: int, total: int, share: float | None) -> None:
        """Hear of the models' compilation, in whichever thread it is."""
        with self._lock:
            now, stage = time.monotonic(), self._stages.pop(_COMPILING, None)
            if share is None:
                self._compiled_s = now - stage.began if stage is not None else 0.0
                return
            if stage is None:
                stage = _Stage(_COMPILING)
                stage.began = now - self._compiled_s
            stage.share, stage.done = share, f"{done} of {total}"
            self._stages[_COMPILING] = stage  # the last one: it holds up the others

    def _start_ticking(self) -> None:
        if self._ticker is None or not self._ticker.is_alive():
            self._ticker = threading.Thread(target=self._go, name="progress", daemon=True)
            self._ticker.start()

    def _go(self) -> None:
        """Draw from time to time until nobody wants it."""
        while not self._tick.wait(_TICK_S):
            with self._lock:
                if self._is_over or not self._ticking:
                    return
                if self._terminal:
                    self._draw(time.monotonic())
                else:
                    self._say_begun(time.monotonic())

    def _say_begun(self, now: float) -> None:
        """Write a line of what goes on if it is time for one."""
        stage = self._stages.get("begun")
        if stage is not None and now >= max(self._following, stage.began + _FIRST_LINE_S):
            self._following = now + _EVERY_S
            note(f"{stage.what}: {now - stage.began:.0f} s so far")

    def _draw(self, now: float, *, at_once: bool = False) -> None:
        """Draw what goes on; a bar that is not there yet only if that takes long."""
        if self._is_over or not self._stages:
            return
        stage = next(reversed(self._stages.values()))
        if self._bar is None:
            if not at_once and now - stage.began < QUIET_S:
                return
            self._bar = _bar()
            self._task = self._bar.add_task("", total=None, done="", left="")
            self._bar.start()
        left = stage.left(now) or ("" if at_once else f"{time_text(now - stage.began)} so far")
        self._bar.update(
            self._task, description=printable(stage.what), total=None if stage.share is None else 1.0,
            completed=stage.share or 0.0, done=stage.done, left=left, refresh=True,
        )  # fmt: skip


def _bar() -> rich.progress.Progress:
    """Return one line of rich's, which is imported only where something takes long."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    if (interrupts := present()) is not None:
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
        redirect_stdout=False,  # the answer is nothing for stderr; notes go above the line
    )


def _wipe() -> None:
    """Leave a terminal as it was, also where the line is being drawn just now."""
    os.write(sys.stderr.fileno(), _WIPE)
