"""What tests of a fleet share: a lab with two workers, and a look at what was left behind."""

import pytest

from tests.e2e.fleet.lab import Lab, alive, descendants, wait_until


@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    """A scheduler and what runs with it. Whatever was started has to be gone at the end."""
    pytest.importorskip("distributed")
    made = Lab(tmp_path_factory.mktemp("fleet"))
    try:
        yield made
    finally:
        started = [pid for one in made.programs for pid in (one.pid, *descendants(one.pid))]
        made.close()
        wait_until("the end of all processes", lambda: not any(map(alive, started)))


@pytest.fixture
def lab(fleet):
    """The lab with its two workers, "near" and "far", which make no faults."""
    return fleet.two_workers()


@pytest.fixture
def records(tmp_path):
    return tmp_path / "records.sqlite"


@pytest.fixture(autouse=True)
def quiet(request, capfd):
    """Nobody writes a traceback: not the test's own process, not those of the lab."""
    yield
    written = [capfd.readouterr().err]
    if "fleet" in request.fixturenames:
        written += [one.said for one in request.getfixturevalue("fleet").programs]
    for text in written:
        assert "Traceback" not in text
