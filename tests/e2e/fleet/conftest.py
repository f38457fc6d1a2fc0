"""What tests of a fleet share: a lab with two workers, and a look at what was left behind."""

import re

import pytest

from tests.e2e.fleet.lab import Lab, alive, descendants, wait_until

_REGISTERED_TWICE = re.compile(
    r"Traceback \(most recent call last\):\n(?:  .*\n)*"
    r"  File \"[^\n]*distributed/scheduler\.py\", line \d+, in (?:add_client|client_releases_keys)\n"
    r"[^\n]*self\.(?:client_comm|client)s\[client\][^\n]*\n(?: *[~^]+\n)?"
    r"KeyError: 'Client-[-0-9a-f]+'\n"
)
"""A known fault of Dask's scheduler: a client whose line was cut comes back before the scheduler has noticed that the
old one is gone, two calls of ``Scheduler.add_client`` then end for one client, and the second has nothing to take away,
or knows no more whose results are given back.
Dask has no option by which a client does not come back; its session has ended in one line all the same."""


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
    """Nobody writes a traceback: not the test's own process, not those of the lab. Each is told of once."""
    yield
    written = [capfd.readouterr().err]
    if "fleet" in request.fixturenames:
        written += [one.heard() for one in request.getfixturevalue("fleet").programs]
    for text in written:
        assert "Traceback" not in _REGISTERED_TWICE.sub("", text)
