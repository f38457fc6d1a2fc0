"""Compiled code of a test run goes to folders of its own, shared by all processes of the run.

NUMBA_CACHE_DIR, where it is set, is kept: set it to compile only once over many runs (the cache is keyed by a digest of
the sources, so an edit is noticed all the same). So is XDG_CACHE_HOME, where cubins go.
"""

import os
import shutil
import signal
import tempfile

import pytest

_OWN = "ANATUNE_TEST_CACHE_"

for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
    if variable not in os.environ:  # before any test imports numba; pytest-xdist's workers inherit it
        os.environ[variable] = os.environ[_OWN + variable] = tempfile.mkdtemp(prefix="anatune-tests-")


def pytest_unconfigure(config):
    for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        if not hasattr(config, "workerinput") and _OWN + variable in os.environ:
            shutil.rmtree(os.environ.pop(_OWN + variable), ignore_errors=True)
            del os.environ[variable]


@pytest.hookimpl(optionalhook=True)  # unknown where pytest-xdist is missing or switched off
def pytest_xdist_make_scheduler(config, log):
    """Hand out whole files, in order: what a module shares is made once, and less is compiled twice at a time."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.fixture
def interruptible():
    """SIGINT as in a program started in the foreground; in the background of a script it is ignored from the start.

    Processes that the test starts inherit what is ignored, but not a handler.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
