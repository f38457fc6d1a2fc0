"""``anatune`` as a person would run it: `anatune` in the test's process, `script` where a process is what is tested."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import shell

_PROGRESS = re.compile(r"(searching|planning|compiling|building|training|importing|merging): \d")
"""What a slow machine says of how far it is."""


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Variables of a run: no colours, a configuration folder of its own."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return kept | {"XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("config"))}


@pytest.fixture(scope="session")
def script():
    found = shutil.which("anatune", path=str(Path(sys.executable).parent)) or shutil.which("anatune")
    assert found, "the anatune script is not installed beside the interpreter: pip install -e '.[dev]'"
    return found


@pytest.fixture(scope="session")
def new_process(script, environment):
    """Run ``anatune WORDS...`` in a process of its own and return it, finished."""

    def run(*words, **variables):
        return subprocess.run(
            [script, *map(str, words)], capture_output=True, text=True, timeout=300, env=environment | variables,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def anatune(environment):
    """Run ``anatune WORDS...`` and return its exit status and what it wrote, without lines of progress."""

    def run(*words, **variables):
        done = shell.anatune(*words, variables=environment | variables)
        # a slow machine says how far a search is
        return done._replace(stderr="".join(line for line in done.stderr.splitlines(True) if not _PROGRESS.match(line)))

    return run
