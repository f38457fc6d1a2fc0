"""The pieces of an end by Ctrl-C that need no signal; tests/e2e/terminal has the whole."""

import contextlib
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
    assert interrupts.present() is None
