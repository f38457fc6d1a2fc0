"""``anatune`` as a person would run it: `anatune` in the test's process, `script` where a process is what is tested."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import shell


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
    """Run ``anatune WORDS...`` in a process of its own, likewise."""

    def run(*words, **variables):
        done = subprocess.run(
            [script, *map(str, words)], capture_output=True, text=True, timeout=300, env=environment | variables,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        return shell.Done(done.returncode, done.stdout, shell.without_progress(done.stderr))

    return run


@pytest.fixture(scope="session")
def anatune(environment):
    """Run ``anatune WORDS...`` and return its exit status and what it wrote, without lines of progress."""
    return lambda *words, **variables: shell.anatune(*words, variables=environment | variables)
