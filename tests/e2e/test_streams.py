"""Standard streams that are closed, full or no longer read: one line and the right exit status."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shells and devices are POSIX's")


@pytest.mark.parametrize(
    ("redirection", "status", "stdout", "stderr"),
    [
        (">/dev/full", 1, "", "error: no space left on device\n"),
        (
            ">&-",
            1,
            "",
            "error: standard output is closed, the answer cannot be printed; use >/dev/null to discard it\n",
        ),
        ("2>&-", 0, "name", ""),
        ("2>/dev/full", 0, "name", ""),
        ("<&-", 0, "name", ""),
        ("--json | head -c 1", 0, "[", ""),
        ("--nonsense 2>&-", 2, "", ""),
        ("--nonsense 2>/dev/full", 2, "", ""),
    ],
)
def test_streams(script, environment, redirection, status, stdout, stderr):
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" hw list {redirection}', script],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (status, stderr)
    assert done.stdout.startswith(stdout)
    assert bool(done.stdout) == bool(stdout)


def test_names_that_are_no_text(anatune, tmp_path):
    name = tmp_path / "\udcff.toml"
    name.write_text(anatune("hw", "show", "rtx3090").stdout)
    done = anatune("hw", "check", name, PYTHONIOENCODING="utf-8:strict")
    assert done.returncode == 0
    assert "\\udcff.toml: usable" in done.stdout


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_it_starts(environment):
    code = "import os, sys, anatune.__main__ as main\nsys.modules['anatune.cli.main'] = None\n"
    code += "import builtins\nreal = builtins.__import__\n"
    code += "def stop(name, *given):\n    if name == 'anatune.cli.main':\n        os.kill(os.getpid(), 2)\n"
    code += "    return real(name, *given)\nbuiltins.__import__ = stop\nmain.run()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")
