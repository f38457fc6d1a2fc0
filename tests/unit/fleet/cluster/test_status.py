"""Who is in a cluster, by what its scheduler says."""

import msgspec
import pytest

import anatune
from anatune.fleet.cluster import status
from anatune.fleet.cluster.messages import Running, WorkerDescription, WorkerStanding, code_digest
from anatune.fleet.report import status_lines
from anatune.records.environment import environment
from anatune.report.text import join_lines

pytest.importorskip("distributed", reason="pip install '.[cluster]'")

XEON, RTX = anatune.hardware("xeon_gold_6230r"), anatune.hardware("rtx3090")


def worker(name, device=None, *, builders=2, peak=None, code=None, standing=None, **changed):
    """Return what a scheduler says of a worker."""
    ran_under = msgspec.structs.replace(environment(), **changed)
    one = WorkerDescription(name, code or code_digest(), ran_under, builders, device, peak)
    told = msgspec.json.encode(standing or WorkerStanding()).decode()
    return {"name": name, "anatune": msgspec.json.encode(one).decode(), "metrics": {"anatune": told}}


@pytest.fixture
def cluster(monkeypatch):
    def of(*workers):
        said = {"address": "tls://lab:8786", "workers": {f"tls://10.0.0.{n}:1": one for n, one in enumerate(workers)}}
        monkeypatch.setattr(status, "scheduler_identity", lambda address, tls: said)
        return status.cluster_status("lab:8786", "tls")

    return of


def test_nobody(cluster):
    assert join_lines(status_lines(cluster())) == "scheduler tls://lab:8786: no worker has joined\n"


def test_devices_slots_and_what_they_do(cluster):
    running = (
        Running("s", 1, "build", 1.0), Running("s", 2, "build", 2.0), Running("s", 3, "run", 3.4),
    )  # fmt: skip
    found = cluster(
        worker("gpu1", RTX, peak=30e12, standing=WorkerStanding(running, 1, 9, 8)),
        worker("box", XEON, peak=90e9),
        worker("laptop", builders=6),
    )
    assert [(one.name, one.state, one.measures, one.builds) for one in found.workers] == [
        ("box", "ready", 1, 2),
        ("gpu1", "ready", 1, 2),
        ("laptop", "ready", 0, 6),
    ]
    lines = join_lines(status_lines(found)).splitlines()
    assert lines[0] == "scheduler tls://lab:8786: 3 workers, 2 devices, 10 builds at once"
    assert lines[3].split()[:5] == ["gpu1", "ready", "2", "8", "1"]
    assert lines[3].endswith("2 builds, run for 3 s")
    assert lines[4].split()[-3:] == ["builds", "only", "idle"]
    assert msgspec.convert(msgspec.to_builtins(found), status.ClusterStatus) == found


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"anatune": "0.0.1"}, "anatune 0.0.1, "),
        ({"code": "0123456789abcdef"}, "other source"),
        ({"tvm": "0.1"}, "TVM 0.1"),
        ({"peak": 20e12}, "67% of the expected"),
    ],
)
def test_who_would_be_refused(cluster, changed, words):
    """By a session that begins here, of devices of one kind: another kind is no reason, sessions are of one."""
    fine = [worker(f"gpu{n}", RTX, peak=30e12) for n in (1, 2)]
    found = cluster(*fine, worker("gpu3", RTX, **{"peak": 30e12, **changed}), worker("box", XEON, peak=90e9))
    states = {one.name: one.state for one in found.workers}
    assert states == {"gpu1": "ready", "gpu2": "ready", "gpu3": "refused", "box": "ready"}
    text = join_lines(status_lines(found))
    assert words in " ".join(text.split())


def test_strangers(cluster):
    """Dask's own workers, and what says something that nobody can read."""
    found = cluster({"name": "dask-1"}, {"name": 7, "anatune": "{", "metrics": None}, {"anatune": "[]"})
    assert {one.state for one in found.workers} == {"foreign"}
    assert {one.name for one in found.workers} == {"dask-1", "7", "tls://10.0.0.2:1"}
    assert "start it with `anatune worker`" in join_lines(status_lines(found))
