"""Compiled code of a test run goes to folders of its own, shared by all processes of the run.

NUMBA_CACHE_DIR, where it is set, is kept: set it to compile only once over many runs (the cache is keyed by a digest of
the sources, so an edit is noticed all the same). So is XDG_CACHE_HOME, where cubins go.
"""

import functools
import os
import shutil
import signal
import tempfile
from unittest import mock

import pytest

from tests import first_runs
from tests.postgres import PostgresServer
from tests.wording import MESSAGES

pytest_plugins = ["tests.tiers"]

_OWN = "ANATUNE_TEST_CACHE_"

# A package that is there in part (torchvision without its library raises RuntimeError or OSError) is as good as none.
pytest.importorskip = functools.partial(pytest.importorskip, exc_type=Exception)

for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
    if variable not in os.environ:  # before any test imports numba; pytest-xdist's workers inherit it
        os.environ[variable] = os.environ[_OWN + variable] = tempfile.mkdtemp(prefix="anatune-tests-")


# Several workers share the cores: threads of linear algebra that wait for each other would take most of their time.
# Set before any test imports NumPy, and inherited by all processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files; say why in the commit")


def pytest_configure(config):
    MESSAGES.update = config.getoption("--update-golden")


def pytest_sessionfinish():
    MESSAGES.write()


def pytest_unconfigure(config):
    for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        if not hasattr(config, "workerinput") and _OWN + variable in os.environ:
            shutil.rmtree(os.environ.pop(_OWN + variable), ignore_errors=True)
            del os.environ[variable]


@pytest.fixture(autouse=True)
def _all_cores():
    """Let each test begin on all cores: TVM's pool pins the thread that first calls a parallel kernel to one."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    yield
    if cores is not None:
        os.sched_setaffinity(0, cores)


@pytest.fixture(autouse=True, scope="session")
def _short_comparisons():
    """Let sessions compare their best trials for a moment: in most tests it does not matter which one wins."""
    with mock.patch("anatune.tuning.session._COMPARE_S", 0.1):
        yield


@pytest.fixture(autouse=True, scope="session")
def _every_model_is_compiled():
    """Let no test be answered with what another one compiled: some replace parts of the compiler."""
    try:
        import anatune.network.compiling.model_cache as cache
    except ImportError:  # test_packages.py runs tests of the core without the package of networks
        yield
        return
    with mock.patch.object(cache, "MOST_BYTES", 0):
        yield


_STARTED_IN = os.getcwd()


@pytest.fixture(autouse=True)
def _nothing_left():
    """Fail where a test leaves a file in the folder in which pytest was started; tools' own files begin with a dot."""
    before = set(os.listdir(_STARTED_IN))
    yield
    left = sorted(name for name in set(os.listdir(_STARTED_IN)) - before if not name.startswith((".", "__")))
    assert not left, f"left in {_STARTED_IN}: {', '.join(left)}; tests write under tmp_path"


@pytest.hookimpl(tryfirst=True)
def pytest_collection():
    """Compile the models before test files are imported: many files need them at once."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        first_runs.make(int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


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


@pytest.fixture(scope="session")
def postgres():
    """Return a PostgreSQL server of this run; skip where it is not installed."""
    server = PostgresServer()
    try:
        yield server
    finally:
        server.stop()
