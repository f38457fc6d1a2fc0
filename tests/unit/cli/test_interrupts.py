"""The pieces of an end by Ctrl-C that need no signal; tests/e2e/terminal has the whole."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anatune.cli import interrupts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found as Linux has them")


def test_processes_below_this_one_are_found_and_ended():
    """A child, and its own child in a session of its own; nothing else of this test run may be hit."""
    code = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True); import time; time.sleep(300)"
    with subprocess.Popen(
        [sys.executable, "-c", f"import os\nfrom anatune.cli import interrupts\nimport subprocess, sys, time\n"
         f"subprocess.Popen([sys.executable, '-c', {code!r}])\n"
         "while len(interrupts._descendants()) < 2: time.sleep(0.01)\n"
         "found = interrupts._descendants()\ninterrupts._adopt()\ninterrupts._end_processes()\n"
         "print(*found, interrupts._descendants())"], stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        said = process.communicate(timeout=60)[0].split()
    assert said.pop() == "[]"
    assert len(said) == 2
    for number in map(int, said):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{number}/status").read_text()
            assert "State:\tZ" in text, f"process {number} is alive"


def test_nothing_is_watched_in_a_library():
    assert interrupts.current_watcher() is None


def test_a_page_has_its_time_even_if_it_is_asked_for_before_the_signal_is_seen(monkeypatch):
    watching = interrupts.InterruptWatcher()
    watching.allow(120.0)
    until_s = watching._until_s
    read = iter([bytes([signal.SIGINT]), bytes([signal.SIGINT])])  # Ctrl-C, and Ctrl-C again, which ends it
    monkeypatch.setattr(interrupts.os, "read", lambda *_: next(read))
    monkeypatch.setattr(interrupts.select, "select", lambda *_: ([0], [], []))
    monkeypatch.setattr(interrupts, "_adopt", lambda: None)
    ended = []
    monkeypatch.setattr(watching, "end", ended.append)
    watching._wait()
    assert (watching._until_s, ended) == (until_s, ["interrupted"])
