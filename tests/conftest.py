"""Compiled code of a test run goes to a folder of its own, shared by all processes of the run.

NUMBA_CACHE_DIR, where it is set, is kept: set it to compile only once over many runs (the cache is keyed by a digest of
the sources, so an edit is noticed all the same).
"""

import os
import shutil
import tempfile

_OWN = "ANATUNE_TEST_CACHE"

if "NUMBA_CACHE_DIR" not in os.environ:  # before any test imports numba; pytest-xdist's workers inherit it
    os.environ["NUMBA_CACHE_DIR"] = os.environ[_OWN] = tempfile.mkdtemp(prefix="anatune-tests-")


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput") and _OWN in os.environ:
        shutil.rmtree(os.environ.pop(_OWN), ignore_errors=True)
        del os.environ["NUMBA_CACHE_DIR"]
