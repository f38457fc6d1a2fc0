"""Workers that build and measure for real, from the shell: a small session, a full disk, a kill."""

import contextlib
import json
import os
import shutil
import subprocess

import pytest

from tests.e2e.fleet.lab import Lab, Program, alive, check_records, descendants, wait_until

pytestmark = pytest.mark.slow

TRIALS = 5
QUICK = {
    "anatune.fleet.cluster.roster:MOST_OFF": {"cpu": 1e9, "gpu": 1e9},
    "anatune.fleet.cluster.station:_PEAK_SAMPLES": 10,
    "anatune.tuning.session:_COMPARE_S": 0.1,
}
"""A machine that runs tests does so many other things that its peak says nothing."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A lab of its own: "host" of the other one is a pretended device."""
    pytest.importorskip("distributed")
    pytest.importorskip("tvm")
    made = Lab(tmp_path_factory.mktemp("machine"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of its own that has next to no room."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def tune(lab, records, *words):
    """Run ``anatune tune`` and return it, finished."""
    command = (
        "tune", "--cluster", lab.address, "--hw", "host", "matmul", "32x48x24", "--threads", 1, "--trials", TRIALS,
        "--records", records, "--output", records.with_suffix(".json"), "--json", *words,
    )  # fmt: skip
    program = Program(records.parent, "tune", command, constants=QUICK)
    try:
        program.process.wait(180)
    finally:
        program.kill()
    return program


def test_a_session_from_the_shell_where_the_disk_of_a_worker_is_full(machine, records, small_disk):
    one = machine.worker("one", device="host", joined=False, constants=QUICK)
    two = machine.worker("two", device="host", constants=QUICK, variables={"TMPDIR": small_disk})
    machine.has_joined("one", one)
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    done = tune(machine, records)
    assert done.process.returncode == 0, done.said
    assert "Traceback" not in done.said
    assert "worker two is quarantined: " in done.said
    assert json.loads(done.printed)["outcomes"] == {"ok": TRIALS}
    assert {one.measurement.worker for one in check_records(records, TRIALS)} == {"one"}
    had = two.kill()
    wait_until("the end of its processes", lambda: not any(map(alive, had)))
    had = [one.pid, *descendants(one.pid)]
    assert one.interrupt() == 0
    wait_until("the end of its processes", lambda: not any(map(alive, had)))
    for program in machine.programs:
        assert "Traceback" not in program.said
