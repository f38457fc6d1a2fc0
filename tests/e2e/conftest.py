"""The installed ``anatune`` script in processes of its own, as a person would run it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Variables of the child processes: no colours, a configuration folder of their own."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return kept | {"XDG_CONFIG_HOME": str(tmp_path_factory.mktemp("config"))}


@pytest.fixture(scope="session")
def script():
    found = shutil.which("anatune", path=str(Path(sys.executable).parent)) or shutil.which("anatune")
    assert found, "the anatune script is not installed beside the interpreter: pip install -e '.[dev]'"
    return found


@pytest.fixture(scope="session")
def anatune(script, environment):
    """Run ``anatune WORDS...`` and return the finished process, without lines of progress."""

    def run(*words, **variables):
        done = subprocess.run(
            [script, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        # a slow machine says how far a search is
        done.stderr = "".join(line for line in done.stderr.splitlines(True) if not line.startswith("searching: "))
        return done

    return run
