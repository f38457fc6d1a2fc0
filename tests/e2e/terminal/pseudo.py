"""A command in a terminal of its own (a pty), as a person has it: what it draws, Ctrl-C, what it leaves."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

PATIENCE_S = 120.0
"""Until something is drawn: machines of continuous integration compile slowly."""
CEILING_S = 10.0
"""From Ctrl-C to the end; bench/interrupts.py has the figures, well below a second."""
_MARK = "ANATUNE_TEST_MARK"
_CONTROLLING = (
    "import os, sys, fcntl, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Pseudo:
    """A running command whose stderr, and stdout unless it goes elsewhere, are a terminal.

    Attributes
    ----------
    drawn : str
        What it wrote there so far.
    """

    def __init__(self, words, variables, *, folder=None, answer=None):
        self._mark = uuid.uuid4().hex
        self._master, slave = pty.openpty()
        kept = {name: value for name, value in variables.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        variables = {"TERM": "xterm-256color", "COLUMNS": "100", **kept, _MARK: self._mark}
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _CONTROLLING, *map(str, words)], stdin=slave, stdout=answer or slave,
            stderr=slave, env=variables, cwd=folder, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.drawn = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.left() if self.process.poll() is not None else [self.process.pid, *self.left()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    def until(self, pattern, patience_s=PATIENCE_S):
        """Read until a text is drawn."""
        end = time.monotonic() + patience_s
        while not re.search(pattern, self.drawn):
            assert time.monotonic() < end, f"{pattern!r} was not drawn within {patience_s} s: {self.drawn[-500:]!r}"
            if not self._read(0.1) and self.process.poll() is not None:
                assert re.search(pattern, self.drawn), f"it ended without {pattern!r}: {self.drawn[-500:]!r}"

    def interrupt(self):
        """Press Ctrl-C; return the exit status, and the lines that can be read afterwards."""
        os.write(self._master, b"\x03")
        before = len(self.drawn)
        return self.end(CEILING_S), readable(self.drawn[before:])

    def end(self, patience_s=PATIENCE_S):
        """Wait for the end and return the exit status."""
        end = time.monotonic() + patience_s
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it did not end within {patience_s} s: {self.drawn[-500:]!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    def left(self):
        """Return the processes that it has left."""
        wanted, found = f"{_MARK}={self._mark}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes() and "State:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
        return [process for process in found if process != self.process.pid]

    def _read(self, pause_s):
        if not select.select([self._master], [], [], pause_s)[0]:
            return False
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # nobody has the other end any more
            return False
        self.drawn += piece.decode(errors="replace")
        return bool(piece)


def readable(drawn):
    """Return the lines that a terminal shows: without what was wiped."""
    text = drawn.replace("^C", "").replace("\r\n", "\n").replace("\x1b[?25h", "")
    text = re.sub(r"[^\n]*\n?\r?(\x1b\[1A)?\x1b\[2K", "", text)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in text.split("\n")]
    return [line for line in lines if line]
